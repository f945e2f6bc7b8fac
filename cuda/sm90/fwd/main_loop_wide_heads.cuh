// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of softmax alone, heads over 128: shared memory has room for Q of one tile. The time from one
// tile to the next decides. So each warpgroup has a half of the stage of Q to itself, and the
// producer fills it again as soon as the last scores from it are done. o is stored while the first
// keys of the next tile are multiplied. The producer thread finds the tiles, and publishes the
// work-tile descriptor of a tile with its first keys. A warpgroup begins with the last keys that
// its own 64 rows see.
#ifndef TANDEM_CUDA_SM90_FWD_MAIN_LOOP_WIDE_HEADS_CUH
#define TANDEM_CUDA_SM90_FWD_MAIN_LOOP_WIDE_HEADS_CUH
#include "main_loop_decoupled.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The producer thread. Descriptors are those of main_loop_decoupled.cuh, but a warpgroup takes all
// steps down to the beginning of the tile, and skips at most one step at its end, which is what 64
// rows more or less see. If it skipped more, it would wait for keys behind values that it has yet
// to release. With ping-pong scheduling a warpgroup takes all steps, and so it does where it has no
// rows or sees no key. A warp that reads a descriptor holds keys of its tile, so the producer is at
// most STAGES tiles ahead.
template <typename S, typename Params>
TANDEM_DEVICE void produce_wide_heads(const Params& params, const FwdSharedStorage<S>& shared) {
  static_assert(S::STAGES < kDecoupledDescriptors, "how long a work-tile descriptor stays");
  const FwdBlock& u = params.block;
  StaticTileScheduler<S> scheduler(params);
  TmaProducer<S, Params> producer(params, shared);
  uint described = 0;
  FwdWorkTile to;
  const auto find = [&] { return next_visible_tile(scheduler, &to); };
  // Whether Q of the next tile is prefetched to L2. This pays where all workgroups need theirs at
  // the same time. With a mask it cost 4 % in tiles of up to 13 steps, and gained up to 2.5 % in
  // longer ones (H100 80GB HBM3, 580.159.04, D 192 and 256).
  const auto is_long = [&](const FwdWorkTile& tile) {
    return (u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN) ||
           tile.span.end - tile.span.begin > 16;
  };
  for (bool more = find(); more;) {
    const FwdWorkTile at = to;
    const int batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q;
    const int kv_head = head / u.group;
    producer.wait_k();
    const uint descriptor = decoupled_descriptor<S>(shared, described);
    st_shared(descriptor, at.row0, int(at.index), at.span.begin, at.span.end);
    st_shared(descriptor + 16, batch, head, 0, 0);
#pragma unroll 1
    for (int n = 0; n < S::WARPGROUPS; ++n) {
      TandemTiles own =
          tandem_key_tiles(scheduler.band(), at.row0 + 64 * n, 64, S::N, u.seq_q, u.seq_kv);
      if (S::PING_PONG || own.begin >= own.end) own = at.span;
      st_shared(descriptor + 32 + 16 * n, at.span.begin, max(own.end, at.span.end - 1),
                own.full_begin, own.full_end);
    }
    // TMA boxes of the next tile's Q that are prefetched so far. At first all count as prefetched.
    int prefetched = S::WARPGROUPS * S::D_PANELS;
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      producer.kv(t, kv_head, batch);
      if (t == at.span.end - 1) {  // after the last loads of the tile before
#pragma unroll 1
        for (int n = 0; n < S::WARPGROUPS; ++n) {
          mbarrier_wait(shared.q_empty(n), int(described % 2) ^ 1);
          tma_load_rows<S::D_PANELS>(shared.q(0) + uint(64 * n * kPanelBytes), &params.q,
                                     shared.q_full(n), 64, S::M, at.row0 + 64 * n, head, batch);
        }
        ++described;
        more = find();
        if (more && is_long(at)) prefetched = 0;
      } else if (prefetched < S::WARPGROUPS * S::D_PANELS) {
        // All workgroups need Q of their next tile at the same time, so it is prefetched to L2.
        // Keys wait behind it, so it is one TMA box a step.
        const int next_batch = batch_of(u, to), next_head = int(to.index) - next_batch * u.heads_q;
        tma_prefetch(&params.q, prefetched / S::WARPGROUPS * kPanel,
                     to.row0 + prefetched % S::WARPGROUPS * 64, next_head, next_batch);
        ++prefetched;
      }
    }
  }
  producer.last_v();
  producer.wait_k();
  st_shared(decoupled_descriptor<S>(shared, described), 0, int(kNoWorkTile), 0, 0);
  mbarrier_arrive(shared.k_full(producer.k_pipe.stage()));
}

// Warps 1 to 3: they store o and lse of work tiles whose rows see no key.
template <typename S, typename Params>
TANDEM_DEVICE void store_empty(const Params& params) {
  const FwdBlock& u = params.block;
  if (u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN) return;
  if constexpr (S::BIAS) grid_dependency_wait();  // without a bias all warps have waited
  StaticTileScheduler<S> scheduler(params);
  FwdWorkTile at;
  while (next_visible_tile(scheduler, &at, [&](const FwdWorkTile& unseen) {
    store_unseen_rows(u, params.push, batch_of(u, unseen), head_of(u, unseen), unseen.row0, S::M,
                      int(threadIdx.x) - 32, 96);
  })) {
  }
}

template <typename T, typename S, typename Params>
TANDEM_DEVICE void main_loop_wide_heads(const Params& params, const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  float s[S::N / 2], o[S::DV / 2];
  uint p[S::N / 4];
  Softmax<S::N> softmax(wants_largest(params.push));
  FwdConsumer<T, S> c(shared, s, o, p, softmax);
  DecoupledScore<T, S, Params> policy(params, c);
  uint& tile = c.q_pipe.n;
  auto& kv = c.kv;
  // Releases the next `count` stages of K or V that this warpgroup does not multiply. Its warps
  // synchronise before each release: a warp that lags behind would wait for a phase that is long
  // over.
  const auto sync_warpgroup = [&] { named_barrier_sync(warpgroup_barrier<S>(c.warpgroup), 128); };
  const auto skip_k = [&](int count) {
#pragma unroll 1
    for (; count > 0; --count) kv.wait_k(), sync_warpgroup(), kv.release_k();
  };
  const auto skip_v = [&](int count) {
#pragma unroll 1
    for (; count > 0; --count) kv.wait_v(), sync_warpgroup(), kv.release_v();
  };

  kv.wait_k();
  int4 all = policy.all_of(tile), own = policy.own_of(tile);
  if (uint(all.y) == kNoWorkTile) return;
  if (S::PING_PONG && c.warpgroup == S::WARPGROUPS - 1) policy.ping_pong_pass();
  skip_k(all.w - own.y);
  policy.wait_own_q();
  kv.wait_k();
  policy.product_s();
  wgmma_wait_group<0>();
  for (;;) {
    // Here S of the tile's first keys is done.
    kv.release_k();
    skip_v(all.w - own.y);
    clear(o);
    float factor[2];
    softmax = Softmax<S::N>(wants_largest(params.push));
    policy.score(own, own.y - 1);
    softmax.step(s, policy.scale, u.slack, factor, [&] { return policy.rows_left(own); });
    c.pack_weights();
#pragma unroll 1
    for (int t = own.y - 2; t >= own.x; --t) {
      kv.wait_k();
      kv_step(u, c, policy, own, t);
    }
    policy.raise_max(own);
    kv.wait_k();
    ++tile;
    all = policy.all_of(tile), own = policy.own_of(tile);
    if (uint(all.y) == kNoWorkTile) break;
    skip_k(all.w - own.y);
    policy.ping_pong_wait();
    c.product_o();
    policy.wait_own_q();
    kv.wait_k();
    policy.product_s();
    policy.ping_pong_pass();
    wgmma_wait_group<1>();
    kv.release_v();
    policy.store(tile - 1);
    wgmma_wait_group<0>();
  }
  c.product_o();
  wgmma_wait_group<0>();
  policy.store(tile - 1);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
