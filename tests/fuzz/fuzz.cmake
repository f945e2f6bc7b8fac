# SPDX-License-Identifier: MIT OR Apache-2.0
# libFuzzer's targets, one program each, with AddressSanitizer and UndefinedBehaviorSanitizer. They need Clang: a tree of
# their own has the library for the CPU, which plans for all recorded GPUs. docs/guide/fuzzing.md says how to run them.
set(TANDEM_FUZZ_TARGETS problem_line problem plans caps structs cache args lists unpack)

if(TANDEM_FUZZ)
  add_library(tandem_fuzz_shared OBJECT fuzz/fuzz.cpp)
  add_custom_target(tandem_fuzz)
  foreach(target IN LISTS TANDEM_FUZZ_TARGETS)
    add_executable(tandem_fuzz_${target} fuzz/${target}.cpp $<TARGET_OBJECTS:tandem_fuzz_shared>)
    target_link_options(tandem_fuzz_${target} PRIVATE -fsanitize=fuzzer)
    add_dependencies(tandem_fuzz tandem_fuzz_${target})
  endforeach()
  target_sources(tandem_fuzz_unpack PRIVATE ${PROJECT_SOURCE_DIR}/src/vulkan/unpack.cpp) # the tree has no Vulkan
  foreach(name shared ${TANDEM_FUZZ_TARGETS})
    set(target tandem_fuzz_${name})
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src
                                                 ${TANDEM_DOCTEST_INCLUDE_DIR})
    target_compile_definitions(${target} PRIVATE DOCTEST_CONFIG_DISABLE)
    target_link_libraries(${target} PRIVATE tandem_harness tandem::tandem Threads::Threads)
    tandem_options(${target})
  endforeach()
  return()
endif()
if(TANDEM_SANITIZE)
  return()
endif()

# Each runs for some seconds from its corpus on; what ends a program lies in FOLDER, and its bytes are in the output.
set(seconds 5)
if(TANDEM_WHOLE_SUITES)
  set(seconds 120)
endif()
find_program(TANDEM_FUZZ_CXX clang++ DOC "A Clang with libFuzzer, for the tests fuzz.* (optional)")
mark_as_advanced(TANDEM_FUZZ_CXX)
set(why "there is no clang++")
if(TANDEM_FUZZ_CXX)
  # Debian has libFuzzer in libclang-rt-*-dev.
  execute_process(COMMAND ${TANDEM_FUZZ_CXX} -print-file-name=libclang_rt.fuzzer-${CMAKE_SYSTEM_PROCESSOR}.a
    OUTPUT_VARIABLE runtime OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND ${TANDEM_FUZZ_CXX} -print-resource-dir OUTPUT_VARIABLE resources
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(GLOB_RECURSE runtimes ${resources}/lib/*libclang_rt.fuzzer*.a)
  set(why "")
  if(NOT EXISTS "${runtime}" AND NOT runtimes)
    set(why "${TANDEM_FUZZ_CXX} has no libFuzzer")
  endif()
endif()
if(why)
  foreach(target IN LISTS TANDEM_FUZZ_TARGETS)
    add_test(NAME fuzz.${target} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${why}")
    set_tests_properties(fuzz.${target} PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: ")
  endforeach()
  return()
endif()
set(tree ${CMAKE_CURRENT_BINARY_DIR}/fuzz)
string(REGEX REPLACE "\\+\\+" "" clang ${TANDEM_FUZZ_CXX})
add_test(NAME fuzz.build COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${PROJECT_SOURCE_DIR} ${tree}
  --build-generator ${CMAKE_GENERATOR} --build-target tandem_fuzz --build-noclean
  --build-options -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DTANDEM_FUZZ=ON -DTANDEM_SANITIZE=ON
    -DTANDEM_VULKAN=OFF -DTANDEM_CUDA=OFF -DTANDEM_TOOLS=OFF -DTANDEM_EXAMPLES=OFF -DTANDEM_PYTHON=OFF
    -DCMAKE_C_COMPILER=${clang} -DCMAKE_CXX_COMPILER=${TANDEM_FUZZ_CXX}
    -DTANDEM_DOCTEST_INCLUDE_DIR=${TANDEM_DOCTEST_INCLUDE_DIR}
  --test-command ${CMAKE_COMMAND} -E echo built)
set_tests_properties(fuzz.build PROPERTIES FIXTURES_SETUP fuzz TIMEOUT 900 COST 100)
foreach(target IN LISTS TANDEM_FUZZ_TARGETS)
  file(MAKE_DIRECTORY ${tree}/found/${target})
  add_test(NAME fuzz.${target} COMMAND ${CMAKE_COMMAND} -E env ${tree}/bin/tandem_fuzz_${target} -max_total_time=${seconds} -len_control=0
    -max_len=400 -timeout=60 -rss_limit_mb=3000 -print_final_stats=0 -verbosity=0
    -artifact_prefix=${tree}/found/${target}/ ${tree}/found/${target} ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${target})
  set_tests_properties(fuzz.${target} PROPERTIES FIXTURES_REQUIRED fuzz TIMEOUT 300)
endforeach()
