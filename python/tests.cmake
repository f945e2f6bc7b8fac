# SPDX-License-Identifier: MIT OR Apache-2.0
# The package's tests, by groups (tools/run_tests.py says which file belongs to which). A group in
# which nothing ran fails; one that needs torch is skipped where scripts/toolchain left torch out.
function(tandem_python_test group)
  add_test(NAME python.${group} COMMAND ${ARGN} ${Python_EXECUTABLE}
           ${CMAKE_CURRENT_SOURCE_DIR}/tools/run_tests.py ${group})
  set_tests_properties(python.${group} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 ENVIRONMENT
    "PYTHONPATH=${PROJECT_BINARY_DIR}/python;PYTHONDONTWRITEBYTECODE=1;OMP_NUM_THREADS=1;OPENBLAS_NUM_THREADS=1;MYPY_CACHE_DIR=${PROJECT_BINARY_DIR}/mypy")
endfunction()

foreach(group numpy torch drop_in jax examples lint types)
  tandem_python_test(${group})
endforeach()
if(TANDEM_WITH_VULKAN AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  # Mesa's older driver: a host process can load it.
  tandem_python_test(vulkan ${PROJECT_SOURCE_DIR}/tests/on-driver lavapipe25)
endif()
tandem_label_tests()
