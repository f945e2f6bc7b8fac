// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot's work for later heads, delta and zeros under the sums of d_q, on multiprocessors that have time for it: those of the
// clusters of two beside bwd_dkv_dq with a bias. bwd_dot then does that of the first heads alone.
//
// The rows of a head of keys (of a batch entry, its query heads together) are cut into shares of kLaterRows, numbered in the order in
// which heads are worked on. Words in the workspace, zeroed before: how many shares somebody has claimed, and for each head
// [heads of keys behind the first, batch] how many are done. Warps of the clusters of two claim and make shares before their first
// tile. Whoever is about to read delta of a head that is not done claims further shares until none of it is left, and then waits
// for those that somebody is making. Nobody waits between a claim and its end, so it ends whatever the order in which
// workgroups are started, and if those clusters never are.
//
// The warp that loads a tile of delta sees its head done before; what adds to the sums comes after it by way of the tile's barriers.
// As for zeros in bwd_zeros.cuh, stores are of the generic proxy and bulk adds of the async one.
#ifndef TANDEM_CUDA_SM90_BWD_LATER_CUH
#define TANDEM_CUDA_SM90_BWD_LATER_CUH
#include "bwd_zeros.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Eight pairs of elements: what they add to a row's delta.
template <typename T>
TANDEM_DEVICE float dot_words(uint4 x, uint4 y) {
  float sum = T::low(x.x) * T::low(y.x);
  sum = fmaf(T::high(x.x), T::high(y.x), sum);
  sum = fmaf(T::low(x.y), T::low(y.y), sum);
  sum = fmaf(T::high(x.y), T::high(y.y), sum);
  sum = fmaf(T::low(x.z), T::low(y.z), sum);
  sum = fmaf(T::high(x.z), T::high(y.z), sum);
  sum = fmaf(T::low(x.w), T::low(y.w), sum);
  return fmaf(T::high(x.w), T::high(y.w), sum);
}

// A warp makes a share. FLY: loads of each of o and d_o that a thread has on their way.
template <int FLY>
TANDEM_DEVICE void make_share(const BwdDkvDqBiasParams& params, uint number) {
  const BwdDkvDqBlock& u = params.block;
  const BwdLater& later = params.bias.later;
  const int lane = fresh_thread() % 32;
  const uint head = number / later.shares, share = number % later.shares;
  const int batch = int(head % uint(params.bias.shared)),
            head_kv = later.heads + int(head / uint(params.bias.shared));
  {
    float4* const sums = reinterpret_cast<float4*>(params.push.d_q_sums) +
                         (int64_t(batch) * later.heads_kv + head_kv) * later.pieces_of_head +
                         (share * later.pieces + min(share, later.more));
    const uint end = later.pieces + (share < later.more ? 1 : 0);
#pragma unroll 4
    for (uint n = lane; n < end; n += 32) sums[n] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  // 16 lanes a row, or 8.
  const int lanes = u.head_dim_v > 64 ? 16 : 8, beside = 32 / lanes;
  const int column = 8 * (lane % lanes);
  const int first = int(share) * kLaterRows, last = min(first + kLaterRows, u.group * u.seq_q);
  const int own = lane / lanes;
  const int64_t row0 = (int64_t(batch) * u.heads_q + head_kv * u.group) * u.seq_q;
#pragma unroll 1
  for (int from = first; from < last; from += FLY * beside) {
    uint4 x[FLY], y[FLY];
#pragma unroll
    for (int n = 0; n < FLY; ++n) {
      const int row = from + own + n * beside;
      x[n] = y[n] = make_uint4(0u, 0u, 0u, 0u);
      if (row < last && column < u.head_dim_v) {
        const int of = u.group == 1 ? 0 : row / u.seq_q;
        const int64_t h = head_kv * u.group + of, s = row - of * u.seq_q;
        const auto address = [&](uint64_t base, const Strides& t) {
          return reinterpret_cast<const uint4*>(base +
                                                2 * (batch * t.b + h * t.h + s * t.s + column));
        };
        x[n] = __ldcs(address(later.o, later.o_strides));
        y[n] = __ldcs(address(later.d_o, later.d_o_strides));
      }
    }
#pragma unroll
    for (int n = 0; n < FLY; ++n) {
      float sum = later.half ? dot_words<Half>(x[n], y[n]) : dot_words<Bfloat>(x[n], y[n]);
      for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      const int row = from + own + n * beside;
      if (lane % lanes == 0 && row < last)
        reinterpret_cast<float*>(params.push.delta)[row0 + row] = sum;
    }
  }
  fence_proxies();
  __syncwarp();
  if (lane == 0) take_turn(reinterpret_cast<uint*>(later.words) + 1 + head);
}

// A warp of a cluster of two, before its first tile: shares until all are claimed.
TANDEM_DEVICE void make_later(const BwdDkvDqBiasParams& params) {
  const BwdLater& later = params.bias.later;
  if (later.heads == 0) return;
  for (;;) {
    uint number = 0;
    if (fresh_thread() % 32 == 0) number = atomicAdd(reinterpret_cast<uint*>(later.words), 1u);
    number = __reduce_or_sync(kAllLanes, number);
    if (number >= later.all) return;
    make_share<8>(params, number);
  }
}

// The warp that loads, before it reads delta of a tile of keys.
TANDEM_DEVICE void await_later(const BwdDkvDqBiasParams& params, const Walk& walk) {
  const BwdLater& later = params.bias.later;
  // Branches by votes: the compiler must see that all lanes take the same one, lest values of the whole kernel that warps share move to
  // registers of each thread, for which there is no room.
  if (!__any_sync(kAllLanes, later.heads > 0 && walk.head_kv >= later.heads)) return;
  uint* const words = reinterpret_cast<uint*>(later.words);
  const uint head = uint(walk.head_kv - later.heads) * uint(params.bias.shared) + uint(walk.batch);
  while (__any_sync(kAllLanes, turns_taken(words + 1 + head) != later.shares)) {
    if (!__any_sync(kAllLanes, turns_taken(words) < (head + 1) * later.shares)) continue;
    uint number = 0;
    if (fresh_thread() % 32 == 0) number = atomicAdd(words, 1u);
    number = __reduce_or_sync(kAllLanes, number);
    // As others claim, too, it may be of a head further on.
    if (number < later.all) make_share<1>(params, number);
  }
  fence_proxies();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
