// SPDX-License-Identifier: MIT OR Apache-2.0
// A dense bias in fwd: how a tile of it comes to the products of q and k.
#ifndef TANDEM_CUDA_SM90_FWD_BIAS_CUH
#define TANDEM_CUDA_SM90_FWD_BIAS_CUH
#include "fwd_sets.cuh"
#include "fwd_tail.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Where in a panel of a tile of bias a thread's first part is: panel_at() of row 16 (warp % 4) + lane % 16, piece lane / 16.
TANDEM_DEVICE uint bias_part() {
  const uint thread = uint(fresh_thread());
  return (thread & 96) << 6 | (thread & 15) << 7 | (thread & 6) << 4 |
         ((thread >> 4 ^ thread) & 1) << 4;
}
// A thread's part of a tile of bias, 16 keys at a time. In the order of pieces, so that panels differ by a number known here.
template <int N>
TANDEM_DEVICE constexpr int bias_keys(int n) {
  return n % (N / 64) * 4 + n / (N / 64);
}
template <int N>
TANDEM_DEVICE void load_bias(uint (&r)[4], uint at, int n) {
  load_matrices(
      r, (at ^ uint(bias_keys<N>(n) % 4 * 32)) + uint(bias_keys<N>(n) / 4 * 64 * kPanelBytes));
}

// ---- the copying thread -----------------------------------------------------------------------------

// It finds the tiles, each while the one before it is computed, and leaves a notice of it, so that no warpgroup divides from
// one tile to the next: its steps over the keys, first row and head, and how many warpgroups have rows in it; none: there is no tile.
template <typename S, typename Params>
TANDEM_DEVICE void produce_bias(const Params& params, const Shared<S>& shared) {
  const FwdBlock& u = params.block;
  Rounds<S> rounds(params);
  Copier<S, Params> copy(params, shared);
  const auto tell = [&](const FwdPlace& at, int groups) {
    const Step<S::Q_STAGES> q = copy.q_step;
    barrier_wait(shared.q_empty(q.stage()), q.parity() ^ 1);
    const uint notice = shared.bias_notice(q.n);
    const int batch = batch_of(u, at);
    put_shared(notice, at.span.begin, at.span.end, at.span.full_begin, at.span.full_end);
    put_shared(notice + 16, groups, at.row0, batch, int(at.index) - batch * u.heads_q);
  };
  const auto skip = [&] {
    barrier_arrive(shared.q_full(copy.q_step.stage()));
    copy.q_step.next();
  };
  // v lags behind k by a step: S of the next keys comes before P V of the present ones.
  int t = -1, kv_head = 0, kv_batch = 0;
  FwdPlace to;
  bool more = rounds.any(&to);
  // Registers and shared memory of a multiprocessor are taken until its workgroup ends: the next kernel does not begin before.
  launch_dependents();
  wait_kernel_before();
  while (more) {
    const FwdPlace at = to;
    const int groups =
        rounds.tail->shorts > 0 ? min(S::GROUPS, (u.seq_q - at.row0 + 63) / 64) : S::GROUPS;
    tell(at, groups);
    if (at.span.begin >= at.span.end) {
      skip();
      more = rounds.any(&to);
      continue;
    }
    const int batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q,
              of_head = head / u.group, bias_head = head / params.extra.bias_group,
              bias_batch = params.extra.bias.b ? batch : 0;
    copy.q(at.row0, head, batch);
    for (int next = at.span.end - 1; next >= at.span.begin; --next) {
      copy.k(next, of_head, batch);
      if (t >= 0) copy.v(t, kv_head, kv_batch);
      // Last: with one place for it, it waits longest.
      copy.bias(next, at.row0, bias_head, bias_batch, groups);
      t = next, kv_head = of_head, kv_batch = batch;
      if (next == at.span.end - 1) more = rounds.any(&to);
    }
  }
  if (t >= 0) copy.v(t, kv_head, kv_batch);
  tell(FwdPlace{}, 0);
  skip();
}

// ---- the computing warpgroups -----------------------------------------------------------------------

// A word that all lanes have, in a way that shows the compiler so: it keeps it in a uniform register.
TANDEM_DEVICE int same(int x) { return int(__reduce_or_sync(kAllLanes, uint(x))); }

struct BiasPlace {
  int row0, batch, head;
  TANDEM_DEVICE int64_t index(const FwdBlock& u) const { return int64_t(batch) * u.heads_q + head; }
};
// Of tile n, as its notice says.
template <typename S>
TANDEM_DEVICE BiasPlace bias_place(const Shared<S>& shared, uint n) {
  const int4 x = shared_ints(shared.bias_notice(n) + 16);
  return {x.y, x.z, x.w};
}
TANDEM_DEVICE BiasPlace same_place(BiasPlace x) {
  return {same(x.row0), same(x.batch), same(x.head)};
}

// o and lse of tile n, whose products are done; of a tile that two workgroups share, if this warp
// comes second. unit: what products are multiplied by to be scores.
template <typename T, typename S, typename Params>
TANDEM_DEVICE void store_joined(const Params& params, uint n, const BiasPlace& of,
                                float (&o)[S::DV / 2], Softmax<S::N>& softmax, float unit) {
  const FwdBlock& u = params.block;
  float l[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) l[r] = quad_sum(softmax.sum(r));
  if (!__any_sync(kAllLanes, join_parts(Rounds<S>(params), int(n), o, softmax, l, unit * kLog2e)))
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
  FwdPlace place;
  place.row0 = of.row0, place.index = uint(of.index(u));
  store_lse(u, params.push, place, lse);
}

// 64 rows of a tile that see no key.
template <typename S>
TANDEM_DEVICE void store_unseen(const FwdBlock& u, const FwdPush& push, BiasPlace at) {
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

// A bias of bf16 over a scale below 1 might be beyond what f32 has. So q is multiplied by a power
// of two, the scale's or 1 if that is less, and products that begin as the bias over the rest, 1 or
// more, are of q so multiplied. Numbers of bf16 under 2^-86 may change by that, the scale being
// over kPlainScale. Numbers of f16 are small enough, and would change.
template <typename T>
constexpr bool kSplitsScale = false;
template <>
constexpr bool kSplitsScale<Bfloat> = true;
// The power of two, twice as bf16.
TANDEM_DEVICE uint scale_power(float scale) {
  const uint power = min(uint(word_of(scale)) & 0x7f800000u, 0x3f800000u);
  return power | power >> 16;
}
// What products are multiplied by to be scores.
template <typename T, typename S>
TANDEM_DEVICE float bias_unit(float scale) {
  if (S::SCALED) return 1.f;
  return kSplitsScale<T> && scale < 1.f
             ? __int_as_float(int((uint(word_of(scale)) & 0x7fffffu) | 0x3f800000u))
             : scale;
}

// Q times a power of two that changes no number of bf16, twice in factor, where it lies. By a
// warpgroup, its own rows.
template <typename T, typename S>
TANDEM_DEVICE void scale_q(uint factor, uint q) {
  static_assert(S::D_PANELS == 1, "rows of a panel follow each other");
  const uint at = q + uint(fresh_thread()) % 128 * 16;
#pragma unroll
  for (int n = 0; n < 64 * kPanelBytes / (128 * 16); ++n) {
    const uint4 x = shared_words(at + uint(n * 128 * 16));
    put_shared(at + uint(n * 128 * 16), int(T::times(x.x, factor)), int(T::times(x.y, factor)),
               int(T::times(x.z, factor)), int(T::times(x.w, factor)));
  }
  fence_async();
}

// As consume() in fwd.cu, but S of a step begins as its tile of the bias, over the scale or what is
// left of it (kSplitsScale); or, SCALED, as it is, and q is multiplied by the scale. So the bias is
// read before the products, not between them and their weights, and each warpgroup's while others
// multiply.
template <typename T, typename S, typename Params>
TANDEM_DEVICE void consume_bias(const Params& params, const Shared<S>& shared) {
  constexpr int N = S::N;
  // Two warpgroups have registers for all of Q, which then is not read from shared memory again and again.
  constexpr bool ROOM = S::GROUPS == 2;
  static_assert(S::Q_STAGES == 2 && S::TURNS, "q of the next tile comes early");
  static_assert(!(ROOM && S::SCALED), "q is scaled in shared memory");
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = bias_unit<T, S>(u.scale) * kLog2e;
  const uint64_t q_at = along(shared.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(shared.k(0)), v_at = across(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4], q[ROOM ? S::D / 16 : 1][4];
  Step<S::Q_STAGES> q_step;
  KvPlaces<S> kv(shared);
  Step<S::BIAS_STAGES> bias_step;
  const int together = 1 + S::GROUPS + group;
  const auto release_q = [&] {
    if (kv.speaks) barrier_arrive(shared.q_empty(q_step.stage()));
    q_step.next();
  };
  const auto take_q = [&] {
    const uint own = shared.q(q_step.stage()) + uint(group * 64 * kPanelBytes);
    if constexpr (!ROOM && kSplitsScale<T>) {
      scale_q<T, S>(S::SCALED ? T::pack(u.scale, u.scale) : scale_power(fresh(u.scale)), own);
      named_sync(together, 128);
    }
    if constexpr (ROOM) {
      const uint from = own + bias_part();
#pragma unroll
      for (int n = 0; n < S::D / 16; ++n)
        load_matrices(q[n], (from ^ uint(n % 4 * 32)) + uint(n / 4 * S::Q_PANEL));
      if constexpr (kSplitsScale<T>) {
        const uint power = scale_power(fresh(u.scale));
#pragma unroll
        for (int n = 0; n < S::D / 16; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) q[n][i] = T::times(q[n][i], power);
      }
    }
  };
  const auto begin_s = [&] {
    const uint part = bias_part();
    barrier_wait(shared.bias_full(group, bias_step.stage()), bias_step.parity());
    const uint from = shared.bias(group, bias_step.stage()) + part;
    [[maybe_unused]] const float over_scale = reciprocal(bias_unit<T, S>(fresh(u.scale)));
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
    const uint64_t k = further(k_at, kv.k.stage() * S::K_BYTES);
    // Formed anew: what loops kept of it would be registers.
    const uint64_t q_rows = further(q_at, int(fresh(uint(q_step.stage()))) * S::Q_BYTES);
    fence();
#pragma unroll
    for (int n = 0; n < S::D / 16; ++n) {
      const uint64_t keys = further(k, n / 4 * S::K_PANEL + n % 4 * 32);
      if constexpr (ROOM)
        Product<T, N>::template from_registers<0>(s, q[n][0], q[n][1], q[n][2], q[n][3], keys, 1);
      else
        Product<T, N>::template from_shared<0, 0>(
            s, further(q_rows, n / 4 * S::Q_PANEL + n % 4 * 32), keys, 1);
    }
    commit();
  };
  const auto product_o = [&] {
    kv.wait_v();
    product_across<T, S>(o, p, further(v_at, kv.v.stage() * S::V_BYTES));
  };
  // Behind products that began with what was loaded from there: an arrival may overtake loads that nobody has waited for.
  const auto release_bias = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.bias_empty(group, bias_step.stage()));
    bias_step.next();
  };
  const auto hide = [&](const TandemTiles& at, int t) {  // of the tile that q_step stands for
    if (t < at.full_begin || t >= at.full_end)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, u.band_off},
                   bias_place(shared, q_step.n).row0 + fresh_row(), t * N + fresh_col(), u.seq_kv,
                   -INFINITY);
  };
  // S of step t, and P V of the step before, which goes on.
  const auto multiply = [&](const TandemTiles& at, int t) {
    begin_s();
    kv.wait_k();
    wait_turn<S>(group);
    product_s();
    product_o();
    pass_turn<S>(group);
    release_bias();
    if (ROOM && u.seq_kv > 0)
      wait<1>();
    else
      wait<1>();
    kv.release_k();
    hide(at, t);
  };

  // The tile that q_step stands for. How many warpgroups have rows in it.
  const auto look_up = [&](TandemTiles* to) {
    barrier_wait(shared.q_full(q_step.stage()), q_step.parity());
    const uint notice = shared.bias_notice(q_step.n);
    const int4 span = shared_ints(notice);
    to->begin = same(span.x), to->end = same(span.y);
    to->full_begin = same(span.z), to->full_end = same(span.w);
    return same(shared_ints(notice + 16).x);
  };
  // The next one where this warpgroup has rows and keys to see. One warp lets go of a tile without keys for all four, and one that looked
  // at a barrier after two phases would hang.
  const auto next = [&](TandemTiles* to) {
    int groups = look_up(to);
    // Votes, so that the compiler sees that all threads go the same way.
    while (__any_sync(kAllLanes, group < groups && to->begin >= to->end)) {
      store_unseen<S>(u, params.push, bias_place(shared, q_step.n));
      named_sync(together, 128);
      release_q();
      groups = look_up(to);
    }
    return bool(__any_sync(kAllLanes, group < groups));
  };

  TandemTiles at, to;
  wait_kernel_before();
  if (!next(&at)) return;
  if (group == S::GROUPS - 1) pass_turn<S>(group);
  float factor[2];
  Softmax<N> softmax;

  clear(o);
  take_q();
  begin_s();
  kv.wait_k();
  product_s();
  release_bias();
  wait<0>();
  kv.release_k();
  hide(at, at.end - 1);
  softmax.step(s, scale, factor);
  pack_tile<T, N>(p, s);
  for (;;) {
#pragma unroll 1
    for (int t = at.end - 2; t >= at.begin; --t) {
      multiply(at, t);
      const bool rescale = softmax.step(s, scale, factor);
      settle(s);
      wait_products(u, o);  // behind a branch, as in consume()
      if (rescale) rescale_rows(o, factor);
      kv.release_v();
      pack_tile<T, N>(p, s);
    }
    // The first keys of the next tile with the last ones of this. Where this one is, as its notice may be another's before it is
    // stored: after tiles without keys, which are passed over until there is one with keys.
    const uint done = q_step.n;
    const BiasPlace of = same_place(bias_place(shared, done));
    release_q();
    const bool more = next(&to);
    Softmax<N> fresh;
    if (more) {
      take_q();
      multiply(to, to.end - 1);
      fresh.step(s, scale, factor);
      settle(s);
    } else {
      product_o();
    }
    wait<0>();
    kv.release_v();
    store_joined<T, S>(params, done, of, o, softmax, bias_unit<T, S>(u.scale));
    if (!more) break;
    clear(o);
    softmax = fresh;
    at = to;
    pack_tile<T, N>(p, s);
  }
  // The last tiles, of whose rows this warpgroup has none: it lets go of their places, and passes its turns on.
  while (__any_sync(kAllLanes, look_up(&to) > 0)) {
    release_q();
#pragma unroll 1
    for (int t = to.begin; t < to.end; ++t) {
      if (kv.speaks) kv.wait_k();
      kv.release_k();
      __syncwarp();
      wait_turn<S>(group);
      pass_turn<S>(group);
      if (kv.speaks) kv.wait_v();
      kv.release_v();
      __syncwarp();
    }
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
