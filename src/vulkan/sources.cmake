include(cmake/TandemShaders.cmake)
target_sources(tandem PRIVATE
  src/vulkan/entry.cpp src/vulkan/device.cpp src/vulkan/modules.cpp src/vulkan/pipelines.cpp src/vulkan/record.cpp
  src/vulkan/required.cpp src/vulkan/specialise.cpp src/vulkan/volk.cpp)
# System: other people's headers are not held to our warnings. Public: tandem_vulkan.h includes
# vulkan_core.h.
target_include_directories(tandem SYSTEM
  PUBLIC $<BUILD_INTERFACE:${TANDEM_VULKAN_INCLUDE_DIR}> PRIVATE ${TANDEM_VOLK_INCLUDE_DIR})
tandem_spec_ids()
tandem_read_modules()
tandem_row_shaders(tandem)
tandem_shader_list(tandem)
