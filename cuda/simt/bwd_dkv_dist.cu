// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dist: bwd_dkv of elastic softmax (trait::fixed), which also stores the key
// tile's part of d_dist_bias where that is wanted: ds is in the P tile, and only the tiles near the
// diagonal have one.
#include "../parts/elastic.cuh"
#include "../parts/pair.cuh"
#include "select.cuh"

namespace tandem {
namespace cuda {

// Adds the diagonals of ds in the P tile to part; an invocation has a diagonal. Rows are keys and
// columns are queries. distance: that of the tile's first query and key.
template <typename S>
TANDEM_DEVICE void add_diagonals(float* part, int window, const float4* ptile, int distance) {
  static_assert(S::WG >= S::M + S::N - 1, "an invocation a diagonal");
  __syncthreads();
  // The diagonal's column in the tile's first row.
  const int first = int(threadIdx.x) - (S::M - 1);
  const int t = distance + first;
  if (first >= S::N || t < 0 || t >= window) return;
  const float* x = reinterpret_cast<const float*>(ptile) + first;
  float sum = part[t];
#pragma unroll 8
  for (int r = 0; r < S::M; ++r)
    if ((first + r >= 0) & (first + r < S::N)) sum += x[r * (4 * S::P_PITCH + 1)];
  part[t] = sum;
}

template <typename T, int ROW, int BLOCKS, bool WIDE>
__global__ void __launch_bounds__(Shape<ROW>::WG,
                                  Shape<ROW>::groups(2 * BLOCKS * Shape<ROW>::RM * 4, WIDE))
    bwd_dkv_dist(const __grid_constant__ BwdDkvDistFull params) {
  using S = Shape<ROW>;
  constexpr int SIDE = S::template SIDE<BLOCKS>;
  const BwdDkvDistBlock& u = params.block;
  const BwdDkvDistPush& push = params.push;
  Place at;
  if (!find_place(u.tiles, u.total, u.heads_q / u.group, &at, params.first_group)) return;
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int tile = int(u.tiles) - 1 - at.tile, row0 = tile * S::M;
  const bool grad_v = push.d_v != 0;
  const Extra e = make_extra(params, at.batch);
  const TandemTiles span = tandem_query_tiles(e.band, row0, S::M, S::N, e.seq_q, e.seq_kv);

  const Invocation<S> me;
  float4* pool = shared_memory();
  float4* ptile = pool + S::POOL;
  float4* stash = ptile + S::PTILE;  // each invocation's p, while the P tile holds y
  Stage<T, S, WIDE> stage;
  float d_k[BLOCKS][S::RM][4] = {}, d_v[BLOCKS][S::RM][4] = {};

#pragma unroll 1
  for (int n = 0; n < u.group; ++n) {
    const int head = at.head * u.group + n;
    const PairOf<T> p = make_pair<T>(params, e, head);
    float* part = nullptr;
    if (push.d_dist != 0) {
      part = reinterpret_cast<float*>(push.d_dist) +
             ((int64_t(at.batch) * u.tiles + tile) * u.heads_q + head) * e.x.dist_window;
      for (int t = int(threadIdx.x); t < e.x.dist_window; t += S::WG) part[t] = 0.f;
    }
    if (span.begin < span.end) stage.fetch_nt(p.k, row0, p.q, span.begin * S::N, 0);
#pragma unroll 1
    for (int t = span.begin; t < span.end; ++t) {
      const int col0 = t * S::N;
      float s[S::RM][4] = {};
      product_nt(s, stage, pool, p.k, row0, p.q, col0, u.head_dim, [&] {
        if (grad_v)
          stage.template fetch_nn<SIDE>(p.d_o, col0, 0);
        else
          stage.fetch_nt(p.v, row0, p.d_o, col0, 0);
      });
      // d_dist_bias sums over keys, so a tile with keys behind the end needs the mask, too.
      const bool edge = t < span.full_begin || t >= span.full_end || row0 + S::M > e.seq_kv;
      uint counted = score_elastic<S, false>(s, e, p.of.dist, col0, row0, edge);
      float lse[4], shift[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = col0 + me.col(c);
        lse[c] = i < e.seq_q ? __ldg(p.lse + i) : minus_infinity();
        shift[c] = elastic_shift(e, p.of, i);
      }
      take_far_columns<S>(s, lse, p.deltas, p.rows0 + col0);
#pragma unroll
      for (int r = 0; r < S::RM; ++r) {
        float x[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) x[c] = weight(s[r][c], lse[c]);
        stash[me.row(r) * S::P_PITCH + me.tc] = make_float4(x[0], x[1], x[2], x[3]);
#pragma unroll
        for (int c = 0; c < 4; ++c)
          s[r][c] = elastic_weight(x[c], shift[c], 1u << (4 * r + c), &counted);
      }
      if (grad_v) {
        put_ptile<S>(ptile, s);
        product_nn<SIDE>(d_v, stage, pool, ptile, p.d_o, col0,
                         [&] { stage.fetch_nt(p.v, row0, p.d_o, col0, 0); });
      }
      float dp[S::RM][4] = {};
      product_nt(dp, stage, pool, p.v, row0, p.d_o, col0, u.head_dim_v,
                 [&] { stage.template fetch_nn<SIDE>(p.q, col0, 0); });
      take_ptile<S>(stash, s);
      float delta[4];
      load_deltas<S>(delta, p, col0, e.seq_q);
#pragma unroll
      for (int r = 0; r < S::RM; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          s[r][c] *= ((counted >> (4 * r + c) & 1u) ? dp[r][c] : 0.f) - delta[c];
      put_ptile<S>(ptile, s);
      if (part && tile_has_dist(e, col0, S::N, row0, S::M))
        add_diagonals<S>(part, e.x.dist_window, ptile, col0 + e.band.off - row0);
      product_nn<SIDE>(d_k, stage, pool, ptile, p.q, col0, [&] {
        if (t + 1 < span.end) stage.fetch_nt(p.k, row0, p.q, col0 + S::N, 0);
      });
    }
  }
  const uint dtype = params.spec.DTYPE;
  store_blocks<T, S>(make_rows_view<T>(dtype, push.d_k, u.d_k, at.batch, at.head, e.first_kv,
                                       e.written_kv, u.head_dim, push.wide & 16u),
                     row0, d_k, u.scale);
  if (grad_v)
    store_blocks<T, S>(make_rows_view<T>(dtype, push.d_v, u.d_v, at.batch, at.head, e.first_kv,
                                         e.written_kv, u.head_dim_v, push.wide & 32u),
                       row0, d_v, 1.f);
}

TANDEM_FIXED_FAMILY(BwdDkvDist, BwdDkvDistFull, bwd_dkv_dist)

Kernel<BwdDkvDistFull> bwd_dkv_dist_kernel(tandem_dtype dtype, const KernelChoice& of, bool wide) {
  return select_fixed<BwdDkvDist>(dtype, wide, of.tile,
                                  of.d_blocks > of.dv_blocks ? of.d_blocks : of.dv_blocks);
}

}  // namespace cuda
}  // namespace tandem
