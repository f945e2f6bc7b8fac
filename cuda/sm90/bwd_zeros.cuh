// SPDX-License-Identifier: MIT OR Apache-2.0
// Zeros under the f32 sums of d_q, shortly before the first add, by warps of bwd_dkv_dq that have nothing else to do: as a pass of
// bwd_dot all the zeros go out to memory, and come back for the adds. Only the first heads' are bwd_dot's.
//
// The sums of a head of keys (its query heads together) are cut into as many shares as it has tiles of keys. Two words a head in the
// workspace, zeroed before, count how many shares somebody has claimed, and how many are zero. A workgroup claims and
// zeroes a share of the sums of a head that comes some heads later; who is about to add to a head that is not ready yet claims what is
// left of it. Nobody waits between a claim and its end, so it ends whatever the order in which workgroups are started.
//
// How zeros get from those who store to those who add: stores are of the generic proxy, bulk adds of the async one, hence a fence of
// the proxies on both sides, and a release and an acquire of the device between them.
#ifndef TANDEM_CUDA_SM90_BWD_ZEROS_CUH
#define TANDEM_CUDA_SM90_BWD_ZEROS_CUH
#include "bwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// A warp claims a share of the sums of a head, the number of which it is among all of the batch, and zeroes it; unless all are claimed.
TANDEM_DEVICE void zero_share(const BwdDkvDqParams& params, int head) {
  uint* const words = reinterpret_cast<uint*>(params.ahead.words) + 2 * head;
  const bool one = fresh_thread() % 32 == 0;
  uint share = 0;
  if (one) share = atomicAdd(words, 1u);
  share = __shfl_sync(kAllLanes, share, 0);
  if (share >= params.block.tiles) return;
  const uint rows = params.ahead.rows, more = params.ahead.more;
  float4* at = reinterpret_cast<float4*>(params.push.d_q_sums) +
               (int64_t(head) * params.ahead.rows_of_head + share * rows + min(share, more)) * 32 +
               fresh_thread() % 32;
#pragma unroll 4
  for (uint n = rows + (share < more ? 1 : 0); n > 0; --n, at += 32)
    *at = make_float4(0.f, 0.f, 0.f, 0.f);
  fence_proxies();
  __syncwarp();
  if (one) take_turn(words + 1);
}

TANDEM_DEVICE int head_of_batch(const BwdDkvDqParams& params, const Walk& walk) {
  return walk.batch * params.ahead.heads_kv + walk.head_kv;
}

// A warp with nothing else to do, as its workgroup begins.
TANDEM_DEVICE void zero_ahead(const BwdDkvDqParams& params, const Walk& walk) {
  const int head = head_of_batch(params, walk) + params.ahead.heads;
  if (params.ahead.heads > 0 && head < params.ahead.all) zero_share(params, head);
}

// A warp that adds, before its first add.
TANDEM_DEVICE void await_zeros(const BwdDkvDqParams& params, const Walk& walk) {
  const int head = head_of_batch(params, walk);
  if (params.ahead.heads == 0 || head < params.ahead.heads) return;
  const uint* done = reinterpret_cast<const uint*>(params.ahead.words) + 2 * head + 1;
  for (;;) {
    uint shares = 0;
    if (fresh_thread() % 32 == 0) shares = turns_taken(done);
    if (__shfl_sync(kAllLanes, shares, 0) == params.block.tiles) break;
    zero_share(params, head);
  }
  fence_proxies();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
