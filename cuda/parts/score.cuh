// SPDX-License-Identifier: MIT OR Apache-2.0
// From the raw product to the score. Twin of shaders/parts/score.glsl.
#ifndef TANDEM_CUDA_PARTS_SCORE_CUH
#define TANDEM_CUDA_PARTS_SCORE_CUH
#include "mask.cuh"
#include "problem/mask_map.h"
#include "problem/tanh.h"
#include "tile.cuh"

namespace tandem {
namespace cuda {

// Multiplies products by the scale. They are rounded before anything is subtracted: contracted into
// fma(s, scale, -m), the weight of a row's only key would not be exactly 1.
template <typename S>
TANDEM_DEVICE void score_tile(float (&s)[S::RM][4], float scale) {
#pragma unroll
  for (int i = 0; i < S::RM; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[i][c] = __fmul_rn(s[i][c], scale);
}

// ---- with optional inputs -----------------------------------------------------------------------

// Turns four products into scores, from the pair (i, j) on, with ascending keys (KEYS) or ascending
// rows. Every operation is rounded by itself, so that all kernels get the same bits. Returns the
// visible elements as bits; the others become -inf. slope: the derivative of softcap. BITS: keep
// may be bits, of which a row has whole words (Features::KEEP); j is a multiple of 4.
template <bool KEYS, bool BITS = false>
TANDEM_DEVICE uint score_quad(float (&s)[4], float (&slope)[4], const Extra& e, const HeadExtra& of,
                              int i, int j) {
  uint seen = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (position_visible(e, KEYS ? i : i + c, KEYS ? j + c : j)) seen |= 1u << c;
    s[c] = __fmul_rn(e.scale, s[c]);
    slope[c] = 1.f;
  }
  if (e.f.SOFTCAP) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float ratio = __fdiv_rn(s[c], e.x.softcap), t = tandem_tanh(ratio);
      slope[c] = tandem_tanh_slope(ratio, t);
      s[c] = __fmul_rn(e.x.softcap, t);
    }
  }
  if (e.f.BIAS)
    with_type(e.f.BIAS, [&](auto type) {
      using T = decltype(type);
      const auto* at =
          reinterpret_cast<const typename T::Element*>(of.bias) + i * e.x.bias.s + j * e.x.bias.d;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (seen >> c & 1u)
          s[c] = __fadd_rn(s[c], T::to_float(__ldg(at + c * (KEYS ? e.x.bias.d : e.x.bias.s))));
    });
  const int distance = i + e.band.off - j;
  if (e.f.DIST) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int t = KEYS ? distance - c : distance + c;
      if ((t >= 0) & (t < e.x.dist_window)) s[c] = __fadd_rn(s[c], __ldg(of.dist + t));
    }
  }
  if (e.f.ALIBI) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int t = KEYS ? distance - c : distance + c;
      s[c] = __fsub_rn(s[c], __fmul_rn(of.slope, float(t < 0 ? -t : t)));
    }
  }
  if (e.f.KEEP) {
    static_assert(KEYS || !BITS, "a word has the keys of a row");
    const char* at = of.keep + i * e.x.keep.s + j * e.x.keep.d;
    if (BITS && e.f.KEEP == TANDEM_KEEP_BITS) {
      if (seen) seen &= __ldg(reinterpret_cast<const uint*>(at) + j / 32) >> j % 32;
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if ((seen >> c & 1u) && __ldg(at + c * (KEYS ? e.x.keep.d : e.x.keep.s)) == 0)
          seen &= ~(1u << c);
    }
  }
  if (e.f.SPANS) {
#pragma unroll 1
    for (int c = 0; c < 4; ++c)
      if ((seen >> c & 1u) && !is_spanned(e, of.index, KEYS ? i : i + c, KEYS ? j + c : j))
        seen &= ~(1u << c);
  }
  if (Normalizer(e.f.NORM) == Normalizer::entmax) {
#pragma unroll
    for (int c = 0; c < 4; ++c) s[c] = __fmul_rn(e.x.entmax_scale, s[c]);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) s[c] = seen >> c & 1u ? s[c] : minus_infinity();
  return seen;
}

}  // namespace cuda
}  // namespace tandem
#endif
