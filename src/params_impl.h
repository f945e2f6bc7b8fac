// SPDX-License-Identifier: MIT OR Apache-2.0
// What params.cpp and push.cpp share.
#ifndef TANDEM_SRC_PARAMS_IMPL_H
#define TANDEM_SRC_PARAMS_IMPL_H
#include "params.h"

namespace tandem {

// Whether a tensor of bias's shape has rows of 16-byte chunks, 8 elements each, as far as its strides say.
bool is_chunked(const Problem& p, const Strides& s);

}  // namespace tandem
#endif
