// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq of plain softmax attention, head sizes up to 128.
#include "dkv_dq.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

struct PlainKernels {
  using Params = BwdDkvDqParams;
  template <typename T, int ROW>
  static Kernel<Params> kernel(bool grad_q, bool grad_kv, bool persistent) {
    if constexpr (!kBwdShapes[ROW].wide) {
      if (persistent) return bwd_dkv_dq_persistent<T, ROW, Plain>;
      if (grad_q)
        return grad_kv ? bwd_dkv_dq<T, ROW, Plain, true, true>
                       : bwd_dkv_dq<T, ROW, Plain, true, false>;
      if (grad_kv) return bwd_dkv_dq<T, ROW, Plain, false, true>;
    }
    return nullptr;
  }
};

}  // namespace

Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, int row, bool grad_q, bool grad_kv,
                                         bool persistent) {
  return select_kernel<PlainKernels>(dtype, row, grad_q, grad_kv, persistent);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
