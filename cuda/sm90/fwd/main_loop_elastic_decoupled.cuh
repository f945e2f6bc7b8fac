// SPDX-License-Identifier: MIT OR Apache-2.0
// Elastic softmax with a causal mask whose diagonal goes along blocks of 64 rows and keys: more,
// decoupled warpgroups with steps of 64 keys (main_loop_decoupled.cuh). While one warpgroup is in
// its first pass, which has more exponentials than products, others are in their second pass.
#ifndef TANDEM_CUDA_SM90_FWD_MAIN_LOOP_ELASTIC_DECOUPLED_CUH
#define TANDEM_CUDA_SM90_FWD_MAIN_LOOP_ELASTIC_DECOUPLED_CUH
#include "elastic.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// How many key tiles a block of 64 rows sees. row0: its first row. end: how many the work tile
// sees.
template <typename S>
TANDEM_DEVICE int block_end(const FwdBlock& u, int row0, int end) {
  const int first = row0 + u.band_off;
  return row0 < 0 || row0 >= u.seq_q || first < 0 ? 0 : min(first / S::N + 1, end);
}

// The first key tile that needs the table: it and later ones have distances with an entry, and the
// one on the diagonal has hidden keys.
template <typename S>
TANDEM_DEVICE int near_tile(const FwdOptionalParams& params, int row0) {
  return max(((row0 + params.block.band_off - params.extra.dist_window - (S::N - 1)) >> 6) + 1, 0);
}
// Whether the exponentials of the S::KEPT key tiles after the first one are kept for the second
// pass. They are if no row of the workgroup needs the table for these tiles.
template <typename S>
TANDEM_DEVICE bool keeps(const FwdOptionalParams& params, int row0) {
  return S::KEPT > 0 && near_tile<S>(params, row0) > S::KEPT;
}

template <typename S>
TANDEM_DEVICE void produce_elastic_decoupled(const FwdOptionalParams& params,
                                             const ElasticStorage<S>& storage) {
  const FwdBlock& u = params.block;
  ElasticTileScheduler<S> tiles(params);
  FwdWorkTile at;
  PipelineState<S::Q_STAGES, kCounted> q;
  PipelineState<S::STAGES> keys;
  const auto publish = [&](const FwdWorkTile& tile) {
    const uint full = storage.q_full(q.stage());
    mbarrier_wait(storage.empty(full), q.phase() ^ 1);
    st_shared(storage.descriptor(q.n), tile.row0, int(tile.index), tile.span.end, 0);
    tma_load_tile<S::D_PANELS>(storage.q(q.stage()), &params.q, full, S::M, tile.row0,
                               head_of(u, tile), batch_of(u, tile));
    q.next();
  };
  while (next_visible_tile(tiles, &at, publish)) {
    publish(at);
    const int kv_head = head_of(u, at) / u.group, batch = batch_of(u, at);
    const auto copy = [&](const CUtensorMap* map, int t, int panels) {
      const uint full = storage.keys_full(keys.stage()), to = storage.keys(keys.stage());
      mbarrier_wait(storage.empty(full), keys.phase() ^ 1);
      mbarrier_arrive_expect_tx(full, panels * S::K_PANEL);
#pragma unroll 1
      for (int p = 0; p < panels; ++p)
        tma_load(to + uint(p * S::K_PANEL), map, full, p * kPanel, t * S::N, kv_head, batch);
      keys.next();
    };
#pragma unroll 1
    for (int t = at.span.end - 1; t >= 0; --t) copy(&params.k, t, S::D_PANELS);
    const int kept = keeps<S>(params, at.row0) ? S::KEPT : 0;
    // The second pass, in the opposite order. S or the exponentials of its first keys are in
    // registers. V is loaded one step behind K.
#pragma unroll 1
    for (int t = 1; t < at.span.end; ++t) {
      if (t > kept) copy(&params.k, t, S::D_PANELS);
      copy(&params.v, t - 1, S::DV_PANELS);
    }
    copy(&params.v, at.span.end - 1, S::DV_PANELS);
  }
  const uint full = storage.q_full(q.stage());
  mbarrier_wait(storage.empty(full), q.phase() ^ 1);
  st_shared(storage.descriptor(q.n), 0, int(kNoWorkTile), 0, 0);
  mbarrier_arrive(full);
}

template <typename T, typename S>
TANDEM_DEVICE void main_loop_elastic_decoupled(const FwdOptionalParams& params,
                                               const ElasticStorage<S>& storage) {
  constexpr int N = S::N, PAD = S::DIST_PAD;
  static_assert(N == 64, "blocks on the diagonal");
  const FwdBlock& u = params.block;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = u.scale * kLog2e;
  const uint64_t q_at = k_major(storage.q(0));
  const uint64_t k_at = k_major(storage.keys(0)), v_at = mn_major(storage.keys(0), S::K_PANEL);
  const uint table = storage.dist(warpgroup);
  ElasticPipeline<S> pipeline(storage);
  auto& q = pipeline.q;
  // Releases the next `count` stages that this warpgroup does not multiply. One warp does this,
  // with its lanes synchronised, and the others wait for it: a warp or a lane that lags behind
  // would wait for a phase that is long over.
  const auto skip = [&](int count) {
    if (count <= 0) return;
    if (read_tid_x() % 128 < 32) {
      PipelineState<S::STAGES> next = pipeline.keys;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const uint full = storage.keys_full(next.stage());
        mbarrier_wait(full, next.phase());
        __syncwarp();
        pipeline.release(full);
        next.next();
      }
    }
    pipeline.keys.next(count);
    named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);
  };

  uint index = ~0u;  // of the head whose distance bias is in the table
#pragma unroll 1
  for (;;) {
    pipeline.wait_q();
    const int4 all = ld_shared_v4_s32(storage.descriptor(q.n));
    if (uint(all.y) == kNoWorkTile) return;
    // Every other tile has the warpgroups in the opposite order, so that all have the same work.
    const int block = q.n % 2 == 0 ? warpgroup : S::WARPGROUPS - 1 - warpgroup,
              row0 = all.x + 64 * block;
    // Its row0 is the row that accumulator_row() counts from, which adds 64 a warpgroup.
    FwdWorkTile at;
    at.row0 = row0 - 64 * warpgroup, at.index = uint(all.y);
    const int end = block_end<S>(u, row0, all.z), unseen = all.z - end;
    const uint64_t q_own = advance(q_at, q.stage() * S::Q_BYTES + block * 64 * kPanelBytes);
    if (end == 0) {
      skip(max(3 * unseen - 1, 0));
      named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);
      pipeline.release_q();
      store_unseen_rows(u, params.push, batch_of(u, at), head_of(u, at), row0, 64,
                        int(threadIdx.x) % 128, 128);
      continue;
    }
    if (at.index != index) {
      index = at.index;
      put_dist<S>(params, table, at, true);
    }
    const float tau = __ldg(
        reinterpret_cast<const float*>(params.push.extra[params.features.AT_TAU]) + head_of(u, at));
    skip(unseen);
    constexpr int KEPT = S::KEPT, ROOM = KEPT > 0 ? KEPT : 1;
    const int near = near_tile<S>(params, row0), first = keeps<S>(params, all.x) ? KEPT : 0;
    const auto entry = [&](int t) {
      return table + uint(4 * (PAD + at.row0 + accumulator_row() + u.band_off -
                               (t * N + accumulator_col())));
    };
    float s[N / 2];
    Sum<N> sum;
    // kept[n]: the exponentials of tile n + 1. The sign of the first one of a row says whether the
    // row was far.
    uint kept[ROOM][N / 4];
    constexpr uint kFarBit = 1u << 31;
    float kept_m[ROOM][2];  // origins of the rows at that time
    // They are initialised where they are needed and not before: what is undefined on some path
    // counts as live from the beginning.
    const auto keep_none = [&] {
#pragma unroll
      for (int n = 0; n < KEPT; ++n) {
#pragma unroll
        for (int i = 0; i < N / 4; ++i) kept[n][i] = 0;
        kept_m[n][0] = kept_m[n][1] = 0.f;
      }
    };
    {
      uint held[S::D / 16][4];
      load_q<S>(held, storage.q(q.stage()) + uint(block * 64 * kPanelBytes));
      const auto next_s = [&] {
        pipeline.wait_keys();
        gemm_held_qk<T, S>(s, held, advance(k_at, pipeline.offset()));
        wgmma_wait_group<0>();
        pipeline.release(pipeline.take());
      };
      int t = end - 1;
      next_s();
#pragma unroll 1
      for (; t >= near; --t) {
        add_dist<N>(s, entry(t));
        sum.add(s, scale);
        if (t == 0) break;
        next_s();
      }
      if (t < near) {
        float s2[N / 2];
        const auto both = [&](float(&to)[N / 2], float(&from)[N / 2]) {
          pipeline.wait_keys();
          gemm_held_qk<T, S>(to, held, advance(k_at, pipeline.offset()));
          const uint full = pipeline.take();
          sum.add(from, scale);
          optimization_barrier(sum.l);
          wait_products(u, to);
          pipeline.release(full);
        };
#pragma unroll 1
        for (; t >= first + 2; t -= 2) {
          both(s2, s);
          both(s, s2);
        }
        if (t > first) {
          both(s2, s);
#pragma unroll
          for (int i = 0; i < N / 2; ++i) s[i] = s2[i];
          --t;
        }
        keep_none();
        if constexpr (KEPT > 0) {
#pragma unroll 1
          for (; t > 0; --t) {
#pragma unroll
            for (int n = KEPT - 1; n > 0; --n) {
#pragma unroll
              for (int i = 0; i < N / 4; ++i) kept[n][i] = kept[n - 1][i];
#pragma unroll
              for (int r = 0; r < 2; ++r) kept_m[n][r] = kept_m[n - 1][r];
            }
            sum.template add<true>(s, scale, kept[0]);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              kept_m[0][r] = sum.m[r];
              kept[0][r] |= uint(float_bits(sum.l[r])) & kFarBit;
            }
            next_s();
          }
        }
        sum.add(s, scale);
      } else {
        keep_none();
      }
    }
    float from[2], base[2], lse[2], shift[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const ElasticRow row(sum, r, u.scale, &lse[r]);
      from[r] = row.origin, base[r] = row.sees() ? row.base : 0.f;
      const int count = row0 + accumulator_row() - 64 * warpgroup + 8 * r + u.band_off + 1;
      shift[r] = elastic_shift(tau, count);
    }
    const bool relative = __any_sync(kAllLanes, from[0] != 0.f || from[1] != 0.f);
    const auto weigh_less = [&] {
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        s[i] = exp2_fast(fmaf(s[i], scale, -base[i / 2 % 2])) + shift[i / 2 % 2];
    };
    const auto weigh = [&] {
      if (relative) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) s[i] -= from[i / 2 % 2];
      }
      weigh_less();
    };
    // Sets the weights of hidden keys to 0, in the tile on the diagonal.
    const auto hide = [&] {
      if (tau > 0.f)
        mask_tile<N>(s, TandemBand{TANDEM_BAND_OPEN, 0, 0}, accumulator_row() - 64 * warpgroup,
                     accumulator_col(), N, 0.f);
    };
    int t = 1;
    float o[S::DV / 2];
    uint p[N / 4];
    const auto product_o = [&] {
      pipeline.wait_keys();
      gemm_pv<T, S>(o, p, advance(v_at, pipeline.offset()));
    };
    const auto step = [&](const auto& change) {
      second_pass_step<T, S>(
          u, pipeline, s, o, p, [&] { gemm_qk<T, S>(s, q_own, advance(k_at, pipeline.offset())); },
          product_o,
          [&] {
            change();
            optimization_barrier(s);
          });
    };
    weigh_less();  // sum.add() has subtracted the origin
    if (end == 1) hide();
    pack_tile<T, N, true>(p, s);
    clear(o);
    if (first > 0) {
#pragma unroll
      for (int n = 0; n < KEPT; ++n) {
        product_o();
        const uint v = pipeline.take();
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          // The exponentials are relative to the origin that the row had then.
          const bool was_far = int(kept[n][r]) < 0;
          kept[n][r] &= ~kFarBit;
          float powers = kept_m[n][r];
          if (from[r] != 0.f)
            powers = Origin{powers, was_far}.above(Origin{from[r], true}, scale);
          else if (was_far)
            powers *= scale;
          factor[r] = exp2_fast(powers - base[r]);
        }
#pragma unroll
        for (int i = 0; i < N / 4; ++i) {
          const int r = i % 2;
          kept[n][i] = opaque(T::pack_relu(fmaf(Half::low(kept[n][i]), factor[r], shift[r]),
                                           fmaf(Half::high(kept[n][i]), factor[r], shift[r])));
        }
        wait_products(u, o);
        pipeline.release(v);
#pragma unroll
        for (int i = 0; i < N / 4; ++i) p[i] = kept[n][i];
      }
      t = KEPT + 1;
    }
#pragma unroll 1
    for (; t < min(near, end); ++t) step(weigh);
#pragma unroll 1
    for (; t < end; ++t)
      step([&] {
        add_dist<N>(s, entry(t));
        weigh();
        if (t == end - 1) hide();
      });
    pipeline.release_q();
    if (unseen > 0) skip(1);  // K of the first tile that it does not see
    product_o();
    wgmma_wait_group<0>();
    pipeline.release(pipeline.take());
    skip(2 * unseen - 1);
    const float one[2] = {1.f, 1.f};
    store_lse(u, params.push, at, lse);
    store_rows<T, S::DV>(o, one, params.push.o, u, at);
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
