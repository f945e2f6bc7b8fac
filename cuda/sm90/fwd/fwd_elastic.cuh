// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of elastic softmax on Hopper, with or without a distance bias. The weights of a row need its
// lse, so a work tile takes two passes over its keys. The first one goes from the last keys to the
// first and finds lse, with Q in registers. The second one goes back, for S, weights and P V. S of
// the keys at which the passes meet is kept. Each warpgroup has a copy of the distance bias of its
// head in shared memory, with zeros around it, so that no element needs a test. With a causal mask,
// distances below 0 have minus infinity there, so that the loops have no code for masks.
#ifndef TANDEM_CUDA_SM90_FWD_FWD_ELASTIC_CUH
#define TANDEM_CUDA_SM90_FWD_FWD_ELASTIC_CUH
#include <cstring>

#include "main_loop_elastic_decoupled.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename S>
TANDEM_DEVICE void produce_elastic(const FwdOptionalParams& params,
                                   const ElasticStorage<S>& storage) {
  ElasticTileScheduler<S> scheduler(params);
  FwdWorkTile at;
  PipelineState<S::Q_STAGES, kCounted> q;
  PipelineState<S::STAGES, kCounted> keys;
  while (next_visible_tile(scheduler, &at)) {
    const int head = head_of(params.block, at), batch = batch_of(params.block, at);
    const int kv_head = head / params.block.group;
    const auto load = [&](const CUtensorMap* map, auto panels, int t) {
      const uint full = storage.keys_full(keys.stage());
      mbarrier_wait(storage.empty(full), keys.phase() ^ 1);
      tma_load_tile<decltype(panels)::value>(storage.keys(keys.stage()), map, full, S::N, t * S::N,
                                             kv_head, batch);
      keys.next();
    };
    const auto load_k = [&](int t) {
      load(&params.k, std::integral_constant<int, S::D_PANELS>(), t);
    };
    const auto load_v = [&](int t) {
      load(&params.v, std::integral_constant<int, S::DV_PANELS>(), t);
    };
    const uint full = storage.q_full(q.stage());
    mbarrier_wait(storage.empty(full), q.phase() ^ 1);
    tma_load_tile<S::D_PANELS>(storage.q(q.stage()), &params.q, full, S::M, at.row0, head, batch);
    q.next();
#pragma unroll 1
    for (int t = at.span.end - 1; t >= at.span.begin; --t) load_k(t);
#pragma unroll 1
    for (int t = at.span.begin + 1; t < at.span.end; ++t) {
      // The second pass. S of its first keys is kept. V is loaded one step behind K: S of the next
      // keys is computed before P V of the present ones.
      load_k(t);
      load_v(t - 1);
    }
    load_v(at.span.end - 1);
  }
}

template <typename T, typename S>
TANDEM_DEVICE void main_loop_elastic(const FwdOptionalParams& params,
                                     const ElasticStorage<S>& storage) {
  constexpr int N = S::N, PAD = S::DIST_PAD;
  static_assert(64 * (S::WARPGROUPS - 1) <= N, "a warpgroup passes over one tile at most");
  const FwdBlock& u = params.block;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  const uint64_t q_at = k_major(storage.q(0) + uint(warpgroup * 64 * kPanelBytes));
  const uint64_t k_at = k_major(storage.keys(0)), v_at = mn_major(storage.keys(0), S::K_PANEL);
  const uint table = storage.dist(warpgroup);

  ElasticPipeline<S> pipeline(storage);
  auto& q = pipeline.q;
  const auto product_s = [&](float(&s)[N / 2]) {
    gemm_qk<T, S>(s, advance(q_at, q.stage() * S::Q_BYTES), advance(k_at, pipeline.offset()));
  };

  ElasticTileScheduler<S> scheduler(params);
  const auto unseen = [&](const FwdWorkTile& p) { store_unseen_rows<S>(u, params.push, p); };
  FwdWorkTile at, to;
  uint index = ~0u;  // of the head whose distance bias is in the table
  if (!next_visible_tile(scheduler, &at, unseen)) return;
  float s[N / 2];
  const auto begin_tile = [&] {
    pipeline.wait_q();
    pipeline.wait_keys();
    product_s(s);
    wgmma_wait_group<0>();
    pipeline.release_keys();
  };
  if constexpr (S::Q_STAGES > 1) begin_tile();
  bool more = true;
#pragma unroll 1
  for (; more; at = to) {
    // With one stage of Q, S of the tile's first keys is computed here. With two it is done
    // already.
    if constexpr (S::Q_STAGES == 1) begin_tile();
    const float tau = __ldg(
        reinterpret_cast<const float*>(params.push.extra[params.features.AT_TAU]) + head_of(u, at));
    // tabled: the table has entries for hidden keys, too, as no weight can come of a hidden key.
    const bool tabled = plain_scale(u) & (u.band_left == TANDEM_BAND_OPEN) &
                        (u.band_right == TANDEM_BAND_OPEN
                             ? (params.extra.dist_window == 0) & (u.seq_kv % N == 0)
                             : (u.band_right == 0) & (u.seq_q - 1 + u.band_off < u.seq_kv) &
                                   ((tau <= 0.f) | ((N % 64 == 0) & (u.band_off % 64 == 0))));
    if (at.index != index) {
      index = at.index;
      put_dist<S>(params, table, at, tabled && u.band_right == 0);
    }
    // The key on the diagonal of the warpgroup's first row.
    const auto first = [&] { return at.row0 + 64 * warpgroup + u.band_off; };
    uint held[S::D / 16][4];  // Q in the first pass, in registers that o needs later
    load_q<S>(held, storage.q(q.stage()) + uint(warpgroup * 64 * kPanelBytes));
    const auto next_s = [&] {
      pipeline.wait_keys();
      gemm_held_qk<T, S>(s, held, advance(k_at, pipeline.offset()));
      wgmma_wait_group<0>();
      pipeline.release_keys();
    };
    // Releases a stage that this warpgroup does not multiply. No product synchronises the warps
    // here: all must have seen that the stage is full before it is filled again.
    const auto skip = [&] {
      pipeline.wait_keys();
      named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);
      pipeline.release_keys();
    };
    const auto hide = [&](int t, float as) {
      mask_tile<N>(s, scheduler.band(), at.row0 + accumulator_row(), t * N + accumulator_col(),
                   u.seq_kv, as);
    };
    int passed = 0;  // key tiles at the end that only other warpgroups see
    float origin[2], base[2], shift[2], lse[2];
    bool relative = false;  // a row of the warp is far
    float o[S::DV / 2];
    uint p[N / 4];
    const auto end_sum = [&](const Sum<N>& sum) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int count = tandem_key_count(scheduler.band(), at.row0 + accumulator_row() + 8 * r,
                                           u.seq_q, u.seq_kv);
        const ElasticRow row(sum, r, product_unit(u), &lse[r]);
        origin[r] = row.origin, base[r] = row.sees() ? row.base : 0.f;
        shift[r] = elastic_shift(tau, count);
      }
      relative = __any_sync(kAllLanes, origin[0] != 0.f || origin[1] != 0.f);
#pragma unroll
      for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
    };
    // less: the origin has still to be subtracted from s. It has been where the passes meet.
    const auto weigh_plain = [&](bool less = true) {
      if (less && relative) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) s[i] -= origin[i / 2 % 2];
      }
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        s[i] = exp2_fast(fmaf(s[i], scale, -base[i / 2 % 2])) + shift[i / 2 % 2];
      optimization_barrier(s);  // keeps the arithmetic before the wait that follows
    };
    const auto product_o = [&] {
      pipeline.wait_keys();
      gemm_pv<T, S>(o, p, advance(v_at, pipeline.offset()));
    };
    const auto step = [&](const auto& weigh) {
      second_pass_step<T, S>(
          u, pipeline, s, o, p, [&] { product_s(s); }, product_o, weigh);
    };
    if (tabled && first() + 63 >= at.span.begin * N) {
      // last: the last key tile that the warpgroup sees. plain_end: key tiles that begin after this
      // key need the table.
      const int last = u.band_right == 0
                           ? max(min(at.span.end - 1, (first() + 63) / N), at.span.begin)
                           : at.span.end - 1;
      const int plain_end = u.band_right == 0
                                ? min(first() - params.extra.dist_window - (N - 1), last * N)
                                : last * N;
      const auto near = [&](int t) { return t * N > plain_end; };
      const auto entry = [&](int t) {
        return table + uint(4 * (PAD + at.row0 + accumulator_row() + u.band_off -
                                 (t * N + accumulator_col())));
      };
      Sum<N> sum;
      // s is S of the last tile: it is there, or comes after tiles that are skipped.
      if (last < at.span.end - 1) {
#pragma unroll 1
        for (int t = at.span.end - 2; t > last; --t) skip();
        next_s();
      }
      int t = last;
#pragma unroll 1
      for (; near(t); --t) {
        add_dist<N>(s, entry(t));
        sum.add(s, scale);
        if (t == at.span.begin) break;
        next_s();
      }
      if (!near(t)) {
#pragma unroll 1
        for (;; --t) {
          sum.add(s, scale);
          if (t == at.span.begin) break;
          next_s();
        }
      }
      end_sum(sum);
      // Only the last tile has hidden keys. Where their weights have to be set to 0, it is done
      // after the loops.
      const bool hides = (u.band_right == 0) & (tau > 0.f);
      const int end = last + (hides ? 0 : 1);
      weigh_plain(false);
      if (hides & (t == last)) hide(t, 0.f);
      pack_tile<T, N, true>(p, s);
      ++t;
#pragma unroll 1
      for (; t < end && !near(t); ++t) step([&] { weigh_plain(); });
#pragma unroll 1
      for (; t < end; ++t)
        step([&] {
          add_dist<N>(s, entry(t));
          weigh_plain();
        });
      if (t == last)
        step([&] {
          add_dist<N>(s, entry(t));
          weigh_plain();
          hide(t, 0.f);
        });
      if (last < at.span.end - 1) skip();  // K of a tile that is skipped
      passed = at.span.end - 1 - last;
    } else {
      const auto hidden = [&](int t) {
        const int row = first(), key = t * N;
        return (at.row0 + 64 * warpgroup >= u.seq_q) | (key > row + 63 + u.band_right) |
               (key + N - 1 < row - u.band_left);
      };
      const auto edge = [&](int t) {
        const int row = first(), key = t * N;
        return (key + N - 1 > min(row + u.band_right, u.seq_kv - 1)) |
               (key < row + 63 - u.band_left);
      };
      const auto near = [&](int t) {
        const int distance = first() - t * N;
        return params.extra.dist_window > 0 && distance + 63 >= 0 &&
               distance - (N - 1) < params.extra.dist_window;
      };
      const auto score = [&](int t) {
        if (!plain_scale(u)) {
          const float by = opaque(u.scale) * kLog2e;
#pragma unroll
          for (int i = 0; i < N / 2; ++i) s[i] *= by;
        }
        if (near(t))
          add_dist<N>(s, table + uint(4 * (PAD + at.row0 + accumulator_row() + u.band_off -
                                           (t * N + accumulator_col()))));
      };
      // Most tiles are not hidden, not at an edge and not near. They have a loop of their own,
      // whose code is short.
      const auto plain = [&](int t) {
        return (t >= at.span.full_begin) & (t < at.span.full_end) &
               (params.extra.dist_window == 0 ||
                first() - t * N - (N - 1) >= params.extra.dist_window) &
               plain_scale(u) & (at.row0 + 64 * warpgroup < u.seq_q);
      };
      Sum<N> sum;
#pragma unroll 1
      for (int t = at.span.end - 1;;) {
        if (!hidden(t)) {
          score(t);
          if (edge(t)) hide(t, -INFINITY);
          sum.add(s, scale);
        }
        if (t == at.span.begin) break;
        next_s();
        --t;
#pragma unroll 1
        for (; t > at.span.begin && plain(t); --t) {
          sum.add(s, scale);
          next_s();
        }
      }
      end_sum(sum);
      const auto weigh = [&](int t, bool less = true) {
        weigh_plain(less);
        if (edge(t)) hide(t, 0.f);
      };
      // A tile that is hidden from this warpgroup was not added, so its origin is still to be
      // subtracted.
      weigh(at.span.begin, hidden(at.span.begin));
      pack_tile<T, N, true>(p, s);
#pragma unroll 1
      for (int t = at.span.begin + 1; t < at.span.end; ++t)
        step([&] {
          score(t);
          weigh(t);
        });
    }
    pipeline.release_q();
    more = next_visible_tile(scheduler, &to, unseen);
    // The last P V overlaps S of the next tile's first keys. After the last tile this is S of
    // whatever lies in the stage, and is not used.
    if constexpr (S::Q_STAGES > 1) {
      pipeline.wait_keys();
      const uint64_t v = advance(v_at, pipeline.offset());
      const uint v_full = pipeline.take();
      if (passed) skip();  // V of the skipped tile
      if (more) {
        pipeline.wait_q();
        pipeline.wait_keys();
      }
      product_s(s);
      gemm_pv<T, S>(o, p, v);
      wgmma_wait_group<0>();
      if (more) pipeline.release_keys();
      pipeline.release(v_full);
    } else {
      product_o();
      wgmma_wait_group<0>();
      pipeline.release_keys();
      if (passed) skip();
    }
    const float one[2] = {1.f, 1.f};
    if (at.row0 + 64 * warpgroup < 0) continue;
    store_lse(u, params.push, at, lse);
    store_rows<T, S::DV>(o, one, params.push.o, u, at);
  }
}

template <typename T, int TILE, typename Row>
__global__ void __launch_bounds__(ElasticShape<TILE>::tile.threads(), 1)
    fwd_elastic(const __grid_constant__ FwdOptionalParams params) {
  using S = ElasticShape<TILE>;
  const ElasticStorage<S> storage{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&params.q);
    prefetch_tensor_map(&params.k);
    prefetch_tensor_map(&params.v);
    storage.init();
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<S::PRODUCER>();
    if (threadIdx.x == 0) {
      if constexpr (S::tile.decoupled)
        produce_elastic_decoupled<S>(params, storage);
      else
        produce_elastic<S>(params, storage);
    }
  } else {
    warpgroup_reg_alloc<S::CONSUMER>();
    if constexpr (S::tile.decoupled)
      main_loop_elastic_decoupled<T, S>(params, storage);
    else
      main_loop_elastic<T, S>(params, storage);
  }
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return fwd_elastic<T, TILE, Row>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
