// SPDX-License-Identifier: MIT OR Apache-2.0
// A dense bias in fwd: how a tile of it comes to the products of q and k.
#ifndef TANDEM_CUDA_SM90_FWD_BIAS_CUH
#define TANDEM_CUDA_SM90_FWD_BIAS_CUH
#include "fwd_sets.cuh"
#include "fwd_tail.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// ---- added by each thread ----------------------------------------------------------------------------

// Where in a panel of a tile of bias a thread's first part is: panel_at() of row 16 (warp % 4) + lane % 16, piece lane / 16.
TANDEM_DEVICE uint bias_part() {
  const uint thread = uint(fresh_thread());
  return (thread & 96) << 6 | (thread & 15) << 7 | (thread & 6) << 4 |
         ((thread >> 4 ^ thread) & 1) << 4;
}
// A thread's part of a tile of bias, 16 keys at a time: the first AHEAD of them come before products are there, each later
// one when one has been added.
template <int N, int AHEAD>
struct BiasTile {
  uint at;
  float factor;  // what it is multiplied by before it is added to products
  uint r[AHEAD][4];
  // In the order of pieces, so that panels differ by a number known here.
  static TANDEM_DEVICE constexpr int keys(int n) { return n % (N / 64) * 4 + n / (N / 64); }
  TANDEM_DEVICE void load(int n) {
    load_matrices(r[n % AHEAD],
                  (at ^ uint(keys(n) % 4 * 32)) + uint(keys(n) / 4 * 64 * kPanelBytes));
  }
  TANDEM_DEVICE void begin(uint first, const FwdBlock& u) {
    at = first;
    factor = plain_scale(u) ? reciprocal(fresh(u.scale)) : kLog2e;
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) load(n);
  }
  template <typename T>
  TANDEM_DEVICE void add(float (&s)[N / 2]) {
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      float* to = s + 8 * keys(n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint x = r[n % AHEAD][i];
        to[2 * i] = fmaf(T::low(x), factor, to[2 * i]);
        to[2 * i + 1] = fmaf(T::high(x), factor, to[2 * i + 1]);
      }
      if (n + AHEAD < N / 16) load(n + AHEAD);
    }
  }
};

// ---- a bias by products: a unit matrix over the scale times its tile --------------------------------
// Nothing is rounded, as 1 / scale is a power of two (has_unit_scale()).
// By all threads, a piece of it each; the barrier behind it is the caller's.
template <typename T, typename S>
TANDEM_DEVICE void write_unit(const FwdBlock& u, const Shared<S>& shared) {
  static_assert(128 * (S::GROUPS + 1) == 64 * 8, "a thread for each piece");
  const int row = int(threadIdx.x) / 8, piece = int(threadIdx.x) % 8;
  uint x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int col = 8 * piece + 2 * i;
    x[i] = T::pack(col == row ? 1.f / u.scale : 0.f, col + 1 == row ? 1.f / u.scale : 0.f);
  }
  put_shared(shared.unit() + panel_at(row, piece), int(x[0]), int(x[1]), int(x[2]), int(x[3]));
  fence_async();
}
// Infinity times a zero of the unit matrix is NaN in all rows of the tile. A warp that meets NaN asks whether that is why: as
// each warp of the group does then, for each has 16 of the rows, and all get the same answer.
template <int N>
TANDEM_DEVICE bool has_nan(const float (&s)[N / 2]) {
  return __any_sync(kAllLanes, max(top_word<N>(s, 0), top_word<N>(s, 1)) > 0x7f800000);
}
// Of halves the largest, without their signs and twice.
TANDEM_DEVICE uint widest(int4 x, uint top) {
  top = __viaddmax_u16x2(x.x, x.x, top), top = __viaddmax_u16x2(x.y, x.y, top);
  return __viaddmax_u16x2(x.z, x.z, __viaddmax_u16x2(x.w, x.w, top));
}
template <typename T, typename S>
TANDEM_DEVICE bool all_finite(uint tile) {
  uint top = 0;
#pragma unroll 1
  for (uint at = 0; at < S::BIAS_BYTES; at += 512)
    top = widest(shared_ints(tile + at + uint(fresh_thread()) % 32 * 16), top);
  return __all_sync(kAllLanes, T::finite_twice(top));
}
// A warp's own 16 rows: what is not finite becomes a number that 1 / scale, 2 or more, makes infinite again in its own row alone.
// Whether there was any.
template <typename T, typename S>
TANDEM_DEVICE bool mend_rows(uint tile) {
  constexpr int EACH = S::N / 16;
  const uint thread = uint(fresh_thread()) % 128,
             from = tile + thread / 32 * 2048 + thread % 32 * 16;
  const auto at = [](int n) { return uint(n / 4 * 64 * kPanelBytes + n % 4 * 512); };
  int4 x[EACH];
#pragma unroll
  for (int n = 0; n < EACH; ++n) x[n] = shared_ints(from + at(n));
  // Halves as words, the largest with a sign and the largest without one.
  uint below = 0, above = 0;
#pragma unroll
  for (int n = 0; n < EACH; ++n) {
    below = __vimax3_u16x2(__vimax3_u16x2(below, x[n].x, x[n].y), x[n].z, x[n].w);
    above = __vimax3_s16x2(__vimax3_s16x2(above, x[n].x, x[n].y), x[n].z, x[n].w);
  }
  const bool hides = T::any_below(below), more = T::any_above(below, above);
  if (!__any_sync(kAllLanes, hides || more)) return false;
#pragma unroll
  for (int n = 0; n < EACH; ++n)
    put_shared(from + at(n), T::clamp_below(x[n].x), T::clamp_below(x[n].y), T::clamp_below(x[n].z),
               T::clamp_below(x[n].w));
  if (__any_sync(kAllLanes, more)) {
#pragma unroll 1
    for (int n = 0; n < EACH; ++n) {
      const int4 y = shared_ints(from + at(n));
      put_shared(from + at(n), T::clamp_above(y.x), T::clamp_above(y.y), T::clamp_above(y.z),
                 T::clamp_above(y.w));
    }
  }
  fence_async();
  return true;
}

// S += the unit matrix times the tile.
template <typename T, typename S>
TANDEM_DEVICE void product_unit(float (&s)[S::N / 2], const Shared<S>& shared, int group,
                                int stage) {
  const uint64_t unit = along(shared.unit());
  const uint64_t bias = across(shared.bias(group, stage), 64 * kPanelBytes);
  fence();
#pragma unroll
  for (int n = 0; n < 4; ++n)
    Product<T, S::N>::template from_shared<0, 1>(s, further(unit, 32 * n),
                                                 further(bias, n * 16 * kPanelBytes), 1);
  commit();
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

// o and lse of tile n, whose products are done; of a tile that two workgroups share, if this warp comes second.
template <typename T, typename S, typename Params>
TANDEM_DEVICE void store_joined(const Params& params, uint n, const BiasPlace& of,
                                float (&o)[S::DV / 2], Softmax<S::N>& softmax) {
  const FwdBlock& u = params.block;
  float l[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) l[r] = quad_sum(softmax.l[r]);
  if (!__any_sync(kAllLanes, join_parts(Rounds<S>(params), int(n), o, softmax.m, l))) return;
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) inverse[r] = l[r] == 0.f ? 0.f : reciprocal(l[r]);
  store_all_rows<T, S::DV>(
      o, inverse, reinterpret_cast<ushort*>(params.push.o) + of.batch * u.o.b + of.head * u.o.h, u,
      of.row0, u.seq_q);
  float lse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r)
    lse[r] = fmaf(softmax.m[r], kLn2, logf(l[r]));  // both minus infinity, if nothing was visible
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

// As consume() in fwd.cu, with a bias that each thread adds to the products of its own rows; or, UNIT, it comes by products. Where
// these make NaN of infinities, S is formed again, and who expects more of them does not lose time so. bf16: from the tile mended in
// its place, and the tiles after it, the first one, and those where a mask hides keys (and NaN) are mended before. f16, of which
// no number times 1 / scale is infinite: each thread adds these.
template <typename T, typename S, typename Params>
TANDEM_DEVICE void consume_bias(const Params& params, const Shared<S>& shared) {
  constexpr int N = S::N;
  // Two warpgroups have registers for all of Q, which then is not read from shared memory again and again, and for the first parts
  // of the bias before products are there.
  constexpr bool ROOM = S::GROUPS == 2;
  constexpr bool MENDS = S::UNIT && T::MENDS;
  constexpr uint kWary = 64;  // after so many tiles infinities are no longer expected
  static_assert(S::Q_STAGES == 2 && S::TURNS, "q of the next tile comes early");
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  const uint64_t q_at = along(shared.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(shared.k(0)), v_at = across(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4], q[ROOM ? S::D / 16 : 1][4];
  Step<S::Q_STAGES> q_step;
  KvPlaces<S> kv(shared);
  Step<S::BIAS_STAGES> bias_step;
  uint wary_to = 0;  // the step
  const auto release_q = [&] {
    if (kv.speaks) barrier_arrive(shared.q_empty(q_step.stage()));
    q_step.next();
  };
  const auto load_q = [&] {
    if constexpr (ROOM) {
      const uint from = shared.q(q_step.stage()) + uint(group * 64 * kPanelBytes) + bias_part();
#pragma unroll
      for (int n = 0; n < S::D / 16; ++n)
        load_matrices(q[n], (from ^ uint(n % 4 * 32)) + uint(n / 4 * S::Q_PANEL));
    }
  };
  const auto wait_bias = [&] {
    barrier_wait(shared.bias_full(group, bias_step.stage()), bias_step.parity());
  };
  const auto product_s = [&] {
    const uint64_t k = further(k_at, kv.k.stage() * S::K_BYTES);
    if constexpr (ROOM) {
      fence();
#pragma unroll
      for (int n = 0; n < S::D / 16; ++n)
        Product<T, N>::template from_registers<0>(s, q[n][0], q[n][1], q[n][2], q[n][3],
                                                  further(k, n / 4 * S::K_PANEL + n % 4 * 32),
                                                  n > 0);
      commit();
    } else {
      // Formed anew: what loops kept of it would be registers.
      const uint stage = fresh(uint(q_step.stage()));
      product_along<T, S>(s, further(q_at, int(stage) * S::Q_BYTES), k);
    }
  };
  const auto product_o = [&] {
    kv.wait_v();
    product_across<T, S>(o, p, further(v_at, kv.v.stage() * S::V_BYTES));
  };
  const auto release_bias = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared.bias_empty(group, bias_step.stage()));
    bias_step.next();
  };
  BiasTile<N, 2> bias_tile;
  const auto begin_bias = [&] {
    const uint part = bias_part();
    wait_bias();
    bias_tile.begin(shared.bias(group, bias_step.stage()) + part, u);
  };
  const auto early = [&] {
    if constexpr (ROOM) begin_bias();
  };
  const auto masked = [&](const TandemTiles& at, int t) {
    return t < at.full_begin || t >= at.full_end;
  };
  const auto hide = [&](const TandemTiles& at, int t) {  // of the tile that q_step stands for
    if (masked(at, t))
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, u.band_off},
                   bias_place(shared, q_step.n).row0 + fresh_row(), t * N + fresh_col(), u.seq_kv,
                   -INFINITY);
  };
  const auto score = [&](const TandemTiles& at, int t) {  // K has been let go of
    if (!plain_scale(u)) {
      const float first = fresh(u.scale) * kLog2e;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] *= first;
    }
    if constexpr (!ROOM) begin_bias();
    bias_tile.template add<T>(s);
    hide(at, t);
  };

  const int together = 1 + S::GROUPS + group;
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
  // A step of softmax over S with the bias added. Its place is let go of behind a vote on what was loaded from there: an arrival
  // may overtake loads that nobody has waited for.
  const auto step_added = [&](Softmax<N>* of) {
    return of->step(
        s, scale, factor, [] {}, release_bias);
  };
  // By all warps, which then see what the others wrote, and come to the same.
  const auto mend = [&] {
    if constexpr (MENDS) {
      const bool any = mend_rows<T, S>(shared.bias(group, bias_step.stage()));
      if (named_any(together, 128, any)) wary_to = kv.k.n + kWary;
    }
  };
  const auto expect = [&](bool hides) {
    wait_bias();
    if constexpr (MENDS)  // votes show the compiler that all threads go the same way
      if (__any_sync(kAllLanes, hides || kv.k.n < wary_to)) mend();
  };
  const auto products = [&] {
    product_s();
    product_unit<T, S>(s, shared, group, bias_step.stage());
  };
  const auto look = [&] {
    const uint tile = shared.bias(group, bias_step.stage());
    if (!has_nan<N>(s) || all_finite<T, S>(tile)) return;
    wait<0>();
    if constexpr (MENDS) {
      named_sync(together, 128);
      mend();
      products();
      wait<0>();
    } else {
      wary_to = kv.k.n + kWary;
      product_s();
      wait<0>();
      bias_tile.begin(tile + bias_part(), u);
      bias_tile.template add<T>(s);
    }
  };
  // A step of softmax over S with the bias by products. K and the bias stay until S is known to be right.
  const auto step_products = [&](Softmax<N>* of) {
    return of->step(s, scale, factor, look, [&] {
      release_bias();
      kv.release_k();
    });
  };
  const auto end_o = [&](bool rescale) {
    if (rescale) rescale_rows(o, factor);
    kv.release_v();
    pack_tile<T, N>(p, s);
  };
  const auto wait_o = [&] {  // behind a branch, as in consume()
    settle(s);
    wait_products(u, o);
  };
  // The next keys, their bias added by each thread, ...
  const auto added = [&](int t) {
    kv.wait_k();
    wait_turn<S>(group);
    product_s();
    product_o();
    pass_turn<S>(group);
    early();
    if (ROOM && u.seq_kv > 0)
      wait<1>();
    else
      wait<1>();
    kv.release_k();
    score(at, t);
    const bool rescale = step_added(&softmax);
    wait_o();
    end_o(rescale);
  };
  // ... and by products.
  const auto multiplied = [&](int t) {
    kv.wait_k();
    expect(masked(at, t));
    wait_turn<S>(group);
    products();
    product_o();
    pass_turn<S>(group);
    wait<1>();
    if constexpr (MENDS) hide(at, t);
    const bool rescale = step_products(&softmax);
    wait_o();
    end_o(rescale);
  };

  clear(o);
  kv.wait_k();
  load_q();
  if constexpr (MENDS) {
    expect(true);
    products();
    wait<0>();
    hide(at, at.end - 1);
    step_products(&softmax);
  } else {
    product_s();
    early();
    wait<0>();
    kv.release_k();
    score(at, at.end - 1);
    step_added(&softmax);
  }
  pack_tile<T, N>(p, s);
  for (;;) {
#pragma unroll 1
    for (int t = at.end - 2; t >= at.begin; --t) {
      if constexpr (MENDS) {
        multiplied(t);
      } else {
        if constexpr (S::UNIT) {
#pragma unroll 1
          for (; kv.k.n >= wary_to && !masked(at, t); --t) multiplied(t);
          if (t < at.begin) break;
        }
        added(t);
      }
    }
    // The first keys of the next tile with the last ones of this. Where this one is, as its notice may be another's before it is
    // stored: after tiles without keys, which are passed over until there is one with keys.
    const uint done = q_step.n;
    const BiasPlace of = same_place(bias_place(shared, done));
    release_q();
    const bool more = next(&to);
    Softmax<N> fresh;
    if (more) {
      const int t = to.end - 1;
      const bool by_products =
          MENDS || (S::UNIT && __any_sync(kAllLanes, kv.k.n >= wary_to && !masked(to, t)));
      kv.wait_k();
      load_q();
      if constexpr (S::UNIT)
        if (by_products) expect(masked(to, t));
      wait_turn<S>(group);
      product_s();
      if constexpr (S::UNIT)
        if (by_products) product_unit<T, S>(s, shared, group, bias_step.stage());
      product_o();
      pass_turn<S>(group);
      early();
      wait<1>();
      if (S::UNIT && by_products) {
        if constexpr (MENDS) hide(to, t);
        step_products(&fresh);
      } else {
        kv.release_k();
        score(to, t);
        step_added(&fresh);
      }
      settle(s);
    } else {
      product_o();
    }
    wait<0>();
    kv.release_v();
    store_joined<T, S>(params, done, of, o, softmax);
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
