# tandem_shader(target name source env define...): compiles source, a file in shaders/, to SPIR-V for that Vulkan,
# validates it where a validator was found, and lets the target include it as shaders/<name>.spv.h, which defines
# the words as <name>_spirv[]. tandem_shader_list(target), at the end, makes a tandem_module_source of each, and writes
# shaders/modules.inc, a TANDEM_MODULE(name) for each.
function(tandem_shader target name source env)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/shaders)
  file(MAKE_DIRECTORY ${out})
  set(source ${PROJECT_SOURCE_DIR}/shaders/${source})
  set(glslang ${TANDEM_GLSLANG} --quiet --target-env ${env} ${ARGN}
      -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/shaders -I${PROJECT_BINARY_DIR})
  set(validate "")
  if(TANDEM_SPIRV_VAL)
    set(validate COMMAND ${TANDEM_SPIRV_VAL} --target-env ${env} ${out}/${name}.spv)
  endif()
  # The module comes first, so that a bad one leaves no header behind.
  add_custom_command(
    OUTPUT ${out}/${name}.spv.h
    BYPRODUCTS ${out}/${name}.spv
    COMMAND ${glslang} -o ${out}/${name}.spv ${source}
    ${validate}
    COMMAND ${glslang} --depfile ${out}/${name}.d --vn ${name}_spirv -o ${out}/${name}.spv.h ${source}
    DEPENDS ${source}
    DEPFILE ${out}/${name}.d
    COMMENT "SPIR-V ${name}"
    VERBATIM)
  target_sources(${target} PRIVATE ${out}/${name}.spv.h)
  set_property(TARGET ${target} APPEND PROPERTY TANDEM_MODULES ${name})
endfunction()

# tandem_module_source(target folder name): of folder/<name>.spv.h, the module as src/vulkan/modules.h declares it. Each
# is an object of its own, so that a test program can bring one, which the linker takes before the library's, and compile
# none of the others.
function(tandem_module_source target folder name)
  file(CONFIGURE OUTPUT ${folder}/${name}.spv.cpp CONTENT
"#include \"vulkan/modules.h\"
#include \"${name}.spv.h\"
const tandem::SpirvModule tandem::module_${name} = {\"${name}\", ${name}_spirv, sizeof(${name}_spirv)};
")
  target_sources(${target} PRIVATE ${folder}/${name}.spv.cpp)
endfunction()

function(tandem_shader_list target)
  get_target_property(names ${target} TANDEM_MODULES)
  set(rows "")
  foreach(name IN LISTS names)
    tandem_module_source(${target} ${CMAKE_CURRENT_BINARY_DIR}/shaders ${name})
    string(APPEND rows "TANDEM_MODULE(${name})\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/shaders/modules.inc CONTENT "${rows}#undef TANDEM_MODULE\n")
endfunction()

# tandem_shaders(target stem...): shaders/scalar/<stem>.comp as <stem>.
function(tandem_shaders target)
  foreach(stem IN LISTS ARGN)
    tandem_shader(${target} ${stem} scalar/${stem}.comp vulkan1.2)
  endforeach()
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()

# tandem_matrix_shaders(target stem...): shaders/coopmat/<stem>.comp as <stem>_<path>_<type>, for both matrix paths
# and both types; as <stem>_coopmat_<type>_lean, for lean tiles; as <stem>_coopmat_f16_k2, for operands twice as deep as
# accumulators are wide; fwd as fwd_coopmat2_<type>_tensor, for rows that come and go by tensor addressing; bwd_dkv, bwd_dq
# and bwd_dbias as <stem>_coopmat2_<type>_ds, which share ds; bwd_dkv as <stem>_coopmat2_<type>_parts, for partial sums; bwd_dkv and bwd_dq as <stem>_coopmat2_<type>_pair[_ds], for
# pairs of subgroups.
function(tandem_matrix_shaders target)
  foreach(stem IN LISTS ARGN)
    foreach(path coopmat2 coopmat)
      foreach(type f16 bf16)
        string(COMPARE EQUAL ${path} coopmat2 nv)
        string(COMPARE EQUAL ${type} bf16 bf16)
        set(env vulkan1.2)
        if(nv) # the extension wants SPIR-V 1.6
          set(env vulkan1.3)
        endif()
        tandem_shader(${target} ${stem}_${path}_${type} coopmat/${stem}.comp ${env}
                      -DTANDEM_CM2=${nv} -DTANDEM_BF16=${bf16} -DTANDEM_KN=1)
        if(NOT nv)
          tandem_shader(${target} ${stem}_${path}_${type}_lean coopmat/${stem}.comp ${env}
                        -DTANDEM_CM2=0 -DTANDEM_BF16=${bf16} -DTANDEM_KN=1 -DTANDEM_LEAN=1)
        endif()
        if(nv AND stem STREQUAL "fwd")
          tandem_shader(${target} ${stem}_${path}_${type}_tensor coopmat/${stem}.comp ${env}
                        -DTANDEM_CM2=1 -DTANDEM_BF16=${bf16} -DTANDEM_KN=1 -DTANDEM_TENSOR=1)
        endif()
        if(nv AND stem MATCHES "^bwd_(dkv|dq|dbias)$")
          tandem_shader(${target} ${stem}_${path}_${type}_ds coopmat/${stem}.comp ${env}
                        -DTANDEM_CM2=1 -DTANDEM_BF16=${bf16} -DTANDEM_KN=1 -DTANDEM_DS=1)
        endif()
        if(nv AND stem STREQUAL "bwd_dkv")
          tandem_shader(${target} ${stem}_${path}_${type}_parts coopmat/${stem}.comp ${env}
                        -DTANDEM_CM2=1 -DTANDEM_BF16=${bf16} -DTANDEM_KN=1 -DTANDEM_PARTS=1)
        endif()
        if(nv AND stem MATCHES "^bwd_(dkv|dq)$")
          tandem_shader(${target} ${stem}_${path}_${type}_pair coopmat/${stem}.comp ${env}
                        -DTANDEM_CM2=1 -DTANDEM_BF16=${bf16} -DTANDEM_KN=1 -DTANDEM_PAIR=1)
          tandem_shader(${target} ${stem}_${path}_${type}_pair_ds coopmat/${stem}.comp ${env}
                        -DTANDEM_CM2=1 -DTANDEM_BF16=${bf16} -DTANDEM_KN=1 -DTANDEM_PAIR=1 -DTANDEM_DS=1)
        endif()
      endforeach()
    endforeach()
    tandem_shader(${target} ${stem}_coopmat_f16_k2 coopmat/${stem}.comp vulkan1.2
                  -DTANDEM_CM2=0 -DTANDEM_BF16=0 -DTANDEM_KN=2)
  endforeach()
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
