// SPDX-License-Identifier: MIT OR Apache-2.0
// Elastic softmax with a causal mask whose diagonal goes along blocks of 64 rows and keys: more warpgroups, each of which goes
// its own way, in steps of 64 keys (fwd_apart.cuh). A warpgroup is in its first walk, which has more exponentials than products,
// while others are in their second one.
#ifndef TANDEM_CUDA_SM90_FWD_ELASTIC_APART_CUH
#define TANDEM_CUDA_SM90_FWD_ELASTIC_APART_CUH
#include "fwd_elastic.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// A place of a ring, and the parity of its phase.
template <int PLACES>
struct Ring {
  int place = 0, parity = 0;
  TANDEM_DEVICE void next(int count = 1) {
    place += count;
    while (place >= PLACES) place -= PLACES, parity ^= 1;
  }
};

// Of a block of 64 rows of a tile: its first row, and how many tiles of keys it sees.
template <typename S>
TANDEM_DEVICE int block_end(const FwdBlock& u, int row0, int end) {
  const int first = row0 + u.band_off;
  return row0 < 0 || row0 >= u.seq_q || first < 0 ? 0 : min(first / S::N + 1, end);
}

// Tiles of keys from this on have distances with an entry, or hidden keys: that on the diagonal.
template <typename S>
TANDEM_DEVICE int near_tile(const FwdFullParams& params, int row0) {
  return max(((row0 + params.block.band_off - params.extra.dist_window - (S::N - 1)) >> 6) + 1, 0);
}
// Whether the exponentials of S::KEPT tiles of keys behind the first one are kept for the second walk: if no row of the
// workgroup has them near.
template <typename S>
TANDEM_DEVICE bool keeps(const FwdFullParams& params, int row0) {
  return S::KEPT > 0 && near_tile<S>(params, row0) > S::KEPT;
}

template <typename S>
TANDEM_DEVICE void produce_apart(const FwdFullParams& params, const KeyPlaces<S>& places) {
  const FwdBlock& u = params.block;
  Tiles<S> tiles(u);
  FwdPlace at;
  Step<S::Q_STAGES> q;
  Ring<S::STAGES> keys;
  const auto tell = [&](const FwdPlace& place) {
    const uint full = places.q_full(q.stage());
    barrier_wait(places.empty(full), q.parity() ^ 1);
    put_shared(places.notice(q.n), place.row0, int(place.index), place.span.end, 0);
    copy_tile<S::D_PANELS>(places.q(q.stage()), &params.q, full, S::M, place.row0,
                           head_of(u, place), batch_of(u, place));
    q.next();
  };
  while (tiles.next(&at, tell)) {
    tell(at);
    const int kv_head = head_of(u, at) / u.group, batch = batch_of(u, at);
    const auto copy = [&](const CUtensorMap* map, int t, int panels) {
      const uint full = places.keys_full(keys.place), to = places.keys(keys.place);
      barrier_wait(places.empty(full), keys.parity ^ 1);
      barrier_expect(full, panels * S::K_PANEL);
#pragma unroll 1
      for (int p = 0; p < panels; ++p)
        copy_box(to + uint(p * S::K_PANEL), map, full, p * kPanel, t * S::N, kv_head, batch);
      keys.next();
    };
#pragma unroll 1
    for (int t = at.span.end - 1; t >= 0; --t) copy(&params.k, t, S::D_PANELS);
    const int kept = keeps<S>(params, at.row0) ? S::KEPT : 0;
    // Back again. S of the first keys is kept, or exponentials; V lags behind by a step.
#pragma unroll 1
    for (int t = 1; t < at.span.end; ++t) {
      if (t > kept) copy(&params.k, t, S::D_PANELS);
      copy(&params.v, t - 1, S::DV_PANELS);
    }
    copy(&params.v, at.span.end - 1, S::DV_PANELS);
  }
  const uint full = places.q_full(q.stage());
  barrier_wait(places.empty(full), q.parity() ^ 1);
  put_shared(places.notice(q.n), 0, int(kNoMore), 0, 0);
  barrier_arrive(full);
}

template <typename T, typename S>
TANDEM_DEVICE void consume_apart(const FwdFullParams& params, const KeyPlaces<S>& places) {
  constexpr int N = S::N, PAD = S::DIST_PAD;
  static_assert(N == 64, "blocks on the diagonal");
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const auto speaks = [] { return fresh_thread() % 128 == 0; };  // for its warpgroup
  const float scale = u.scale * kLog2e;
  const uint64_t q_at = along(places.q(0));
  const uint64_t k_at = along(places.keys(0)), v_at = across(places.keys(0), S::K_PANEL);
  const uint table = places.dist(group);
  Step<S::Q_STAGES> q;
  Ring<S::STAGES> keys;
  const auto wait_keys = [&] { barrier_wait(places.keys_full(keys.place), keys.parity); };
  const auto release = [&](uint full) {
    if (speaks()) barrier_arrive(places.empty(full));
  };
  // The place in use, and on to the next one.
  const auto take = [&] {
    const uint full = places.keys_full(keys.place);
    keys.next();
    return full;
  };
  const auto release_q = [&] {
    release(places.q_full(q.stage()));
    q.next();
  };
  // Lets go of the next places. One warp does, its lanes together, then all go on: a warp, or a lane, that lags behind would
  // wait for a phase of a barrier that is long over.
  const auto pass = [&](int count) {
    if (count <= 0) return;
    if (fresh_thread() % 128 < 32) {
      Ring<S::STAGES> next = keys;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const uint full = places.keys_full(next.place);
        barrier_wait(full, next.parity);
        __syncwarp();
        release(full);
        next.next();
      }
    }
    keys.next(count);
    named_sync(4 + group, 128);
  };

  uint index = ~0u;  // of the head whose distance bias the table has
#pragma unroll 1
  for (;;) {
    barrier_wait(places.q_full(q.stage()), q.parity());
    const int4 all = shared_ints(places.notice(q.n));
    if (uint(all.y) == kNoMore) return;
    // Every other tile has the warpgroups in the opposite order, so that all have the same work.
    const int block = q.n % 2 == 0 ? group : S::GROUPS - 1 - group, row0 = all.x + 64 * block;
    FwdPlace at;  // rows as the functions of fwd.cuh count them, from that of warpgroup 0
    at.row0 = row0 - 64 * group, at.index = uint(all.y);
    const int end = block_end<S>(u, row0, all.z), unseen = all.z - end;
    const uint64_t q_own = further(q_at, q.stage() * S::Q_BYTES + block * 64 * kPanelBytes);
    if (end == 0) {
      pass(max(3 * unseen - 1, 0));
      named_sync(4 + group, 128);
      release_q();
      ushort* to = reinterpret_cast<ushort*>(params.push.o) + batch_of(u, at) * u.o.b +
                   head_of(u, at) * u.o.h;
      float* lse = reinterpret_cast<float*>(params.push.lse) + int64_t(at.index) * u.seq_q;
#pragma unroll 1
      for (int n = int(threadIdx.x) % 128; n < 64 * u.head_dim_v; n += 128) {
        const int i = row0 + n / u.head_dim_v, d = n % u.head_dim_v;
        if (uint(i) >= uint(u.seq_q)) continue;
        to[i * u.o.s + d * u.o.d] = 0;
        if (params.push.lse && d == 0) lse[i] = -INFINITY;
      }
      continue;
    }
    if (at.index != index) {
      index = at.index;
      put_dist<S>(params, table, at, true);
    }
    const float tau = __ldg(
        reinterpret_cast<const float*>(params.push.extra[params.features.AT_TAU]) + head_of(u, at));
    pass(unseen);
    constexpr int KEPT = S::KEPT, ROOM = KEPT > 0 ? KEPT : 1;
    const int near = near_tile<S>(params, row0), first = keeps<S>(params, all.x) ? KEPT : 0;
    const auto entry = [&](int t) {
      return table + uint(4 * (PAD + at.row0 + fresh_row() + u.band_off - (t * N + fresh_col())));
    };
    float s[N / 2];
    Sum<N> sum;
    uint kept[ROOM][N / 4];  // of tile n + 1; the first of a row says whether it was far
    constexpr uint kFarBit = 1u << 31;
    float kept_m[ROOM][2];  // their base
    // Not before they are needed: what is not defined on all ways counts as used from the beginning.
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
      load_q<S>(held, places.q(q.stage()) + uint(block * 64 * kPanelBytes));
      const auto next_s = [&] {
        wait_keys();
        product_held<T, S>(s, held, further(k_at, keys.place * S::PLACE));
        wait<0>();
        release(take());
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
          wait_keys();
          product_held<T, S>(to, held, further(k_at, keys.place * S::PLACE));
          const uint full = take();
          sum.add(from, scale);
          settle(sum.l);
          if (u.seq_kv > 0) {
            wait<0>();
          } else {
            wait<0>();
            clear(to);
          }
          release(full);
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
              kept[0][r] |= uint(word_of(sum.l[r])) & kFarBit;
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
      const int count = row0 + fresh_row() - 64 * group + 8 * r + u.band_off + 1;
      shift[r] = count > 0 ? __fdiv_rn(tau, float(count)) : 0.f;
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
    // Of the tile on the diagonal.
    const auto hide = [&] {
      if (tau > 0.f)
        mask_tile<N>(s, TandemBand{TANDEM_BAND_OPEN, 0, 0}, fresh_row() - 64 * group, fresh_col(),
                     N, 0.f);
    };
    int t = 1;
    float o[S::DV / 2];
    uint p[N / 4];
    const auto product_o = [&] {
      wait_keys();
      product_across<T, S>(o, p, further(v_at, keys.place * S::PLACE));
    };
    // Behind a branch, as in fwd.cu. There are always keys.
    const auto wait_o = [&] {
      if (u.seq_kv > 0) {
        wait<0>();
      } else {
        wait<0>();
        clear(o);
      }
    };
    const auto step = [&](const auto& change) {
      wait_keys();
      product_along<T, S>(s, q_own, further(k_at, keys.place * S::PLACE));
      const uint k = take();
      product_o();
      const uint v = take();
      wait<1>();
      release(k);
      change();
      settle(s);
      wait_o();
      release(v);
      pack_tile<T, N, true>(p, s);
    };
    weigh_less();  // as sum.add() left them
    if (end == 1) hide();
    pack_tile<T, N, true>(p, s);
    clear(o);
    if (first > 0) {
#pragma unroll
      for (int n = 0; n < KEPT; ++n) {
        product_o();
        const uint v = take();
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          // Relative to what the row's origin was then.
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
          kept[n][i] = fresh(T::pack_positive(fmaf(Half::low(kept[n][i]), factor[r], shift[r]),
                                              fmaf(Half::high(kept[n][i]), factor[r], shift[r])));
        }
        wait_o();
        release(v);
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
    release_q();
    if (unseen > 0) pass(1);  // K of the next tile
    product_o();
    wait<0>();
    release(take());
    pass(2 * unseen - 1);
    const float one[2] = {1.f, 1.f};
    store_lse(u, params.push, at, lse);
    store_rows<T, S::DV>(o, one, params.push.o, u, at);
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
