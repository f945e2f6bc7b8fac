// SPDX-License-Identifier: MIT OR Apache-2.0
// Zeros under the f32 sums of d_q, shortly before the first add, by warps of bwd_dkv_dq: as a pass of bwd_dot all the zeros go out to
// memory, and come back for the adds. Only the first heads' are bwd_dot's. The sums of a head of keys (its query heads together)
// are cut into as many shares as it has tiles of keys. Two words a head in the workspace, zeroed before, count shares.
//
// By a warp that has nothing else to do (zero_share()), with stores. The words of a head count how many of its shares somebody has
// claimed, and how many are zero. A workgroup claims and zeroes a share of the sums of a head that comes some heads later; who is about
// to add to a head that is not ready yet claims what is left of it. Nobody waits between a claim and its end, so it ends whatever the
// order in which workgroups are started. Stores are of the generic proxy, bulk adds of the async one, hence a fence of the
// proxies on both sides, and a release and an acquire of the device between them.
//
// With a dense bias every warp has something else to do (ZeroCopies): the one that adds copies zeros from shared memory, some with each
// tile of queries. The first heads are those of each entry, whose further shares are claimed one after the other: the first word of
// the entry's first head counts claims, the second one of each further head the shares that are zero. As a workgroup begins a tile of
// keys it claims a share, which is zero when it ends the tile; one of a cluster of two, which takes long, claims none. Who
// is about to add to a head that is not ready claims shares, too, and zeroes each at once, until all of that head's are claimed. It
// ends whatever the order: what is claimed for the length of a tile is of a later head than the tile, all of whose own shares were claimed
// before. So of all heads with a share that is claimed and not zero, the first one has it from tiles that nobody holds up.
// The fences are the same: copies and adds are both of the async proxy, release and acquire of the generic one.
//
// Branches of ZeroCopies are by votes: one of which the compiler does not know that the whole warp takes it raises the kernel's spills
// from 12 to 116 bytes, as values that warps share move to registers of each thread.
#ifndef TANDEM_CUDA_SM90_BWD_ZEROS_CUH
#define TANDEM_CUDA_SM90_BWD_ZEROS_CUH
#include "bwd.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

static_assert(kZeroBytes == 32 * sizeof(float4),
              "what shares are counted in: a store of a warp, or a copy");

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

// How the warp that adds does it with a dense bias: it copies zeros from shared memory.
struct ZeroCopies {
  static constexpr uint kEach = 8;  // copies with a tile of queries
  template <int ROW>                // where in shared memory kZeroBytes bytes are zero
  static constexpr uint kAt = uint(bwd_bias_zeros_at(kBwdShapes[ROW]));
  uint area;                // the address of these
  uint from = 0, left = 0;  // of the share that is claimed, in copies
  int head = 0;             // of all of the batch, whose share that is; 0: none is

  static TANDEM_DEVICE uint* words(const BwdDkvDqParams& params, int head) {
    return reinterpret_cast<uint*>(params.ahead.words) + 2 * head;
  }
  // The next share of the entry's heads, if there is one.
  TANDEM_DEVICE void claim(const BwdDkvDqParams& params, const Walk& walk, bool one) {
    const int first = walk.batch * params.ahead.heads_kv;
    uint number = 0;
    if (one) number = atomicAdd(words(params, first), 1u);
    number = __reduce_or_sync(kAllLanes, number);
    const uint behind = number / params.block.tiles, share = number - behind * params.block.tiles;
    const uint rows = params.ahead.rows, more = params.ahead.more;
    const int of_entry = params.ahead.heads + int(behind);
    if (!__any_sync(kAllLanes, of_entry < params.ahead.heads_kv)) return;
    head = first + of_entry;
    from = uint(head) * params.ahead.rows_of_head + share * rows + min(share, more);
    left = rows + (share < more ? 1 : 0);
  }
  TANDEM_DEVICE void copy(const BwdDkvDqParams& params, uint most, bool one) {
    const uint now = min(left, most);
    if (one)
      for (uint n = 0; n < now; ++n)
        store_flat(params.push.d_q_sums + uint64_t(from + n) * kZeroBytes, area, kZeroBytes);
    from += now, left -= now;
  }
  // What is left of the share.
  TANDEM_DEVICE void finish(const BwdDkvDqParams& params, bool one) {
    if (!__any_sync(kAllLanes, head > 0)) return;
    copy(params, ~0u, one);
    if (one) {
      bulk_commit();
      bulk_wait<0>();
      fence_proxies();
      take_turn(words(params, head) + 1);
    }
    head = 0;
  }
  // Before the first add.
  TANDEM_DEVICE void begin(const BwdDkvDqBiasParams& params, const Walk& walk, bool one) {
    const int heads = params.ahead.heads;
    if (__any_sync(kAllLanes, heads > 0 && walk.head_kv >= heads)) {
      const uint* const done = words(params, head_of_batch(params, walk)) + 1;
      const uint* const claims = words(params, walk.batch * params.ahead.heads_kv);
      const uint all = uint(walk.head_kv - heads + 1) * params.block.tiles;
      while (__any_sync(kAllLanes, turns_taken(done) != params.block.tiles)) {
        if (!__any_sync(kAllLanes, turns_taken(claims) < all)) continue;
        claim(params, walk, one);
        finish(params, one);
      }
      fence_proxies();
    }
    if (__any_sync(kAllLanes, heads > 0 && params.bias.passes == 1)) claim(params, walk, one);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
