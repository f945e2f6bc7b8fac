// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with masks, dropout and a distance bias beside everything of varlen.cuh, heads up
// to 128. Warp 0 is the TMA producer. Warps 1 to 3 produce the mask bitmap (mask_bitmap.cuh) of key
// tiles, in the order in which the KV loop visits them. They skip a tile that keeps nothing, and no
// other warp sees it. The consumer warpgroups read from each stage which tile it has.
#ifndef TANDEM_CUDA_SM90_FWD_FWD_MASKED_CUH
#define TANDEM_CUDA_SM90_FWD_FWD_MASKED_CUH
#include "../mask_bitmap.cuh"
#include "kernel.cuh"
#include "score_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

constexpr int kMaskProducers = 96;

template <typename S>
using Bits = MaskBitmapStages<S::M>;
template <typename S>
TANDEM_DEVICE Bits<S> mask_bitmap_of(const FwdSharedStorage<S>& shared) {
  const uint at = tile_descriptor_at<S>(shared, 0) + kFwdDescriptors * kFwdDescriptorBytes;
  return {at, at + kMaskStages * Bits<S>::kStageBytes};
}

// Warps 1 to 3 produce the mask bitmap. A stage describes its tile by four words: key tile, flags,
// first row, head over the batch.
template <typename S>
TANDEM_DEVICE void produce_mask_bitmap(const FwdOptionalParams& params,
                                       const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  const int thread = int(threadIdx.x) - 32;
  const Bits<S> bits = mask_bitmap_of(shared);
  MaskBitmapProducer<S::M, kMaskProducers, kMaskProducersBarrier, 6> producer(
      params.features, params.extra, params.push.extra);
  uint n = 0;
  const auto publish = [&](int t, int flags, int row0, uint index) {
    if (thread == 0) st_shared(bits.tile(n), t, flags, row0, int(index));
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(bits.full(n));
    ++n;
  };
  VarlenTileScheduler<S> scheduler(params);
  FwdVarlenTile at;
  while (scheduler.next(&at)) {
    producer.batch = at.batch;
    producer.head = int(at.index - uint(at.batch) * uint(u.heads_q));
    producer.seq_q = at.entry.seq_q, producer.seq_kv = at.entry.seq_kv;
    bool first = true;
    MaskTiles<S::N / TANDEM_MAP_BLOCK, false> tiles(
        params.features, params.extra, params.push.extra, at.batch, producer.head,
        at.row0 / TANDEM_MAP_BLOCK, (at.row0 + S::M) / TANDEM_MAP_BLOCK);
    for (int t = tiles.previous(at.span.end - 1, at.span.begin); t >= at.span.begin;
         t = tiles.previous(t - 1, at.span.begin)) {
      mbarrier_wait(bits.empty(n), bits.phase(n) ^ 1);
      bool hides = false;
      if (!producer.masks(bits.keep(n), at.row0, t * S::N, tiles.tile(t), &hides)) continue;
      publish(t, (hides ? kHasHidden : 0) | (first ? kFirst : 0), at.row0, at.index);
      first = false;
    }
    if (first)
      store_unseen<S>(params, find_entry(params, int(at.index / uint(u.heads_q))), at.index,
                      at.row0);
  }
  mbarrier_wait(bits.empty(n), bits.phase(n) ^ 1);
  publish(0, kEnd, 0, 0);
  store_unseen<S>(params);
}

// The producer warp. It takes the tiles that the mask bitmap has.
template <typename S>
TANDEM_DEVICE void produce_masked(const FwdOptionalParams& params,
                                  const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  const Bits<S> bits = mask_bitmap_of(shared);
  VarlenTmaProducer<S> producer(params, shared);
  Entry entry{};
  for (uint n = 0;; ++n) {
    const int4 tile = bits.wait_tile(n);
    __syncwarp();
    if (producer.one) mbarrier_arrive(bits.empty(n));
    if (tile.y & kFirst) {
      const int batch = int(uint(tile.w) / uint(u.heads_q)), head = tile.w - batch * u.heads_q;
      entry = find_entry(params, batch);
      producer.q(tile.z, uint(tile.w),
                 tandem_key_tiles(entry.band, tile.z, S::M, S::N, entry.seq_q, entry.seq_kv), entry,
                 batch, head);
    }
    producer.kv(tile.x, entry, tile.y & kEnd);
    if (tile.y & kEnd) return;
  }
}

// Sets elements whose bit is not set to `other`. words: of the stage; row: of the thread's first
// element.
template <int N, int PITCH>
TANDEM_DEVICE void apply_mask_bitmap(float (&s)[N / 2], uint words, int row, float other) {
  const int column = accumulator_col();
#pragma unroll
  for (int w = 0; w < N / 32; ++w)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint x = ld_shared_u32(words + uint(w * PITCH + row + 8 * r) * 4) >> column;
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& y = s[4 * (4 * w + j) + 2 * r + c];
          y = x & 1u << (8 * j + c) ? y : other;
        }
    }
}

// Adds the distance bias times factor. distance: i + off - j of the thread's first element. It
// works in pieces, most of which the window does not reach.
template <int N>
TANDEM_DEVICE void add_distances(float (&s)[N / 2], const float* dist, int window, int distance,
                                 float factor) {
  constexpr int kPiece = 16;
#pragma unroll
  for (int first = 0; first < N / 2; first += kPiece) {
    const int t0 = distance - 2 * first;
    if (!__any_sync(kAllLanes, t0 + 8 >= 0 && t0 - 2 * kPiece < window)) continue;
#pragma unroll
    for (int i = first; i < first + kPiece; ++i) {
      const int t = distance + 8 * (i / 2 % 2) - 8 * (i / 4) - i % 2;
      if (t >= 0 && t < window) s[i] = fmaf(__ldg(dist + t), factor, s[i]);
    }
  }
}

template <typename T, typename S>
struct MaskedScore : ScorePolicy<T, S> {
  using ScorePolicy<T, S>::c;
  struct Tile {};
  static constexpr int N = S::N;
  const FwdOptionalParams& params;
  const float scale;
  const Bits<S> bits;
  int flags;  // of the tile at c.kv.k
  TANDEM_DEVICE MaskedScore(const FwdOptionalParams& p, FwdConsumer<T, S>& consumer,
                            const typename ScorePolicy<T, S>::Held&)
      : ScorePolicy<T, S>(consumer),
        params(p),
        scale(step_scale(p)),
        bits(mask_bitmap_of(consumer.shared)),
        flags(next_flags()) {}

  // Stages of the mask bitmap and steps of K have the same numbers. c.kv.k is one ahead of the tile
  // whose scores are computed.
  TANDEM_DEVICE int next_flags() const {
    c.kv.wait_k();
    return bits.read_tile(c.kv.k.n).y;
  }
  TANDEM_DEVICE bool next(Tile*) const { return !(flags & kEnd); }
  TANDEM_DEVICE int first_step(const Tile&) const { return 0; }
  TANDEM_DEVICE void begin_tile(const Tile&) { c.wait_q(); }
  TANDEM_DEVICE bool begin_step(const Tile&, int) {
    flags = next_flags();
    return !(flags & (kFirst | kEnd));
  }
  TANDEM_DEVICE void score(const Tile&, int) {
    const FwdBlock& u = params.block;
    const Features& f = params.features;
    const uint n = c.kv.k.n - 1;
    const uint descriptor = tile_descriptor_at<S>(c.shared, c.q_pipe.n);
    const int4 tile = bits.read_tile(n), of = ld_shared_v4_s32(descriptor + 16);
    const int row = tile.z + accumulator_row(), column = tile.x * N + accumulator_col();
    change_scores<N>(c.s, params, ld_shared_v4_s32(descriptor + 32).w, row + of.w - column);
    if (f.DIST) {
      const bool powers = f.SOFTCAP || !plain_scale(u);
      add_distances<N>(c.s,
                       reinterpret_cast<const float*>(params.push.extra[f.AT_DIST]) +
                           int64_t(ld_shared_v4_s32(descriptor + 32).w) * params.extra.dist_window,
                       params.extra.dist_window, row + of.w - column,
                       powers ? kLog2e : 1.f / opaque(u.scale));
    }
    if (tile.x < of.x || tile.x >= of.y)
      mask_tile<N>(c.s, TandemBand{u.band_left, u.band_right, of.w}, row, column, of.z, -INFINITY);
    if (tile.y & kHasHidden)
      apply_mask_bitmap<N, Bits<S>::kPitch>(c.s, bits.keep(n), accumulator_row(), -INFINITY);
  }
  // Applies dropout to the weights, and releases the stage of the mask bitmap. It runs when no
  // product is in flight, as there are registers then.
  TANDEM_DEVICE void weighted() {
    const uint n = c.kv.k.n - 1;
    if (params.features.DROPOUT) {
      find_dropped(n);
      apply_mask_bitmap<N, Bits<S>::kPitch>(c.s, bits.drop(n), accumulator_row(), 0.f);
    }
    __syncwarp();
    if (read_tid_x() % 32 == 0) mbarrier_arrive(bits.empty(n));
  }
  // Writes what dropout keeps of the warp's 16 rows, a word a lane at each step.
  TANDEM_DEVICE void find_dropped(uint n) const {
    const int4 tile = bits.read_tile(n);
    const int lane = read_tid_x() % 32, row0 = accumulator_row() - lane / 4;
#pragma unroll 1
    for (int task = lane; task < 16 * N / 32; task += 32) {
      const int row = row0 + task / (N / 32), word = task % (N / 32);
      st_shared(
          bits.drop(n) + uint(word * Bits<S>::kPitch + row) * 4,
          drop_bits<32>(params.features, params.extra, params.push.extra, params.push.drop_offset,
                        uint(tile.w), tile.z + row, (tile.x * N + 32 * word) / 4));
    }
    __syncwarp();
  }
  TANDEM_DEVICE int rows_left(const Tile&) const {
    return varlen_rows_left(tile_descriptor_at<S>(c.shared, c.q_pipe.n));
  }
  TANDEM_DEVICE void raise_max(const Tile&) const {
    raise_varlen_max<S>(params, c.softmax, tile_descriptor_at<S>(c.shared, c.q_pipe.n));
  }
  TANDEM_DEVICE void store(const Tile&) {
    store_varlen<T, S>(params, c, tile_descriptor_at<S>(c.shared, c.q_pipe.n - 1),
                       params.features.DROPOUT ? params.extra.drop_scale : 1.f);
  }
};

struct MaskedRoles {
  static constexpr bool kDependentLaunch = false;
  template <typename S>
  static TANDEM_DEVICE void init(const FwdSharedStorage<S>& shared) {
    static_assert(S::Q_STAGES == 2 && S::N == kMaskKeys, "as it is written");
    mask_bitmap_of(shared).init(kMaskProducers / 32, 4 * S::WARPGROUPS + 1);
  }
  template <typename S>
  static TANDEM_DEVICE void produce(const FwdOptionalParams& params,
                                    const FwdSharedStorage<S>& shared) {
    if (threadIdx.x < 32)
      produce_masked<S>(params, shared);
    else
      produce_mask_bitmap<S>(params, shared);
  }
  template <typename T, typename S>
  static TANDEM_DEVICE void consume(const FwdOptionalParams& params,
                                    const FwdSharedStorage<S>& shared) {
    main_loop_ping_pong<MaskedScore<T, S>, T>(params, shared);
  }
};

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return fwd<T, TILE, Row, MaskedRoles, Params>;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
