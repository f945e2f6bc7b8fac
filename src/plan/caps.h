// SPDX-License-Identifier: MIT OR Apache-2.0
// What planning knows of a device. A plain value, so that plans for recorded devices are tested on
// machines without these devices (tests/plan/profiles.inc).
#ifndef TANDEM_SRC_PLAN_CAPS_H
#define TANDEM_SRC_PLAN_CAPS_H
#include <cstdint>

#include "base/host_memory.h"
#include "kernels/registry.h"

namespace tandem {

// An entry of the device's cooperative-matrix list: matrices of a subgroup, both operands of one
// 16-bit type, accumulator and result f32. Other entries of the list are left out.
struct MatrixShape {
  int m, n, k;
  const char* operands;  // "f16" or "bf16"
  // The device has shown that the i-th element of an invocation is the same in accumulators and in
  // left operands, in subgroups of matrix_subgroup() (src/vulkan/probe.h).
  bool copies = false;
  // Some entry of the list has accumulators of m x n of f16, which kernels of both types also use.
  bool f16_accumulators = true;
};

struct Caps {
  Backend backend = Backend::cpu;
  String name = "CPU", driver = "tandem";
  uint32_t vendor_id = 0, device_id = 0, driver_id = 0, driver_version = 0;
  // Vulkan and CUDA
  uint32_t shared_bytes = 0;  // per workgroup, what a kernel may use
  uint32_t max_invocations = 0;
  uint32_t max_groups_x = 0, max_groups_y = 0;
  uint32_t subgroup_min = 0, subgroup_max = 0, subgroup_size = 0;
  uint32_t max_subgroups = 0;  // of a workgroup whose pipeline states its subgroup size
  uint32_t cores = 0;          // SMs, compute units, Xe cores; 0 unknown
  uint32_t clock_mhz = 0;      // highest clock of the cores; 0 unknown
  uint32_t memory_gbps = 0;    // peak of the device's memory, in 10^9 bytes a second; 0 unknown
  // Vulkan
  uint32_t api_version = 0;
  bool buffer_address = false, inline_uniform = false;
  // Of all inline uniform blocks of a pipeline layout together; 0: unknown, as before Vulkan 1.3.
  uint32_t inline_uniform_bytes = 0;
  // What the device has and the application enabled.
  bool storage16 = false, float16 = false, bfloat16 = false, int64 = false;
  bool memory_model = false;  // of Vulkan, with device scope
  // Vulkan's memory model is enabled without device scope, which forbids atomics of this scope.
  bool no_device_scope = false;
  bool subgroup_control = false, full_subgroups = false;
  bool subgroup_pin = false;  // a compute pipeline may state its subgroup size
  bool denormals = false;     // shaders may ask for f32 numbers below 2^-126 to be kept
  bool infinities = false;    // shaders may ask for f32 infinities, NaN and zeros' signs to be kept
  bool maintenance4 = false;  // sizes of workgroups as SPIR-V 1.6 states them
  bool subgroup_votes = false;  // in compute shaders
  bool coopmat = false, bfloat16_coopmat = false;
  bool coopmat_compute = false;  // compute shaders may have cooperative matrices
  bool coopmat_reductions = false, coopmat_conversions = false, coopmat_per_element = false;
  bool coopmat_tensors = false;  // tensor addressing
  uint32_t push_bytes = 0;
  Vec<MatrixShape> matrices;
  // CUDA
  int compute_major = 0, compute_minor = 0;
  bool sm80_code = false;  // this build's kernels for compute capability 8.0 and later load
  bool sm90_code = false;  // this build's kernels for sm_90a load
  // The driver has programmatic dependent launch, also in graphs.
  bool early_launches = false;
  // CPU
  uint32_t threads = 0;
  String vector_isa;
  // Paths, kernels, tiles, rules of speed and shapes of matrices that are disabled: "backend.path",
  // "t64k32", "16x16x16".
  Vec<String> disabled;
};

// "name value" lines; tandem_device_describe() and `tandem info` print them.
String describe_caps(const Caps& caps);

// The device's number of SMs, or a guess if it reports none. Persistent launches have up to four
// workgroups for each, so a driver's mistake must not exceed what every device dispatches.
inline int64_t cores_of(const Caps& caps) {
  constexpr uint32_t kMostCores = 65535 / 4;
  return caps.cores == 0 ? 32 : caps.cores < kMostCores ? caps.cores : kMostCores;
}

// Splits a comma-separated list. An unknown name fails, and the message names it. "": an empty
// list.
class Status;
Status parse_disabled(const char* list, Vec<String>* disabled);

}  // namespace tandem
#endif
