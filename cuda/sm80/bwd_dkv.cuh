// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv on tensor cores: d_k and d_v of Bc keys of a kv head, summed over its query heads and
// over all query tiles in a fixed order. The operation is that of cuda/simt/bwd_dkv.cu.
#ifndef TANDEM_CUDA_SM80_BWD_DKV_CUH
#define TANDEM_CUDA_SM80_BWD_DKV_CUH
#include "q_loop.cuh"
#include "weights.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// The parameters that have q, k, v, d_o and wide.
template <typename Params>
TANDEM_DEVICE const auto& tensors_of(const Params& params) {
  return params.push;
}
TANDEM_DEVICE const auto& tensors_of(const BwdDkvDqParams& params) { return params; }

// Dq: what becomes of dS besides d_k.
template <typename T, int ROW, typename Dq, typename Params>
TANDEM_DEVICE void form_d_kv(const Params& params) {
  using Inputs = InputsOf<T, ROW, Params>;
  using C = QLoopShape<T, ROW, Inputs::SOME, Dq::SUMS>;
  const auto& u = params.block;
  const auto& push = params.push;
  const auto& io = tensors_of(params);
  Place at;
  if (!find_keys<ROW>(params, &at)) return;
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = (int(u.tiles) - 1 - at.tile) * C::BC;
  const bool grad_k = Dq::SUMS || push.d_k != 0, grad_v = Dq::SUMS || push.d_v != 0;
  const Inputs in(params, at.batch);
  const View<T> k = in.keys(io.k, u.k, at.head, u.head_dim, io.wide & 2u);
  const View<T> v = in.keys(io.v, u.v, at.head, u.head_dim_v, io.wide & 4u);
  const int head0 = at.head * u.group;
  const TandemTiles span =
      tandem_query_tiles(in.band(), row0, C::BC, C::BR, in.seq_q(), in.seq_kv());
  WarpKeys<T, C> keys(row0);
  KeySums<C> apart;
  KeySums<C>& sums = sums_of_keys(keys, apart);
  const SoftmaxColumns<T, C, Inputs, Dq::SUMS, Params> weights(params, in, keys.tiles, keys.row);
  Dq d_q(params, in, at, row0, span);
  QueryStream<T, C, decltype(weights), Dq, Params> queries(
      params, weights, d_q, keys.tiles, in.queries(io.q, u.q, head0, u.head_dim, io.wide & 1u),
      in.queries(io.d_o, u.d_o, head0, u.head_dim_v, io.wide & 8u),
      (int64_t(at.batch) * u.heads_q + head0) * u.seq_q, head0, u.group, row0, grad_k, span);
  const auto load_keys = [&] {
    load_rows<C::WIDTH, C::BC, C::THREADS>(keys.tiles.k, k, row0);
    load_rows<C::WIDTH, C::BC, C::THREADS>(keys.tiles.v, v, row0);
  };
  if constexpr (C::LOADS_APART)
    q_loop_apart<T, C>(queries, keys, sums, weights, grad_k, grad_v, load_keys);
  else
    q_loop<C>(queries, load_keys, [&](const QueryTile& tile) {
      take_queries<T>(keys, sums, weights, tile, grad_k, grad_v, d_q);
    });
  __syncthreads();  // two warps may share rows of K and V
  store_keys(keys, sums, u.scale, row0,
             in.written_keys(push.d_k, u.d_k, at.head, u.head_dim, io.wide & 16u),
             in.written_keys(push.d_v, u.d_v, at.head, u.head_dim_v, io.wide & 32u), push.d_k != 0,
             push.d_v != 0);
  d_q.finish();
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dkv(const __grid_constant__ BwdDkvParams params) {
  form_d_kv<T, ROW, NoDq>(params);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
