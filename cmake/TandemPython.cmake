# SPDX-License-Identifier: MIT OR Apache-2.0
# Settles whether this build has the Python package's extension module: TANDEM_WITH_PYTHON, with a
# sentence where it has not. The interpreter is Python_EXECUTABLE, and nanobind is that one's own;
# scripts/toolchain --python makes an interpreter with nanobind, pip names its own.
set(missing "")
if(NOT TANDEM_PYTHON STREQUAL "OFF")
  if(TANDEM_SANITIZE)
    set(missing "a sanitizer is no part of the interpreter that would load it")
  elseif(TANDEM_PYTHON STREQUAL "AUTO" AND "$ENV{TANDEM_PYTHON}" STREQUAL "OFF")
    set(missing "the environment says TANDEM_PYTHON=OFF")
  elseif(TANDEM_PYTHON STREQUAL "AUTO" AND BUILD_SHARED_LIBS)
    set(missing "the library is shared, and its own place may not be where the package looks")
  elseif(TANDEM_PYTHON STREQUAL "AUTO" AND NOT Python_EXECUTABLE)
    set(missing "no interpreter is named (Python_EXECUTABLE; scripts/toolchain --python makes one)")
  else()
    find_package(Python 3.10 COMPONENTS Interpreter Development.Module
                 OPTIONAL_COMPONENTS Development.SABIModule)
    if(Python_FOUND)
      execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                      OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
      if(NOT status EQUAL 0)
        set(missing "${Python_EXECUTABLE} has no nanobind (pip install nanobind)")
      endif()
    else()
      set(missing "no Python from 3.10 on with its headers was found")
    endif()
  endif()
endif()
tandem_settle(PYTHON "${TANDEM_PYTHON}" "${missing}")
unset(missing)
