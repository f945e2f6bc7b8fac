// SPDX-License-Identifier: MIT OR Apache-2.0
// pack_bias: copies a dense bias that TMA cannot read to rows that it can. It is bound by memory: a
// thread stores 16 bytes, and loads them in as few parts as their address allows.
#ifndef TANDEM_CUDA_SM90_PACK_BIAS_CUH
#define TANDEM_CUDA_SM90_PACK_BIAS_CUH
#include "kernels/traits.h"
#include "params.h"
#include "ptx/base.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

// Eight elements of a row side by side. Loads are plain ones: by the read-only path they might be
// moved ahead of the grid dependency wait.
TANDEM_DEVICE uint4 load_chunk(const ushort* from) {
  const auto word = [&](int n) { return *reinterpret_cast<const uint*>(from + n); };
  const auto address = reinterpret_cast<uintptr_t>(from);
  if (address % 16 == 0) return *reinterpret_cast<const uint4*>(from);
  if (address % 4 == 0) return make_uint4(word(0), word(2), word(4), word(6));
  const uint first = from[0], x = word(1), y = word(3), z = word(5), last = from[7];
  return make_uint4(first | x << 16, x >> 16 | y << 16, y >> 16 | z << 16, z >> 16 | last << 16);
}

// The first `count` of eight elements with a stride, and zeros behind them.
TANDEM_DEVICE uint4 load_elements(const ushort* from, int64_t stride, int count) {
  uint x[8];
#pragma unroll
  for (int n = 0; n < 8; ++n) x[n] = n < count ? from[n * stride] : 0u;
  return make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
}

__global__ void __launch_bounds__(kLineGroup)
    pack_bias(const __grid_constant__ PackBiasParams params) {
  const PackBiasBlock& u = params.block;
  launch_dependent_grids();
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  const uint batch_head = index / u.tiles;
  const uint n = index % u.tiles * kLineGroup + threadIdx.x;
  const uint row = n / uint(u.chunks), column = n % uint(u.chunks) * 8;
  const Strides& s = u.bias;
  const ushort* from = reinterpret_cast<const ushort*>(params.push.bias) +
                       int64_t(batch_head / uint(u.heads)) * s.b +
                       int64_t(batch_head % uint(u.heads)) * s.h + int64_t(row) * s.s +
                       int64_t(column) * s.d;
  // The bias may be the output of the kernel before, and the copy what that kernel reads.
  grid_dependency_wait();
  if (index >= u.total || row >= uint(u.rows)) return;
  const int count = u.seq_kv - int(column);
  reinterpret_cast<uint4*>(params.push.packed_bias)[int64_t(batch_head) * u.rows * u.chunks + n] =
      s.d == 1 && count >= 8 ? load_chunk(from) : load_elements(from, s.d, count);
}

// The same for f32: eight elements are 32 bytes.
__global__ void __launch_bounds__(kLineGroup)
    pack_f32_bias(const __grid_constant__ PackBiasParams params) {
  const PackBiasBlock& u = params.block;
  launch_dependent_grids();
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  const uint batch_head = index / u.tiles;
  const uint n = index % u.tiles * kLineGroup + threadIdx.x;
  const uint row = n / uint(u.chunks), column = n % uint(u.chunks) * 8;
  const Strides& s = u.bias;
  const uint* from =
      reinterpret_cast<const uint*>(params.push.bias) + int64_t(batch_head / uint(u.heads)) * s.b +
      int64_t(batch_head % uint(u.heads)) * s.h + int64_t(row) * s.s + int64_t(column) * s.d;
  grid_dependency_wait();
  if (index >= u.total || row >= uint(u.rows)) return;
  const int count = u.seq_kv - int(column);
  uint x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = i < count ? from[i * s.d] : 0u;
  uint4* const to = reinterpret_cast<uint4*>(params.push.packed_bias) +
                    2 * (int64_t(batch_head) * u.rows * u.chunks + n);
  to[0] = make_uint4(x[0], x[1], x[2], x[3]);
  to[1] = make_uint4(x[4], x[5], x[6], x[7]);
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return Row::has(trait::f32_bias) ? pack_f32_bias : pack_bias;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
