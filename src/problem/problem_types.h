// SPDX-License-Identifier: MIT OR Apache-2.0
// Types of the members of a problem that kernels know as well.
#ifndef TANDEM_SRC_PROBLEM_PROBLEM_TYPES_H
#define TANDEM_SRC_PROBLEM_PROBLEM_TYPES_H
#include <cstdint>

namespace tandem {

struct Strides {  // in elements; also the layout of a kernel's parameter block
  int64_t b, h, s, d;
};

enum class Normalizer : uint8_t { softmax, elastic, entmax };   // tandem_normalizer
enum class Lengths : uint8_t { full, padded, packed, gapped };  // tandem_lengths

// Whether a tensor has the rows of all entries in one dimension, and none of the batch.
constexpr bool is_packed(Lengths lengths) { return lengths >= Lengths::packed; }

}  // namespace tandem
#endif
