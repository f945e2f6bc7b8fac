// SPDX-License-Identifier: MIT OR Apache-2.0
// d_bias from tiles of dS: a workgroup's share of a tile, summed over the cluster by two of its warps. There are no other warps for it,
// and with heads up to 64 the products wait for these two: what counts is how many instructions a word takes (docs/hopper-measured.md).
// So whole tiles whose rows are aligned have loops of their own.
#ifndef TANDEM_CUDA_SM90_BWD_BIAS_SUMS_CUH
#define TANDEM_CUDA_SM90_BWD_BIAS_SUMS_CUH
#include "bwd.h"
#include "wgmma.cuh"
#include "words.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Where a tile of dS begins in d_bias.
struct BiasTileAt {
  int batch, head, row, key;
};
// What a thread has of a tile: 8 keys of every step()-th row. Four rows, one after the other, are of one workgroup, the next four of the next one.
struct BiasShare {
  const BwdBias& u;
  uint64_t to;  // its first row and key in d_bias
  uint panel;   // of dS in shared memory, where its keys are
  int row;      // the first one
  int rows;     // of the tile, as far as there are queries
  int keys;     // that there are from its first one on
  TANDEM_DEVICE int step() const { return 4 * int(cluster_size()); }  // rows
  TANDEM_DEVICE uint64_t step_bytes() const {
    return uint64_t(step() * u.d_bias_strides.s) * (u.wide ? 4 : 2);
  }
};
template <int BR>
TANDEM_DEVICE BiasShare bias_share(const BwdBias& u, uint tile, const BiasTileAt& at, int seq_q,
                                   int seq_kv) {
  const Strides& strides = u.d_bias_strides;
  const int thread = fresh_thread() - 64, piece = thread % 16;
  const int row = 4 * int(cluster_rank()) + thread / 16;
  const int64_t to = at.batch * strides.b + at.head * strides.h + (at.row + row) * strides.s +
                     (at.key + 8 * piece) * strides.d;
  return {u,
          u.d_bias + uint64_t(to) * (u.wide ? 4 : 2),
          tile + uint(piece / 8 * BR * kPanelBytes),
          row,
          min(BR, seq_q - at.row),
          seq_kv - at.key - 8 * piece};
}
TANDEM_DEVICE uint first_words(const BiasShare& share) {
  return share.panel + panel_at(share.row, fresh_thread() % 8);
}
// Whether the thread's 8 keys of a row are 16 bytes, or 32, that go to d_bias at once.
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
template <typename T, bool WIDE>
TANDEM_DEVICE void put_chunk(uint64_t to, const float (&x)[8]) {
  if constexpr (WIDE) {
    __stcs(reinterpret_cast<float4*>(to), make_float4(x[0], x[1], x[2], x[3]));
    __stcs(reinterpret_cast<float4*>(to) + 1, make_float4(x[4], x[5], x[6], x[7]));
  } else {
    __stcs(reinterpret_cast<uint4*>(to), make_uint4(T::pack(x[0], x[1]), T::pack(x[2], x[3]),
                                                    T::pack(x[4], x[5]), T::pack(x[6], x[7])));
  }
}
// One element at a time.
template <typename T>
TANDEM_DEVICE void put_each(const BiasShare& share, uint64_t to, const float (&x)[8]) {
  const int64_t bytes = share.u.d_bias_strides.d * (share.u.wide ? 4 : 2);
#pragma unroll
  for (int e = 0; e < 8; ++e, to += uint64_t(bytes)) {
    if (e >= share.keys) break;
    if (share.u.wide)
      *reinterpret_cast<float*>(to) = x[e];
    else
      *reinterpret_cast<ushort*>(to) = ushort(T::pack(x[e], 0.f));
  }
}

template <typename T>
TANDEM_DEVICE void put(const BiasShare& share, bool chunks, uint64_t to, const float (&x)[8]) {
  if (!chunks)
    put_each<T>(share, to, x);
  else if (share.u.wide)
    put_chunk<T, true>(to, x);
  else
    put_chunk<T, false>(to, x);
}

// Whatever rows there are, of `size` workgroups; 0: zeros, of a tile that hides everything.
template <typename T>
TANDEM_DEVICE void sum_rows(const BiasShare& share, uint size) {
  const bool chunks = has_chunks(share);
  uint64_t to = share.to;
#pragma unroll 1
  for (int row = share.row; row < share.rows; row += share.step(), to += share.step_bytes()) {
    const uint at = share.panel + panel_at(row, fresh_thread() % 8);
    float sum[8] = {};
#pragma unroll 1
    for (uint c = 0; c < size; c += 2) {
      // The odd one out is taken twice and added once.
      uint4 x[2];
      x[0] = cluster_words(cluster_address(at, c));
      x[1] = cluster_words(cluster_address(at, min(c + 1, size - 1)));
      add_words<T>(sum, x[0]);
      if (c + 1 < size) add_words<T>(sum, x[1]);
    }
    put<T>(share, chunks, to, sum);
  }
}
// Words of later rows are on their way while others are summed. Rows of the most frequent form are unrolled, with twice as many words on
// their way: 7 % of the whole backward at D 64 (docs/hopper-measured.md). Were all forms, registers would spill.
template <typename T, int BR, int SIZE, bool WIDE>
TANDEM_DEVICE void sum_whole(const BiasShare& share) {
  constexpr bool UNROLLED = SIZE == 4 && !WIDE;
  constexpr int ROWS = BR / 4 / SIZE, FLY = UNROLLED ? 8 : 4;
  const uint at = first_words(share);
  uint from[SIZE];
#pragma unroll
  for (int c = 0; c < SIZE; ++c) from[c] = cluster_address(at, uint(c));
  const auto words = [&](int k, int c) {
    return cluster_words(from[c] + uint(k * 4 * SIZE * kPanelBytes));
  };
  const uint64_t step = share.step_bytes();
  uint64_t to = share.to;
  uint4 x[FLY];
#pragma unroll
  for (int n = 0; n < FLY; ++n) x[n] = words(n / SIZE, n % SIZE);
#pragma unroll(UNROLLED ? ROWS : 1)
  for (int k = 0; k < ROWS; ++k, to += step) {
    float sum[8] = {};
#pragma unroll
    for (int c = 0; c < SIZE; ++c) {
      uint4& next = x[UNROLLED ? (k * SIZE + c) % FLY : c % FLY];
      add_words<T>(sum, next);
      if (k + (c + FLY) / SIZE < ROWS) next = words(k + (c + FLY) / SIZE, (c + FLY) % SIZE);
    }
    put_chunk<T, WIDE>(to, sum);
  }
}
// There is nothing to sum: two rows at a time.
template <typename T, int BR, bool WIDE>
TANDEM_DEVICE void copy_whole(const BiasShare& share) {
  const uint at = first_words(share);
  const uint64_t step = share.step_bytes();
  uint64_t to = share.to;
#pragma unroll 1
  for (int k = 0; k < BR / 4; k += 2) {
    uint4 x[2];
    // Four rows further pieces lie in the other half of a panel's rows.
#pragma unroll
    for (int n = 0; n < 2; ++n)
      x[n] = shared_words((at ^ uint(n * 64)) + (k + n) * 4 * kPanelBytes);
#pragma unroll
    for (int n = 0; n < 2; ++n, to += step) {
      if constexpr (WIDE) {
        float y[8] = {};
        add_words<T>(y, x[n]);
        put_chunk<T, true>(to, y);
      } else {
        __stcs(reinterpret_cast<uint4*>(to), x[n]);
      }
    }
  }
}
template <typename T, int BR, bool WIDE>
TANDEM_DEVICE void sum_by_size(const BiasShare& share) {
  const uint size = cluster_size();
  if (size == 4)
    sum_whole<T, BR, 4, WIDE>(share);
  else if (size == 8)
    sum_whole<T, BR, 8, WIDE>(share);
  else if (size == 1)
    copy_whole<T, BR, WIDE>(share);
  else
    sum_rows<T>(share, size);
}
template <typename T, int BR>
TANDEM_DEVICE void sum_tile(const BiasShare& share) {
  if (share.rows < BR || !has_chunks(share))
    sum_rows<T>(share, cluster_size());
  else if (share.u.wide)
    sum_by_size<T, BR, true>(share);
  else
    sum_by_size<T, BR, false>(share);
}
// Of a cluster of two, in passes. parts: where sums of the passes before are, if begun, and where this one's go, unless last. await():
// until dS of both is here; make(): the share.
template <typename T, int BR, bool BEGUN, bool LAST, typename Share, typename Await>
TANDEM_DEVICE void sum_pairs(Share&& make, float4* parts, Await&& await) {
  constexpr int ALL = BR / 8, FLY = 2;  // rows of a thread; on their way
  float4 y[FLY][2];
  const auto load = [&](int n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) y[n % FLY][h] = __ldcg(parts + (2 * n + h) * 64);
  };
  if constexpr (BEGUN) {
#pragma unroll
    for (int n = 0; n < FLY; ++n) load(n);
  }
  await();
  const BiasShare share = make();
  const bool chunks = has_chunks(share), own_first = cluster_rank() == 0;
  const uint own = first_words(share), other = cluster_address(own, cluster_rank() ^ 1);
  uint64_t to = share.to;
  uint4 x[FLY];
#pragma unroll
  for (int n = 0; n < FLY; ++n) x[n] = cluster_words(other + n * (8 * kPanelBytes));
#pragma unroll 1
  for (int m = 0; m < ALL; m += FLY, parts += 2 * FLY * 64)
#pragma unroll
    for (int n = 0; n < FLY; ++n) {
      const uint4 here = shared_words(own + (m + n) * (8 * kPanelBytes));
      float sum[8] = {};
      if constexpr (BEGUN) {
        const float4 low = y[n][0], high = y[n][1];
        sum[0] = low.x, sum[1] = low.y, sum[2] = low.z, sum[3] = low.w;
        sum[4] = high.x, sum[5] = high.y, sum[6] = high.z, sum[7] = high.w;
        if (m + FLY < ALL) load(n + FLY);
        add_words<T>(sum, own_first ? here : x[n]);
        add_words<T>(sum, own_first ? x[n] : here);
      } else {  // of two numbers the order does not matter
        add_words<T>(sum, here);
        add_words<T>(sum, x[n]);
      }
      if (m + FLY < ALL) x[n] = cluster_words(other + (m + n + FLY) * (8 * kPanelBytes));
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
