// SPDX-License-Identifier: MIT OR Apache-2.0
// A keep mask beside a dense bias. In the forward a warp writes minus infinity over the elements of
// a bias tile in shared memory that the mask hides, so the warps that read the tile need no code
// for it. Of a mask with one row for all queries it writes bits instead, and the consumer warps
// hide scores: with 128 keys, the warp took longer for a tile than their products. In the backward
// the consumer warps read the mask as bits.
#ifndef TANDEM_CUDA_SM90_KEEP_MASK_CUH
#define TANDEM_CUDA_SM90_KEEP_MASK_CUH
#include "mask_bytes.cuh"
#include "panels.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Minus infinity of the 16-bit type of a bias, in both halves of a word.
TANDEM_DEVICE uint minus_infinities(bool is_f16) { return is_f16 ? 0xfc00fc00u : 0xff80ff80u; }

constexpr uint kMinusInfinity = 0xff800000u;  // of f32
// Panels of a bias tile with 64 keys: those of f32 have 32 keys.
template <bool F32>
constexpr int kEightPanels = F32 ? 2 : 1;

// Rows of a mask from the first key of a tile on. Strides are in bytes.
struct KeepRows {
  const char* at;
  int64_t row_stride, key_stride;
  int keys;  // existing keys, from `at` on
};

// Which of 8 keys a mask hides, whose bytes are in x: the highest bit of byte n is set if it hides
// key n. The other bits are 0.
TANDEM_DEVICE uint2 hidden_bytes(uint2 x) {
  const auto zeros = [](uint y) { return ~(y | ((y & 0x7f7f7f7fu) + 0x7f7f7f7fu)) & 0x80808080u; };
  return make_uint2(zeros(x.x), zeros(x.y));
}
// Which of 8 keys at any address a mask hides, as bits. They are `first` keys behind the beginning
// of a row that has `keys` keys from there on. Keys that do not exist are not hidden.
TANDEM_DEVICE uint hidden_eight(const char* from, int64_t key_stride, int first, int keys) {
  uint kept = 0;
  if (key_stride == 1) {
    kept = kept_bits<8>(from, first, keys);
  } else {
#pragma unroll
    for (int n = 0; n < 8; ++n)
      if (n < keys) kept |= uint(__ldg(from + n * key_stride) != 0) << n;
  }
  return ~kept & (keys >= 8 ? 0xffu : (1u << max(0, keys)) - 1);
}
// The same, as hidden_bytes() has it.
TANDEM_DEVICE uint2 hidden_at(const char* from, int64_t key_stride, int first, int keys) {
  const uint hidden = hidden_eight(from, key_stride, first, keys);
  const auto bytes = [](uint four) { return four * 0x10204080u & 0x80808080u; };
  return make_uint2(bytes(hidden & 15u), bytes(hidden >> 4));
}

// Hides elements of a row in 8 keys, a chunk of 16 bytes at `at`. infinities: minus_infinities().
TANDEM_DEVICE void hide_chunk(uint at, uint2 hidden, uint infinities) {
  if ((hidden.x | hidden.y) == 0) return;
  // The halves of a word whose bytes are hidden.
  const auto halves = [](uint low, uint high) {
    return (low & 0x80u ? 0xffffu : 0u) | (high & 0x80u ? 0xffff0000u : 0u);
  };
  const auto replaced = [=](uint x, uint mask) { return (x & ~mask) | (infinities & mask); };
  const uint4 x = ld_shared_v4_u32(at);
  st_shared(at, int(replaced(x.x, halves(hidden.x, hidden.x >> 8))),
            int(replaced(x.y, halves(hidden.x >> 16, hidden.x >> 24))),
            int(replaced(x.z, halves(hidden.y, hidden.y >> 8))),
            int(replaced(x.w, halves(hidden.y >> 16, hidden.y >> 24))));
}

// The same in 4 keys of f32, whose bytes are in `hidden`.
TANDEM_DEVICE void hide_four(uint at, uint hidden) {
  if (hidden == 0) return;
  const uint4 x = ld_shared_v4_u32(at);
  const auto word = [=](uint from, uint bit) { return int(hidden & bit ? kMinusInfinity : from); };
  st_shared(at, word(x.x, 0x80u), word(x.y, 0x8000u), word(x.z, 0x800000u), word(x.w, 0x80000000u));
}
// Where 8 keys of a row of a tile begin, the chunk-th of the 64 keys at `panel`.
template <int ROWS, bool F32>
TANDEM_DEVICE uint eight_at(uint panel, int row, int chunk) {
  return F32 ? panel + uint(chunk / 4 * ROWS * kPanelBytes) + swizzle_128b(row, chunk % 4 * 2)
             : panel + swizzle_128b(row, chunk);
}
// Hides elements of a row in these.
template <bool F32>
TANDEM_DEVICE void hide_eight(uint at, uint2 hidden, uint infinities) {
  if constexpr (F32) {
    hide_four(at, hidden.x);
    hide_four(at ^ 16u, hidden.y);
  } else {
    hide_chunk(at, hidden, infinities);
  }
}

// Hides elements of a tile of ROWS queries in PANELS times 64 keys, by one warp. A thread has 8
// keys of every fourth row. rows: how many exist. AT_ONCE: words of the mask that are loaded at a
// time. F32: the tile is of f32.
template <int PANELS, int ROWS, int AT_ONCE, bool F32 = false>
TANDEM_DEVICE void hide_rows(uint tile, const KeepRows& mask, int rows, uint infinities) {
  static_assert(ROWS % (4 * AT_ONCE) == 0, "whole steps");
  const int lane = read_tid_x() % 32, chunk = lane % 8;
#pragma unroll 1
  for (int p = 0; p < PANELS; ++p) {
    const uint panel = tile + uint(p * kEightPanels<F32> * ROWS * kPanelBytes);
    const int first = 64 * p + 8 * chunk, keys = mask.keys - first;
    const char* from = mask.at + first * mask.key_stride;
    // A short stride takes one register, and one instruction a row.
    const int stride = int(mask.row_stride);
    if (keys >= 8 && mask.key_stride == 1 && stride == mask.row_stride &&
        ((reinterpret_cast<uint64_t>(from) | uint64_t(stride)) & 7) == 0) {
#pragma unroll 1
      for (int row0 = lane / 8; row0 < ROWS; row0 += 4 * AT_ONCE) {
        uint2 x[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n) {
          const int row = opaque(row0 + 4 * n);
          x[n] = row < rows ? __ldg(reinterpret_cast<const uint2*>(from + int64_t(row) * stride))
                            : make_uint2(~0u, ~0u);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
          hide_eight<F32>(eight_at<ROWS, F32>(panel, opaque(row0) + 4 * n, chunk),
                          hidden_bytes(x[n]), infinities);
      }
    } else {
#pragma unroll 1
      for (int row = lane / 8; row < min(ROWS, rows); row += 4)
        hide_eight<F32>(eight_at<ROWS, F32>(panel, row, chunk),
                        hidden_at(from + row * mask.row_stride, mask.key_stride, first, keys),
                        infinities);
    }
  }
}
// Which keys of a tile of N keys a mask of one row hides, by one warp. Word c is for the threads c
// of all quads: its bit 2 n + i is key 8 n + 2 c + i, whose scores are elements 4 n + i and
// 4 n + 2 + i of their accumulators.
template <int N>
TANDEM_DEVICE uint4 hidden_columns(const KeepRows& mask) {
  static_assert(N % 8 == 0 && N <= 128, "two bits of a word for each eight keys");
  const int block = read_tid_x() % 32, first = 8 * block;
  const uint hidden = block < N / 8 ? hidden_eight(mask.at + first * mask.key_stride,
                                                   mask.key_stride, first, mask.keys - first)
                                    : 0;
  const auto word = [&](int c) {
    return __reduce_or_sync(kAllLanes, (hidden >> 2 * c & 3) << 2 * (block % 16));
  };
  return make_uint4(word(0), word(1), word(2), word(3));
}
// Hides the scores of these keys. hidden: the thread's word.
template <int N>
TANDEM_DEVICE void hide_columns(float (&s)[N / 2], uint hidden) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (hidden >> (2 * n + i) & 1) s[4 * n + i] = s[4 * n + 2 + i] = -INFINITY;
}

// Which of 16 keys, from the first one on, a row of a mask hides, as bits. row: from the first row
// on; rows: how many exist, from there.
TANDEM_DEVICE uint hidden_in_row(const KeepRows& mask, int row, int rows) {
  if (row >= rows) return 0;
  const char* from = mask.at + row * mask.row_stride;
  if (mask.keys < 16 || mask.key_stride != 1 || reinterpret_cast<uint64_t>(from) % 16 != 0) {
    const uint existing = mask.keys < 16 ? (1u << max(0, mask.keys)) - 1 : 0xffffu;
    if (mask.key_stride == 1) return ~kept_bits<16>(from, 0, mask.keys) & existing;
    uint bits = 0;
#pragma unroll 1
    for (int n = 0; n < min(16, mask.keys); ++n, from += mask.key_stride)
      bits |= uint(__ldg(from) == 0) << n;
    return bits;
  }
  const uint4 x = __ldg(reinterpret_cast<const uint4*>(from));
  // The lowest bits of the bytes are gathered in the highest four bits.
  const auto four = [](uint y) {
    return (~(y | ((y & 0x7f7f7f7fu) + 0x7f7f7f7fu)) & 0x80808080u) * 0x00204081u >> 28;
  };
  return four(x.x) | four(x.y) << 4 | four(x.z) << 8 | four(x.w) << 12;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
