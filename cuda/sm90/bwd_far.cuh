// SPDX-License-Identifier: MIT OR Apache-2.0
// Far rows (src/far_row.h) in the backward kernels of sm90: weights by exp(min(s - origin, 0) -
// relative). Few problems have such rows, so a tile is asked once whether it has any, and only then
// goes another way, in natural units and with every operation rounded by itself, as bwd_origin
// forms scores: what is left of the difference has to be less than its slack.
#ifndef TANDEM_CUDA_SM90_BWD_FAR_CUH
#define TANDEM_CUDA_SM90_BWD_FAR_CUH
#include <cfloat>

#include "far_row.h"
#include "words.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// What is subtracted from a row's scores, and the most that is left: of rows that are not far
// nothing, and anything.
struct FarRow {
  float origin, most;
  TANDEM_DEVICE float from_origin(float score) const {
    return fminf(__fsub_rn(score, origin), most);
  }
};

// Rows from `first` of [B, Hq, Sq] on, of which `left` have numbers.
struct FarRows {
  const float* lse;
  const float* kept;
  int left;
  template <typename Push>
  TANDEM_DEVICE FarRows(const Push& push, int64_t first, int left)
      : lse(reinterpret_cast<const float*>(push.lse) + first),
        kept(reinterpret_cast<const float*>(push.delta) - 2 * first),
        left(left) {}
  // From the n-th row on of what put_far() has left.
  template <typename Push>
  TANDEM_DEVICE FarRows(const Push& push, uint at, int n) {
    const uint4 x = shared_words(at);
    const uint64_t first = uint64_t(x.w) << 32 | x.z;
    lse = reinterpret_cast<const float*>(first) + n;
    kept = reinterpret_cast<const float*>(push.delta - 2 * (first - push.lse)) - 2 * n;
    left = int(x.x) - n;
  }
  TANDEM_DEVICE bool is_far(int n) const { return n < left && tandem_is_far(__ldg(lse + n)); }
  TANDEM_DEVICE float relative(int n) const { return __ldg(kept - 2 * (n + 1) + 1); }
  // Without a branch: threads may differ here.
  TANDEM_DEVICE FarRow operator[](int n) const {
    const int row = min(n, left - 1);  // one of the head's, if not of the thread's
    const float x = __ldg(lse + row), origin = __ldg(kept - 2 * (row + 1));
    const bool far = (n < left) & (fabsf(x) > TANDEM_FAR_LSE) & (fabsf(x) <= FLT_MAX);
    return {far ? origin : 0.f, far ? 0.f : __int_as_float(0x7f800000)};
  }
};

// A thread leaves what is to be known of a tile's rows where those that multiply find it,
// kBwdFarBytes. left: 0 if none is far.
TANDEM_DEVICE void put_far(uint at, int left, const float* lse) {
  const uint64_t first = reinterpret_cast<uint64_t>(lse);
  put_shared(at, left, 0, int(uint(first)), int(uint(first >> 32)));
}

// In place of lse of a far row, where a thread keeps its rows' in registers: more than any that is
// not far, in powers of two or e.
constexpr float kFarLse = 1048576.f;

// Where put_far() has left the rows of a tile, and the first one that is meant.
template <typename Push>
struct FarTile {
  const Push& push;
  uint at;
  int first;
};

// Origins of 64 queries. A thread of a warp has each fourth two of them: a lane keeps two, and the
// others ask it. 0: the row is not far; near a far one's largest score it is not 0. Of far rows the
// number in shared memory becomes the relative one, by each warp for itself, and all write the
// same.
struct FarOrigins {
  float x[2];
  // The n-th 64 ones. lse: as weigh_far() has it, and zero; each: what a lse there is multiplied
  // by.
  template <typename Push>
  TANDEM_DEVICE FarOrigins(const FarTile<Push>& tile, int n, uint lse, float each, uint zero) {
    const int lane = fresh_thread() % 32;
    const FarRows rows(tile.push, tile.at + zero,
                       tile.first + 64 * n + lane / 4 * 8 + lane % 4 * 2);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      x[e] = rows[e].origin;
      if (x[e] != 0.f)
        put_shared(lse + 256 * n + uint(lane / 4 * 32) + 4 * e, rows.relative(e) * each);
    }
    __syncwarp();
  }
  // Of the thread's query 8 j + e, all lanes together.
  TANDEM_DEVICE FarRow operator()(int j, int e, uint zero) const {
    const float origin = __shfl_sync(kAllLanes, x[e], j % 8 * 4 + fresh_thread() % 4 + int(zero));
    return {origin, origin == 0.f ? __int_as_float(0x7f800000) : 0.f};
  }
};

// 0, which the compiler does not know: weights are not negative, and of scores exp2 is not.
template <bool SCORES>
TANDEM_DEVICE uint zero_of(float x) {
  return uint(__float_as_int(SCORES ? exp2_fast(x) : x)) >> 31;
}

// Scores of 64 keys x COUNT queries become p: the rare form of weigh(). score(j, zero): products
// s[4 j] to s[4 j + 3] become scores in natural units. weight(x, l): of what is left of a score,
// with lse as it lies in shared memory, of far rows the relative one. zero is 0, as the sign of a
// weight, but what depends on it comes after the weights before: else what is loaded for all of
// them would be wanted at the same time, and the whole loop would spill. SCORES: what weight()
// returns are still scores.
template <int COUNT, bool SCORES = false, typename Push, typename Score, typename Weight>
TANDEM_DEVICE void weigh_far(float (&s)[COUNT / 2], uint lse, float each, const FarTile<Push>& tile,
                             const Score& score, const Weight& weight) {
  uint zero = 0;
#pragma unroll
  for (int n = 0; n < COUNT / 64; ++n) {
    const FarOrigins origins(tile, n, lse, each, zero);
#pragma unroll
    for (int j = 8 * n; j < 8 * n + 8; ++j) {
      score(j, zero);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float l = shared_float(lse + 32 * j + 4 * e + zero);
        const FarRow row = origins(j, e, zero);
        s[4 * j + e] = weight(row.from_origin(s[4 * j + e]), l);
        s[4 * j + 2 + e] = weight(row.from_origin(s[4 * j + 2 + e]), l);
        zero = zero_of<SCORES>(s[4 * j + 2 + e]);
      }
    }
  }
}
template <int COUNT, typename Push, typename Score>
TANDEM_DEVICE void weigh_far(float (&s)[COUNT / 2], uint lse, const FarTile<Push>& tile,
                             const Score& score) {
  constexpr float kLog2e = 1.4426950408889634f;
  weigh_far<COUNT>(s, lse, kLog2e, tile, score,
                   [](float x, float l) { return exp2_fast(fmaf(x, kLog2e, -l)); });
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
