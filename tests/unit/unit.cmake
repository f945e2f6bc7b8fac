# SPDX-License-Identifier: MIT OR Apache-2.0
# Unit tests (tandem_tests), and programs with nothing but the library.
add_executable(tandem_tests
  $<TARGET_OBJECTS:tandem_test_main> unit/header_c99.c unit/test_api.cpp unit/test_api_features.cpp unit/test_cpu.cpp
  unit/test_execute.cpp unit/test_execute_features.cpp unit/test_far_rows.cpp unit/test_f64.cpp unit/test_hostile.cpp unit/test_merge.cpp
  plan/test_cost.cpp plan/test_batch_invariant.cpp plan/test_plan.cpp plan/test_tiles.cpp plan/test_features.cpp plan/test_matrix.cpp plan/test_sm80.cpp plan/test_sm90.cpp
  plan/test_models.cpp plan/test_sm90_features.cpp plan/test_sm90_launches.cpp plan/test_slices.cpp plan/test_splits.cpp plan/test_workspace.cpp plan/test_kernel_rows.cpp unit/test_problem_line.cpp
  unit/test_overlap.cpp unit/test_shared_memory.cpp
  unit/test_reference.cpp unit/test_reference_features.cpp unit/test_reference_path.cpp unit/test_harness.cpp
  unit/test_repeats.cpp unit/test_tile_range.cpp unit/test_usable_threads.cpp unit/test_verbose.cpp parity/recorded_session.cpp)
tandem_test_target(tandem_tests)
target_compile_definitions(tandem_tests PRIVATE TANDEM_WITH_VULKAN=$<BOOL:${TANDEM_WITH_VULKAN}>
  TANDEM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
if(TANDEM_WITH_VULKAN)
  target_sources(tandem_tests PRIVATE unit/test_api_vulkan.cpp)
  target_include_directories(tandem_tests PRIVATE ${PROJECT_BINARY_DIR})  # shaders/modules.inc
  target_compile_definitions(tandem_tests PRIVATE TANDEM_BINARY_DIR="$<TARGET_PROPERTY:tandem,BINARY_DIR>")
endif()
set_source_files_properties(unit/header_c99.c PROPERTIES
  COMPILE_OPTIONS "$<$<C_COMPILER_ID:GNU,Clang>:-std=c99;-pedantic-errors;-Werror>")
add_test(NAME unit COMMAND tandem_tests)

# ---- the border ----
function(tandem_border_test name) # with nothing but the library
  add_executable(tandem_${name} unit/test_${name}.cpp)
  target_include_directories(tandem_${name} PRIVATE ${TANDEM_DOCTEST_INCLUDE_DIR})
  target_link_libraries(tandem_${name} PRIVATE tandem::tandem Threads::Threads)
  tandem_test_options(tandem_${name})
  add_test(NAME ${name} COMMAND tandem_${name})
endfunction()
tandem_border_test(threads)
tandem_border_test(lengths)
if(UNIX)
  tandem_border_test(fork)
  set_tests_properties(fork PROPERTIES TIMEOUT 600)
endif()
# Handles that are gone, as builds with assertions know them: src/api/api.cpp once more, in place of the library's.
add_executable(tandem_handles $<TARGET_OBJECTS:tandem_test_main> unit/test_handles.cpp ${PROJECT_SOURCE_DIR}/src/api/api.cpp)
tandem_test_target(tandem_handles)
target_compile_definitions(tandem_handles PRIVATE TANDEM_CHECK_HANDLES=1)
add_test(NAME handles COMMAND tandem_handles)
