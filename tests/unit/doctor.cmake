# SPDX-License-Identifier: MIT OR Apache-2.0
# `tandem doctor` on the CPU device: a report that says OK, tells what docs/guide/new-gpu.md says and nothing of the machine
# or its user; and where no path is left, what is wrong, and exit status 1.
#   cmake -D TOOL=... -D FOLDER=... -P unit/doctor.cmake
cmake_minimum_required(VERSION 3.22)
set(run ${TOOL} doctor --device cpu --seconds 2 --bench-seconds 0 --out)
function(expect text)
  foreach(words IN LISTS ARGN)
    if(NOT text MATCHES "${words}")
      message(SEND_ERROR "no '${words}' in:\n${text}")
    endif()
  endforeach()
endfunction()

file(REMOVE ${FOLDER}/doctor.md)
execute_process(COMMAND ${run} ${FOLDER}/doctor.md OUTPUT_VARIABLE said ERROR_VARIABLE bar RESULT_VARIABLE status)
file(READ ${FOLDER}/doctor.md report)
if(NOT status EQUAL 0)
  message(SEND_ERROR "status ${status}: ${said}${bar}")
endif()
if(NOT bar STREQUAL "") # no bar where there is no terminal
  message(SEND_ERROR "stderr has '${bar}'")
endif()
expect("${said}" "cpu[.]simd" "Parity: OK: [0-9]+ runs of [0-9]+ problems" "vit-b16-224" "\nOK, [0-9]+ s")
expect("${report}" "# Tandem on a GPU" "## cpu: " "threads +[0-9]" "next token, GQA: fwd f16" "cpu[.]simd" "Parity: OK"
  "Against the reference in double" "vit-b16-224" "\nOK, [0-9]+ s")
cmake_host_system_information(RESULT host QUERY HOSTNAME)
foreach(word "$ENV{HOME}/" "${FOLDER}" "${host}")
  string(FIND "${report}" "${word}" at)
  if(NOT word STREQUAL "/" AND NOT word STREQUAL "" AND NOT at EQUAL -1)
    message(SEND_ERROR "the report has '${word}'")
  endif()
endforeach()

execute_process(COMMAND ${run} ${FOLDER}/doctor-none.md --disable cpu.simd,cpu.ref OUTPUT_VARIABLE said ERROR_VARIABLE bar
                RESULT_VARIABLE status)
file(READ ${FOLDER}/doctor-none.md report)
if(NOT status EQUAL 1)
  message(SEND_ERROR "status ${status} where no path is left: ${said}${bar}")
endif()
expect("${said}" "Parity: FAILED: 0 runs" "WRONG: cpu: parity failed" "\nFAILED, [0-9]+ s")
expect("${report}" "WRONG: cpu: training, long: " "disabled by TANDEM_DISABLE or the device's options")

# A report or a result that cannot be written is an error before anything runs.
foreach(command "doctor --device cpu" "bench --device cpu --preset small")
  separate_arguments(command)
  execute_process(COMMAND ${TOOL} ${command} --out ${FOLDER}/doctor.md/below OUTPUT_VARIABLE said ERROR_VARIABLE bar
                  RESULT_VARIABLE status TIMEOUT 20)
  if(status EQUAL 0 OR NOT said STREQUAL "")
    message(SEND_ERROR "${command}: status ${status}: ${said}")
  endif()
  expect("${bar}" "doctor.md/below cannot be written")
endforeach()
