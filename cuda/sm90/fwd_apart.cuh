// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with more warpgroups, four for heads up to 64 and three up to 128, each of which goes its own way: latency limits, and
// what hides it is warps. Steps of 64 keys keep a warpgroup's numbers in 112 and 160 registers. It multiplies what its own
// 64 rows see, and lets go of the other keys of the tile; every other tile has the warpgroups in the opposite order, so
// that a mask gives all the same work. The copying thread finds the tiles, and leaves a notice of each.
#ifndef TANDEM_CUDA_SM90_FWD_APART_CUH
#define TANDEM_CUDA_SM90_FWD_APART_CUH
#include "fwd_sets.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// A notice: {first row, head over the batch or kNoMore, keys [begin, end)}, {batch entry, head}, and of each 64 rows
// {begin, end, full_begin, full_end}. A place is written again when everybody is two tiles further.
template <typename S>
TANDEM_DEVICE uint apart_notice(const Shared<S>& shared, uint n) {
  static_assert(S::Q_STAGES <= 2, "how long it stays");
  static_assert(S::WIDE || S::STAGES > S::GROUPS,
                "whoever waits for a notice holds this many places");
  return shared.behind(0) + n % kApartNotices * S::NOTICE_BYTES;
}

// Without a mask all take every step, and turns: rows behind the last one, too, where they are few.
template <typename S>
TANDEM_DEVICE bool takes_all(const FwdBlock& u) {
  return S::TURNS && u.band_left == TANDEM_BAND_OPEN && u.band_right == TANDEM_BAND_OPEN &&
         (S::M - 1 - (u.seq_q - 1) % S::M) * 16 <= u.seq_q;
}

template <typename S, typename Params>
TANDEM_DEVICE void produce_apart(const Params& params, const Shared<S>& shared) {
  const FwdBlock& u = params.block;
  Rounds<S> rounds(u);
  Copier<S, Params> copy(params, shared);
  int batch = 0, head = 0;
  uint told = 0;
  const auto wait_place = [&] {
    barrier_wait(shared.q_empty(copy.q_step.stage()), copy.q_step.parity() ^ 1);
  };
  const auto tell = [&](const FwdPlace& at) {
    batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q;
    wait_place();
    const uint notice = apart_notice<S>(shared, told++);
    put_shared(notice, at.row0, int(at.index), at.span.begin, at.span.end);
    put_shared(notice + 16, batch, head, 0, 0);
#pragma unroll 1
    for (int n = 0; n < S::GROUPS; ++n) {
      const TandemTiles own = takes_all<S>(u) ? at.span
                                              : tandem_key_tiles(rounds.band(), at.row0 + 64 * n,
                                                                 64, S::N, u.seq_q, u.seq_kv);
      put_shared(notice + 32 + 16 * n, own.begin, own.end, own.full_begin, own.full_end);
    }
    copy.q(at.row0, head, batch);
  };
  // v lags behind k by a step: S of the next keys comes before P V of the present ones.
  int t = -1, v_head = 0, v_batch = 0;
  const auto last_v = [&] {
    if (t >= 0) copy.v(t, v_head, v_batch);
    t = -1;
  };
  FwdPlace at;
  while (rounds.next(&at, [&](const FwdPlace& nothing) {
    last_v();  // whoever waits for it does not let go of q
    tell(nothing);
  })) {
    tell(at);
    const int kv_head = head / u.group;
    for (int next = at.span.end - 1; next >= at.span.begin; --next) {
      copy.k(next, kv_head, batch);
      if (t >= 0) copy.v(t, v_head, v_batch);
      t = next, v_head = kv_head, v_batch = batch;
    }
  }
  last_v();
  wait_place();
  put_shared(apart_notice<S>(shared, told), 0, int(kNoMore), 0, 0);
  barrier_arrive(shared.q_full(copy.q_step.stage()));
}

template <typename T, typename S, typename Params>
TANDEM_DEVICE void consume_apart(const Params& params, const Shared<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  const uint64_t q_at = along(shared.q(0)), k_at = along(shared.k(0)),
                 v_at = across(shared.v(0), S::K_PANEL);
  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  Step<S::Q_STAGES> q_step;  // its n: of the tile
  KvPlaces<S> kv(shared);

  // Of tile n: the warpgroup's block of 64 rows, the keys that it sees, the thread's first row.
  const auto block_of = [&](uint n) { return n % 2 == 0 ? group : S::GROUPS - 1 - group; };
  const auto all_of = [&](uint n) { return shared_ints(apart_notice<S>(shared, n)); };
  const auto own_of = [&](uint n) {
    return shared_ints(apart_notice<S>(shared, n) + 32 + 16 * block_of(n));
  };
  // Rows as the functions of fwd.cuh count them, from that of warpgroup 0.
  const auto row0_of = [&](uint n) { return all_of(n).x + 64 * (block_of(n) - group); };

  const bool turns = takes_all<S>(u);
  const auto start_turn = [&] {
    if (turns) wait_turn<S>(group);
  };
  const auto end_turn = [&] {
    if (turns) pass_turn<S>(group);
  };
  const auto wait_q = [&] { barrier_wait(shared.q_full(q_step.stage()), q_step.parity()); };
  const auto product_s = [&] {
    product_along<T, S>(
        s, further(q_at, q_step.stage() * S::Q_BYTES + block_of(q_step.n) * 64 * kPanelBytes),
        further(k_at, kv.k.stage() * S::K_BYTES));
  };
  const auto product_o = [&] {
    kv.wait_v();
    product_across<T, S>(o, p, further(v_at, kv.v.stage() * S::V_BYTES));
  };
  const auto release_q = [&] {
    if (kv.speaks) barrier_arrive(shared.q_empty(q_step.stage()));
    q_step.next();
  };
  // Lets go of the next `count` keys, values or both. One warp does, its lanes together, then all go on: a warp, or a lane, that
  // lags behind would wait for a phase of a barrier that is long over.
  const auto pass = [&](int count, bool keys, bool values) {
    if (count <= 0) return;
    const int thread = int(threadIdx.x) % 128;
    if (thread < 32) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        if (keys) {
          const Step<S::STAGES> k{kv.k.n + i};
          barrier_wait(shared.k_full(k.stage()), k.parity());
          __syncwarp();
          if (thread == 0) barrier_arrive(shared.k_empty(k.stage()));
        }
        if (values) {
          const Step<S::STAGES> v{kv.v.n + i};
          barrier_wait(shared.v_full(v.stage()), v.parity());
          __syncwarp();
          if (thread == 0) barrier_arrive(shared.v_empty(v.stage()));
        }
      }
    }
    if (keys) kv.k.n += count;
    if (values) kv.v.n += count;
    named_sync(1 + S::GROUPS + group, 128);
  };

  const auto score = [&](int t, int full_begin, int full_end) {
    if (!plain_scale(u)) {
      const float first = fresh(u.scale) * kLog2e;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] *= first;
    }
    if (t < full_begin || t >= full_end)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, u.band_off},
                   row0_of(q_step.n) + fresh_row(), t * N + fresh_col(), u.seq_kv, -INFINITY);
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
    const int4 where = shared_ints(apart_notice<S>(shared, n) + 16);
    FwdPlace at;
    at.row0 = row0_of(n), at.index = uint(all_of(n).y);
    store_lse(u, params.push, at, lse);
    store_all_rows<T, S::DV>(
        o, inverse, reinterpret_cast<ushort*>(params.push.o) + where.x * u.o.b + where.y * u.o.h, u,
        at.row0, u.seq_q);
  };
  // o and lse of 64 rows that see nothing.
  const auto store_unseen = [&](uint n) {
    const int4 where = shared_ints(apart_notice<S>(shared, n) + 16);
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
  if (group == S::GROUPS - 1) end_turn();
  for (;;) {  // tiles up to one of which it sees nothing
    wait_q();
    int4 all = all_of(q_step.n), own = own_of(q_step.n);
    if (uint(all.y) == kNoMore) return;
    if (own.x >= own.y) {
      store_unseen(q_step.n);
      pass(all.w - all.z, true, true);
      named_sync(1 + S::GROUPS + group, 128);
      release_q();
      continue;
    }
    softmax = Softmax<N>();
    clear(o);
    pass(all.w - own.y, true, false);
    kv.wait_k();
    product_s();
    wait<0>();
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
        wait<1>();
        kv.release_k();
        score(t, own.z, own.w);
        const bool rescale = softmax.step(s, scale, factor);
        settle(s);
        wait_products(u, o);
        if (rescale) rescale_rows(o, factor);
        kv.release_v();
        pack_tile<T, N>(p, s);
      }
      // The first keys of the next tile with the last ones of this. unseen: keys between them. While it holds V of the last
      // ones it may not wait for more keys than there are places.
      int unseen = own.x - all_of(q_step.n).z;
      release_q();
      wait_q();
      all = all_of(q_step.n), own = own_of(q_step.n);
      const bool more = uint(all.y) != kNoMore && own.x < own.y &&
                        (S::STAGES >= 6 || unseen + all.w - own.y <= S::STAGES);
      Softmax<N> fresh;
      if (more) {
        unseen += all.w - own.y;
        pass(unseen, true, false);
        kv.wait_k();
        start_turn();
        product_s();
        product_o();
        end_turn();
        wait<1>();
        kv.release_k();
        score(own.y - 1, own.z, own.w);
        fresh.step(s, scale, factor);
        settle(s);
      } else {
        product_o();
      }
      wait<0>();
      kv.release_v();
      store(q_step.n - 1);
      if (!more) {
        pass(unseen, true, true);
        break;
      }
      pass(unseen, false, true);
      clear(o);
      softmax = fresh;
      pack_tile<T, N>(p, s);
    }
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
