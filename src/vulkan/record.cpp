// SPDX-License-Identifier: MIT OR Apache-2.0
// Records a program into the caller's command buffer. Allocates nothing, keeps nothing.
#include <cstring>

#include "device.h"

namespace tandem {

Push make_push(Stem stem, const Plan& plan, const Addresses& a) {
  Push push{};
  auto set = [&push](const auto& data) {
    static_assert(sizeof(data) <= sizeof(push.data), "params.h says so");
    std::memcpy(push.data, &data, sizeof(data));
    push.bytes = uint32_t(sizeof(data));
    return data.wide;
  };
  const Problem& p = plan.problem;
  const bool whole = p.head_dim % 4 == 0 && p.head_dim_v % 4 == 0;
  // Tensors in the order of the interface files. One that is not accessed does not count.
  uint32_t all = 0, wide = 0;
  switch (stem) {
    case Stem::fwd:
      wide = set(fwd_push(plan, a));
      all = 0xf;
      break;
    case Stem::bwd_dot:
      set(bwd_dot_push(plan, a));  // looks at the bits itself: has one pipeline
      return push;
    case Stem::bwd_dkv:
      wide = set(bwd_dkv_push(plan, a));
      all = 0xb;                                      // q, k, d_o
      if (p.wants(TANDEM_GRAD_K)) all |= 0x4 | 0x10;  // v, d_k
      if (p.wants(TANDEM_GRAD_V)) all |= 0x20;
      break;
    case Stem::bwd_dq:
      wide = set(bwd_dq_push(plan, a));
      all = 0x1f;
      break;
  }
  push.all_wide = whole && (wide & all) == all;
  return push;
}

VulkanProgram::~VulkanProgram() {
  if (pool_) device_.vk().vkDestroyDescriptorPool(device_.handle(), pool_, nullptr);
}

Status VulkanProgram::record(tandem_stream stream, const tandem_args& args) const {
  const VkTable& vk = device_.vk();
  const auto cmd = reinterpret_cast<VkCommandBuffer>(uintptr_t(stream.handle));
  if (!cmd) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "stream is not a VkCommandBuffer but 0");

  Addresses a{};
  const uint64_t element = uint64_t(plan_.problem.element_size());
  const struct {
    const char* name;
    const tandem_buffer& buffer;
    uint64_t& address;
    uint64_t alignment;
  } tensors[] = {
      {"q", args.q, a.q, element},       {"k", args.k, a.k, element},
      {"v", args.v, a.v, element},       {"o", args.o, a.o, element},
      {"lse", args.lse, a.lse, 4},       {"d_o", args.d_o, a.d_o, element},
      {"d_q", args.d_q, a.d_q, element}, {"d_k", args.d_k, a.d_k, element},
      {"d_v", args.d_v, a.d_v, element}, {"workspace", args.workspace, a.delta, 4},
  };
  for (const auto& t : tensors) {
    t.address = t.buffer.offset;
    if (t.buffer.handle) {
      VkBufferDeviceAddressInfo info{};
      info.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
      info.buffer = (VkBuffer)t.buffer.handle;  // a pointer or a number, by platform
      const VkDeviceAddress base = vk.vkGetBufferDeviceAddress(device_.handle(), &info);
      if (!base)
        return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                    "args.%s is a buffer without VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT",
                    t.name);
      t.address += base;
    }
    if (t.address % t.alignment != 0)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                  "args.%s lies at device address 0x%llx, not a multiple of %llu", t.name,
                  (unsigned long long)t.address, (unsigned long long)t.alignment);
  }
  if (a.delta) a.delta += plan_.delta_offset;

  const Dispatch* before = nullptr;
  for (const Dispatch& d : dispatches_) {
    // bwd_dot's delta is the only thing that a later kernel reads; the other two run side by side.
    if (before && before->stem == Stem::bwd_dot) {
      VkMemoryBarrier barrier{};
      barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
      barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
      barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT;
      vk.vkCmdPipelineBarrier(cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                              VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &barrier, 0, nullptr, 0,
                              nullptr);
    }
    const Push push = make_push(d.stem, plan_, a);
    const VkPipelineLayout layout = device_.layout(d.stem).pipeline;
    vk.vkCmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, push.all_wide ? d.wide : d.any);
    vk.vkCmdBindDescriptorSets(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &d.set, 0,
                               nullptr);
    vk.vkCmdPushConstants(cmd, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push.bytes, push.data);
    vk.vkCmdDispatch(cmd, d.groups_x, d.groups_y, 1);
    before = &d;
  }
  return Status();
}

}  // namespace tandem
