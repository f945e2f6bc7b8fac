# SPDX-License-Identifier: MIT OR Apache-2.0
# Holds the modules that specialise.vulkan left in FOLDER to the rules of SPIR-V, by VALIDATOR.
file(GLOB modules ${FOLDER}/*.spv)
list(LENGTH modules count)
if(count LESS 20) # a run without matrices leaves fewer
  message(FATAL_ERROR "${count} modules in ${FOLDER}: did specialise.vulkan run?")
endif()
set(bad 0)
foreach(module IN LISTS modules)
  execute_process(COMMAND ${VALIDATOR} --target-env vulkan1.3 ${module} RESULT_VARIABLE result
                  ERROR_VARIABLE words OUTPUT_VARIABLE words)
  if(NOT result EQUAL 0)
    message(SEND_ERROR "${module}: ${words}")
  endif()
endforeach()
message(STATUS "${count} modules")
