// SPDX-License-Identifier: MIT OR Apache-2.0
// An application with Vulkan of its own, as tests need it: instance, device, a queue, mapped
// buffers, one command buffer. By plain Vulkan: what the library is given is what an engine would
// give it.
#ifndef TANDEM_TESTS_VULKAN_APP_H
#define TANDEM_TESTS_VULKAN_APP_H
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "vulkan/vk.h"

namespace vulkan_app {

PFN_vkGetInstanceProcAddr loader();  // nullptr: none

template <typename T>
T made(VkStructureType type, const void* next = nullptr) {
  T t{};
  t.sType = type;
  t.pNext = const_cast<void*>(next);
  return t;
}

struct App {
  // gpu and instance of another App, whose lifetime is longer; nullptr: makes an instance.
  explicit App(const App* parent = nullptr);
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  tandem_vk_device_desc desc() const;

  struct Buffer {
    VkBuffer buffer = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
    VkDeviceSize size = 0;
    void* mapped = nullptr;
    float* floats() const { return static_cast<float*>(mapped); }
    operator tandem_buffer() const { return tandem_vk_buffer(buffer, 0); }
  };
  Buffer buffer(VkDeviceSize bytes);  // host-visible, coherent; gone with the App

  void begin();
  void barrier(VkPipelineStageFlags from, VkAccessFlags wrote, VkPipelineStageFlags to,
               VkAccessFlags reads);
  void submit();  // ends, submits, waits
  void run(const std::function<void(VkCommandBuffer)>& record) {
    begin();
    record(cmd);
    submit();
  }

  std::string missing;  // why there is nothing here; "": there is
  PFN_vkGetInstanceProcAddr gipa = nullptr;
  VkInstance instance = VK_NULL_HANDLE;
  std::vector<const char*> instance_extensions;
  VkPhysicalDevice gpu = VK_NULL_HANDLE;
  VkPhysicalDeviceProperties properties{};
  uint32_t family = 0, timestamp_bits = 0;
  VkDevice device = VK_NULL_HANDLE;
  VkQueue queue = VK_NULL_HANDLE;
  VkPhysicalDeviceFeatures2 features{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, nullptr, {}};
  tandem_vk_feature_storage storage{};
  uint32_t extension_count = 0;
  const char* const* extensions = nullptr;
  tandem::VkTable vk{};
  VkCommandPool pool = VK_NULL_HANDLE;
  VkCommandBuffer cmd = VK_NULL_HANDLE;
  VkFence fence = VK_NULL_HANDLE;

 private:
  bool own_instance_ = false;
  std::vector<Buffer> buffers_;
};

// A compute shader on storage buffers, with push constants.
class ComputePass {
 public:
  ComputePass(App& app, const uint32_t* spirv, size_t bytes, uint32_t buffers, uint32_t push_bytes);
  ~ComputePass();
  ComputePass(const ComputePass&) = delete;
  ComputePass& operator=(const ComputePass&) = delete;
  void record(VkCommandBuffer cmd, const VkDescriptorBufferInfo* buffers, const void* push,
              uint32_t groups);

 private:
  App& app_;
  uint32_t buffers_, push_bytes_;
  VkDescriptorSetLayout set_layout_ = VK_NULL_HANDLE;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  VkPipeline pipeline_ = VK_NULL_HANDLE;
  VkDescriptorPool sets_ = VK_NULL_HANDLE;
};

// A pass of an application's own: out[i] = in[i] * factor.
class ScalePass {
 public:
  explicit ScalePass(App& app);
  void record(VkCommandBuffer cmd, const App::Buffer& in, const App::Buffer& out, uint32_t count,
              float factor);

 private:
  ComputePass pass_;
};

}  // namespace vulkan_app
#endif
