// SPDX-License-Identifier: MIT OR Apache-2.0
// Stores of dK and dV from accumulators.
#ifndef TANDEM_CUDA_SM90_BWD_EPILOGUE_CUH
#define TANDEM_CUDA_SM90_BWD_EPILOGUE_CUH
#include "shared_storage.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Stores N columns of a warpgroup's 64 rows of accumulators to an output of any strides, through
// shared memory: panels of 64 rows, `stride` bytes apart. Each warp stores its own 16 rows. key:
// row of the output of the first row; column: the first column.
template <typename T, int N>
TANDEM_DEVICE void store_rows(uint memory, int stride, const float (&x)[N / 2], float scale,
                              uint64_t address, const Strides& strides, const BwdWorkTile& work,
                              int key, int keys, int column, int width) {
  constexpr int kPieces = N / 8;
  [[maybe_unused]] constexpr int kFly = N > 64 ? 4 : 1;  // with heads of 64 registers spill
  const int lane = read_tid_x() % 32, row0 = read_tid_x() % 128 / 32 * 16;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
    uint r[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      r[n] = T::pack(x[8 * k + 2 * n] * scale, x[8 * k + 2 * n + 1] * scale);
    const int piece = 2 * k + lane / 16;
    stmatrix_x4(memory + piece / 8 * stride + swizzle_128b(row0 + lane % 16, piece % 8), r);
  }
  __syncwarp();
  ushort* to = reinterpret_cast<ushort*>(address) + work.batch * strides.b +
               work.head_kv * strides.h + int64_t(work.first_kv + key) * strides.s +
               column * strides.d;
  const bool chunks =
      strides.d == 1 && strides.s % 8 == 0 && (reinterpret_cast<uint64_t>(to) & 15) == 0;
  const auto words = [&](int row, int piece) {
    return ld_shared_v4_u32(memory + piece / 8 * stride + swizzle_128b(row, piece % 8));
  };
  if (__all_sync(kAllLanes, chunks && width % 8 == 0)) {  // without branches
#pragma unroll kFly
    for (int n = lane; n < 16 * kPieces; n += 32) {
      const int row = row0 + n / kPieces, piece = n % kPieces;
      const uint4 chunk = words(row, piece);
      if (key + row < keys && column + 8 * piece < width)
        *reinterpret_cast<uint4*>(to + row * strides.s + 8 * piece) = chunk;
    }
    return;
  }
#pragma unroll 1
  for (int n = lane; n < 16 * kPieces; n += 32) {
    const int row = row0 + n / kPieces, piece = n % kPieces, left = width - column - 8 * piece;
    if (key + row >= keys || left <= 0) continue;
    const uint4 chunk = words(row, piece);
    const uint w[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
    ushort* at = to + row * strides.s + 8 * piece * strides.d;
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e < left) at[e * strides.d] = ushort(w[e / 2] >> (e % 2 * 16));
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
