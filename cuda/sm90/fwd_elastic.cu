// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of elastic softmax on Hopper, with or without a distance bias. The weights need the row's lse, so each tile of rows
// walks over its keys twice: down for lse, with q in registers, and up again, S, weights and P V; S of the keys where it turns
// is kept. A warpgroup's copy of the head's distance bias lies in shared memory, with zeros around it, so that nothing is asked
// element by element; with a causal mask, minus infinity for distances below 0, so that there is no code for masks in the
// loops.
#include <cstring>

#include "fwd_elastic_apart.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

template <typename S>
TANDEM_DEVICE void produce(const FwdFullParams& params, const KeyPlaces<S>& places) {
  Tiles<S> rounds(params.block);
  FwdPlace at;
  Step<S::Q_STAGES> q;
  Step<S::STAGES> keys;
  while (rounds.next(&at, [](const FwdPlace&) {})) {
    const int head = head_of(params.block, at), batch = batch_of(params.block, at);
    const int kv_head = head / params.block.group;
    const auto copy_k = [&](int t) {
      const uint full = places.keys_full(keys.stage());
      barrier_wait(places.empty(full), keys.parity() ^ 1);
      copy_tile<S::D_PANELS>(places.keys(keys.stage()), &params.k, full, S::N, t * S::N, kv_head,
                             batch);
      keys.next();
    };
    const auto copy_v = [&](int t) {
      const uint full = places.keys_full(keys.stage());
      barrier_wait(places.empty(full), keys.parity() ^ 1);
      copy_tile<S::DV_PANELS>(places.keys(keys.stage()), &params.v, full, S::N, t * S::N, kv_head,
                              batch);
      keys.next();
    };
    const uint full = places.q_full(q.stage());
    barrier_wait(places.empty(full), q.parity() ^ 1);
    copy_tile<S::D_PANELS>(places.q(q.stage()), &params.q, full, S::M, at.row0, head, batch);
    q.next();
#pragma unroll 1
    for (int t = at.span.end - 1; t >= at.span.begin; --t) copy_k(t);
#pragma unroll 1
    for (int t = at.span.begin + 1; t < at.span.end; ++t) {
      // Back again. S of the keys where it turns is kept; V lags behind by a step: S of the next keys comes before P V of
      // the present ones.
      copy_k(t);
      copy_v(t - 1);
    }
    copy_v(at.span.end - 1);
  }
}

template <typename T, typename S>
TANDEM_DEVICE void consume(const FwdFullParams& params, const KeyPlaces<S>& places) {
  constexpr int N = S::N, PAD = S::DIST_PAD;
  static_assert(64 * (S::GROUPS - 1) <= N, "a warpgroup passes over one tile at most");
  const FwdBlock& u = params.block;
  const int group = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const auto speaks = [] { return fresh_thread() % 128 == 0; };  // for its warpgroup
  const float scale = plain_scale(u) ? u.scale * kLog2e : 1.f;
  const uint64_t q_at = along(places.q(0) + uint(group * 64 * kPanelBytes));
  const uint64_t k_at = along(places.keys(0)), v_at = across(places.keys(0), S::K_PANEL);
  const uint table = places.dist(group);

  Step<S::Q_STAGES> q;
  Step<S::STAGES> keys;
  const auto wait_keys = [&] { barrier_wait(places.keys_full(keys.stage()), keys.parity()); };
  const auto product_s = [&](float(&s)[N / 2]) {
    product_along<T, S>(s, further(q_at, q.stage() * S::Q_BYTES),
                        further(k_at, keys.stage() * S::PLACE));
  };
  const auto release = [&](uint full) {
    if (speaks()) barrier_arrive(places.empty(full));
  };
  // The place in use, and on to the next one.
  const auto take = [&] {
    const uint full = places.keys_full(keys.stage());
    keys.next();
    return full;
  };
  const auto release_keys = [&] { release(take()); };

  Tiles<S> rounds(u);
  const auto nothing = [&](const FwdPlace& p) { store_nothing<S>(u, params.push, p); };
  FwdPlace at, to;
  uint index = ~0u;  // of the head whose distance bias the table has
  if (!rounds.next(&at, nothing)) return;
  float s[N / 2];
  const auto begin_tile = [&] {
    barrier_wait(places.q_full(q.stage()), q.parity());
    wait_keys();
    product_s(s);
    wait<0>();
    release_keys();
  };
  if constexpr (S::Q_STAGES > 1) begin_tile();
  bool more = true;
#pragma unroll 1
  for (; more; at = to) {
    // Here S of the tile's first keys is there.
    if constexpr (S::Q_STAGES == 1) begin_tile();
    const float tau = __ldg(
        reinterpret_cast<const float*>(params.push.extra[params.features.AT_TAU]) + head_of(u, at));
    // Hidden keys are entries of the table, too, where no weight can come of them.
    const bool tabled = plain_scale(u) & (u.band_left == TANDEM_BAND_OPEN) &
                        (u.band_right == TANDEM_BAND_OPEN
                             ? (params.extra.dist_window == 0) & (u.seq_kv % N == 0)
                             : (u.band_right == 0) & (u.seq_q - 1 + u.band_off < u.seq_kv) &
                                   ((tau <= 0.f) | ((N % 64 == 0) & (u.band_off % 64 == 0))));
    if (at.index != index) {
      index = at.index;
      put_dist<S>(params, table, at, tabled && u.band_right == 0);
    }
    // Where the warpgroup's first row is among the keys.
    const auto first = [&] { return at.row0 + 64 * group + u.band_off; };
    uint held[S::D / 16][4];  // q, for the first walk, while the accumulators of o are free
    load_q<S>(held, places.q(q.stage()) + uint(group * 64 * kPanelBytes));
    const auto next_s = [&] {
      wait_keys();
      product_held<T, S>(s, held, further(k_at, keys.stage() * S::PLACE));
      wait<0>();
      release_keys();
    };
    // No product holds the warps together: all must have seen that the place is full before it is filled anew.
    const auto skip = [&] {
      wait_keys();
      named_sync(4 + group, 128);
      release_keys();
    };
    const auto hide = [&](int t, float as) {
      mask_tile<N>(s, rounds.band(), at.row0 + fresh_row(), t * N + fresh_col(), u.seq_kv, as);
    };
    int passed = 0;  // tiles at the end that this warpgroup does not see, others do
    float origin[2], base[2], shift[2], lse[2];
    bool relative = false;  // a row of the warp is far
    float o[S::DV / 2];
    uint p[N / 4];
    const auto end_sum = [&](const Sum<N>& sum) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int count =
            tandem_key_count(rounds.band(), at.row0 + fresh_row() + 8 * r, u.seq_q, u.seq_kv);
        const ElasticRow row(sum, r, product_unit(u), &lse[r]);
        origin[r] = row.origin, base[r] = row.sees() ? row.base : 0.f;
        shift[r] = count > 0 ? __fdiv_rn(tau, float(count)) : 0.f;
      }
      relative = __any_sync(kAllLanes, origin[0] != 0.f || origin[1] != 0.f);
#pragma unroll
      for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
    };
    // less: s is not less the origin yet, as it is where the walk turns.
    const auto weigh_plain = [&](bool less = true) {
      if (less && relative) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) s[i] -= origin[i / 2 % 2];
      }
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        s[i] = exp2_fast(fmaf(s[i], scale, -base[i / 2 % 2])) + shift[i / 2 % 2];
      settle(s);  // and not behind the wait that follows
    };
    const auto product_o = [&] {
      wait_keys();
      product_across<T, S>(o, p, further(v_at, keys.stage() * S::PLACE));
    };
    const auto step = [&](const auto& weigh) {
      wait_keys();
      product_s(s);
      const uint k = take();
      product_o();
      const uint v = take();
      wait<1>();
      release(k);
      weigh();
      // Behind a branch, as in fwd.cu. There are always keys.
      if (u.seq_kv > 0) {
        wait<0>();
      } else {
        wait<0>();
#pragma unroll
        for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
      }
      release(v);
      pack_tile<T, N, true>(p, s);
    };
    if (tabled && first() + 63 >= at.span.begin * N) {
      // The last tile that the warpgroup sees, and the last one that needs nothing from the table.
      const int last = u.band_right == 0
                           ? max(min(at.span.end - 1, (first() + 63) / N), at.span.begin)
                           : at.span.end - 1;
      const int plain_end = u.band_right == 0
                                ? min(first() - params.extra.dist_window - (N - 1), last * N)
                                : last * N;
      const auto near = [&](int t) { return t * N > plain_end; };
      const auto entry = [&](int t) {
        return table + uint(4 * (PAD + at.row0 + fresh_row() + u.band_off - (t * N + fresh_col())));
      };
      Sum<N> sum;
      // s: of the last tile, at once or behind tiles that are passed over.
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
      // Only the last tile has hidden keys, and it is done behind the loops where they must be told from others.
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
      if (last < at.span.end - 1) skip();  // K of a tile that is passed over
      passed = at.span.end - 1 - last;
    } else {
      const auto hidden = [&](int t) {
        const int row = first(), key = t * N;
        return (at.row0 + 64 * group >= u.seq_q) | (key > row + 63 + u.band_right) |
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
          const float by = fresh(u.scale) * kLog2e;
#pragma unroll
          for (int i = 0; i < N / 2; ++i) s[i] *= by;
        }
        if (near(t))
          add_dist<N>(s, table + uint(4 * (PAD + at.row0 + fresh_row() + u.band_off -
                                           (t * N + fresh_col()))));
      };
      // Most tiles are none of these, and have a loop of their own, whose code is short.
      const auto plain = [&](int t) {
        return (t >= at.span.full_begin) & (t < at.span.full_end) &
               (params.extra.dist_window == 0 ||
                first() - t * N - (N - 1) >= params.extra.dist_window) &
               plain_scale(u) & (at.row0 + 64 * group < u.seq_q);
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
      // What this warpgroup saw nothing of was not added.
      weigh(at.span.begin, hidden(at.span.begin));
      pack_tile<T, N, true>(p, s);
#pragma unroll 1
      for (int t = at.span.begin + 1; t < at.span.end; ++t)
        step([&] {
          score(t);
          weigh(t);
        });
    }
    release(places.q_full(q.stage()));
    q.next();
    more = rounds.next(&to, nothing);
    if constexpr (
        S::Q_STAGES >
        1) {  // with the next tile's first keys; of the last tile's end: with what lies there
      wait_keys();
      const uint64_t v = further(v_at, keys.stage() * S::PLACE);
      const uint v_full = take();
      if (passed) skip();  // V of it
      if (more) {
        barrier_wait(places.q_full(q.stage()), q.parity());
        wait_keys();
      }
      product_s(s);
      product_across<T, S>(o, p, v);
      wait<0>();
      if (more) release_keys();
      release(v_full);
    } else {
      product_o();
      wait<0>();
      release_keys();
      if (passed) skip();
    }
    const float one[2] = {1.f, 1.f};
    if (at.row0 + 64 * group < 0) continue;
    store_lse(u, params.push, at, lse);
    store_rows<T, S::DV>(o, one, params.push.o, u, at);
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(ElasticShape<ROW>::tile.threads(), 1)
    fwd_elastic(const __grid_constant__ FwdFullParams params) {
  using S = ElasticShape<ROW>;
  const KeyPlaces<S> places{(shared_address(shared_memory()) + 1023u) & ~1023u};
  if (threadIdx.x == 0) {
    prefetch_map(&params.q);
    prefetch_map(&params.k);
    prefetch_map(&params.v);
    places.init();
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<S::PRODUCER>();
    if (threadIdx.x == 0) {
      if constexpr (S::tile.apart)
        produce_apart<S>(params, places);
      else
        produce<S>(params, places);
    }
  } else {
    take_registers<S::CONSUMER>();
    if constexpr (S::tile.apart)
      consume_apart<T, S>(params, places);
    else
      consume<T, S>(params, places);
  }
}

template <typename T, int ROW = 0>
Kernel<FwdFullParams> select(const char* name) {
  if constexpr (ROW < kFwdTileCount) {
    if constexpr (fwd_elastic_shared_bytes(kFwdTiles[ROW]) <= kMaxShared)
      if (std::strcmp(name, kFwdTiles[ROW].name) == 0) return fwd_elastic<T, ROW>;
    return select<T, ROW + 1>(name);
  } else {
    return nullptr;
  }
}

}  // namespace

Kernel<FwdFullParams> fwd_elastic_kernel(tandem_dtype dtype, const Launch& launch) {
  if (!launch.tile.name) return nullptr;
  if (dtype == TANDEM_F16) return select<Half>(launch.tile.name);
  if (dtype == TANDEM_BF16) return select<Bfloat>(launch.tile.name);
  return nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
