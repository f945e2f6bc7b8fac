// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with more, decoupled warpgroups: four for heads up to 64, three up to 128. Latency limits
// here, and more warps hide it. With steps of 64 keys a warpgroup fits in 112 or 160 registers a
// thread. A warpgroup multiplies the keys that its own 64 rows see, and releases the other keys of
// the tile. Every other tile has the warpgroups in the opposite order, so that with a mask all have
// the same work. The producer thread finds the tiles, and publishes a work-tile descriptor of each.
#ifndef TANDEM_CUDA_SM90_FWD_MAIN_LOOP_DECOUPLED_CUH
#define TANDEM_CUDA_SM90_FWD_MAIN_LOOP_DECOUPLED_CUH
#include "main_loop.cuh"
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
  static_assert(S::WIDE_HEADS || S::VISITS_ALL || S::STAGES > S::WARPGROUPS,
                "a consumer that waits for a descriptor holds this many stages");
  return shared.variant_at(0) + n % kDecoupledDescriptors * S::DESCRIPTOR_BYTES;
}

// Whether all warpgroups visit all keys, with ping-pong scheduling. They do without a mask, if few
// rows of the last tile lie after the last row.
template <typename S>
TANDEM_DEVICE bool visits_all_keys(const FwdBlock& u) {
  return S::VISITS_ALL ||
         (S::PING_PONG && u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN &&
          (S::M - 1 - (u.seq_q - 1) % S::M) * 16 <= u.seq_q);
}

template <typename S, typename Params>
TANDEM_DEVICE void produce_decoupled(const Params& params, const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  StaticTileScheduler<S> scheduler(params);
  TmaProducer<S, Params> producer(params, shared);
  int batch = 0, head = 0;
  uint described = 0;
  const auto wait_empty = [&] {
    mbarrier_wait(shared.q_empty(producer.q_pipe.stage()), producer.q_pipe.phase() ^ 1);
  };
  const auto publish = [&](const FwdWorkTile& at) {
    batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q;
    wait_empty();
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
  FwdWorkTile at;
  while (next_visible_tile(scheduler, &at, [&](const FwdWorkTile& unseen) {
    producer.last_v();  // a warp that waits for this V holds Q
    publish(unseen);
  })) {
    publish(at);
    const int kv_head = head / u.group;
    for (int t = at.span.end - 1; t >= at.span.begin; --t) producer.kv(t, kv_head, batch);
  }
  producer.last_v();
  wait_empty();
  st_shared(decoupled_descriptor<S>(shared, described), 0, int(kNoWorkTile), 0, 0);
  mbarrier_arrive(shared.q_full(producer.q_pipe.stage()));
}

// Score policy of plain softmax for warpgroups that visit the keys of their own rows.
template <typename T, typename S, typename Params>
struct DecoupledScore : ScorePolicy<T, S> {
  using ScorePolicy<T, S>::c;
  using Tile = int4;  // {begin, end, full_begin, full_end} of the key tiles of the warpgroup
  const Params& params;
  const float scale;
  const uint64_t q_at;
  const bool ping_pong;
  TANDEM_DEVICE DecoupledScore(const Params& p, FwdConsumer<T, S>& consumer)
      : ScorePolicy<T, S>(consumer),
        params(p),
        scale(step_scale(p.block)),
        q_at(k_major(consumer.shared.q(0))),
        ping_pong(S::WIDE_HEADS ? S::PING_PONG : visits_all_keys<S>(p.block)) {}

  TANDEM_DEVICE void ping_pong_wait() const {
    if (S::VISITS_ALL || ping_pong) sm90::ping_pong_wait<S>(c.warpgroup);
  }
  TANDEM_DEVICE void ping_pong_pass() const {
    if (S::VISITS_ALL || ping_pong) sm90::ping_pong_pass<S>(c.warpgroup);
  }
  // Of tile n: the block of 64 rows that this warpgroup has, the first words of the descriptor, its
  // batch entry and head, and the words of the block.
  TANDEM_DEVICE int block_of(uint n) const {
    return S::WIDE_HEADS || S::VISITS_ALL || n % 2 == 0 ? c.warpgroup
                                                        : S::WARPGROUPS - 1 - c.warpgroup;
  }
  TANDEM_DEVICE int4 all_of(uint n) const {
    return ld_shared_v4_s32(decoupled_descriptor<S>(c.shared, n));
  }
  TANDEM_DEVICE int4 where_of(uint n) const {
    return ld_shared_v4_s32(decoupled_descriptor<S>(c.shared, n) + 16);
  }
  TANDEM_DEVICE int4 own_of(uint n) const {
    if constexpr (S::VISITS_ALL) {
      const int4 all = all_of(n);
      return {all.z, all.w, 0, 0};
    }
    return ld_shared_v4_s32(decoupled_descriptor<S>(c.shared, n) + 32 + 16 * block_of(n));
  }
  // The row of tile n that accumulator_row() counts from. accumulator_row() adds 64 a warpgroup.
  TANDEM_DEVICE int row0_of(uint n) const { return all_of(n).x + 64 * (block_of(n) - c.warpgroup); }
  TANDEM_DEVICE void product_s() {
    if constexpr (S::WIDE_HEADS)
      c.product_s();
    else
      gemm_qk<T, S>(
          c.s,
          advance(q_at, c.q_pipe.stage() * S::Q_BYTES + block_of(c.q_pipe.n) * 64 * kPanelBytes),
          advance(c.k_at, c.kv.k.stage() * S::K_BYTES));
  }
  // With wide heads, each warpgroup has its own rows of the stage of Q.
  TANDEM_DEVICE void wait_own_q() const {
    mbarrier_wait(c.shared.q_full(c.warpgroup), c.q_pipe.phase());
  }
  TANDEM_DEVICE void release_own_q(bool last) const {
    if (c.kv.elected && last) mbarrier_arrive(c.shared.q_empty(c.warpgroup));
  }
  TANDEM_DEVICE void score(const Tile& own, int t) {
    const FwdBlock& u = params.block;
    if constexpr (S::WIDE_HEADS) release_own_q(t == own.x);
    scale_products(c.s, u);
    if (S::VISITS_ALL ? (t + 1) * S::N > u.seq_kv : t < own.z || t >= own.w)
      mask_tile<S::N>(c.s, TandemBand{u.band_left, u.band_right, u.band_off},
                      row0_of(c.q_pipe.n) + accumulator_row(), t * S::N + accumulator_col(),
                      u.seq_kv, -INFINITY);
  }
  TANDEM_DEVICE int rows_left(const Tile&) const {
    return params.block.seq_q - row0_of(c.q_pipe.n) - accumulator_row();
  }
  TANDEM_DEVICE void raise_max(const Tile&) const {
    const auto where = [&] {
      const int4 x = where_of(c.q_pipe.n);
      return BatchHead{x.x, x.y};
    };
    raise_max_logit(params.block, params.push, c.softmax, product_unit(params.block), where);
  }
  TANDEM_DEVICE void store(uint n) {
    const FwdBlock& u = params.block;
    float lse[2], inverse[2];
    end_rows(c.softmax, u, lse, inverse, [](float l) { return reciprocal(l); });
    const int4 where = where_of(n);
    FwdWorkTile at;
    at.row0 = row0_of(n), at.index = uint(all_of(n).y);
    store_lse(u, params.push, at, lse);
    store_all_rows<T, S::DV>(
        c.o, inverse, reinterpret_cast<ushort*>(params.push.o) + where.x * u.o.b + where.y * u.o.h,
        u, at.row0, u.seq_q);
  }
};

template <typename T, typename S, typename Params>
TANDEM_DEVICE void main_loop_decoupled(const Params& params, const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  float s[S::N / 2], o[S::DV / 2];
  uint p[S::N / 4];
  Softmax<S::N> softmax(wants_largest(params.push));
  FwdConsumer<T, S> c(shared, s, o, p, softmax);
  DecoupledScore<T, S, Params> policy(params, c);
  auto& q_pipe = c.q_pipe;  // n: number of the tile
  auto& kv = c.kv;
  // Releases the next `count` stages of K, V or both that this warpgroup does not multiply. One
  // warp does this, with its lanes synchronised, and the others wait for it: a warp or a lane that
  // lags behind would wait for a phase that is long over.
  const auto skip = [&](int count, bool keys, bool values) {
    if (S::VISITS_ALL || count <= 0) return;
    const int thread = int(threadIdx.x) % 128;
    if (thread < 32) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        if (keys) {
          const PipelineState<S::STAGES, kCounted> k{kv.k.n + i};
          mbarrier_wait(shared.k_full(k.stage()), k.phase());
          __syncwarp();
          if (thread == 0) mbarrier_arrive(shared.k_empty(k.stage()));
        }
        if (values) {
          const PipelineState<S::STAGES, kCounted> v{kv.v.n + i};
          mbarrier_wait(shared.v_full(v.stage()), v.phase());
          __syncwarp();
          if (thread == 0) mbarrier_arrive(shared.v_empty(v.stage()));
        }
      }
    }
    if (keys) kv.k.next(count);
    if (values) kv.v.next(count);
    named_barrier_sync(warpgroup_barrier<S>(c.warpgroup), 128);
  };

  float factor[2];
  if (c.warpgroup == S::WARPGROUPS - 1) policy.ping_pong_pass();
  for (;;) {  // a tile of which it sees no key, or a run of tiles that overlap
    c.wait_q();
    int4 all = policy.all_of(q_pipe.n), own = policy.own_of(q_pipe.n);
    if (uint(all.y) == kNoWorkTile) return;
    if (!S::VISITS_ALL && own.x >= own.y) {
      const int4 where = policy.where_of(q_pipe.n);
      store_unseen_rows(u, params.push, where.x, where.y, all.x + 64 * policy.block_of(q_pipe.n),
                        64, int(threadIdx.x) % 128, 128);
      skip(all.w - all.z, true, true);
      named_barrier_sync(warpgroup_barrier<S>(c.warpgroup), 128);
      c.release_q();
      continue;
    }
    softmax = Softmax<S::N>(wants_largest(params.push));
    clear(o);
    skip(all.w - own.y, true, false);
    kv.wait_k();
    policy.product_s();
    wgmma_wait_group<0>();
    kv.release_k();
    skip(all.w - own.y, false, true);
    policy.score(own, own.y - 1);
    softmax.step(s, policy.scale, u.slack, factor, [&] { return policy.rows_left(own); });
    c.pack_weights();
    for (;;) {
#pragma unroll 1
      for (int t = own.y - 2; t >= own.x; --t) {
        kv.wait_k();
        kv_step(u, c, policy, own, t);
      }
      // S of the first keys of the next tile overlaps P V of the last keys of this one. unseen: key
      // tiles between them. While the warpgroup holds V of the last keys, it must not wait for more
      // keys than there are stages.
      int unseen = S::VISITS_ALL ? 0 : own.x - policy.all_of(q_pipe.n).z;
      policy.raise_max(own);
      c.release_q();
      c.wait_q();
      all = policy.all_of(q_pipe.n), own = policy.own_of(q_pipe.n);
      const bool more = uint(all.y) != kNoWorkTile && (S::VISITS_ALL || own.x < own.y) &&
                        (S::VISITS_ALL || S::STAGES >= 6 || unseen + all.w - own.y <= S::STAGES);
      Softmax<S::N> next_softmax(wants_largest(params.push));
      if (more) {
        unseen += all.w - own.y;
        skip(unseen, true, false);
        kv.wait_k();
        policy.ping_pong_wait();
        policy.product_s();
        c.product_o();
        policy.ping_pong_pass();
        wgmma_wait_group<1>();
        kv.release_k();
        policy.score(own, own.y - 1);
        next_softmax.step(s, policy.scale, u.slack, factor, [&] { return policy.rows_left(own); });
        optimization_barrier(s);
      } else {
        c.product_o();
      }
      wgmma_wait_group<0>();
      kv.release_v();
      policy.store(q_pipe.n - 1);
      if (!more) {
        skip(unseen, true, true);
        break;
      }
      skip(unseen, false, true);
      clear(o);
      softmax = next_softmax;
      c.pack_weights();
    }
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
