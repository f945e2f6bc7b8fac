// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper: o and lse from q, k, v. A workgroup takes tiles of query rows one after the other. One thread copies, the
// other warpgroups compute, 64 rows each: while the tensor cores form S of the next keys and P V of the present ones, the
// weights are computed, also from one tile to the next. Math as in cuda/fwd.cu, in powers of two; P is rounded to the
// tensors' type for P V.
#include <cstring>

#include "fwd_bias_three.cuh"
#include "fwd_wide.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename S, typename Params>
TANDEM_DEVICE void produce(const Params& params, const Shared<S>& shared) {
  Rounds<S> rounds(params);
  Copier<S, Params> copy(params, shared);
  FwdPlace at;
  // v lags behind k by a step: S of the next keys comes before P V of the present ones.
  int t = -1, head = 0, batch = 0;
  while (rounds.next(&at, [](const FwdPlace&) {})) {
    const int kv_head = head_of(params.block, at) / params.block.group;
    const int in_batch = batch_of(params.block, at);
    copy.q(at.row0, head_of(params.block, at), in_batch);
    for (int next = at.span.end - 1; next >= at.span.begin; --next) {
      copy.k(next, kv_head, in_batch);
      if (t >= 0) copy.v(t, head, batch);
      t = next, head = kv_head, batch = in_batch;
    }
  }
  if (t >= 0) copy.v(t, head, batch);
}

template <typename T, typename S, typename Params>
TANDEM_DEVICE void consume(const Params& params, const Shared<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  // Scores are multiplied by a positive number after they are compared. A scale that is not, or hardly, comes first.
  float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  if constexpr (S::FULL) scale = step_scale(params);
  const uint64_t q_at = along(shared.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(shared.k(0)), v_at = across(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  Step<S::Q_STAGES> q_step;
  KvPlaces<S> kv(shared);
  const auto product_s = [&] {
    product_along<T, S>(s, further(q_at, q_step.stage() * S::Q_BYTES),
                        further(k_at, kv.k.stage() * S::K_BYTES));
  };
  const auto product_o = [&] {
    kv.wait_v();
    product_across<T, S>(o, p, further(v_at, kv.v.stage() * S::V_BYTES));
  };
  const auto wait_q_k = [&] {
    barrier_wait(shared.q_full(q_step.stage()), q_step.parity());
    kv.wait_k();
  };
  const auto nothing = [&](const FwdPlace& at) { store_nothing<S>(u, params.push, at); };

  Rounds<S> rounds(u);
  // The next tile, which q_step stands for.
  const auto next = [&](FwdPlace* to) {
    if constexpr (S::LENGTHS) {
      barrier_wait(shared.q_full(q_step.stage()), q_step.parity());
      return get_place(notice_at<S>(shared, q_step.n), to);
    } else {
      return rounds.next(to, nothing);
    }
  };
  const auto score = [&](const FwdPlace& at, int t) {
    if constexpr (S::LENGTHS) {  // registers are short: from shared memory, each time
      const uint notice = notice_at<S>(shared, q_step.n);
      if constexpr (S::FULL) {
        change_scores<N>(s, params, shared_ints(notice + 32).w,
                         shared_ints(notice).x + fresh_row() + shared_ints(notice + 16).w -
                             (t * N + fresh_col()));
      } else if (!plain_scale(u)) {
        const float first = fresh(u.scale) * kLog2e;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) s[i] *= first;
      }
      const int4 of = shared_ints(notice + 16);  // the tiles without a mask, keys, off
      if (t < of.x || t >= of.y)
        mask_tile<N>(s, TandemBand{u.band_left, u.band_right, of.w},
                     shared_ints(notice).x + fresh_row(), t * N + fresh_col(), of.z, -INFINITY);
      return;
    }
    if (!plain_scale(u)) {
      const float first = fresh(u.scale) * kLog2e;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] *= first;
    }
    if (t < at.span.full_begin || t >= at.span.full_end)
      mask_tile<N>(s, rounds.band(), at.row0 + fresh_row(), t * N + fresh_col(), u.seq_kv,
                   -INFINITY);
  };

  FwdPlace at, to;
  if (!next(&at)) return;
  if (S::TURNS && group == S::GROUPS - 1) pass_turn<S>(group);
  float factor[2];
  Softmax<N> softmax;
  const auto store = [&](FwdPlace place) {
    float lse[2], inverse[2];
    if constexpr (S::LENGTHS) {
      const uint notice = notice_at<S>(shared, q_step.n - 1);
      get_place(notice, &place);
      const int4 of = shared_ints(notice + 32);  // length, rows, first row, head
      const int row = place.row0 + fresh_row();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        end_row(params, of.w, softmax.origin(r), quad_sum(softmax.sum(r)), &lse[r], &inverse[r]);
        if (row + 8 * r >= of.x) lse[r] = -INFINITY;
      }
      store_lse(u, params.push, place, lse);
      store_rows<T, S::DV, true>(o, inverse,
                                 reinterpret_cast<ushort*>(params.push.o) +
                                     shared_ints(notice + 48).x * u.o.b + of.w * u.o.h +
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
  wait<0>();
  kv.release_k();
  score(at, at.span.end - 1);
  softmax.step(s, scale, factor);
  pack_tile<T, N>(p, s);
  for (;;) {
#pragma unroll 1
    for (int t = at.span.end - 2; t >= at.span.begin; --t) {
      kv.wait_k();
      wait_turn<S>(group);
      product_s();
      product_o();
      pass_turn<S>(group);
      wait<1>();
      kv.release_k();
      score(at, t);
      const bool rescale = softmax.step(s, scale, factor);
      settle(s);
      wait_products(u, o);
      if (rescale) rescale_rows(o, factor);
      kv.release_v();
      pack_tile<T, N>(p, s);
    }
    // The first keys of the next tile with the last ones of this.
    if (kv.speaks) barrier_arrive(shared.q_empty(q_step.stage()));
    q_step.next();
    const bool more = next(&to);
    Softmax<N> fresh;
    if (more) {
      if constexpr (S::Q_STAGES > 1) {
        wait_q_k();
        wait_turn<S>(group);
        product_s();
        product_o();
        pass_turn<S>(group);
        wait<1>();
      } else {  // q takes a while to come
        wait_turn<S>(group);
        product_o();
        wait_q_k();
        product_s();
        pass_turn<S>(group);
        wait<0>();
      }
      kv.release_k();
      score(to, to.span.end - 1);
      fresh.step(s, scale, factor);
      settle(s);
    } else {
      product_o();
    }
    wait<0>();
    kv.release_v();
    store(at);
    if (!more) break;
    clear(o);
    softmax = fresh;
    at = to;
    pack_tile<T, N>(p, s);
  }
}

template <typename T, int ROW, FwdSet SET, typename Params>
__global__ void __launch_bounds__(FwdShape<ROW>::tile.threads(), 1)
    fwd(const __grid_constant__ Params params) {
  using S = FwdShape<ROW, SET>;
  const Shared<S> shared = begin_fwd<S>(params);
  if constexpr (!S::BIAS) {
    launch_dependents();
    wait_kernel_before();
  }
  if (threadIdx.x < 128) {
    give_registers<S::PRODUCER>();
    if constexpr (S::LENGTHS) {
      if (threadIdx.x < 32)
        produce_entries<S>(params, shared);
      else
        store_unseen<S>(params);
    } else {
      if constexpr (S::WIDE || S::THREE)
        if (threadIdx.x >= 32) store_empty<S>(params);
      if (threadIdx.x == 0) {
        if constexpr (S::WIDE)
          produce_wide<S>(params, shared);
        else if constexpr (S::APART)
          produce_apart<S>(params, shared);
        else if constexpr (S::THREE)
          produce_three<S>(params, shared);
        else if constexpr (S::BIAS)
          produce_bias<S>(params, shared);
        else
          produce<S>(params, shared);
      }
    }
  } else {
    take_registers<S::CONSUMER>();
    if constexpr (S::WIDE)
      consume_wide<T, S>(params, shared);
    else if constexpr (S::APART)
      consume_apart<T, S>(params, shared);
    else if constexpr (S::THREE)
      consume_three<T, S>(params, shared);
    else if constexpr (S::BIAS)
      consume_bias<T, S>(params, shared);
    else
      consume<T, S>(params, shared);
  }
}

constexpr bool has_kernel(FwdSet set, const FwdTile& t) {
  switch (set) {
    case FwdSet::plain:
      return !t.bias;
    case FwdSet::bias:
      return fwd_bias_shared_bytes(t) > 0;
    case FwdSet::scaled_bias:
      return fwd_scales_q(t);
    case FwdSet::lengths:
      return fwd_has_lengths_alone(t);
    default:
      return fwd_lengths_shared_bytes(t) > 0;
  }
}

template <typename T, FwdSet SET, typename Params, int ROW = 0>
Kernel<Params> select(const char* name) {
  if constexpr (ROW < kFwdTileCount) {
    if constexpr (has_kernel(SET, kFwdTiles[ROW]))
      if (std::strcmp(name, kFwdTiles[ROW].name) == 0) return fwd<T, ROW, SET, Params>;
    return select<T, SET, Params, ROW + 1>(name);
  } else {
    return nullptr;
  }
}
template <FwdSet SET, typename Params>
Kernel<Params> select(tandem_dtype dtype, const Launch& launch) {
  if (!launch.tile.name) return nullptr;
  if (dtype == TANDEM_F16) return select<Half, SET, Params>(launch.tile.name);
  if (dtype == TANDEM_BF16) return select<Bfloat, SET, Params>(launch.tile.name);
  return nullptr;
}

}  // namespace

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch) {
  return select<FwdSet::plain, FwdParams>(dtype, launch);
}
Kernel<FwdBiasParams> fwd_bias_kernel(tandem_dtype dtype, const Launch& launch) {
  return select<FwdSet::bias, FwdBiasParams>(dtype, launch);
}
Kernel<FwdBiasParams> fwd_scaled_bias_kernel(const Launch& launch) {
  return launch.tile.name ? select<Bfloat, FwdSet::scaled_bias, FwdBiasParams>(launch.tile.name)
                          : nullptr;
}
Kernel<FwdFullParams> fwd_lengths_kernel(tandem_dtype dtype, const Launch& launch) {
  return select<FwdSet::lengths, FwdFullParams>(dtype, launch);
}
Kernel<FwdFullParams> fwd_full_kernel(tandem_dtype dtype, const Launch& launch) {
  return select<FwdSet::full, FwdFullParams>(dtype, launch);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
