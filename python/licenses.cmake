# SPDX-License-Identifier: MIT OR Apache-2.0
# tandem_licenses(file): writes into it the licences of what is linked into the package, each as its
# own source has it. They ask to go along with binaries.
function(tandem_licence_in header result) # the comment that begins at "Copyright (c)"
  file(READ ${header} text)
  string(FIND "${text}" "Copyright (c)" from)
  if(from EQUAL -1)
    message(FATAL_ERROR "${header} has no copyright notice, which the wheel needs")
  endif()
  string(SUBSTRING "${text}" ${from} -1 text)
  string(FIND "${text}" "*/" to)
  string(SUBSTRING "${text}" 0 ${to} text)
  string(REGEX REPLACE "\n ?\\* ?" "\n" text "${text}")
  string(STRIP "${text}" text)
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

function(tandem_licenses output)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
      "from importlib.metadata import files; print(next(f for f in files('nanobind') if f.name == 'LICENSE').locate())"
    OUTPUT_VARIABLE nanobind_licence OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${nanobind_licence} text)
  string(STRIP "${text}" text)
  set(all "nanobind\n========\n${text}\n")
  file(GLOB_RECURSE robin ${nanobind_ROOT}/../ext/*/robin_map.h)
  tandem_licence_in("${robin}" text)
  string(APPEND all "\n\nrobin-map\n=========\n${text}\n")
  if(TANDEM_WITH_VULKAN)
    tandem_licence_in(${TANDEM_VOLK_INCLUDE_DIR}/volk.h text)
    string(APPEND all "\n\nvolk\n====\n${text}\n")
  endif()
  file(WRITE ${output} "${all}")
endfunction()
