// SPDX-License-Identifier: MIT OR Apache-2.0
// Elastic softmax with nothing but a distance bias, lengths and a sink (trait::fixed):
// scores and weights of a tile in registers. The operations and their order are those of score_quad
// and weigh_quad, and so are the bits.
#ifndef TANDEM_CUDA_PARTS_ELASTIC_CUH
#define TANDEM_CUDA_PARTS_ELASTIC_CUH
#include "softmax.cuh"
#include "weight.cuh"

namespace tandem {
namespace cuda {

// Whether a tile of `rows` queries from i0 on and `cols` keys from j0 on has elements in the window
// of the distance bias.
TANDEM_DEVICE bool tile_has_dist(const Extra& e, int i0, int rows, int j0, int cols) {
  const int distance = i0 + e.band.off - j0;
  return (distance + rows > 0) & (distance - cols < e.x.dist_window - 1);
}

// Turns products into scores, hidden ones into -inf. Returns the visible elements as bits: 4 r + c.
// KEYS: columns are keys, else queries. edge: the tile needs the mask.
template <typename S, bool KEYS>
TANDEM_DEVICE uint score_elastic(float (&s)[S::RM][4], const Extra& e, const float* dist, int i0,
                                 int j0, bool edge) {
  const Invocation<S> me;
  score_tile<S>(s, e.scale);
  uint seen = ~0u;
  if (tile_has_dist(e, i0, KEYS ? S::M : S::N, j0, KEYS ? S::N : S::M)) {
    const int distance = i0 + e.band.off - j0;
#pragma unroll
    for (int r = 0; r < S::RM; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = distance + (KEYS ? me.row(r) - me.col(c) : me.col(c) - me.row(r));
        if ((t >= 0) & (t < e.x.dist_window)) {
          s[r][c] = __fadd_rn(s[r][c], __ldg(dist + t));
          if (s[r][c] == minus_infinity()) seen &= ~(1u << (4 * r + c));
        }
      }
  }
  if (edge) {
#pragma unroll
    for (int r = 0; r < S::RM; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = i0 + (KEYS ? me.row(r) : me.col(c)), j = j0 + (KEYS ? me.col(c) : me.row(r));
        if (!position_visible(e, i, j)) {
          s[r][c] = minus_infinity();
          seen &= ~(1u << (4 * r + c));
        }
      }
  }
  return seen;
}

// The weight p + shift. Where the element does not count it is 0, and the element's bit in *counted
// is cleared.
TANDEM_DEVICE float elastic_weight(float p, float shift, uint bit, uint* counted) {
  const float y = __fadd_rn(p, shift);
  // With shift 0, p counts as above 0, although exp may have reached 0.
  if (!(shift >= 0.f || y > 0.f)) *counted &= ~bit;
  return (*counted & bit) ? y : 0.f;
}

}  // namespace cuda
}  // namespace tandem
#endif
