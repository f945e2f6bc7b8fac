// SPDX-License-Identifier: MIT OR Apache-2.0
// What the modules of Vulkan plans need, against the capabilities and limits of a recorded device.
#include "../plan/spirv_shared.h"
#include "../vulkan/keeping_driver.h"
#include "recorded_session.h"

namespace tandem::harness {
namespace {

// Capabilities of SPIR-V that modules may declare, and what a device has to have for them. Null: it
// is there on every device with Vulkan 1.2.
const struct {
  uint32_t capability;
  const char* name;
  bool Caps::*has;
} kCapabilities[] = {
    {1, "Shader", nullptr},
    {9, "Float16", &Caps::float16},
    {61, "GroupNonUniform", nullptr},
    {62, "GroupNonUniformVote", &Caps::subgroup_votes},
    {4464, "DenormPreserve", &Caps::denormals},
    {4466, "SignedZeroInfNanPreserve", &Caps::infinities},
    {5116, "BFloat16TypeKHR", &Caps::bfloat16},
    {5118, "BFloat16CooperativeMatrixKHR", &Caps::bfloat16_coopmat},
    {5345, "VulkanMemoryModel", &Caps::memory_model},
    {5347, "PhysicalStorageBufferAddresses", &Caps::buffer_address},
    {5430, "CooperativeMatrixReductionsNV", &Caps::coopmat_reductions},
    {5431, "CooperativeMatrixConversionsNV", &Caps::coopmat_conversions},
    {5432, "CooperativeMatrixPerElementOperationsNV", &Caps::coopmat_per_element},
    {5433, "CooperativeMatrixTensorAddressingNV", &Caps::coopmat_tensors},
    {5439, "TensorAddressingNV", &Caps::coopmat_tensors},
    {6022, "CooperativeMatrixKHR", &Caps::coopmat},
};

// What a module declares and a device lacks.
std::set<std::string> missing_of(const spirv::Module& module, const Caps& caps) {
  std::set<std::string> missing;
  for (const uint32_t capability : module.capabilities()) {
    std::string name = "capability " + std::to_string(capability) + ", which this test lacks";
    bool has = false;
    for (const auto& row : kCapabilities) {
      if (row.capability != capability) continue;
      name = row.name;
      has = !row.has || caps.*row.has;
    }
    if (capability == 6022 && !caps.coopmat_compute) has = false;
    if (!has) missing.insert(name);
  }
  for (const spirv::MatrixType& t : module.matrices({})) {
    const auto is = [&](uint32_t rows, uint32_t columns) {
      return t.rows == rows && t.columns == columns;
    };
    bool has = false;
    for (const MatrixShape& s : caps.matrices) {
      const auto m = uint32_t(s.m), n = uint32_t(s.n), k = uint32_t(s.k);
      has |= t.use == 0 && t.element == s.operands && is(m, k);
      has |= t.use == 1 && t.element == s.operands && is(k, n);
      has |= t.use == 2 && t.element == "f32" && is(m, n);
      has |= t.use == 2 && t.element == "f16" && s.f16_accumulators && is(m, n);
    }
    if (!has || t.scope != 3)  // a subgroup's
      missing.insert("a matrix of " + t.element + " of " + std::to_string(t.rows) + "x" +
                     std::to_string(t.columns) + ", use " + std::to_string(t.use));
  }
  return missing;
}

void check_limits(const tandem::Plan& plan, const Caps& caps) {
  static std::unique_ptr<Device> keeps;
  const auto most = [&](const char* what, uint64_t needed, uint64_t limit) {
    if (needed > limit)
      recorded_faults().insert(text("%s: %s needs %llu %s, the device has %llu", caps.name.c_str(),
                                    plan.name().c_str(), (unsigned long long)needed, what,
                                    (unsigned long long)limit)
                                   .c_str());
  };
  keeping_driver::Kept& kept = keeping_driver::kept();
  kept.modules.clear();
  if (!keeps) keeps = keeping_driver::open();
  std::unique_ptr<Program> program;
  const Status status = keeps->build(plan, &program);
  if (!status.ok()) recorded_faults().insert(status.message().c_str());
  most("bytes of push constants", kept.push_bytes, caps.push_bytes);
  if (caps.inline_uniform_bytes != 0)
    most("bytes of inline uniform blocks", kept.uniform_bytes, caps.inline_uniform_bytes);
  for (const keeping_driver::Words& words : kept.modules) {
    const spirv::Module module(words.data(), words.size());
    const uint64_t invocations = module.invocations({});
    if (invocations == 0) recorded_faults().insert("a module does not state its workgroups");
    most("invocations", invocations, caps.max_invocations);
    most("bytes of shared memory", module.shared_bytes({}), caps.shared_bytes);
    for (const std::string& what : missing_of(module, caps))
      recorded_faults().insert(
          text("%s: %s needs %s", caps.name.c_str(), plan.name().c_str(), what.c_str()).c_str());
  }
  for (const Launch& launch : plan.launches) {
    most("workgroups in x", launch.groups_x, caps.max_groups_x);
    most("workgroups in y", launch.groups_y, caps.max_groups_y);
  }
}

[[maybe_unused]] const bool linked = [] {
  recorded_limits = check_limits;
  return true;
}();

}  // namespace
}  // namespace tandem::harness
