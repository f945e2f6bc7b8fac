// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias on tensor cores, for softmax whose scores have a bias and no other optional input than
// keep, lengths and a sink: p is exp(s - lse) and ds is p (dp - delta).
#ifndef TANDEM_CUDA_SM80_BWD_DBIAS_CUH
#define TANDEM_CUDA_SM80_BWD_DBIAS_CUH
#include "dbias_sum.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// The bias of a lane's elements, which is the same for all members of a sum. 16-bit numbers wait in
// registers. f32 is read again for each member, as there are no registers for it.
template <typename S>
class TileBias {
 public:
  TANDEM_DEVICE TileBias(const BwdDbiasFull& params, const DbiasPlace<S>& place)
      : params_(params), place_(place) {
    const BwdDbiasBlock& u = params.block;
    const Strides& by = params.extra.bias;
    // Without members there may be no bias.
    if (params.features.BIAS == TANDEM_F32 || u.members == 0) return;
    const Lane me;
    const auto* base = head<F16>();
    const int row = place.row0 + place.own + me.g, col = place.col0 + place.key + 2 * me.t;
    const auto number = [&](int i, int j) {
      return i < u.seq_q && j < u.seq_kv ? uint(__ldg(base + i * by.s + j * by.d)) : 0u;
    };
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        const int i = row + 8 * (n % 4), j = col + 32 * step + 8 * (n / 4);
        held_[step][n % 4][n / 4] = number(i, j) | number(i, j + 1) << 16;
      }
  }
  // Turns products into scores. What is computed of the bias, or of its addresses, is not to wait
  // in registers for the next member.
  TANDEM_DEVICE void add(float (&s)[2][4][4], int step) const {
    const float scale = params_.block.scale;
    with_type(params_.features.BIAS, [&](auto type) {
      using E = decltype(type);
      if constexpr (std::is_same<E, F32>::value) {
        const Lane me(thread_number());
        add_f32(s, place_.row0 + place_.own + me.g,
                place_.col0 + place_.key + 32 * step + 2 * me.t);
      } else {
        each<4>([&](int m, int n) {
          const uint two = opaque(held_[step][m][n]);
          float* to = s[m / 2][n] + 2 * (m % 2);
          to[0] = fmaf(to[0], scale, E::to_float(static_cast<unsigned short>(two & 0xffffu)));
          to[1] = fmaf(to[1], scale, E::to_float(static_cast<unsigned short>(two >> 16)));
        });
      }
    });
  }

 private:
  static constexpr int STEPS = DbiasShape<S>::STEPS;
  template <typename E>
  TANDEM_DEVICE const typename E::Element* head() const {
    const Strides& by = params_.extra.bias;
    return reinterpret_cast<const typename E::Element*>(
               params_.push.extra[params_.features.AT_BIAS]) +
           place_.bias_batch * by.b + place_.bias_head * by.h;
  }
  // Elements outside of the bias are some element of it. Nothing comes of them.
  TANDEM_DEVICE void add_f32(float (&s)[2][4][4], int row, int col) const {
    const Strides& by = params_.extra.bias;
    const float scale = params_.block.scale;
    const int last_row = params_.block.seq_q - 1, keys = params_.block.seq_kv;
    const float* base = head<F32>();
    // Of an even number of keys, two that lie side by side both exist or not.
    const bool pairs =
        by.d == 1 && by.s % 2 == 0 && keys % 2 == 0 && reinterpret_cast<uint64_t>(base) % 8 == 0;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float* line = base + tandem_min(row + 8 * m, last_row) * by.s;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int j = col + 8 * n;
        float x[2];
        if (pairs) {
          const float2 y = __ldg(reinterpret_cast<const float2*>(line + tandem_min(j, keys - 2)));
          x[0] = y.x, x[1] = y.y;
        } else {
          x[0] = __ldg(line + tandem_min(j, keys - 1) * by.d);
          x[1] = __ldg(line + tandem_min(j + 1, keys - 1) * by.d);
        }
        float* to = s[m / 2][n] + 2 * (m % 2);
        to[0] = fmaf(to[0], scale, x[0]), to[1] = fmaf(to[1], scale, x[1]);
      }
    }
  }

  const BwdDbiasFull& params_;
  const DbiasPlace<S>& place_;
  uint held_[STEPS][4][4];  // of a lane's rows 8 m, its keys 32 step + 8 n and the next one
};

// Sets the scores of keys that keep hides to -inf. row, col: of the first element of the lane.
TANDEM_DEVICE void hide_dropped(float (&s)[2][4][4], const Extra& e, const HeadExtra& of, int row,
                                int col) {
  const bool one_row = e.x.keep.s == 0;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int j = col + 8 * (n / 2) + n % 2;
    if (j >= e.seq_kv) continue;
    const char* at = of.keep + j * e.x.keep.d;
    bool keeps = true;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int i = row + 8 * m;
      if (m == 0 || !one_row)
        keeps = i < e.seq_q || one_row ? __ldg(at + i * e.x.keep.s) != 0 : false;
      float& x = s[m / 2][n / 2][2 * (m % 2) + n % 2];
      x = keeps ? x : minus_infinity();
    }
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    bwd_dbias(const __grid_constant__ BwdDbiasFull params) {
  using S = MmaShape<ROW>;
  constexpr int W = S::WIDTH, BR = S::BR, BC = S::BC, STEPS = DbiasShape<S>::STEPS;
  const BwdDbiasBlock& u = params.block;
  if (params.first_group + block_number() >= params.block.total) return;
  const Lane me;
  const DbiasPlace<S> place(params, params.first_group + block_number(), me);
  const DbiasTiles<S> tiles;
  const Reach<W> k_at(tiles.k, false), v_at(tiles.v, false);
  const TileBias<S> bias(params, place);
  // Otherwise no key that exists is hidden by its position.
  const bool masked = u.band_left != TANDEM_BAND_OPEN || u.band_right != TANDEM_BAND_OPEN ||
                      Lengths(params.features.LENGTHS_KV) != Lengths::full;
  float sum[STEPS][2][4][4] = {};

  const auto left_out = [&](const Member& of) {
    if (!masked && Lengths(params.features.LENGTHS_Q) == Lengths::full) return false;
    const Extra e = make_extra(params, of.batch);
    return !tile_visible(e, of.row0, BR, place.col0, BC);
  };
  each_member<T, S, false>(params, place, left_out, [&](const Member& of, int stage, bool far) {
    const int row = of.row0 + place.own + me.g, col = place.col0 + place.key + 2 * me.t;
    const SharedLeft<W, 2> q_at(tiles.q, stage * BR + place.own),
        o_at(tiles.d_o, stage * BR + place.own);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int key = place.key + 32 * step;
      float s[2][4][4], dp[2][4][4], number[2][2][2];
      product_nt<W, T>(s, q_at, k_at, stage * BC + key);
      bias.add(s, step);
#pragma unroll
      for (int n = 0; n < 4; ++n)
        tiles.lse_and_delta(number[n / 2][n % 2], stage, place.own + 8 * n + me.g);
      if (masked) {
        const Extra e = make_extra(params, of.batch);
        const TandemTiles span = tandem_key_tiles(e.band, of.row0, BR, BC, e.seq_q, e.seq_kv);
        const int t = place.col0 / BC;
        if (t < span.full_begin || t >= span.full_end)
          hide(
              s, row, col + 32 * step, [&](int i) { return i + e.band.off - e.band.left; },
              [&](int i) { return tandem_min(i + e.band.off + e.band.right, e.seq_kv - 1); });
      }
      if (params.features.KEEP) {
        const Extra e = make_extra(params, of.batch);
        hide_dropped(s, e, head_extra(e, of.head), row, col + 32 * step);
      }
      if (far) {
        const Extra e = make_extra(params, of.batch);
        const PairOf<T> p = make_pair<T>(params, e, of.head);
#pragma unroll
        for (int m = 0; m < 2; ++m)
          take_far_rows(s[m], p, Spot<true, 4>{row + 16 * m, col + 32 * step}, e.seq_q);
      }
      // dp begins at -delta.
#pragma unroll
      for (int m = 0; m < 2; ++m)
        each<4>([&](int n, int x) { dp[m][n][x] = -number[m][x / 2][1]; });
      add_product_nt<W, T>(dp, o_at, v_at, stage * BC + key);
#pragma unroll
      for (int m = 0; m < 2; ++m)
        each<4>([&](int n, int x) {
          // In natural units, so that a score that equals lse has weight 1.
          const float p = exp2_fast(__fsub_rn(s[m][n][x], number[m][x / 2][0]) * kLog2e);
          sum[step][m][n][x] = fmaf(p, dp[m][n][x], sum[step][m][n][x]);
        });
    }
  });
  store_sums<S>(params, sum);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
