// SPDX-License-Identifier: MIT OR Apache-2.0
// The declarations of bindings/torch_shim.h are those of torch's own headers. Compiled, not run.
#define USE_CUDA 1
#include "torch_shim.h"

#include <torch/csrc/stable/c/shim.h>

#include <type_traits>

namespace tandem::python::shim {
#define TANDEM_TORCH_SAME(library, result, name, arguments)             \
  static_assert(std::is_same_v<decltype(&::name), result(*) arguments>, \
                #name " is declared otherwise in torch's headers");
TANDEM_TORCH_SHIMS(TANDEM_TORCH_SAME)
static_assert(std::is_same_v<Value, StableIValue>);
static_assert(kConvention == TORCH_VERSION_2_10_0);
}  // namespace tandem::python::shim
