// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq on tensor cores with optional inputs and any normaliser.
#ifndef TANDEM_CUDA_SM80_BWD_DQ_FULL_CUH
#define TANDEM_CUDA_SM80_BWD_DQ_FULL_CUH
#include "bwd_dq.cuh"
#include "weights_full.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Forms d_q of a query tile, by MmaShape<ROW>::THREADS threads of a workgroup.
template <typename T, int ROW>
TANDEM_DEVICE void form_d_q_full(const BwdDqFull& params, const Place& at) {
  using S = MmaShape<ROW>;
  const BwdDqBlock& u = params.block;
  const BwdDqPush& push = params.push;
  const int row0 = at.tile * S::BR;
  const Extra e = make_extra(params, at.batch);
  const PairOf<T> p = make_pair<T>(params, e, at.head);
  const TandemTiles span = tandem_key_tiles(e.band, row0, S::BR, S::BC, e.seq_q, e.seq_kv);
  const Lane me;
  FullRows<T, S, true> weights(e, p, row0 + 16 * me.warp + me.g, stores_bias(params));
  form_d_q<T, S>(params, at, weights, p, span, [&] {
    return make_rows_view<T>(0, push.d_q, u.d_q, at.batch, at.head, e.first_q, e.written_q,
                             u.head_dim, push.wide & 16u);
  });
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dq_full(const __grid_constant__ BwdDqFull params) {
  Place at;
  if (find_queries<ROW>(params, &at)) form_d_q_full<T, ROW>(params, at);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
