// SPDX-License-Identifier: MIT OR Apache-2.0
// Visibility of an element, over src/problem/tile_range.h. Twin of shaders/parts/mask.glsl.
#ifndef TANDEM_CUDA_PARTS_MASK_CUH
#define TANDEM_CUDA_PARTS_MASK_CUH
#include "extra.cuh"
#include "problem/mask_map.h"
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

// A span of a key: query rows [x, y). The numbers of a key lie at any multiple of 4 bytes.
TANDEM_DEVICE int2 load_span(const int* at) {
  int2 span;
  span.x = __ldg(at), span.y = __ldg(at + 1);
  return span;
}
// The head of the spans that a query head reads, over their batch entries.
TANDEM_DEVICE int64_t spans_head(const ExtraBlock& x, int batch, int head) {
  return int64_t(batch / x.spans_entries) * x.spans_heads + head / x.spans_group;
}
// Whether the spans of key j show it to row i. index: of the query head, over the batch.
TANDEM_DEVICE bool is_spanned(const Extra& e, int index, int i, int j) {
  const int* at = reinterpret_cast<const int*>(e.address[e.f.AT_SPANS]) +
                  spans_head(e.x, e.batch, index - e.batch * e.heads_q) * e.x.spans.h +
                  int64_t(j) * e.x.spans.s;
  bool seen = false;
#pragma unroll 1
  for (uint n = 0; n < e.f.SPANS; ++n) {
    const int2 span = load_span(at + 2 * n);
    seen |= (span.x <= i) & (i < span.y);
  }
  return seen;
}

// A head of the mask map: the plane whose rows are blocks of query rows, or (KEYS) of keys.
template <bool KEYS>
TANDEM_DEVICE const uint2* map_plane(const ExtraBlock& x, uint64_t map, int64_t head) {
  const int q = x.map_q_blocks, kv = x.map_kv_blocks;
  return reinterpret_cast<const uint2*>(map) + head * tandem_map_size(q, kv) +
         (KEYS ? tandem_map_plane(q, kv) : 0);
}
// Whether the mask map says that the mask may show some of rows x cols pairs from (i0, j0) on. j0
// may be any number.
TANDEM_DEVICE bool map_shows(const Extra& e, int index, int i0, int rows, int j0, int cols) {
  constexpr int kBlock = TANDEM_MAP_BLOCK;
  const uint2* plane = map_plane<false>(e.x, e.address[e.f.AT_MASK_MAP],
                                        spans_head(e.x, e.batch, index - e.batch * e.heads_q));
  const int words = (e.x.map_kv_blocks + 31) / 32;
  const int q_end = tandem_min((i0 + rows + kBlock - 1) / kBlock, e.x.map_q_blocks),
            kv_end = tandem_min((j0 + cols + kBlock - 1) / kBlock, e.x.map_kv_blocks);
  uint some = 0;
  for (int q = i0 / kBlock; q < q_end; ++q)
    for (int n = tandem_max(j0, 0) / kBlock; n < kv_end; ++n)
      some |= __ldg(&plane[int64_t(q) * words + n / 32].x) >> n % 32 & 1u;
  return some != 0;
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

// Whether spans or keep hide all of a tile. It may have a barrier.
template <typename S, bool TRANSPOSED>
TANDEM_DEVICE bool tile_hidden(const Extra& e, const HeadExtra& of, int i0, int j0) {
  constexpr int kRows = TRANSPOSED ? S::N : S::M, kCols = TRANSPOSED ? S::M : S::N;
  if (e.f.SPANS && !map_shows(e, of.index, i0, kRows, j0, kCols)) return true;
  return e.f.KEEP && !tile_kept<S, TRANSPOSED>(e, of, i0, j0);
}

}  // namespace cuda
}  // namespace tandem
#endif
