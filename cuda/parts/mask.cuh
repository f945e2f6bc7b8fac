// SPDX-License-Identifier: MIT OR Apache-2.0
// Visibility of an element, over src/problem/tile_range.h. Twin of shaders/parts/mask.glsl.
#ifndef TANDEM_CUDA_PARTS_MASK_CUH
#define TANDEM_CUDA_PARTS_MASK_CUH
#include "extra.cuh"
#include "problem/tile_range.h"
#include "tile.cuh"

namespace tandem {
namespace cuda {

template <typename Block>
TANDEM_DEVICE TandemBand mask_band(const Block& u) {
  return TandemBand{u.band_left, u.band_right, u.band_off};
}

TANDEM_DEVICE float minus_infinity() { return -INFINITY; }

// Sets hidden scores of a tile to -inf. Rows are queries and columns are keys (fwd, bwd_dq).
template <typename S>
TANDEM_DEVICE void mask_tile(float (&s)[S::RM][4], TandemBand band, int i0, int j0, int seq_q,
                             int seq_kv) {
  const Invocation<S> me;
#pragma unroll
  for (int r = 0; r < S::RM; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int i = i0 + me.row(r), j = j0 + me.col(c);
      // | in place of ||: 32 branches would cost more than the comparisons.
      const bool hidden = (i >= seq_q) | (j >= seq_kv) | !tandem_visible(band, i, j);
      s[r][c] = hidden ? minus_infinity() : s[r][c];
    }
}

// The same where rows are keys and columns are queries (bwd_dkv).
template <typename S>
TANDEM_DEVICE void mask_tile_transposed(float (&s)[S::RM][4], TandemBand band, int i0, int j0,
                                        int seq_q, int seq_kv) {
  const Invocation<S> me;
#pragma unroll
  for (int r = 0; r < S::RM; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int i = i0 + me.col(c), j = j0 + me.row(r);
      // | in place of ||: 32 branches would cost more than the comparisons.
      const bool hidden = (i >= seq_q) | (j >= seq_kv) | !tandem_visible(band, i, j);
      s[r][c] = hidden ? minus_infinity() : s[r][c];
    }
}

// ---- with optional inputs -----------------------------------------------------------------------

TANDEM_DEVICE bool position_visible(const Extra& e, int i, int j) {
  return (i < e.seq_q) & (j < e.seq_kv) & (j >= 0) & tandem_visible(e.band, i, j);
}

// Whether one of rows x cols elements from (i0, j0) on is visible by position. j0 may be any
// number.
TANDEM_DEVICE bool tile_visible(const Extra& e, int i0, int rows, int j0, int cols) {
  const int last = tandem_min(i0 + rows, e.seq_q) - 1;
  const int lo = tandem_max(tandem_max(j0, 0), i0 + e.band.off - e.band.left);
  const int hi = tandem_min(tandem_min(j0 + cols, e.seq_kv) - 1, last + e.band.off + e.band.right);
  return i0 <= last && lo <= hi;
}

// Whether keep leaves any element of a tile. It has a barrier.
template <typename S, bool TRANSPOSED>
TANDEM_DEVICE bool tile_kept(const Extra& e, const HeadExtra& of, int i0, int j0) {
  const Invocation<S> me;
  int kept = 0;
#pragma unroll
  for (int r = 0; r < S::RM; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int i = i0 + (TRANSPOSED ? me.col(c) : me.row(r));
      const int j = j0 + (TRANSPOSED ? me.row(r) : me.col(c));
      if ((i < e.seq_q) & (j < e.seq_kv) & (j >= 0))
        kept |= __ldg(of.keep + i * e.x.keep.s + j * e.x.keep.d);
    }
  return __syncthreads_or(kept) != 0;
}

}  // namespace cuda
}  // namespace tandem
#endif
