// SPDX-License-Identifier: MIT OR Apache-2.0
// A buffer and a timeline semaphore that Vulkan makes and CUDA imports, on the same GPU.
#ifndef TANDEM_TESTS_INTEROP_SHARED_MEMORY_H
#define TANDEM_TESTS_INTEROP_SHARED_MEMORY_H
#include <functional>
#include <string>
#include <vector>

#include "../cuda/cuda_driver.h"
#include "harness/vulkan_api.h"
#include "tandem/tandem_vulkan.h"

namespace interop {

using namespace tandem::harness;

// A VkDevice with a queue for compute, on the GPU of a UUID.
class VulkanSide {
 public:
  // Throws Error: NO_BACKEND without Vulkan, NO_DEVICE without that GPU, MISSING_FEATURE where it
  // exports nothing.
  VulkanSide(const CUuuid& uuid, VkDeviceSize bytes);
  ~VulkanSide();
  VulkanSide(const VulkanSide&) = delete;
  VulkanSide& operator=(const VulkanSide&) = delete;

  tandem_device* device() const { return tandem_; }
  VkBuffer buffer() const { return buffer_; }
  VkDeviceSize allocated() const { return allocated_; }
  int memory_fd() const;  // a new one each time, the caller's
  int semaphore_fd() const;

  // What is recorded takes the buffer over from outside before it, and gives it back behind it. May
  // be submitted again and again.
  VkCommandBuffer record(const std::function<void(VkCommandBuffer)>& body);
  // Runs when the semaphore has the first value, and then gives it the second.
  void submit(VkCommandBuffer cmd, uint64_t wait, uint64_t signal);
  void wait_idle() { vk(api().vkDeviceWaitIdle(device_), "vkDeviceWaitIdle"); }
  int messages() const { return instance_.messages; }

 private:
  const VulkanApi& api() const { return instance_.api; }
  template <typename F>
  F function(const char* name) const;
  void find_gpu(const CUuuid& uuid);
  void make_device();
  void make_buffer(VkDeviceSize bytes);
  void make_semaphore();
  void hand_over(VkCommandBuffer cmd, bool in) const;

  VulkanInstance instance_;
  VkPhysicalDevice gpu_ = VK_NULL_HANDLE;
  VkDevice device_ = VK_NULL_HANDLE;
  uint32_t family_ = 0;
  VkQueue queue_ = VK_NULL_HANDLE;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkBuffer buffer_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
  VkDeviceSize allocated_ = 0;
  VkSemaphore semaphore_ = VK_NULL_HANDLE;
  tandem_device* tandem_ = nullptr;
};

// The same memory and semaphore in a CUDA context, which is current while it is made and destroyed.
class CudaSide {
 public:
  explicit CudaSide(const VulkanSide& vulkan);
  ~CudaSide();
  CudaSide(const CudaSide&) = delete;
  CudaSide& operator=(const CudaSide&) = delete;

  CUdeviceptr pointer() const { return pointer_; }
  CUstream stream() const { return stream_; }
  void signal(uint64_t value);  // once the stream has come here
  void wait(uint64_t value);    // the stream goes on once the semaphore has it

 private:
  CUexternalMemory memory_ = nullptr;
  CUexternalSemaphore semaphore_ = nullptr;
  CUdeviceptr pointer_ = 0;
  CUstream stream_ = nullptr;
};

}  // namespace interop
#endif
