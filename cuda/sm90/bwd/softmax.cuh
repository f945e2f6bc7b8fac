// SPDX-License-Identifier: MIT OR Apache-2.0
// Weights and score gradients of a consumer warpgroup, on accumulators of 64 keys x queries.
#ifndef TANDEM_CUDA_SM90_BWD_SOFTMAX_CUH
#define TANDEM_CUDA_SM90_BWD_SOFTMAX_CUH
#include "shared_storage.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Turns scores of 64 keys x COUNT queries into weights p: exp2(s scale2 - lse2). lse: address of
// f32 pairs, 8 bytes for two queries.
template <int COUNT>
TANDEM_DEVICE void weigh(float (&s)[COUNT / 2], float scale2, uint lse) {
#pragma unroll
  for (int j = 0; j < COUNT / 8; ++j) {
    const float2 l = ld_shared_v2_f32(lse + 32 * j);
    s[4 * j] = exp2_fast(fmaf(s[4 * j], scale2, -l.x));
    s[4 * j + 1] = exp2_fast(fmaf(s[4 * j + 1], scale2, -l.y));
    s[4 * j + 2] = exp2_fast(fmaf(s[4 * j + 2], scale2, -l.x));
    s[4 * j + 3] = exp2_fast(fmaf(s[4 * j + 3], scale2, -l.y));
  }
}
// Sets elements that the mask hides to `hidden`. key: of the thread's first row, the second one is
// 8 further; row: the query of its first column. ENDS: queries from `rows` on are hidden, too.
template <int COUNT, bool ENDS = false>
TANDEM_DEVICE void hide(float (&p)[COUNT / 2], const TandemBand& band, int key, int keys, int row,
                        float hidden, int rows = 0) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int j = key + 8 * r;
    const int low = j < keys ? j - band.off - band.right - row : TANDEM_BAND_OPEN;
    int high = j - band.off + band.left - row;
    if constexpr (ENDS) high = min(high, rows - 1 - row);
#pragma unroll
    for (int c = 0; c < COUNT / 8; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if ((8 * c + e < low) | (8 * c + e > high)) p[4 * c + 2 * r + e] = hidden;
  }
}
// dS = p (dP - delta), rounded to 16 bits, as pairs.
template <typename T, int COUNT>
TANDEM_DEVICE void differentiate(uint (&ds)[COUNT / 4], const float (&p)[COUNT / 2],
                                 const float (&dp)[COUNT / 2], uint delta) {
#pragma unroll
  for (int j = 0; j < COUNT / 8; ++j) {
    const float2 l = ld_shared_v2_f32(delta + 32 * j);
    ds[2 * j] = T::pack(p[4 * j] * (dp[4 * j] - l.x), p[4 * j + 1] * (dp[4 * j + 1] - l.y));
    ds[2 * j + 1] =
        T::pack(p[4 * j + 2] * (dp[4 * j + 2] - l.x), p[4 * j + 3] * (dp[4 * j + 3] - l.y));
  }
}
// Stores pairs of 64 keys x COUNT queries, transposed, to a tile [query][key] of one panel. warp:
// of the warpgroup.
template <int COUNT>
TANDEM_DEVICE void store_transposed(uint tile, const uint (&x)[COUNT / 4], int warp, int lane) {
  const uint to = tile + swizzle_128b(lane % 8 + lane / 16 * 8, 2 * warp + (lane / 8 & 1));
#pragma unroll
  for (int k = 0; k < COUNT / 16; ++k) {
    const uint r[4] = {x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]};
    stmatrix_x4_trans(to + 2048 * k, r);
  }
}
// Whether a tile of queries needs hide().
TANDEM_DEVICE bool on_edge(const BwdWorkTile& work, int t, int cols, int keys) {
  return t < work.span.full_begin || t >= work.span.full_end || work.col0 + cols > keys;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
