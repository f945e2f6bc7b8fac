// SPDX-License-Identifier: MIT OR Apache-2.0
// From the score to the weight y, and to g and M with ds = g (M dp - delta); dropout. For all
// normalisers. Twin of shaders/parts/weight.glsl.
#ifndef TANDEM_CUDA_PARTS_WEIGHT_CUH
#define TANDEM_CUDA_PARTS_WEIGHT_CUH
#include "problem/philox.h"
#include "score.cuh"
#include "softmax.cuh"

namespace tandem {
namespace cuda {

TANDEM_DEVICE bool is_entmax(const Extra& e) { return Normalizer(e.f.NORM) == Normalizer::entmax; }
// Whether the next tile may be prefetched in registers: with SKIP it may turn out to be skipped.
TANDEM_DEVICE bool fetch_ahead(const Extra& e) { return e.f.SKIP == 0; }

// tau / n_i
TANDEM_DEVICE float elastic_shift(const Extra& e, const HeadExtra& of, int i) {
  if (Normalizer(e.f.NORM) != Normalizer::elastic) return 0.f;
  const int n = tandem_key_count(e.band, i, e.seq_q, e.seq_kv);
  return n > 0 ? __fdiv_rn(of.tau, float(n)) : 0.f;
}

// x ^ (1 / (alpha - 1) - 1), 0 where x is 0.
TANDEM_DEVICE float entmax_power(const Extra& e, float x) {
  if (x <= 0.f) return 0.f;
  if (e.f.ALPHA == 1) return x;
  if (e.f.ALPHA == 2) return 1.f;
  return powf(x, e.x.entmax_exponent - 1.f);
}

// y and g of four scores; returns M as bits. origin: lse, or the threshold of entmax.
TANDEM_DEVICE uint weigh_quad(const Extra& e, uint seen, const float (&s)[4],
                              const float (&origin)[4], const float (&shift)[4], float (&y)[4],
                              float (&g)[4]) {
  if (is_entmax(e)) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const bool nothing = !(seen >> c & 1u) | (origin[c] == minus_infinity());
      const float x = nothing ? 0.f : fmaxf(__fsub_rn(s[c], origin[c]), 0.f);
      g[c] = entmax_power(e, x);
      y[c] = __fmul_rn(x, g[c]);
    }
    return seen;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const bool nothing = !(seen >> c & 1u) | (origin[c] == minus_infinity());
    y[c] = g[c] = nothing ? 0.f : expf(__fsub_rn(s[c], origin[c]));
  }
  if (Normalizer(e.f.NORM) != Normalizer::elastic) return seen;
  if (e.f.BIAS | e.f.DIST)  // a score of minus infinity hides a key: it has no share
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (s[c] == minus_infinity()) seen &= ~(1u << c);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    // Other kernels may have formed the score on matrix hardware. The only key of a row then still
    // has p = 1, not more.
    y[c] = __fadd_rn(fminf(g[c], 1.f), shift[c]);
    // With shift 0, p counts as above 0, although exp may have reached 0.
    if (!(shift[c] >= 0.f || y[c] > 0.f)) seen &= ~(1u << c);
    y[c] = seen >> c & 1u ? y[c] : 0.f;
  }
  return seen;
}

// ---- dropout ------------------------------------------------------------------------------------

// Which of the keys 4 quad to 4 quad + 3 dropout keeps, as bits. Philox gives words for four keys
// at a time.
TANDEM_DEVICE uint kept_words(const Extra& e, const HeadExtra& of, int i, int quad) {
  const uint64_t seed = e.address[e.f.AT_SEED];
  const TandemPhilox w =
      tandem_dropout_words(of.index, i, quad, uint(seed), uint(seed >> 32), e.drop_offset);
  const uint below = e.x.drop_below;
  return uint(w.x >= below) | uint(w.y >= below) << 1 | uint(w.z >= below) << 2 |
         uint(w.w >= below) << 3;
}

// Bit 4 r + c: dropout keeps element (r, c) of the invocation. j0 may be any number.
template <typename S>
TANDEM_DEVICE uint kept_tile(const Extra& e, const HeadExtra& of, int i0, int j0) {
  if (!e.f.DROPOUT) return ~0u;
  const Invocation<S> me;
  const int j = j0 + me.col(0), shift = j0 & 3;
  uint kept = 0;
#pragma unroll 1
  for (int r = 0; r < S::RM; ++r) {
    const int i = i0 + me.row(r);
    uint words = kept_words(e, of, i, j >> 2);
    if (shift) words |= kept_words(e, of, i, (j >> 2) + 1) << 4;
    kept |= (words >> shift & 15u) << 4 * r;
  }
  return kept;
}

// The same where rows are keys, and j0 is a multiple of 4. The keys of a query belong to different
// invocations, so the bits pass through the pool. There are barriers before and after.
template <typename S>
TANDEM_DEVICE uint kept_tile_transposed(float4* pool, const Extra& e, const HeadExtra& of, int i0,
                                        int j0) {
  if (!e.f.DROPOUT) return ~0u;
  static_assert(S::M / 4 * S::N <= 16 * S::POOL, "a byte for four keys");
  unsigned char* bits = reinterpret_cast<unsigned char*>(pool);
  __syncthreads();
#pragma unroll 1
  for (int n = int(threadIdx.x); n < S::M / 4 * S::N; n += S::WG)
    bits[n] =
        static_cast<unsigned char>(kept_words(e, of, i0 + n / (S::M / 4), j0 / 4 + n % (S::M / 4)));
  __syncthreads();
  const Invocation<S> me;
  uint kept = 0;
#pragma unroll
  for (int r = 0; r < S::RM; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      kept |= uint(bits[me.col(c) * (S::M / 4) + me.row(r) / 4] >> me.row(r) % 4 & 1)
              << (4 * r + c);
  return kept;
}

// ---- a tile in the backward, rows are queries ---------------------------------------------------

// Turns products into g, in the P tile; with CAP, times the derivative of softcap. Returns M: bit 4
// r + c. *some: whether any g of the invocation is not 0. p: see pair.cuh.
template <typename S, bool CAP, typename Pair>
TANDEM_DEVICE uint weigh_tile(float4* ptile, const float (&product)[S::RM][4], const Extra& e,
                              const Pair& p, int i0, int j0, bool* some) {
  static_assert(S::RM <= 8, "a bit for each element");
  const Invocation<S> me;
  put_ptile<S>(ptile, product);
  uint counted = 0;
  bool any = false;
  each_quad<S>(ptile, [&](int r, float(&s)[4]) {
    const int i = i0 + me.row(r);
    float slope[4], y[4], g[4], origin[4], shift[4];
    const uint seen = score_quad<true>(s, slope, e, p.of, i, j0 + me.col(0));
    origin[0] = i < e.seq_q ? __ldg(p.lse + i) : minus_infinity();
    if (tandem_is_far(origin[0])) {
      const FarRow far = p.far(i);
      origin[0] = far.relative;
#pragma unroll
      for (int c = 0; c < 4; ++c) s[c] = from_origin(s[c], far.origin);
    }
    shift[0] = elastic_shift(e, p.of, i);
#pragma unroll
    for (int c = 1; c < 4; ++c) origin[c] = origin[0], shift[c] = shift[0];
    counted |= weigh_quad(e, seen, s, origin, shift, y, g) << 4 * r;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      any |= g[c] != 0.f;
      s[c] = CAP ? g[c] * slope[c] : g[c];
    }
  });
  *some = any;
  return counted;
}

// M dp of element (r, c) of the invocation, with dropout.
TANDEM_DEVICE float counted_dp(float dp, uint counted, uint kept, float drop_scale, int r, int c) {
  const uint bit = 1u << (4 * r + c);
  return (counted & kept & bit) ? dp * drop_scale : 0.f;
}

// Turns dp into g (M dp - delta), with g from the P tile. delta: address for the head's first row.
template <typename S>
TANDEM_DEVICE void gradient_tile(float (&dp)[S::RM][4], const float4* ptile, const Extra& e,
                                 uint counted, uint kept, const float* delta, int i0) {
  const Invocation<S> me;
#pragma unroll
  for (int r = 0; r < S::RM; ++r) {
    const float4 g = ptile[me.row(r) * S::P_PITCH + me.tc];
    const int i = i0 + me.row(r);
    const float of_row = i < e.seq_q ? __ldg(delta + i) : 0.f;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float x = counted_dp(dp[r][c], counted, kept, e.x.drop_scale, r, c) - of_row;
      dp[r][c] = (c == 0 ? g.x : c == 1 ? g.y : c == 2 ? g.z : g.w) * x;
    }
  }
}

}  // namespace cuda
}  // namespace tandem
#endif
