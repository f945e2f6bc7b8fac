// SPDX-License-Identifier: MIT OR Apache-2.0
// From a plan to pipelines: SPIR-V, specialisation constants, layouts, the pipeline cache.
#include <chrono>
#include <cstring>

#include "base/structs.h"
#include "device.h"
#include "entry.h"
#include "kernels/kernel_rows.h"
#include "modules.h"
#include "shaders/spec_ids.h"
#include "specialise.h"
#include "workers.h"

namespace tandem {
namespace {

// Calls each(entry) for the constants of a stem.
#define TANDEM_INTERFACE(Name) \
  constexpr auto for_each_constant_##Name = []([[maybe_unused]] auto&& each) { \
    using Spec [[maybe_unused]] = Name##Spec;
#define TANDEM_SPEC(name, fallback) \
  each(VkSpecializationMapEntry{TANDEM_ID_##name, uint32_t(offsetof(Spec, name)), 4});
#include "kernels/abi/all.inc"

// A C++ block has the layout of std140 in GLSL, and a C++ push block that of std430: strides of 32
// bytes at multiples of 16, addresses of 8 bytes at multiples of 8, in arrays too, scalars of 4
// bytes.
static_assert(sizeof(Strides) == 32);
#define TANDEM_INTERFACE(Name) \
  struct Name##Layout {        \
    using Block = Name##Block; \
    using Push = Name##Push;
#define TANDEM_STRIDES(name) static_assert(offsetof(Block, name) % 16 == 0, #name);
#define TANDEM_PARAM(type, name) static_assert(sizeof(type) == 4, #name);
#define TANDEM_ADDRESS(name) static_assert(offsetof(Push, name) % 8 == 0, #name);
#define TANDEM_ADDRESSES(name, count) static_assert(offsetof(Push, name) % 8 == 0, #name);
#define TANDEM_PUSH(type, name) static_assert(sizeof(type) == 4, #name);
#include "kernels/abi/all.inc"
#define TANDEM_STRIDES(name) static_assert(offsetof(ExtraBlock, name) % 16 == 0, #name);
#define TANDEM_PARAM(type, name) static_assert(sizeof(type) == 4, #name);
#include "kernels/abi/extra.inc"

// Fixed, so that static arrays suffice, which need no device's memory.
constexpr size_t kMaxConstants = 64;
struct StemCode {
  VkSpecializationMapEntry entries[kMaxConstants] = {};
  uint32_t entry_count = 0;
  size_t block_bytes = 0, push_bytes = 0;
};

const StemCode& stem_code(Stem stem) {
  switch (stem) {
#define TANDEM_STEM(Name, name)                                                        \
  case Stem::name: {                                                                   \
    static_assert(sizeof(Name##Spec) <= 4 * kMaxConstants, #name);                     \
    static const StemCode code = [] {                                                  \
      StemCode c{{}, 0, sizeof(Name##Block), sizeof(Name##Push)};                      \
      for_each_constant_##Name(                                                        \
          [&](const VkSpecializationMapEntry& e) { c.entries[c.entry_count++] = e; }); \
      return c;                                                                        \
    }();                                                                               \
    return code;                                                                       \
  }
#define TANDEM_FUSED(Name, name) \
  case Stem::name:               \
    break;
#include "kernels/stems.inc"
  }
  static const StemCode none;
  return none;
}

// Module of a launch: that of its path and element type, or the one for all paths.
const SpirvModule* find_module(const Plan& plan, const Launch& launch) {
  const String name = module_name(plan, launch);
  for (const SpirvModule* module : kModules)
    if (name == module->name) return module;
  return nullptr;
}

template <typename Struct>
String bytes_of(const Struct& s) {
  return String(reinterpret_cast<const char*>(&s), sizeof(s));
}

template <typename Spec>
auto set_wide(Spec* spec, uint32_t wide, int) -> decltype(spec->WIDE, void()) {
  spec->WIDE = wide;
}
template <typename Spec>
void set_wide(Spec*, uint32_t, long) {}  // not a tiled kernel

// WIDE; 2: a width is not that of the matrices' operands that cover it.
uint32_t wide_code(const Problem& p, const Launch& l) {
  const MatrixLaunch* own = l.as<MatrixLaunch>();
  return own && (p.head_dim != int64_t(l.d_blocks) * own->matrix.k ||
                 p.head_dim_v != int64_t(l.dv_blocks) * own->matrix.k)
             ? 2
             : 1;
}

String spec_bytes(const Plan& plan, const Launch& launch, bool wide) {
  switch (launch.stem) {
#define TANDEM_STEM(Name, name)                                     \
  case Stem::name: {                                                \
    Name##Spec spec = name##_spec(plan, launch);                    \
    set_wide(&spec, wide ? wide_code(plan.problem, launch) : 0, 0); \
    return bytes_of(spec);                                          \
  }
#define TANDEM_FUSED(Name, name) \
  case Stem::name:               \
    break;
#include "kernels/stems.inc"
  }
  return "";
}

String block_bytes(const Plan& plan, const Launch& launch) {
  String block;
  switch (launch.stem) {
#define TANDEM_STEM(Name, name)                   \
  case Stem::name:                                \
    block = bytes_of(name##_block(plan, launch)); \
    break;
#define TANDEM_FUSED(Name, name) \
  case Stem::name:               \
    break;
#include "kernels/stems.inc"
  }
  block.resize(round16(block.size()));
  return block;
}

String extra_bytes(const Plan& plan) {
  String block = bytes_of(extra_block(plan.problem));
  block.resize(round16(block.size()));
  return block;
}

}  // namespace

Status VulkanDevice::make_layouts() {
  for (int i = 0; i < kStemCount; ++i) {
    const StemCode& code = stem_code(Stem(i));
    if (code.block_bytes == 0) continue;  // CUDA has it, Vulkan does not
    // Kernels with optional inputs have the parameters of these in a second block. Every device has
    // room for four blocks of 256 bytes; what they may have together it says, and open() has asked.
    VkDescriptorSetLayoutBinding bindings[2] = {};
    for (uint32_t n = 0; n < 2; ++n) {
      bindings[n].binding = n;
      bindings[n].descriptorType = VK_DESCRIPTOR_TYPE_INLINE_UNIFORM_BLOCK;
      bindings[n].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
    }
    bindings[0].descriptorCount = round16(code.block_bytes);  // bytes
    bindings[1].descriptorCount = round16(sizeof(ExtraBlock));
    VkDescriptorSetLayoutCreateInfo set{};
    set.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
    set.bindingCount = has_extra(Stem(i)) ? 2 : 1;
    set.pBindings = bindings;
    // A failed call may leave any value in its result, so results go into a local first.
    VkDescriptorSetLayout set_layout = VK_NULL_HANDLE;
    TANDEM_VK_TRY(vk_.vkCreateDescriptorSetLayout(device_, &set, allocator(), &set_layout),
                  "vkCreateDescriptorSetLayout");
    layouts_[i].set = set_layout;
    const String name = debug_.on() ? text("tandem %s", stem_name(Stem(i))) : "";
    debug_.name(VK_OBJECT_TYPE_DESCRIPTOR_SET_LAYOUT, set_layout, name.c_str());
    VkPushConstantRange push{VK_SHADER_STAGE_COMPUTE_BIT, 0, uint32_t(code.push_bytes)};
    VkPipelineLayoutCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    info.setLayoutCount = 1;
    info.pSetLayouts = &layouts_[i].set;
    info.pushConstantRangeCount = 1;
    info.pPushConstantRanges = &push;
    VkPipelineLayout layout = VK_NULL_HANDLE;
    TANDEM_VK_TRY(vk_.vkCreatePipelineLayout(device_, &info, allocator(), &layout),
                  "vkCreatePipelineLayout");
    layouts_[i].pipeline = layout;
    debug_.name(VK_OBJECT_TYPE_PIPELINE_LAYOUT, layout, name.c_str());
  }
  return Status();
}

Status VulkanDevice::make_cache() {
  VkPipelineCacheCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
  VkPipelineCache cache = VK_NULL_HANDLE;
  TANDEM_VK_TRY(vk_.vkCreatePipelineCache(device_, &info, allocator(), &cache),
                "vkCreatePipelineCache");
  cache_ = cache;
  own_cache_ = true;
  debug_.name(VK_OBJECT_TYPE_PIPELINE_CACHE, cache, "tandem");
  return Status();
}

VulkanDevice::~VulkanDevice() {
  for (const auto& p : pipelines_) vk_.vkDestroyPipeline(device_, p.second, allocator());
  for (const StemLayout& l : layouts_) {
    if (l.pipeline) vk_.vkDestroyPipelineLayout(device_, l.pipeline, allocator());
    if (l.set) vk_.vkDestroyDescriptorSetLayout(device_, l.set, allocator());
  }
  if (own_cache_) vk_.vkDestroyPipelineCache(device_, cache_, allocator());
}

namespace {
Status no_pipeline(VkResult result, const String& what, const String& path) {
  // A device that is out of memory or lost is so on every path.
  const Status status = vk_status(result, what.c_str());
  if (!status.ok() && status.code() != TANDEM_ERROR_BACKEND) return status;
  return fail(TANDEM_ERROR_BACKEND,
              "%s, although the driver states all that this path asks for; to do without the path, "
              "add %s to tandem_device_options.disable or to TANDEM_DISABLE",
              status.ok() ? (what + " returned no pipeline").c_str() : status.message().c_str(),
              path.c_str());
}
}  // namespace

VulkanDevice::Words VulkanDevice::unpacked(const SpirvModule& module) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = modules_.find(&module);
    if (found != modules_.end()) return found->second;
  }
  // Without the lock: threads make pipelines side by side. Two that want one module at a time, as
  // for wide and other loads, both unpack it, which takes neither of them longer.
  const Words words = make_host_shared<const Vec<uint32_t>>(words_of(module));
  if (words->empty()) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  return modules_.emplace(&module, words).first->second;
}

Status VulkanDevice::compile(const Plan& plan, Wanted* wanted, VkPipeline* pipeline) {
  const Launch& launch = *wanted->launch;
  const StemCode& code = stem_code(launch.stem);
  const SpirvModule* spirv = find_module(plan, launch);
  if (!spirv)
    return fail(TANDEM_ERROR_BACKEND, "no module of %s for %s.%s", stem_name(launch.stem),
                backend_name(plan.backend), plan.path);
  const String path = text("%s.%s", backend_name(plan.backend), plan.path);
  const String name =
      debug_.on() ? text("tandem %s %s %s", path.c_str(), stem_name(launch.stem), launch.tile.name)
                  : "";
  const Words whole = unpacked(*spirv);
  if (!whole)
    return fail(TANDEM_ERROR_BACKEND, "the module %s of this library's file is damaged",
                spirv->name);
  wanted->words = wanted->words_before = whole->size();
  Vec<uint32_t> words;
  if (specialise_) {
    SpecValue values[kMaxConstants];
    for (uint32_t n = 0; n < code.entry_count; ++n) {
      values[n].id = code.entries[n].constantID;
      std::memcpy(&values[n].word, wanted->spec.data() + code.entries[n].offset, 4);
    }
    if (!specialise(whole->data(), whole->size(), values, code.entry_count, &words))
      return fail(TANDEM_ERROR_BACKEND, "the module %s cannot be specialised", spirv->name);
    wanted->words = words.size();
  } else {
    words = *whole;
  }
  // The matrix paths keep what the hardware does: their exponentials would pay for it.
  if (caps().denormals && std::strcmp(plan.path, "scalar") == 0)
    preserve(&words, Preserve::kDenormals);
  // A hidden key's score is minus infinity, and so is the lse of a row without keys.
  if (caps().infinities) preserve(&words, Preserve::kInfinities);
  if (plan.problem.slices) name_slice_entry(&words);
  VkShaderModuleCreateInfo module_info{};
  module_info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  module_info.codeSize = words.size() * 4;
  module_info.pCode = words.data();
  VkShaderModule module = VK_NULL_HANDLE;
  TANDEM_VK_TRY(vk_.vkCreateShaderModule(device_, &module_info, allocator(), &module),
                "vkCreateShaderModule");
  debug_.name(VK_OBJECT_TYPE_SHADER_MODULE, module, name.c_str());

  // A specialised module has none of these constants, so the driver passes them over; layers and
  // captures then still show them.
  VkSpecializationInfo constants{};
  constants.mapEntryCount = code.entry_count;
  constants.pMapEntries = code.entries;
  constants.dataSize = wanted->spec.size();
  constants.pData = wanted->spec.data();
  VkComputePipelineCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = module;
  info.stage.pName = plan.problem.slices ? kSliceEntry : "main";
  info.stage.pSpecializationInfo = &constants;
  // A matrix belongs to a whole subgroup, whose size is one of the shader's constants.
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{};
  subgroup.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
  if (const MatrixLaunch* own = launch.as<MatrixLaunch>()) {
    subgroup.requiredSubgroupSize = own->subgroup;
    if (caps().subgroup_pin) info.stage.pNext = &subgroup;  // else there is but one size
    info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  }
  if (plan.problem.slices) info.flags |= VK_PIPELINE_CREATE_DISPATCH_BASE;
  info.layout = layout(launch.stem).pipeline;
  VkPipeline made = VK_NULL_HANDLE;
  VkResult result;
  {
    const std::shared_lock<std::shared_mutex> lock(cache_mutex_);
    result = vk_.vkCreateComputePipelines(device_, cache_, 1, &info, allocator(), &made);
  }
  vk_.vkDestroyShaderModule(device_, module, allocator());
  // Once there is a pipeline, nothing here may allocate.
  if (result != VK_SUCCESS || made == VK_NULL_HANDLE)
    return no_pipeline(
        result, text("vkCreateComputePipelines of %s for %s", stem_name(launch.stem), path.c_str()),
        path);
  debug_.name(VK_OBJECT_TYPE_PIPELINE, made, name.c_str());
  *pipeline = made;
  return Status();
}

Status VulkanDevice::pipeline(const Plan& plan, Wanted* wanted) {
  // The element type, which chooses a matrix path's module, is one of the constants.
  // Those of plans in slices are others.
  const auto key = std::make_pair(wanted->launch->kernel,
                                  plan.problem.slices ? wanted->spec + "slices" : wanted->spec);
  // Several threads can make plans, and a pipeline takes up to a second to compile. The first to
  // want it inserts a null pipeline, and compiles outside the lock. The others wait for that one.
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const auto inserted = pipelines_.emplace(key, VkPipeline(VK_NULL_HANDLE));
    if (inserted.second) break;
    wanted->pipeline = inserted.first->second;
    if (wanted->pipeline) return Status();
    compiled_.wait(lock);  // its entry is gone where compiling has failed
  }
  lock.unlock();
  const auto start = std::chrono::steady_clock::now();
  const auto finish = [&](VkPipeline made) {
    {
      const std::lock_guard<std::mutex> relock(mutex_);
      if (made)
        pipelines_.find(key)->second = made;
      else
        pipelines_.erase(key);
    }
    compiled_.notify_all();
  };
  Status status;
  try {
    status = compile(plan, wanted, &wanted->pipeline);
  } catch (...) {  // no host memory
    finish(VK_NULL_HANDLE);
    throw;
  }
  finish(status.ok() ? wanted->pipeline : VkPipeline(VK_NULL_HANDLE));
  wanted->us = uint64_t(std::chrono::duration_cast<std::chrono::microseconds>(
                            std::chrono::steady_clock::now() - start)
                            .count());
  return status;
}

Status VulkanDevice::pipelines(const Plan& plan, Vec<Wanted>* wanted) {
  const Status status = run_on_threads(wanted->size(), threads_,
                                       [&](size_t n) { return pipeline(plan, &(*wanted)[n]); });
  const auto tile = [](const Wanted& w) { return w.launch->tile_word(); };
  // Threads of the library's own call nothing of the application's.
  for (const Wanted& w : *wanted)
    if (w.words)
      log_(TANDEM_LOG_DEBUG,
           text("pipeline %s%s%s %s: %llu us, %llu of %llu words", stem_name(w.launch->stem),
                tile(w) ? " " : "", tile(w) ? tile(w) : "", w.wide ? "wide" : "any",
                (unsigned long long)w.us, (unsigned long long)w.words,
                (unsigned long long)w.words_before));
  return status;
}

Status VulkanDevice::build(const Plan& plan, std::unique_ptr<Program>* program) {
  std::unique_ptr<VulkanProgram> made(new VulkanProgram(*this, plan));
  if (debug_.on())
    made->label_ = text("tandem %s %s", plan.problem.backward ? "bwd" : "fwd", plan.name().c_str());
  uint32_t bytes = 0, blocks = 0;
  made->pieces_ = pieces_of(made->plan_);
  // Alignment of the workspace's address, which kernels need. It is that of f32, of two f32 with
  // far rows, and of four with partial outputs, sums of blocks or dS.
  const bool fours = plan.scratch[Scratch::o_parts].present ||
                     plan.scratch[Scratch::bias_sums].present || plan.scratch[Scratch::ds].present;
  for (ArgUse use : arg_uses(made->plan_)) {
    if (!use.needed && !use.optional) continue;
    if (use.alignment == kWorkspaceAlignment)
      use.alignment = fours ? 16 : plan.find(Stem::bwd_origin) || plan.find(Stem::mask_map) ? 8 : 4;
    made->uses_.push_back(use);
  }
  for (const Piece& piece : made->pieces_) {
    const Launch& launch = piece.launch;
    if (launch.joins()) continue;
    bytes += round16(stem_code(launch.stem).block_bytes);
    ++blocks;
    if (!has_extra(launch.stem)) continue;
    bytes += round16(sizeof(ExtraBlock));
    ++blocks;
  }
  if (plan.launches.empty()) {
    *program = std::move(made);
    return Status();
  }

  VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_INLINE_UNIFORM_BLOCK, bytes};
  VkDescriptorPoolInlineUniformBlockCreateInfo bindings{};
  bindings.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_INLINE_UNIFORM_BLOCK_CREATE_INFO;
  bindings.maxInlineUniformBlockBindings = blocks;
  VkDescriptorPoolCreateInfo pool{};
  pool.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO;
  pool.pNext = &bindings;
  pool.maxSets = uint32_t(made->pieces_.size());
  pool.poolSizeCount = 1;
  pool.pPoolSizes = &size;
  VkDescriptorPool made_pool = VK_NULL_HANDLE;
  TANDEM_VK_TRY(vk_.vkCreateDescriptorPool(device_, &pool, allocator(), &made_pool),
                "vkCreateDescriptorPool");
  made->pool_ = made_pool;
  debug_.name(VK_OBJECT_TYPE_DESCRIPTOR_POOL, made_pool, made->label_.c_str());

  // Pieces of a launch have the same pipelines, so each is asked for once.
  Vec<Wanted> wanted;
  struct Pair {
    size_t any, wide;  // numbers in wanted
  };
  constexpr size_t kNone = ~size_t(0);
  Vec<Pair> pairs;
  const auto want = [&](const Launch& launch, bool wide) {
    Wanted w{&launch, wide, spec_bytes(plan, launch, wide)};
    for (size_t n = 0; n < wanted.size(); ++n)
      if (wanted[n].launch->kernel == launch.kernel && wanted[n].spec == w.spec) return n;
    wanted.push_back(std::move(w));
    return wanted.size() - 1;
  };
  for (const Piece& piece : made->pieces_) {
    const Launch& launch = piece.launch;
    Pair pair{kNone, kNone};
    if (!launch.joins()) {
      // An address of 0 has every alignment, so only the strides matter.
      const bool wide = is_tiled(launch.stem) && make_push(plan, launch, Addresses{}).all_wide;
      if (!wide || unaligned_) pair.any = want(launch, false);
      if (wide) pair.wide = want(launch, true);
    }
    pairs.push_back(pair);
  }
  TANDEM_TRY(pipelines(plan, &wanted));

  for (size_t at = 0; at < pairs.size(); ++at) {
    const Piece& piece = made->pieces_[at];
    const Launch& launch = piece.launch;
    Dispatch dispatch{};
    dispatch.launch = &launch;
    dispatch.stamp = piece.stamp;
    dispatch.layout = layout(launch.stem).pipeline;
    if (launch.joins()) {
      made->dispatches_.push_back(dispatch);
      continue;
    }
    if (pairs[at].any != kNone) dispatch.any = wanted[pairs[at].any].pipeline;
    if (pairs[at].wide != kNone)
      dispatch.wide = wanted[pairs[at].wide].pipeline;
    else if (is_tiled(launch.stem))
      log_(TANDEM_LOG_INFO, text("%s goes element by element: a stride or a head size is no "
                                 "multiple of %d, or a feature stride is not 1",
                                 stem_name(launch.stem), launch.wide_elements()));

    VkDescriptorSetAllocateInfo allocate{};
    allocate.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO;
    allocate.descriptorPool = made->pool_;
    allocate.descriptorSetCount = 1;
    allocate.pSetLayouts = &layout(launch.stem).set;
    TANDEM_VK_TRY(vk_.vkAllocateDescriptorSets(device_, &allocate, &dispatch.set),
                  "vkAllocateDescriptorSets");
    debug_.name(VK_OBJECT_TYPE_DESCRIPTOR_SET, dispatch.set, stem_name(launch.stem));
    const String contents[2] = {block_bytes(plan, launch), extra_bytes(plan)};
    VkWriteDescriptorSetInlineUniformBlock data[2] = {};
    VkWriteDescriptorSet writes[2] = {};
    for (uint32_t n = 0; n < 2; ++n) {
      data[n].sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET_INLINE_UNIFORM_BLOCK;
      data[n].dataSize = uint32_t(contents[n].size());
      data[n].pData = contents[n].data();
      writes[n].sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
      writes[n].pNext = &data[n];
      writes[n].dstSet = dispatch.set;
      writes[n].dstBinding = n;
      writes[n].descriptorCount = data[n].dataSize;
      writes[n].descriptorType = VK_DESCRIPTOR_TYPE_INLINE_UNIFORM_BLOCK;
    }
    vk_.vkUpdateDescriptorSets(device_, has_extra(launch.stem) ? 2 : 1, writes, 0, nullptr);
    made->dispatches_.push_back(dispatch);
  }
  *program = std::move(made);
  return Status();
}

uint64_t VulkanDevice::code_hash() const {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const SpirvModule* module : kModules) {
    for (size_t i = 0; module->words && i < module->bytes / 4; ++i)
      hash = (hash ^ module->words[i]) * 0x100000001b3u;
    for (size_t i = 0; i < module->packed_bytes; ++i)
      hash = (hash ^ module->packed[i]) * 0x100000001b3u;
  }
  return hash;
}

Status VulkanDevice::cache_get(Vec<uint8_t>* body) {
  const std::shared_lock<std::shared_mutex> lock(cache_mutex_);
  // A plan that is made meanwhile can make the data grow between the two calls.
  for (;;) {
    size_t size = 0;
    TANDEM_VK_TRY(vk_.vkGetPipelineCacheData(device_, cache_, &size, nullptr),
                  "vkGetPipelineCacheData");
    body->resize(size);
    const VkResult result = vk_.vkGetPipelineCacheData(device_, cache_, &size, body->data());
    if (result == VK_INCOMPLETE) continue;
    if (result != VK_SUCCESS) return vk_status(result, "vkGetPipelineCacheData");
    body->resize(size);
    return Status();
  }
}

Status VulkanDevice::cache_set(const uint8_t* body, size_t size) {
  if (!own_cache_)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "this device uses the VkPipelineCache that it was created with: give that one its "
                "data yourself");
  // The header is checked here too, as some drivers accept data that they should refuse.
  VkPipelineCacheHeaderVersionOne header;
  if (size < sizeof(header))
    return fail(TANDEM_ERROR_CACHE, "pipeline cache data of %zu bytes is shorter than its header",
                size);
  std::memcpy(&header, body, sizeof(header));
  const uint32_t version = number_of(header.headerVersion);  // may be anything
  if (header.headerSize < sizeof(header) || header.headerSize > size ||
      version != VK_PIPELINE_CACHE_HEADER_VERSION_ONE)
    return fail(TANDEM_ERROR_CACHE, "pipeline cache header of %u bytes, version %u is not known",
                header.headerSize, version);
  if (header.vendorID != caps_.vendor_id || header.deviceID != caps_.device_id)
    return fail(TANDEM_ERROR_CACHE, "pipeline cache data is of device %x:%x, this one is %x:%x",
                header.vendorID, header.deviceID, caps_.vendor_id, caps_.device_id);
  if (std::memcmp(header.pipelineCacheUUID, cache_uuid_, VK_UUID_SIZE) != 0)
    return fail(TANDEM_ERROR_CACHE, "pipeline cache data is of another build of the driver");

  VkPipelineCacheCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
  info.initialDataSize = size;
  info.pInitialData = body;
  VkPipelineCache loaded = VK_NULL_HANDLE;
  TANDEM_VK_TRY(vk_.vkCreatePipelineCache(device_, &info, allocator(), &loaded),
                "vkCreatePipelineCache");
  VkResult result;
  {
    const std::lock_guard<std::shared_mutex> lock(cache_mutex_);
    result = vk_.vkMergePipelineCaches(device_, cache_, 1, &loaded);
  }
  vk_.vkDestroyPipelineCache(device_, loaded, allocator());
  return result == VK_SUCCESS ? Status() : vk_status(result, "vkMergePipelineCaches");
}

}  // namespace tandem
