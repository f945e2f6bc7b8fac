// SPDX-License-Identifier: MIT OR Apache-2.0
// How the host gets the kernel of a backward operation that serves a row of kBwdShapes and a dtype.
#ifndef TANDEM_CUDA_SM90_BWD_SELECT_CUH
#define TANDEM_CUDA_SM90_BWD_SELECT_CUH
#include "../ptx/wgmma.cuh"
#include "kernels.h"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

// Of has the type Params and a function kernel<T, ROW>(choice...): the kernel for elements of type
// T; nullptr: there is none for the row. Rows are those in [ROW, END).
template <typename Of, typename T, int ROW, int END, typename... Choice>
Kernel<typename Of::Params> select_row(int row, Choice... choice) {
  if constexpr (ROW < END) {
    if (row != ROW) return select_row<Of, T, ROW + 1, END>(row, choice...);
    return Of::template kernel<T, ROW>(choice...);
  }
  return nullptr;
}
template <typename Of, int ROW = 0, int END = kBwdShapeCount, typename... Choice>
Kernel<typename Of::Params> select_kernel(tandem_dtype dtype, int row, Choice... choice) {
  if (dtype == TANDEM_F16) return select_row<Of, Half, ROW, END>(row, choice...);
  return dtype == TANDEM_BF16 ? select_row<Of, Bfloat, ROW, END>(row, choice...) : nullptr;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
