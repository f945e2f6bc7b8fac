// SPDX-License-Identifier: MIT OR Apache-2.0
// A keep mask beside a dense bias, as bits of hidden keys. Of a mask with a row for each query the
// consumer warps read the bytes themselves. Of one row for all queries a warp of the producer
// warpgroup of the forward reads them.
#ifndef TANDEM_CUDA_SM90_KEEP_MASK_CUH
#define TANDEM_CUDA_SM90_KEEP_MASK_CUH
#include "mask_bytes.cuh"
#include "ptx/shared_memory.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Rows of a mask from the first key of a tile on. Strides are in bytes.
struct KeepRows {
  const char* at;
  int64_t row_stride, key_stride;
  int keys;  // existing keys, from `at` on
};

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

// In the forward a word has the keys of a thread of a quad in a row of a tile of N keys: bit
// hidden_bit(n) + i of thread c's word is key 8 n + 2 c + i.
TANDEM_DEVICE constexpr int hidden_bit(int n) { return 8 * (n % 4) + 2 * (n / 4); }
// The words of the four threads of all quads, of a mask of one row, by one warp.
template <int N>
TANDEM_DEVICE uint4 hidden_columns(const KeepRows& mask) {
  static_assert(N % 8 == 0 && N <= 128, "two bits of a word for each eight keys");
  const int block = read_tid_x() % 32, first = 8 * block;
  const uint hidden = block < N / 8 ? hidden_eight(mask.at + first * mask.key_stride,
                                                   mask.key_stride, first, mask.keys - first)
                                    : 0;
  const auto word = [&](int c) {
    return __reduce_or_sync(kAllLanes, (hidden >> 2 * c & 3) << hidden_bit(block % 16));
  };
  return make_uint4(word(0), word(1), word(2), word(3));
}
// The words of a thread in its two rows, of a mask with a row for each query. The threads of a quad
// share out these rows: each reads 32 keys of each, or, with 64 keys, of one. EARLY: fetch() loads
// what arrives during the products; there are registers for it.
template <int N, bool EARLY>
struct HiddenRows {
  static_assert(N == 64 || N == 128, "keys are shared out evenly");
  static constexpr int kWords = N / 64;
  uint4 bytes[EARLY ? kWords : 1][2];
  // The part of a quad's keys that thread c has of its n-th row, and which row of the two that is.
  static TANDEM_DEVICE int group(int c) { return c % (N / 32); }
  static TANDEM_DEVICE int row_of(int c, int n) { return N == 64 ? c / 2 : n; }
  // Whether the bytes can be loaded by 16.
  static TANDEM_DEVICE bool is_wide(const KeepRows& mask) {
    return mask.keys >= N && mask.key_stride == 1 &&
           ((uint(reinterpret_cast<uint64_t>(mask.at)) | uint(mask.row_stride)) & 15) == 0;
  }
  static TANDEM_DEVICE const char* from(const KeepRows& mask, int c, int n, int second) {
    return mask.at + group(c) * 32 * mask.key_stride + row_of(c, n) * second * mask.row_stride;
  }
  // mask: from the thread's first row and the first key of the tile on. second: how many rows
  // further its second row is.
  TANDEM_DEVICE void fetch(const KeepRows& mask, int second) {
    if (!EARLY || !is_wide(mask)) return;
#pragma unroll
    for (int n = 0; n < kWords; ++n) load(bytes[EARLY ? n : 0], mask, n, second);
  }
  static TANDEM_DEVICE void load(uint4 (&to)[2], const KeepRows& mask, int n, int second) {
    const auto* at = reinterpret_cast<const uint4*>(from(mask, int(read_tid_x()) % 4, n, second));
    to[0] = __ldg(at), to[1] = __ldg(at + 1);
  }
  static TANDEM_DEVICE uint kept_word_by_bytes(const char* at, int64_t key_stride, int first,
                                               int keys) {
    if (key_stride == 1) return kept_bits<32>(at, first, keys);
    uint kept = 0;
#pragma unroll 1
    for (int n = 0; n < min(32, keys); ++n, at += key_stride) kept |= uint(__ldg(at) != 0) << n;
    return kept;
  }
  // Keys that do not exist are hidden.
  TANDEM_DEVICE void read(const KeepRows& mask, int second, uint (&hidden)[2]) {
    const int c = int(read_tid_x()) % 4, quad = int(read_tid_x()) % 32 - c;
    uint word[kWords];
    if (is_wide(mask)) {
#pragma unroll
      for (int n = 0; n < kWords; ++n) {
        uint4(&own)[2] = bytes[EARLY ? n : 0];
        if (!EARLY) load(own, mask, n, second);
        word[n] = ~kept_bits(own);
      }
    } else {
#pragma unroll
      for (int n = 0; n < kWords; ++n)
        word[n] = ~kept_word_by_bytes(from(mask, c, n, second), mask.key_stride, 32 * group(c),
                                      mask.keys - 32 * group(c));
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      hidden[row] = 0;
#pragma unroll
      for (int g = 0; g < N / 32; ++g) {
        const uint other =
            __shfl_sync(kAllLanes, word[N == 64 ? 0 : row], quad + (N == 64 ? 2 * row + g : g));
        hidden[row] |= (other >> 2 * c & 0x03030303u) << hidden_bit(4 * g);
      }
    }
  }
};

// Hides the scores of these keys. hidden: the thread's words of its two rows.
template <int N>
TANDEM_DEVICE void hide_keys(float (&s)[N / 2], const uint (&hidden)[2]) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (hidden[i / 2] >> (hidden_bit(n) + i % 2) & 1) s[4 * n + i] = -INFINITY;
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
