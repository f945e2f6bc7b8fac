# SPDX-License-Identifier: MIT OR Apache-2.0
# The documents: code blocks build and run (blocks.py), and the generated pages and tables of kernels are what
# scripts/pages, scripts/report and scripts/kernel-tables print. The report is drawn where scripts/toolchain installed what it
# draws with; elsewhere docs.report fails if the page is old, and is skipped if it is not.
# The Rust declarations are what scripts/rust-headers writes.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_Interpreter_FOUND)
  add_test(NAME docs.pages COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/pages --check)
  add_test(NAME docs.kernels COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/kernel-tables --check)
  set(tandem_report_python ${Python3_EXECUTABLE})
  if(Python_EXECUTABLE)
    set(tandem_report_python ${Python_EXECUTABLE})
  endif()
  add_test(NAME docs.report COMMAND ${tandem_report_python} ${PROJECT_SOURCE_DIR}/scripts/report --check)
  set_tests_properties(docs.report PROPERTIES SKIP_RETURN_CODE 77)

  add_test(NAME docs.rust COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/rust-headers --check)

  set(tandem_docs_link "")
  if(TANDEM_WITH_CUDA AND NOT TANDEM_CUDA_PLUGIN)
    get_filename_component(cudart ${CUDA_cudart_static_LIBRARY} DIRECTORY)
    set(tandem_docs_link "-L${cudart} -lcudart_static -lrt")
  endif()
  set(tandem_docs_vulkan "")
  if(TANDEM_WITH_VULKAN)
    set(tandem_docs_vulkan --volk ${TANDEM_VOLK_INCLUDE_DIR} --vulkan-headers ${TANDEM_VULKAN_INCLUDE_DIR}
      --driver "${CMAKE_CURRENT_SOURCE_DIR}/on-driver lavapipe26")
  endif()
  foreach(page README.md docs/guide/consuming.md docs/guide/engines.md)
    get_filename_component(name ${page} NAME_WE)
    string(TOLOWER ${name} name)
    add_test(NAME docs.${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/docs/blocks.py
      --page ${page} --source ${PROJECT_SOURCE_DIR} --build ${PROJECT_BINARY_DIR} --work ${CMAKE_CURRENT_BINARY_DIR}/docs/${name}
      --library $<TARGET_FILE:tandem> --cc ${CMAKE_C_COMPILER} --cxx ${CMAKE_CXX_COMPILER} --cmake ${CMAKE_COMMAND}
      --generator ${CMAKE_GENERATOR} --link=${tandem_docs_link} ${tandem_docs_vulkan})
    set_tests_properties(docs.${name} PROPERTIES TIMEOUT 300)
  endforeach()
endif()
