# The parity suite against kernels that are wrong on purpose: a change in the source of what a stem's kernels have in common on
# a path, <path>/<stem>.patch. Production sources know nothing of it. The first lines of a patch:
#   a sentence that says what is wrong
#   Cases: patterns of the test cases, of the tier ci, that have to fail. Without it, those of the tier smoke below.
#   Suite: exact or ratio, where that one alone has a case that fails
#   With: what is compiled beside the patched files, as it includes them (a file finds those of its own folder first)
# A program a stem, tandem_broken_<stem>, has the changes of all paths of this build. A patch that no longer fits stops its
# program's build and fails mutation.fresh; scripts/mutation makes it anew.
set(TANDEM_BROKEN_SMOKE "*backward*every fill*,ratio: two shapes*")
# bf16 is as it was there: a GPU that has it needs a case of f16 in both suites.
set(TANDEM_BROKEN_MATRIX "*backward*every fill*,regression: causal*")
set(TANDEM_BROKEN_PATHS cpu)
if(TANDEM_WITH_VULKAN)
  list(APPEND TANDEM_BROKEN_PATHS scalar coopmat2 coopmat)
endif()
# Only a GPU runs these, and they take minutes to build: with the preset cuda, not by the way.
if(TANDEM_WITH_CUDA AND TANDEM_CUDA STREQUAL "ON")
  list(APPEND TANDEM_BROKEN_PATHS simt)
  foreach(path sm80 sm90)
    if(TARGET tandem_${path})
      list(APPEND TANDEM_BROKEN_PATHS ${path})
    endif()
  endforeach()
endif()

# All that tandem_patched() writes. Its commands would else wait for the libraries of the programs that they are for.
add_custom_target(tandem_patched_sources)

# The list out: files beneath root, at their own paths, as the patches change them, and copies of others.
function(tandem_patched out root patches copies)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${patches})
  set(files ${copies})
  foreach(patch IN LISTS patches)
    file(STRINGS ${patch} names REGEX "^--- a/")
    list(TRANSFORM names REPLACE "^--- a/" "")
    list(APPEND files ${names})
  endforeach()
  list(REMOVE_DUPLICATES files)
  list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE sources)
  list(TRANSFORM files PREPEND ${root}/)
  file(GLOB_RECURSE old ${root}/*)
  foreach(file IN LISTS old) # of another configuration: an include would find it
    if(NOT file IN_LIST files)
      file(REMOVE ${file})
    endif()
  endforeach()
  set(script ${PROJECT_SOURCE_DIR}/tests/mutation/patch.cmake)
  add_custom_command(OUTPUT ${files}
    COMMAND ${CMAKE_COMMAND} -D "PATCHES=${patches}" -D ROOT=${root} -D "COPIES=${copies}" -P ${script}
    DEPENDS ${sources} ${patches} ${script} VERBATIM)
  target_sources(tandem_patched_sources PRIVATE ${files})
  set(${out} ${files} PARENT_SCOPE)
endfunction()

# A module of shaders/<file>, for Vulkan env, in place of the library's; the file and what it includes are sought in root first.
# What follows are options for glslang. TANDEM_HIDDEN, where it is set: the shared array to hide (hide.cpp). TANDEM_PATCHED:
# what has to be in root before.
function(tandem_own_module name dir module root file env)
  set(source ${PROJECT_SOURCE_DIR}/shaders/${file})
  if(EXISTS ${root}/${file} OR ${root}/${file} IN_LIST TANDEM_PATCHED)
    set(source ${root}/${file})
  endif()
  set(header ${dir}/shaders/${module}.spv.h)
  set(compiled ${header})
  set(glslang ${TANDEM_GLSLANG} --quiet --target-env ${env} ${ARGN} -I${root} -I${PROJECT_SOURCE_DIR}/src
      -I${PROJECT_SOURCE_DIR}/shaders -I${PROJECT_BINARY_DIR} --depfile ${dir}/${module}.d)
  if(TANDEM_HIDDEN)
    set(compiled ${dir}/${module}.spv)
    add_custom_command(OUTPUT ${header} COMMAND tandem_hide ${compiled} ${TANDEM_HIDDEN} ${module} ${header}
                       DEPENDS ${compiled} tandem_hide VERBATIM)
  else()
    list(APPEND glslang --vn ${module}_spirv)
  endif()
  add_custom_command(OUTPUT ${compiled} COMMAND ${glslang} -o ${compiled} ${source} DEPENDS ${source} ${TANDEM_PATCHED}
                     DEPFILE ${dir}/${module}.d COMMENT "SPIR-V ${module}, for ${name}" VERBATIM)
  target_sources(${name} PRIVATE ${header})
  tandem_module_source(${name} ${dir}/shaders ${module})
  target_include_directories(${name} PRIVATE $<TARGET_PROPERTY:tandem,BINARY_DIR>) # shaders/modules.inc
endfunction()

# A module of stem's kernels with matrices on path, f16, from dir/<path>/shaders first; a path coopmat_k2 is coopmat's with
# operands twice as deep, coopmat_lean its lean tiles, coopmat2_tensor coopmat2's with rows by tensor addressing, coopmat2_ds
# those that share ds, and strips those of rows by strips of features.
function(tandem_own_matrix_module name dir stem path)
  set(module ${stem}_${path}_f16)
  if(path MATCHES "^(coopmat2?)_(k2|lean|tensor|ds|strips|strips_k2)$")
    set(path ${CMAKE_MATCH_1})
    set(module ${stem}_${path}_f16_${CMAKE_MATCH_2})
  endif()
  tandem_own_module(${name} ${dir} ${module} ${dir}/${path}/shaders ${TANDEM_SOURCE_${module}} ${TANDEM_ENV_${module}}
    ${TANDEM_SWITCHES_${module}} ${ARGN})
endfunction()

# The kernels of a path of the tensor cores from files: a folder whose headers come before the project's.
function(tandem_own_tensor_core_kernels name path root)
  set(files ${ARGN})
  string(TOUPPER ${path} list)
  foreach(header IN LISTS TANDEM_${list}_SOURCES) # their sources are written
    if(files MATCHES "/${header}[.]cuh(;|$)")
      tandem_cuda_source(${path} ${header} ${root}.${header}.cu)
      list(APPEND files ${root}.${header}.cu)
    endif()
  endforeach()
  set(objects ${name}_${path})
  add_library(${objects} OBJECT ${files})
  # "../shared.cuh", as the kernels say it, is sought from the folder of each part.
  list(GET files 0 file)
  get_filename_component(folder ${file} DIRECTORY)
  file(RELATIVE_PATH original ${root} ${folder})
  target_include_directories(${objects} PRIVATE ${folder} ${PROJECT_SOURCE_DIR}/${original} ${root}/cuda
    ${PROJECT_SOURCE_DIR}/cuda ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  set(architectures_sm80 80-virtual)
  set(architectures_sm90 90a-real)
  set_target_properties(${objects} PROPERTIES CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Static
    CUDA_ARCHITECTURES ${architectures_${path}})
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()

# Explicit objects win over those of a static library, so each program is the suite, the library, and the
# few objects that hold the changed kernels.
function(tandem_broken path stem patch with)
  set(name tandem_broken_${stem})
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/mutation/${stem})
  set(root ${dir}/${path})
  if(NOT TARGET ${name})
    add_executable(${name} $<TARGET_OBJECTS:tandem_parity_objects>)
    target_link_libraries(${name} PRIVATE tandem_harness tandem::tandem Threads::Threads)
    tandem_options(${name})
    set_target_properties(${name} PROPERTIES # apart: these are not for use
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/mutation
      CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Static CUDA_ARCHITECTURES 75-virtual)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/cpu ${PROJECT_SOURCE_DIR}/src)
  endif()
  if(path STREQUAL cpu) # for each width of vectors
    foreach(source IN LISTS TANDEM_CPU_SOURCES)
      if(source MATCHES "/simd_(baseline|avx2|avx512|avx512_bf16).cpp$")
        list(APPEND with ${source})
        get_source_file_property(options ${PROJECT_SOURCE_DIR}/${source} DIRECTORY ${PROJECT_SOURCE_DIR} COMPILE_OPTIONS)
        set_source_files_properties(${root}/${source} PROPERTIES COMPILE_OPTIONS "${options}")
      endif()
    endforeach()
    list(APPEND with src/cpu/simd_kernels.inl)
  endif()
  tandem_patched(TANDEM_PATCHED ${root} ${patch} "${with}")
  if(path MATCHES "^(cpu|simt)$")
    target_sources(${name} PRIVATE ${TANDEM_PATCHED})
    if(path STREQUAL simt)
      target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cuda/simt ${PROJECT_SOURCE_DIR}/cuda/parts)
    endif()
  elseif(path MATCHES "^sm")
    tandem_own_tensor_core_kernels(${name} ${path} ${root} ${TANDEM_PATCHED})
  elseif(path STREQUAL scalar)
    foreach(file IN LISTS TANDEM_PATCHED)
      if(file MATCHES "/(scalar/([a-z_]+).comp)$")
        tandem_own_module(${name} ${dir} ${CMAKE_MATCH_2} ${root}/shaders ${CMAKE_MATCH_1} vulkan1.2)
      endif()
    endforeach()
  else()
    tandem_own_matrix_module(${name} ${dir} ${stem} ${path})
    if(path STREQUAL coopmat AND stem STREQUAL fwd) # what NVIDIA's GPUs take in the forward
      tandem_own_matrix_module(${name} ${dir} ${stem} coopmat_k2)
    endif()
  endif()
endfunction()

# Every operation of the registry is wrong somewhere on each of its paths, but for these. Rows without tiles of the tensor
# cores run simt's kernel, those of the matrix paths without matrices scalar's.
#
# There is a change for each stem and path, not for each variant: it shows that the suite judges what the stem writes, and it
# judges the outputs of all variants by the same rules, in the same code. That each variant runs is another check: the suite
# fails for a row of the registry that no case ran. A change for each variant would compile most kernels of CUDA twice. So it
# is in the variant that most problems take, or in what they share.
#
# Without a change:
#   bwd_row_sums, bwd_dbias of the matrix paths: the suite judges what they write (delta, by way of d_q and d_k; d_bias) in
#     the cases that see scalar's change, and lavapipe takes minutes to compile each of them
#   bwd_row_sums of sm90: it has entmax alone, and what it writes is judged as for sm80
set(unbroken coopmat2/bwd_row_sums coopmat2/bwd_dbias coopmat/bwd_row_sums coopmat/bwd_dbias sm90/bwd_row_sums)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/kernels.inc)
file(STRINGS ${PROJECT_SOURCE_DIR}/src/kernels/kernels.inc rows REGEX "^TANDEM_KERNEL")
file(GLOB_RECURSE changes RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/mutation CONFIGURE_DEPENDS mutation/*.patch)
list(FILTER changes EXCLUDE REGEX "^races/")
list(TRANSFORM changes REPLACE "[.]patch$" "")
set(plain_cpu cpu)
set(plain_vulkan scalar)
set(plain_cuda simt)
set(needed "")
foreach(row IN LISTS rows)
  string(REGEX MATCH "\\(([a-z_]+), *([a-z]+), *([a-z0-9]+), *([a-z0-9_]+), *[a-z0-9]+, *([a-z0-9_]+)," all "${row}")
  set(change ${CMAKE_MATCH_3}/${CMAKE_MATCH_1})
  set(plain ${plain_${CMAKE_MATCH_2}}/${CMAKE_MATCH_1})
  if(CMAKE_MATCH_3 STREQUAL "ref") # what the others are compared with
    continue()
  elseif(CMAKE_MATCH_5 MATCHES "^(matrix|ampere|hopper)" OR change IN_LIST changes OR change IN_LIST unbroken)
    list(APPEND needed ${change})
  else()
    list(APPEND needed ${plain})
  endif()
endforeach()
list(REMOVE_DUPLICATES needed)
list(REMOVE_ITEM needed ${unbroken})
set(useless ${changes})
list(REMOVE_ITEM useless ${needed})
list(REMOVE_ITEM needed ${changes})
if(needed)
  message(FATAL_ERROR "tests/mutation: the registry has rows that nothing breaks; write the patches: ${needed}")
elseif(useless)
  message(FATAL_ERROR "tests/mutation: patches break no row of the registry, or one that is listed as without: ${useless}")
endif()

# What build/tests/mutation/cases.txt tells scripts/gpu-suite: a stem (with :SUITE), the tier, a path, the patterns.
set(broken_cases "")
set(TANDEM_BROKEN "") # the stems that Vulkan's drivers at hand run without matrices (runs.cmake)
foreach(change IN LISTS changes)
  string(REGEX MATCH "(.*)/(.*)" change ${change})
  set(path ${CMAKE_MATCH_1})
  set(stem ${CMAKE_MATCH_2})
  set(patch ${CMAKE_CURRENT_SOURCE_DIR}/mutation/${change}.patch)
  if(NOT path IN_LIST TANDEM_BROKEN_PATHS)
    continue()
  endif()
  foreach(field Cases Suite With)
    file(STRINGS ${patch} ${field} REGEX "^${field}: ")
    string(REGEX REPLACE "^${field}: " "" ${field} "${${field}}")
  endforeach()
  string(REPLACE " " ";" With "${With}")
  tandem_broken(${path} ${stem} ${patch} "${With}")
  set(tier ci)
  if(NOT Cases)
    set(tier smoke)
    set(Cases "${TANDEM_BROKEN_SMOKE}")
    if(path MATCHES "coopmat")
      set(Cases "${TANDEM_BROKEN_MATRIX},ratio: two shapes*")
    endif()
  endif()
  if(Suite)
    set(Suite ":${Suite}")
  endif()
  set(environment "TANDEM_TIER=${tier};TANDEM_EXPECT_BROKEN=${stem}${Suite}")
  if(path STREQUAL cpu)
    add_test(NAME broken.${stem}.cpu COMMAND tandem_broken_${stem} "-tc=${Cases}")
    set_tests_properties(broken.${stem}.cpu PROPERTIES ENVIRONMENT "TANDEM_DEVICE=cpu;${environment}")
  elseif(path STREQUAL scalar) # for runs.cmake
    list(APPEND TANDEM_BROKEN ${stem})
    set(TANDEM_BROKEN_${stem} "${Cases}")
    set(broken_environment_${stem} "${environment}")
  elseif(path MATCHES "coopmat") # runs.cmake looks whether it is defined
    set(${path}_${stem}_from ${patch})
  endif()
  if(path MATCHES "^s[im]")
    string(APPEND broken_cases "${stem}${Suite} ${tier} cuda.${path} ${Cases}\n")
  elseif(NOT path STREQUAL cpu)
    string(APPEND broken_cases "${stem}${Suite} ${tier} vulkan.${path} ${Cases}\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/mutation/cases.txt CONTENT "${broken_cases}")

# Whether all patches fit, those too that this build does not compile; and that the check tells those that do not.
add_test(NAME mutation.fresh COMMAND ${CMAKE_COMMAND} -P ${CMAKE_CURRENT_SOURCE_DIR}/mutation/patch.cmake)
add_test(NAME mutation.stale COMMAND ${CMAKE_COMMAND} -D PATCHES=${CMAKE_CURRENT_SOURCE_DIR}/mutation/stale.txt
  -P ${CMAKE_CURRENT_SOURCE_DIR}/mutation/patch.cmake)
set_tests_properties(mutation.stale PROPERTIES PASS_REGULAR_EXPRESSION
  "no longer has.*more than once.*no line of it.*changes nothing of.*is no file.*scripts/mutation tests/mutation/stale.txt")
