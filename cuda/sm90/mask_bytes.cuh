// SPDX-License-Identifier: MIT OR Apache-2.0
// Bytes of a boolean mask as bits, at any address.
#ifndef TANDEM_CUDA_SM90_MASK_BYTES_CUH
#define TANDEM_CUDA_SM90_MASK_BYTES_CUH
#include "ptx/base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The highest four bits of the result: which of the four bytes of x are not 0.
TANDEM_DEVICE uint top_bits(uint x) {
  x = (x | ((x & 0x7f7f7f7fu) + 0x7f7f7f7fu)) & 0x80808080u;
  return x * 0x00204081u & 0xf0000000u;
}

// Which of KEYS bytes of a row are not 0, from `from` on, as bits. before, after: how many bytes
// the row has in front of `from` and from there on. Loads are of aligned words of four bytes; words
// that the row has in part come byte by byte, so nothing outside the row is read.
template <int KEYS>
TANDEM_DEVICE uint kept_bits(const char* from, int before, int after) {
  static_assert(KEYS == 8 || KEYS == 16 || KEYS == 32, "bits of a word");
  constexpr int kWords = KEYS / 4 + 1;
  const int count = min(KEYS, after);
  if (count <= 0) return 0;
  const int skew = int(reinterpret_cast<uint64_t>(from) & 3);
  // Words that are whole, and needed.
  const int begin = before < skew ? 1 : 0, end = min((count + skew + 3) / 4, (after + skew) / 4);
  const uint* words = reinterpret_cast<const uint*>(from - skew);
  uint x[kWords];
#pragma unroll
  for (int n = 0; n < kWords; ++n) x[n] = n >= begin && n < end ? __ldg(words + n) : 0;
  uint64_t bits = 0;
#pragma unroll
  for (int n = 0; n < kWords; ++n) bits |= uint64_t(top_bits(x[n]) >> 28) << (4 * n);
  uint kept = uint(bits >> skew);
  if (KEYS < 32) kept &= (1u << KEYS) - 1;
#pragma unroll 1
  for (int n = 0; n < min(4 * begin - skew, count); ++n) kept |= uint(__ldg(from + n) != 0) << n;
#pragma unroll 1
  for (int n = max(0, 4 * end - skew); n < count; ++n) kept |= uint(__ldg(from + n) != 0) << n;
  return kept;
}

// The same of 32 bytes.
TANDEM_DEVICE uint kept_bits(const uint4 (&bytes)[2]) {
  uint kept = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    kept = kept >> 4 | top_bits(bytes[half].x);
    kept = kept >> 4 | top_bits(bytes[half].y);
    kept = kept >> 4 | top_bits(bytes[half].z);
    kept = kept >> 4 | top_bits(bytes[half].w);
  }
  return kept;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
