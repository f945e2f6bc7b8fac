// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of softmax alone, heads over 128: there is room for q of one tile. What counts is the way from one tile to the next: each
// warpgroup has a half of that place to itself, and it is filled again as soon as its last scores are there; o is stored
// while the first keys of the next tile are multiplied. The copying thread finds the tiles and leaves a notice of each,
// which comes with its first keys. A warpgroup begins with the last keys that its own 64 rows see.
#ifndef TANDEM_CUDA_SM90_FWD_WIDE_CUH
#define TANDEM_CUDA_SM90_FWD_WIDE_CUH
#include "fwd_apart.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Notices as in fwd_apart.cuh, but that a warpgroup walks to the tile's beginning, and passes over one step at most, which is what 64
// rows more or less see: of more it would wait for keys behind values that it has yet to let go of. Where they take turns, and
// where one has no rows or sees nothing, it has all steps. Whoever reads one holds keys of its tile, so the copying thread is at
// most STAGES tiles further.
template <typename S, typename Params>
TANDEM_DEVICE void produce_wide(const Params& params, const Shared<S>& shared) {
  static_assert(S::STAGES < kApartNotices, "how long a notice stays");
  const FwdBlock& u = params.block;
  Rounds<S> rounds(u);
  Copier<S, Params> copy(params, shared);
  uint told = 0;
  // v lags behind k by a step: S of the next keys comes before P V of the present ones.
  int t = -1, v_head = 0, v_batch = 0;
  FwdPlace to;
  const auto find = [&] { return rounds.next(&to, [](const FwdPlace&) {}); };
  // Whether q of the next tile is to be asked for ahead: where all workgroups want theirs at the same time. With a mask it cost 4 %
  // in tiles of up to 13 steps, and gained up to 2.5 in longer ones. (H100 80GB HBM3, 580.159.04, D 192 and 256.)
  const auto is_long = [&](const FwdPlace& place) {
    return (u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN) ||
           place.span.end - place.span.begin > 16;
  };
  for (bool more = find(); more;) {
    const FwdPlace at = to;
    const int batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q;
    const int kv_head = head / u.group;
    copy.wait_k();
    const uint notice = apart_notice<S>(shared, told);
    put_shared(notice, at.row0, int(at.index), at.span.begin, at.span.end);
    put_shared(notice + 16, batch, head, 0, 0);
#pragma unroll 1
    for (int n = 0; n < S::GROUPS; ++n) {
      TandemTiles own =
          tandem_key_tiles(rounds.band(), at.row0 + 64 * n, 64, S::N, u.seq_q, u.seq_kv);
      if (S::TURNS || own.begin >= own.end) own = at.span;
      put_shared(notice + 32 + 16 * n, at.span.begin, max(own.end, at.span.end - 1), own.full_begin,
                 own.full_end);
    }
    int ahead = S::GROUPS * S::D_PANELS;  // boxes of the next tile's q: all have been asked for
    for (int next = at.span.end - 1; next >= at.span.begin; --next) {
      copy.k(next, kv_head, batch);
      if (t >= 0) copy.v(t, v_head, v_batch);
      t = next, v_head = kv_head, v_batch = batch;
      if (next == at.span.end - 1) {  // behind whatever the tile before has still to get
#pragma unroll 1
        for (int n = 0; n < S::GROUPS; ++n) {
          barrier_wait(shared.q_empty(n), int(told % 2) ^ 1);
          copy_rows<S::D_PANELS>(shared.q(0) + uint(64 * n * kPanelBytes), &params.q,
                                 shared.q_full(n), 64, S::M, at.row0 + 64 * n, head, batch);
        }
        ++told;
        more = find();
        if (more && is_long(at)) ahead = 0;
      } else if (ahead < S::GROUPS * S::D_PANELS) {
        // q of the next tile, which all workgroups want at the same time, on its way to the second-level cache: little by
        // little, as keys wait behind it.
        const int next_batch = batch_of(u, to), next_head = int(to.index) - next_batch * u.heads_q;
        prefetch_box(&params.q, ahead / S::GROUPS * kPanel, to.row0 + ahead % S::GROUPS * 64,
                     next_head, next_batch);
        ++ahead;
      }
    }
  }
  if (t >= 0) copy.v(t, v_head, v_batch);
  copy.wait_k();
  put_shared(apart_notice<S>(shared, told), 0, int(kNoMore), 0, 0);
  barrier_arrive(shared.k_full(copy.k_step.stage()));
}

// Warps 1 to 3: o and lse of tiles whose rows see no key.
template <typename S, typename Params>
TANDEM_DEVICE void store_empty(const Params& params) {
  const FwdBlock& u = params.block;
  if (u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN) return;
  if constexpr (S::BIAS) wait_kernel_before();  // else all have waited
  Rounds<S> rounds(params);
  FwdPlace at;
  while (rounds.next(&at, [&](const FwdPlace& nothing) {
    store_nothing<S>(u, params.push, nothing, int(threadIdx.x) - 32, 96);
  })) {
  }
}

template <typename T, typename S, typename Params>
TANDEM_DEVICE void consume_wide(const Params& params, const Shared<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  const uint64_t q_at = along(shared.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(shared.k(0)), v_at = across(shared.v(0), S::K_PANEL);
  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  uint tile = 0;
  KvPlaces<S> kv(shared);

  const auto all_of = [&](uint n) { return shared_ints(apart_notice<S>(shared, n)); };
  const auto own_of = [&](uint n) {
    return shared_ints(apart_notice<S>(shared, n) + 32 + 16 * group);
  };
  const auto wait_q = [&] { barrier_wait(shared.q_full(group), int(tile % 2)); };
  const auto product_s = [&] {
    product_along<T, S>(s, q_at, further(k_at, kv.k.stage() * S::K_BYTES));
  };
  const auto product_o = [&] {
    kv.wait_v();
    product_across<T, S>(o, p, further(v_at, kv.v.stage() * S::V_BYTES));
  };
  const auto release_q = [&](bool last) {
    if (kv.speaks && last) barrier_arrive(shared.q_empty(group));
  };
  // Lets go of the next `count` keys or values, when all of the warpgroup have seen that they are there: a warp that lags behind
  // would wait for a phase of a barrier that is long over.
  const auto together = [&] { named_sync(1 + S::GROUPS + group, 128); };
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
      const float first = fresh(u.scale) * kLog2e;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] *= first;
    }
    if (t < full_begin || t >= full_end)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, u.band_off},
                   all_of(tile).x + fresh_row(), t * N + fresh_col(), u.seq_kv, -INFINITY);
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
    const int4 all = all_of(n), where = shared_ints(apart_notice<S>(shared, n) + 16);
    FwdPlace at;
    at.row0 = all.x, at.index = uint(all.y);
    store_lse(u, params.push, at, lse);
    store_all_rows<T, S::DV>(
        o, inverse, reinterpret_cast<ushort*>(params.push.o) + where.x * u.o.b + where.y * u.o.h, u,
        at.row0, u.seq_q);
  };

  kv.wait_k();
  int4 all = all_of(tile), own = own_of(tile);
  if (uint(all.y) == kNoMore) return;
  if (S::TURNS && group == S::GROUPS - 1) pass_turn<S>(group);
  pass_k(all.w - own.y);
  wait_q();
  kv.wait_k();
  product_s();
  wait<0>();
  for (;;) {
    // The scores of the tile's first keys are there.
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
      wait_turn<S>(group);
      product_s();
      product_o();
      pass_turn<S>(group);
      wait<1>();
      kv.release_k();
      release_q(t == own.x);
      score(t, own.z, own.w);
      const bool rescale = softmax.step(s, scale, factor);
      settle(s);
      wait_products(u, o);
      if (rescale) rescale_rows(o, factor);
      kv.release_v();
      pack_tile<T, N>(p, s);
    }
    kv.wait_k();
    ++tile;
    all = all_of(tile), own = own_of(tile);
    if (uint(all.y) == kNoMore) break;
    pass_k(all.w - own.y);
    wait_turn<S>(group);
    product_o();
    wait_q();
    kv.wait_k();
    product_s();
    pass_turn<S>(group);
    wait<1>();
    kv.release_v();
    store(tile - 1);
    wait<0>();
  }
  product_o();
  wait<0>();
  store(tile - 1);
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
