// SPDX-License-Identifier: MIT OR Apache-2.0
// Sessions on Vulkan devices: an instance and a device of their own, memory, submission,
// timestamps.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "backends.h"
#include "tandem/tandem_vulkan.h"
#include "vulkan_api.h"

namespace tandem::harness {
namespace {

#define VK(call) vk(call, #call)
constexpr VkDeviceSize kStagingBytes = 32u << 20;

class VulkanSession;

// One VkBuffer. Bound to one allocation, or sparsely to several where one cannot hold it. Mapped
// where the device's memory is the host's; else its contents travel through the session's staging
// buffer.
class VulkanMemory : public Memory {
 public:
  VulkanMemory(VulkanSession& session, VkDeviceSize bytes, bool staging);
  ~VulkanMemory() override { release(); }
  void write(const void* data, size_t bytes, size_t offset) override;
  void read(void* data, size_t bytes, size_t offset) override;
  void set(uint8_t byte, size_t bytes, size_t offset) override;
  tandem_buffer handle(size_t offset) const override { return tandem_vk_buffer(buffer_, offset); }
  tandem_buffer address(size_t offset) const override {
    return tandem_vk_address(address_ + offset);
  }
  VkBuffer buffer() const { return buffer_; }
  uint8_t* mapped() const { return mapped_; }

 private:
  void create(VkDeviceSize bytes, bool staging);
  void bind_pieces(const VkMemoryRequirements& needs, uint32_t type);
  VkDeviceMemory allocate(VkDeviceSize bytes, uint32_t type, VkResult* result);
  void release();

  VulkanSession& session_;
  VkBuffer buffer_ = VK_NULL_HANDLE;
  std::vector<VkDeviceMemory> pieces_;
  VkDeviceAddress address_ = 0;
  uint8_t* mapped_ = nullptr;
};

class VulkanSession : public Session {
 public:
  VulkanSession(int index, const SessionOptions& options);
  ~VulkanSession() override { release(); }
  void submit(const std::function<void(tandem_stream)>& record) override {
    commands([&](VkCommandBuffer cmd) { record(tandem_vk_stream(cmd)); });
  }
  int validation_messages() const override { return instance_.messages; }

  // Records, submits and waits, with everything visible on both ends.
  void commands(const std::function<void(VkCommandBuffer)>& record);
  void barrier(VkCommandBuffer cmd);
  VulkanMemory& staging();
  uint32_t memory_type(uint32_t allowed, bool staging) const;
  const VulkanApi& api() const { return instance_.api; }

  VkDevice vk_device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  bool direct_ = false;  // device memory is mapped; no staging
  bool sparse_ = false;
  VkDeviceSize piece_bytes_ = 0;
  bool forced_pieces_ = false;

 protected:
  std::unique_ptr<Memory> allocate(size_t bytes) override {
    return std::make_unique<VulkanMemory>(*this, bytes, false);
  }
  double measure(const std::function<void(tandem_stream)>& record, int times) override;
  const char* clock() const override { return timestamp_ns_ > 0 ? "timestamps" : "wall"; }

 private:
  void open(int index, const SessionOptions& options);
  void choose_queue();
  void release();

  VulkanInstance instance_;
  VkPhysicalDevice gpu_ = VK_NULL_HANDLE;
  VkPhysicalDeviceMemoryProperties memory_{};
  uint32_t family_ = 0;
  double timestamp_ns_ = 0;  // 0: the queue has no timestamps
  uint64_t timestamp_mask_ = ~uint64_t(0);
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer cmd_ = VK_NULL_HANDLE;
  VkFence fence_ = VK_NULL_HANDLE;
  VkQueryPool queries_ = VK_NULL_HANDLE;
  std::unique_ptr<VulkanMemory> staging_;
};

// ---- memory -------------------------------------------------------------------------------------

VulkanMemory::VulkanMemory(VulkanSession& session, VkDeviceSize bytes, bool staging)
    : session_(session) {
  try {
    create(bytes, staging);
  } catch (...) {
    release();
    throw;
  }
}

void VulkanMemory::create(VkDeviceSize bytes, bool staging) {
  const VulkanApi& api = session_.api();
  auto info = made<VkBufferCreateInfo>(VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO);
  info.size = bytes;
  info.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  if (!staging)
    info.usage |= VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  bool whole = !(session_.forced_pieces_ && !staging && bytes > session_.piece_bytes_);
  VkMemoryRequirements needs{};
  uint32_t type = 0;
  if (whole) {
    VK(api.vkCreateBuffer(session_.vk_device_, &info, nullptr, &buffer_));
    api.vkGetBufferMemoryRequirements(session_.vk_device_, buffer_, &needs);
    type = session_.memory_type(needs.memoryTypeBits, staging);
    // Drivers often allocate more than the limit that they state, so it is tried before pieces are.
    VkResult result = VK_SUCCESS;
    const VkDeviceMemory memory = allocate(needs.size, type, &result);
    if (result == VK_SUCCESS) {
      VK(api.vkBindBufferMemory(session_.vk_device_, buffer_, memory, 0));
      if (staging || session_.direct_) {
        void* pointer = nullptr;
        VK(api.vkMapMemory(session_.vk_device_, memory, 0, VK_WHOLE_SIZE, 0, &pointer));
        mapped_ = static_cast<uint8_t*>(pointer);
      }
    } else if (bytes <= session_.piece_bytes_ || !session_.sparse_) {
      vk(result, ("allocating " + std::to_string(needs.size) + " bytes").c_str());
    } else {
      whole = false;
      api.vkDestroyBuffer(session_.vk_device_, buffer_, nullptr);
      buffer_ = VK_NULL_HANDLE;
    }
  }
  if (!whole) {
    info.flags = VK_BUFFER_CREATE_SPARSE_BINDING_BIT;
    VK(api.vkCreateBuffer(session_.vk_device_, &info, nullptr, &buffer_));
    api.vkGetBufferMemoryRequirements(session_.vk_device_, buffer_, &needs);
    bind_pieces(needs, session_.memory_type(needs.memoryTypeBits, false));
  }
  if (staging) return;
  auto where = made<VkBufferDeviceAddressInfo>(VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO);
  where.buffer = buffer_;
  address_ = api.vkGetBufferDeviceAddress(session_.vk_device_, &where);
}

VkDeviceMemory VulkanMemory::allocate(VkDeviceSize bytes, uint32_t type, VkResult* result) {
  auto flags = made<VkMemoryAllocateFlagsInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO);
  flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  auto info = made<VkMemoryAllocateInfo>(VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags);
  info.allocationSize = bytes;
  info.memoryTypeIndex = type;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  *result = session_.api().vkAllocateMemory(session_.vk_device_, &info, nullptr, &memory);
  if (*result == VK_SUCCESS) pieces_.push_back(memory);
  return memory;
}

void VulkanMemory::bind_pieces(const VkMemoryRequirements& needs, uint32_t type) {
  const VkDeviceSize step =
      std::max(needs.alignment, session_.piece_bytes_ / needs.alignment * needs.alignment);
  std::vector<VkSparseMemoryBind> binds;
  for (VkDeviceSize at = 0; at < needs.size; at += step) {
    VkSparseMemoryBind bind{};
    bind.resourceOffset = at;
    bind.size = std::min(step, needs.size - at);
    VkResult result = VK_SUCCESS;
    bind.memory = allocate(bind.size, type, &result);
    vk(result, "allocating a piece of a large buffer");
    binds.push_back(bind);
  }
  VkSparseBufferMemoryBindInfo buffer_bind{buffer_, uint32_t(binds.size()), binds.data()};
  auto info = made<VkBindSparseInfo>(VK_STRUCTURE_TYPE_BIND_SPARSE_INFO);
  info.bufferBindCount = 1;
  info.pBufferBinds = &buffer_bind;
  const VulkanApi& api = session_.api();
  VK(api.vkQueueBindSparse(session_.queue_, 1, &info, VK_NULL_HANDLE));
  VK(api.vkDeviceWaitIdle(session_.vk_device_));
}

void VulkanMemory::release() {
  const VulkanApi& api = session_.api();
  if (buffer_) api.vkDestroyBuffer(session_.vk_device_, buffer_, nullptr);
  for (VkDeviceMemory memory : pieces_) api.vkFreeMemory(session_.vk_device_, memory, nullptr);
  buffer_ = VK_NULL_HANDLE;
  pieces_.clear();
}

void VulkanMemory::write(const void* data, size_t bytes, size_t offset) {
  if (bytes == 0) return;
  if (mapped_) {
    std::memcpy(mapped_ + offset, data, bytes);
    return;
  }
  VulkanMemory& stage = session_.staging();
  for (size_t done = 0; done < bytes;) {
    const size_t n = std::min<size_t>(bytes - done, kStagingBytes);
    std::memcpy(stage.mapped(), static_cast<const uint8_t*>(data) + done, n);
    session_.commands([&](VkCommandBuffer cmd) {
      const VkBufferCopy copy{0, offset + done, n};
      session_.api().vkCmdCopyBuffer(cmd, stage.buffer(), buffer_, 1, &copy);
    });
    done += n;
  }
}

void VulkanMemory::read(void* data, size_t bytes, size_t offset) {
  if (bytes == 0) return;
  if (mapped_) {
    std::memcpy(data, mapped_ + offset, bytes);
    return;
  }
  VulkanMemory& stage = session_.staging();
  for (size_t done = 0; done < bytes;) {
    const size_t n = std::min<size_t>(bytes - done, kStagingBytes);
    session_.commands([&](VkCommandBuffer cmd) {
      const VkBufferCopy copy{offset + done, 0, n};
      session_.api().vkCmdCopyBuffer(cmd, buffer_, stage.buffer(), 1, &copy);
    });
    std::memcpy(static_cast<uint8_t*>(data) + done, stage.mapped(), n);
    done += n;
  }
}

void VulkanMemory::set(uint8_t byte, size_t bytes, size_t offset) {
  if (bytes == 0) return;
  if (mapped_) {
    std::memset(mapped_ + offset, byte, bytes);
    return;
  }
  session_.commands([&](VkCommandBuffer cmd) {
    session_.api().vkCmdFillBuffer(cmd, buffer_, offset, bytes, 0x01010101u * byte);
  });
}

// ---- session ------------------------------------------------------------------------------------

VulkanSession::VulkanSession(int index, const SessionOptions& options) {
  name_ = "vulkan:" + std::to_string(index);
  try {
    open(index, options);
  } catch (...) {
    release();
    throw;
  }
}

void VulkanSession::choose_queue() {
  uint32_t count = 0;
  api().vkGetPhysicalDeviceQueueFamilyProperties(gpu_, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  api().vkGetPhysicalDeviceQueueFamilyProperties(gpu_, &count, families.data());
  int best = -1, best_score = -1;
  for (uint32_t i = 0; i < count; ++i) {
    const VkQueueFamilyProperties& f = families[i];
    if (!(f.queueFlags & VK_QUEUE_COMPUTE_BIT)) continue;
    const int score =
        (f.timestampValidBits ? 2 : 0) + (f.queueFlags & VK_QUEUE_SPARSE_BINDING_BIT ? 1 : 0);
    if (score > best_score) best = int(i), best_score = score;
  }
  if (best < 0) throw Error(TANDEM_ERROR_NO_DEVICE, name_ + " has no queue for compute");
  family_ = uint32_t(best);
  const VkQueueFamilyProperties& f = families[family_];
  VkPhysicalDeviceProperties properties;
  api().vkGetPhysicalDeviceProperties(gpu_, &properties);
  if (f.timestampValidBits) {
    timestamp_ns_ = double(properties.limits.timestampPeriod);
    if (f.timestampValidBits < 64) timestamp_mask_ = (uint64_t(1) << f.timestampValidBits) - 1;
  }
  VkPhysicalDeviceFeatures features;
  api().vkGetPhysicalDeviceFeatures(gpu_, &features);
  sparse_ = features.sparseBinding && (f.queueFlags & VK_QUEUE_SPARSE_BINDING_BIT);
}

void VulkanSession::open(int index, const SessionOptions& options) {
  uint32_t count = 0;
  VK(api().vkEnumeratePhysicalDevices(instance_.handle, &count, nullptr));
  std::vector<VkPhysicalDevice> gpus(count);
  VK(api().vkEnumeratePhysicalDevices(instance_.handle, &count, gpus.data()));
  if (uint32_t(index) >= count)
    throw Error(TANDEM_ERROR_NO_DEVICE, "there is no " + name_ + ": this machine has " +
                                            std::to_string(count) + " Vulkan devices");
  gpu_ = gpus[size_t(index)];
  choose_queue();
  auto limits = made<VkPhysicalDeviceMaintenance3Properties>(
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES);
  auto properties =
      made<VkPhysicalDeviceProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &limits);
  api().vkGetPhysicalDeviceProperties2(gpu_, &properties);
  api().vkGetPhysicalDeviceMemoryProperties(gpu_, &memory_);
  const VkPhysicalDeviceType type = properties.properties.deviceType;
  on_cpu_ = type == VK_PHYSICAL_DEVICE_TYPE_CPU;
  direct_ = on_cpu_ || type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
  forced_pieces_ = options.piece_bytes != 0 && sparse_;
  piece_bytes_ = forced_pieces_ ? options.piece_bytes : limits.maxMemoryAllocationSize;

  const PFN_vkGetInstanceProcAddr gipa = vulkan_loader().gipa;
  uint32_t extension_count = 0;
  const char* const* extensions = nullptr;
  check(tandem_vk_required_extensions(gipa, instance_.handle, gpu_, &extension_count, &extensions));
  auto features = made<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2);
  features.features.sparseBinding = sparse_;
  tandem_vk_feature_storage storage{};
  check(tandem_vk_required_features(gipa, instance_.handle, gpu_, &features, &storage));
  const float priority = 1;
  auto queue = made<VkDeviceQueueCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO);
  queue.queueFamilyIndex = family_;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  auto info = made<VkDeviceCreateInfo>(VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &features);
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = extension_count;
  info.ppEnabledExtensionNames = extensions;
  VK(api().vkCreateDevice(gpu_, &info, nullptr, &vk_device_));
  instance_.api.load_device(vk_device_);
  api().vkGetDeviceQueue(vk_device_, family_, 0, &queue_);

  auto pool = made<VkCommandPoolCreateInfo>(VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO);
  pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pool.queueFamilyIndex = family_;
  VK(api().vkCreateCommandPool(vk_device_, &pool, nullptr, &pool_));
  auto buffers = made<VkCommandBufferAllocateInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO);
  buffers.commandPool = pool_;
  buffers.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  buffers.commandBufferCount = 1;
  VK(api().vkAllocateCommandBuffers(vk_device_, &buffers, &cmd_));
  auto fence = made<VkFenceCreateInfo>(VK_STRUCTURE_TYPE_FENCE_CREATE_INFO);
  VK(api().vkCreateFence(vk_device_, &fence, nullptr, &fence_));
  auto queries = made<VkQueryPoolCreateInfo>(VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO);
  queries.queryType = VK_QUERY_TYPE_TIMESTAMP;
  queries.queryCount = 2;
  VK(api().vkCreateQueryPool(vk_device_, &queries, nullptr, &queries_));

  tandem_vk_device_desc desc = TANDEM_VK_DEVICE_DESC_INIT;
  desc.api_version = instance_.api_version;
  desc.instance = instance_.handle;
  desc.gpu = gpu_;
  desc.device = vk_device_;
  desc.gipa = gipa;
  desc.extension_count = extension_count;
  desc.extensions = extensions;
  desc.features = &features;
  desc.queue = queue_;
  desc.queue_family = family_;
  const tandem_device_options o = device_options(options);
  tandem_device* device = nullptr;
  check(tandem_vk_device_create(&desc, &o, &device));
  adopt(device, options);
  // Of all drivers lavapipe alone has the host's addresses for the device's.
  takes_host_memory_ = std::strstr(info_.driver, "llvmpipe") != nullptr;
}

void VulkanSession::release() {
  close();
  if (!vk_device_) return;
  api().vkDeviceWaitIdle(vk_device_);
  staging_.reset();
  if (queries_) api().vkDestroyQueryPool(vk_device_, queries_, nullptr);
  if (fence_) api().vkDestroyFence(vk_device_, fence_, nullptr);
  if (pool_) api().vkDestroyCommandPool(vk_device_, pool_, nullptr);
  api().vkDestroyDevice(vk_device_, nullptr);
  vk_device_ = VK_NULL_HANDLE;
}

uint32_t VulkanSession::memory_type(uint32_t allowed, bool staging) const {
  // Best first: a later choice counts only where the device has nothing of an earlier one.
  constexpr VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr VkMemoryPropertyFlags host =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  constexpr VkMemoryPropertyFlags cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  std::vector<VkMemoryPropertyFlags> wishes;
  if (staging)
    wishes = {host | cached, host};
  else if (direct_)
    wishes = {local | host | cached, local | host, host};
  else
    wishes = {local, 0};
  for (VkMemoryPropertyFlags wish : wishes)
    for (uint32_t i = 0; i < memory_.memoryTypeCount; ++i)
      if ((allowed >> i & 1) && (memory_.memoryTypes[i].propertyFlags & wish) == wish) return i;
  throw Error(TANDEM_ERROR_BACKEND, name_ + " has no memory type for a buffer");
}

VulkanMemory& VulkanSession::staging() {
  if (!staging_) staging_ = std::make_unique<VulkanMemory>(*this, kStagingBytes, true);
  return *staging_;
}

void VulkanSession::barrier(VkCommandBuffer cmd) {
  auto b = made<VkMemoryBarrier>(VK_STRUCTURE_TYPE_MEMORY_BARRIER);
  b.srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT;
  b.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
  constexpr VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  constexpr VkPipelineStageFlags host = VK_PIPELINE_STAGE_HOST_BIT;
  api().vkCmdPipelineBarrier(cmd, all | host, all | host, 0, 1, &b, 0, nullptr, 0, nullptr);
}

void VulkanSession::commands(const std::function<void(VkCommandBuffer)>& record) {
  auto begin = made<VkCommandBufferBeginInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
  begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  VK(api().vkBeginCommandBuffer(cmd_, &begin));
  barrier(cmd_);
  try {
    record(cmd_);
  } catch (...) {
    api().vkEndCommandBuffer(cmd_);  // a buffer in the recording state cannot be begun again
    throw;
  }
  barrier(cmd_);
  VK(api().vkEndCommandBuffer(cmd_));
  auto submit = made<VkSubmitInfo>(VK_STRUCTURE_TYPE_SUBMIT_INFO);
  submit.commandBufferCount = 1;
  submit.pCommandBuffers = &cmd_;
  VK(api().vkQueueSubmit(queue_, 1, &submit, fence_));
  VK(api().vkWaitForFences(vk_device_, 1, &fence_, VK_TRUE, ~uint64_t(0)));
  VK(api().vkResetFences(vk_device_, 1, &fence_));
}

double VulkanSession::measure(const std::function<void(tandem_stream)>& record, int times) {
  const auto start = std::chrono::steady_clock::now();
  commands([&](VkCommandBuffer cmd) {
    api().vkCmdResetQueryPool(cmd, queries_, 0, 2);
    if (timestamp_ns_ > 0)
      api().vkCmdWriteTimestamp(cmd, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, queries_, 0);
    for (int i = 0; i < times; ++i) {
      record(tandem_vk_stream(cmd));
      barrier(cmd);
    }
    if (timestamp_ns_ > 0)
      api().vkCmdWriteTimestamp(cmd, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, 1);
  });
  if (timestamp_ns_ <= 0)
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  uint64_t stamps[2] = {0, 0};
  VK(api().vkGetQueryPoolResults(vk_device_, queries_, 0, 2, sizeof(stamps), stamps,
                                 sizeof(stamps[0]),
                                 VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
  return 1e-9 * timestamp_ns_ * double((stamps[1] - stamps[0]) & timestamp_mask_);
}

// Whether tandem can run there, without opening the device.
std::string refusal(const VulkanInstance& instance, VkPhysicalDevice gpu) {
  const PFN_vkGetInstanceProcAddr gipa = vulkan_loader().gipa;
  uint32_t count = 0;
  const char* const* names = nullptr;
  auto features = made<VkPhysicalDeviceFeatures2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2);
  tandem_vk_feature_storage storage{};
  if (tandem_vk_required_extensions(gipa, instance.handle, gpu, &count, &names) != TANDEM_OK ||
      tandem_vk_required_features(gipa, instance.handle, gpu, &features, &storage) != TANDEM_OK)
    return tandem_last_message();
  return {};
}

}  // namespace

void list_vulkan(std::vector<DeviceName>* devices) {
  DeviceName none;
  none.name = "vulkan";
  try {
    VulkanInstance instance;
    uint32_t count = 0;
    VK(instance.api.vkEnumeratePhysicalDevices(instance.handle, &count, nullptr));
    std::vector<VkPhysicalDevice> gpus(count);
    VK(instance.api.vkEnumeratePhysicalDevices(instance.handle, &count, gpus.data()));
    for (uint32_t i = 0; i < count; ++i) {
      VkPhysicalDeviceProperties properties;
      instance.api.vkGetPhysicalDeviceProperties(gpus[i], &properties);
      DeviceName d;
      d.name = "vulkan:" + std::to_string(i);
      d.human = properties.deviceName;
      d.cpu_driver = properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
      d.reason = refusal(instance, gpus[i]);
      devices->push_back(d);
    }
    if (count > 0) return;
    none.reason = "no Vulkan device on this machine";
  } catch (const Error& e) {
    none.reason = e.what();
  }
  devices->push_back(none);
}

std::unique_ptr<Session> open_vulkan(int index, const SessionOptions& options) {
  return std::make_unique<VulkanSession>(index, options);
}

}  // namespace tandem::harness
