// SPDX-License-Identifier: MIT OR Apache-2.0
#include "app.h"

#include <cstdlib>
#include <cstring>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <doctest/doctest.h>

#include "attention.h"
#include "plain_vulkan.h"
#include "shaders/scale.spv.h"

namespace vulkan_app {

PFN_vkGetInstanceProcAddr loader() {
#if defined(_WIN32)
  HMODULE module = LoadLibraryA("vulkan-1.dll");
  return module ? reinterpret_cast<PFN_vkGetInstanceProcAddr>(
                      reinterpret_cast<void*>(GetProcAddress(module, "vkGetInstanceProcAddr")))
                : nullptr;
#else
  void* module = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  return module
             ? reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(module, "vkGetInstanceProcAddr"))
             : nullptr;
#endif
}

#define GIPA(name) reinterpret_cast<PFN_##name>(gipa(instance, #name))
#define VK(call) REQUIRE((call) == VK_SUCCESS)

App::App(const App* parent) {
  gipa = loader();
  if (!gipa) {
    missing = "no Vulkan loader";
    return;
  }
  uint32_t count = 0;
  if (parent) {
    instance = parent->instance;
    instance_extensions = parent->instance_extensions;
  } else {
    const auto list = GIPA(vkEnumerateInstanceExtensionProperties);
    list(nullptr, &count, nullptr);
    std::vector<VkExtensionProperties> all(count);
    list(nullptr, &count, all.data());
    for (const VkExtensionProperties& e : all)
      if (std::strcmp(e.extensionName, VK_EXT_DEBUG_UTILS_EXTENSION_NAME) == 0)
        instance_extensions = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME};
    auto application = made<VkApplicationInfo>(VK_STRUCTURE_TYPE_APPLICATION_INFO);
    application.apiVersion = VK_API_VERSION_1_3;
    auto info = made<VkInstanceCreateInfo>(VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO);
    info.pApplicationInfo = &application;
    info.enabledExtensionCount = uint32_t(instance_extensions.size());
    info.ppEnabledExtensionNames = instance_extensions.data();
    if (GIPA(vkCreateInstance)(&info, nullptr, &instance) != VK_SUCCESS) {
      instance = VK_NULL_HANDLE;
      missing = "no Vulkan driver";
      return;
    }
    own_instance_ = true;
  }
  count = 1;
  GIPA(vkEnumeratePhysicalDevices)(instance, &count, &gpu);
  if (!gpu) {
    missing = "no Vulkan device";
    return;
  }
  GIPA(vkGetPhysicalDeviceProperties)(gpu, &properties);
  const auto families = GIPA(vkGetPhysicalDeviceQueueFamilyProperties);
  families(gpu, &count, nullptr);
  std::vector<VkQueueFamilyProperties> all(count);
  families(gpu, &count, all.data());
  while (family < count && !(all[family].queueFlags & VK_QUEUE_COMPUTE_BIT)) ++family;
  REQUIRE(family < count);
  timestamp_bits = all[family].timestampValidBits;

  REQUIRE(tandem_vk_required_extensions(gipa, instance, gpu, &extension_count, &extensions) ==
          TANDEM_OK);
  REQUIRE(tandem_vk_required_features(gipa, instance, gpu, &features, &storage) == TANDEM_OK);
  tandem_vk_device_desc made_by = desc();
  VK(plain_vulkan::make_device(&made_by, family));
  device = made_by.device;
  tandem::load_table(&vk, GIPA(vkGetDeviceProcAddr), device);
  vk.vkGetDeviceQueue(device, family, 0, &queue);
  auto pool_info = made<VkCommandPoolCreateInfo>(VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO);
  pool_info.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pool_info.queueFamilyIndex = family;
  VK(vk.vkCreateCommandPool(device, &pool_info, nullptr, &pool));
  auto buffers = made<VkCommandBufferAllocateInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO);
  buffers.commandPool = pool;
  buffers.commandBufferCount = 1;
  VK(vk.vkAllocateCommandBuffers(device, &buffers, &cmd));
  const auto fence_info = made<VkFenceCreateInfo>(VK_STRUCTURE_TYPE_FENCE_CREATE_INFO);
  VK(vk.vkCreateFence(device, &fence_info, nullptr, &fence));
}

App::~App() {
  if (device) {
    vk.vkDeviceWaitIdle(device);
    for (const Buffer& b : buffers_) {
      vk.vkDestroyBuffer(device, b.buffer, nullptr);
      vk.vkFreeMemory(device, b.memory, nullptr);
    }
    vk.vkDestroyFence(device, fence, nullptr);
    vk.vkDestroyCommandPool(device, pool, nullptr);
    vk.vkDestroyDevice(device, nullptr);
  }
  if (own_instance_) GIPA(vkDestroyInstance)(instance, nullptr);
}

tandem_vk_device_desc App::desc() const {
  tandem_vk_device_desc d = TANDEM_VK_DEVICE_DESC_INIT;
  d.api_version = VK_API_VERSION_1_3;
  d.instance = instance;
  d.gpu = gpu;
  d.device = device;
  d.gipa = gipa;
  d.extension_count = extension_count;
  d.extensions = extensions;
  d.features = &features;
  d.instance_extension_count = uint32_t(instance_extensions.size());
  d.instance_extensions = instance_extensions.data();
  return d;
}

App::Buffer App::buffer(VkDeviceSize bytes) {
  Buffer b;
  b.size = bytes;
  auto info = made<VkBufferCreateInfo>(VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO);
  info.size = bytes;
  info.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
               VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  VK(vk.vkCreateBuffer(device, &info, nullptr, &b.buffer));
  VkMemoryRequirements needs;
  vk.vkGetBufferMemoryRequirements(device, b.buffer, &needs);
  VkPhysicalDeviceMemoryProperties types;
  GIPA(vkGetPhysicalDeviceMemoryProperties)(gpu, &types);
  constexpr VkMemoryPropertyFlags host =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  uint32_t type = 0;
  while (type < types.memoryTypeCount && !((needs.memoryTypeBits >> type & 1) &&
                                           (types.memoryTypes[type].propertyFlags & host) == host))
    ++type;
  REQUIRE(type < types.memoryTypeCount);
  auto flags = made<VkMemoryAllocateFlagsInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO);
  flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  auto allocate = made<VkMemoryAllocateInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags);
  allocate.allocationSize = needs.size;
  allocate.memoryTypeIndex = type;
  VK(vk.vkAllocateMemory(device, &allocate, nullptr, &b.memory));
  VK(vk.vkBindBufferMemory(device, b.buffer, b.memory, 0));
  VK(vk.vkMapMemory(device, b.memory, 0, VK_WHOLE_SIZE, 0, &b.mapped));
  std::memset(b.mapped, 0, size_t(bytes));
  buffers_.push_back(b);
  return b;
}

void App::begin() {
  const auto info = made<VkCommandBufferBeginInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
  VK(vk.vkBeginCommandBuffer(cmd, &info));
}

void App::barrier(VkPipelineStageFlags from, VkAccessFlags wrote, VkPipelineStageFlags to,
                  VkAccessFlags reads) {
  auto b = made<VkMemoryBarrier>(VK_STRUCTURE_TYPE_MEMORY_BARRIER);
  b.srcAccessMask = wrote;
  b.dstAccessMask = reads;
  vk.vkCmdPipelineBarrier(cmd, from, to, 0, 1, &b, 0, nullptr, 0, nullptr);
}

void App::submit() {
  barrier(VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_WRITE_BIT,
          VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
  VK(vk.vkEndCommandBuffer(cmd));
  auto info = made<VkSubmitInfo>(VK_STRUCTURE_TYPE_SUBMIT_INFO);
  info.commandBufferCount = 1;
  info.pCommandBuffers = &cmd;
  VK(vk.vkQueueSubmit(queue, 1, &info, fence));
  VK(vk.vkWaitForFences(device, 1, &fence, VK_TRUE, ~uint64_t(0)));
  VK(vk.vkResetFences(device, 1, &fence));
}

ComputePass::ComputePass(App& app, const uint32_t* spirv, size_t bytes, uint32_t buffers,
                         uint32_t push_bytes)
    : app_(app), buffers_(buffers), push_bytes_(push_bytes) {
  std::vector<VkDescriptorSetLayoutBinding> bindings;
  for (uint32_t n = 0; n < buffers; ++n)
    bindings.push_back(
        {n, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr});
  auto set =
      made<VkDescriptorSetLayoutCreateInfo>(VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO);
  set.bindingCount = buffers;
  set.pBindings = bindings.data();
  VK(app.vk.vkCreateDescriptorSetLayout(app.device, &set, nullptr, &set_layout_));
  const VkPushConstantRange push{VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes};
  auto layout = made<VkPipelineLayoutCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO);
  layout.setLayoutCount = 1;
  layout.pSetLayouts = &set_layout_;
  layout.pushConstantRangeCount = 1;
  layout.pPushConstantRanges = &push;
  VK(app.vk.vkCreatePipelineLayout(app.device, &layout, nullptr, &layout_));
  auto module = made<VkShaderModuleCreateInfo>(VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO);
  module.codeSize = bytes;
  module.pCode = spirv;
  auto info = made<VkComputePipelineCreateInfo>(VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO);
  info.stage =
      made<VkPipelineShaderStageCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO);
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.pName = "main";
  info.layout = layout_;
  VK(app.vk.vkCreateShaderModule(app.device, &module, nullptr, &info.stage.module));
  VK(app.vk.vkCreateComputePipelines(app.device, VK_NULL_HANDLE, 1, &info, nullptr, &pipeline_));
  app.vk.vkDestroyShaderModule(app.device, info.stage.module, nullptr);
  constexpr uint32_t kSets = 256;
  const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, buffers * kSets};
  auto pool = made<VkDescriptorPoolCreateInfo>(VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO);
  pool.maxSets = kSets;
  pool.poolSizeCount = 1;
  pool.pPoolSizes = &size;
  VK(app.vk.vkCreateDescriptorPool(app.device, &pool, nullptr, &sets_));
}

ComputePass::~ComputePass() {
  app_.vk.vkDestroyDescriptorPool(app_.device, sets_, nullptr);
  app_.vk.vkDestroyPipeline(app_.device, pipeline_, nullptr);
  app_.vk.vkDestroyPipelineLayout(app_.device, layout_, nullptr);
  app_.vk.vkDestroyDescriptorSetLayout(app_.device, set_layout_, nullptr);
}

void ComputePass::record(VkCommandBuffer cmd, const VkDescriptorBufferInfo* buffers,
                         const void* push, uint32_t groups) {
  const tandem::VkTable& vk = app_.vk;
  auto allocate = made<VkDescriptorSetAllocateInfo>(VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO);
  allocate.descriptorPool = sets_;
  allocate.descriptorSetCount = 1;
  allocate.pSetLayouts = &set_layout_;
  VkDescriptorSet set = VK_NULL_HANDLE;
  VK(vk.vkAllocateDescriptorSets(app_.device, &allocate, &set));
  auto write = made<VkWriteDescriptorSet>(VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET);
  write.dstSet = set;
  write.descriptorCount = buffers_;
  write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
  write.pBufferInfo = buffers;
  vk.vkUpdateDescriptorSets(app_.device, 1, &write, 0, nullptr);
  vk.vkCmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_);
  vk.vkCmdBindDescriptorSets(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, layout_, 0, 1, &set, 0, nullptr);
  vk.vkCmdPushConstants(cmd, layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes_, push);
  vk.vkCmdDispatch(cmd, groups, 1, 1);
}

ScalePass::ScalePass(App& app) : pass_(app, scale_spirv, sizeof(scale_spirv), 2, 8) {}

void ScalePass::record(VkCommandBuffer cmd, const App::Buffer& in, const App::Buffer& out,
                       uint32_t count, float factor) {
  const VkDescriptorBufferInfo buffers[2] = {{in.buffer, 0, count * sizeof(float)},
                                             {out.buffer, 0, count * sizeof(float)}};
  const struct {
    uint32_t count;
    float factor;
  } push{count, factor};
  pass_.record(cmd, buffers, &push, (count + 63) / 64);
}

bool usable(const App& app) {
  if (app.missing.empty()) return true;
  MESSAGE("left out: " << app.missing);
  CHECK(std::getenv("TANDEM_NEED_VULKAN") == nullptr);
  return false;
}

}  // namespace vulkan_app
