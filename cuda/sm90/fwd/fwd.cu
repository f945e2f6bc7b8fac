// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper: o and lse from q, k, v, by a persistent kernel. One producer thread loads by TMA,
// and the consumer warpgroups compute 64 rows each. While the tensor cores compute S of the next
// keys and P V of the present ones, a warpgroup computes weights, also from one work tile to the
// next. The math is that of cuda/fwd.cu, in powers of two. P is rounded to the type of the tensors
// for P V.
#include <cstring>

#include "bias_192_rows.cuh"
#include "wide_heads.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename S, typename Params>
TANDEM_DEVICE void produce(const Params& params, const FwdSharedStorage<S>& shared) {
  StaticTileScheduler<S> scheduler(params);
  TmaProducer<S, Params> producer(params, shared);
  FwdWorkTile at;
  // V is loaded one step behind K: S of the next keys is computed before P V of the present ones.
  int t = -1, head = 0, batch = 0;
  while (scheduler.next(&at, [](const FwdWorkTile&) {})) {
    const int kv_head = head_of(params.block, at) / params.block.group;
    const int in_batch = batch_of(params.block, at);
    producer.q(at.row0, head_of(params.block, at), in_batch);
    for (int next = at.span.end - 1; next >= at.span.begin; --next) {
      producer.k(next, kv_head, in_batch);
      if (t >= 0) producer.v(t, head, batch);
      t = next, head = kv_head, batch = in_batch;
    }
  }
  if (t >= 0) producer.v(t, head, batch);
}

template <typename T, typename S, typename Params>
TANDEM_DEVICE void consume(const Params& params, const FwdSharedStorage<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  // Scores are multiplied by the scale after they are compared. A scale that is not positive, or
  // hardly, comes before (plain_scale()).
  float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  if constexpr (S::SOFTCAP_ALIBI) scale = step_scale(params);
  const uint64_t q_at = k_major(shared.q(0) + uint(warpgroup * 64 * kPanelBytes));
  const uint64_t k_at = k_major(shared.k(0)), v_at = mn_major(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  PipelineCounter<S::Q_STAGES> q_pipe;
  KvPipeline<S> kv(shared);
  const auto product_s = [&] {
    gemm_qk<T, S>(s, advance(q_at, q_pipe.stage() * S::Q_BYTES),
                  advance(k_at, kv.k.stage() * S::K_BYTES));
  };
  const auto product_o = [&] {
    kv.wait_v();
    gemm_pv<T, S>(o, p, advance(v_at, kv.v.stage() * S::V_BYTES));
  };
  const auto wait_q_k = [&] {
    mbarrier_wait(shared.q_full(q_pipe.stage()), q_pipe.phase());
    kv.wait_k();
  };
  const auto nothing = [&](const FwdWorkTile& at) { store_empty_rows<S>(u, params.push, at); };

  StaticTileScheduler<S> scheduler(u);
  // The next work tile, whose Q is at q_pipe.
  const auto next = [&](FwdWorkTile* to) {
    if constexpr (S::VARLEN) {
      mbarrier_wait(shared.q_full(q_pipe.stage()), q_pipe.phase());
      return read_work_tile(tile_descriptor_at<S>(shared, q_pipe.n), to);
    } else {
      return scheduler.next(to, nothing);
    }
  };
  const auto score = [&](const FwdWorkTile& at, int t) {
    if constexpr (S::VARLEN) {  // registers are short: it reads the descriptor each time
      const uint descriptor = tile_descriptor_at<S>(shared, q_pipe.n);
      if constexpr (S::SOFTCAP_ALIBI) {
        change_scores<N>(s, params, ld_shared_v4_s32(descriptor + 32).w,
                         ld_shared_v4_s32(descriptor).x + accumulator_row() +
                             ld_shared_v4_s32(descriptor + 16).w - (t * N + accumulator_col()));
      } else if (!plain_scale(u)) {
        const float first = opaque(u.scale) * kLog2e;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) s[i] *= first;
      }
      const int4 of = ld_shared_v4_s32(descriptor + 16);  // full_begin, full_end, keys, off
      if (t < of.x || t >= of.y)
        mask_tile<N>(s, TandemBand{u.band_left, u.band_right, of.w},
                     ld_shared_v4_s32(descriptor).x + accumulator_row(), t * N + accumulator_col(),
                     of.z, -INFINITY);
      return;
    }
    if (!plain_scale(u)) {
      const float first = opaque(u.scale) * kLog2e;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] *= first;
    }
    if (t < at.span.full_begin || t >= at.span.full_end)
      mask_tile<N>(s, scheduler.band(), at.row0 + accumulator_row(), t * N + accumulator_col(),
                   u.seq_kv, -INFINITY);
  };

  FwdWorkTile at, to;
  if (!next(&at)) return;
  if (S::PING_PONG && warpgroup == S::WARPGROUPS - 1) ping_pong_pass<S>(warpgroup);
  float factor[2];
  Softmax<N> softmax;
  const auto store = [&](FwdWorkTile place) {
    float lse[2], inverse[2];
    if constexpr (S::VARLEN) {
      const uint descriptor = tile_descriptor_at<S>(shared, q_pipe.n - 1);
      read_work_tile(descriptor, &place);
      const int4 of = ld_shared_v4_s32(descriptor + 32);  // length, rows, first row, head
      const int row = place.row0 + accumulator_row();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        end_row(params, of.w, softmax.origin(r), quad_sum(softmax.sum(r)), &lse[r], &inverse[r]);
        if (row + 8 * r >= of.x) lse[r] = -INFINITY;
      }
      store_lse(u, params.push, place, lse);
      store_rows<T, S::DV, true>(o, inverse,
                                 reinterpret_cast<ushort*>(params.push.o) +
                                     ld_shared_v4_s32(descriptor + 48).x * u.o.b + of.w * u.o.h +
                                     int64_t(of.z) * u.o.s,
                                 u, place.row0, of.y, of.x);
      return;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float l = quad_sum(softmax.sum(r));
      lse[r] = softmax.lse(r, l, product_unit(u));
      inverse[r] = l == 0.f ? 0.f : __frcp_rn(l);
    }
    store_lse(u, params.push, place, lse);
    store_rows<T, S::DV>(o, inverse, params.push.o, u, place);
  };
  clear(o);
  wait_q_k();
  product_s();
  wgmma_wait_group<0>();
  kv.release_k();
  score(at, at.span.end - 1);
  softmax.step(s, scale, factor);
  pack_tile<T, N>(p, s);
  for (;;) {
#pragma unroll 1
    for (int t = at.span.end - 2; t >= at.span.begin; --t) {
      kv.wait_k();
      ping_pong_wait<S>(warpgroup);
      product_s();
      product_o();
      ping_pong_pass<S>(warpgroup);
      wgmma_wait_group<1>();
      kv.release_k();
      score(at, t);
      const bool rescale = softmax.step(s, scale, factor);
      optimization_barrier(s);
      wait_products(u, o);
      if (rescale) rescale_rows(o, factor);
      kv.release_v();
      pack_tile<T, N>(p, s);
    }
    // S of the first keys of the next tile overlaps P V of the last keys of this one.
    if (kv.elected) mbarrier_arrive(shared.q_empty(q_pipe.stage()));
    q_pipe.next();
    const bool more = next(&to);
    Softmax<N> next_softmax;
    if (more) {
      if constexpr (S::Q_STAGES > 1) {
        wait_q_k();
        ping_pong_wait<S>(warpgroup);
        product_s();
        product_o();
        ping_pong_pass<S>(warpgroup);
        wgmma_wait_group<1>();
      } else {  // Q of the next tile takes a while to arrive
        ping_pong_wait<S>(warpgroup);
        product_o();
        wait_q_k();
        product_s();
        ping_pong_pass<S>(warpgroup);
        wgmma_wait_group<0>();
      }
      kv.release_k();
      score(to, to.span.end - 1);
      next_softmax.step(s, scale, factor);
      optimization_barrier(s);
    } else {
      product_o();
    }
    wgmma_wait_group<0>();
    kv.release_v();
    store(at);
    if (!more) break;
    clear(o);
    softmax = next_softmax;
    at = to;
    pack_tile<T, N>(p, s);
  }
}

template <typename T, int ROW, FwdVariant VARIANT, typename Params>
__global__ void __launch_bounds__(FwdShape<ROW>::tile.threads(), 1)
    fwd(const __grid_constant__ Params params) {
  using S = FwdShape<ROW, VARIANT>;
  const FwdSharedStorage<S> shared = begin_kernel<S>(params);
  if constexpr (!S::BIAS) {
    launch_dependent_grids();
    grid_dependency_wait();
  }
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<S::PRODUCER>();
    if constexpr (S::VARLEN) {
      if (threadIdx.x < 32)
        produce_varlen<S>(params, shared);
      else
        store_unseen<S>(params);
    } else {
      if constexpr (S::WIDE_HEADS || S::BIAS_192)
        if (threadIdx.x >= 32) store_empty<S>(params);
      if (threadIdx.x == 0) {
        if constexpr (S::WIDE_HEADS)
          produce_wide_heads<S>(params, shared);
        else if constexpr (S::DECOUPLED)
          produce_decoupled<S>(params, shared);
        else if constexpr (S::BIAS_192)
          produce_bias_192<S>(params, shared);
        else if constexpr (S::BIAS)
          produce_bias<S>(params, shared);
        else
          produce<S>(params, shared);
      }
    }
  } else {
    warpgroup_reg_alloc<S::CONSUMER>();
    if constexpr (S::WIDE_HEADS)
      consume_wide_heads<T, S>(params, shared);
    else if constexpr (S::DECOUPLED)
      consume_decoupled<T, S>(params, shared);
    else if constexpr (S::BIAS_192)
      consume_bias_192<T, S>(params, shared);
    else if constexpr (S::BIAS)
      consume_bias<T, S>(params, shared);
    else
      consume<T, S>(params, shared);
  }
}

constexpr bool has_kernel(FwdVariant set, const FwdTile& t) {
  switch (set) {
    case FwdVariant::plain:
      return !t.bias;
    case FwdVariant::bias:
      return fwd_bias_shared_bytes(t) > 0;
    case FwdVariant::scaled_bias:
      return fwd_scales_q(t);
    case FwdVariant::varlen:
      return fwd_has_varlen_alone(t);
    default:
      return fwd_varlen_shared_bytes(t) > 0;
  }
}

template <typename T, FwdVariant VARIANT, typename Params, int ROW = 0>
Kernel<Params> select(const char* name) {
  if constexpr (ROW < kFwdTileCount) {
    if constexpr (has_kernel(VARIANT, kFwdTiles[ROW]))
      if (std::strcmp(name, kFwdTiles[ROW].name) == 0) return fwd<T, ROW, VARIANT, Params>;
    return select<T, VARIANT, Params, ROW + 1>(name);
  } else {
    return nullptr;
  }
}
template <FwdVariant VARIANT, typename Params>
Kernel<Params> select(tandem_dtype dtype, const char* tile) {
  if (!tile) return nullptr;
  if (dtype == TANDEM_F16) return select<Half, VARIANT, Params>(tile);
  if (dtype == TANDEM_BF16) return select<Bfloat, VARIANT, Params>(tile);
  return nullptr;
}

}  // namespace

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const char* tile) {
  return select<FwdVariant::plain, FwdParams>(dtype, tile);
}
Kernel<FwdBiasParams> fwd_bias_kernel(tandem_dtype dtype, const char* tile) {
  return select<FwdVariant::bias, FwdBiasParams>(dtype, tile);
}
Kernel<FwdBiasParams> fwd_scaled_bias_kernel(const char* tile) {
  return tile ? select<Bfloat, FwdVariant::scaled_bias, FwdBiasParams>(tile) : nullptr;
}
Kernel<FwdOptionalParams> fwd_varlen_kernel(tandem_dtype dtype, const char* tile) {
  return select<FwdVariant::varlen, FwdOptionalParams>(dtype, tile);
}
Kernel<FwdOptionalParams> fwd_softcap_alibi_kernel(tandem_dtype dtype, const char* tile) {
  return select<FwdVariant::softcap_alibi, FwdOptionalParams>(dtype, tile);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
