# SPDX-License-Identifier: MIT OR Apache-2.0
# One case of where libtandem_cuda is, and what the program (test_plugin.cpp) then has to print. Called by CTest:
#   cmake -D CASE=... -D PROGRAM=... -D LIBRARY=... -D NAME=... -D FILE=... -D found=... [...] -P cases.cmake
cmake_minimum_required(VERSION 3.22)
set(folder ${WORK}/${CASE})
file(REMOVE_RECURSE ${folder})
file(MAKE_DIRECTORY ${folder}/lib ${folder}/other)
file(CREATE_LINK ${LIBRARY} ${folder}/lib/${NAME} SYMBOLIC)

# Paths as regular expressions.
string(REGEX REPLACE "([+.])" "[\\1]" place ${folder}/lib/${FILE})
set(works "with kernels\no = 2 20, 0 blocks left\n")
set(refused "without kernels\nTANDEM_ERROR_NO_BACKEND, 0 blocks left: ")
if(CASE STREQUAL "beside")
  file(CREATE_LINK ${found} ${folder}/lib/${FILE} SYMBOLIC)
  set(expected "${works}")
elseif(CASE STREQUAL "elsewhere") # where the system looks
  file(CREATE_LINK ${found} ${folder}/other/${FILE} SYMBOLIC)
  set(expected "${works}")
elseif(CASE STREQUAL "missing")
  set(expected "${refused}${FILE}, which holds the CUDA backend, could not be opened: beside this library: ${place}: [^\n]*No [a-z]+ file[^\n]*; by the system's search: ${FILE}: [^\n]*No [a-z]+ file")
elseif(CASE STREQUAL "damaged")
  file(WRITE ${folder}/lib/${FILE} "not a library")
  set(expected "${refused}${FILE}, which holds[^\n]*${place}: [^\n]*(too short|invalid ELF)")
else()
  file(CREATE_LINK ${${CASE}} ${folder}/lib/${FILE} SYMBOLIC)
  set(version_text "is of Tandem 3[.]13[.]14, and this library of [0-9.]+: both must be of one build")
  set(layout_text "is of another build of Tandem [0-9.]+ than this library [(]layouts [0-9a-f]+ and [0-9a-f]+[)]: both must")
  set(stranger_text "was opened, but is not Tandem's: it has no function tandem_cuda_plugin")
  set(expected "${refused}${place} ${${CASE}_text}")
endif()

set(ENV{LD_LIBRARY_PATH} ${folder}/lib:${folder}/other)
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE out ERROR_VARIABLE out RESULT_VARIABLE code)
if(NOT code EQUAL 0 OR NOT out MATCHES "^${expected}")
  message(FATAL_ERROR "ended with ${code}:\n${out}\nnot as expected:\n${expected}")
endif()
message(STATUS "${out}")

# What it exports is one function.
find_program(nm nm)
if(CASE STREQUAL "beside" AND nm)
  execute_process(COMMAND ${nm} -D --defined-only --format=posix ${found} OUTPUT_VARIABLE exported)
  if(NOT exported MATCHES "^tandem_cuda_plugin T [^\n]*\n$")
    message(FATAL_ERROR "${found} exports something else: ${exported}")
  endif()
endif()
