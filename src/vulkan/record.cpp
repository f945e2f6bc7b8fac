// SPDX-License-Identifier: MIT OR Apache-2.0
// Records a program into the caller's command buffer. Allocates nothing and keeps nothing.
#include <cstring>

#include "device.h"

namespace tandem {

Push make_push(const Plan& plan, const Launch& launch, const Addresses& a) {
  Push push{};
  switch (launch.stem) {
#define TANDEM_STEM(Name, name)                                                    \
  case Stem::name: {                                                               \
    const Name##Push data = name##_push_and_wide(plan, launch, a, &push.all_wide); \
    std::memcpy(push.data, &data, sizeof(data));                                   \
    push.bytes = uint32_t(sizeof(data));                                           \
    break;                                                                         \
  }
#define TANDEM_FUSED(Name, name) \
  case Stem::name:               \
    break;
#include "kernels/stems.inc"
  }
  // Other kernels have one pipeline; bwd_dot tests the bits itself.
  if (!is_tiled(launch.stem)) push.all_wide = false;
  return push;
}

VulkanProgram::~VulkanProgram() {
  if (pool_) device_.vk().vkDestroyDescriptorPool(device_.handle(), pool_, device_.allocator());
}

Status VulkanProgram::record(tandem_stream stream, const tandem_args& args, const Timestamps* times,
                             const Slice* slice) const {
  const VkTable& vk = device_.vk();
  const auto cmd = reinterpret_cast<VkCommandBuffer>(uintptr_t(stream.handle));
  if (!cmd) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "stream is not a VkCommandBuffer but 0");

  Addresses a;
  TANDEM_TRY(resolve_args(
      plan_, uses_, args,
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
        if (*address % use.alignment != 0)
          return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                      "args.%s lies at device address 0x%llx, not a multiple of %llu", use.name,
                      (unsigned long long)*address, (unsigned long long)use.alignment);
        return Status();
      },
      &a));
  TANDEM_TRY(overlap_.check([&](const OverlapCheck::Arg& arg) { return a.*arg.address; }));

  // Before anything is recorded.
  for (const Dispatch& d : dispatches_)
    if (!d.launch->joins() && !d.any && !make_push(plan_, *d.launch, a).all_wide)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                  "an address that %s takes is no multiple of 16, and this device does without "
                  "kernels for it: '%s' is disabled",
                  stem_name(d.launch->stem), kUnalignedWord);

  // A timestamp at the end of the pipe, after all that was recorded before.
  const auto stamp = [&](size_t n) {
    if (times)
      vk.vkCmdWriteTimestamp(cmd, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, times->pool,
                             times->first + uint32_t(n));
  };
  const DebugUtils::Label whole(device_.debug(), cmd, label_.c_str());
  stamp(0);
  // A slice waits for those before it.
  bool waits = slice && slice->number > 0;
  for (const Dispatch& d : dispatches_) {
    Slicing::Range range;
    if (slice && !slice->range(size_t(&d - dispatches_.data()), &range)) continue;
    if (d.launch->joins()) {  // the previous dispatch has done its work
      if (d.stamp) stamp(d.stamp);
      continue;
    }
    const DebugUtils::Label label(device_.debug(), cmd, stem_name(d.launch->stem));
    if (d.launch->waits || waits) {
      waits = false;
      VkMemoryBarrier barrier{};
      barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
      barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
      barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
      vk.vkCmdPipelineBarrier(cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                              VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &barrier, 0, nullptr, 0,
                              nullptr);
    }
    const Push push = make_push(plan_, *d.launch, a);
    vk.vkCmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, push.all_wide ? d.wide : d.any);
    vk.vkCmdBindDescriptorSets(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, d.layout, 0, 1, &d.set, 0,
                               nullptr);
    vk.vkCmdPushConstants(cmd, d.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push.bytes, push.data);
    if (!slice || range.whole)
      vk.vkCmdDispatch(cmd, d.launch->groups_x, d.launch->groups_y, 1);
    else
      for_each_dispatch(*d.launch, range.from, range.to, [&](const BaseDispatch& part) {
        vk.vkCmdDispatchBase(cmd, part.base_x, part.base_y, 0, part.width, 1, 1);
      });
    if (d.stamp) stamp(d.stamp);
  }
  return Status();
}

}  // namespace tandem

extern "C" tandem_status tandem_vk_execute_timed(const tandem_plan* plan, VkCommandBuffer cmd,
                                                 const tandem_args* args, VkQueryPool pool,
                                                 uint32_t first_query) {
  using namespace tandem;
  struct Call {
    VkCommandBuffer cmd;
    VulkanProgram::Timestamps times;
  } const call{cmd, {pool, first_query}};
  constexpr Backend backend = Backend::vulkan;
  return execute(
      plan, &backend, args,
      [](const Plan&, const Program& program, const tandem_args& a, const void* context) {
        const Call& c = *static_cast<const Call*>(context);
        if (!c.times.pool) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "pool is VK_NULL_HANDLE");
        return static_cast<const VulkanProgram&>(program).record(tandem_vk_stream(c.cmd), a,
                                                                 &c.times, nullptr);
      },
      &call);
}
