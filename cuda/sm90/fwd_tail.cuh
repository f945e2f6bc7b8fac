// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with a dense bias: the tiles that two workgroups share (src/fwd_tail.h), which come first.
#ifndef TANDEM_CUDA_SM90_FWD_TAIL_CUH
#define TANDEM_CUDA_SM90_FWD_TAIL_CUH
#include "fwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// At the end of a piece: whether this warp stores its rows. Of a tile that two workgroups share, the warp that comes first leaves its
// part in the workspace; the other one reads it, and has all of the row then. l: sums of whole
// rows; scale: as Softmax::step() has it. Of a far row the sum has a minus in the workspace. A word
// says who has come. It may have had any value before the launch, and there is no launch that
// zeroes it, so what is put there is the execute's own number (src/cuda/sm90.cpp): first by whoever
// comes, and number + 1 by who was first, once its part can be seen. Only who finds number waits:
// for a warp that is about to write, and waits for nobody. The second puts a zero there, so that
// the next replay of a graph, with the same number, begins like the first.
template <typename S>
TANDEM_DEVICE bool join_parts(const Rounds<S>& rounds, int piece, float (&o)[S::DV / 2],
                              Softmax<S::N>& row, float (&l)[2], float scale) {
  const FwdTailParams& tail = *rounds.tail;
  if (!__any_sync(kAllLanes, tail.units > 0 && piece < kTailPieces)) return true;
  const int steps = tail.shares.steps;
  const FwdPieces pieces = rounds.pieces();
  const FwdSteps of = fwd_piece(pieces, piece, steps);
  const bool later = of.begin > 0;
  if (!__any_sync(kAllLanes, piece < pieces.many && (later || of.end < steps))) return true;
  constexpr int kWarps = 4 * S::GROUPS, kFloats = 16 * (S::DV + 2);
  const int thread = fresh_thread() - 128, lane = thread % 32;
  const uint place = (blockIdx.x - (later ? uint(tail.unit) : 0u)) * kWarps + uint(thread / 32);
  const uint64_t word = tail.words + 8 * uint64_t(place);
  float* const part = reinterpret_cast<float*>(tail.parts) + uint64_t(place) * kFloats;
  float4* const mine = reinterpret_cast<float4*>(part) + lane;
  float4* const sums = reinterpret_cast<float4*>(part + 16 * S::DV) + lane / 4;
  // Votes, as the compiler takes what follows a branch by what lanes hold for another way of each thread, and keeps no counter of a
  // loop in uniform registers then.
  uint64_t was = 0;
  if (lane == 0) was = exchange_word(word, tail.number);
  const bool writes = __any_sync(kAllLanes, was == tail.number),
             second = __any_sync(kAllLanes, was - tail.number <= 1);
  if (!second) {
#pragma unroll
    for (int i = 0; i < S::DV / 8; ++i)
      __stcg(mine + 32 * i, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    if (lane % 4 == 0)
      __stcg(sums,
             make_float4(row.m[0], copysignf(l[0], row.l[0]), row.m[1], copysignf(l[1], row.l[1])));
    __syncwarp();
    if (lane == 0) release_word(word, tail.number + 1);
    return false;
  }
  if (writes)
    while (__any_sync(kAllLanes, acquire_word(word) != tail.number + 1)) {
    }
  __syncwarp();
  if (lane == 0) __stcg(reinterpret_cast<unsigned long long*>(word), 0ull);
  // Products are rounded before they are added: a sum has the same bits whoever of the two adds.
  const float4 other = __ldcg(sums);
  const float other_l[2] = {fabsf(other.y), fabsf(other.w)};
  const Origin others[2] = {{other.x, word_of(other.y) < 0}, {other.z, word_of(other.w) < 0}};
  float ours[2], theirs[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float above = row.origin(r).above(others[r], scale);
    // The lower one's share; of two that saw nothing anything will do.
    ours[r] = exp2_fast(fminf(above, 0.f)), theirs[r] = exp2_fast(-fmaxf(above, 0.f));
    if (above < 0.f) row.move(r, others[r]);
    l[r] = __fadd_rn(__fmul_rn(l[r], ours[r]), __fmul_rn(other_l[r], theirs[r]));
  }
#pragma unroll
  for (int i = 0; i < S::DV / 8; ++i) {
    if (i % 8 == 0)
      __threadfence_block();  // no more loads on their way at a time: registers are short
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
