// SPDX-License-Identifier: MIT OR Apache-2.0
// Prints one line per Vulkan device: name, API version, driver. `scripts/toolchain` builds it to
// see that each driver loads; `scripts/with-driver NAME` without a command runs it.
#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>
#define VOLK_IMPLEMENTATION
#include <volk.h>

#include <cstdio>
#include <vector>

int main() {
  if (volkInitialize() != VK_SUCCESS) return std::puts("no Vulkan loader (libvulkan.so.1)"), 1;
  VkApplicationInfo app{VK_STRUCTURE_TYPE_APPLICATION_INFO};
  app.apiVersion = VK_API_VERSION_1_2;
  VkInstanceCreateInfo info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  info.pApplicationInfo = &app;
  VkInstance instance;
  if (vkCreateInstance(&info, nullptr, &instance) != VK_SUCCESS)
    return std::puts("no Vulkan driver"), 1;
  volkLoadInstance(instance);

  uint32_t count = 0;
  vkEnumeratePhysicalDevices(instance, &count, nullptr);
  std::vector<VkPhysicalDevice> devices(count);
  vkEnumeratePhysicalDevices(instance, &count, devices.data());
  for (VkPhysicalDevice device : devices) {
    VkPhysicalDeviceDriverProperties driver{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &driver};
    vkGetPhysicalDeviceProperties2(device, &properties);
    const uint32_t api = properties.properties.apiVersion;
    std::printf("%s, Vulkan %u.%u.%u, %s %s\n", properties.properties.deviceName,
                VK_API_VERSION_MAJOR(api), VK_API_VERSION_MINOR(api), VK_API_VERSION_PATCH(api),
                driver.driverName, driver.driverInfo);
  }
  vkDestroyInstance(instance, nullptr);
  return count == 0 ? (std::puts("no Vulkan device"), 1) : 0;
}
