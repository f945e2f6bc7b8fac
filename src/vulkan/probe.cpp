// SPDX-License-Identifier: MIT OR Apache-2.0
#include "probe.h"

#include <cstring>

#include "modules.h"
#include "plan/planner.h"

namespace tandem {
namespace {

constexpr uint64_t kWait = uint64_t(10) * 1000 * 1000 * 1000;  // nanoseconds
constexpr uint32_t kSame = 1;                                  // what the shader leaves then

// Whether a call made what it was to make. Otherwise there is nothing to destroy.
template <typename Handle>
bool made(VkResult result, Handle* handle) {
  if (result != VK_SUCCESS) *handle = VK_NULL_HANDLE;
  return result == VK_SUCCESS;
}

// The objects of a probe. If the queue does not come back they stay, as they are in use.
class Probe {
 public:
  Probe(PFN_vkGetInstanceProcAddr gipa, const VkTable& vk, const tandem_vk_device_desc& desc,
        const Caps& caps)
      : gipa_(gipa), vk_(vk), desc_(desc), caps_(caps) {}
  ~Probe();
  // words: one for each shape.
  bool run(Vec<uint32_t>* words);

 private:
  bool make_words(size_t count);
  bool make_pipeline(const MatrixShape& shape, VkPipeline* pipeline);
  bool record(size_t count);

  const PFN_vkGetInstanceProcAddr gipa_;
  const VkTable& vk_;
  const tandem_vk_device_desc& desc_;
  const Caps& caps_;
  bool in_use_ = false;
  VkBuffer buffer_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
  void* mapped_ = nullptr;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  Vec<VkPipeline> pipelines_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer cmd_ = VK_NULL_HANDLE;
  VkFence fence_ = VK_NULL_HANDLE;
};

Probe::~Probe() {
  if (in_use_) return;
  const VkDevice device = desc_.device;
  const VkAllocationCallbacks* allocator = desc_.allocator;
  if (fence_) vk_.vkDestroyFence(device, fence_, allocator);
  if (pool_) vk_.vkDestroyCommandPool(device, pool_, allocator);
  for (VkPipeline pipeline : pipelines_)
    if (pipeline) vk_.vkDestroyPipeline(device, pipeline, allocator);
  if (layout_) vk_.vkDestroyPipelineLayout(device, layout_, allocator);
  if (buffer_) vk_.vkDestroyBuffer(device, buffer_, allocator);
  if (memory_) vk_.vkFreeMemory(device, memory_, allocator);
}

// Zeros that the host reads.
bool Probe::make_words(size_t count) {
  VkBufferCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.size = count * sizeof(uint32_t);
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  if (!made(vk_.vkCreateBuffer(desc_.device, &info, desc_.allocator, &buffer_), &buffer_))
    return false;
  VkMemoryRequirements needs{};
  vk_.vkGetBufferMemoryRequirements(desc_.device, buffer_, &needs);
  const auto properties = reinterpret_cast<PFN_vkGetPhysicalDeviceMemoryProperties>(
      gipa_(desc_.instance, "vkGetPhysicalDeviceMemoryProperties"));
  if (!properties) return false;
  VkPhysicalDeviceMemoryProperties types{};
  properties(desc_.gpu, &types);
  const VkMemoryPropertyFlags wanted =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  uint32_t type = 0;
  while (type < types.memoryTypeCount &&
         !(needs.memoryTypeBits >> type & 1u &&
           (types.memoryTypes[type].propertyFlags & wanted) == wanted))
    ++type;
  if (type == types.memoryTypeCount) return false;
  VkMemoryAllocateFlagsInfo flags{};
  flags.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO;
  flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  VkMemoryAllocateInfo memory{};
  memory.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  memory.pNext = &flags;
  memory.allocationSize = needs.size;
  memory.memoryTypeIndex = type;
  if (!made(vk_.vkAllocateMemory(desc_.device, &memory, desc_.allocator, &memory_), &memory_) ||
      vk_.vkBindBufferMemory(desc_.device, buffer_, memory_, 0) != VK_SUCCESS ||
      vk_.vkMapMemory(desc_.device, memory_, 0, VK_WHOLE_SIZE, 0, &mapped_) != VK_SUCCESS)
    return false;
  std::memset(mapped_, 0, count * sizeof(uint32_t));
  return true;
}

bool Probe::make_pipeline(const MatrixShape& shape, VkPipeline* pipeline) {
  const SpirvModule& code = std::strcmp(shape.operands, "f16") == 0 ? module_matrix_places_f16
                                                                    : module_matrix_places_bf16;
  VkShaderModuleCreateInfo words{};
  words.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  const Vec<uint32_t> unpacked = words_of(code);
  if (unpacked.empty()) return false;
  words.codeSize = unpacked.size() * 4;
  words.pCode = unpacked.data();
  VkShaderModule module = VK_NULL_HANDLE;
  if (!made(vk_.vkCreateShaderModule(desc_.device, &words, desc_.allocator, &module), &module))
    return false;
  const uint32_t values[] = {matrix_subgroup(caps_), uint32_t(shape.m), uint32_t(shape.n)};
  VkSpecializationMapEntry entries[3];
  for (uint32_t n = 0; n < 3; ++n) entries[n] = {n, n * 4, 4};
  const VkSpecializationInfo constants{3, entries, sizeof(values), values};
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{};
  subgroup.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
  subgroup.requiredSubgroupSize = values[0];
  VkComputePipelineCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  if (caps_.subgroup_pin) info.stage.pNext = &subgroup;
  info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = module;
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = &constants;
  info.layout = layout_;
  const VkResult result = vk_.vkCreateComputePipelines(desc_.device, VK_NULL_HANDLE, 1, &info,
                                                       desc_.allocator, pipeline);
  vk_.vkDestroyShaderModule(desc_.device, module, desc_.allocator);
  return made(result, pipeline);
}

bool Probe::record(size_t count) {
  VkCommandPoolCreateInfo pool{};
  pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  pool.queueFamilyIndex = desc_.queue_family;
  if (!made(vk_.vkCreateCommandPool(desc_.device, &pool, desc_.allocator, &pool_), &pool_))
    return false;
  VkCommandBufferAllocateInfo buffers{};
  buffers.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  buffers.commandPool = pool_;
  buffers.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  buffers.commandBufferCount = 1;
  VkCommandBufferBeginInfo begin{};
  begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  if (vk_.vkAllocateCommandBuffers(desc_.device, &buffers, &cmd_) != VK_SUCCESS ||
      vk_.vkBeginCommandBuffer(cmd_, &begin) != VK_SUCCESS)
    return false;
  VkBufferDeviceAddressInfo at{};
  at.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
  at.buffer = buffer_;
  const VkDeviceAddress first = vk_.vkGetBufferDeviceAddress(desc_.device, &at);
  for (size_t n = 0; n < count; ++n) {
    if (!pipelines_[n]) continue;
    const VkDeviceAddress word = first + n * sizeof(uint32_t);
    vk_.vkCmdBindPipeline(cmd_, VK_PIPELINE_BIND_POINT_COMPUTE, pipelines_[n]);
    vk_.vkCmdPushConstants(cmd_, layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(word), &word);
    vk_.vkCmdDispatch(cmd_, 1, 1, 1);
  }
  VkMemoryBarrier barrier{};
  barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_HOST_READ_BIT;
  vk_.vkCmdPipelineBarrier(cmd_, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT,
                           0, 1, &barrier, 0, nullptr, 0, nullptr);
  return vk_.vkEndCommandBuffer(cmd_) == VK_SUCCESS;
}

bool Probe::run(Vec<uint32_t>* words) {
  const size_t count = caps_.matrices.size();
  VkPushConstantRange push{VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(VkDeviceAddress)};
  VkPipelineLayoutCreateInfo layout{};
  layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  layout.pushConstantRangeCount = 1;
  layout.pPushConstantRanges = &push;
  VkFenceCreateInfo fence{};
  fence.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
  if (!make_words(count) ||
      !made(vk_.vkCreatePipelineLayout(desc_.device, &layout, desc_.allocator, &layout_),
            &layout_) ||
      !made(vk_.vkCreateFence(desc_.device, &fence, desc_.allocator, &fence_), &fence_))
    return false;
  pipelines_.resize(count, VK_NULL_HANDLE);
  for (size_t n = 0; n < count; ++n) {
    const MatrixShape& shape = caps_.matrices[n];
    if (may_copy(caps_, shape) && !make_pipeline(shape, &pipelines_[n])) return false;
  }
  VkSubmitInfo submit{};
  submit.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  submit.commandBufferCount = 1;
  submit.pCommandBuffers = &cmd_;
  if (!record(count) || vk_.vkQueueSubmit(desc_.queue, 1, &submit, fence_) != VK_SUCCESS)
    return false;
  const VkResult waited = vk_.vkWaitForFences(desc_.device, 1, &fence_, VK_TRUE, kWait);
  in_use_ = waited != VK_SUCCESS && waited != VK_ERROR_DEVICE_LOST;
  if (waited != VK_SUCCESS) return false;
  words->resize(count, 0);
  std::memcpy(words->data(), mapped_, count * sizeof(uint32_t));
  return true;
}

}  // namespace

void probe_matrix_copies(PFN_vkGetInstanceProcAddr gipa, const VkTable& vk,
                         const tandem_vk_device_desc& desc, Caps* caps) {
  bool any = false;
#define TANDEM_PROBED(name) \
  if (!vk.vk##name) return;
  TANDEM_VK_PROBED(TANDEM_PROBED)
#undef TANDEM_PROBED
  for (const MatrixShape& shape : caps->matrices) any = any || may_copy(*caps, shape);
  if (!any) return;
  Vec<uint32_t> words;
  Probe probe(gipa, vk, desc, *caps);
  if (!probe.run(&words)) return;
  for (size_t n = 0; n < words.size(); ++n) caps->matrices[n].copies = words[n] == kSame;
}

}  // namespace tandem
