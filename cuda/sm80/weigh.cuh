// SPDX-License-Identifier: MIT OR Apache-2.0
// Optional inputs on elements in accumulators: from products to scores (as cuda/parts/score.cuh),
// and to y, g and M of dS = g (M dP - delta) (as cuda/parts/weight.cuh). Each optional input has
// its own loop over the elements, so that an input that a problem lacks costs one branch. Every
// operation of a score is rounded by itself, in the order of score.cuh.
#ifndef TANDEM_CUDA_SM80_WEIGH_CUH
#define TANDEM_CUDA_SM80_WEIGH_CUH
#include "../parts/pair.cuh"
#include "scores.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Position of a block of 16 rows and 8 N columns, as a lane sees it: its element [n][x] has row
// row + 8 (x / 2) and column col + 8 n + x % 2. KEYS: columns are keys. Otherwise rows are keys.
template <bool KEYS, int N>
struct Spot {
  int row, col;
  TANDEM_DEVICE int i(int n, int x) const { return KEYS ? row + 8 * (x / 2) : col + 8 * n + x % 2; }
  TANDEM_DEVICE int j(int n, int x) const { return KEYS ? col + 8 * n + x % 2 : row + 8 * (x / 2); }
};

template <int N, typename Visit>
TANDEM_DEVICE void each(const Visit& visit) {
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int x = 0; x < 4; ++x) visit(n, x);
}

// Turns products into scores. Returns the set of visible elements, a word with bit 4 n + x for
// element [n][x]; the others become -inf. slope: the derivative of softcap, only with CAP. edge:
// the position may hide some elements.
template <bool CAP, bool KEYS, int N>
TANDEM_DEVICE uint score_block(float (&s)[N][4], float (&slope)[N][4], const Extra& e,
                               const HeadExtra& of, const Spot<KEYS, N>& at, bool edge) {
  static_assert(N <= 8, "a bit for each element");
  uint seen = ~0u;
  if (edge)
    each<N>([&](int n, int x) {
      if (!position_visible(e, at.i(n, x), at.j(n, x))) seen &= ~(1u << (4 * n + x));
    });
  each<N>([&](int n, int x) {
    s[n][x] = __fmul_rn(e.scale, s[n][x]);
    if (CAP) slope[n][x] = 1.f;
  });
  if (e.f.SOFTCAP)
    each<N>([&](int n, int x) {
      const float ratio = __fdiv_rn(s[n][x], e.x.softcap), t = tandem_tanh(ratio);
      if (CAP) slope[n][x] = tandem_tanh_slope(ratio, t);
      s[n][x] = __fmul_rn(e.x.softcap, t);
    });
  if (e.f.BIAS)
    with_type(e.f.BIAS, [&](auto type) {
      using E = decltype(type);
      const auto* base = reinterpret_cast<const typename E::Element*>(of.bias) +
                         at.i(0, 0) * e.x.bias.s + at.j(0, 0) * e.x.bias.d;
      const int64_t down = KEYS ? e.x.bias.s : e.x.bias.d, right = KEYS ? e.x.bias.d : e.x.bias.s;
      each<N>([&](int n, int x) {
        if (seen >> (4 * n + x) & 1u)
          s[n][x] = __fadd_rn(
              s[n][x], E::to_float(__ldg(base + (8 * (x / 2)) * down + (8 * n + x % 2) * right)));
      });
    });
  const int distance = at.i(0, 0) + e.band.off - at.j(0, 0);
  const auto away = [&](int n, int x) {
    const int across = 8 * n + x % 2 - 8 * (x / 2);
    return KEYS ? distance - across : distance + across;
  };
  if (e.f.DIST) {
    // In most tiles the window reaches no element.
    const int nearest = KEYS ? distance - 8 * N : distance - 8,
              farthest = KEYS ? distance + 8 : distance + 8 * N;
    if ((farthest >= 0) & (nearest < e.x.dist_window))
      each<N>([&](int n, int x) {
        const int t = away(n, x);
        if ((t >= 0) & (t < e.x.dist_window)) s[n][x] = __fadd_rn(s[n][x], __ldg(of.dist + t));
      });
  }
  if (e.f.ALIBI)
    each<N>([&](int n, int x) {
      const int t = away(n, x);
      s[n][x] = __fsub_rn(s[n][x], __fmul_rn(of.slope, float(t < 0 ? -t : t)));
    });
  if (e.f.KEEP) {
    const char* base = of.keep + at.i(0, 0) * e.x.keep.s + at.j(0, 0) * e.x.keep.d;
    const int64_t down = KEYS ? e.x.keep.s : e.x.keep.d, right = KEYS ? e.x.keep.d : e.x.keep.s;
    each<N>([&](int n, int x) {
      if ((seen >> (4 * n + x) & 1u) &&
          __ldg(base + (8 * (x / 2)) * down + (8 * n + x % 2) * right) == 0)
        seen &= ~(1u << (4 * n + x));
    });
  }
  // A loop, as few tiles have hidden pairs, and unrolled it would cost all others registers.
  if (e.f.SPANS) {
#pragma unroll 1
    for (int m = 0; m < 4 * N; ++m)
      if ((seen >> m & 1u) && !is_spanned(e, of.index, at.i(m / 4, m % 4), at.j(m / 4, m % 4)))
        seen &= ~(1u << m);
  }
  if (is_entmax(e)) each<N>([&](int n, int x) { s[n][x] = __fmul_rn(e.x.entmax_scale, s[n][x]); });
  if (edge || e.f.KEEP || e.f.SPANS)
    each<N>([&](int n, int x) { s[n][x] = seen >> (4 * n + x) & 1u ? s[n][x] : minus_infinity(); });
  return seen;
}

// Scores of far rows become relative to their origins (src/problem/far_row.h).
template <typename T, bool KEYS, int N>
TANDEM_DEVICE void take_far_rows(float (&s)[N][4], const PairOf<T>& p, const Spot<KEYS, N>& at,
                                 int seq_q) {
  constexpr int COUNT = KEYS ? 2 : 2 * N;
#pragma unroll
  for (int n = 0; n < COUNT; ++n) {
    const int i = KEYS ? at.i(0, 2 * n) : at.i(n / 2, n % 2);
    if (i >= seq_q || !tandem_is_far(__ldg(p.lse + i))) continue;
    const float origin = p.far(i).origin;
#pragma unroll
    for (int m = 0; m < (KEYS ? N : 1); ++m)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& of = KEYS ? s[m][2 * n + c] : s[n / 2][2 * c + n % 2];
        of = cuda::from_origin(of, origin);
      }
  }
}

// Turns scores into g, calls y(n, x, weight) for each element, and returns M. origin(n, x): lse, or
// the threshold of entmax; shift(n, x): tau / n_i.
template <int N, typename Origin, typename Shift, typename Y>
TANDEM_DEVICE uint weigh_block(float (&s)[N][4], const Extra& e, uint seen, const Origin& origin,
                               const Shift& shift, const Y& y) {
  if (is_entmax(e)) {
    each<N>([&](int n, int x) {
      const float from = origin(n, x);
      const bool nothing = !(seen >> (4 * n + x) & 1u) | (from == minus_infinity());
      const float z = nothing ? 0.f : fmaxf(__fsub_rn(s[n][x], from), 0.f);
      s[n][x] = entmax_power(e, z);
      y(n, x, __fmul_rn(z, s[n][x]));
    });
    return seen;
  }
  const bool elastic = Normalizer(e.f.NORM) == Normalizer::elastic;
  if (elastic && (e.f.BIAS | e.f.DIST))  // a score of minus infinity hides the key: it has no share
    each<N>([&](int n, int x) {
      if (s[n][x] == minus_infinity()) seen &= ~(1u << (4 * n + x));
    });
  each<N>([&](int n, int x) {
    const float from = origin(n, x);
    const bool nothing = !(seen >> (4 * n + x) & 1u) | (from == minus_infinity());
    // The difference is in natural units, so that a score that equals its origin has weight 1.
    s[n][x] = nothing ? 0.f : exp2_fast(__fsub_rn(s[n][x], from) * kLog2e);
    if (!elastic) y(n, x, s[n][x]);
  });
  if (elastic)
    each<N>([&](int n, int x) {
      const float share = shift(n, x), sum = __fadd_rn(s[n][x], share);
      // With a share of 0, p is above 0, although exp2 may have reached 0.
      if (!(share >= 0.f || sum > 0.f)) seen &= ~(1u << (4 * n + x));
      y(n, x, seen >> (4 * n + x) & 1u ? sum : 0.f);
    });
  return seen;
}

// The set of elements that dropout keeps. Columns begin at multiples of 8, and so do rows where
// they are keys.
template <bool KEYS, int N>
TANDEM_DEVICE uint kept_block(const Extra& e, const HeadExtra& of, const Spot<KEYS, N>& at) {
  if (!e.f.DROPOUT) return ~0u;
  const Lane me;
  uint kept = 0;
  if (KEYS) {
    // Two lanes share the four keys of a query: one draws for the upper row, the other for the
    // lower one.
    const int odd = me.t & 1;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint mine = kept_words(e, of, at.i(n, 2 * odd), at.j(n, 0) >> 2);
      const uint other = swap_words(mine, 1);
      const uint upper = (odd ? other : mine) >> (2 * odd),
                 lower = (odd ? mine : other) >> (2 * odd);
      kept |= (upper & 3u) << 4 * n | (lower & 3u) << (4 * n + 2);
    }
  } else {
    // Four lanes share two times four keys of two queries: each draws for one query and one four.
    const int share = me.g & 3;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint mine = kept_words(e, of, at.i(n, share & 1), at.j(n, share & 2) >> 2);
      const uint a = swap_words(mine, 4), b = swap_words(mine, 8), c = swap_words(a, 8);
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int from = share ^ x;  // x: query x % 2, four x / 2
        const uint words = from == 0 ? mine : from == 1 ? a : from == 2 ? b : c;
        kept |= (words >> share & 1u) << (4 * n + x);
      }
    }
  }
  return kept;
}

TANDEM_DEVICE float counted_dp(float dp, uint counted, float drop_scale, int n, int x) {
  return counted >> (4 * n + x) & 1u ? dp * drop_scale : 0.f;
}

// Whether keep leaves anything of a tile. Has a barrier.
template <int THREADS>
TANDEM_DEVICE bool tile_kept(const Extra& e, const HeadExtra& of, int i0, int rows, int j0,
                             int cols) {
  int kept = 0;
#pragma unroll 1
  for (int at = int(threadIdx.x); at < rows * cols; at += THREADS) {
    const int i = i0 + at / cols, j = j0 + at % cols;
    if ((i < e.seq_q) & (j < e.seq_kv)) kept |= __ldg(of.keep + i * e.x.keep.s + j * e.x.keep.d);
  }
  return __syncthreads_or(kept) != 0;
}

// Whether spans or keep hide all of a tile. It may have a barrier.
template <int THREADS>
TANDEM_DEVICE bool tile_hidden(const Extra& e, const HeadExtra& of, int i0, int rows, int j0,
                               int cols) {
  if (e.f.SPANS && !map_shows(e, of.index, i0, rows, j0, cols)) return true;
  return e.f.KEEP && !tile_kept<THREADS>(e, of, i0, rows, j0, cols);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
