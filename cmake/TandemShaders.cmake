# tandem_spirv(name source env define...): a command that compiles source, a file in shaders/, to SPIR-V for that Vulkan,
# optimises it (cmake/OptimiseModule.cmake) where an optimiser was found, and validates it where a validator was:
# shaders/<name>.spv. Modules with cooperative matrices stay as they are compiled: in SSA form, matrices that a loop carries
# go through memory on NVIDIA's driver, and RADV takes a fifth longer for them.
function(tandem_spirv name source env)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/shaders)
  file(MAKE_DIRECTORY ${out})
  set(optimise "")
  set(script "")
  if(TANDEM_SPIRV_OPT AND NOT source MATCHES "^coopmat/")
    set(script ${PROJECT_SOURCE_DIR}/cmake/OptimiseModule.cmake)
    set(optimise COMMAND ${CMAKE_COMMAND} -D OPTIMISER=${TANDEM_SPIRV_OPT} -D MODULE=${out}/${name}.spv -P ${script})
  endif()
  set(source ${PROJECT_SOURCE_DIR}/shaders/${source})
  set(validate "")
  if(TANDEM_SPIRV_VAL)
    set(validate COMMAND ${TANDEM_SPIRV_VAL} --target-env ${env} ${out}/${name}.spv)
  endif()
  add_custom_command(
    OUTPUT ${out}/${name}.spv
    COMMAND ${TANDEM_GLSLANG} --quiet --target-env ${env} ${ARGN}
      -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/shaders -I${PROJECT_BINARY_DIR}
      --depfile ${out}/${name}.d -o ${out}/${name}.spv ${source}
    ${optimise}
    ${validate}
    DEPENDS ${source} ${script}
    DEPFILE ${out}/${name}.d
    COMMENT "SPIR-V ${name}"
    VERBATIM)
endfunction()

# tandem_shader(target name source env define...): lets the target include a module as shaders/<name>.spv.h, which
# defines the words as <name>_spirv[].
function(tandem_shader target name source env)
  tandem_spirv(${name} ${source} ${env} ${ARGN})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/shaders)
  add_custom_command(OUTPUT ${out}/${name}.spv.h
    COMMAND ${TANDEM_GLSLANG} --quiet --target-env ${env} ${ARGN}
      -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/shaders -I${PROJECT_BINARY_DIR}
      --vn ${name}_spirv -o ${out}/${name}.spv.h ${PROJECT_SOURCE_DIR}/shaders/${source}
    DEPENDS ${out}/${name}.spv # a bad one leaves no header behind
    VERBATIM)
  target_sources(${target} PRIVATE ${out}/${name}.spv.h)
endfunction()

# tandem_module(target name source env define...): gives the target a module packed, as src/vulkan/modules.h declares
# it. Each is an object of its own, so that a test program can bring one, which the linker takes before the library's, and
# compile none of the others. tandem_module_list(target), at the end, writes shaders/modules.inc, a TANDEM_MODULE(name) for
# each.
function(tandem_module target name source env)
  tandem_spirv(${name} ${source} ${env} -g0 ${ARGN}) # names of variables are a sixth of it
  set(out ${CMAKE_CURRENT_BINARY_DIR}/shaders)
  set(pack ${PROJECT_SOURCE_DIR}/cmake/PackModule.cmake)
  add_custom_command(OUTPUT ${out}/${name}.spv.cpp
    COMMAND ${CMAKE_COMMAND} -D NAME=${name} -D MODULE=${out}/${name}.spv -D SOURCE=${out}/${name}.spv.cpp -P ${pack}
    DEPENDS ${out}/${name}.spv ${pack}
    VERBATIM)
  target_sources(${target} PRIVATE ${out}/${name}.spv.cpp)
  set_property(TARGET ${target} APPEND PROPERTY TANDEM_MODULES ${name})
endfunction()

function(tandem_module_list target)
  get_target_property(names ${target} TANDEM_MODULES)
  set(rows "")
  foreach(name IN LISTS names)
    string(APPEND rows "TANDEM_MODULE(${name})\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/shaders/modules.inc CONTENT "${rows}#undef TANDEM_MODULE\n")
endfunction()

# tandem_module_source(target folder name): gives the target the module of folder/<name>.spv.h as it is, words <name>_spirv[].
function(tandem_module_source target folder name)
  file(CONFIGURE OUTPUT ${folder}/${name}.spv.cpp CONTENT
"#include \"vulkan/modules.h\"
#include \"${name}.spv.h\"
const tandem::SpirvModule tandem::module_${name} = {\"${name}\", sizeof(${name}_spirv), ${name}_spirv, nullptr, 0};
")
  target_sources(${target} PRIVATE ${folder}/${name}.spv.cpp)
endfunction()

# The modules that the rows of backend vulkan in src/kernels/kernels.inc ask for, by columns:
#   folder    scalar: the module <stem>, for every path and type; coopmat: the module <stem>_<path>_<type>_<variant>, and
#             <stem>_<path>_<type> of the variant base; none: no module, as such launches run those of other rows
#   source    what it is compiled from, shaders/<folder>/<source>.comp
# The rest of a module of coopmat is three switches (shaders/coopmat/begin.glsl): TANDEM_CM2 by the path, TANDEM_BF16 by the
# type, and TANDEM_KN by the trait k2, operands twice as deep as accumulators are wide. row_module() in
# src/kernels/kernel_rows.cpp has the same names, and a test compares them.

# tandem_read_modules(): TANDEM_ROW_MODULES, the modules of these rows, and for each of them TANDEM_SOURCE_<module>,
# TANDEM_ENV_<module> and TANDEM_SWITCHES_<module>, a list, in the caller's scope.
function(tandem_read_modules)
  set(registry ${PROJECT_SOURCE_DIR}/src/kernels/kernels.inc)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${registry})
  file(STRINGS ${registry} rows REGEX "^TANDEM_KERNEL\\([a-z_]+, *vulkan,")
  set(modules "")
  foreach(row IN LISTS rows)
    set(word "([a-z0-9_]+), *")
    if(NOT row MATCHES
       "^TANDEM_KERNEL\\(${word}vulkan, *${word}${word}${word}[a-z]+, *[^,]+, *[^,]+, *([a-z0-9_ |]+), *${word}${word}none\\)$")
      message(FATAL_ERROR "src/kernels/kernels.inc: not a row: ${row}")
    endif()
    set(stem ${CMAKE_MATCH_1})
    set(path ${CMAKE_MATCH_2})
    set(variant ${CMAKE_MATCH_3})
    set(types ${CMAKE_MATCH_4})
    string(REPLACE " | " ";" traits "${CMAKE_MATCH_5}")
    set(folder ${CMAKE_MATCH_6})
    set(source ${CMAKE_MATCH_7})
    if(folder STREQUAL "scalar")
      list(APPEND modules ${stem})
      set(TANDEM_SOURCE_${stem} scalar/${source}.comp PARENT_SCOPE)
      set(TANDEM_ENV_${stem} vulkan1.2 PARENT_SCOPE)
      set(TANDEM_SWITCHES_${stem} "" PARENT_SCOPE)
    endif()
    if(NOT folder STREQUAL "coopmat")
      continue()
    endif()
    set(suffix _${variant})
    if(variant STREQUAL "base")
      set(suffix "")
    endif()
    set(deep 1)
    if("k2" IN_LIST traits)
      set(deep 2)
    endif()
    if(types STREQUAL "half")
      set(types f16 bf16)
    endif()
    set(nv 0)
    set(env vulkan1.2)
    if(path STREQUAL "coopmat2") # its extension wants SPIR-V 1.6
      set(nv 1)
      set(env vulkan1.3)
    endif()
    foreach(type IN LISTS types)
      set(module ${stem}_${path}_${type}${suffix})
      string(COMPARE EQUAL "${type}" bf16 bf16)
      list(APPEND modules ${module})
      set(TANDEM_SOURCE_${module} coopmat/${source}.comp PARENT_SCOPE)
      set(TANDEM_ENV_${module} ${env} PARENT_SCOPE)
      set(TANDEM_SWITCHES_${module} -DTANDEM_CM2=${nv} -DTANDEM_BF16=${bf16} -DTANDEM_KN=${deep} PARENT_SCOPE)
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES modules) # other paths' rows have the same modules of scalar
  set(TANDEM_ROW_MODULES ${modules} PARENT_SCOPE)
endfunction()

# tandem_row_shaders(target): these modules.
function(tandem_row_shaders target)
  foreach(module IN LISTS TANDEM_ROW_MODULES)
    tandem_module(${target} ${module} ${TANDEM_SOURCE_${module}} ${TANDEM_ENV_${module}} ${TANDEM_SWITCHES_${module}})
  endforeach()
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()

# shaders/spec_ids.h, for GLSL and C++: TANDEM_ID_<name>, the id of each specialisation constant that an interface file
# has as a TANDEM_SPEC. Names have one id, in whichever files they stand; it is counted in the order of the files.
function(tandem_spec_ids)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/abi/*.inc)
  set(names "")
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} text)
    string(REGEX MATCHALL "\nTANDEM_SPEC\\([A-Za-z0-9_]+" rows "${text}")
    list(TRANSFORM rows REPLACE ".*\\(" "")
    list(APPEND names ${rows})
  endforeach()
  list(REMOVE_DUPLICATES names)
  set(lines "")
  set(id 0)
  foreach(name IN LISTS names)
    string(APPEND lines "#define TANDEM_ID_${name} ${id}\n")
    math(EXPR id "${id} + 1")
  endforeach()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/shaders/spec_ids.h CONTENT "${lines}")
endfunction()
