# SPDX-License-Identifier: MIT OR Apache-2.0
# tandem_licenses(file): writes into it the licences of what is linked into the package, each as its
# own source has it. They ask to go along with binaries. Those of the library itself are
# cmake/TandemThirdParty.cmake's.
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
  if(jaxlib_include) # of templates, which are compiled in
    tandem_licence_in(${jaxlib_include}/xla/ffi/api/ffi.h text)
    string(APPEND all "\n\nXLA's headers\n=============\n${text}\n")
  endif()
  tandem_third_party_licences(text)
  file(WRITE ${output} "${all}\n\n${text}")
endfunction()
