// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq_cast: the dQ postprocess as a kernel of its own. It scales and rounds the dQ accumulator
// of bwd_dkv_dq to d_q. A block of 64 x 64 sums passes through shared memory, from the order of
// accumulators to rows. The last workgroups may do the work of bwd_head_sums.
#ifndef TANDEM_CUDA_SM90_BWD_BWD_DQ_CAST_CUH
#define TANDEM_CUDA_SM90_BWD_BWD_DQ_CAST_CUH
#include "../../parts/bwd_head_sums.cuh"
#include "../../parts/extra.cuh"
#include "../../parts/tensor.cuh"
#include "../ptx/wgmma.cuh"
#include "dq_semaphore.cuh"
#include "epilogue.cuh"
#include "softmax.cuh"
#include "tma_producer.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename T>
TANDEM_DEVICE void cast_block(const BwdDqCastParams& params) {
  constexpr int kPitch = 64 + 8;  // so that rows begin in different banks
  TANDEM_SHARED_ARRAY(ushort, rows, 64 * kPitch);
  const BwdDqCastBlock& u = params.block;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index >= u.total) {
    if (params.counts) grid_dependency_wait();
    if (index - u.total < params.head.block.total)
      sum_head(params.head, int(index - u.total), reinterpret_cast<float*>(rows));
    return;
  }
  // The last heads come first, as the L2 cache may still have their sums. With programmatic
  // dependent launch, heads come in the order in which they are done.
  const uint turned = params.counts ? index : u.total - 1 - index;
  const int panel = int(turned % uint(u.panels));
  const uint blocks = uint(u.seq_q + 63) / 64;
  const int row_block = int(turned / uint(u.panels) % blocks);
  uint batch_head = turned / uint(u.panels) / blocks;
  if (params.entries > 1)
    batch_head =
        batch_head % uint(params.entries) * uint(u.heads_q) + batch_head / uint(params.entries);
  const int t = int(threadIdx.x);
  if (params.counts) {
    const uint* count =
        reinterpret_cast<const uint*>(params.counts) + batch_head / uint(params.group);
    if (t == 0)
      while (semaphore_load(count) != params.done) __nanosleep(200);
    __syncthreads();
  }
  int64_t first_block = int64_t(batch_head) * u.row_blocks;
  int rows_end = u.seq_q, first_row = 0;
  if (params.lengths_q) {
    const uint batch = batch_head / uint(u.heads_q), head = batch_head % uint(u.heads_q);
    int64_t first;
    const Lengths lengths = params.gapped ? Lengths::gapped : Lengths::packed;
    rows_end = entry_length(lengths, params.lengths_q, int(batch), u.seq_q, params.total_q, &first);
    first_row = int(first);
    if (64 * row_block >= rows_end) return;
    first_block =
        int64_t(head) * params.packed_blocks + (first_row / (64 * params.tile_blocks) +
                                                entry_rank(lengths, params.lengths_q, int(batch))) *
                                                   params.tile_blocks;
  }
  const float4* from = reinterpret_cast<const float4*>(params.push.d_q_accum) +
                       ((first_block + row_block) * u.panels + panel) * (kDqAccumBlock / 4) + t;
  const int columns = min(64, u.head_dim - 64 * panel);
  if (columns <= 0) return;

  const int row = 16 * (t / 32) + t % 32 / 4, column = 2 * (t % 4);
  float4 x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    x[i] = params.by_rows || 8 * i < columns ? __ldcg(from + 128 * i)
                                             : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    ushort* at = rows + row * kPitch + 8 * i + column;
    ushort* second = at + 8 * kPitch;
    if (params.by_rows)  // of 16 features, those that a thread of bwd_dkv_dq has come together
      at = rows + (8 * i + t / 16) * kPitch + t % 16 / 4 * 16 + column, second = at + 8;
    *reinterpret_cast<uint*>(at) = T::pack(x[i].x * u.scale, x[i].y * u.scale);
    *reinterpret_cast<uint*>(second) = T::pack(x[i].z * u.scale, x[i].w * u.scale);
  }
  __syncthreads();

  const Strides& s = u.d_q;
  ushort* to = reinterpret_cast<ushort*>(params.push.d_q) +
               int64_t(batch_head / uint(u.heads_q)) * s.b +
               int64_t(batch_head % uint(u.heads_q)) * s.h +
               (int64_t(first_row) + 64 * row_block) * s.s + int64_t(64 * panel) * s.d;
  const int count = min(64, rows_end - 64 * row_block);
  const bool chunks = s.d == 1 && s.s % 8 == 0 && (reinterpret_cast<uint64_t>(to) & 15) == 0;
  const int c = 8 * (t % 8);
  for (int r = t / 8; r < count; r += 16) {
    const ushort* piece = rows + r * kPitch + c;
    if (chunks && c + 8 <= columns) {
      *reinterpret_cast<uint4*>(to + r * s.s + c) = *reinterpret_cast<const uint4*>(piece);
    } else {
      for (int n = 0; n < 8; ++n)
        if (c + n < columns) to[r * s.s + (c + n) * s.d] = piece[n];
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(128) bwd_dq_cast(const __grid_constant__ BwdDqCastParams params) {
  cast_block<T>(params);
  // With programmatic dependent launch, the other workgroups just end. This one first waits until
  // the kernels that add have ended. Hence the next launch cannot start before that either.
  if (params.counts && blockIdx.y * gridDim.x + blockIdx.x + 1 == params.block.total)
    grid_dependency_wait();
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return bwd_dq_cast<T>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
