# SPDX-License-Identifier: MIT OR Apache-2.0
# The border once more under sanitizers; the tandem command by what it prints.
if(NOT TANDEM_SANITIZE)
  tandem_border_test(host_memory) # sanitizers have an operator new of their own
  # Watched by ThreadSanitizer: the threads once more. By AddressSanitizer and UndefinedBehaviorSanitizer: lengths and offsets that
  # no caller should give, and plans of problems that no model has. A tree for each kind, with the library for the CPU.
  function(tandem_sanitized_test name kind)
    set(tree ${CMAKE_CURRENT_BINARY_DIR}/sanitized_${kind})
    add_test(NAME ${name}.sanitized COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${PROJECT_SOURCE_DIR} ${tree}
      --build-generator ${CMAKE_GENERATOR} --build-target tandem_${name} --build-noclean
      --build-options -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DTANDEM_SANITIZE=${kind} -DTANDEM_VULKAN=OFF -DTANDEM_CUDA=OFF
        -DTANDEM_TOOLS=OFF -DTANDEM_EXAMPLES=OFF -DTANDEM_PYTHON=OFF -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
        -DTANDEM_DOCTEST_INCLUDE_DIR=${TANDEM_DOCTEST_INCLUDE_DIR}
      --test-command ${tree}/bin/tandem_${name})
    set_tests_properties(${name}.sanitized PROPERTIES TIMEOUT 900 RESOURCE_LOCK ${tree} COST 100
      ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1;UBSAN_OPTIONS=halt_on_error=1")
  endfunction()
  tandem_sanitized_test(threads THREAD)
  tandem_sanitized_test(lengths ON)
  if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    tandem_sanitized_test(plans ON)
  endif()
endif()
if(TARGET tandem_tool)
  add_test(NAME info COMMAND ${CMAKE_COMMAND} -D TOOL=$<TARGET_FILE:tandem_tool> -D VERSION=${PROJECT_VERSION}
    -P ${CMAKE_CURRENT_SOURCE_DIR}/unit/info.cmake)
  set_tests_properties(info PROPERTIES ENVIRONMENT "TANDEM_DISABLE=cpu.simd")
  add_test(NAME doctor COMMAND ${CMAKE_COMMAND} -D TOOL=$<TARGET_FILE:tandem_tool> -D FOLDER=${CMAKE_CURRENT_BINARY_DIR}
    -P ${CMAKE_CURRENT_SOURCE_DIR}/unit/doctor.cmake)
  add_test(NAME scripts.home COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_SOURCE_DIR}/unit/home.cmake)
  add_test(NAME bench.slow COMMAND ${CMAKE_COMMAND} -D TOOL=$<TARGET_FILE:tandem_tool>
    -D FOLDER=${CMAKE_CURRENT_BINARY_DIR}/bench_slow -P ${CMAKE_CURRENT_SOURCE_DIR}/unit/bench_slow.cmake)
  add_test(NAME bench.compare COMMAND ${CMAKE_COMMAND} -D TOOL=$<TARGET_FILE:tandem_tool>
    -D FOLDER=${CMAKE_CURRENT_BINARY_DIR}/bench_compare -P ${CMAKE_CURRENT_SOURCE_DIR}/unit/bench_compare.cmake)
  add_test(NAME check.soak COMMAND ${CMAKE_COMMAND} -D TOOL=$<TARGET_FILE:tandem_tool>
    -D FILE=${CMAKE_CURRENT_BINARY_DIR}/soak.json -P ${CMAKE_CURRENT_SOURCE_DIR}/unit/check_soak.cmake)
  # No byte outside of a tensor is touched (harness/guard_pages.h); the kernels of GPUs: parity.guard.* in runs.cmake.
  if(UNIX)
    foreach(pages first last)
      add_test(NAME check.guard.${pages} COMMAND tandem_tool check --device cpu --cases 1000 --seed 7 --work 300000)
      set_tests_properties(check.guard.${pages} PROPERTIES ENVIRONMENT "TANDEM_GUARD_PAGES=${pages}")
    endforeach()
  endif()
  # The lines of docs/guide/bug-reports.md.
  set(repro check --device cpu --repro)
  add_test(NAME verbose COMMAND tandem_tool ${repro} "fwd f32 sq3 d4")
  set_tests_properties(verbose PROPERTIES ENVIRONMENT "TANDEM_VERBOSE=all" PASS_REGULAR_EXPRESSION
    "tandem,device,cpu,[0-9]+\\.[0-9],[^\n]+ \\| Tandem ${PROJECT_VERSION}\n.*tandem,plan,cpu,[0-9]+\\.[0-9],cpu\\.[a-z]+ [^\n]*\\| fwd f32 [^\n]+\n.*tandem,execute,cpu,[0-9]+\\.[0-9],cpu\\.")
  add_test(NAME verbose.error COMMAND tandem_tool plan --device cpu "fwd f32 sq3 d999")
  set_tests_properties(verbose.error PROPERTIES ENVIRONMENT "TANDEM_VERBOSE=error" PASS_REGULAR_EXPRESSION
    "tandem,error,-,-,TANDEM_ERROR_UNSUPPORTED: [^\n]*999" FAIL_REGULAR_EXPRESSION "tandem,(device|plan|execute)")
  add_test(NAME verbose.word COMMAND tandem_tool ${repro} "fwd f32 sq3 d4")
  set_tests_properties(verbose.word PROPERTIES ENVIRONMENT "TANDEM_VERBOSE=plan,chatter" PASS_REGULAR_EXPRESSION "'chatter'")
  # A problem that is none ends in its own sentence, whatever the tool wants of it; and the host's costs have their rows.
  foreach(words "check;--repro" "bench;--problem" "bench;--host;--problem" "bench;--list;--problem" plan)
    list(JOIN words "." name)
    string(REPLACE "--" "" name ${name})
    add_test(NAME wrong.${name} COMMAND tandem_tool ${words} "fwd f32 sq-3 d4")
    set_tests_properties(wrong.${name} PROPERTIES ENVIRONMENT "TANDEM_DEVICE=cpu" PASS_REGULAR_EXPRESSION
      "TANDEM_ERROR_INVALID_ARGUMENT: seq_q is -3")
  endforeach()
  add_test(NAME bench.host COMMAND tandem_tool bench --host --device cpu --format json)
  set_tests_properties(bench.host PROPERTIES PASS_REGULAR_EXPRESSION
    "\"what\": \"plan_first\".*\"what\": \"plan_cold\".*\"what\": \"plan_cached\".*\"what\": \"execute\"")
  # Both directions of both problems, judged; and the header says how they were timed.
  add_test(NAME bench.turns COMMAND tandem_tool bench --turns --device cpu --warmup 0 --max-seconds 0.1 --format json
    --problem "fwd f32 sq64 d16" --problem "fwd f32 sq32 d8")
  set_tests_properties(bench.turns PROPERTIES PASS_REGULAR_EXPRESSION
    "\"turns\": true.*\"op\": \"fwd\".*\"max_err_ratio\": [0-9].*\"op\": \"bwd\".*\"max_err_ratio\": [0-9].*\"op\": \"fwd\".*\"op\": \"bwd\""
    FAIL_REGULAR_EXPRESSION "WRONG|TANDEM_ERROR")
  # Models: those that are trained have both directions, the others forward alone; and a problem like each of them.
  add_test(NAME bench.models COMMAND tandem_tool bench --preset models --device cpu --warmup 0 --reps 1 --max-seconds 0.1
    --case graphgps-zinc --case whisper-large-cross-decode --format csv)
  set_tests_properties(bench.models PROPERTIES PASS_REGULAR_EXPRESSION
    "graphgps-zinc,fwd,tandem,cpu,.*graphgps-zinc,bwd,tandem,cpu,.*whisper-large-cross-decode,fwd,tandem,cpu,"
    FAIL_REGULAR_EXPRESSION "WRONG|TANDEM_ERROR|decode,bwd")
  add_test(NAME check.models COMMAND tandem_tool check --preset models --device cpu --cases 100 --per-kernels 1)
  set_tests_properties(check.models PROPERTIES PASS_REGULAR_EXPRESSION "OK: [0-9]+ runs of 100 problems, 0 failures")
endif()
