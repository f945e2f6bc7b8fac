// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq of plain softmax where workgroups share tiles of keys, head sizes up to 128.
#include "dkv_dq.cuh"
#include "select.cuh"
#include "variant_parts.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

struct PartsKernels {
  using Params = BwdDkvDqPartsParams;
  template <typename T, int ROW>
  static Kernel<Params> kernel() {
    if constexpr (!kBwdShapes[ROW].wide) return bwd_dkv_dq<T, ROW, Parts, true, true>;
    return nullptr;
  }
};

}  // namespace

Kernel<BwdDkvDqPartsParams> bwd_dkv_dq_parts_kernel(tandem_dtype dtype, int row) {
  return select_kernel<PartsKernels>(dtype, row);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
