// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with a dense bias: the layout of a bias tile in shared memory, the producer thread and the
// consumer warpgroups.
#ifndef TANDEM_CUDA_SM90_FWD_BIAS_CUH
#define TANDEM_CUDA_SM90_FWD_BIAS_CUH
#include "stream_k.cuh"
#include "varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Offset of a thread's first address for ldmatrix in a panel of a bias tile: swizzle_128b() of row
// 16 (warp % 4) + lane % 16, 16-byte chunk lane / 16.
TANDEM_DEVICE uint bias_part() {
  const uint thread = uint(read_tid_x());
  return (thread & 96) << 6 | (thread & 15) << 7 | (thread & 6) << 4 |
         ((thread >> 4 ^ thread) & 1) << 4;
}
// The block of 16 keys that a thread loads n-th from a bias tile. Blocks at the same place of each
// panel follow each other, so that their addresses differ by a constant.
template <int N>
TANDEM_DEVICE constexpr int bias_keys(int n) {
  return n % (N / 64) * 4 + n / (N / 64);
}
template <int N>
TANDEM_DEVICE void load_bias(uint (&r)[4], uint at, int n) {
  ldmatrix_x4(r,
              (at ^ uint(bias_keys<N>(n) % 4 * 32)) + uint(bias_keys<N>(n) / 4 * 64 * kPanelBytes));
}

// ---- the producer thread ------------------------------------------------------------------------

// The producer finds each work tile while the tile before it is computed, and writes a work-tile
// descriptor, so that no consumer divides between tiles. A descriptor has the range of key tiles,
// the first row, the batch entry, the head, and how many warpgroups have rows in the tile. If none
// has, there is no further tile.
template <typename S, typename Params>
TANDEM_DEVICE void produce_bias(const Params& params, const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  StaticTileScheduler<S> scheduler(params);
  TmaProducer<S, Params> producer(params, shared);
  const auto publish = [&](const FwdWorkTile& at, int warpgroups) {
    const PipelineCounter<S::Q_STAGES> q = producer.q_pipe;
    mbarrier_wait(shared.q_empty(q.stage()), q.phase() ^ 1);
    const uint descriptor = shared.bias_descriptor(q.n);
    const int batch = batch_of(u, at);
    st_shared(descriptor, at.span.begin, at.span.end, at.span.full_begin, at.span.full_end);
    st_shared(descriptor + 16, warpgroups, at.row0, batch, int(at.index) - batch * u.heads_q);
  };
  const auto skip = [&] {
    mbarrier_arrive(shared.q_full(producer.q_pipe.stage()));
    producer.q_pipe.next();
  };
  // V is loaded one step behind K: S of the next keys is computed before P V of the present ones.
  int t = -1, kv_head = 0, kv_batch = 0;
  FwdWorkTile to;
  bool more = scheduler.any(&to);
  // The launch of dependents can be this early. A workgroup holds the registers and the shared
  // memory of its SM until it ends, so the next kernel does not begin there before.
  launch_dependent_grids();
  grid_dependency_wait();
  while (more) {
    const FwdWorkTile at = to;
    const int warpgroups = scheduler.stream_k->short_tiles > 0
                               ? min(S::WARPGROUPS, (u.seq_q - at.row0 + 63) / 64)
                               : S::WARPGROUPS;
    publish(at, warpgroups);
    if (at.span.begin >= at.span.end) {
      skip();
      more = scheduler.any(&to);
      continue;
    }
    const int batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q,
              of_head = head / u.group, bias_head = head / params.extra.bias_group,
              bias_batch = params.extra.bias.b ? batch : 0;
    producer.q(at.row0, head, batch);
    for (int next = at.span.end - 1; next >= at.span.begin; --next) {
      producer.k(next, of_head, batch);
      if (t >= 0) producer.v(t, kv_head, kv_batch);
      // The bias comes last: with one stage, its wait is the longest.
      producer.bias(next, at.row0, bias_head, bias_batch, warpgroups);
      t = next, kv_head = of_head, kv_batch = batch;
      if (next == at.span.end - 1) more = scheduler.any(&to);
    }
  }
  if (t >= 0) producer.v(t, kv_head, kv_batch);
  publish(FwdWorkTile{}, 0);
  skip();
}

// ---- the consumer warpgroups --------------------------------------------------------------------

// Returns x, which all lanes have in common, in a way that shows this to the compiler. The compiler
// then keeps it in a uniform register.
TANDEM_DEVICE int same(int x) { return int(__reduce_or_sync(kAllLanes, uint(x))); }

// The position of a work tile: its first row, batch entry and head.
struct BiasWorkTile {
  int row0, batch, head;
  TANDEM_DEVICE int64_t index(const FwdBlock& u) const { return int64_t(batch) * u.heads_q + head; }
};
// The position of tile n, from its work-tile descriptor.
template <typename S>
TANDEM_DEVICE BiasWorkTile bias_work_tile(const FwdSharedStorage<S>& shared, uint n) {
  const int4 x = ld_shared_v4_s32(shared.bias_descriptor(n) + 16);
  return {x.y, x.z, x.w};
}
TANDEM_DEVICE BiasWorkTile same_work_tile(BiasWorkTile x) {
  return {same(x.row0), same(x.batch), same(x.head)};
}

// Stores o and lse of tile n, whose products are done. Of a tile that two workgroups share, only
// the warp that is done second stores (combine_partials()). unit: the factor that turns products
// into scores.
template <typename T, typename S, typename Params>
TANDEM_DEVICE void store_combined(const Params& params, uint n, const BiasWorkTile& of,
                                  float (&o)[S::DV / 2], Softmax<S::N>& softmax, float unit) {
  const FwdBlock& u = params.block;
  float l[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) l[r] = quad_sum(softmax.sum(r));
  if (!__any_sync(kAllLanes, combine_partials(StaticTileScheduler<S>(params), int(n), o, softmax, l,
                                              unit * kLog2e)))
    return;
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) inverse[r] = l[r] == 0.f ? 0.f : reciprocal(l[r]);
  store_all_rows<T, S::DV>(
      o, inverse, reinterpret_cast<ushort*>(params.push.o) + of.batch * u.o.b + of.head * u.o.h, u,
      of.row0, u.seq_q);
  float lse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) lse[r] = softmax.lse(r, l[r], unit);
  FwdWorkTile place;
  place.row0 = of.row0, place.index = uint(of.index(u));
  store_lse(u, params.push, place, lse);
}

// Stores o and lse of this warpgroup's 64 rows of a tile, which see no key.
template <typename S>
TANDEM_DEVICE void store_unseen(const FwdBlock& u, const FwdPush& push, BiasWorkTile at) {
  at.row0 += (int(threadIdx.x) / 128 - 1) * 64;
  ushort* o = reinterpret_cast<ushort*>(push.o) + at.batch * u.o.b + at.head * u.o.h;
  float* lse = reinterpret_cast<float*>(push.lse) + at.index(u) * u.seq_q;
#pragma unroll 1
  for (int n = int(threadIdx.x) % 128; n < 64 * u.head_dim_v; n += 128) {
    const int i = at.row0 + n / u.head_dim_v, d = n % u.head_dim_v;
    if (i >= u.seq_q) break;
    o[i * u.o.s + d * u.o.d] = 0;
    if (push.lse && d == 0) lse[i] = -INFINITY;
  }
}

// Whether Q is multiplied by a part of the scale. The accumulators of S begin as the bias over the
// scale. A bf16 bias over a scale below 1 might overflow f32. So Q is multiplied by a power of two:
// that of the scale, or 1 if that is less. The bias is divided by the rest of the scale, which is 1
// or more. As the scale is over kPlainScale, this can change only bf16 numbers under 2^-86. f16 is
// not split: its numbers are small enough, and the multiplication would change them.
template <typename T>
constexpr bool kSplitsScale = false;
template <>
constexpr bool kSplitsScale<Bfloat> = true;
// That power of two, as bf16 in both halves of a word.
TANDEM_DEVICE uint scale_power(float scale) {
  const uint power = min(uint(float_bits(scale)) & 0x7f800000u, 0x3f800000u);
  return power | power >> 16;
}
// The factor that turns products into scores.
template <typename T, typename S>
TANDEM_DEVICE float bias_unit(float scale) {
  if (S::SCALED) return 1.f;
  return kSplitsScale<T> && scale < 1.f
             ? __int_as_float(int((uint(float_bits(scale)) & 0x7fffffu) | 0x3f800000u))
             : scale;
}

// Multiplies a warpgroup's own rows of Q in place. factor: a power of two that changes no number of
// bf16, in both halves of a word.
template <typename T, typename S>
TANDEM_DEVICE void scale_q(uint factor, uint q) {
  static_assert(S::D_PANELS == 1, "rows of a panel follow each other");
  const uint at = q + uint(read_tid_x()) % 128 * 16;
#pragma unroll
  for (int n = 0; n < 64 * kPanelBytes / (128 * 16); ++n) {
    const uint4 x = ld_shared_v4_u32(at + uint(n * 128 * 16));
    st_shared(at + uint(n * 128 * 16), int(T::times(x.x, factor)), int(T::times(x.y, factor)),
              int(T::times(x.z, factor)), int(T::times(x.w, factor)));
  }
  fence_proxy_async_shared();
}

// consume() of fwd.cu, but the accumulators of S begin as the tile of the bias. The bias is divided
// by the scale, or by what is left of it (kSplitsScale). SCALED: the bias is not divided, and Q is
// multiplied by the scale. So a warpgroup reads its bias before its products, while others
// multiply, and not between its products and their weights.
template <typename T, typename S, typename Params>
TANDEM_DEVICE void consume_bias(const Params& params, const FwdSharedStorage<S>& shared) {
  constexpr int N = S::N;
  // ROOM: two warpgroups have registers for all of Q. Then no product reads Q from shared memory.
  constexpr bool ROOM = S::WARPGROUPS == 2;
  static_assert(S::Q_STAGES == 2 && S::PING_PONG, "q of the next tile comes early");
  static_assert(!(ROOM && S::SCALED), "q is scaled in shared memory");
  const FwdBlock& u = params.block;
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = bias_unit<T, S>(u.scale) * kLog2e;
  const uint64_t q_at = k_major(shared.q(0) + uint(warpgroup * 64 * kPanelBytes));
  const uint64_t k_at = k_major(shared.k(0)), v_at = mn_major(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4], q[ROOM ? S::D / 16 : 1][4];
  PipelineCounter<S::Q_STAGES> q_pipe;
  KvPipeline<S> kv(shared);
  PipelineCounter<S::BIAS_STAGES> bias_pipe;
  const int together = 1 + S::WARPGROUPS + warpgroup;
  const auto release_q = [&] {
    if (kv.elected) mbarrier_arrive(shared.q_empty(q_pipe.stage()));
    q_pipe.next();
  };
  const auto take_q = [&] {
    const uint own = shared.q(q_pipe.stage()) + uint(warpgroup * 64 * kPanelBytes);
    if constexpr (!ROOM && kSplitsScale<T>) {
      scale_q<T, S>(S::SCALED ? T::pack(u.scale, u.scale) : scale_power(opaque(u.scale)), own);
      named_barrier_sync(together, 128);
    }
    if constexpr (ROOM) {
      const uint from = own + bias_part();
#pragma unroll
      for (int n = 0; n < S::D / 16; ++n)
        ldmatrix_x4(q[n], (from ^ uint(n % 4 * 32)) + uint(n / 4 * S::Q_PANEL));
      if constexpr (kSplitsScale<T>) {
        const uint power = scale_power(opaque(u.scale));
#pragma unroll
        for (int n = 0; n < S::D / 16; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) q[n][i] = T::times(q[n][i], power);
      }
    }
  };
  const auto begin_s = [&] {
    const uint part = bias_part();
    mbarrier_wait(shared.bias_full(warpgroup, bias_pipe.stage()), bias_pipe.phase());
    const uint from = shared.bias(warpgroup, bias_pipe.stage()) + part;
    [[maybe_unused]] const float over_scale = reciprocal(bias_unit<T, S>(opaque(u.scale)));
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      uint r[4];
      load_bias<N>(r, from, n);
      float* const to = s + 8 * bias_keys<N>(n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if constexpr (S::SCALED)
          T::put(to[2 * i], to[2 * i + 1], r[i]);
        else
          T::put_times(to[2 * i], to[2 * i + 1], r[i], over_scale);
    }
  };
  const auto product_s = [&] {
    const uint64_t k = advance(k_at, kv.k.stage() * S::K_BYTES);
    // Computed again for each product: kept across the loop, it would take registers.
    const uint64_t q_rows = advance(q_at, int(opaque(uint(q_pipe.stage()))) * S::Q_BYTES);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < S::D / 16; ++n) {
      const uint64_t keys = advance(k, n / 4 * S::K_PANEL + n % 4 * 32);
      if constexpr (ROOM)
        Wgmma<T, N>::template rs<0>(s, q[n][0], q[n][1], q[n][2], q[n][3], keys, 1);
      else
        Wgmma<T, N>::template ss<0, 0>(s, advance(q_rows, n / 4 * S::Q_PANEL + n % 4 * 32), keys,
                                       1);
    }
    wgmma_commit_group();
  };
  const auto product_o = [&] {
    kv.wait_v();
    gemm_pv<T, S>(o, p, advance(v_at, kv.v.stage() * S::V_BYTES));
  };
  // Called after products that began with the loaded bias: an arrival may overtake loads that no
  // instruction has waited for.
  const auto release_bias = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.bias_empty(warpgroup, bias_pipe.stage()));
    bias_pipe.next();
  };
  const auto hide = [&](const TandemTiles& at, int t) {  // of the tile at q_pipe
    if (t < at.full_begin || t >= at.full_end)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, u.band_off},
                   bias_work_tile(shared, q_pipe.n).row0 + accumulator_row(),
                   t * N + accumulator_col(), u.seq_kv, -INFINITY);
  };
  // Issues S of step t and P V of the step before, and waits for S. P V is still in flight on
  // return.
  const auto multiply = [&](const TandemTiles& at, int t) {
    begin_s();
    kv.wait_k();
    ping_pong_wait<S>(warpgroup);
    product_s();
    product_o();
    ping_pong_pass<S>(warpgroup);
    release_bias();
    if (ROOM && u.seq_kv > 0)
      wgmma_wait_group<1>();
    else
      wgmma_wait_group<1>();
    kv.release_k();
    hide(at, t);
  };

  // Reads the descriptor of the tile at q_pipe. Returns how many warpgroups have rows in it.
  const auto look_up = [&](TandemTiles* to) {
    mbarrier_wait(shared.q_full(q_pipe.stage()), q_pipe.phase());
    const uint descriptor = shared.bias_descriptor(q_pipe.n);
    const int4 span = ld_shared_v4_s32(descriptor);
    to->begin = same(span.x), to->end = same(span.y);
    to->full_begin = same(span.z), to->full_end = same(span.w);
    return same(ld_shared_v4_s32(descriptor + 16).x);
  };
  // Finds the next tile in which this warpgroup has rows and they see keys. Returns whether there
  // is one. One thread releases a tile without keys for the whole warpgroup, so its warps
  // synchronise first: a warp that tested an mbarrier two phases later would wait for ever.
  const auto next = [&](TandemTiles* to) {
    int warpgroups = look_up(to);
    // Votes show the compiler that all threads take the same branch.
    while (__any_sync(kAllLanes, warpgroup < warpgroups && to->begin >= to->end)) {
      store_unseen<S>(u, params.push, bias_work_tile(shared, q_pipe.n));
      named_barrier_sync(together, 128);
      release_q();
      warpgroups = look_up(to);
    }
    return bool(__any_sync(kAllLanes, warpgroup < warpgroups));
  };

  TandemTiles at, to;
  grid_dependency_wait();
  if (!next(&at)) return;
  if (warpgroup == S::WARPGROUPS - 1) ping_pong_pass<S>(warpgroup);
  float factor[2];
  Softmax<N> softmax;

  clear(o);
  take_q();
  begin_s();
  kv.wait_k();
  product_s();
  release_bias();
  wgmma_wait_group<0>();
  kv.release_k();
  hide(at, at.end - 1);
  softmax.step(s, scale, factor);
  pack_tile<T, N>(p, s);
  for (;;) {
#pragma unroll 1
    for (int t = at.end - 2; t >= at.begin; --t) {
      multiply(at, t);
      const bool rescale = softmax.step(s, scale, factor);
      optimization_barrier(s);
      wait_products(u, o);  // waits inside a branch
      if (rescale) rescale_rows(o, factor);
      kv.release_v();
      pack_tile<T, N>(p, s);
    }
    // S of the first keys of the next tile overlaps P V of the last keys of this one. The position
    // of this tile is read before: next() skips tiles without keys, and the descriptor may be that
    // of another tile by the time o is stored.
    const uint done = q_pipe.n;
    const BiasWorkTile of = same_work_tile(bias_work_tile(shared, done));
    release_q();
    const bool more = next(&to);
    Softmax<N> next_softmax;
    if (more) {
      take_q();
      multiply(to, to.end - 1);
      next_softmax.step(s, scale, factor);
      optimization_barrier(s);
    } else {
      product_o();
    }
    wgmma_wait_group<0>();
    kv.release_v();
    store_combined<T, S>(params, done, of, o, softmax, bias_unit<T, S>(u.scale));
    if (!more) break;
    clear(o);
    softmax = next_softmax;
    at = to;
    pack_tile<T, N>(p, s);
  }
  // In the last tiles this warpgroup has no rows. It releases their stages, and passes its turns of
  // the ping-pong on.
  while (__any_sync(kAllLanes, look_up(&to) > 0)) {
    release_q();
#pragma unroll 1
    for (int t = to.begin; t < to.end; ++t) {
      if (kv.elected) kv.wait_k();
      kv.release_k();
      __syncwarp();
      ping_pong_wait<S>(warpgroup);
      ping_pong_pass<S>(warpgroup);
      if (kv.elected) kv.wait_v();
      kv.release_v();
      __syncwarp();
    }
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
