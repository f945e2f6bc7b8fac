// SPDX-License-Identifier: MIT OR Apache-2.0
#include "gpu.h"

#include <stdexcept>

#include "loader.h"
#include "tandem/tandem.hpp"

void vk(VkResult result, const char* what) {
  if (result != VK_SUCCESS)
    throw std::runtime_error(std::string(what) + ": VkResult " + std::to_string(int(result)));
}

Gpu::Gpu(uint32_t index) {
  const PFN_vkGetInstanceProcAddr gipa = open_loader();
  auto application = made<VkApplicationInfo>(VK_STRUCTURE_TYPE_APPLICATION_INFO);
  application.apiVersion = VK_API_VERSION_1_3;
  auto instance = made<VkInstanceCreateInfo>(VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO);
  instance.pApplicationInfo = &application;
  const auto create = reinterpret_cast<PFN_vkCreateInstance>(gipa(nullptr, "vkCreateInstance"));
  vk(create(&instance, nullptr, &desc.instance), "vkCreateInstance");
#define APP_VK_LOAD(name) name = reinterpret_cast<PFN_vk##name>(gipa(desc.instance, "vk" #name));
  APP_VK_FUNCTIONS(APP_VK_LOAD)
  goodbyes_.push_back([=] { DestroyInstance(desc.instance, nullptr); });

  uint32_t count = 0;
  vk(EnumeratePhysicalDevices(desc.instance, &count, nullptr), "vkEnumeratePhysicalDevices");
  std::vector<VkPhysicalDevice> gpus(count);
  vk(EnumeratePhysicalDevices(desc.instance, &count, gpus.data()), "vkEnumeratePhysicalDevices");
  if (index >= count)
    throw std::runtime_error("this machine has " + std::to_string(count) + " Vulkan devices");
  desc.api_version = application.apiVersion;
  desc.gipa = gipa;
  desc.gpu = gpus[index];
  GetPhysicalDeviceProperties(desc.gpu, &properties);
  choose_queues();

  // What the application wants for itself, and then what Tandem adds to it.
  vulkan12_.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  vulkan12_.timelineSemaphore = VK_TRUE;
  features_.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  features_.pNext = &vulkan12_;
  desc.features = &features_;
  tandem::check(tandem_vk_required_extensions(gipa, desc.instance, desc.gpu, &desc.extension_count,
                                              &desc.extensions));
  tandem::check(
      tandem_vk_required_features(gipa, desc.instance, desc.gpu, &features_, &tandem_features_));

  const float priorities[2] = {1, 1};
  auto queue = made<VkDeviceQueueCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO);
  queue.queueFamilyIndex = compute.family;
  queue.queueCount = compute.index + 1;
  queue.pQueuePriorities = priorities;
  VkDeviceQueueCreateInfo queues[2] = {queue, queue};
  queues[1].queueFamilyIndex = render.family;
  auto info = made<VkDeviceCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &features_);
  info.queueCreateInfoCount = render.family == compute.family ? 1 : 2;
  info.pQueueCreateInfos = queues;
  info.enabledExtensionCount = desc.extension_count;
  info.ppEnabledExtensionNames = desc.extensions;
  vk(CreateDevice(desc.gpu, &info, nullptr, &device), "vkCreateDevice");
  desc.device = device;
  goodbyes_.push_back([=] { DestroyDevice(device, nullptr); });
  for (Queue* q : {&render, &compute}) {
    GetDeviceQueue(device, q->family, q->index, &q->handle);
    auto pool = made<VkCommandPoolCreateInfo>(VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO);
    pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
    pool.queueFamilyIndex = q->family;
    vk(CreateCommandPool(device, &pool, nullptr, &q->pool), "vkCreateCommandPool");
    goodbyes_.push_back([=] { DestroyCommandPool(device, q->pool, nullptr); });
  }
}

// Attention goes to a family that computes and does not draw, where there is one; the rest of the
// frame to one that draws, else to another that copies. With one family for both, to its second
// queue; with one queue, to that one.
void Gpu::choose_queues() {
  constexpr VkQueueFlags kCopies = VK_QUEUE_COMPUTE_BIT | VK_QUEUE_TRANSFER_BIT;
  uint32_t count = 0;
  GetPhysicalDeviceQueueFamilyProperties(desc.gpu, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  GetPhysicalDeviceQueueFamilyProperties(desc.gpu, &count, families.data());
  int computes = 0, renders = 0;  // how well the best so far do
  for (uint32_t i = 0; i < count; ++i) {
    const VkQueueFlags f = families[i].queueFlags;
    const int fit = !(f & VK_QUEUE_COMPUTE_BIT) ? 0 : f & VK_QUEUE_GRAPHICS_BIT ? 1 : 2;
    if (fit > computes) computes = fit, compute.family = i;
  }
  for (uint32_t i = 0; i < count; ++i) {  // who draws or computes can copy, too
    const VkQueueFlags f = families[i].queueFlags;
    const int fit = i == compute.family ? 1 : f & VK_QUEUE_GRAPHICS_BIT ? 3 : f & kCopies ? 2 : 0;
    if (fit > renders) renders = fit, render.family = i;
  }
  if (computes == 0) throw std::runtime_error("this GPU has no queue for compute");
  if (render.family == compute.family && families[compute.family].queueCount > 1) compute.index = 1;
  timestamps = families[compute.family].timestampValidBits > 0;
}

Buffer Gpu::buffer(VkDeviceSize bytes, VkBufferUsageFlags usage, bool for_host) {
  Buffer b{VK_NULL_HANDLE, bytes, nullptr};
  auto info = made<VkBufferCreateInfo>(VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO);
  info.size = bytes;
  info.usage = usage;
  vk(CreateBuffer(device, &info, nullptr, &b.handle), "vkCreateBuffer");
  goodbyes_.push_back([=] { DestroyBuffer(device, b.handle, nullptr); });
  VkMemoryRequirements needs;
  GetBufferMemoryRequirements(device, b.handle, &needs);
  VkPhysicalDeviceMemoryProperties types;
  GetPhysicalDeviceMemoryProperties(desc.gpu, &types);
  const VkMemoryPropertyFlags wish =
      for_host ? VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
               : VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  uint32_t type = 0;
  while (type + 1 < types.memoryTypeCount &&
         (!(needs.memoryTypeBits >> type & 1) ||
          (types.memoryTypes[type].propertyFlags & wish) != wish))
    ++type;
  auto flags = made<VkMemoryAllocateFlagsInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO);
  flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;  // as Tandem's buffers have it
  auto allocate = made<VkMemoryAllocateInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags);
  allocate.allocationSize = needs.size;
  allocate.memoryTypeIndex = type;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  vk(AllocateMemory(device, &allocate, nullptr, &memory), "vkAllocateMemory");
  goodbyes_.push_back([=] { FreeMemory(device, memory, nullptr); });
  vk(BindBufferMemory(device, b.handle, memory, 0), "vkBindBufferMemory");
  void* mapped = nullptr;
  if (for_host) vk(MapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, &mapped), "vkMapMemory");
  b.mapped = static_cast<float*>(mapped);
  return b;
}

VkSemaphore Gpu::timeline() {
  auto type = made<VkSemaphoreTypeCreateInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);
  type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
  const auto info = made<VkSemaphoreCreateInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type);
  VkSemaphore semaphore = VK_NULL_HANDLE;
  vk(CreateSemaphore(device, &info, nullptr, &semaphore), "vkCreateSemaphore");
  goodbyes_.push_back([=] { DestroySemaphore(device, semaphore, nullptr); });
  return semaphore;
}

VkQueryPool Gpu::stamps(uint32_t count) {
  auto info = made<VkQueryPoolCreateInfo>(VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO);
  info.queryType = VK_QUERY_TYPE_TIMESTAMP;
  info.queryCount = count;
  VkQueryPool pool = VK_NULL_HANDLE;
  vk(CreateQueryPool(device, &info, nullptr, &pool), "vkCreateQueryPool");
  goodbyes_.push_back([=] { DestroyQueryPool(device, pool, nullptr); });
  return pool;
}

VkCommandBuffer Gpu::commands(const Queue& queue) {
  auto info = made<VkCommandBufferAllocateInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO);
  info.commandPool = queue.pool;
  info.commandBufferCount = 1;
  VkCommandBuffer cmd = VK_NULL_HANDLE;
  vk(AllocateCommandBuffers(device, &info, &cmd), "vkAllocateCommandBuffers");
  return cmd;
}

void Gpu::begin(VkCommandBuffer cmd) {
  auto info = made<VkCommandBufferBeginInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
  info.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  vk(BeginCommandBuffer(cmd, &info), "vkBeginCommandBuffer");
}

void Gpu::submit(const Queue& queue, VkCommandBuffer cmd, Point wait, VkPipelineStageFlags stages,
                 Point raise) {
  vk(EndCommandBuffer(cmd), "vkEndCommandBuffer");
  auto values =
      made<VkTimelineSemaphoreSubmitInfo>(VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO);
  auto info = made<VkSubmitInfo>(VK_STRUCTURE_TYPE_SUBMIT_INFO, &values);
  values.waitSemaphoreValueCount = info.waitSemaphoreCount = 1;
  values.pWaitSemaphoreValues = &wait.value;
  info.pWaitSemaphores = &wait.semaphore;
  info.pWaitDstStageMask = &stages;
  info.commandBufferCount = 1;
  info.pCommandBuffers = &cmd;
  values.signalSemaphoreValueCount = info.signalSemaphoreCount = 1;
  values.pSignalSemaphoreValues = &raise.value;
  info.pSignalSemaphores = &raise.semaphore;
  vk(QueueSubmit(queue.handle, 1, &info, VK_NULL_HANDLE), "vkQueueSubmit");
}

void Gpu::wait(Point point) {
  auto info = made<VkSemaphoreWaitInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO);
  info.semaphoreCount = 1;
  info.pSemaphores = &point.semaphore;
  info.pValues = &point.value;
  vk(WaitSemaphores(device, &info, ~uint64_t(0)), "vkWaitSemaphores");
}
