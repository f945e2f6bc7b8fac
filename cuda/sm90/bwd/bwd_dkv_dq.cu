// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq of plain softmax attention, head sizes up to 128.
#include "dkv_dq.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T, int ROW>
Kernel<BwdDkvDqParams> select(int row, bool grad_q, bool grad_kv, bool persistent) {
  if constexpr (ROW < kBwdShapeCount) {
    if (row != ROW) return select<T, ROW + 1>(row, grad_q, grad_kv, persistent);
    if constexpr (!kBwdShapes[ROW].wide) {
      if (persistent) return bwd_dkv_dq_persistent<T, ROW, Plain>;
      if (grad_q)
        return grad_kv ? bwd_dkv_dq<T, ROW, Plain, true, true>
                       : bwd_dkv_dq<T, ROW, Plain, true, false>;
      if (grad_kv) return bwd_dkv_dq<T, ROW, Plain, false, true>;
    }
  }
  return nullptr;
}

}  // namespace

Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, int row, bool grad_q, bool grad_kv,
                                         bool persistent) {
  if (row < 0 || row >= kBwdShapeCount) return nullptr;
  if (dtype == TANDEM_F16) return select<Half, 0>(row, grad_q, grad_kv, persistent);
  return dtype == TANDEM_BF16 ? select<Bfloat, 0>(row, grad_q, grad_kv, persistent) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
