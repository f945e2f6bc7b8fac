// SPDX-License-Identifier: MIT OR Apache-2.0
#include "modules.h"

#include "unpack.h"

namespace tandem {

const SpirvModule* const kModules[kModuleCount] = {
#define TANDEM_MODULE(name) &module_##name,
#include "shaders/modules.inc"
};

Vec<uint32_t> words_of(const SpirvModule& module) {
  Vec<uint32_t> words(module.bytes / 4);
  if (module.words)
    words.assign(module.words, module.words + module.bytes / 4);
  else if (!unpack(module.packed, module.packed_bytes, reinterpret_cast<uint8_t*>(words.data()),
                   module.bytes))
    words.clear();  // the library's file is damaged
  return words;
}

}  // namespace tandem
