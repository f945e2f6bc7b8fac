// SPDX-License-Identifier: MIT OR Apache-2.0
// d_bias from tiles of dS: two warps reduce a workgroup's share of a tile over the cluster. There
// are no other warps for it, and with heads up to 64 the products wait for these two. So what
// counts is the number of instructions for a word (bench/lab/2026-11.md), and whole tiles with
// aligned rows have loops of their own.
#ifndef TANDEM_CUDA_SM90_BWD_DBIAS_REDUCE_CUH
#define TANDEM_CUDA_SM90_BWD_DBIAS_REDUCE_CUH
#include "../params.h"
#include "../ptx/cluster.cuh"
#include "../ptx/global_memory.cuh"
#include "../ptx/shared_memory.cuh"
#include "../ptx/wgmma.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Where a tile of dS begins in d_bias.
struct BiasTileAt {
  int batch, head, row, key;
};
// A thread's share of a tile: 8 keys of every step()-th row. Four consecutive rows belong to one
// workgroup, the next four to the next one.
struct BiasShare {
  const BwdBias& u;
  uint64_t to;  // address of its first row and key in d_bias
  uint panel;   // shared-memory address of its panel of dS
  int row;      // its first row
  int rows;     // rows of the tile that are queries
  int keys;     // existing keys, from its first one on
  TANDEM_DEVICE int step() const { return 4 * int(cluster_size()); }  // rows
  TANDEM_DEVICE uint64_t step_bytes() const {
    return uint64_t(step() * u.d_bias_strides.s) * (u.d_bias_f32 ? 4 : 2);
  }
};
// PANEL: bytes from panel to panel of dS.
template <int BR, int PANEL = BR* kPanelBytes>
TANDEM_DEVICE BiasShare bias_share(const BwdBias& u, uint tile, const BiasTileAt& at, int seq_q,
                                   int seq_kv) {
  const Strides& strides = u.d_bias_strides;
  const int thread = read_tid_x() - 64, piece = thread % 16;
  const int row = 4 * int(cluster_rank()) + thread / 16;
  const int64_t to = at.batch * strides.b + at.head * strides.h + (at.row + row) * strides.s +
                     (at.key + 8 * piece) * strides.d;
  return {u,
          u.d_bias + uint64_t(to) * (u.d_bias_f32 ? 4 : 2),
          tile + uint(piece / 8 * PANEL),
          row,
          min(BR, seq_q - at.row),
          seq_kv - at.key - 8 * piece};
}
TANDEM_DEVICE uint first_words(const BiasShare& share) {
  return share.panel + swizzle_128b(share.row, read_tid_x() % 8);
}
// Whether the thread's 8 keys of a row can be stored in chunks of 16 bytes, one or two of them.
TANDEM_DEVICE bool has_chunks(const BiasShare& share) {
  return share.keys >= 8 && share.u.d_bias_strides.d == 1 &&
         ((share.to | share.step_bytes()) & 15) == 0;
}

template <typename T>
TANDEM_DEVICE void add_words(float (&sum)[8], uint4 x) {
  sum[0] += T::low(x.x), sum[1] += T::high(x.x);
  sum[2] += T::low(x.y), sum[3] += T::high(x.y);
  sum[4] += T::low(x.z), sum[5] += T::high(x.z);
  sum[6] += T::low(x.w), sum[7] += T::high(x.w);
}
template <typename T, bool F32>
TANDEM_DEVICE void put_chunk(uint64_t to, const float (&x)[8]) {
  if constexpr (F32) {
    __stcs(reinterpret_cast<float4*>(to), make_float4(x[0], x[1], x[2], x[3]));
    __stcs(reinterpret_cast<float4*>(to) + 1, make_float4(x[4], x[5], x[6], x[7]));
  } else {
    __stcs(reinterpret_cast<uint4*>(to), make_uint4(T::pack(x[0], x[1]), T::pack(x[2], x[3]),
                                                    T::pack(x[4], x[5]), T::pack(x[6], x[7])));
  }
}
// Stores 8 keys of a row, one element at a time.
template <typename T>
TANDEM_DEVICE void put_each(const BiasShare& share, uint64_t to, const float (&x)[8]) {
  const int64_t bytes = share.u.d_bias_strides.d * (share.u.d_bias_f32 ? 4 : 2);
#pragma unroll
  for (int e = 0; e < 8; ++e, to += uint64_t(bytes)) {
    if (e >= share.keys) break;
    if (share.u.d_bias_f32)
      *reinterpret_cast<float*>(to) = x[e];
    else
      *reinterpret_cast<ushort*>(to) = ushort(T::pack(x[e], 0.f));
  }
}

template <typename T>
TANDEM_DEVICE void put(const BiasShare& share, bool chunks, uint64_t to, const float (&x)[8]) {
  if (!chunks)
    put_each<T>(share, to, x);
  else if (share.u.d_bias_f32)
    put_chunk<T, true>(to, x);
  else
    put_chunk<T, false>(to, x);
}

// Reduces the rows that exist over `size` workgroups. size: 0 stores zeros, for a tile that hides
// everything.
template <typename T>
TANDEM_DEVICE void reduce_rows(const BiasShare& share, uint size) {
  const bool chunks = has_chunks(share);
  uint64_t to = share.to;
#pragma unroll 1
  for (int row = share.row; row < share.rows; row += share.step(), to += share.step_bytes()) {
    const uint at = share.panel + swizzle_128b(row, read_tid_x() % 8);
    float sum[8] = {};
#pragma unroll 1
    for (uint c = 0; c < size; c += 2) {
      // With an odd size the last workgroup is read twice and added once.
      uint4 x[2];
      x[0] = ld_cluster_v4_u32(cluster_address(at, c));
      x[1] = ld_cluster_v4_u32(cluster_address(at, min(c + 1, size - 1)));
      add_words<T>(sum, x[0]);
      if (c + 1 < size) add_words<T>(sum, x[1]);
    }
    put<T>(share, chunks, to, sum);
  }
}
// Reduces a whole tile with aligned rows. Words of later rows are prefetched in registers while
// others are summed. The rows of the most frequent form are unrolled, with twice as many words in
// flight: 7 % of the whole backward at D 64 (bench/lab/2026-11.md). If all forms were unrolled,
// registers would spill.
template <typename T, int BR, int SIZE, bool F32>
TANDEM_DEVICE void reduce_whole(const BiasShare& share) {
  constexpr bool UNROLLED = SIZE == 4 && !F32;
  constexpr int ROWS = BR / 4 / SIZE, PREFETCH = UNROLLED ? 8 : 4;
  const uint at = first_words(share);
  uint from[SIZE];
#pragma unroll
  for (int c = 0; c < SIZE; ++c) from[c] = cluster_address(at, uint(c));
  const auto words = [&](int k, int c) {
    return ld_cluster_v4_u32(from[c] + uint(k * 4 * SIZE * kPanelBytes));
  };
  const uint64_t step = share.step_bytes();
  uint64_t to = share.to;
  uint4 x[PREFETCH];
#pragma unroll
  for (int n = 0; n < PREFETCH; ++n) x[n] = words(n / SIZE, n % SIZE);
#pragma unroll(UNROLLED ? ROWS : 1)
  for (int k = 0; k < ROWS; ++k, to += step) {
    float sum[8] = {};
#pragma unroll
    for (int c = 0; c < SIZE; ++c) {
      uint4& next = x[UNROLLED ? (k * SIZE + c) % PREFETCH : c % PREFETCH];
      add_words<T>(sum, next);
      if (k + (c + PREFETCH) / SIZE < ROWS)
        next = words(k + (c + PREFETCH) / SIZE, (c + PREFETCH) % SIZE);
    }
    put_chunk<T, F32>(to, sum);
  }
}
// Copies a whole tile with aligned rows of a single workgroup, two rows at a time.
template <typename T, int BR, bool F32>
TANDEM_DEVICE void copy_whole(const BiasShare& share) {
  const uint at = first_words(share);
  const uint64_t step = share.step_bytes();
  uint64_t to = share.to;
#pragma unroll 1
  for (int k = 0; k < BR / 4; k += 2) {
    uint4 x[2];
    // The swizzle puts the same keys, four rows further, into the other half of the row of a panel.
#pragma unroll
    for (int n = 0; n < 2; ++n)
      x[n] = ld_shared_v4_u32((at ^ uint(n * 64)) + (k + n) * 4 * kPanelBytes);
#pragma unroll
    for (int n = 0; n < 2; ++n, to += step) {
      if constexpr (F32) {
        float y[8] = {};
        add_words<T>(y, x[n]);
        put_chunk<T, true>(to, y);
      } else {
        __stcs(reinterpret_cast<uint4*>(to), x[n]);
      }
    }
  }
}
template <typename T, int BR, bool F32>
TANDEM_DEVICE void sum_by_size(const BiasShare& share) {
  const uint size = cluster_size();
  if (size == 4)
    reduce_whole<T, BR, 4, F32>(share);
  else if (size == 8)
    reduce_whole<T, BR, 8, F32>(share);
  else if (size == 1)
    copy_whole<T, BR, F32>(share);
  else
    reduce_rows<T>(share, size);
}
template <typename T, int BR>
TANDEM_DEVICE void reduce_tile(const BiasShare& share) {
  if (share.rows < BR || !has_chunks(share))
    reduce_rows<T>(share, cluster_size());
  else if (share.u.d_bias_f32)
    sum_by_size<T, BR, true>(share);
  else
    sum_by_size<T, BR, false>(share);
}
// d_bias in slices of the batch: a slice has sums of its own in the workspace, f32, with rows of
// whole chunks (BwdBias::slice_pitch). The first pass over a tile stores, later ones add. The same
// thread does both, so the order is fixed. What lies behind the last key is zero, as dS is.
template <bool ADD>
TANDEM_DEVICE void put_slice(uint64_t to, const float (&x)[8]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float4 four = make_float4(x[4 * h], x[4 * h + 1], x[4 * h + 2], x[4 * h + 3]);
    if constexpr (ADD)
      red_add_v4_f32(to + 16 * h, four);
    else
      __stcg(reinterpret_cast<float4*>(to) + h, four);
  }
}
// The rows that exist, over `size` workgroups; 0: zeros.
template <typename T, bool ADD>
TANDEM_DEVICE void reduce_slice_rows(const BiasShare& share, uint size) {
  if (share.keys <= 0) return;
  uint64_t to = share.to;
#pragma unroll 1
  for (int row = share.row; row < share.rows; row += share.step(), to += share.step_bytes()) {
    const uint at = share.panel + swizzle_128b(row, read_tid_x() % 8);
    float sum[8] = {};
#pragma unroll 1
    for (uint c = 0; c < size; ++c) add_words<T>(sum, ld_cluster_v4_u32(cluster_address(at, c)));
    put_slice<ADD>(to, sum);
  }
}
// A whole tile over a cluster of kSliceCluster workgroups, words of later rows ahead as in
// reduce_whole().
template <typename T, int BR, bool ADD>
TANDEM_DEVICE void reduce_slice(const BiasShare& share, uint present) {
  constexpr int SIZE = kSliceCluster, ROWS = BR / 4 / SIZE;
  if (share.rows < BR || present < uint(SIZE)) {
    reduce_slice_rows<T, ADD>(share, present);
    return;
  }
  if (share.keys <= 0) return;
  const uint at = first_words(share);
  uint from[SIZE];
#pragma unroll
  for (int c = 0; c < SIZE; ++c) from[c] = cluster_address(at, uint(c));
  const uint64_t step = share.step_bytes();
  uint64_t to = share.to;
  uint4 x[SIZE];
#pragma unroll
  for (int c = 0; c < SIZE; ++c) x[c] = ld_cluster_v4_u32(from[c]);
#pragma unroll 1
  for (int k = 0; k < ROWS; ++k, to += step) {
    float sum[8] = {};
#pragma unroll
    for (int c = 0; c < SIZE; ++c) {
      const uint4 here = x[c];
      if (k + 1 < ROWS) x[c] = ld_cluster_v4_u32(from[c] += 4 * SIZE * kPanelBytes);
      add_words<T>(sum, here);
    }
    put_slice<ADD>(to, sum);
  }
}
// Reduces a tile over a two-CTA cluster, in one of several passes. parts: sums of the passes
// before, if BEGUN, and of this one, unless LAST. await(): waits for dS of both workgroups. make():
// the share.
template <typename T, int BR, bool BEGUN, bool LAST, typename Share, typename Await>
TANDEM_DEVICE void reduce_pair(Share&& make, float4* parts, Await&& await) {
  constexpr int ALL = BR / 8,
                PREFETCH = 2;  // rows of a thread; rows that are prefetched in registers
  float4 y[PREFETCH][2];
  const auto load = [&](int n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) y[n % PREFETCH][h] = __ldcg(parts + (2 * n + h) * 64);
  };
  if constexpr (BEGUN) {
#pragma unroll
    for (int n = 0; n < PREFETCH; ++n) load(n);
  }
  await();
  const BiasShare share = make();
  const bool chunks = has_chunks(share), own_first = cluster_rank() == 0;
  const uint own = first_words(share), other = cluster_address(own, cluster_rank() ^ 1);
  uint64_t to = share.to;
  uint4 x[PREFETCH];
#pragma unroll
  for (int n = 0; n < PREFETCH; ++n) x[n] = ld_cluster_v4_u32(other + n * (8 * kPanelBytes));
#pragma unroll 1
  for (int m = 0; m < ALL; m += PREFETCH, parts += 2 * PREFETCH * 64)
#pragma unroll
    for (int n = 0; n < PREFETCH; ++n) {
      const uint4 here = ld_shared_v4_u32(own + (m + n) * (8 * kPanelBytes));
      float sum[8] = {};
      if constexpr (BEGUN) {
        const float4 low = y[n][0], high = y[n][1];
        sum[0] = low.x, sum[1] = low.y, sum[2] = low.z, sum[3] = low.w;
        sum[4] = high.x, sum[5] = high.y, sum[6] = high.z, sum[7] = high.w;
        if (m + PREFETCH < ALL) load(n + PREFETCH);
        add_words<T>(sum, own_first ? here : x[n]);
        add_words<T>(sum, own_first ? x[n] : here);
      } else {  // the order of two numbers does not matter
        add_words<T>(sum, here);
        add_words<T>(sum, x[n]);
      }
      if (m + PREFETCH < ALL)
        x[n] = ld_cluster_v4_u32(other + (m + n + PREFETCH) * (8 * kPanelBytes));
      if constexpr (!LAST) {
        __stcg(parts + 2 * n * 64, make_float4(sum[0], sum[1], sum[2], sum[3]));
        __stcg(parts + (2 * n + 1) * 64, make_float4(sum[4], sum[5], sum[6], sum[7]));
      } else {
        if (share.row + (m + n) * 8 < share.rows) put<T>(share, chunks, to, sum);
        to += share.step_bytes();
      }
    }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
