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

// o is formed from the candidate lists of a work tile where these are short, otherwise by products
// over tiles of keys. A list (of a row, in a thread) is short if at most kShortList candidates are
// left each time that lists are shortened. It then grows by half or so until all warps shorten
// their lists again, and still fits beside its indices. A longer one would be shortened by its warp
// alone, and more often, while the other warps wait.
constexpr int kShortList = 10;
// To take V of its candidates, a warp waits for memory 4 or 8 times (see store_o()), or a multiple
// of that where lists have more than four: some 3,000 to 6,000 clocks. The products of a work tile
// with 128 keys, and weights, take some 2,000.
constexpr int kTilesOfRounds = 3;

template <int TILE>
struct EntmaxShape : FwdShape<TILE, PlainRow, kEntmaxQStages> {
  using Base = FwdShape<TILE, PlainRow, kEntmaxQStages>;
  static constexpr int MOST = fwd_entmax_candidates(Base::tile);  // capacity of a list
  static constexpr int INDEXED = MOST * 2 / 3;  // the same with the index of each key
  // A list of up to MOST - AT_ONCE candidates has room for those of 16 keys. From LONG fewer than
  // that on it is shortened.
  static constexpr int AT_ONCE = 4, LONG = 4;
  static constexpr int LISTS_AT = fwd_entmax_lists_at(Base::tile);
  static constexpr int STEP = 32 * 2 * 4;  // bytes from a candidate to the next
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
// conflict. While no list of a warp has been long, they are indexed: 16 bits say which of the
// visible keys of a lane each candidate is. They lie behind the first INDEXED candidates of the
// warp's lists, in room for candidates of longer ones.
template <typename S>
struct Candidates {
  // In store_o(): 16-byte chunks of V of a lane; candidates of a list and quads at once.
  static constexpr int kChunks = S::DV / 64, kAtOnce = 4, kQuads = kChunks == 1 ? 2 : 1;
  uint first;   // address of row 0's list; row 1's is half a STEP later
  uint end[2];  // address after the last candidate
  float bound[2];
  uint keys;     // address of a candidate's index, less half of the candidate's address
  bool indexed;  // the same in all lanes
  TANDEM_DEVICE explicit Candidates(uint lists, bool indices) : indexed(indices) {
    lists += uint((read_tid_x() - 128) / 32 * (S::MOST * S::STEP));
    first = lists + uint(read_tid_x() % 32 * 4);
    keys = lists - lists / 2 + uint(S::INDEXED * S::STEP);
    clear();
  }
  TANDEM_DEVICE uint row(int r) const { return first + uint(r * (S::STEP / 2)); }
  TANDEM_DEVICE int count(int r) const { return int((end[r] - row(r)) / S::STEP); }
  TANDEM_DEVICE void clear() { end[0] = row(0), end[1] = row(1); }
  TANDEM_DEVICE int full() const { return (indexed ? S::INDEXED : S::MOST) - S::AT_ONCE; }
  TANDEM_DEVICE bool any_beyond(int count) const {
    return __any_sync(kAllLanes,
                      max(int(end[0] - row(0)), int(end[1] - row(1))) >= count * S::STEP);
  }

  // Each row has at most AT_ONCE more than full() by now.
  TANDEM_DEVICE void limit(int full) {
#pragma unroll
    for (int r = 0; r < 2; ++r) end[r] = min(end[r], row(r) + uint(full * S::STEP));
  }

  // s: products with COUNT * 2 keys, likewise below.
  template <int COUNT>
  TANDEM_DEVICE void append(const float (&s)[COUNT]) {
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) append_above<S::STEP>(end[i / 2], s[4 * j + i], bound[i / 2]);
      if (j % 2 == 1) limit(S::MOST - S::AT_ONCE);
    }
  }

  // The same with indices. key: that of the thread's first key, which has the next one but 7 keys
  // of other lanes beside it.
  template <int COUNT>
  TANDEM_DEVICE void append(const float (&s)[COUNT], uint key) {
    // Most warps have nothing to append of 16 keys where the support is small, and a store takes as
    // long whether any lane executes it or not.
    uint some = 0;
#pragma unroll
    for (int j = 0; j < COUNT / 8; ++j) {
      const float* const x = s + 8 * j;
      if (fmaxf(fmaxf(x[0], x[1]), fmaxf(x[4], x[5])) > bound[0] ||
          fmaxf(fmaxf(x[2], x[3]), fmaxf(x[6], x[7])) > bound[1])
        some |= 1u << j;
    }
    some = __reduce_or_sync(kAllLanes, some);
    if (some == 0) return;
#pragma unroll
    for (int j = 0; j < COUNT / 8; ++j) {
      if ((some >> j & 1) == 0) continue;
      const uint first_key =
          opaque(key) + uint(4 * j);  // not computed where no row has a candidate
#pragma unroll
      for (int i = 0; i < 8; ++i)
        append_above<S::STEP>(end[i / 2 % 2], s[8 * j + i], bound[i / 2 % 2], keys,
                              first_key + uint(i / 4 * 2 + i % 2));
      limit(S::INDEXED - S::AT_ONCE);
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

  // Drops the candidates that are not above the bounds. Lists that are still long lose their
  // indices.
  TANDEM_DEVICE void shorten() {
    if (indexed) {
      drop<true>();
      if (any_beyond(kShortList + 1)) indexed = false;
    } else {
      drop<false>();
    }
  }
  template <bool INDICES>
  TANDEM_DEVICE void drop() {
    const int count0 = count(0), count1 = count(1);
    const int most = __reduce_max_sync(kAllLanes, max(count0, count1));
    clear();
#pragma unroll 1
    for (int k = 0; k < most; k += 4) {
      float v[4][2];
      uint key[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint at = row(r) + uint((k + i) * S::STEP);
          v[i][r] = ld_shared_f32(at);
          if (INDICES) key[i][r] = ld_shared_u16(keys + at / 2);
        }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (k + i < (r ? count1 : count0) && v[i][r] > bound[r]) {
            st_shared(end[r], v[i][r]);
            if (INDICES) st_shared_u16(keys + end[r] / 2, key[i][r]);
            end[r] += S::STEP;
          }
    }
  }

  // How many tiles' products take as long as o from the lists of a warp.
  TANDEM_DEVICE int tiles_as_long() const {
    const int most = __reduce_max_sync(kAllLanes, max(count(0), count(1)));
    return (most + kAtOnce - 1) / kAtOnce * kTilesOfRounds;
  }

  // The support bits of word n: tiles in which a list of the warp has a candidate.
  TANDEM_DEVICE uint support(int n) const {
    const int count0 = count(0), count1 = count(1);
    const int most = __reduce_max_sync(kAllLanes, max(count0, count1));
    uint bits = 0;
#pragma unroll 1
    for (int k = 0; k < most; ++k)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint tile = ld_shared_u16(keys + (row(r) + uint(k * S::STEP)) / 2) / (S::N / 4);
        if (k < (r ? count1 : count0) && int(tile / 32) == n) bits |= 1u << (tile % 32);
      }
    return __reduce_or_sync(kAllLanes, bits);
  }

  // o of the warp's rows: a row takes V of its candidates from global memory. Each eight lanes take
  // the lists of one lane of a quad, and 16 bytes of a key's features each. The two rows of kQuads
  // quads come side by side, so that more loads are in flight. t: thresholds of the thread's rows,
  // in units of z; z is `scale` times a product. v and o are those of the head, from the first
  // visible key and from the warp's first row on. rows: the rows from there to the head's last one.
  template <typename T>
  TANDEM_DEVICE void store_o(const float (&t)[2], float scale, const FwdBlock& u, const ushort* v,
                             ushort* o, int rows) const {
    const int lane = read_tid_x() % 32, group = lane / 8;
    const int counts[2] = {count(0), count(1)};
    const bool chunks = u.o.d == 1 && u.o.s % 8 == 0 && reinterpret_cast<uint64_t>(o) % 16 == 0;
#pragma unroll 1
    for (int n = 0; n < 8 && n < rows; n += kQuads) {
      uint list[2 * kQuads];  // of rows n, n + 8, n + 1, n + 9 ...
      int count[2 * kQuads], longest = 0;
      float threshold[2 * kQuads], sum[2 * kQuads][8 * kChunks] = {};
#pragma unroll
      for (int r = 0; r < 2 * kQuads; ++r) {
        const int owner = (n + r / 2) * 4 + group;
        list[r] = row(r % 2) + uint((owner - lane) * 4);
        count[r] = __shfl_sync(kAllLanes, counts[r % 2], owner);
        threshold[r] = __shfl_sync(kAllLanes, t[r % 2], owner);
        longest = max(longest, count[r]);
      }
      longest = __reduce_max_sync(kAllLanes, longest);
#pragma unroll 1
      for (int k = 0; k < longest; k += kAtOnce) {
        float weight[kAtOnce][2 * kQuads];
        uint4 x[kAtOnce][2 * kQuads][kChunks];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int r = 0; r < 2 * kQuads; ++r) {
            const uint at = list[r] + uint((k + i) * S::STEP);
            const float product = ld_shared_f32(at);
            const uint key = ld_shared_u16(keys + at / 2);
            const bool there = k + i < count[r];
            const float z = fmaxf(fmaf(product, scale, -threshold[r]), 0.f);
            weight[i][r] = there ? z * z : 0.f;
            const ushort* const from =
                v + int64_t(key / 2 * 8 + uint(group * 2) + key % 2) * u.v.s + lane % 8 * 8;
#pragma unroll
            for (int c = 0; c < kChunks; ++c)
              x[i][r][c] = there && lane % 8 * 8 + 64 * c < u.head_dim_v
                               ? __ldg(reinterpret_cast<const uint4*>(from + 64 * c))
                               : make_uint4(0, 0, 0, 0);
          }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int r = 0; r < 2 * kQuads; ++r)
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
#pragma unroll
      for (int q = 0; q < kQuads; ++q)
        store_rows_of_quad<T>(sum[2 * q], sum[2 * q + 1], u, o, n + q, rows, chunks);
    }
  }

  // o of rows n and n + 8: sums over the four lanes of the quad's lists. A lane has four features
  // of each 64, of one of the rows.
  template <typename T>
  TANDEM_DEVICE static void store_rows_of_quad(const float (&sum0)[8 * kChunks],
                                               const float (&sum1)[8 * kChunks], const FwdBlock& u,
                                               ushort* o, int n, int rows, bool chunks) {
    const int lane = read_tid_x() % 32, r = lane / 8 % 2, upper = lane / 16;
    const int row = n + 8 * r;
    ushort* const to = o + row * u.o.s;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float half[8], own[4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float x0 = sum0[8 * c + i], x1 = sum1[8 * c + i];
        half[i] = (r ? x1 : x0) + __shfl_xor_sync(kAllLanes, r ? x0 : x1, 8);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        own[i] = (upper ? half[4 + i] : half[i]) +
                 __shfl_xor_sync(kAllLanes, upper ? half[i] : half[4 + i], 16);
      const int feature = lane % 8 * 8 + 64 * c + 4 * upper;
      if (row >= rows || feature >= u.head_dim_v) continue;
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
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
