// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with more, decoupled warpgroups: four for heads up to 64, three up to 128. Latency limits
// here, and more warps hide it. With steps of 64 keys a warpgroup fits in 112 or 160 registers a
// thread. A warpgroup multiplies the keys that its own 64 rows see, and releases the other keys of
// the tile. Every other tile has the warpgroups in the opposite order, so that with a mask all have
// the same work. The producer thread finds the tiles, and publishes a work-tile descriptor of each.
#ifndef TANDEM_CUDA_SM90_FWD_DECOUPLED_CUH
#define TANDEM_CUDA_SM90_FWD_DECOUPLED_CUH
#include "varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The address of work-tile descriptor n: {first row, head over the batch or kNoWorkTile, key tiles
// [begin, end)}, {batch entry, head}, and for each 64 rows {begin, end, full_begin, full_end}. A
// descriptor is overwritten when all warps are two tiles ahead.
template <typename S>
TANDEM_DEVICE uint decoupled_descriptor(const FwdSharedStorage<S>& shared, uint n) {
  static_assert(S::Q_STAGES <= 2, "how long it stays");
  static_assert(S::WIDE_HEADS || S::STAGES > S::WARPGROUPS,
                "a consumer that waits for a descriptor holds this many stages");
  return shared.variant_at(0) + n % kDecoupledDescriptors * S::DESCRIPTOR_BYTES;
}

// Whether all warpgroups visit all keys, with ping-pong scheduling. They do without a mask, if few
// rows of the last tile lie after the last row.
template <typename S>
TANDEM_DEVICE bool visits_all_keys(const FwdBlock& u) {
  return S::PING_PONG && u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN &&
         (S::M - 1 - (u.seq_q - 1) % S::M) * 16 <= u.seq_q;
}

template <typename S, typename Params>
TANDEM_DEVICE void produce_decoupled(const Params& params, const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  StaticTileScheduler<S> scheduler(u);
  TmaProducer<S, Params> producer(params, shared);
  int batch = 0, head = 0;
  uint described = 0;
  const auto wait_place = [&] {
    mbarrier_wait(shared.q_empty(producer.q_pipe.stage()), producer.q_pipe.phase() ^ 1);
  };
  const auto publish = [&](const FwdWorkTile& at) {
    batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q;
    wait_place();
    const uint descriptor = decoupled_descriptor<S>(shared, described++);
    st_shared(descriptor, at.row0, int(at.index), at.span.begin, at.span.end);
    st_shared(descriptor + 16, batch, head, 0, 0);
#pragma unroll 1
    for (int n = 0; n < S::WARPGROUPS; ++n) {
      const TandemTiles own =
          visits_all_keys<S>(u)
              ? at.span
              : tandem_key_tiles(scheduler.band(), at.row0 + 64 * n, 64, S::N, u.seq_q, u.seq_kv);
      st_shared(descriptor + 32 + 16 * n, own.begin, own.end, own.full_begin, own.full_end);
    }
    producer.q(at.row0, head, batch);
  };
  // V is loaded one step behind K: S of the next keys is computed before P V of the present ones.
  int t = -1, v_head = 0, v_batch = 0;
  const auto last_v = [&] {
    if (t >= 0) producer.v(t, v_head, v_batch);
    t = -1;
  };
  FwdWorkTile at;
  while (scheduler.next(&at, [&](const FwdWorkTile& nothing) {
    last_v();  // a warp that waits for this V holds Q
    publish(nothing);
  })) {
    publish(at);
    const int kv_head = head / u.group;
    for (int next = at.span.end - 1; next >= at.span.begin; --next) {
      producer.k(next, kv_head, batch);
      if (t >= 0) producer.v(t, v_head, v_batch);
      t = next, v_head = kv_head, v_batch = batch;
    }
  }
  last_v();
  wait_place();
  st_shared(decoupled_descriptor<S>(shared, described), 0, int(kNoWorkTile), 0, 0);
  mbarrier_arrive(shared.q_full(producer.q_pipe.stage()));
}

template <typename T, typename S, typename Params>
TANDEM_DEVICE void consume_decoupled(const Params& params, const FwdSharedStorage<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  const uint64_t q_at = k_major(shared.q(0)), k_at = k_major(shared.k(0)),
                 v_at = mn_major(shared.v(0), S::K_PANEL);
  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  PipelineCounter<S::Q_STAGES> q_pipe;  // n: number of the tile
  KvPipeline<S> kv(shared);

  // Of tile n: the block of 64 rows that this warpgroup has, the first words of the descriptor, and
  // the words of the block.
  const auto block_of = [&](uint n) {
    return n % 2 == 0 ? warpgroup : S::WARPGROUPS - 1 - warpgroup;
  };
  const auto all_of = [&](uint n) { return ld_shared_v4_s32(decoupled_descriptor<S>(shared, n)); };
  const auto own_of = [&](uint n) {
    return ld_shared_v4_s32(decoupled_descriptor<S>(shared, n) + 32 + 16 * block_of(n));
  };
  // The row of tile n that accumulator_row() counts from. accumulator_row() adds 64 a warpgroup.
  const auto row0_of = [&](uint n) { return all_of(n).x + 64 * (block_of(n) - warpgroup); };

  const bool turns = visits_all_keys<S>(u);
  const auto start_turn = [&] {
    if (turns) ping_pong_wait<S>(warpgroup);
  };
  const auto end_turn = [&] {
    if (turns) ping_pong_pass<S>(warpgroup);
  };
  const auto wait_q = [&] { mbarrier_wait(shared.q_full(q_pipe.stage()), q_pipe.phase()); };
  const auto product_s = [&] {
    gemm_qk<T, S>(
        s, advance(q_at, q_pipe.stage() * S::Q_BYTES + block_of(q_pipe.n) * 64 * kPanelBytes),
        advance(k_at, kv.k.stage() * S::K_BYTES));
  };
  const auto product_o = [&] {
    kv.wait_v();
    gemm_pv<T, S>(o, p, advance(v_at, kv.v.stage() * S::V_BYTES));
  };
  const auto release_q = [&] {
    if (kv.elected) mbarrier_arrive(shared.q_empty(q_pipe.stage()));
    q_pipe.next();
  };
  // Releases the next `count` stages of K, V or both that this warpgroup does not multiply. One
  // warp does this, with its lanes synchronised, and the others wait for it: a warp or a lane that
  // lags behind would wait for a phase that is long over.
  const auto pass = [&](int count, bool keys, bool values) {
    if (count <= 0) return;
    const int thread = int(threadIdx.x) % 128;
    if (thread < 32) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        if (keys) {
          const PipelineCounter<S::STAGES> k{kv.k.n + i};
          mbarrier_wait(shared.k_full(k.stage()), k.phase());
          __syncwarp();
          if (thread == 0) mbarrier_arrive(shared.k_empty(k.stage()));
        }
        if (values) {
          const PipelineCounter<S::STAGES> v{kv.v.n + i};
          mbarrier_wait(shared.v_full(v.stage()), v.phase());
          __syncwarp();
          if (thread == 0) mbarrier_arrive(shared.v_empty(v.stage()));
        }
      }
    }
    if (keys) kv.k.n += count;
    if (values) kv.v.n += count;
    named_barrier_sync(1 + S::WARPGROUPS + warpgroup, 128);
  };

  const auto score = [&](int t, int full_begin, int full_end) {
    if (!plain_scale(u)) {
      const float first = opaque(u.scale) * kLog2e;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] *= first;
    }
    if (t < full_begin || t >= full_end)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, u.band_off},
                   row0_of(q_pipe.n) + accumulator_row(), t * N + accumulator_col(), u.seq_kv,
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
    const int4 where = ld_shared_v4_s32(decoupled_descriptor<S>(shared, n) + 16);
    FwdWorkTile at;
    at.row0 = row0_of(n), at.index = uint(all_of(n).y);
    store_lse(u, params.push, at, lse);
    store_all_rows<T, S::DV>(
        o, inverse, reinterpret_cast<ushort*>(params.push.o) + where.x * u.o.b + where.y * u.o.h, u,
        at.row0, u.seq_q);
  };
  // Stores o and lse of this warpgroup's 64 rows of tile n, which see no key.
  const auto store_unseen = [&](uint n) {
    const int4 where = ld_shared_v4_s32(decoupled_descriptor<S>(shared, n) + 16);
    ushort* rows = reinterpret_cast<ushort*>(params.push.o) + where.x * u.o.b + where.y * u.o.h;
    float* lse = reinterpret_cast<float*>(params.push.lse) + int64_t(uint(all_of(n).y)) * u.seq_q;
    const int row0 = all_of(n).x + 64 * block_of(n);
#pragma unroll 1
    for (int m = int(threadIdx.x) % 128; m < 64 * u.head_dim_v; m += 128) {
      const int i = row0 + m / u.head_dim_v, d = m % u.head_dim_v;
      if (i >= u.seq_q) break;
      rows[i * u.o.s + d * u.o.d] = 0;
      if (params.push.lse && d == 0) lse[i] = -INFINITY;
    }
  };

  float factor[2];
  if (warpgroup == S::WARPGROUPS - 1) end_turn();
  for (;;) {  // a tile of which it sees no key, or a run of tiles that overlap
    wait_q();
    int4 all = all_of(q_pipe.n), own = own_of(q_pipe.n);
    if (uint(all.y) == kNoWorkTile) return;
    if (own.x >= own.y) {
      store_unseen(q_pipe.n);
      pass(all.w - all.z, true, true);
      named_barrier_sync(1 + S::WARPGROUPS + warpgroup, 128);
      release_q();
      continue;
    }
    softmax = Softmax<N>();
    clear(o);
    pass(all.w - own.y, true, false);
    kv.wait_k();
    product_s();
    wgmma_wait_group<0>();
    kv.release_k();
    pass(all.w - own.y, false, true);
    score(own.y - 1, own.z, own.w);
    softmax.step(s, scale, factor);
    pack_tile<T, N>(p, s);
    for (;;) {
#pragma unroll 1
      for (int t = own.y - 2; t >= own.x; --t) {
        kv.wait_k();
        start_turn();
        product_s();
        product_o();
        end_turn();
        wgmma_wait_group<1>();
        kv.release_k();
        score(t, own.z, own.w);
        const bool rescale = softmax.step(s, scale, factor);
        optimization_barrier(s);
        wait_products(u, o);
        if (rescale) rescale_rows(o, factor);
        kv.release_v();
        pack_tile<T, N>(p, s);
      }
      // S of the first keys of the next tile overlaps P V of the last keys of this one. unseen: key
      // tiles between them. While the warpgroup holds V of the last keys, it must not wait for more
      // keys than there are stages.
      int unseen = own.x - all_of(q_pipe.n).z;
      release_q();
      wait_q();
      all = all_of(q_pipe.n), own = own_of(q_pipe.n);
      const bool more = uint(all.y) != kNoWorkTile && own.x < own.y &&
                        (S::STAGES >= 6 || unseen + all.w - own.y <= S::STAGES);
      Softmax<N> next_softmax;
      if (more) {
        unseen += all.w - own.y;
        pass(unseen, true, false);
        kv.wait_k();
        start_turn();
        product_s();
        product_o();
        end_turn();
        wgmma_wait_group<1>();
        kv.release_k();
        score(own.y - 1, own.z, own.w);
        next_softmax.step(s, scale, factor);
        optimization_barrier(s);
      } else {
        product_o();
      }
      wgmma_wait_group<0>();
      kv.release_v();
      store(q_pipe.n - 1);
      if (!more) {
        pass(unseen, true, true);
        break;
      }
      pass(unseen, false, true);
      clear(o);
      softmax = next_softmax;
      pack_tile<T, N>(p, s);
    }
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
