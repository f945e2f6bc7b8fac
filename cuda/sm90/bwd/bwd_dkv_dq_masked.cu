// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with masks, dropout and a distance bias beside the inputs of bwd_dkv_dq_varlen.cu,
// head sizes up to 128.
#include "dkv_dq.cuh"
#include "select.cuh"
#include "variant_masked.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

struct MaskedKernels {
  using Params = BwdDkvDqOptionalParams;
  template <typename T, int ROW>
  static Kernel<Params> kernel() {
    if constexpr (has_masked_kernel(kBwdShapes[ROW]))
      return bwd_dkv_dq<T, ROW, Masked<has_masked_scores(kBwdShapes[ROW])>, true, true>;
    return nullptr;
  }
};

}  // namespace

Kernel<BwdDkvDqOptionalParams> bwd_dkv_dq_masked_kernel(tandem_dtype dtype, int row) {
  return select_kernel<MaskedKernels>(dtype, row);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
