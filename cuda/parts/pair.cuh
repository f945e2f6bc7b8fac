// SPDX-License-Identifier: MIT OR Apache-2.0
// A query head and a tile of its pairs, for all backward kernels with optional inputs whose rows
// are queries: both products, and ds.
#ifndef TANDEM_CUDA_PARTS_PAIR_CUH
#define TANDEM_CUDA_PARTS_PAIR_CUH
#include "softmax.cuh"
#include "weight.cuh"

namespace tandem {
namespace cuda {

template <typename T>
struct PairOf {
  View<T> q, k, v, d_o;
  HeadExtra of;
  const float *lse, *delta;  // of the head's first row
  uint64_t deltas;           // address of delta of the first of all rows
  int64_t rows0;             // index of the head's first row among all rows
  TANDEM_DEVICE FarRow far(int i) const { return far_row(deltas, rows0 + i); }
};

using Pair = PairOf<Any>;

template <typename T = Any, typename P>
TANDEM_DEVICE PairOf<T> make_pair(const P& params, const Extra& e, int head) {
  const auto& u = params.block;
  const auto& push = params.push;
  const uint dtype = params.spec.DTYPE;
  const int kv_head = head / u.group;
  PairOf<T> p;
  p.q = query_view<T>(e, dtype, push.q, u.q, head, u.head_dim, push.wide & 1u);
  p.k = key_view<T>(e, dtype, push.k, u.k, kv_head, u.head_dim, push.wide & 2u);
  p.v = key_view<T>(e, dtype, push.v, u.v, kv_head, u.head_dim_v, push.wide & 4u);
  p.d_o = query_view<T>(e, dtype, push.d_o, u.d_o, head, u.head_dim_v, push.wide & 8u);
  p.of = head_extra(e, head);
  p.rows0 = int64_t(p.of.index) * u.seq_q;
  p.deltas = push.delta;
  p.lse = reinterpret_cast<const float*>(push.lse) + p.rows0;
  p.delta = reinterpret_cast<const float*>(push.delta) + p.rows0;
  return p;
}

// delta of the invocation's columns, where the tile's columns are query rows.
template <typename S, typename T>
TANDEM_DEVICE void load_deltas(float (&delta)[4], const PairOf<T>& p, int col0, int seq_q) {
  const Invocation<S> me;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int i = col0 + me.col(c);
    delta[c] = i < seq_q ? __ldg(p.delta + i) : 0.f;
  }
}

// Stores numbers of a row, which are the same in all of the row's invocations.
template <typename S>
struct RowStore {
  int64_t rows0;  // index of the head's first row among all rows
  int seq_q;
  TANDEM_DEVICE void put(uint64_t address, int row, float x) const {
    if (Invocation<S>().tc == 0 && row < seq_q) reinterpret_cast<float*>(address)[rows0 + row] = x;
  }
  // Stores delta, and the part of d_tau where that is wanted: counts, the sum of M dp, divided by
  // the number of the row's keys.
  template <typename P>
  TANDEM_DEVICE void put_delta(const P& params, const Extra& e, int row, float delta,
                               float counts) const {
    put(params.push.delta, row, delta);
    if (params.spec.ROW_TAU) {
      const int n = tandem_key_count(e.band, row, e.seq_q, e.seq_kv);
      put(params.push.tau_rows, row, n > 0 ? __fdiv_rn(counts, float(n)) : 0.f);
    }
  }
};

// Forms both products of a tile: g in the P tile, dp, M as bits, and what dropout keeps as bits.
// fetched: the first step of S is staged. next() fetches what comes after the tile's last product.
// Returns false, with nothing staged, if the tile is skipped.
template <typename S, bool WIDE, bool CAP, typename Next>
TANDEM_DEVICE bool products_of_tile(float (&dp)[S::RM][4], uint* counted, uint* kept,
                                    Stage<Any, S, WIDE>& stage, float4* pool, float4* ptile,
                                    const Extra& e, const Pair& p, int row0, int col0, bool fetched,
                                    const Next& next) {
  const bool skip = e.f.SKIP != 0;
  if (skip && tile_hidden<S, false>(e, p.of, row0, col0)) return false;
  if (!fetched) stage.fetch_nt(p.q, row0, p.k, col0, 0);
  float s[S::RM][4] = {};
  product_nt(s, stage, pool, p.q, row0, p.k, col0, p.q.width, [&] {
    if (!skip) stage.fetch_nt(p.d_o, row0, p.v, col0, 0);
  });
  // g waits in the P tile, as registers limit the next product. All readers of the P tile of the
  // step before have passed the barriers of the product above.
  bool some = false;
  *counted = weigh_tile<S, CAP>(ptile, s, e, p, row0, col0, &some);
  if (is_entmax(e) && skip && !__syncthreads_or(some)) return false;
  if (skip) stage.fetch_nt(p.d_o, row0, p.v, col0, 0);
  *kept = kept_tile<S>(e, p.of, row0, col0);
#pragma unroll
  for (int i = 0; i < S::RM; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) dp[i][c] = 0.f;
  product_nt(dp, stage, pool, p.d_o, row0, p.v, col0, p.v.width, next);
  return true;
}

// Forms ds of a tile; with CAP, times the derivative of softcap. Otherwise as above.
template <typename S, bool WIDE, bool CAP, typename Next>
TANDEM_DEVICE bool gradient_of_tile(float (&ds)[S::RM][4], Stage<Any, S, WIDE>& stage, float4* pool,
                                    float4* ptile, const Extra& e, const Pair& p, int row0,
                                    int col0, bool fetched, const Next& next) {
  uint counted, kept;
  if (!products_of_tile<S, WIDE, CAP>(ds, &counted, &kept, stage, pool, ptile, e, p, row0, col0,
                                      fetched, next))
    return false;
  gradient_tile<S>(ds, ptile, e, counted, kept, p.delta, row0);
  return true;
}

}  // namespace cuda
}  // namespace tandem
#endif
