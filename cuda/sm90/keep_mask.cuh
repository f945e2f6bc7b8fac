// SPDX-License-Identifier: MIT OR Apache-2.0
// A keep mask beside a dense bias, as bits of hidden keys. Of a mask with a row for each query the
// consumer warps read the bits that pack_keep has left. Of one row for all queries a warp of the
// producer warpgroup of the forward reads the bytes.
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
// share out these rows: each loads the word of 32 keys of each, or, with 64 keys, of one. fetch()
// loads what arrives during the products.
template <int N>
struct HiddenRows {
  static_assert(N == 64 || N == 128, "keys are shared out evenly");
  static constexpr int kWords = N / 64;
  uint kept[kWords];
  // row: the words of the tile's keys in the thread's first row; second: words from there to those
  // in its second row.
  TANDEM_DEVICE void fetch(const uint* row, int64_t second) {
    const int c = int(read_tid_x()) % 4;
#pragma unroll
    for (int n = 0; n < kWords; ++n)
      kept[n] = __ldg(row + c % (N / 32) + (N == 64 ? c / 2 : n) * second);
  }
  TANDEM_DEVICE void read(uint (&hidden)[2]) const {
    const int c = int(read_tid_x()) % 4, quad = int(read_tid_x()) % 32 - c;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      hidden[row] = 0;
#pragma unroll
      for (int g = 0; g < N / 32; ++g) {
        const uint other =
            ~__shfl_sync(kAllLanes, kept[N == 64 ? 0 : row], quad + (N == 64 ? 2 * row + g : g));
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

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
