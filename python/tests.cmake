# SPDX-License-Identifier: MIT OR Apache-2.0
# The package's tests, by groups (tools/run_tests.py says which file belongs to which). A group in
# which nothing ran fails; one that needs torch is skipped where scripts/toolchain left torch out.
function(tandem_python_test group)
  add_test(NAME python.${group} COMMAND ${ARGN} ${Python_EXECUTABLE}
           ${CMAKE_CURRENT_SOURCE_DIR}/tools/run_tests.py ${group})
  set_tests_properties(python.${group} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 ENVIRONMENT
    "PYTHONPATH=${PROJECT_BINARY_DIR}/python;PYTHONDONTWRITEBYTECODE=1;OMP_NUM_THREADS=1;OPENBLAS_NUM_THREADS=1;MYPY_CACHE_DIR=${PROJECT_BINARY_DIR}/mypy")
endfunction()

# The declarations of torch's C functions, held against its headers where they are.
execute_process(COMMAND ${Python_EXECUTABLE} -c
  "import importlib.util, pathlib; s = importlib.util.find_spec('torch'); print(pathlib.Path(s.origin).parent / 'include')"
  OUTPUT_VARIABLE torch_include OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(torch_include AND EXISTS ${torch_include}/torch/csrc/stable/c/shim.h)
  add_library(tandem_torch_shim OBJECT ${CMAKE_CURRENT_SOURCE_DIR}/tests/torch_shim.cpp)
  target_include_directories(tandem_torch_shim PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/bindings)
  target_include_directories(tandem_torch_shim SYSTEM PRIVATE ${torch_include})
  target_compile_features(tandem_torch_shim PRIVATE cxx_std_20)  # torch's headers ask for it
endif()

foreach(group numpy torch drop_in jax examples lint types)
  tandem_python_test(${group})
endforeach()
if(TANDEM_WITH_VULKAN AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  # Mesa's older driver: a host process can load it.
  tandem_python_test(vulkan ${PROJECT_SOURCE_DIR}/tests/on-driver lavapipe25)
endif()
tandem_label_tests()
