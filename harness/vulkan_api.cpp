// SPDX-License-Identifier: MIT OR Apache-2.0
#include "vulkan_api.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

#include "backends.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace tandem::harness {
namespace {

std::atomic<int> g_messages{0};

// The loader stays open: layers and drivers do not like to be unloaded.
VulkanLoader open_loader() {
  VulkanLoader loader;
#ifdef _WIN32
  if (HMODULE module = LoadLibraryExW(L"vulkan-1.dll", nullptr, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS))
    loader.gipa = reinterpret_cast<PFN_vkGetInstanceProcAddr>(
        reinterpret_cast<void*>(GetProcAddress(module, "vkGetInstanceProcAddr")));
  if (!loader.gipa) loader.reason = "no Vulkan loader: vulkan-1.dll could not be opened";
#else
#ifdef __APPLE__
  constexpr const char* names[] = {"libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"};
#else
  constexpr const char* names[] = {"libvulkan.so.1", "libvulkan.so"};
#endif
  for (const char* name : names) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    loader.gipa =
        reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
    if (loader.gipa) return loader;
  }
  loader.reason = std::string("no Vulkan loader: ") + names[0] + " could not be opened";
#endif
  return loader;
}

VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                          VkDebugUtilsMessageTypeFlagsEXT type,
                                          const VkDebugUtilsMessengerCallbackDataEXT* data,
                                          void* user) {
  // What the loader says about drivers that it cannot open is of type GENERAL and does not count.
  if (!(type & VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT)) return VK_FALSE;
  // Messages of the layers about their own settings, and about the time that a driver takes to
  // compile their checks, do not count either.
  const std::string id = data->pMessageIdName ? data->pMessageIdName : "";
  if (id.find("VALIDATION-SETTINGS") != std::string::npos ||
      id.find("Setting-Limit-Adjusted") != std::string::npos ||
      id.find("GPUAV-Compile-time") != std::string::npos)
    return VK_FALSE;
  const bool error = severity & VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
  std::fprintf(stderr, "Vulkan validation %s: %s\n", error ? "error" : "warning", data->pMessage);
  ++*static_cast<int*>(user);
  ++g_messages;
  return VK_FALSE;
}

template <typename Function>
Function find(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, const char* name) {
  return reinterpret_cast<Function>(gipa(instance, name));
}

}  // namespace

int total_validation_messages() { return g_messages; }

const VulkanLoader& vulkan_loader() {
  static const VulkanLoader loader = open_loader();
  return loader;
}

void VulkanApi::load_instance(VkInstance instance) {
  const PFN_vkGetInstanceProcAddr gipa = vulkan_loader().gipa;
#define TANDEM_VK_LOAD(name) name = find<PFN_##name>(gipa, instance, #name);
  TANDEM_VK_INSTANCE_FUNCTIONS(TANDEM_VK_LOAD)
  TANDEM_VK_LOAD(vkCreateDebugUtilsMessengerEXT)
  TANDEM_VK_LOAD(vkDestroyDebugUtilsMessengerEXT)
#undef TANDEM_VK_LOAD
}

void VulkanApi::load_device(VkDevice device) {
#define TANDEM_VK_LOAD(name) \
  name = reinterpret_cast<PFN_##name>(vkGetDeviceProcAddr(device, #name));
  TANDEM_VK_DEVICE_FUNCTIONS(TANDEM_VK_LOAD)
#undef TANDEM_VK_LOAD
}

std::string vk_result_name(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
      return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_INITIALIZATION_FAILED:
      return "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_DEVICE_LOST:
      return "VK_ERROR_DEVICE_LOST";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
      return "VK_ERROR_INCOMPATIBLE_DRIVER";
    case VK_ERROR_EXTENSION_NOT_PRESENT:
      return "VK_ERROR_EXTENSION_NOT_PRESENT";
    case VK_ERROR_FEATURE_NOT_PRESENT:
      return "VK_ERROR_FEATURE_NOT_PRESENT";
    default:
      return "VkResult " + std::to_string(int(result));
  }
}

void vk(VkResult result, const char* what) {
  if (result == VK_SUCCESS) return;
  const tandem_status code = result == VK_ERROR_DEVICE_LOST ? TANDEM_ERROR_DEVICE_LOST
                             : result == VK_ERROR_OUT_OF_DEVICE_MEMORY
                                 ? TANDEM_ERROR_DEVICE_OUT_OF_MEMORY
                                 : TANDEM_ERROR_BACKEND;
  throw Error(code, std::string(what) + ": " + vk_result_name(result));
}

VulkanInstance::VulkanInstance() {
  const VulkanLoader& loader = vulkan_loader();
  if (!loader.gipa) throw Error(TANDEM_ERROR_NO_BACKEND, loader.reason);
  uint32_t available = VK_API_VERSION_1_0;
  if (auto version =
          find<PFN_vkEnumerateInstanceVersion>(loader.gipa, nullptr, "vkEnumerateInstanceVersion"))
    version(&available);
  // No newer version than these headers know.
  api_version = std::min<uint32_t>(available, VK_API_VERSION_1_3);

  bool debug = false;
  const auto enumerate = find<PFN_vkEnumerateInstanceExtensionProperties>(
      loader.gipa, nullptr, "vkEnumerateInstanceExtensionProperties");
  uint32_t count = 0;
  enumerate(nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> extensions(count);
  enumerate(nullptr, &count, extensions.data());
  for (const VkExtensionProperties& e : extensions)
    debug |= std::strcmp(e.extensionName, VK_EXT_DEBUG_UTILS_EXTENSION_NAME) == 0;

  auto application = made<VkApplicationInfo>(VK_STRUCTURE_TYPE_APPLICATION_INFO);
  application.pApplicationName = "tandem";
  application.apiVersion = api_version;
  auto messages_info = made<VkDebugUtilsMessengerCreateInfoEXT>(
      VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT);
  messages_info.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                                  VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
  messages_info.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT;
  messages_info.pfnUserCallback = on_message;
  messages_info.pUserData = &messages;
  auto info = made<VkInstanceCreateInfo>(VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO);
  info.pApplicationInfo = &application;
  const char* const name = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
  if (debug) {
    info.pNext = &messages_info;  // covers vkCreateInstance and vkDestroyInstance themselves
    info.enabledExtensionCount = 1;
    info.ppEnabledExtensionNames = &name;
  }
  const VkResult result =
      find<PFN_vkCreateInstance>(loader.gipa, nullptr, "vkCreateInstance")(&info, nullptr, &handle);
  if (result == VK_ERROR_INCOMPATIBLE_DRIVER)
    throw Error(TANDEM_ERROR_NO_BACKEND,
                "no Vulkan driver on this machine (the loader finds none)");
  if (result != VK_SUCCESS)
    throw Error(TANDEM_ERROR_NO_BACKEND, "vkCreateInstance: " + vk_result_name(result));
  api.load_instance(handle);
  if (debug && api.vkCreateDebugUtilsMessengerEXT)
    api.vkCreateDebugUtilsMessengerEXT(handle, &messages_info, nullptr, &messenger);
}

VulkanInstance::~VulkanInstance() {
  if (messenger) api.vkDestroyDebugUtilsMessengerEXT(handle, messenger, nullptr);
  if (handle) api.vkDestroyInstance(handle, nullptr);
}

}  // namespace tandem::harness
