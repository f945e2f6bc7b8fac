// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dist of elastic softmax on Hopper, head sizes up to 128: bwd_dkv_dq without d_q, which
// bwd_row_sums_dq has formed.
#include "dkv_dq.cuh"
#include "select.cuh"
#include "variant_elastic.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

struct ElasticKernels {
  using Params = BwdDkvDistParams;
  template <typename T, int ROW>
  static Kernel<Params> kernel() {
    if constexpr (!kBwdShapes[ROW].wide) return bwd_dkv_dq<T, ROW, Elastic, false, true>;
    return nullptr;
  }
};

}  // namespace

Kernel<BwdDkvDistParams> bwd_dkv_dist_kernel(tandem_dtype dtype, int row) {
  return select_kernel<ElasticKernels>(dtype, row);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
