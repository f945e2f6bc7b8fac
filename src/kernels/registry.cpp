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

int find_kernel(Stem stem, Backend backend, const char* path, const char* variant) {
  for (int i = 0; i < kKernelCount; ++i)
    if (kKernels[i].stem == stem && kKernels[i].backend == backend &&
        std::strcmp(kKernels[i].path, path) == 0 && std::strcmp(kKernels[i].variant, variant) == 0)
      return i;
  return -1;
}

bool has_kernels(Stem stem, Backend backend, const char* path) {
  for (const KernelRow& row : kKernels)
    if (row.stem == stem && row.backend == backend && std::strcmp(row.path, path) == 0) return true;
  return false;
}

String short_kernel_name(const KernelRow& row) {
  String name = stem_name(row.stem);
  if (std::strcmp(row.variant, kOnlyVariant) != 0) name += String(".") + row.variant;
  return name;
}

String kernel_name(const KernelRow& row) {
  return String(backend_name(row.backend)) + "." + row.path + "." + short_kernel_name(row);
}

}  // namespace tandem
