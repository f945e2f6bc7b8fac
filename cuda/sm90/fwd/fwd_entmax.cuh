// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd of alpha-entmax on Hopper, in several passes over the keys. The first pass searches for the
// thresholds of the rows. The last pass computes weights and P V. It skips the tiles in which the
// search met no score above the thresholds of that time, which are all lower bounds.
//
// alpha = 1.5: in the first pass each thread keeps the scores above the lower bound of their row,
// in a list in shared memory. When a list grows long, Newton steps over the lists raise the bounds,
// and the scores that are then below are dropped for good. The lists that are left at the end hold
// the whole support, so they alone give the threshold. Rows whose support fits no list, and any
// other alpha, take a pass for each Newton step, from the best bound so far.
//
// While the lists of a warp are short they also name the keys. Where they all are at the end, in a
// work tile of more than a few tiles of keys, they give o, too, and there is no other pass
// (kShortList in entmax.cuh).
//
// Newton's method works from below on the norm of [z - t]_+, which is convex. A step therefore
// never passes the root, except by the rounding of a bound. So no step starts from a bound that is
// far below, and thresholds beyond +-kFarThreshold are relative to the largest score of the row.
// Such a row gives up its list, and its bound becomes NaN. One pass then finds its largest score,
// and later passes subtract that from all its scores.
#ifndef TANDEM_CUDA_SM90_FWD_FWD_ENTMAX_CUH
#define TANDEM_CUDA_SM90_FWD_FWD_ENTMAX_CUH
#include <cstring>

#include "entmax.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

constexpr int kMaxPasses = 64;  // limit of passes; a dozen is already many
// What follows a pass, as bits: o from the lists of the search; o by products in a last pass, if
// any warp asks for that; another pass that moves thresholds, if any warp does.
constexpr uint kByLists = 0, kByProducts = 1, kAgain = 2;

// The producer thread. It loads the tiles of each pass from the last to the first. The tile number
// -1 ends a pass. The first tile of a pass is always visited, so it can be loaded before the
// verdict on the pass before.
template <typename S, bool FAST>
TANDEM_DEVICE void produce_entmax(const FwdOptionalParams& params,
                                  const FwdSharedStorage<S>& shared) {
  const Search<S> search(shared);
  StaticTileScheduler<S> scheduler(params);
  TmaProducer<S, FwdOptionalParams> producer(params, shared);
  SearchPasses passes;
  FwdWorkTile at;
  while (next_visible_tile(scheduler, &at)) {
    const int own_head = head_of(params.block, at), batch = batch_of(params.block, at);
    const int kv_head = own_head / params.block.group;
    const auto send = [&](int t) {
      const int stage = producer.k_pipe.stage();
      mbarrier_wait(shared.k_empty(stage), producer.k_pipe.phase() ^ 1);
      st_shared(search.tile(stage), t);
      if (t >= 0) {
        producer.k(t, kv_head, batch);
      } else {
        mbarrier_arrive(shared.k_full(stage));
        producer.k_pipe.next();
      }
    };
    const auto next_tile = [&](int t) {
      while (--t >= at.span.begin) {
        bool some = false;
#pragma unroll
        for (int warpgroup = 0; warpgroup < S::WARPGROUPS; ++warpgroup)
          some |= has_support(search.words(warpgroup, passes.phase()), t - at.span.begin);
        if (some) break;
      }
      return t;
    };
    const auto wait_verdict = [&] {
      mbarrier_wait(search.verdict(), passes.phase());
      return ld_shared_u32(search.again(passes.flag()));
    };
    const int last = at.span.end - 1;
    producer.q(at.row0, own_head, batch);
    if constexpr (FAST) {
      bool of_v = false;
      for (int t = last; t >= at.span.begin - 1; --t, of_v = !of_v) {
        const SearchStage to = search_stage(shared, of_v, producer.k_pipe, producer.v_pipe);
        mbarrier_wait(to.empty, to.phase ^ 1);
        st_shared(to.tile, t >= at.span.begin ? t : -1);
        if (t >= at.span.begin)
          tma_load_tile<S::D_PANELS>(to.keys, &params.k, to.full, S::N, t * S::N, kv_head, batch);
        else
          mbarrier_arrive(to.full);
        of_v ? producer.v_pipe.next() : producer.k_pipe.next();
      }
    } else {
      for (int t = last; t >= at.span.begin; --t) send(t);
      send(-1);
    }
    uint verdict = kAgain;
    bool known = false;
    if constexpr (FAST) {
      verdict = wait_verdict();
      known = true;
      if (verdict == kByLists) {
        passes.next();
        continue;
      }
    }
    for (;; known = false) {
      send(last);
      if (!known) verdict = wait_verdict();
      if ((verdict & kAgain) == 0) break;
      for (int t = next_tile(last); t >= at.span.begin; t = next_tile(t)) send(t);
      send(-1);
      passes.next();
    }
    int before = last;
    for (int t = next_tile(last); t >= at.span.begin; before = t, t = next_tile(t)) {
      send(t);
      producer.v(before, kv_head, batch);
    }
    send(-1);
    producer.v(before, kv_head, batch);
    passes.next();
  }
}

template <typename T, typename S, bool FAST>
TANDEM_DEVICE void main_loop_entmax(const FwdOptionalParams& params,
                                    const FwdSharedStorage<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const Search<S> search(shared);
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float z_scale = u.scale * params.extra.entmax_scale;
  const float scale = plain_scale(u) ? z_scale : 1.f;
  const uint64_t q_at = k_major(shared.q(0) + uint(warpgroup * 64 * kPanelBytes));
  const uint64_t k_at = k_major(shared.k(0)), v_at = mn_major(shared.v(0), S::K_PANEL);

  float s[N / 2];
  PipelineState<S::Q_STAGES, kCounted> q_pipe;
  KvPipeline<S> kv(shared);
  const auto product_s = [&] {
    gemm_qk<T, S>(s, advance(q_at, q_pipe.stage() * S::Q_BYTES),
                  advance(k_at, kv.k.stage() * S::K_BYTES));
  };
  // The next tile of a pass, or -1 after the last one.
  const auto next_tile = [&] {
    kv.wait_k();
    const int t = __shfl_sync(kAllLanes, ld_shared_s32(search.tile(kv.k.stage())), 0);
    if (t < 0) {
      named_barrier_sync(kWarpgroupBarrier + warpgroup,
                         128);  // all threads have read the -1
      kv.release_k();
    }
    return t;
  };

  StaticTileScheduler<S> scheduler(params);
  SearchPasses passes;
  FwdWorkTile at;
  while (next_visible_tile(scheduler, &at, [&](const FwdWorkTile& unseen) {
    store_unseen_rows<S>(u, params.push, unseen);
  })) {
    const auto score = [&](int t) {
      if (!plain_scale(u)) {
        const float factor = opaque(u.scale) * params.extra.entmax_scale;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) s[i] *= factor;
      }
      if (t < at.span.full_begin || t >= at.span.full_end)
        mask_tile<N>(s, scheduler.band(), at.row0 + accumulator_row(), t * N + accumulator_col(),
                     u.seq_kv, -INFINITY);
    };
    // Clears the support bits that the next pass sets.
    const auto clear_words = [&] {
      named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);
      if (threadIdx.x % 128 < kSupportWords)
        st_shared(search.words(warpgroup, passes.phase()) + threadIdx.x % 128 * 4, 0);
      named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);
    };
    const auto set_bit = [&](int t, bool some) {
      const int rel = t - at.span.begin;
      if (!__any_sync(kAllLanes, some || !params.features.SKIP)) return;
      if (threadIdx.x % 32 == 0 && rel < kSupportTiles)
        red_shared_or(search.words(warpgroup, passes.phase()) + uint(rel / 32 * 4),
                      1u << (rel % 32));
    };
    // Sets the bits of tile t and of those behind it, which the search has visited.
    const auto set_bits_from = [&](int t) {
      const int rel = t - at.span.begin, word = int(threadIdx.x % 32);
      if (rel < 32 * word + 32 && word < kSupportWords)
        red_shared_or(search.words(warpgroup, passes.phase()) + uint(word * 4),
                      ~0u << max(rel - 32 * word, 0));
    };
    // What the workgroup has to do next: whether the threshold of any of its rows still moves, and
    // whether o of any needs products. Each pass visits the tiles whose bits the pass before has
    // set.
    const auto verdict = [&](uint own) {
      own = __reduce_or_sync(kAllLanes, own);
      __syncwarp();  // support bits and lists of all lanes are there
      if (threadIdx.x % 32 == 0) {
        if (own != 0) red_shared_or(search.again(passes.flag()), own);
        mbarrier_arrive(search.verdict());
      }
      __syncwarp();
      mbarrier_wait(search.verdict(), passes.phase());
      const uint all = __reduce_or_sync(kAllLanes, ld_shared_u32(search.again(passes.flag())));
      if (threadIdx.x == 128) st_shared(search.again(passes.flag_before()), 0);
      return all;
    };

    // t_row: lower bounds of the thresholds, in the end the thresholds, in units of z. -inf: the
    // row sees no key. +inf: there is no such row. NaN: a pass has to find the largest score of the
    // row. They are relative to origin, which is in units of products: 0, or the largest product of
    // a far row.
    float t_row[2], origin[2] = {0.f, 0.f};
    const auto begin_threshold = [&](int r, float top) {
      const bool far = !(fabsf(top * scale) <= kFarThreshold) && top > -INFINITY;
      origin[r] = far ? top : 0.f;
      t_row[r] = far ? -1.f : top * scale - 1.f;
    };
    const auto any_origin = [&] {
      return bool(__any_sync(kAllLanes, origin[0] != 0.f || origin[1] != 0.f));
    };
    const auto take_origin = [&] {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) s[i] -= origin[i / 2 % 2];
    };
    uint outcome;
    clear_words();
    mbarrier_wait(shared.q_full(q_pipe.stage()), q_pipe.phase());
    if constexpr (FAST) {
      const float radius = 1.f / scale;
      const int tiles = at.span.end - at.span.begin;
      // 16 bits count the keys of a lane, of which a tile has N / 4.
      Candidates<S> list(search.lists(), tiles >= kTilesOfRounds && tiles <= 65536 / (N / 4));
#pragma unroll
      for (int r = 0; r < 2; ++r)
        list.bound[r] = at.row0 + accumulator_row() + 8 * r < u.seq_q ? -INFINITY : INFINITY;
      bool lost = false;   // the lists are given up: one was too long, or a row is far
      bool begun = false;  // all rows of the warp have a bound
      // done: tiles so far. due: after how many tiles the lists are shortened again. All warps
      // shorten at the same time, as they wait for each other anyway. Twice as many keys add about
      // as many candidates as the support has keys.
      int done = 0, due = 2;
      // Takes the products with the first or second half of a tile's keys.
      const auto search_half = [&](float(&x)[N / 4], int t, int half) {
        if (!plain_scale(u)) {
          const float factor = opaque(u.scale) * params.extra.entmax_scale;
#pragma unroll
          for (int i = 0; i < N / 4; ++i) x[i] *= factor;
        }
        if (t < at.span.full_begin || t >= at.span.full_end)
          mask_tile<N / 2>(x, scheduler.band(), at.row0 + accumulator_row(),
                           t * N + half * (N / 2) + accumulator_col(), u.seq_kv, -INFINITY);
        // steps: Newton steps to take. tile: the steps include these keys, whose products are in no
        // list yet. Otherwise they take the lists alone.
        int steps = 0;
        const bool was_indexed = list.indexed;
        bool tile = true, some = lost;
        if (!begun) {
          float top[2];
          find_tops<N / 2>(top, x);
#pragma unroll
          for (int r = 0; r < 2; ++r)
            if (list.bound[r] == -INFINITY)
              list.bound[r] = fabsf(top[r]) <= kFarThreshold * radius || top[r] == -INFINITY
                                  ? top[r] - radius
                                  : NAN;
          lost |= list.any_far();
          steps = 3;
          begun = !__any_sync(kAllLanes, list.bound[0] == -INFINITY || list.bound[1] == -INFINITY);
        }
        bool late = false;
        if (half == 1) {
          late = ++done >= due;
          if (late) due = done < 8 ? 2 * done : done + done * 5 / 8;
        }
#pragma unroll 1
        for (int tries = 0; !lost; ++tries) {
          if (steps > 0) {
            list.raise(steps, radius, tile, x);
            lost = list.any_far();
            if (lost) break;
            if (tries > 0) list.shorten();
            if (!tile) break;
          }
          const uint from[2] = {list.end[0], list.end[1]};
          if (list.indexed)
            list.append(x, uint((t - at.span.begin) * (N / 4) + half * (N / 8)));
          else
            list.append(x);
          const int full = list.full();
          const bool is_long = list.any_beyond(full - S::LONG);
          if (is_long && list.any_beyond(full)) {
            list.end[0] = from[0], list.end[1] = from[1];
            steps = 3;
            if (tries > 0) {
              lost = !list.indexed;  // without indices there is more room
              list.indexed = false;
            }
          } else {
            some = list.end[0] != from[0] || list.end[1] != from[1];
            if (!late && !is_long) break;
            steps = 1;
            tile = false;
          }
        }
        if (lost) list.indexed = false;
        if (was_indexed && !list.indexed)
          set_bits_from(t);
        else if (!list.indexed)
          set_bit(t, some || lost);
      };
      // While a thread takes one half of a tile's products, those with the next half of its keys
      // are in flight. Q is in registers: from shared memory, products with so few keys at a time
      // would take all of its bandwidth.
      uint q[S::D / 16][4];
      load_q<S>(q, shared.q(q_pipe.stage()) + uint(warpgroup * 64 * kPanelBytes));
      float first[N / 4], second[N / 4];
      const auto multiply = [&](float(&to)[N / 4], uint keys, int half) {
        const uint64_t k = k_major(keys + uint(half * (N / 2) * kPanelBytes));
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < S::D / 16; ++n)
          Wgmma<T, N / 2>::template rs<0>(to, q[n][0], q[n][1], q[n][2], q[n][3],
                                          advance(k, n / 4 * S::K_PANEL + n % 4 * 32), n > 0);
        wgmma_commit_group();
      };
      bool of_v = false;
      SearchStage stage;
      const auto find = [&] {
        stage = search_stage(shared, of_v, kv.k, kv.v);
        of_v ? kv.v.next() : kv.k.next();
        of_v = !of_v;
        mbarrier_wait(stage.full, stage.phase);
        return int(__reduce_or_sync(kAllLanes, ld_shared_u32(stage.tile)));
      };
      // Nothing is in flight where the loop begins again: ptxas would wait for each product.
      int t = find();
      multiply(first, stage.keys, 0);
      wgmma_wait_group<0>();
#pragma unroll 1
      while (t >= 0) {
        multiply(second, stage.keys, 1);
        search_half(first, t, 0);
        wgmma_wait_group<0>();
        if (kv.elected) mbarrier_arrive(stage.empty);
        const int next = find();
        multiply(first, stage.keys, 0);  // behind the last tile in vain
        search_half(second, t, 1);
        wgmma_wait_group<0>();
        t = next;
      }
      named_barrier_sync(kWarpgroupBarrier + warpgroup, 128);  // all threads have read the -1
      if (kv.elected) mbarrier_arrive(stage.empty);
      if (!lost) {
        list.raise(1, radius, false, first);
        const bool was_indexed = list.indexed;
        list.shorten();
        if (was_indexed && !list.indexed) set_bits_from(at.span.begin);
        list.raise(30, radius, false, first);
        lost = list.any_far();
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) t_row[r] = list.bound[r] * scale;
      if (list.indexed) {
        // Another warp may need products.
        if (lost || !params.features.SKIP) {
          set_bits_from(at.span.begin);
        } else {
#pragma unroll 1
          for (int n = 0; n < kSupportWords && 32 * n < tiles; ++n) {
            const uint bits = list.support(n);
            if (threadIdx.x % 32 == 0 && bits != 0)
              red_shared_or(search.words(warpgroup, passes.phase()) + uint(n * 4), bits);
          }
        }
      }
      outcome = verdict(lost                                            ? kAgain
                        : list.indexed && list.tiles_as_long() <= tiles ? kByLists
                                                                        : kByProducts);
      if (outcome == kByLists) {
        passes.next();
        if (kv.elected) mbarrier_arrive(shared.q_empty(q_pipe.stage()));
        q_pipe.next();
        store_lse(u, params.push, at, t_row);
        const int batch = batch_of(u, at), head = head_of(u, at);
        const int row0 = at.row0 + (read_tid_x() - 128) / 32 * 16;
        list.template store_o<T>(t_row, scale, u,
                                 reinterpret_cast<const ushort*>(params.push.v) + batch * u.v.b +
                                     head / u.group * u.v.h + int64_t(at.span.begin * N) * u.v.s,
                                 reinterpret_cast<ushort*>(params.push.o) + batch * u.o.b +
                                     head * u.o.h + int64_t(row0) * u.o.s,
                                 u.seq_q - row0);
        continue;
      }
    } else {
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
      for (int t = next_tile(); t >= 0; t = next_tile()) {
        product_s();
        wgmma_wait_group<0>();
        kv.release_k();
        score(t);
        float here[2];
        find_tops<N>(here, s);
#pragma unroll
        for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], here[r]);
        set_bit(t, true);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (at.row0 + accumulator_row() + 8 * r < u.seq_q)
          begin_threshold(r, top[r]);
        else
          t_row[r] = INFINITY;
      }
      outcome = verdict(kAgain);
    }
#pragma unroll 1
    for (int pass = 2; (outcome & kAgain) != 0; ++pass) {
      passes.next();
      clear_words();
      const bool relative = any_origin(),
                 seeks =
                     FAST && __any_sync(kAllLanes, t_row[0] != t_row[0] || t_row[1] != t_row[1]);
      float most[2] = {-INFINITY, -INFINITY};
      float f[2] = {}, g[2] = {};  // sums of y and of u
#pragma unroll 1
      for (int t = next_tile(); t >= 0; t = next_tile()) {
        product_s();
        wgmma_wait_group<0>();
        kv.release_k();
        score(t);
        if (relative) take_origin();
        if (seeks) {
          float top[2];
          find_tops<N>(top, s);
#pragma unroll
          for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], top[r]);
        }
        float here[2] = {};
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
          const int r = i / 2 % 2;
          const float x = fmaxf(fmaf(s[i], scale, -t_row[r]), 0.f);
          const float y = FAST ? x : entmax_power(params, x);
          here[r] += y;
          f[r] = fmaf(x, y, f[r]);
        }
        set_bit(t, seeks || here[0] > 0.f || here[1] > 0.f);
#pragma unroll
        for (int r = 0; r < 2; ++r) g[r] += here[r];
      }
      bool moves = false;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = quad_sum(f[r]), slope = quad_sum(g[r]);
        if (FAST && t_row[r] != t_row[r]) {
          begin_threshold(r, most[r]);
          moves = true;
          continue;
        }
        if (!(sum > 1.f)) continue;
        if (FAST && !(sum < kFarBelow * slope)) {
          t_row[r] = NAN;
          moves = true;
          continue;
        }
        const float root = FAST ? sqrtf(sum)
                           : params.features.ALPHA == 2
                               ? 1.f
                               : exp2_fast(__log2f(sum) * (1.f - params.extra.entmax_scale));
        const float step = (sum - root) / slope, moved = t_row[r] + step;
        // The error after a step is its square, relative to the size of x among the weights, which
        // is sum / slope. So smaller steps than this end the search.
        moves |= moved > t_row[r] && step > (FAST ? 1e-4f : 1e-6f) * sum / slope;
        t_row[r] = fmaxf(moved, t_row[r]);
      }
      outcome = verdict(moves && pass < kMaxPasses ? kAgain : kByProducts);
    }

    float o[S::DV / 2];
    uint p[N / 4];
#pragma unroll
    for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
    const auto product_o = [&] {
      kv.wait_v();
      gemm_pv<T, S>(o, p, advance(v_at, kv.v.stage() * S::V_BYTES));
    };
    const bool relative = any_origin();
    const auto weigh = [&](int t) {
      score(t);
      if (relative) take_origin();
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        const float from = t_row[i / 2 % 2] == -INFINITY ? INFINITY : t_row[i / 2 % 2];
        const float x = fmaf(s[i], scale, -from);
        s[i] = FAST ? x * fabsf(x) : fmaxf(x, 0.f) * entmax_power(params, x);
      }
      optimization_barrier(s);  // keeps the arithmetic before the wait that follows
    };
    const auto own = [&](int t) {
      return has_support(search.words(warpgroup, passes.phase()), t - at.span.begin);
    };
    int t = next_tile();
#pragma unroll 1
    while (t >= 0) {
      if (!own(t)) {
        kv.wait_v();
        named_barrier_sync(kWarpgroupBarrier + warpgroup,
                           128);  // no product synchronises the warps here
        kv.release_k();
        kv.release_v();
        t = next_tile();
        continue;
      }
      product_s();
      wgmma_wait_group<0>();
      kv.release_k();
      weigh(t);
      pack_tile<T, N, true>(p, s);
      t = next_tile();
#pragma unroll 1
      while (t >= 0 && own(t)) {
        product_s();
        product_o();
        wgmma_wait_group<1>();
        kv.release_k();
        weigh(t);
        wgmma_wait_group<0>();
        kv.release_v();
        pack_tile<T, N, true>(p, s);
        t = next_tile();
      }
      product_o();
      wgmma_wait_group<0>();
      kv.release_v();
    }
    passes.next();
    if (kv.elected) mbarrier_arrive(shared.q_empty(q_pipe.stage()));
    q_pipe.next();
    const float one[2] = {1.f, 1.f};
#pragma unroll
    for (int r = 0; r < 2; ++r) t_row[r] = fmaf(origin[r], scale, t_row[r]);
    store_lse(u, params.push, at, t_row);
    store_rows<T, S::DV>(o, one, params.push.o, u, at);
  }
}

template <typename T, int TILE, typename Row>
__global__ void __launch_bounds__(FwdShape<TILE>::tile.threads(), 1)
    fwd_entmax(const __grid_constant__ FwdOptionalParams params) {
  constexpr bool FAST = FastAlpha<Row>::kFast;
  using S = EntmaxShape<TILE>;
  const FwdSharedStorage<S> shared = begin_kernel<S>(
      params, [](const FwdSharedStorage<S>& storage) { Search<S>(storage).init(); });
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<S::PRODUCER>();
    if (threadIdx.x == 0) produce_entmax<S, FAST>(params, shared);
  } else {
    warpgroup_reg_alloc<S::CONSUMER>();
    main_loop_entmax<T, S, FAST>(params, shared);
  }
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return fwd_entmax<T, TILE, Row>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
