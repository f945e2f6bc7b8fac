# SPDX-License-Identifier: MIT OR Apache-2.0
# The binary interface, as install/abi/ records it. Once more the library's objects, linked into a shared library: what an
# application would load, with all backends of this build.
set(objects $<TARGET_OBJECTS:tandem>)
if(NOT TANDEM_CUDA_PLUGIN)
  foreach(part IN LISTS TANDEM_CUDA_OBJECTS) # kernels with architectures of their own
    list(APPEND objects $<TARGET_OBJECTS:${part}>)
  endforeach()
endif()
add_library(tandem_shared SHARED ${objects})
set_target_properties(tandem_shared PROPERTIES OUTPUT_NAME tandem LINKER_LANGUAGE CXX
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/abi)
target_link_libraries(tandem_shared PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
if(TANDEM_WITH_CUDA AND NOT TANDEM_CUDA_PLUGIN)
  target_link_libraries(tandem_shared PRIVATE CUDA::cudart_static)
endif()
tandem_library(tandem_shared)

set(record ${CMAKE_CURRENT_SOURCE_DIR}/install/abi/record)
set(recorded ${CMAKE_C_COMPILER} ${PROJECT_SOURCE_DIR}/include $<TARGET_FILE:tandem_shared> $<TARGET_FILE:tandem>)
if(TANDEM_WITH_VULKAN)
  list(APPEND recorded ${TANDEM_VULKAN_INCLUDE_DIR})
endif()
add_test(NAME abi COMMAND ${record} ${recorded})
add_custom_target(tandem_abi_update COMMAND ${record} --update ${recorded} DEPENDS tandem_shared tandem VERBATIM)
