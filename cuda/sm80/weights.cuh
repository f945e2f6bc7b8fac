// SPDX-License-Identifier: MIT OR Apache-2.0
// Weights of softmax and dS = P (dP - delta) in accumulators, for the Q loop (q_loop.cuh) and the
// KV loop (kv_loop.cuh). Problems have no optional inputs, or those of SimpleInputs.
#ifndef TANDEM_CUDA_SM80_WEIGHTS_CUH
#define TANDEM_CUDA_SM80_WEIGHTS_CUH
#include "inputs.cuh"
#include "kv_loop.cuh"
#include "q_loop.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Columns are queries. Where dS becomes d_q as well (SUMS_Q), a sum over keys, those behind the
// last one must not count.
template <typename T, typename C, typename Inputs, bool SUMS_Q, typename Params>
struct SoftmaxColumns {
  static constexpr bool SOME = Inputs::SOME, SHARES = false;
  const Params& params;
  const Inputs& in;
  // Queries that see key 0 by position: key j has first + j to last + j. Beside optional inputs
  // registers are short, and these are formed from the band each time.
  int first, last;
  Exponent e;
  const SharedArrays<C>& tiles;
  int row;  // the lane's first key
  struct State {
    BiasBlock<C::WEIGHED, C::N> bias;
  };

  TANDEM_DEVICE SoftmaxColumns(const Params& params, const Inputs& in, const SharedArrays<C>& tiles,
                               int row)
      : params(params),
        in(in),
        first(-in.band().off - in.band().right),
        last(in.band().left - in.band().off),
        e(params.block.scale, kIsF32<T> || SOME),
        tiles(tiles),
        row(row) {}
  TANDEM_DEVICE int seq_q() const { return in.seq_q(); }
  TANDEM_DEVICE int seq_kv() const { return in.seq_kv(); }
  TANDEM_DEVICE bool leaves_out(int head, int row0, int keys0) const {
    return in.template leaves_out<C::THREADS>(head, row0, C::BR, keys0, C::BC);
  }
  static TANDEM_DEVICE float base(float lse) { return base_of_row<T>(lse); }
  // The lane's first query of a turn.
  TANDEM_DEVICE int first_query(const QueryTile& tile, int from) const {
    return tile.row0 + from + 2 * Lane().t;
  }
  TANDEM_DEVICE void begin([[maybe_unused]] State& state, [[maybe_unused]] const QueryTile& tile,
                           [[maybe_unused]] int from) const {
    if constexpr (Inputs::SOME)
      in.template load_bias<false>(state.bias, tile.head, row, first_query(tile, from));
  }
  // Turns products into weights.
  TANDEM_DEVICE bool weigh(typename C::Block& s, typename C::Operand& p,
                           [[maybe_unused]] const State& state, const QueryTile& tile,
                           int from) const {
    e.apply(s);
    if constexpr (Inputs::SOME)
      in.template apply<false>(s, state.bias, tile.head, row, first_query(tile, from));
    if (tile.edge)
      hide(
          s, row, first_query(tile, from),
          [&](int j) { return SOME ? j - in.band().off - in.band().right : j + first; },
          [&](int j) {
            if ((SUMS_Q || Inputs::SOME) && j >= in.seq_kv()) return -1;
            return SOME ? j - in.band().off + in.band().left : j + last;
          });
    if (tile.far)
      take_far_rows<true>(s, e, params.push.lse, params.push.delta, tile.rows0,
                          first_query(tile, from), in.seq_q());
    const uint numbers = tiles.number(tile.stage, 0, from + 2 * Lane().t);
#pragma unroll
    for (int n = 0; n < C::N; ++n) {
      float base[2];
      get_numbers(base, numbers + 32 * n);
#pragma unroll
      for (int r = 0; r < C::WEIGHED; ++r)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[r][n][x] = weight_of<T>(s[r][n][x], e, base[x % 2]);
    }
    pack_rows<T>(p, s);
    return true;
  }
  TANDEM_DEVICE void apply_slope(typename C::Block&, const State&) const {}
  // Turns dP into dS. s: weights.
  TANDEM_DEVICE void differentiate(typename C::Block& dp, const typename C::Block& s, const State&,
                                   const QueryTile& tile, int from) const {
    const uint numbers = tiles.number(tile.stage, 0, from + 2 * Lane().t);
#pragma unroll
    for (int n = 0; n < C::N; ++n) {
      float less[2];
      get_numbers(less, numbers + 4 * C::BR + 32 * n);
#pragma unroll
      for (int r = 0; r < C::WEIGHED; ++r)
#pragma unroll
        for (int x = 0; x < 4; ++x) dp[r][n][x] = s[r][n][x] * (dp[r][n][x] - less[x % 2]);
    }
  }
};

// Rows are queries of one query head.
template <typename T, typename S, typename Inputs, typename Params>
struct SoftmaxRows {
  static constexpr bool SOME = Inputs::SOME;
  static constexpr int MT = S::MT;
  using Tile = KeyTile<S, SoftmaxRows>;
  struct State {
    BiasBlock<MT, S::BC / S::HALVES / 8> bias;
  };
  const Params& params;
  const Inputs& in;
  int first, last;  // keys of row 0 by position: row i has first + i to last + i
  Exponent e;
  int head, row;  // row: the lane's first query
  int64_t rows0;  // index of the head's first row among all rows
  bool all;       // no tile is left out
  float lse[MT][2], delta[MT][2];
  bool some_far = false;  // a row of the warp is far (src/problem/far_row.h)

  TANDEM_DEVICE SoftmaxRows(const Params& params, const Inputs& in, int head, int row,
                            int64_t rows0, bool all)
      : params(params),
        in(in),
        first(in.band().off - in.band().left),
        last(in.band().off + in.band().right),
        e(params.block.scale, kIsF32<T> || SOME),
        head(head),
        row(row),
        rows0(rows0),
        all(all) {}
  TANDEM_DEVICE bool leaves_out([[maybe_unused]] int row0, [[maybe_unused]] int col0) const {
    if constexpr (SOME)
      return !all && in.template leaves_out<S::THREADS>(head, row0, S::BR, col0, S::BC);
    else
      return false;
  }
  // Rows behind the last one have no weights.
  TANDEM_DEVICE bool cuts_rows(int) const { return false; }
  TANDEM_DEVICE void fetch_rows() {
    const auto& push = params.push;
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = row + 16 * r + 8 * h;
        const bool there = i < in.seq_q();
        float of_row =
            there ? __ldg(reinterpret_cast<const float*>(push.lse) + rows0 + i) : minus_infinity();
        if (tandem_is_far(of_row))
          of_row = far_row(push.delta, rows0 + i).relative, some_far = true;
        lse[r][h] = base_of_row<T>(of_row);
        delta[r][h] = there ? __ldg(reinterpret_cast<const float*>(push.delta) + rows0 + i) : 0.f;
      }
    some_far = any_of_warp(some_far);
  }
  TANDEM_DEVICE void begin([[maybe_unused]] Tile& tile) const {
    if constexpr (SOME)
      in.template load_bias<true>(tile.state.bias, head, row, tile.col0 + 2 * Lane().t);
  }
  // Turns products into exponents.
  TANDEM_DEVICE bool weigh(Tile& tile) const {
    const int col = tile.col0 + 2 * Lane().t;
    e.apply(tile.s);
    if constexpr (SOME) in.template apply<true>(tile.s, tile.state.bias, head, row, col);
    if (tile.edge)
      hide(
          tile.s, row, col, [&](int i) { return i + first; },
          [&](int i) { return tandem_min(i + last, in.seq_kv() - 1); });
    if (some_far)
      take_far_rows<false>(tile.s, e, params.push.lse, params.push.delta, rows0, row, in.seq_q());
    return true;
  }
  TANDEM_DEVICE float weight(const Tile& tile, int r, int n, int x) const {
    return weight_of<T>(tile.s[r][n][x], e, lse[r][x / 2]);
  }
  TANDEM_DEVICE float counted_dp(const Tile& tile, int r, int n, int x) const {
    return tile.dp[r][n][x];
  }
  TANDEM_DEVICE void apply_slope(Tile&) const {}
};

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
