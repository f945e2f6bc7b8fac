# SPDX-License-Identifier: MIT OR Apache-2.0
# Scripts where there is no HOME, or one in which no folder can be made: a sentence, and exit status 1.
#   cmake -D SOURCE=... -P unit/home.cmake
cmake_minimum_required(VERSION 3.22)
foreach(script toolchain "toolchain --where" build format with-driver\ --list)
  separate_arguments(script)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=HOME --unset=XDG_CACHE_HOME --unset=TANDEM_DEPS ${SOURCE}/scripts/${script}
                  OUTPUT_VARIABLE said ERROR_VARIABLE wrong RESULT_VARIABLE status)
  if(status EQUAL 0 OR NOT wrong MATCHES "HOME is not set; set it, or TANDEM_DEPS")
    message(SEND_ERROR "${script} without HOME: status ${status}: ${said}${wrong}")
  endif()
endforeach()
execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=XDG_CACHE_HOME --unset=TANDEM_DEPS HOME=${SOURCE}/README.md ${SOURCE}/scripts/toolchain
                OUTPUT_VARIABLE said ERROR_VARIABLE wrong RESULT_VARIABLE status)
if(status EQUAL 0 OR NOT wrong MATCHES "README.md/.cache/tandem/v1 cannot be made; set TANDEM_DEPS")
  message(SEND_ERROR "toolchain with a HOME that is a file: status ${status}: ${said}${wrong}")
endif()
