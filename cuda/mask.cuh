// SPDX-License-Identifier: MIT OR Apache-2.0
// Visibility of an element, over src/tile_range.h. Twin of shaders/mask.glsl.
#ifndef TANDEM_CUDA_MASK_CUH
#define TANDEM_CUDA_MASK_CUH
#include "tile.cuh"
#include "tile_range.h"

namespace tandem {
namespace cuda {

template <typename Block>
TANDEM_DEVICE TandemBand mask_band(const Block& u) {
  return TandemBand{u.band_left, u.band_right, u.band_off};
}

TANDEM_DEVICE float minus_infinity() { return -INFINITY; }

// Hidden scores of a tile become -inf. Rows are queries and columns keys (fwd, bwd_dq).
template <typename S>
TANDEM_DEVICE void mask_tile(float (&s)[S::RM][4], TandemBand band, int i0, int j0, int seq_q,
                             int seq_kv) {
  const Invocation<S> me;
#pragma unroll
  for (int r = 0; r < S::RM; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int i = i0 + me.row(r), j = j0 + me.col(c);
      // Not ||: 32 branches would cost more than the comparisons.
      const bool hidden = (i >= seq_q) | (j >= seq_kv) | !tandem_visible(band, i, j);
      s[r][c] = hidden ? minus_infinity() : s[r][c];
    }
}

// The same where rows are keys and columns queries (bwd_dkv).
template <typename S>
TANDEM_DEVICE void mask_tile_transposed(float (&s)[S::RM][4], TandemBand band, int i0, int j0,
                                        int seq_q, int seq_kv) {
  const Invocation<S> me;
#pragma unroll
  for (int r = 0; r < S::RM; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int i = i0 + me.col(c), j = j0 + me.row(r);
      // Not ||: 32 branches would cost more than the comparisons.
      const bool hidden = (i >= seq_q) | (j >= seq_kv) | !tandem_visible(band, i, j);
      s[r][c] = hidden ? minus_infinity() : s[r][c];
    }
}

}  // namespace cuda
}  // namespace tandem
#endif
