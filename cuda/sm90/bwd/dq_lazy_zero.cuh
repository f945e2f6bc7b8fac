// SPDX-License-Identifier: MIT OR Apache-2.0
// Lazy zero-initialisation of the dQ accumulator, shortly before its first add, by warps of
// bwd_dkv_dq. Zeroed in a pass of bwd_dot, the whole accumulator would go to memory and come back
// for the adds; bwd_dot zeroes only the leading heads. The accumulator of a kv head (all its query
// heads) is cut into as many slices as the head has tiles of keys. Two counters a head in the
// workspace, zeroed before, count slices: those that a warp has claimed, and those that are zero.
//
// By an auxiliary warp with stores (zero_slice()). A workgroup claims and zeroes a slice of a head
// that comes some heads later. A warp that is about to add to a head that is not ready claims
// slices of that head. No warp waits between a claim and its end, so this ends whatever the order
// in which workgroups start. Stores belong to the generic proxy and bulk adds to the async proxy.
// Hence there is a proxy fence on both sides, with release and acquire at device scope between
// them.
//
// With a dense bias there is no auxiliary warp to spare (LazyZeroCopies): the dQ warp copies zeros
// from shared memory, some with each query tile. The leading heads are then those of each batch
// entry, and the slices of the other heads of the entry are claimed in order: the first counter of
// the first head of the entry counts claims, the second counter of each other head counts its zero
// slices. As a workgroup begins a tile of keys, it claims a slice, which is zero when it ends the
// tile. A two-CTA cluster, which takes long, claims none. A warp that is about to add to a head
// that is not ready claims slices, too, and zeroes each at once, until all slices of that head are
// claimed. This ends whatever the order: a slice that is claimed for the length of a tile belongs
// to a later head than the tile, and all slices of the tile's own head were claimed before. So the
// first of all heads with a claimed slice that is not zero has it from tiles that nothing holds up.
// The fences are the same: copies and adds are both of the async proxy, release and acquire of the
// generic one.
//
// Branches of LazyZeroCopies are warp votes. A branch that the compiler does not know to be uniform
// raises the spills of the kernel from 12 to 116 bytes, as values that the warp shares move to
// registers of each thread.
#ifndef TANDEM_CUDA_SM90_BWD_DQ_LAZY_ZERO_CUH
#define TANDEM_CUDA_SM90_BWD_DQ_LAZY_ZERO_CUH
#include "dq_semaphore.cuh"
#include "epilogue.cuh"
#include "softmax.cuh"
#include "tma_producer.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

static_assert(kZeroBytes == 32 * sizeof(float4),
              "what shares are counted in: a store of a warp, or a copy");

// Claims a slice of the accumulator of a head, unless all are claimed, and zeroes it, by one warp.
// head: index over the whole batch.
TANDEM_DEVICE void zero_slice(const BwdDkvDqParams& params, int head) {
  uint* const counters = reinterpret_cast<uint*>(params.lazy_zero.counters) + 2 * head;
  const bool one = read_tid_x() % 32 == 0;
  uint slice = 0;
  if (one) slice = atomicAdd(counters, 1u);
  slice = __shfl_sync(kAllLanes, slice, 0);
  if (slice >= params.block.tiles) return;
  const uint rows = params.lazy_zero.rows, more = params.lazy_zero.more;
  float4* at =
      reinterpret_cast<float4*>(params.push.d_q_accum) +
      (int64_t(head) * params.lazy_zero.rows_of_head + slice * rows + min(slice, more)) * 32 +
      read_tid_x() % 32;
#pragma unroll 4
  for (uint n = rows + (slice < more ? 1 : 0); n > 0; --n, at += 32)
    *at = make_float4(0.f, 0.f, 0.f, 0.f);
  fence_proxy_async();
  __syncwarp();
  if (one) semaphore_release(counters + 1);
}

TANDEM_DEVICE int head_of_batch(const BwdDkvDqParams& params, const BwdWorkTile& work) {
  return work.batch * params.lazy_zero.heads_kv + work.head_kv;
}

// An auxiliary warp, at the start of its workgroup: zeroes a slice of a head that comes later.
TANDEM_DEVICE void zero_next_head(const BwdDkvDqParams& params, const BwdWorkTile& work) {
  const int head = head_of_batch(params, work) + params.lazy_zero.eager_heads;
  if (params.lazy_zero.eager_heads > 0 && head < params.lazy_zero.total_heads)
    zero_slice(params, head);
}

// A dQ warp, before its first add: waits until the accumulator of the head is zero, and zeroes
// slices meanwhile.
TANDEM_DEVICE void wait_zeros(const BwdDkvDqParams& params, const BwdWorkTile& work) {
  const int head = head_of_batch(params, work);
  if (params.lazy_zero.eager_heads == 0 || head < params.lazy_zero.eager_heads) return;
  const uint* done = reinterpret_cast<const uint*>(params.lazy_zero.counters) + 2 * head + 1;
  for (;;) {
    uint slices = 0;
    if (read_tid_x() % 32 == 0) slices = semaphore_load(done);
    if (__shfl_sync(kAllLanes, slices, 0) == params.block.tiles) break;
    zero_slice(params, head);
  }
  fence_proxy_async();
}

// The dQ warp with a dense bias: it copies zeros from shared memory.
struct LazyZeroCopies {
  static constexpr uint kEach = 8;  // copies with a tile of queries
  template <int TILE>               // where in shared memory kZeroBytes bytes are zero
  static constexpr uint kAt = uint(bwd_bias_zeros_at(kBwdShapes[TILE]));
  uint area;                // shared-memory address of the zeros
  uint from = 0, left = 0;  // of the claimed slice, in copies
  int head = 0;             // of the claimed slice, over the whole batch; 0: none is claimed

  static TANDEM_DEVICE uint* counters(const BwdDkvDqParams& params, int head) {
    return reinterpret_cast<uint*>(params.lazy_zero.counters) + 2 * head;
  }
  // Claims the next slice of the heads of the batch entry, if there is one.
  TANDEM_DEVICE void claim(const BwdDkvDqParams& params, const BwdWorkTile& work, bool one) {
    const int first = work.batch * params.lazy_zero.heads_kv;
    uint number = 0;
    if (one) number = atomicAdd(counters(params, first), 1u);
    number = __reduce_or_sync(kAllLanes, number);
    const uint behind = number / params.block.tiles, slice = number - behind * params.block.tiles;
    const uint rows = params.lazy_zero.rows, more = params.lazy_zero.more;
    const int of_entry = params.lazy_zero.eager_heads + int(behind);
    if (!__any_sync(kAllLanes, of_entry < params.lazy_zero.heads_kv)) return;
    head = first + of_entry;
    from = uint(head) * params.lazy_zero.rows_of_head + slice * rows + min(slice, more);
    left = rows + (slice < more ? 1 : 0);
  }
  TANDEM_DEVICE void copy(const BwdDkvDqParams& params, uint most, bool one) {
    const uint now = min(left, most);
    if (one)
      for (uint n = 0; n < now; ++n)
        bulk_store(params.push.d_q_accum + uint64_t(from + n) * kZeroBytes, area, kZeroBytes);
    from += now, left -= now;
  }
  // Zeroes what is left of the claimed slice.
  TANDEM_DEVICE void finish(const BwdDkvDqParams& params, bool one) {
    if (!__any_sync(kAllLanes, head > 0)) return;
    copy(params, ~0u, one);
    if (one) {
      bulk_commit_group();
      bulk_wait_group<0>();
      fence_proxy_async();
      semaphore_release(counters(params, head) + 1);
    }
    head = 0;
  }
  // Before the first add.
  TANDEM_DEVICE void begin(const BwdDkvDqBiasParams& params, const BwdWorkTile& work, bool one) {
    const int heads = params.lazy_zero.eager_heads;
    if (__any_sync(kAllLanes, heads > 0 && work.head_kv >= heads)) {
      const uint* const done = counters(params, head_of_batch(params, work)) + 1;
      const uint* const claims = counters(params, work.batch * params.lazy_zero.heads_kv);
      const uint all = uint(work.head_kv - heads + 1) * params.block.tiles;
      while (__any_sync(kAllLanes, semaphore_load(done) != params.block.tiles)) {
        if (!__any_sync(kAllLanes, semaphore_load(claims) < all)) continue;
        claim(params, work, one);
        finish(params, one);
      }
      fence_proxy_async();
    }
    if (__any_sync(kAllLanes, heads > 0 && params.bias.passes == 1)) claim(params, work, one);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
