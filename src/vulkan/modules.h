// SPDX-License-Identifier: MIT OR Apache-2.0
// The SPIR-V that this build has, each module in an object of its own (cmake/TandemShaders.cmake):
// their text is megabytes, which no other source is to read.
#ifndef TANDEM_SRC_VULKAN_MODULES_H
#define TANDEM_SRC_VULKAN_MODULES_H
#include <stddef.h>
#include <stdint.h>

namespace tandem {

struct SpirvModule {
  const char* name;
  const uint32_t* words;
  size_t bytes;
};

#define TANDEM_MODULE(name) extern const SpirvModule module_##name;
#include "shaders/modules.inc"

constexpr size_t kModuleCount = 0
#define TANDEM_MODULE(name) +1
#include "shaders/modules.inc"
    ;
extern const SpirvModule* const kModules[kModuleCount];

}  // namespace tandem
#endif
