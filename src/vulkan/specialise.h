// SPDX-License-Identifier: MIT OR Apache-2.0
// SPIR-V with its specialisation constants replaced by their values, before a driver compiles it.
#ifndef TANDEM_SRC_VULKAN_SPECIALISE_H
#define TANDEM_SRC_VULKAN_SPECIALISE_H
#include <cstddef>
#include <cstdint>

#include "base/host_memory.h"

namespace tandem {

// A 32-bit value of the constant that the module has decorated with SpecId id.
struct SpecValue {
  uint32_t id, word;
};

// Writes to *out the module of `count` words with the given values: constants are no longer
// specialisation constants, branches on conditions that these decide are gone, and so are
// functions, variables, types and names that nothing refers to. What it computes is the same.
// Instructions that it does not know stay as they are. Constants without a value keep the
// module's. False, and *out is not to be used: the words are no module of this layout.
bool specialise(const uint32_t* words, size_t count, const SpecValue* values, size_t value_count,
                Vec<uint32_t>* out);

}  // namespace tandem
#endif
