// SPDX-License-Identifier: MIT OR Apache-2.0
// Vulkan without global functions: each device has its own table. Volk's code is in a namespace
// with a name of our own, because the application may contain another version of Volk.
#ifndef TANDEM_SRC_VULKAN_VK_H
#define TANDEM_SRC_VULKAN_VK_H
#define VK_NO_PROTOTYPES
#define VOLK_NAMESPACE
#define volk tandem_volk
#include <volk.h>
#undef volk

#include "base/status.h"
#include "tandem/tandem_vulkan.h"

namespace tandem {

using VkTable = tandem_volk::VolkDeviceTable;

// volk.cpp. Fills the table by gdpa alone. It writes no variable of Volk's, so devices may be
// created on many threads.
void load_table(VkTable* table, PFN_vkGetDeviceProcAddr gdpa, VkDevice device);

// The loader's vkGetInstanceProcAddr; NO_BACKEND if this machine has no loader. It stays loaded.
Status system_loader(PFN_vkGetInstanceProcAddr* gipa);

// The functions of the table that the library calls, as X(name without vk).
#define TANDEM_VK_USED(X)       \
  X(AllocateDescriptorSets)     \
  X(CmdBindDescriptorSets)      \
  X(CmdBindPipeline)            \
  X(CmdDispatch)                \
  X(CmdDispatchBase)            \
  X(CmdPipelineBarrier)         \
  X(CmdPushConstants)           \
  X(CmdWriteTimestamp)          \
  X(CreateComputePipelines)     \
  X(CreateDescriptorPool)       \
  X(CreateDescriptorSetLayout)  \
  X(CreatePipelineCache)        \
  X(CreatePipelineLayout)       \
  X(CreateShaderModule)         \
  X(DestroyDescriptorPool)      \
  X(DestroyDescriptorSetLayout) \
  X(DestroyPipeline)            \
  X(DestroyPipelineCache)       \
  X(DestroyPipelineLayout)      \
  X(DestroyShaderModule)        \
  X(GetBufferDeviceAddress)     \
  X(GetPipelineCacheData)       \
  X(MergePipelineCaches)        \
  X(UpdateDescriptorSets)

// Those that a probe calls as well (probe.h), which a device may lack.
#define TANDEM_VK_PROBED(X)      \
  X(AllocateCommandBuffers)      \
  X(AllocateMemory)              \
  X(BeginCommandBuffer)          \
  X(BindBufferMemory)            \
  X(CreateBuffer)                \
  X(CreateCommandPool)           \
  X(CreateFence)                 \
  X(DestroyBuffer)               \
  X(DestroyCommandPool)          \
  X(DestroyFence)                \
  X(EndCommandBuffer)            \
  X(FreeMemory)                  \
  X(GetBufferMemoryRequirements) \
  X(MapMemory)                   \
  X(QueueSubmit)                 \
  X(WaitForFences)

// The instance-level functions that are used; each is checked to exist.
struct InstanceTable {
  PFN_vkGetDeviceProcAddr GetDeviceProcAddr;
  PFN_vkGetPhysicalDeviceProperties2 GetPhysicalDeviceProperties2;
  PFN_vkGetPhysicalDeviceFeatures2 GetPhysicalDeviceFeatures2;
  PFN_vkEnumerateDeviceExtensionProperties EnumerateDeviceExtensionProperties;
};
Status load_instance(PFN_vkGetInstanceProcAddr gipa, VkInstance instance, InstanceTable* table);

// A failed call as a status: what failed, and the code.
Status vk_status(VkResult result, const char* what);

// The struct of this type in a pNext chain, nullptr if there is none.
template <typename Struct>
const Struct* find_struct(const void* chain, VkStructureType type) {
  for (auto s = static_cast<const VkBaseInStructure*>(chain); s; s = s->pNext)
    if (s->sType == type) return reinterpret_cast<const Struct*>(s);
  return nullptr;
}

}  // namespace tandem

#define TANDEM_VK_TRY(call, what)                                                 \
  do {                                                                            \
    const VkResult vk_result_ = (call);                                           \
    if (vk_result_ != VK_SUCCESS) return ::tandem::vk_status(vk_result_, (what)); \
  } while (false)

#endif
