// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of softmax alone, heads over 128: shared memory has room for Q of one tile. The time from one
// tile to the next decides. So each warpgroup has a half of the stage of Q to itself, and the
// producer fills it again as soon as the last scores from it are done. o is stored while the first
// keys of the next tile are multiplied. The producer thread finds the tiles, and publishes the
// work-tile descriptor of a tile with its first keys. A warpgroup begins with the last keys that
// its own 64 rows see.
#ifndef TANDEM_CUDA_SM90_FWD_WIDE_HEADS_CUH
#define TANDEM_CUDA_SM90_FWD_WIDE_HEADS_CUH
#include "decoupled.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The producer thread. Descriptors are those of decoupled.cuh, but a warpgroup takes all steps down
// to the beginning of the tile, and skips at most one step at its end, which is what 64 rows more
// or less see. If it skipped more, it would wait for keys behind values that it has yet to release.
// With ping-pong scheduling a warpgroup takes all steps, and so it does where it has no rows or
// sees no key. A warp that reads a descriptor holds keys of its tile, so the producer is at most
// STAGES tiles ahead.
template <typename S, typename Params>
TANDEM_DEVICE void produce_wide_heads(const Params& params, const FwdSharedStorage<S>& shared) {
  static_assert(S::STAGES < kDecoupledDescriptors, "how long a notice stays");
  const FwdBlock& u = params.block;
  StaticTileScheduler<S> scheduler(u);
  TmaProducer<S, Params> producer(params, shared);
  uint described = 0;
  // V is loaded one step behind K: S of the next keys is computed before P V of the present ones.
  int t = -1, v_head = 0, v_batch = 0;
  FwdWorkTile to;
  const auto find = [&] { return scheduler.next(&to, [](const FwdWorkTile&) {}); };
  // Whether Q of the next tile is prefetched to L2. This pays where all workgroups need theirs at
  // the same time. With a mask it cost 4 % in tiles of up to 13 steps, and gained up to 2.5 % in
  // longer ones (H100 80GB HBM3, 580.159.04, D 192 and 256).
  const auto is_long = [&](const FwdWorkTile& place) {
    return (u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN) ||
           place.span.end - place.span.begin > 16;
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
    int ahead = S::WARPGROUPS * S::D_PANELS;
    for (int next = at.span.end - 1; next >= at.span.begin; --next) {
      producer.k(next, kv_head, batch);
      if (t >= 0) producer.v(t, v_head, v_batch);
      t = next, v_head = kv_head, v_batch = batch;
      if (next == at.span.end - 1) {  // after the last loads of the tile before
#pragma unroll 1
        for (int n = 0; n < S::WARPGROUPS; ++n) {
          mbarrier_wait(shared.q_empty(n), int(described % 2) ^ 1);
          tma_load_rows<S::D_PANELS>(shared.q(0) + uint(64 * n * kPanelBytes), &params.q,
                                     shared.q_full(n), 64, S::M, at.row0 + 64 * n, head, batch);
        }
        ++described;
        more = find();
        if (more && is_long(at)) ahead = 0;
      } else if (ahead < S::WARPGROUPS * S::D_PANELS) {
        // All workgroups need Q of their next tile at the same time, so it is prefetched to L2.
        // Keys wait behind it, so it is one TMA box a step.
        const int next_batch = batch_of(u, to), next_head = int(to.index) - next_batch * u.heads_q;
        tma_prefetch(&params.q, ahead / S::WARPGROUPS * kPanel,
                     to.row0 + ahead % S::WARPGROUPS * 64, next_head, next_batch);
        ++ahead;
      }
    }
  }
  if (t >= 0) producer.v(t, v_head, v_batch);
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
  while (scheduler.next(&at, [&](const FwdWorkTile& nothing) {
    store_empty_rows<S>(u, params.push, nothing, int(threadIdx.x) - 32, 96);
  })) {
  }
}

template <typename T, typename S, typename Params>
TANDEM_DEVICE void consume_wide_heads(const Params& params, const FwdSharedStorage<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  const uint64_t q_at = k_major(shared.q(0) + uint(warpgroup * 64 * kPanelBytes));
  const uint64_t k_at = k_major(shared.k(0)), v_at = mn_major(shared.v(0), S::K_PANEL);
  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  uint tile = 0;
  KvPipeline<S> kv(shared);

  const auto all_of = [&](uint n) { return ld_shared_v4_s32(decoupled_descriptor<S>(shared, n)); };
  const auto own_of = [&](uint n) {
    return ld_shared_v4_s32(decoupled_descriptor<S>(shared, n) + 32 + 16 * warpgroup);
  };
  const auto wait_q = [&] { mbarrier_wait(shared.q_full(warpgroup), int(tile % 2)); };
  const auto product_s = [&] { gemm_qk<T, S>(s, q_at, advance(k_at, kv.k.stage() * S::K_BYTES)); };
  const auto product_o = [&] {
    kv.wait_v();
    gemm_pv<T, S>(o, p, advance(v_at, kv.v.stage() * S::V_BYTES));
  };
  const auto release_q = [&](bool last) {
    if (kv.elected && last) mbarrier_arrive(shared.q_empty(warpgroup));
  };
  // Releases the next `count` stages of K or V that this warpgroup does not multiply. Its warps
  // synchronise before each release: a warp that lags behind would wait for a phase that is long
  // over.
  const auto together = [&] { named_barrier_sync(1 + S::WARPGROUPS + warpgroup, 128); };
  const auto pass_k = [&](int count) {
#pragma unroll 1
    for (; count > 0; --count) kv.wait_k(), together(), kv.release_k();
  };
  const auto pass_v = [&](int count) {
#pragma unroll 1
    for (; count > 0; --count) kv.wait_v(), together(), kv.release_v();
  };
  const auto score = [&](int t, int full_begin, int full_end) {
    if (!plain_scale(u)) {
      const float first = opaque(u.scale) * kLog2e;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] *= first;
    }
    if (t < full_begin || t >= full_end)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, u.band_off},
                   all_of(tile).x + accumulator_row(), t * N + accumulator_col(), u.seq_kv,
                   -INFINITY);
  };
  Softmax<N> softmax;
  const auto store = [&](uint n) {
    float lse[2], inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float l = quad_sum(softmax.sum(r));
      lse[r] = softmax.lse(r, l, product_unit(u));
      inverse[r] = l == 0.f ? 0.f : reciprocal(l);
    }
    const int4 all = all_of(n), where = ld_shared_v4_s32(decoupled_descriptor<S>(shared, n) + 16);
    FwdWorkTile at;
    at.row0 = all.x, at.index = uint(all.y);
    store_lse(u, params.push, at, lse);
    store_all_rows<T, S::DV>(
        o, inverse, reinterpret_cast<ushort*>(params.push.o) + where.x * u.o.b + where.y * u.o.h, u,
        at.row0, u.seq_q);
  };

  kv.wait_k();
  int4 all = all_of(tile), own = own_of(tile);
  if (uint(all.y) == kNoWorkTile) return;
  if (S::PING_PONG && warpgroup == S::WARPGROUPS - 1) ping_pong_pass<S>(warpgroup);
  pass_k(all.w - own.y);
  wait_q();
  kv.wait_k();
  product_s();
  wgmma_wait_group<0>();
  for (;;) {
    // Here S of the tile's first keys is done.
    kv.release_k();
    release_q(own.y - 1 == own.x);
    pass_v(all.w - own.y);
    clear(o);
    float factor[2];
    softmax = Softmax<N>();
    score(own.y - 1, own.z, own.w);
    softmax.step(s, scale, factor);
    pack_tile<T, N>(p, s);
#pragma unroll 1
    for (int t = own.y - 2; t >= own.x; --t) {
      kv.wait_k();
      ping_pong_wait<S>(warpgroup);
      product_s();
      product_o();
      ping_pong_pass<S>(warpgroup);
      wgmma_wait_group<1>();
      kv.release_k();
      release_q(t == own.x);
      score(t, own.z, own.w);
      const bool rescale = softmax.step(s, scale, factor);
      optimization_barrier(s);
      wait_products(u, o);
      if (rescale) rescale_rows(o, factor);
      kv.release_v();
      pack_tile<T, N>(p, s);
    }
    kv.wait_k();
    ++tile;
    all = all_of(tile), own = own_of(tile);
    if (uint(all.y) == kNoWorkTile) break;
    pass_k(all.w - own.y);
    ping_pong_wait<S>(warpgroup);
    product_o();
    wait_q();
    kv.wait_k();
    product_s();
    ping_pong_pass<S>(warpgroup);
    wgmma_wait_group<1>();
    kv.release_v();
    store(tile - 1);
    wgmma_wait_group<0>();
  }
  product_o();
  wgmma_wait_group<0>();
  store(tile - 1);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
