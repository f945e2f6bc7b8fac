# SPDX-License-Identifier: MIT OR Apache-2.0
# Programs with a Vulkan of their own.
if(TANDEM_WITH_VULKAN)
  # The library in an application's own Vulkan, and with a driver that fails.
  add_library(tandem_vulkan_app OBJECT vulkan/app.cpp)
  tandem_test_target(tandem_vulkan_app)
  target_include_directories(tandem_vulkan_app SYSTEM PUBLIC ${TANDEM_VOLK_INCLUDE_DIR})
  target_include_directories(tandem_vulkan_app PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
  tandem_shader(tandem_vulkan_app scale ../tests/vulkan/scale.comp vulkan1.2)
  tandem_shader(tandem_vulkan_app touch_read ../tests/vulkan/touch.comp vulkan1.2 -DTANDEM_WRITES=0)
  tandem_shader(tandem_vulkan_app touch_write ../tests/vulkan/touch.comp vulkan1.2 -DTANDEM_WRITES=1)
  foreach(part engine faults memory cache specialise)
    add_executable(tandem_vulkan_${part} $<TARGET_OBJECTS:tandem_test_main> vulkan/test_${part}.cpp
      $<TARGET_OBJECTS:tandem_vulkan_app>)
    tandem_test_target(tandem_vulkan_${part})
    target_include_directories(tandem_vulkan_${part} SYSTEM PRIVATE ${TANDEM_VOLK_INCLUDE_DIR})
    target_include_directories(tandem_vulkan_${part} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
  endforeach()
  target_sources(tandem_vulkan_faults PRIVATE vulkan/test_lacks.cpp)
  # It makes thousands of devices, each of which would unpack these modules: they are there as words. Others are packed.
  foreach(module fwd bwd_origin bwd_row_sums bwd_dkv bwd_dq bwd_dbias)
    tandem_shader(tandem_vulkan_memory ${module} scalar/${module}.comp vulkan1.2)
    tandem_module_source(tandem_vulkan_memory ${CMAKE_CURRENT_BINARY_DIR}/shaders ${module})
  endforeach()
  target_include_directories(tandem_vulkan_memory PRIVATE $<TARGET_PROPERTY:tandem,BINARY_DIR>)
  # Another build: one word of one kernel counts as another.
  tandem_patched(changed ${CMAKE_CURRENT_BINARY_DIR}/cache_changed ${CMAKE_CURRENT_SOURCE_DIR}/vulkan/cache_changed.patch "")
  add_executable(tandem_vulkan_cache_changed $<TARGET_OBJECTS:tandem_test_main> vulkan/test_cache.cpp ${changed}
    $<TARGET_OBJECTS:tandem_vulkan_app>)
  tandem_test_target(tandem_vulkan_cache_changed)
  target_include_directories(tandem_vulkan_cache_changed BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/src/vulkan)
  target_include_directories(tandem_vulkan_cache_changed PRIVATE $<TARGET_PROPERTY:tandem,BINARY_DIR>)
  target_include_directories(tandem_vulkan_cache_changed SYSTEM PRIVATE ${TANDEM_VOLK_INCLUDE_DIR})
  target_compile_definitions(tandem_vulkan_cache_changed PRIVATE $<TARGET_PROPERTY:tandem,COMPILE_DEFINITIONS>)
  add_dependencies(tandem_vulkan_cache_changed tandem) # the SPIR-V
endif()
