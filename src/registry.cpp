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

int find_kernel(Stem stem, Backend backend, const char* path) {
  for (int i = 0; i < kKernelCount; ++i)
    if (kKernels[i].stem == stem && kKernels[i].backend == backend &&
        std::strcmp(kKernels[i].path, path) == 0)
      return i;
  return -1;
}

}  // namespace tandem
