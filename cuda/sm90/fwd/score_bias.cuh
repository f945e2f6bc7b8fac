// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd with a dense bias: the layout of a bias tile in shared memory, the producer thread and the
// consumer warpgroups.
#ifndef TANDEM_CUDA_SM90_FWD_SCORE_BIAS_CUH
#define TANDEM_CUDA_SM90_FWD_SCORE_BIAS_CUH
#include "../../parts/extra.cuh"
#include "../keep_mask.cuh"
#include "../tile_scheduler/fwd_varlen.cuh"
#include "epilogue.cuh"
#include "main_loop_ping_pong.cuh"
#include "shown_tiles.cuh"
#include "stream_k.cuh"

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

// Whether V of the key tile that a work tile visits first, the one before `end`, has rows behind
// the last key of its batch entry. Behind the last key of all, TMA fills in zeros.
template <typename S>
TANDEM_DEVICE bool v_ends_early(const FwdBlock& u, int end, int seq_kv) {
  return seq_kv < min(u.seq_kv, end * S::N);
}

// The producer finds each work tile while the tile before it is computed, and writes a work-tile
// descriptor, so that no consumer divides between tiles. A descriptor has the range of key tiles,
// the first row, the batch entry, the head, and how many warpgroups have rows in the tile. If none
// has, there is no further tile. ENDS: lengths cut the range of key tiles.
//
// Beside a mask with a row for each query it skips tiles of keys that the mask hides. The range of
// key tiles of a descriptor then has as many numbers as there are tiles, and each step's own number
// is in FwdSharedStorage::key_tile().
template <typename S, typename Params>
TANDEM_DEVICE void produce_bias(const Params& params, const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  StaticTileScheduler<S> scheduler(params);
  TmaProducer<S, Params> producer(params, shared);
  const auto publish = [&](const FwdWorkTile& at, int warpgroups) {
    const PipelineState<S::Q_STAGES, kCounted> q = producer.q_pipe;
    mbarrier_wait(shared.q_empty(q.stage()), q.phase() ^ 1);
    const uint descriptor = shared.bias_descriptor(q.n);
    const int batch = batch_of(u, at);
    st_shared(descriptor, at.span.begin, at.span.end, at.span.full_begin, at.span.full_end);
    st_shared(descriptor + 16, warpgroups, at.row0, batch, int(at.index) - batch * u.heads_q);
  };
  // With lengths: those of the batch entry of a tile, and the keys that its rows see. Tiles are
  // then not shared between workgroups, so the range of key tiles is the whole one. The words
  // of the entry are free: no thread reads those of four tiles before.
  const auto find_lengths = [&](FwdWorkTile* at) {
    const Entry entry = find_entry(params, batch_of(u, *at));
    if (params.features.LENGTHS_Q | params.features.LENGTHS_KV)
      at->span = tandem_key_tiles(entry.band, at->row0, S::M, S::N, entry.seq_q, entry.seq_kv);
    st_shared(shared.bias_entry(producer.q_pipe.n), entry.seq_q, entry.seq_kv, entry.band.off, 0);
  };
  // Of the tile that was published last, as no register is left for it.
  const auto ends_early = [&](int end) {
    return v_ends_early<S>(u, end, ld_shared_v4_s32(shared.bias_entry(producer.q_pipe.n - 1)).y);
  };
  const auto skip = [&] {
    mbarrier_arrive(shared.q_full(producer.q_pipe.stage()));
    producer.q_pipe.next();
  };
  const bool skips = S::KEEP && has_hidden_rows<S>(params) && params.features.SKIP;
  const auto find_shown = [&](FwdWorkTile* at) {
    const int batch = batch_of(u, *at), head = int(at->index) - batch * u.heads_q;
    ShownTiles<S>(params.extra, shared, at->row0)
        .find(packed_keep(params.features, params.extra, params.push.extra, batch, head),
              &at->span);
  };
  FwdWorkTile to;
  bool more = scheduler.next(&to);
  // The launch of dependents can be this early. A workgroup holds the registers and the shared
  // memory of its SM until it ends, so the next kernel does not begin there before.
  launch_dependent_grids();
  grid_dependency_wait();
  while (more) {
    FwdWorkTile at = to;
    const int warpgroups = scheduler.stream_k->short_tiles > 0
                               ? min(S::WARPGROUPS, (u.seq_q - at.row0 + 63) / 64)
                               : S::WARPGROUPS;
    if constexpr (S::ENDS) find_lengths(&at);
    if constexpr (S::KEEP)
      if (skips) find_shown(&at);
    publish(at, warpgroups);
    if (at.span.begin >= at.span.end) {
      // The warp that zeroes rows of V may wait for it, and then releases no further descriptor.
      if constexpr (S::ENDS) producer.last_v();
      skip();
      more = scheduler.next(&to);
      continue;
    }
    const int batch = batch_of(u, at), head = int(at.index) - batch * u.heads_q,
              kv_head = head / u.group, bias_head = head / params.extra.bias_group,
              bias_batch = params.extra.bias.b ? group_of(batch, params.extra.bias_entries) : 0;
    producer.q(at.row0, head, batch);
    int t = at.span.end - 1;
    for (int left = at.span.end - at.span.begin; left > 0; --left) {
      if constexpr (S::KEEP)
        if (has_hidden_rows<S>(params)) {
          producer.wait_k();
          st_shared(shared.key_tile(producer.k_pipe.n), t);
        }
      if constexpr (S::ENDS)
        producer.kv(t, kv_head, batch, t == at.span.end - 1 && ends_early(at.span.end));
      else
        producer.kv(t, kv_head, batch);
      // The bias comes last: with one stage, its wait is the longest.
      producer.bias(t, at.row0, bias_head, bias_batch, warpgroups);
      if (t == at.span.end - 1) more = scheduler.next(&to);
      if constexpr (S::KEEP)
        if (skips && left > 1) {
          t = ShownTiles<S>(params.extra, shared, at.row0).previous(t);
          continue;
        }
      --t;
    }
  }
  producer.last_v();
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
// into scores. ENDS: rows from `length` on are behind the end of their batch entry.
template <typename T, typename S, typename Params>
TANDEM_DEVICE void store_combined(const Params& params, uint n, const BiasWorkTile& of,
                                  float (&o)[S::DV / 2], Softmax<S::N>& softmax, float unit,
                                  int length = 0) {
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
  store_all_rows<T, S::DV, S::ENDS>(
      o, inverse, reinterpret_cast<ushort*>(params.push.o) + of.batch * u.o.b + of.head * u.o.h, u,
      of.row0, u.seq_q, length);
  float lse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    lse[r] = softmax.lse(r, l[r], unit);
    if (S::ENDS && of.row0 + accumulator_row() + 8 * r >= length) lse[r] = -INFINITY;
  }
  FwdWorkTile tile;
  tile.row0 = of.row0, tile.index = uint(of.index(u));
  store_lse(u, params.push, tile, lse);
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
  if (S::SCALED || S::F32_BIAS) return 1.f;
  return kSplitsScale<T> && scale < 1.f
             ? __int_as_float(int((uint(float_bits(scale)) & 0x7fffffu) | 0x3f800000u))
             : scale;
}

// Multiplies a warpgroup's own rows of Q in tile. factor: a power of two that changes no number of
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

// Score policy of a dense bias. The accumulators of S begin as the tile of the bias. The bias is
// divided by the scale, or by what is left of it (kSplitsScale). SCALED: the bias is not divided,
// and Q is multiplied by the scale. So a warpgroup reads its bias before its products, while others
// multiply, and not between its products and their weights.
template <typename T, typename S, typename Params>
struct BiasScore : ScorePolicy<T, S> {
  using ScorePolicy<T, S>::c;
  using Tile = TandemTiles;
  static constexpr int N = S::N;
  // Two warpgroups have registers for all of Q. Then no product reads Q from shared memory.
  static constexpr bool HOLDS_Q = S::WARPGROUPS == 2;
  static_assert(S::Q_STAGES == 2 && S::PING_PONG, "q of the next tile comes early");
  static_assert(!(HOLDS_Q && S::SCALED), "q is scaled in shared memory");
  struct Held {
    uint q[HOLDS_Q ? S::D / 16 : 1][4];
  };
  const Params& params;
  const float scale;
  uint (&q)[HOLDS_Q ? S::D / 16 : 1][4];
  PipelineState<S::BIAS_STAGES, kCounted> bias_pipe;
  // With a keep mask: the thread's words of its two rows. With a row for each query also the
  // address of its first row's words, and how many words further those of the second are.
  uint hidden[2] = {};
  const uint* keep_row = nullptr;
  int keep_second = 0;
  HiddenRows<S::KEEP ? N : 64> hidden_rows;
  // The tile whose steps are done: its number and its position.
  uint done = 0;
  BiasWorkTile done_tile{};
  int done_length = 0;  // ENDS: q_len of its batch entry
  TANDEM_DEVICE BiasScore(const Params& p, FwdConsumer<T, S>& consumer, Held& held)
      : ScorePolicy<T, S>(consumer),
        params(p),
        scale(bias_unit<T, S>(p.block.scale) * kLog2e),
        q(held.q) {
    grid_dependency_wait();
  }

  TANDEM_DEVICE void sync_warpgroup() const {
    named_barrier_sync(warpgroup_barrier<S>(c.warpgroup), 128);
  }
  // Reads the descriptor of the tile at c.q_pipe. Returns how many warpgroups have rows in it.
  TANDEM_DEVICE int read_descriptor(Tile* to) const {
    c.wait_q();
    const uint descriptor = c.shared.bias_descriptor(c.q_pipe.n);
    const int4 span = ld_shared_v4_s32(descriptor);
    to->begin = same(span.x), to->end = same(span.y);
    to->full_begin = same(span.z), to->full_end = same(span.w);
    return same(ld_shared_v4_s32(descriptor + 16).x);
  }
  // Finds the next tile in which this warpgroup has rows and they see keys. Returns whether there
  // is one. One thread releases a tile without keys for the whole warpgroup, so its warps
  // synchronise first: a warp that tested an mbarrier two phases later would wait for ever.
  TANDEM_DEVICE bool next(Tile* to) {
    int warpgroups = read_descriptor(to);
    // Votes show the compiler that all threads take the same branch.
    while (__any_sync(kAllLanes, c.warpgroup < warpgroups && to->begin >= to->end)) {
      const BiasWorkTile at = bias_work_tile(c.shared, c.q_pipe.n);
      store_unseen_rows(params.block, params.push, at.batch, at.head,
                        at.row0 + (int(threadIdx.x) / 128 - 1) * 64, 64, int(threadIdx.x) % 128,
                        128);
      sync_warpgroup();
      c.release_q();
      warpgroups = read_descriptor(to);
    }
    return bool(__any_sync(kAllLanes, c.warpgroup < warpgroups));
  }
  TANDEM_DEVICE int first_step(const Tile& at) const { return at.end - 1; }
  TANDEM_DEVICE void begin_tile(const Tile&) {
    find_keep_rows();
    take_q();
    begin_s();
    c.kv.wait_k();
  }
  TANDEM_DEVICE bool begin_step(const Tile& at, int t) {
    if (t < at.begin) return false;
    begin_s();
    c.kv.wait_k();
    return true;
  }
  // Scales Q in shared memory, or loads it to registers and scales it there.
  TANDEM_DEVICE void take_q() {
    const FwdBlock& u = params.block;
    const uint own = c.shared.q(c.q_pipe.stage()) + uint(c.warpgroup * 64 * kPanelBytes);
    if constexpr (!HOLDS_Q && kSplitsScale<T>) {
      scale_q<T, S>(S::SCALED ? T::pack(u.scale, u.scale) : scale_power(opaque(u.scale)), own);
      sync_warpgroup();
    }
    if constexpr (HOLDS_Q) {
      const uint from = own + bias_part();
#pragma unroll
      for (int n = 0; n < S::D / 16; ++n)
        ldmatrix_x4(q[n], (from ^ uint(n % 4 * 32)) + uint(n / 4 * S::Q_PANEL));
      if constexpr (kSplitsScale<T> && !S::F32_BIAS) {
        const uint power = scale_power(opaque(u.scale));
#pragma unroll
        for (int n = 0; n < S::D / 16; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) q[n][i] = T::times(q[n][i], power);
      }
    }
  }
  // Which keys of the bias tile that has arrived a mask of one row hides. This load needs no wait
  // before the stage is released: ordinary stores write the next words, and they come behind the
  // arrival. Stores by TMA, as those of the tile, may not.
  TANDEM_DEVICE void read_hidden_columns() {
    if constexpr (S::KEEP)
      if (has_hidden_columns<S>(params))
        hidden[0] = hidden[1] = ld_shared_u32(
            c.shared.hidden_columns(c.warpgroup, bias_pipe.stage()) + uint(read_tid_x()) % 4 * 4);
  }
  // A mask with a row for each query: the rows of a tile, and their keys of a step.
  TANDEM_DEVICE void find_keep_rows() {
    if constexpr (S::KEEP)
      if (has_hidden_rows<S>(params)) {
        const int64_t pitch = params.extra.keep.s;
        const BiasWorkTile at = bias_work_tile(c.shared, c.q_pipe.n);
        const int row = at.row0 + accumulator_row(), last = params.block.seq_q - 1;
        keep_row =
            packed_keep(params.features, params.extra, params.push.extra, at.batch, at.head) +
            min(row, last) * pitch;
        keep_second = (min(row + 8, last) - min(row, last)) * int(pitch);
      }
  }
  // Of the keys at c.kv.k. K or the bias of the step has arrived, and with it the tile's number.
  TANDEM_DEVICE void fetch_hidden_rows() {
    if constexpr (S::KEEP)
      if (has_hidden_rows<S>(params))
        hidden_rows.fetch(keep_row + int(ld_shared_u32(c.shared.key_tile(c.kv.k.n))) * (N / 32),
                          keep_second);
  }
  // Loads the tile of the bias to the accumulators of S.
  TANDEM_DEVICE void begin_s() {
    const uint part = bias_part();
    mbarrier_wait(c.shared.bias_full(c.warpgroup, bias_pipe.stage()), bias_pipe.phase());
    fetch_hidden_rows();
    read_hidden_columns();
    const uint from = c.shared.bias(c.warpgroup, bias_pipe.stage()) + part;
    [[maybe_unused]] const float over_scale =
        reciprocal(bias_unit<T, S>(opaque(params.block.scale)));
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      uint r[4];
      load_bias<N>(r, from, n);
      float* const to = c.s + 8 * bias_keys<N>(n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if constexpr (S::SCALED)
          T::put(to[2 * i], to[2 * i + 1], r[i]);
        else
          T::put_times(to[2 * i], to[2 * i + 1], r[i], over_scale);
    }
  }
  TANDEM_DEVICE void product_s() {
    const uint64_t k = advance(c.k_at, c.kv.k.stage() * S::K_BYTES);
    // Computed again for each product: kept across the loop, it would take registers.
    const uint64_t q_rows = advance(c.q_at, int(opaque(uint(c.q_pipe.stage()))) * S::Q_BYTES);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < S::D / 16; ++n) {
      const uint64_t keys = advance(k, n / 4 * S::K_PANEL + n % 4 * 32);
      if constexpr (HOLDS_Q)
        Wgmma<T, N>::template rs<0>(c.s, q[n][0], q[n][1], q[n][2], q[n][3], keys, 1);
      else
        Wgmma<T, N>::template ss<0, 0>(c.s, advance(q_rows, n / 4 * S::Q_PANEL + n % 4 * 32), keys,
                                       1);
    }
    wgmma_commit_group();
  }
  // Releases the stage of the bias. Products that began with the loaded bias are issued: an arrival
  // may overtake loads that no instruction has waited for.
  TANDEM_DEVICE void issued() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(c.shared.bias_empty(c.warpgroup, bias_pipe.stage()));
    bias_pipe.next();
  }
  TANDEM_DEVICE void wait_s() {
    if (HOLDS_Q && params.block.seq_kv > 0)  // inside a branch, as in wait_products()
      wgmma_wait_group<1>();
    else
      wgmma_wait_group<1>();
  }
  TANDEM_DEVICE void score(const Tile& at, int t) {
    const FwdBlock& u = params.block;
    if constexpr (S::KEEP) {
      if (has_hidden_rows<S>(params)) {
        hidden_rows.read(hidden);
        t = int(ld_shared_u32(c.shared.key_tile(c.kv.k.n - 1)));
      }
      if (__any_sync(kAllLanes, (hidden[0] | hidden[1]) != 0)) hide_keys<N>(c.s, hidden);
    }
    if (t < at.full_begin || t >= at.full_end) {
      int seq_kv = u.seq_kv, off = u.band_off;
      if constexpr (S::ENDS) {
        const int4 entry = ld_shared_v4_s32(c.shared.bias_entry(c.q_pipe.n));
        seq_kv = entry.y, off = entry.z;
      }
      mask_tile<N>(c.s, TandemBand{u.band_left, u.band_right, off},
                   bias_work_tile(c.shared, c.q_pipe.n).row0 + accumulator_row(),
                   t * N + accumulator_col(), seq_kv, -INFINITY);
    }
  }
  TANDEM_DEVICE int rows_left(const Tile&) const {
    const uint n = c.q_pipe.n;
    int rows = params.block.seq_q;
    if constexpr (S::ENDS) rows = ld_shared_v4_s32(c.shared.bias_entry(n)).x;
    return rows - bias_work_tile(c.shared, n).row0 - accumulator_row();
  }
  // Reads the position of the tile: next() skips tiles without keys, and the descriptor may be that
  // of another tile by the time o is stored.
  TANDEM_DEVICE void end_tile() {
    done = c.q_pipe.n;
    done_tile = same_work_tile(bias_work_tile(c.shared, done));
    if constexpr (S::ENDS) done_length = same(ld_shared_v4_s32(c.shared.bias_entry(done)).x);
  }
  // Of a tile that two workgroups share, each raises its own.
  TANDEM_DEVICE void raise_max(const Tile&) const {
    raise_max_logit(params.block, params.push, c.softmax, bias_unit<T, S>(params.block.scale), [&] {
      return BatchHead{done_tile.batch, done_tile.head};
    });
  }
  TANDEM_DEVICE void store(const Tile&) {
    store_combined<T, S>(params, done, done_tile, c.o, c.softmax,
                         bias_unit<T, S>(params.block.scale), done_length);
  }
  // In the last tiles this warpgroup has no rows. It releases their stages, and arrives at the next
  // warpgroup's barrier in place of its products.
  TANDEM_DEVICE void drain() {
    Tile at;
    while (__any_sync(kAllLanes, read_descriptor(&at) > 0)) {
      c.release_q();
#pragma unroll 1
      for (int t = at.begin; t < at.end; ++t) {
        if (c.kv.elected) c.kv.wait_k();
        c.kv.release_k();
        __syncwarp();
        ping_pong_wait<S>(c.warpgroup);
        ping_pong_pass<S>(c.warpgroup);
        if (c.kv.elected) c.kv.wait_v();
        c.kv.release_v();
        __syncwarp();
      }
    }
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
