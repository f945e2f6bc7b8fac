// SPDX-License-Identifier: MIT OR Apache-2.0
#include "registry.h"

#include <cstring>

namespace tandem {

const char* backend_name(Backend backend) {
  switch (backend) {
    case Backend::cpu:
      return "cpu";
    case Backend::vulkan:
      return "vulkan";
    case Backend::cuda:
      return "cuda";
  }
  return "?";
}

const char* stem_name(Stem stem) {
  constexpr const char* kNames[] = {
#define TANDEM_STEM(Name, name) #name,
#include "stems.inc"
  };
  return kNames[int(stem)];
}

bool backend_built(Backend backend) {
  switch (backend) {
    case Backend::cpu:
      return true;
    case Backend::vulkan:
      return TANDEM_WITH_VULKAN != 0;
    case Backend::cuda:
      return TANDEM_WITH_CUDA != 0;
  }
  return false;
}

int find_kernel(PathId path, Stem stem, uint32_t traits, tandem_dtype dtype, uint32_t inputs) {
  int last = -1;
  for (int i = 0; i < kKernelCount; ++i) {
    const KernelRow& row = kKernels[i];
    if (row.stem != stem || row.path_id != path || row.traits != traits) continue;
    if (row.takes(inputs) && has_dtype(row.dtypes, dtype)) return i;
    last = i;
  }
  return last;
}

bool has_kernels(PathId path, Stem stem) {
  for (const KernelRow& row : kKernels)
    if (row.stem == stem && row.path_id == path) return true;
  return false;
}

bool takes_dtype(PathId path, tandem_dtype dtype) {
  for (const KernelRow& row : kKernels)
    if (row.path_id == path && has_dtype(row.dtypes, dtype)) return true;
  return false;
}

String short_kernel_name(const KernelRow& row) {
  String name = stem_name(row.stem);
  if (std::strcmp(row.variant, kOnlyVariant) != 0) name += String(".") + row.variant;
  return name;
}

String fixed_set_name(const KernelRow& of) {
  for (const KernelRow& row : kKernels)
    if (is_fixed_set(row) && row.path_id == of.path_id && row.needs == of.needs)
      return String(backend_name(row.backend)) + "." + row.path + "." + row.variant;
  return "";
}

String kernel_name(const KernelRow& row) {
  return String(backend_name(row.backend)) + "." + row.path + "." + short_kernel_name(row);
}

}  // namespace tandem
