include(cmake/TandemShaders.cmake)
target_sources(tandem PRIVATE
  src/vulkan/device.cpp src/vulkan/pipelines.cpp src/vulkan/record.cpp src/vulkan/required.cpp
  src/vulkan/volk.cpp)
# System: other people's headers are not held to our warnings. Public: tandem_vulkan.h includes
# vulkan_core.h.
target_include_directories(tandem SYSTEM
  PUBLIC $<BUILD_INTERFACE:${TANDEM_VULKAN_INCLUDE_DIR}> PRIVATE ${TANDEM_VOLK_INCLUDE_DIR})
tandem_shaders(tandem fwd fwd_join bwd_dot bwd_row bwd_dkv bwd_dq bwd_dbias bwd_ddist bwd_sum bwd_head)
tandem_matrix_shaders(tandem fwd bwd_dkv bwd_dq)
