// SPDX-License-Identifier: MIT OR Apache-2.0
// What tests with a driver in between share (fake_driver.h).
#ifndef TANDEM_TESTS_VULKAN_FAKED_H
#define TANDEM_TESTS_VULKAN_FAKED_H
#include <string>

#include "app.h"
#include "fake_driver.h"

namespace vulkan_app {

inline bool says(const char* word) {
  return std::string(tandem_last_message()).find(word) != std::string::npos;
}

inline VkResult VKAPI_CALL name_nothing(VkDevice, const VkDebugUtilsObjectNameInfoEXT*) {
  return VK_ERROR_OUT_OF_HOST_MEMORY;  // no reason to fail
}

// app's description with the driver in between, which makes no real pipelines.
inline tandem_vk_device_desc fake_desc(const App& app) {
  tandem_vk_device_desc desc = app.desc();
  desc.gipa = fake_driver::install(app.gipa);
  auto& replace = fake_driver::state().replace;
  fake_driver::make_no_pipelines();
  replace["vkSetDebugUtilsObjectNameEXT"] = reinterpret_cast<PFN_vkVoidFunction>(name_nothing);
  return desc;
}

template <typename T>
T* untouched() {
  return reinterpret_cast<T*>(uintptr_t(0x5a5a5a5a));
}

}  // namespace vulkan_app
#endif
