// SPDX-License-Identifier: MIT OR Apache-2.0
// Weights of all normalisers with all optional inputs, and dS = g (M dP - delta), in accumulators,
// for the Q loop (q_loop.cuh) and the KV loop (kv_loop.cuh).
#ifndef TANDEM_CUDA_SM80_WEIGHTS_FULL_CUH
#define TANDEM_CUDA_SM80_WEIGHTS_FULL_CUH
#include "kv_loop.cuh"
#include "q_loop.cuh"
#include "weigh.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Columns are queries of one query head.
template <typename T, typename C>
struct FullColumns {
  static constexpr bool SOME = true, SHARES = true;
  static constexpr int N = C::N;
  const Extra& e;
  const PairOf<T>& p;
  const SharedArrays<C>& tiles;
  int row;  // the lane's first key
  struct State {
    float slope[N][4];
    uint counted;  // elements that M and dropout leave, a bit each
  };

  TANDEM_DEVICE int seq_q() const { return e.seq_q; }
  TANDEM_DEVICE int seq_kv() const { return e.seq_kv; }
  TANDEM_DEVICE bool leaves_out(int, int row0, int keys0) const {
    return e.f.SKIP && tile_hidden<C::THREADS>(e, p.of, row0, C::BR, keys0, C::BC);
  }
  static TANDEM_DEVICE float base(float lse) { return lse; }
  TANDEM_DEVICE float share(int row) const { return elastic_shift(e, p.of, row); }
  TANDEM_DEVICE uint numbers(const QueryTile& tile, int which, int from) const {
    return tiles.number(tile.stage, which, from + 2 * Lane().t);
  }
  TANDEM_DEVICE void begin(State&, const QueryTile&, int) const {}
  // Turns products into g, and into weights, of which it makes an operand.
  TANDEM_DEVICE bool weigh(typename C::Block& s, typename C::Operand& weights, State& state,
                           const QueryTile& tile, int from) const {
    const Spot<false, N> spot{row, tile.row0 + from + 2 * Lane().t};
    const uint seen = score_block<true>(s[0], state.slope, e, p.of, spot, tile.edge);
    if (tile.far) take_far_rows(s[0], p, spot, e.seq_q);
    float origin[N][2], shift[N][2];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      get_numbers(origin[n], numbers(tile, 0, from) + 32 * n);
      get_numbers(shift[n], numbers(tile, 2, from) + 32 * n);
    }
    const uint kept = kept_block(e, p.of, spot);
    typename C::Block y;
    state.counted = weigh_block(
        s[0], e, seen, [&](int n, int x) { return origin[n][x % 2]; },
        [&](int n, int x) { return shift[n][x % 2]; },
        [&](int n, int x, float weight) {
          y[0][n][x] = kept >> (4 * n + x) & 1u ? weight * e.x.drop_scale : 0.f;
        });
    state.counted &= kept;
    pack_rows<T>(weights, y);
    if (!is_entmax(e) || !e.f.SKIP) return true;
    bool some = false;
    each<N>([&](int n, int x) { some |= s[0][n][x] != 0.f; });
    return __syncthreads_or(some) != 0;
  }
  TANDEM_DEVICE void apply_slope(typename C::Block& s, const State& state) const {
    if (e.f.SOFTCAP) each<N>([&](int n, int x) { s[0][n][x] *= state.slope[n][x]; });
  }
  // Turns dP into dS. s: g.
  TANDEM_DEVICE void differentiate(typename C::Block& dp, const typename C::Block& s,
                                   const State& state, const QueryTile& tile, int from) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float less[2];
      get_numbers(less, numbers(tile, 1, from) + 32 * n);
#pragma unroll
      for (int x = 0; x < 4; ++x)
        dp[0][n][x] = s[0][n][x] *
                      (counted_dp(dp[0][n][x], state.counted, e.x.drop_scale, n, x) - less[x % 2]);
    }
  }
};

// Rows are queries of one query head. GRADIENT: dS is wanted, and so delta and slopes of softcap.
template <typename T, typename S, bool GRADIENT>
struct FullRows {
  static constexpr bool SOME = true;
  static constexpr int N = S::BC / 8;
  static_assert(S::MT == 1, "as it is written");
  using Tile = KeyTile<S, FullRows>;
  struct State {
    float slope[N][4];
    uint counted;  // elements that M and dropout leave, a bit each
  };
  const Extra& e;
  const PairOf<T>& p;
  int row;    // the lane's first query
  bool skip;  // tiles in which keep or entmax leaves nothing are left out
  float origin[2], shift[2], delta[1][2];
  bool some_far = false;  // a row of the warp is far (src/problem/far_row.h)

  TANDEM_DEVICE FullRows(const Extra& e, const PairOf<T>& p, int row, bool all)
      : e(e), p(p), row(row), skip(e.f.SKIP != 0 && !all) {}
  TANDEM_DEVICE Spot<true, N> spot(const Tile& tile) const {
    return {row, tile.col0 + 2 * Lane().t};
  }
  TANDEM_DEVICE bool leaves_out(int row0, int col0) const {
    return skip && tile_hidden<S::THREADS>(e, p.of, row0, S::BR, col0, S::BC);
  }
  TANDEM_DEVICE bool cuts_rows(int row0) const { return row0 + S::BR > e.seq_q; }
  TANDEM_DEVICE void fetch_rows() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = row + 8 * h;
      origin[h] = i < e.seq_q ? __ldg(p.lse + i) : minus_infinity();
      if (tandem_is_far(origin[h])) origin[h] = p.far(i).relative, some_far = true;
      shift[h] = elastic_shift(e, p.of, i);
      if (GRADIENT) delta[0][h] = i < e.seq_q ? __ldg(p.delta + i) : 0.f;
    }
    some_far = any_of_warp(some_far);
  }
  TANDEM_DEVICE void begin(Tile&) const {}
  // Turns products into g.
  TANDEM_DEVICE bool weigh(Tile& tile) const {
    const Spot<true, N> at = spot(tile);
    const uint seen = score_block<GRADIENT>(tile.s[0], tile.state.slope, e, p.of, at, tile.edge);
    if (some_far) take_far_rows(tile.s[0], p, at, e.seq_q);
    tile.state.counted = weigh_block(
        tile.s[0], e, seen, [&](int, int x) { return origin[x / 2]; },
        [&](int, int x) { return shift[x / 2]; }, [](int, int, float) {});
    if (is_entmax(e) && skip) {
      bool some = false;
      each<N>([&](int n, int x) { some |= tile.s[0][n][x] != 0.f; });
      if (!__syncthreads_or(some)) return false;
    }
    tile.state.counted &= kept_block(e, p.of, at);
    return true;
  }
  TANDEM_DEVICE float weight(const Tile& tile, int, int n, int x) const { return tile.s[0][n][x]; }
  TANDEM_DEVICE float counted_dp(const Tile& tile, int, int n, int x) const {
    return sm80::counted_dp(tile.dp[0][n][x], tile.state.counted, e.x.drop_scale, n, x);
  }
  // Multiplies dS by the derivative of softcap.
  TANDEM_DEVICE void apply_slope(Tile& tile) const {
    if (e.f.SOFTCAP) each<N>([&](int n, int x) { tile.dp[0][n][x] *= tile.state.slope[n][x]; });
  }
};

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
