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
  // Candidates of a thread. From LONG on, lists are shortened.
  static constexpr int MOST = fwd_entmax_candidates(Base::tile), LONG = MOST - 12;
  static constexpr int LISTS_AT = fwd_entmax_lists_at(Base::tile);
  static constexpr int STEP = Base::WARPGROUPS * 128 * 8;  // bytes from a candidate to the next
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

// The candidate lists of a thread's two rows, and the lower bounds of the rows, in units of
// products. A candidate is a product and the index of its key. Both lists share MOST slots, STEP
// bytes apart, so that the threads of a warp have no bank conflict: that of row 0 begins with the
// first slot, that of row 1 with the last one, and grows downwards.
template <typename S>
struct Candidates {
  uint first;   // address of the first slot
  uint end[2];  // address of the slot for the next candidate
  float bound[2];
  TANDEM_DEVICE uint slot(int r, int n) const {
    return first + uint((r ? S::MOST - 1 : 0) * S::STEP + (r ? -n : n) * S::STEP);
  }
  TANDEM_DEVICE int count(int r) const {
    return int(r ? slot(1, 0) - end[1] : end[0] - first) / S::STEP;
  }
  TANDEM_DEVICE void clear() { end[0] = slot(0, 0), end[1] = slot(1, 0); }
  TANDEM_DEVICE bool any_beyond(int count) const {
    return __any_sync(kAllLanes, int(end[1] - end[0]) <= (S::MOST - 1 - count) * S::STEP);
  }

  // Appends those of products s with COUNT * 2 keys, of which `key` is the thread's first, that are
  // above the bounds. Returns whether a list of the warp has become full. It then lacks some.
  template <int COUNT>
  TANDEM_DEVICE bool append(const float (&s)[COUNT], int key) {
    const uint from[2] = {end[0], end[1]};
    bool full = false;
#pragma unroll
    for (int j = 0; j < COUNT / 4; j += 2) {
      // Most warps have nothing to append of 16 keys where the support is small, and a store takes
      // as long whether any lane executes it or not.
      const float* const x = s + 4 * j;
      const bool some = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[4], x[5])) > bound[0] ||
                        fmaxf(fmaxf(x[2], x[3]), fmaxf(x[6], x[7])) > bound[1];
      if (!__any_sync(kAllLanes, some)) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = i / 2 % 2;
        const uint at = uint(key + 8 * (j + i / 4) + i % 2);
        if (r == 0)
          append_above<S::STEP>(end[0], x[i], at, bound[0]);
        else
          append_above<-S::STEP>(end[1], x[i], at, bound[1]);
      }
      // The next 16 keys take up to 8 slots.
      if (int(end[1] - end[0]) < 7 * S::STEP) full = true;
      if (full) end[0] = from[0], end[1] = from[1];
    }
    return __any_sync(kAllLanes, full);
  }

  TANDEM_DEVICE bool any_far() const {
    return __any_sync(kAllLanes, bound[0] != bound[0] || bound[1] != bound[1]);
  }

  // Takes at most `steps` Newton steps over the lists and, if `tile`, over products s. radius: 1,
  // in units of products. A bound that is far below becomes NaN.
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
          for (int r = 0; r < 2; ++r) v[i][r] = ld_shared_f32(slot(r, k + i));
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
      float2 v[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) v[i][r] = ld_shared_v2_f32(slot(r, k + i));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (k + i < (r ? count1 : count0) && v[i][r].x > bound[r]) {
            st_shared(end[r], v[i][r].x, __float_as_uint(v[i][r].y));
            end[r] += uint(r ? -S::STEP : S::STEP);
          }
    }
  }

  // o of the warp's rows, where the lists hold their support: a row takes V of its candidates from
  // global memory. Each eight lanes take the lists of one lane of a quad, and 16 bytes of a key's
  // features each. The quad's two rows come side by side, so that more loads are in flight. t:
  // thresholds of the thread's rows, in units of z; z is `scale` times a product. v and o are those
  // of the head.
  template <typename T>
  TANDEM_DEVICE void store_o(const float (&t)[2], float scale, const FwdBlock& u, const ushort* v,
                             ushort* o, int row0) const {
    constexpr int kChunks = S::DV / 64;  // of 16 bytes, of a lane
    const int lane = read_tid_x() % 32, group = lane / 8;
    const int counts[2] = {count(0), count(1)};
    const bool chunks = u.o.d == 1 && u.o.s % 8 == 0 && reinterpret_cast<uint64_t>(o) % 16 == 0;
#pragma unroll 1
    for (int n = 0; n < 8 && row0 + n < u.seq_q; ++n) {
      const int owner = n * 4 + group;
      const uint lists = first + uint((owner - lane) * 8);
      int count[2];
      float threshold[2], sum[2][8 * kChunks] = {};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        count[r] = __shfl_sync(kAllLanes, counts[r], owner);
        threshold[r] = __shfl_sync(kAllLanes, t[r], owner);
      }
      const int most = __reduce_max_sync(kAllLanes, max(count[0], count[1]));
#pragma unroll 1
      for (int k = 0; k < most; k += kAtOnce) {
        float weight[kAtOnce][2];
        uint4 x[kAtOnce][2][kChunks];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float2 candidate = ld_shared_v2_f32(
                lists + uint(r ? (S::MOST - 1 - k - i) * S::STEP : (k + i) * S::STEP));
            const bool there = k + i < count[r];
            const float z = fmaxf(fmaf(candidate.x, scale, -threshold[r]), 0.f);
            weight[i][r] = there ? z * z : 0.f;
            const ushort* from = v + int64_t(__float_as_uint(candidate.y)) * u.v.s + lane % 8 * 8;
#pragma unroll
            for (int c = 0; c < kChunks; ++c)
              x[i][r][c] = there && lane % 8 * 8 + 64 * c < u.head_dim_v
                               ? __ldg(reinterpret_cast<const uint4*>(from + 64 * c))
                               : make_uint4(0, 0, 0, 0);
          }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
              const uint words[4] = {x[i][r][c].x, x[i][r][c].y, x[i][r][c].z, x[i][r][c].w};
#pragma unroll
              for (int w = 0; w < 4; ++w) {
                float* const to = sum[r] + 8 * c + 2 * w;
                to[0] = fmaf(weight[i][r], T::low(words[w]), to[0]);
                to[1] = fmaf(weight[i][r], T::high(words[w]), to[1]);
              }
            }
      }
      // Sums over the four lanes of the quad's lists. A lane ends with four features of one row.
      const int r = lane / 8 % 2, upper = lane / 16;
      const int row = row0 + n + 8 * r;
      ushort* const to = o + row * u.o.s;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float half[8], own[4];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float x0 = sum[0][8 * c + i], x1 = sum[1][8 * c + i];
          half[i] = (r ? x1 : x0) + __shfl_xor_sync(kAllLanes, r ? x0 : x1, 8);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
          own[i] = (upper ? half[4 + i] : half[i]) +
                   __shfl_xor_sync(kAllLanes, upper ? half[i] : half[4 + i], 16);
        const int feature = lane % 8 * 8 + 64 * c + 4 * upper;
        if (row >= u.seq_q || feature >= u.head_dim_v) continue;
        const uint words[2] = {T::pack(own[0], own[1]), T::pack(own[2], own[3])};
        if (chunks) {
          *reinterpret_cast<uint2*>(to + feature) = make_uint2(words[0], words[1]);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            to[(feature + i) * u.o.d] = ushort(words[i / 2] >> (16 * (i % 2)));
        }
      }
    }
  }
  static constexpr int kAtOnce = S::DV == 64 ? 4 : 2;  // candidates of a list in store_o()
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
