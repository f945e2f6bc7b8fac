// SPDX-License-Identifier: MIT OR Apache-2.0
#include "shared_memory.h"

#include <cstring>

#include "../vulkan/plain_vulkan.h"
#include "harness/session.h"

namespace interop {
namespace {

using cuda_driver::cu;

#define VK(call) vk(call, #call)

// What the device must have beside Tandem's own.
constexpr const char* kExtensions[] = {VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME,
                                       VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME};
constexpr auto kMemory = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
constexpr auto kSemaphore = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT;
constexpr VkBufferUsageFlags kUsage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                      VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                                      VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;

}  // namespace

template <typename F>
F VulkanSide::function(const char* name) const {
  const auto found = reinterpret_cast<F>(api().vkGetDeviceProcAddr(device_, name));
  if (!found) throw Error(TANDEM_ERROR_MISSING_FEATURE, std::string("the device has no ") + name);
  return found;
}

VulkanSide::VulkanSide(const CUuuid& uuid, VkDeviceSize bytes) {
  find_gpu(uuid);
  make_device();
  make_buffer(bytes);
  make_semaphore();
}

VulkanSide::~VulkanSide() {
  tandem_device_destroy(tandem_);
  if (!device_) return;
  api().vkDeviceWaitIdle(device_);
  if (semaphore_)
    function<PFN_vkDestroySemaphore>("vkDestroySemaphore")(device_, semaphore_, nullptr);
  if (buffer_) api().vkDestroyBuffer(device_, buffer_, nullptr);
  if (memory_) api().vkFreeMemory(device_, memory_, nullptr);
  if (pool_) api().vkDestroyCommandPool(device_, pool_, nullptr);
  api().vkDestroyDevice(device_, nullptr);
}

void VulkanSide::find_gpu(const CUuuid& uuid) {
  uint32_t count = 0;
  VK(api().vkEnumeratePhysicalDevices(instance_.handle, &count, nullptr));
  std::vector<VkPhysicalDevice> gpus(count);
  VK(api().vkEnumeratePhysicalDevices(instance_.handle, &count, gpus.data()));
  for (VkPhysicalDevice gpu : gpus) {
    auto id = made<VkPhysicalDeviceIDProperties>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES);
    auto properties =
        made<VkPhysicalDeviceProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &id);
    api().vkGetPhysicalDeviceProperties2(gpu, &properties);
    if (std::memcmp(id.deviceUUID, uuid.bytes, VK_UUID_SIZE) != 0) continue;
    gpu_ = gpu;
    std::printf("Vulkan device %s, by its UUID\n", properties.properties.deviceName);
    return;
  }
  throw Error(TANDEM_ERROR_NO_DEVICE, "none of " + std::to_string(count) +
                                          " Vulkan devices has the UUID of the CUDA device");
}

void VulkanSide::make_device() {
  const PFN_vkGetInstanceProcAddr gipa = vulkan_loader().gipa;
  const auto enumerate = reinterpret_cast<PFN_vkEnumerateDeviceExtensionProperties>(
      gipa(instance_.handle, "vkEnumerateDeviceExtensionProperties"));
  uint32_t count = 0;
  VK(enumerate(gpu_, nullptr, &count, nullptr));
  std::vector<VkExtensionProperties> has(count);
  VK(enumerate(gpu_, nullptr, &count, has.data()));

  const char* const* needed = nullptr;
  check(tandem_vk_required_extensions(gipa, instance_.handle, gpu_, &count, &needed));
  std::vector<const char*> extensions(needed, needed + count);
  for (const char* extension : kExtensions) {
    bool there = false;
    for (const VkExtensionProperties& e : has)
      there |= std::strcmp(e.extensionName, extension) == 0;
    if (!there)
      throw Error(TANDEM_ERROR_MISSING_FEATURE, std::string("the device has no ") + extension);
    extensions.push_back(extension);
  }

  uint32_t families = 0;
  api().vkGetPhysicalDeviceQueueFamilyProperties(gpu_, &families, nullptr);
  std::vector<VkQueueFamilyProperties> queues(families);
  api().vkGetPhysicalDeviceQueueFamilyProperties(gpu_, &families, queues.data());
  while (family_ < families && !(queues[family_].queueFlags & VK_QUEUE_COMPUTE_BIT)) ++family_;

  auto timeline = made<VkPhysicalDeviceTimelineSemaphoreFeatures>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES);
  timeline.timelineSemaphore = VK_TRUE;  // every device of Vulkan 1.2 has them
  auto features =
      made<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &timeline);
  tandem_vk_feature_storage storage{};
  check(tandem_vk_required_features(gipa, instance_.handle, gpu_, &features, &storage));
  tandem_vk_device_desc desc = plain_vulkan::describe(
      gipa, instance_.handle, gpu_, &features, extensions.data(), uint32_t(extensions.size()));
  desc.api_version = instance_.api_version;
  VK(plain_vulkan::make_device(&desc, family_));
  device_ = desc.device;
  instance_.api.load_device(device_);
  api().vkGetDeviceQueue(device_, family_, 0, &queue_);
  auto pool = made<VkCommandPoolCreateInfo>(VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO);
  pool.queueFamilyIndex = family_;
  VK(api().vkCreateCommandPool(device_, &pool, nullptr, &pool_));

  check(tandem_vk_device_create(&desc, nullptr, &tandem_));
}

void VulkanSide::make_buffer(VkDeviceSize bytes) {
  auto external =
      made<VkExternalMemoryBufferCreateInfo>(VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO);
  external.handleTypes = kMemory;
  auto info = made<VkBufferCreateInfo>(VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, &external);
  info.size = bytes;
  info.usage = kUsage;
  VK(api().vkCreateBuffer(device_, &info, nullptr, &buffer_));
  VkMemoryRequirements needs{};
  api().vkGetBufferMemoryRequirements(device_, buffer_, &needs);
  VkPhysicalDeviceMemoryProperties memory{};
  api().vkGetPhysicalDeviceMemoryProperties(gpu_, &memory);
  uint32_t type = 0;
  while (type < memory.memoryTypeCount &&
         !((needs.memoryTypeBits >> type & 1) &&
           (memory.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)))
    ++type;
  // An allocation for this buffer alone: some drivers export no other kind.
  auto dedicated =
      made<VkMemoryDedicatedAllocateInfo>(VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO);
  dedicated.buffer = buffer_;
  auto exported =
      made<VkExportMemoryAllocateInfo>(VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO, &dedicated);
  exported.handleTypes = kMemory;
  auto flags =
      made<VkMemoryAllocateFlagsInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, &exported);
  flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  auto allocate = made<VkMemoryAllocateInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags);
  allocate.allocationSize = allocated_ = needs.size;
  allocate.memoryTypeIndex = type;
  VK(api().vkAllocateMemory(device_, &allocate, nullptr, &memory_));
  VK(api().vkBindBufferMemory(device_, buffer_, memory_, 0));
}

void VulkanSide::make_semaphore() {
  auto exported = made<VkExportSemaphoreCreateInfo>(VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO);
  exported.handleTypes = kSemaphore;
  auto type =
      made<VkSemaphoreTypeCreateInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, &exported);
  type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
  const auto info = made<VkSemaphoreCreateInfo>(VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type);
  VK(function<PFN_vkCreateSemaphore>("vkCreateSemaphore")(device_, &info, nullptr, &semaphore_));
}

int VulkanSide::memory_fd() const {
  auto info = made<VkMemoryGetFdInfoKHR>(VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR);
  info.memory = memory_;
  info.handleType = kMemory;
  int fd = -1;
  VK(function<PFN_vkGetMemoryFdKHR>("vkGetMemoryFdKHR")(device_, &info, &fd));
  return fd;
}

int VulkanSide::semaphore_fd() const {
  auto info = made<VkSemaphoreGetFdInfoKHR>(VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR);
  info.semaphore = semaphore_;
  info.handleType = kSemaphore;
  int fd = -1;
  VK(function<PFN_vkGetSemaphoreFdKHR>("vkGetSemaphoreFdKHR")(device_, &info, &fd));
  return fd;
}

// CUDA is a queue family of its own kind: EXTERNAL. Its writes become visible here, and ours there.
void VulkanSide::hand_over(VkCommandBuffer cmd, bool in) const {
  constexpr VkAccessFlags access = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
  auto b = made<VkBufferMemoryBarrier>(VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER);
  b.srcAccessMask = in ? 0 : access;
  b.dstAccessMask = in ? access : 0;
  b.srcQueueFamilyIndex = in ? VK_QUEUE_FAMILY_EXTERNAL : family_;
  b.dstQueueFamilyIndex = in ? family_ : VK_QUEUE_FAMILY_EXTERNAL;
  b.buffer = buffer_;
  b.size = VK_WHOLE_SIZE;
  // The submit's semaphore waits and signals at the same stages.
  api().vkCmdPipelineBarrier(cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                             VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 0, nullptr, 1, &b, 0,
                             nullptr);
}

VkCommandBuffer VulkanSide::record(const std::function<void(VkCommandBuffer)>& body) {
  VkCommandBuffer cmd = VK_NULL_HANDLE;
  auto buffers = made<VkCommandBufferAllocateInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO);
  buffers.commandPool = pool_;
  buffers.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  buffers.commandBufferCount = 1;
  VK(api().vkAllocateCommandBuffers(device_, &buffers, &cmd));
  auto begin = made<VkCommandBufferBeginInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
  begin.flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT;
  VK(api().vkBeginCommandBuffer(cmd, &begin));
  hand_over(cmd, true);
  body(cmd);
  hand_over(cmd, false);
  VK(api().vkEndCommandBuffer(cmd));
  return cmd;
}

void VulkanSide::submit(VkCommandBuffer cmd, uint64_t wait, uint64_t signal) {
  auto values =
      made<VkTimelineSemaphoreSubmitInfo>(VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO);
  values.waitSemaphoreValueCount = values.signalSemaphoreValueCount = 1;
  values.pWaitSemaphoreValues = &wait;
  values.pSignalSemaphoreValues = &signal;
  const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
  auto info = made<VkSubmitInfo>(VK_STRUCTURE_TYPE_SUBMIT_INFO, &values);
  info.waitSemaphoreCount = info.signalSemaphoreCount = info.commandBufferCount = 1;
  info.pWaitSemaphores = info.pSignalSemaphores = &semaphore_;
  info.pWaitDstStageMask = &stage;
  info.pCommandBuffers = &cmd;
  VK(api().vkQueueSubmit(queue_, 1, &info, VK_NULL_HANDLE));
}

CudaSide::CudaSide(const VulkanSide& vulkan) {
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC memory{};
  memory.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  memory.handle.fd = vulkan.memory_fd();  // CUDA's from then on
  memory.size = vulkan.allocated();
  memory.flags = CUDA_EXTERNAL_MEMORY_DEDICATED;
  NEED(cu.cuImportExternalMemory(&memory_, &memory));
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer{};
  buffer.size = vulkan.allocated();
  NEED(cu.cuExternalMemoryGetMappedBuffer(&pointer_, memory_, &buffer));
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC semaphore{};
  semaphore.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
  semaphore.handle.fd = vulkan.semaphore_fd();
  NEED(cu.cuImportExternalSemaphore(&semaphore_, &semaphore));
  NEED(cu.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
}

CudaSide::~CudaSide() {
  cu.cuStreamDestroy(stream_);
  cu.cuDestroyExternalSemaphore(semaphore_);
  cu.cuMemFree(pointer_);
  cu.cuDestroyExternalMemory(memory_);
}

void CudaSide::signal(uint64_t value) {
  CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS params{};
  params.params.fence.value = value;
  NEED(cu.cuSignalExternalSemaphoresAsync(&semaphore_, &params, 1, stream_));
}

void CudaSide::wait(uint64_t value) {
  CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS params{};
  params.params.fence.value = value;
  NEED(cu.cuWaitExternalSemaphoresAsync(&semaphore_, &params, 1, stream_));
}

}  // namespace interop
