// SPDX-License-Identifier: MIT OR Apache-2.0
// In place of src/cuda/function_of.h.
#ifndef TANDEM_TESTS_CUDA_EMULATED_INCLUDE_CUDA_FUNCTION_OF_H
#define TANDEM_TESTS_CUDA_EMULATED_INCLUDE_CUDA_FUNCTION_OF_H
#include "../cuda_runtime.h"

namespace tandem {

template <typename P>
cudaError_t function_of(void (*kernel)(P), CUfunction* function) {
  return simt::function_of(kernel, function);
}

}  // namespace tandem
#endif
