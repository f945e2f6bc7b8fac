// SPDX-License-Identifier: MIT OR Apache-2.0
// The Vulkan device: borrows a VkDevice and keeps pipelines. device.cpp opens it, pipelines.cpp
// builds programs, record.cpp records them.
#ifndef TANDEM_SRC_VULKAN_DEVICE_H
#define TANDEM_SRC_VULKAN_DEVICE_H
#include <condition_variable>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "api/device.h"
#include "debug.h"
#include "kernels/overlap.h"
#include "kernels/params.h"
#include "vk.h"

namespace tandem {

struct SpirvModule;

constexpr const char* kInlineUniformExtension = VK_EXT_INLINE_UNIFORM_BLOCK_EXTENSION_NAME;
constexpr const char* kSubgroupSizeExtension = VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME;

// What all pipelines of a stem share.
struct StemLayout {
  VkDescriptorSetLayout set = VK_NULL_HANDLE;
  VkPipelineLayout pipeline = VK_NULL_HANDLE;
};

class VulkanDevice final : public Device {
 public:
  static Status open(const DeviceOptions& options, const tandem_vk_device_desc& desc,
                     std::unique_ptr<Device>* device);
  ~VulkanDevice() override;
  Status build(const Plan& plan, std::unique_ptr<Program>* program) override;
  uint64_t code_hash() const override;
  Status cache_get(Vec<uint8_t>* body) override;
  Status cache_set(const uint8_t* body, size_t size) override;

  const VkTable& vk() const { return vk_; }
  VkDevice handle() const { return device_; }
  const StemLayout& layout(Stem stem) const { return layouts_[int(stem)]; }
  const DebugUtils& debug() const { return debug_; }
  // The application's, for everything that is created and destroyed.
  const VkAllocationCallbacks* allocator() const { return own_allocator_ ? &allocator_ : nullptr; }

 private:
  Status make_layouts();
  Status make_cache();
  // A pipeline that a program needs: of one of the plan's launches, with these specialisation
  // constants.
  struct Wanted {
    const Launch* launch;
    bool wide;  // for wide tensors alone
    String spec;
    VkPipeline pipeline = VK_NULL_HANDLE;
    // Of one that was made and not found: host microseconds, and words of its SPIR-V of all.
    uint64_t us = 0;
    size_t words = 0, words_before = 0;
  };
  // Makes them side by side, each once for all plans.
  Status pipelines(const Plan& plan, Vec<Wanted>* wanted);
  Status pipeline(const Plan& plan, Wanted* wanted);
  Status compile(const Plan& plan, Wanted* wanted, VkPipeline* pipeline);

  VkDevice device_ = VK_NULL_HANDLE;
  VkTable vk_{};
  VkAllocationCallbacks allocator_{};
  bool own_allocator_ = false;
  DebugUtils debug_;
  uint8_t cache_uuid_[VK_UUID_SIZE] = {};
  VkPipelineCache cache_ = VK_NULL_HANDLE;
  bool own_cache_ = false;
  unsigned threads_ = 1;    // that make the pipelines of a plan
  bool specialise_ = true;  // before the driver does (specialise.h)
  bool unaligned_ = true;   // false: kUnalignedWord
  StemLayout layouts_[kStemCount];
  // The words of a module, which are unpacked once. Null: the library's file is damaged.
  using Words = std::shared_ptr<const Vec<uint32_t>>;
  Words unpacked(const SpirvModule& module);
  Map<const SpirvModule*, Words> modules_;
  std::mutex mutex_;  // of pipelines_ and modules_
  // Of cache_: pipelines are made side by side, but a merge has it for itself, as Vulkan requires.
  std::shared_mutex cache_mutex_;
  // By registry row and constants. Null: a thread compiles it, and wakes those that wait.
  Map<std::pair<int, String>, VkPipeline> pipelines_;
  std::condition_variable compiled_;
};

// The push block of a launch, and whether the pipeline for wide tensors may be used.
struct Push {
  alignas(8) unsigned char data[128];
  uint32_t bytes;
  bool all_wide;
};
Push make_push(const Plan& plan, const Launch& launch, const Addresses& addresses);

// A launch that has been prepared. Whether tensors allow 4-element accesses depends on addresses,
// which only record() has. So there is a pipeline for any tensors, and one for wide tensors if the
// strides allow it.
struct Dispatch {
  const Launch* launch;  // of a piece of the program
  size_t stamp;          // Piece
  VkPipeline any, wide;  // any: null where a device does without, kUnalignedWord
  VkPipelineLayout layout;
  VkDescriptorSet set;
};

class VulkanProgram final : public Program {
 public:
  VulkanProgram(const VulkanDevice& device, const Plan& plan) : device_(device), plan_(plan) {}
  ~VulkanProgram() override;
  Status record(tandem_stream stream, const tandem_args& args) const override {
    return record(stream, args, nullptr, nullptr);
  }
  Status record_slice(tandem_stream stream, const tandem_args& args,
                      const Slice& slice) const override {
    return record(stream, args, nullptr, &slice);
  }
  // Writes a timestamp before the first kernel and one behind each.
  struct Timestamps {
    VkQueryPool pool;
    uint32_t first;
  };
  // slice: what is recorded of it; nullptr: all.
  Status record(tandem_stream stream, const tandem_args& args, const Timestamps* times,
                const Slice* slice) const;

 private:
  friend class VulkanDevice;
  const VulkanDevice& device_;
  const Plan plan_;
  Vec<Piece> pieces_;
  VkDescriptorPool pool_ = VK_NULL_HANDLE;
  Vec<Dispatch> dispatches_;
  const OverlapCheck overlap_{plan_};
  Vec<ArgUse> uses_;  // buffers that it accesses, with the alignment that their addresses need
  String label_;      // label of an execute
};

}  // namespace tandem
#endif
