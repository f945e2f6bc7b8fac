// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv on tensor cores with optional inputs and any normaliser. The operation is that of
// cuda/simt/bwd_dkv_full.cu.
#ifndef TANDEM_CUDA_SM80_BWD_DKV_FULL_CUH
#define TANDEM_CUDA_SM80_BWD_DKV_FULL_CUH
#include "../parts/bwd_head_sums.cuh"
#include "bwd_dq_full.cuh"
#include "q_loop.cuh"
#include "weights_full.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// The row of kAmpereTiles of bwd_dq that has the width of this row.
constexpr int dq_row(int row) {
  for (int n = 0; n < kAmpereTileCount; ++n)
    if (kAmpereTiles[n].stem == Stem::bwd_dq && kAmpereTiles[n].table != TileTable::ampere_plain &&
        kAmpereTiles[n].width == kAmpereTiles[row].width)
      return n;
  return -1;
}
template <int ROW>
constexpr int kDqRow = dq_row(ROW);

// The workgroups behind those of bwd_dkv: bwd_dq, then bwd_head_sums.
template <typename T, int DQ_ROW>
TANDEM_DEVICE void finish_with(const BwdDkvHeadFull& params) {
  const BwdDqBlock& u = params.dq.block;
  const uint index = params.first_group + block_number() - params.block.total;
  if (index < u.total) {
    // bwd_dq may have fewer threads than bwd_dkv. Barriers do not wait for threads that have ended.
    if (int(threadIdx.x) >= MmaShape<DQ_ROW>::THREADS) return;
    Place at;
    at.tile = int(u.tiles - 1 - index % u.tiles);
    at.head = int(index / u.tiles % uint(u.heads_q));
    at.batch = int(index / u.tiles / uint(u.heads_q));
    form_d_q_full<T, DQ_ROW>(params.dq, at);
  } else if (index - u.total < params.head.block.total) {
    sum_head(params.head, int(index - u.total), reinterpret_cast<float*>(shared_memory()));
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dkv_full(const __grid_constant__ BwdDkvHeadFull params) {
  using C = QLoopShape<T, ROW, true, false>;
  static_assert(C::MT == 1 && C::STAGES == 2, "as it is written");
  const BwdDkvBlock& u = params.block;
  const BwdDkvPush& push = params.push;
  Place at;
  if (!find_keys<ROW>(params, &at)) {
    finish_with<T, kDqRow<ROW>>(params);
    return;
  }
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = (int(u.tiles) - 1 - at.tile) * C::BC;
  const bool grad_k = push.d_k != 0, grad_v = push.d_v != 0;
  const Extra e = make_extra(params, at.batch);
  const TandemTiles span = tandem_query_tiles(e.band, row0, C::BC, C::BR, e.seq_q, e.seq_kv);
  WarpKeys<T, C> keys(row0);
  KeySums<C> apart;
  KeySums<C>& sums = sums_of_keys(keys, apart);
#pragma unroll 1
  for (int member = 0; member < u.group; ++member) {
    const int head = at.head * u.group + member;
    const PairOf<T> p = make_pair<T>(params, e, head);
    const FullColumns<T, C> weights{e, p, keys.tiles, keys.row};
    NoDq no_dq;
    QueryStream<T, C, decltype(weights), NoDq, BwdDkvHeadFull> queries(
        params, weights, no_dq, keys.tiles, p.q, p.d_o, p.rows0, head, 1, row0, grad_k, span);
    __syncthreads();  // all warps have read the tiles of the head before
    q_loop<C>(
        queries,
        [&] {
          if (member > 0) return;
          load_rows<C::WIDTH, C::BC, C::THREADS>(keys.tiles.k, p.k, row0);
          load_rows<C::WIDTH, C::BC, C::THREADS>(keys.tiles.v, p.v, row0);
        },
        [&](const QueryTile& tile) {
          take_queries<T>(keys, sums, weights, tile, grad_k, grad_v, no_dq);
        });
  }
  __syncthreads();  // two warps may share rows of K and V
  const auto written = [&](uint64_t address, const Strides& s, int width, bool wide) {
    return make_rows_view<T>(0, address, s, at.batch, at.head, e.first_kv, e.written_kv, width,
                             wide);
  };
  store_keys(keys, sums, u.scale, row0, written(push.d_k, u.d_k, u.head_dim, push.wide & 16u),
             written(push.d_v, u.d_v, u.head_dim_v, push.wide & 32u), grad_k, grad_v);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
