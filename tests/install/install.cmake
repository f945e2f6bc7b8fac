# SPDX-License-Identifier: MIT OR Apache-2.0
# What is installed, and who consumes it: headers, the binary interface, projects; and the documents.
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  add_test(NAME headers COMMAND ${CMAKE_COMMAND} -D INCLUDE=${PROJECT_SOURCE_DIR}/include
    -D WORK=${CMAKE_CURRENT_BINARY_DIR} -D CC=${CMAKE_C_COMPILER} -D CXX=${CMAKE_CXX_COMPILER}
    -D VULKAN_HEADERS=${TANDEM_VULKAN_INCLUDE_DIR} -P ${CMAKE_CURRENT_SOURCE_DIR}/install/headers.cmake)
endif()
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT TANDEM_SANITIZE)
  include(install/abi/abi.cmake)
  include(install/consumers/consumers.cmake)
  include(docs/docs.cmake)
endif()
