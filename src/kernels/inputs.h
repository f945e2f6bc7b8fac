// SPDX-License-Identifier: MIT OR Apache-2.0
// Optional inputs (inputs.inc) as bits.
#ifndef TANDEM_SRC_KERNELS_INPUTS_H
#define TANDEM_SRC_KERNELS_INPUTS_H
#include <cstdint>

namespace tandem {

enum class ExtraIndex : uint8_t {
#define TANDEM_INPUT(name, words, present) name,
#include "inputs.inc"
};
enum Extra : uint32_t {
#define TANDEM_INPUT(name, words, present) kHas##name = 1u << uint32_t(ExtraIndex::name),
#include "inputs.inc"
};

}  // namespace tandem
#endif
