include(cmake/TandemShaders.cmake)
target_sources(tandem PRIVATE
  src/vulkan/entry.cpp src/vulkan/device.cpp src/vulkan/modules.cpp src/vulkan/pipelines.cpp src/vulkan/probe.cpp src/vulkan/record.cpp
  src/vulkan/required.cpp src/vulkan/specialise.cpp src/vulkan/unpack.cpp src/vulkan/volk.cpp)
# System: other people's headers are not held to our warnings. Public: tandem_vulkan.h includes
# vulkan_core.h.
target_include_directories(tandem SYSTEM
  PUBLIC $<BUILD_INTERFACE:${TANDEM_VULKAN_INCLUDE_DIR}> PRIVATE ${TANDEM_VOLK_INCLUDE_DIR})
tandem_spec_ids()
tandem_read_modules()
tandem_row_shaders(tandem)
foreach(type f16 bf16) # no kernels: what probe.cpp runs
  string(COMPARE EQUAL ${type} bf16 bf16)
  tandem_module(tandem matrix_places_${type} coopmat/matrix_places.comp vulkan1.2 -DTANDEM_BF16=${bf16})
endforeach()
tandem_module_list(tandem)
