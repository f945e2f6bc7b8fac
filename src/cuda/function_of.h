// SPDX-License-Identifier: MIT OR Apache-2.0
// The driver's handle of a kernel of this program, in the current context. It has a file of its own
// because the emulator replaces it (tests/cuda/emulated/include/cuda).
#ifndef TANDEM_SRC_CUDA_FUNCTION_OF_H
#define TANDEM_SRC_CUDA_FUNCTION_OF_H
#include <cuda.h>
#include <cuda_runtime.h>

namespace tandem {

template <typename P>
cudaError_t function_of(void (*kernel)(P), CUfunction* function) {
  return cudaGetFuncBySymbol(function, reinterpret_cast<const void*>(kernel));
}

}  // namespace tandem
#endif
