// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on tensor cores with optional inputs and any normaliser. The operation is that of
// cuda/simt/fwd_full.cu.
#ifndef TANDEM_CUDA_SM80_FWD_FULL_CUH
#define TANDEM_CUDA_SM80_FWD_FULL_CUH
#include "../parts/entmax.cuh"
#include "fwd.cuh"
#include "kv_loop.cuh"
#include "weigh.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Finds what weights are relative to, where it must be known before the first weight
// (cuda/parts/entmax.cuh): lse of the row for elastic softmax, its threshold for entmax. Each pass
// over the keys computes scores alone.
template <typename T, typename S, typename Left>
TANDEM_DEVICE void find_origin(RowOrigin (&origin)[2], const Extra& e, const HeadExtra& of,
                               const float* sink, const LiveTiles& live, const Left& left,
                               uint k_tile, const View<T>& k, int row0, int row,
                               const TandemTiles& span) {
  constexpr int W = S::WIDTH, BC = S::BC;
  const Lane me;
  const Reach<W> k_at(k_tile, false);
  const bool entmax = is_entmax(e), skip = e.f.SKIP != 0;
  Threshold of_row[2];
  bool moving[2] = {true, true};
  if (entmax && skip) live.clear<S>();
#pragma unroll 1
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    const bool first = pass == 0;
    // x is the maximum in the first pass, which is the only one of elastic softmax.
    float3 sum[2];
    sum[0] = sum[1] = make_float3(first ? minus_infinity() : 0.f, 0.f, 0.f);
    const auto left_out = [&](int t) {
      if (entmax && skip && !live.has(t)) return true;
      if (!skip || !tile_hidden<S::THREADS>(e, of, row0, S::BR, t * BC, BC)) return false;
      if (entmax) live.remove(t);
      return true;
    };
#pragma unroll 1
    for (int t = next_tile(span.begin, span.end, left_out); t < span.end;
         t = next_tile(t + 1, span.end, left_out)) {
      __syncthreads();  // all have read the tile before
      load_rows<W, BC, S::THREADS>(k_tile, k, t * BC);
      commit();
      wait<0>();
      __syncthreads();
      float s[1][BC / 8][4], slope[BC / 8][4];
      product_nt<W, T>(s, left, k_at, 0);
      score_block<false>(s[0], slope, e, of, Spot<true, BC / 8>{row, t * BC + 2 * me.t}, true);
      bool above = false;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float3 a = sum[h];
        if (first) {
          float top = a.x;
#pragma unroll
          for (int n = 0; n < BC / 8; ++n)
            top = fmaxf(top, fmaxf(s[0][n][2 * h], s[0][n][2 * h + 1]));
          if (!entmax) {
            const float base = top == minus_infinity() ? 0.f : top;
            float l = 0.f;
#pragma unroll
            for (int n = 0; n < BC / 8; ++n)
#pragma unroll
              for (int c = 0; c < 2; ++c)
                l += exp2_fast(__fsub_rn(s[0][n][2 * h + c], base) * kLog2e);
            a.y = fmaf(a.y, exp2_fast((a.x - base) * kLog2e), l);
          }
          a.x = top;
        } else {
          const Threshold now = of_row[h];
          if (now.from != 0.f)
#pragma unroll
            for (int n = 0; n < BC / 8; ++n)
#pragma unroll
              for (int x = 2 * h; x < 2 * h + 2; ++x) s[0][n][x] = __fsub_rn(s[0][n][x], now.from);
#pragma unroll
          for (int n = 0; n < BC / 8; ++n)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const float z = s[0][n][2 * h + c];
              above |= z > now.lo;
              const float x = fmaxf(__fsub_rn(z, now.t), 0.f);
              const float g = entmax_power(e, x);
              a.x += e.f.ALPHA == 3 ? x * g : x;
              a.y += e.f.ALPHA == 3 ? g : x * x;
              a.z += x > 0.f ? 1.f : 0.f;
            }
        }
        sum[h] = a;
      }
      // All scores of the tile are at or below the lower bounds of their rows, which only rise.
      if (!first && skip && !__syncthreads_or(above)) live.remove(t);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float3 a = sum[h];
      Threshold& now = of_row[h];
      if (!first) {
        const float x = quad_sum(a.x), y = quad_sum(a.y), n = quad_sum(a.z);
        if (moving[h] && !now.step(e, x, y, n)) moving[h] = false;
      } else {
        const float m = quad_max(a.x);
        const float l =
            entmax ? 0.f
                   : quad_sum(a.y * exp2_fast((a.x - (m == minus_infinity() ? 0.f : m)) * kLog2e));
        const float n = float(tandem_key_count(e.band, row + 8 * h, e.seq_q, e.seq_kv));
        if (!now.begin(e, sink, m, l, n)) moving[h] = false;
      }
    }
    if (!entmax || !__syncthreads_or(moving[0] | moving[1])) break;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) origin[h] = RowOrigin{of_row[h].t, of_row[h].from};
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    fwd_full(const __grid_constant__ FwdFull params) {
  using S = MmaShape<ROW>;
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC;
  static_assert(S::MT == 1 && S::STAGES == 1, "as it is written");
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  Place at;
  if (!find_queries<ROW>(params, &at)) return;
  const int part = at.batch;  // over batch and splits
  at.batch = part / u.splits;
  const int kv_head = at.head / u.group;
  const int row0 = at.tile * BR;
  const Extra e = make_extra(params, at.batch);
  const HeadExtra of = head_extra(e, at.head);
  const View<T> q = query_view<T>(e, 0, push.q, u.q, at.head, u.head_dim, push.wide & 1u);
  const View<T> k = key_view<T>(e, 0, push.k, u.k, kv_head, u.head_dim, push.wide & 2u);
  const View<T> v = key_view<T>(e, 0, push.v, u.v, kv_head, u.head_dim_v, push.wide & 4u);
  const TandemTiles span = tandem_split_tiles(
      tandem_key_tiles(e.band, row0, BR, BC, e.seq_q, e.seq_kv), part % u.splits, u.splits);
  const auto sink_at = [&](int row) {
    const uint which = params.spec.SINK;
    return sink_of_row(which, push.sink, sink_head(which, u, at.batch, at.head), row, u.seq_q);
  };

  const Lane me;
  const SharedArrays<S> tiles;
  const uint q_tile = tiles.q, k_tile = tiles.k, v_tile = tiles.v;
  const LiveTiles live{reinterpret_cast<uint*>(shared_memory()) + S::shared.end / 4, span.begin};
  const int own = 16 * me.warp, row = row0 + own + me.g;  // the lane's first row
  const SharedLeft<W, 1> q_at(q_tile, own);
  const Reach<W> k_at(k_tile, false), v_at(v_tile, true);
  const bool online = Normalizer(e.f.NORM) == Normalizer::softmax, entmax = is_entmax(e);
  const bool skip = e.f.SKIP != 0;
  RowOrigin origin[2];

  load_rows<W, BR, S::THREADS>(q_tile, q, row0);
  commit();
  if (!online) {
    wait<0>();
    __syncthreads();
    find_origin<T, S>(origin, e, of, sink_at(row0), live, q_at, k_tile, k, row0, row, span);
  }
  const bool some_far = origin[0].from != 0.f || origin[1].from != 0.f;
  float shift[2];
  shift[0] = elastic_shift(e, of, row), shift[1] = elastic_shift(e, of, row + 8);
  OnlineRows<1> softmax;
  float o[1][W / 8][4];
  clear(o);

  const auto left_out = [&](int t) {
    if (entmax && skip && !live.has(t)) return true;
    return skip && tile_hidden<S::THREADS>(e, of, row0, BR, t * BC, BC);
  };
  int t = next_tile(span.begin, span.end, left_out);
  __syncthreads();  // the search has read K
  if (t < span.end) load_rows<W, BC, S::THREADS>(k_tile, k, t * BC);
  commit();
#pragma unroll 1
  while (t < span.end) {
    const int col0 = t * BC;
    wait<0>();
    __syncthreads();
    load_rows<W, BC, S::THREADS>(v_tile, v, col0);
    commit();
    float s[1][BC / 8][4], slope[BC / 8][4];
    product_nt<W, T>(s, q_at, k_at, 0);
    const Spot<true, BC / 8> spot{row, col0 + 2 * me.t};
    const bool edge = t < span.full_begin || t >= span.full_end || row0 + BR > e.seq_q;
    const uint seen = score_block<false>(s[0], slope, e, of, spot, edge);
    bool some = true;
    if (online) {
      softmax.step(s, o, kLog2e, u.slack);
    } else {
      some = false;
      if (some_far)
        each<BC / 8>([&](int n, int x) { s[0][n][x] = __fsub_rn(s[0][n][x], origin[x / 2].from); });
      weigh_block(
          s[0], e, seen, [&](int, int x) { return origin[x / 2].at; },
          [&](int, int x) { return shift[x / 2]; },
          [&](int n, int x, float y) { s[0][n][x] = y, some |= y != 0.f; });
    }
    const bool counts = !(entmax && skip) || __syncthreads_or(some);
    t = next_tile(t + 1, span.end, left_out);
    wait<0>();
    __syncthreads();
    if (t < span.end) load_rows<W, BC, S::THREADS>(k_tile, k, t * BC);
    commit();
    if (!counts) continue;
    if (e.f.DROPOUT) {
      const uint kept = kept_block(e, of, spot);
      each<BC / 8>([&](int n, int x) {
        s[0][n][x] = kept >> (4 * n + x) & 1u ? s[0][n][x] * e.x.drop_scale : 0.f;
      });
    }
    uint p[1][BC / 16][4];
    pack_rows<T>(p, s);
    product_nn<W, T>(o, p, v_at, 0);
  }
  wait<0>();
  __syncthreads();  // for Q, where no tile was visited

  float* lse = reinterpret_cast<float*>(push.lse);
  const int64_t lse0 = (int64_t(part) * u.heads_q + at.head) * u.seq_q;
  float factor[2] = {1.f, 1.f}, divisor[2] = {1.f, 1.f};
  float largest = minus_infinity();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row + 8 * h;
    const float* sink = sink_at(i);
    if (i < e.seq_q) largest = fmaxf(largest, softmax.m[0][h]);
    float from = origin[h].lse(sink), log_sum = 0.f;
    if (online) {
      float l = quad_sum(softmax.l[0][h]);
      const float m = softmax.m[0][h];
      from = minus_infinity();
      if (l > 0.f) {
        divisor[h] = l;
        l *= exp2_fast(-OnlineRows<1>::off(m, kLog2e));
        log_sum = logf(l);
        from = joined_lse(sink, m, l);
        if (sink) {
          const float x = __ldg(sink), top = fmaxf(m, x);
          factor[h] = expf(m - top) * (l / divisor[h]);
          divisor[h] = fmaf(l, expf(m - top), expf(x - top));
        }
      }
    }
    if (i >= e.seq_q) from = minus_infinity();
    if (lse && me.t == 0 && i < u.seq_q) {
      if (u.splits > 1 && from != minus_infinity())
        put_part_lse(lse, lse0 + i, softmax.m[0][h], log_sum);
      else
        lse[lse0 + i] = from;
    }
  }
  const auto of_row = [&](float x, int, int h) { return __fdiv_rn(x * factor[h], divisor[h]); };
  if (u.splits > 1)
    store_numbers(part_view(push.o, u.o, part, at.head, u.seq_q), row, 2 * me.t, o, of_row);
  else
    store_averages<W>(make_rows_view<T>(0, push.o, u.o, at.batch, at.head, e.first_q, e.written_q,
                                        u.head_dim_v, push.wide & 8u),
                      row0, q_tile, own, o, of_row);
  raise_max_logit(u, push, at.batch, at.head, largest);  // last, as registers are short
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
