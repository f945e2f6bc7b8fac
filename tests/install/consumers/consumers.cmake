# SPDX-License-Identifier: MIT OR Apache-2.0
# The ways to consume the library, each by a small project of its own; run.cmake says what is done. The library is
# compiled once, for the CPU: both kinds are made of the same objects. `build` is what these tests were built with.
set(cuda_line "")
if(TANDEM_WITH_CUDA AND NOT TANDEM_CUDA_PLUGIN)
  get_filename_component(cudart ${CUDA_cudart_static_LIBRARY} DIRECTORY)
  set(cuda_line "-L${cudart} -lcudart_static -lrt")
endif()
set(vulkan_headers "") # of a library without Vulkan no program is asked to use it
if(TANDEM_WITH_VULKAN)
  set(vulkan_headers ${TANDEM_VOLK_INCLUDE_DIR})
endif()
set(components "")
foreach(backend VULKAN CUDA)
  if(TANDEM_WITH_${backend})
    string(TOLOWER ${backend} component)
    string(APPEND components " ${component}")
  endif()
endforeach()

function(tandem_consumer step kind)
  set(name consumers.${step}.${kind})
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -D STEP=${step} -D KIND=${kind} -D SOURCE=${PROJECT_SOURCE_DIR}
    -D BUILD=${PROJECT_BINARY_DIR} -D WORK=${CMAKE_CURRENT_BINARY_DIR}/consumers -D CC=${CMAKE_C_COMPILER}
    -D CXX=${CMAKE_CXX_COMPILER} -D GENERATOR=${CMAKE_GENERATOR} -D VERSION=${PROJECT_VERSION}
    -D MAJOR=${PROJECT_VERSION_MAJOR} ${ARGN} -P ${CMAKE_CURRENT_SOURCE_DIR}/install/consumers/run.cmake)
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED: " TIMEOUT 600)
  if(step MATCHES "^(fetch|install)$")
    set_tests_properties(${name} PROPERTIES FIXTURES_SETUP consumers.${kind})
  else()
    set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED consumers.${kind})
  endif()
  if(step MATCHES "^(fetch|subdirectory)$")
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK consumers.tree)
  endif()
endfunction()

foreach(kind static shared)
  tandem_consumer(fetch ${kind})
  tandem_consumer(rust ${kind} "-DVULKAN_HEADERS=${TANDEM_VULKAN_INCLUDE_DIR}")
  foreach(step subdirectory package package-c pkg-config plain)
    tandem_consumer(${step} ${kind})
  endforeach()
endforeach()
tandem_consumer(install build)
tandem_consumer(package build "-DCOMPONENTS=${components}" "-DVULKAN_HEADERS=${vulkan_headers}")
tandem_consumer(package-c build)
tandem_consumer(pkg-config build)
tandem_consumer(plain build "-DCUDA_LINE=${cuda_line}")
