// SPDX-License-Identifier: MIT OR Apache-2.0
// What planning knows of a device. A plain value, so that plans for recorded devices are tested on a
// machine that has none of them (tests/profiles.inc).
#ifndef TANDEM_SRC_CAPS_H
#define TANDEM_SRC_CAPS_H
#include <cstdint>
#include <string>
#include <vector>

#include "registry.h"

namespace tandem {

struct MatrixShape {  // one entry of the device's cooperative-matrix list
  int m, n, k;
  const char* a;       // operand type: "f16", "bf16", ...
  const char* result;  // accumulator type
  bool workgroup_scope;
};

struct Caps {
  Backend backend = Backend::cpu;
  std::string name = "CPU", driver = "tandem";
  uint32_t vendor_id = 0, device_id = 0, driver_id = 0, driver_version = 0;
  // Vulkan and CUDA
  uint32_t shared_bytes = 0;  // per workgroup, what a kernel may use
  uint32_t max_invocations = 0;
  uint32_t max_groups_x = 0, max_groups_y = 0;
  uint32_t subgroup_min = 0, subgroup_max = 0, subgroup_size = 0;
  uint32_t cores = 0;  // SMs, compute units, Xe cores; 0 unknown
  // Vulkan
  uint32_t api_version = 0;
  bool buffer_address = false, inline_uniform = false;
  bool storage16 = false, float16 = false, bfloat16 = false, int64 = false;
  uint32_t push_bytes = 0;
  std::vector<MatrixShape> matrices;
  // CUDA
  int compute_major = 0, compute_minor = 0;
  // CPU
  uint32_t threads = 0;
  std::string vector_isa;
  // Paths and tiles to do without: "backend.path", "t64k32".
  std::vector<std::string> disabled;
};

// "name value" lines; tandem_device_describe() and `tandem info` print them.
std::string describe_caps(const Caps& caps);

// Splits a comma-separated list; an unknown name fails and names itself. Nothing in it: empty list.
class Status;
Status parse_disabled(const char* list, std::vector<std::string>* disabled);

}  // namespace tandem
#endif
