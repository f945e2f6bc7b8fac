// SPDX-License-Identifier: MIT OR Apache-2.0
// The SPIR-V that this build has, each module in an object of its own (cmake/TandemShaders.cmake):
// their text is megabytes, which no other source is to read. They are packed, as they would be most
// of the library's bytes.
#ifndef TANDEM_SRC_VULKAN_MODULES_H
#define TANDEM_SRC_VULKAN_MODULES_H
#include <stddef.h>
#include <stdint.h>

#include "base/host_memory.h"

namespace tandem {

struct SpirvModule {
  const char* name;
  size_t bytes;           // of its words
  const uint32_t* words;  // nullptr: it is packed (unpack.h)
  const uint8_t* packed;
  size_t packed_bytes;
};

// The words of a module. Milliseconds, so not for what happens often.
Vec<uint32_t> words_of(const SpirvModule& module);

#define TANDEM_MODULE(name) extern const SpirvModule module_##name;
#include "shaders/modules.inc"

constexpr size_t kModuleCount = 0
#define TANDEM_MODULE(name) +1
#include "shaders/modules.inc"
    ;
extern const SpirvModule* const kModules[kModuleCount];

}  // namespace tandem
#endif
