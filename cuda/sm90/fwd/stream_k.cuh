// SPDX-License-Identifier: MIT OR Apache-2.0
// Stream-K in fwd with a dense bias: combines the partial results of tiles that two workgroups
// share (src/plan/sm90/fwd_stream_k.h). These tiles come first.
#ifndef TANDEM_CUDA_SM90_FWD_STREAM_K_CUH
#define TANDEM_CUDA_SM90_FWD_STREAM_K_CUH
#include "../ptx/global_memory.cuh"
#include "main_loop.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Ends a piece of a tile. Returns whether this warp stores its rows. Of a tile that two workgroups
// share, the warp that is done first leaves its partial result in the workspace; the other one
// reads it and has the whole row then. l: sums of whole rows; scale: as in Softmax::step(). In the
// workspace the sum of a far row is negative.
//
// A flag says which warp was first. It may have any value before the launch, and no launch zeroes
// it, so the flag takes a number that only this execute has (src/cuda/sm90.cpp). Each warp
// exchanges the flag for that number. The warp that was first sets number + 1 once its partial
// result is visible. Only a warp that finds the number waits, and it waits for a warp that is about
// to write and waits for none. The second warp sets the flag to zero, so that the next replay of a
// graph, with the same number, begins like the first.
template <typename S>
TANDEM_DEVICE bool combine_partials(const StaticTileScheduler<S>& scheduler, int piece,
                                    float (&o)[S::DV / 2], Softmax<S::N>& row, float (&l)[2],
                                    float scale) {
  const FwdStreamKParams& stream_k = *scheduler.stream_k;
  if (!__any_sync(kAllLanes, stream_k.units > 0 && piece < kStreamKMaxPieces)) return true;
  const int steps = stream_k.shares.steps;
  const FwdStreamKRange range = scheduler.stream_k_range();
  const FwdStepRange of = fwd_stream_k_steps(range, piece, steps);
  const bool later = of.begin > 0;
  if (!__any_sync(kAllLanes, piece < range.many && (later || of.end < steps))) return true;
  constexpr int kWarps = 4 * S::WARPGROUPS, kFloats = 16 * (S::DV + 2);
  const int thread = read_tid_x() - 128, lane = thread % 32;
  const uint slot = (blockIdx.x - (later ? uint(stream_k.unit) : 0u)) * kWarps + uint(thread / 32);
  const uint64_t word = stream_k.flags + 8 * uint64_t(slot);
  float* const part = reinterpret_cast<float*>(stream_k.partials) + uint64_t(slot) * kFloats;
  float4* const mine = reinterpret_cast<float4*>(part) + lane;
  float4* const sums = reinterpret_cast<float4*>(part + 16 * S::DV) + lane / 4;
  // Warp votes: where a branch may diverge, the compiler keeps no loop counter in uniform
  // registers.
  uint64_t was = 0;
  if (lane == 0) was = atom_exchange_acquire(word, stream_k.number);
  const bool writes = __any_sync(kAllLanes, was == stream_k.number),
             second = __any_sync(kAllLanes, was - stream_k.number <= 1);
  if (!second) {
#pragma unroll
    for (int i = 0; i < S::DV / 8; ++i)
      __stcg(mine + 32 * i, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    if (lane % 4 == 0)
      __stcg(sums,
             make_float4(row.m[0], copysignf(l[0], row.l[0]), row.m[1], copysignf(l[1], row.l[1])));
    __syncwarp();
    if (lane == 0) st_release(word, stream_k.number + 1);
    return false;
  }
  if (writes)
    while (__any_sync(kAllLanes, ld_acquire(word) != stream_k.number + 1)) {
    }
  __syncwarp();
  if (lane == 0) __stcg(reinterpret_cast<unsigned long long*>(word), 0ull);
  // Products are rounded before they are added: the sum has the same bits whichever warp adds.
  const float4 other = __ldcg(sums);
  const float other_l[2] = {fabsf(other.y), fabsf(other.w)};
  const Origin others[2] = {{other.x, float_bits(other.y) < 0}, {other.z, float_bits(other.w) < 0}};
  float ours[2], theirs[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float above = row.origin(r).above(others[r], scale);
    // The factor of the lower one; of two rows that saw no key any factor does.
    ours[r] = exp2_fast(fminf(above, 0.f)), theirs[r] = exp2_fast(-fmaxf(above, 0.f));
    if (above < 0.f) row.move(r, others[r]);
    l[r] = __fadd_rn(__fmul_rn(l[r], ours[r]), __fmul_rn(other_l[r], theirs[r]));
  }
#pragma unroll
  for (int i = 0; i < S::DV / 8; ++i) {
    if (i % 8 == 0) __threadfence_block();  // limits the loads in flight: registers are short
    const float4 x = __ldcg(mine + 32 * i);
    const float from[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int n = 0; n < 4; ++n)
      o[4 * i + n] =
          __fadd_rn(__fmul_rn(o[4 * i + n], ours[n / 2]), __fmul_rn(from[n], theirs[n / 2]));
  }
  return true;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
