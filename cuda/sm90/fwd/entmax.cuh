// SPDX-License-Identifier: MIT OR Apache-2.0
// The search for the thresholds of entmax in fwd (fwd_entmax.cuh): its shared memory, and the
// candidate lists.
#ifndef TANDEM_CUDA_SM90_FWD_ENTMAX_CUH
#define TANDEM_CUDA_SM90_FWD_ENTMAX_CUH
#include "../numerics.cuh"
#include "epilogue.cuh"
#include "main_loop.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr float kFarThreshold = 256.f, kFarBelow = 32.f;

template <int TILE>
struct EntmaxShape : FwdShape<TILE, PlainRow, kEntmaxQStages> {
  using Base = FwdShape<TILE, PlainRow, kEntmaxQStages>;
  static constexpr int MOST = fwd_entmax_candidates(Base::tile);  // capacity of a list
  // A list of up to FULL candidates has room for 8 more. From LONG on it is shortened.
  static constexpr int FULL = MOST - 8, LONG = FULL - 4;
  static constexpr int LISTS_AT = fwd_entmax_lists_at(Base::tile);
  static constexpr int STEP = Base::WARPGROUPS * 128 * 2 * 4;  // bytes from a candidate to the next
};

// Shared memory of the search, behind the mbarriers of FwdSharedStorage: the verdict (whether the
// search continues), the tile that each stage holds, a support bit for each tile, and the candidate
// lists.
template <typename S>
struct Search {
  uint at;
  TANDEM_DEVICE explicit Search(const FwdSharedStorage<S>& shared) : at(shared.variant_at(0)) {}
  TANDEM_DEVICE uint verdict() const { return at; }
  TANDEM_DEVICE uint tile(int stage) const { return at + 8 + 4 * stage; }
  TANDEM_DEVICE uint again(int n) const { return at + 24 + 4 * n; }
  TANDEM_DEVICE uint words(int warpgroup, int set) const {
    return at + kSearchWords + (2 * warpgroup + set) * (kSupportWords * 4);
  }
  TANDEM_DEVICE uint lists() const { return at + S::LISTS_AT; }
  TANDEM_DEVICE void init() const {
    mbarrier_init(verdict(), 4 * S::WARPGROUPS);
    for (int n = 0; n < 3; ++n) st_shared(again(n), 0);
  }
};

// A stage in the first pass of alpha = 1.5, which has no V: stages of K and of V hold keys in turn.
struct SearchStage {
  uint keys, full, empty, tile;  // addresses: the keys, mbarriers, the number of the tile
  int phase;
};
template <typename S, typename K, typename V>
TANDEM_DEVICE SearchStage search_stage(const FwdSharedStorage<S>& shared, bool of_v, const K& k,
                                       const V& v) {
  static_assert(S::STAGES == 2 && S::K_BYTES == S::V_BYTES, "four stages of keys");
  const Search<S> search(shared);
  if (of_v)
    return {shared.v(v.stage()), shared.v_full(v.stage()), shared.v_empty(v.stage()),
            search.tile(2 + v.stage()), v.phase()};
  return {shared.k(k.stage()), shared.k_full(k.stage()), shared.k_empty(k.stage()),
          search.tile(k.stage()), k.phase()};
}

// Number of passes so far. It gives the phase of the verdict, which of three flags the verdict has,
// and which of two sets of support bits the pass writes.
struct SearchPasses {
  uint n = 0;  // modulo 6
  TANDEM_DEVICE int phase() const { return int(n & 1); }
  TANDEM_DEVICE int flag() const { return int(n < 3 ? n : n - 3); }
  TANDEM_DEVICE int flag_before() const { return int(n == 0 ? 2 : n < 4 ? n - 1 : n - 4); }
  TANDEM_DEVICE void next() { n = n == 5 ? 0 : n + 1; }
};

// Whether the support bit of a tile is set. Tiles from kSupportTiles on have no bit and count as
// set. rel: the tile, counted from the first visible one.
TANDEM_DEVICE bool has_support(uint words, int rel) {
  return rel >= kSupportTiles || (ld_shared_s32(words + uint(rel / 32 * 4)) >> (rel % 32) & 1);
}

// The candidate lists of a thread's two rows, in units of products, and the lower bounds of the
// rows. Candidates of a list lie STEP bytes apart, so that the threads of a warp have no bank
// conflict.
template <typename S>
struct Candidates {
  uint first;   // address of row 0's list; row 1's is half a STEP later
  uint end[2];  // address after the last candidate
  float bound[2];
  TANDEM_DEVICE uint row(int r) const { return first + uint(r * (S::STEP / 2)); }
  TANDEM_DEVICE int count(int r) const { return int((end[r] - row(r)) / S::STEP); }
  TANDEM_DEVICE void clear() { end[0] = row(0), end[1] = row(1); }
  TANDEM_DEVICE bool any_beyond(int count) const {
    return __any_sync(kAllLanes,
                      max(int(end[0] - row(0)), int(end[1] - row(1))) >= count * S::STEP);
  }

  // s: products with COUNT * 2 keys, likewise below.
  template <int COUNT>
  TANDEM_DEVICE void append(const float (&s)[COUNT]) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) append_above<S::STEP>(end[i / 2], s[4 * j + i], bound[i / 2]);
      if (j % 4 == 3)  // each row has at most 8 more by now
#pragma unroll
        for (int r = 0; r < 2; ++r) end[r] = min(end[r], row(r) + uint(S::FULL * S::STEP));
    }
  }

  TANDEM_DEVICE bool any_far() const {
    return __any_sync(kAllLanes, bound[0] != bound[0] || bound[1] != bound[1]);
  }

  // Takes at most `steps` Newton steps over the lists and, if `tile`, over the products s of a
  // tile. radius: 1, in units of products. A bound that is far below becomes NaN.
  template <int COUNT>
  TANDEM_DEVICE void raise(int steps, float radius, bool tile, const float (&s)[COUNT]) {
    const int count0 = count(0), count1 = count(1);
    const int most = __reduce_max_sync(kAllLanes, max(count0, count1));
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      float x[2] = {}, xx[2] = {};
      const auto add = [&](int r, float v) {
        const float y = fmaxf(v - bound[r], 0.f);
        x[r] += y;
        xx[r] = fmaf(y, y, xx[r]);
      };
#pragma unroll 1
      for (int k = 0; k < most; k += 4) {
        float v[4][2];
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int r = 0; r < 2; ++r) v[i][r] = ld_shared_f32(row(r) + uint((k + i) * S::STEP));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          add(0, k + i < count0 ? v[i][0] : -INFINITY);
          add(1, k + i < count1 ? v[i][1] : -INFINITY);
        }
      }
      if (tile) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) add(i / 2 % 2, s[i]);
      }
      bool moves = false;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = quad_sum(x[r]), squares = quad_sum(xx[r]);
        if (!(squares > radius * radius)) continue;
        if (!(squares < kFarBelow * radius * sum)) {
          bound[r] = NAN;
          continue;
        }
        const float next = bound[r] + (squares - radius * sqrtf(squares)) / sum;
        moves |= next > bound[r];
        bound[r] = fmaxf(next, bound[r]);
      }
      if (!__any_sync(kAllLanes, moves)) break;
    }
  }

  // Drops the candidates that are not above the bounds.
  TANDEM_DEVICE void shorten() {
    const int count0 = count(0), count1 = count(1);
    const int most = __reduce_max_sync(kAllLanes, max(count0, count1));
    clear();
#pragma unroll 1
    for (int k = 0; k < most; k += 4) {
      float v[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) v[i][r] = ld_shared_f32(row(r) + uint((k + i) * S::STEP));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (k + i < (r ? count1 : count0) && v[i][r] > bound[r]) {
            st_shared(end[r], v[i][r]);
            end[r] += S::STEP;
          }
    }
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
