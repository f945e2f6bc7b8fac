// SPDX-License-Identifier: MIT OR Apache-2.0
// Records a program into the caller's command buffer. Allocates nothing, keeps nothing.
#include <cstring>

#include "device.h"

namespace tandem {

Push make_push(const Plan& plan, const Launch& launch, const Addresses& a) {
  Push push{};
  auto set = [&push](const auto& data) {
    static_assert(sizeof(data) <= sizeof(push.data), "params.h says so");
    std::memcpy(push.data, &data, sizeof(data));
    push.bytes = uint32_t(sizeof(data));
    return data;
  };
  const Problem& p = plan.problem;
  // Tensors in the order of the interface files. One that is not accessed does not count.
  uint32_t all = 0, wide = 0;
  switch (launch.stem) {
    case Stem::fwd:
      wide = set(fwd_push(plan, launch, a)).wide;
      all = 0xf;
      break;
    case Stem::bwd_row:
      wide = set(bwd_row_push(plan, launch, a)).wide;
      all = 0xf;
      break;
    case Stem::bwd_dkv:
      wide = set(bwd_dkv_push(plan, launch, a)).wide;
      all = 0xb;                                      // q, k, d_o
      if (p.wants(TANDEM_GRAD_K)) all |= 0x4 | 0x10;  // v, d_k
      if (p.wants(TANDEM_GRAD_V)) all |= 0x20;
      break;
    case Stem::bwd_dq:
      wide = set(bwd_dq_push(plan, launch, a)).wide;
      all = 0x1f;
      break;
    case Stem::bwd_dbias:
      wide = set(bwd_dbias_push(plan, launch, a)).wide;
      all = 0xf;
      break;
    case Stem::bwd_ddist:
      wide = set(bwd_ddist_push(plan, launch, a)).wide;
      all = 0xf;
      break;
    case Stem::
        fwd_join:  // this one and the next look at the bits themselves: they have one pipeline
      return set(fwd_join_push(plan, launch, a)), push;
    case Stem::bwd_dot:
      return set(bwd_dot_push(plan, launch, a)), push;
    case Stem::bwd_sum:
      return set(bwd_sum_push(plan, launch, a)), push;
    case Stem::bwd_head:
      return set(bwd_head_push(plan, launch, a)), push;
  }
  const int n = launch.matrix > 0 ? 8 : 4;
  push.all_wide = p.head_dim % n == 0 && p.head_dim_v % n == 0 && (wide & all) == all;
  return push;
}

VulkanProgram::~VulkanProgram() {
  if (pool_) device_.vk().vkDestroyDescriptorPool(device_.handle(), pool_, nullptr);
}

Status VulkanProgram::record(tandem_stream stream, const tandem_args& args) const {
  const VkTable& vk = device_.vk();
  const auto cmd = reinterpret_cast<VkCommandBuffer>(uintptr_t(stream.handle));
  if (!cmd) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "stream is not a VkCommandBuffer but 0");

  Addresses a;
  TANDEM_TRY(resolve_args(
      plan_, args,
      [&](const ArgUse& use, const tandem_buffer& buffer, uint64_t* address) -> Status {
        *address = buffer.offset;
        if (buffer.handle) {
          VkBufferDeviceAddressInfo info{};
          info.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
          info.buffer = (VkBuffer)buffer.handle;  // a pointer or a number, by platform
          const VkDeviceAddress base = vk.vkGetBufferDeviceAddress(device_.handle(), &info);
          if (!base)
            return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                        "args.%s is a buffer without VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT",
                        use.name);
          *address += base;
        }
        // The workspace's alignment is that of its offset in a buffer; kernels need that of f32, of four where
        // there are parts of o.
        const uint64_t own = plan_.find(Stem::fwd_join) ? 16 : 4;
        const uint64_t alignment = use.alignment == kWorkspaceAlignment ? own : use.alignment;
        if (*address % alignment != 0)
          return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                      "args.%s lies at device address 0x%llx, not a multiple of %llu", use.name,
                      (unsigned long long)*address, (unsigned long long)alignment);
        return Status();
      },
      &a));

  for (const Dispatch& d : dispatches_) {
    if (d.launch->waits) {
      VkMemoryBarrier barrier{};
      barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
      barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
      barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT;
      vk.vkCmdPipelineBarrier(cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                              VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &barrier, 0, nullptr, 0,
                              nullptr);
    }
    const Push push = make_push(plan_, *d.launch, a);
    const VkPipelineLayout layout = device_.layout(d.launch->stem).pipeline;
    vk.vkCmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, push.all_wide ? d.wide : d.any);
    vk.vkCmdBindDescriptorSets(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &d.set, 0,
                               nullptr);
    vk.vkCmdPushConstants(cmd, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push.bytes, push.data);
    vk.vkCmdDispatch(cmd, d.launch->groups_x, d.launch->groups_y, 1);
  }
  return Status();
}

}  // namespace tandem
