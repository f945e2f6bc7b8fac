# SPDX-License-Identifier: MIT OR Apache-2.0
# Translates what the library would hand to MoltenVK to Metal's language, as MoltenVK does, by spirv-cross. Whether Metal's
# own compiler takes it cannot be seen here.
#   cmake -D MODULES=tandem_modules -D DEVICE=... -D PATH_NAME=... -D FOLDER=... -D TRANSLATOR=spirv-cross [-D REFUSED=...] -P
#     translate.cmake
# REFUSED: what the translator may say of a module that multiplies matrices. All others must be translated.
cmake_minimum_required(VERSION 3.22)
if(NOT TRANSLATOR)
  message(STATUS "SKIPPED: spirv-cross is not available: run scripts/toolchain")
  return()
endif()
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND ${MODULES} ${DEVICE} ${FOLDER} ${PATH_NAME} RESULT_VARIABLE status OUTPUT_VARIABLE said)
message(STATUS "modules by kernel:\n${said}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${MODULES}: ${status}")
endif()
file(GLOB modules ${FOLDER}/*.spv)
set(translated 0)
set(refused 0)
foreach(module IN LISTS modules)
  # Addresses of buffers are there from version 3.0 on.
  execute_process(COMMAND ${TRANSLATOR} --msl --msl-version 30200 ${module} RESULT_VARIABLE status OUTPUT_VARIABLE text
                  ERROR_VARIABLE said)
  if(status EQUAL 0 AND text MATCHES "kernel void main0\\(")
    math(EXPR translated "${translated} + 1")
  elseif(REFUSED AND said MATCHES "${REFUSED}")
    math(EXPR refused "${refused} + 1")
  else()
    message(SEND_ERROR "${module}: ${status}: ${said}")
  endif()
endforeach()
message(STATUS "${translated} modules are translated, ${refused} refused")
if(translated EQUAL 0)
  message(SEND_ERROR "nothing was translated")
endif()
