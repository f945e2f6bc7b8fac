// SPDX-License-Identifier: MIT OR Apache-2.0
// Far rows (src/problem/far_row.h) in the backward kernels of sm90: weights by exp(min(s - origin,
// 0) - relative). Few problems have far rows, so a tile is tested once. A tile that has any takes
// another path, in natural units and with every operation rounded by itself, as bwd_origin forms
// scores: what is left of the difference has to be less than its slack.
#ifndef TANDEM_CUDA_SM90_BWD_FAR_ROWS_CUH
#define TANDEM_CUDA_SM90_BWD_FAR_ROWS_CUH
#include <cfloat>

#include "../numerics.cuh"
#include "../ptx/shared_memory.cuh"
#include "problem/far_row.h"

namespace tandem {
namespace cuda {
namespace sm90 {

// Origin of a row: what is subtracted from its scores, and the most that may be left. 0 and
// infinity for a row that is not far.
struct FarRow {
  float origin, most;
  TANDEM_DEVICE float from_origin(float score) const {
    return fminf(__fsub_rn(score, origin), most);
  }
};

// Rows of [B, Hq, Sq] from `first` on, of which `left` exist.
struct FarRows {
  const float* lse;
  const float* kept;
  int left;
  template <typename Push>
  TANDEM_DEVICE FarRows(const Push& push, int64_t first, int left)
      : lse(reinterpret_cast<const float*>(push.lse) + first),
        kept(reinterpret_cast<const float*>(push.delta) - 2 * first),
        left(left) {}
  // From the n-th row on of those that put_far() has stored.
  template <typename Push>
  TANDEM_DEVICE FarRows(const Push& push, uint at, int n) {
    const uint4 x = ld_shared_v4_u32(at);
    const uint64_t first = uint64_t(x.w) << 32 | x.z;
    lse = reinterpret_cast<const float*>(first) + n;
    kept = reinterpret_cast<const float*>(push.delta - 2 * (first - push.lse)) - 2 * n;
    left = int(x.x) - n;
  }
  TANDEM_DEVICE bool is_far(int n) const { return n < left && tandem_is_far(__ldg(lse + n)); }
  TANDEM_DEVICE float relative(int n) const { return __ldg(kept - 2 * (n + 1) + 1); }
  // Without a branch, as threads may differ here.
  TANDEM_DEVICE FarRow operator[](int n) const {
    const int row = min(n, left - 1);  // one of the head's, if not of the thread's
    const float x = __ldg(lse + row), origin = __ldg(kept - 2 * (row + 1));
    const bool far = (n < left) & (fabsf(x) > TANDEM_FAR_LSE) & (fabsf(x) <= FLT_MAX);
    return {far ? origin : 0.f, far ? 0.f : __int_as_float(0x7f800000)};
  }
};

// Stores what consumer warps need to know of the rows of a tile: kBwdFarBytes, by one thread. left:
// 0 if no row is far.
TANDEM_DEVICE void put_far(uint at, int left, const float* lse) {
  const uint64_t first = reinterpret_cast<uint64_t>(lse);
  st_shared(at, left, 0, int(uint(first)), int(uint(first >> 32)));
}

// Stands for lse of a far row, where a thread keeps lse in registers: more than any lse that is not
// far, in powers of two or of e.
constexpr float kFarLse = 1048576.f;

// The rows of a tile that put_far() has stored at `at`, from row `first` on.
template <typename Push>
struct FarTile {
  const Push& push;
  uint at;
  int first;
};

// Origins of 64 queries. A thread has two of each eight: a lane loads two, and the others get them
// by shuffles. 0: the row is not far; the origin of a far row is near its largest score and not 0.
// lse of a far row in shared memory becomes the relative one; each warp writes it, and all write
// the same value.
struct FarOrigins {
  float x[2];
  // Loads the n-th 64 origins. lse, zero: as in weigh_far(); each: the factor of lse in shared
  // memory.
  template <typename Push>
  TANDEM_DEVICE FarOrigins(const FarTile<Push>& tile, int n, uint lse, float each, uint zero) {
    const int lane = read_tid_x() % 32;
    const FarRows rows(tile.push, tile.at + zero,
                       tile.first + 64 * n + lane / 4 * 8 + lane % 4 * 2);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      x[e] = rows[e].origin;
      if (x[e] != 0.f)
        st_shared(lse + 256 * n + uint(lane / 4 * 32) + 4 * e, rows.relative(e) * each);
    }
    __syncwarp();
  }
  // The origin of the thread's query 8 j + e, by all lanes together.
  TANDEM_DEVICE FarRow operator()(int j, int e, uint zero) const {
    const float origin = __shfl_sync(kAllLanes, x[e], j % 8 * 4 + read_tid_x() % 4 + int(zero));
    return {origin, origin == 0.f ? __int_as_float(0x7f800000) : 0.f};
  }
};

// 0, as a value that the compiler does not know: weights are not negative, nor is exp2 of scores.
template <bool SCORES>
TANDEM_DEVICE uint zero_of(float x) {
  return uint(__float_as_int(SCORES ? exp2_fast(x) : x)) >> 31;
}

// Turns scores of 64 keys x COUNT queries into weights: the rare form of weigh(). score(j, zero):
// turns products s[4 j] to s[4 j + 3] into scores in natural units. weight(x, l): the weight of
// what is left of a score; l is lse in shared memory, for far rows the relative one. zero is 0, but
// depends on the weights before. Otherwise the loads for all of them would be live at a time, and
// the whole loop would spill. SCORES: weight() returns scores.
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
        const float l = ld_shared_f32(lse + 32 * j + 4 * e + zero);
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
  weigh_far<COUNT>(s, lse, kLog2e, tile, score,
                   [](float x, float l) { return exp2_fast(fmaf(x, kLog2e, -l)); });
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
