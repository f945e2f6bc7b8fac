// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on Hopper with masks, dropout and a distance bias beside everything of varlen.cuh, heads up
// to 128. Warp 0 is the TMA producer. Warps 1 to 3 produce the mask bitmap (mask_bitmap.cuh) of key
// tiles, in the order in which the KV loop visits them. They skip a tile that keeps nothing, and no
// other warp sees it. The consumer warpgroups are as in fwd.cu, but read from each stage which tile
// it has.
#include <cstring>

#include "../mask_bitmap.cuh"
#include "varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

constexpr int kMaskProducers = 96, kMaskBarrier = 8;

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
  MaskBitmapProducer<S::M, kMaskProducers, kMaskBarrier, 6> producer(
      params.features, params.extra, params.push.extra, params.push.drop_offset, u.heads_q);
  uint n = 0;
  const auto publish = [&](int t, int flags, int row0, uint index) {
    if (thread == 0) st_shared(bits.tile(n), t, flags, row0, int(index));
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(bits.full(n));
    ++n;
  };
  VarlenTileScheduler<S> places(params);
  FwdWorkTile at;
  Entry entry;
  while (places.next(&at, &entry)) {
    producer.batch = places.batch;
    producer.head = int(at.index - uint(places.batch) * uint(u.heads_q));
    producer.seq_q = entry.seq_q, producer.seq_kv = entry.seq_kv;
    bool first = true;
    for (int t = at.span.end - 1; t >= at.span.begin; --t) {
      mbarrier_wait(bits.empty(n), bits.phase(n) ^ 1);
      bool hides = false;
      if (params.features.KEEP && !producer.keep(bits.keep(n), at.row0, t * S::N, &hides)) continue;
      if (params.features.DROPOUT) producer.drop(bits.drop(n), at.row0, t * S::N);
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

// produce_varlen() for the tiles that the mask bitmap has, by all of warp 0.
template <typename S>
TANDEM_DEVICE void produce_masked(const FwdOptionalParams& params,
                                  const FwdSharedStorage<S>& shared) {
  const FwdBlock& u = params.block;
  const Features& f = params.features;
  const bool one = threadIdx.x == 0;
  const Bits<S> bits = mask_bitmap_of(shared);
  const uint raw = shared.variant_at(0);
  int raw_phase = 0;
  PipelineCounter<S::Q_STAGES> q_pipe;
  const auto copy_v = [&](const FwdKeys& keys, uint n) {
    const PipelineCounter<S::STAGES> v_pipe{n};
    const int stage = v_pipe.stage();
    const bool ends = keys.count < S::N;
    if (one) {  // one thread: a late one might wait for a phase that is over
      mbarrier_wait(shared.v_empty(stage), v_pipe.phase() ^ 1);
      tma_load_tile<S::DV_PANELS>(shared.v(stage), &params.v, ends ? raw : shared.v_full(stage),
                                  S::N, keys.row, keys.head, keys.batch);
    }
    if (ends) {
      mbarrier_wait(raw, raw_phase);
      raw_phase ^= 1;
      clear_rows<S::DV_PANELS, S::N>(shared.v(stage), keys.count);
      if (one) mbarrier_arrive(shared.v_full(stage));
    }
  };
  Entry entry{};
  FwdKeys keys{}, last{};
  for (uint n = 0;; ++n) {
    const PipelineCounter<S::STAGES> k_pipe{n};
    const int4 tile = bits.wait_tile(n);
    __syncwarp();
    if (one) mbarrier_arrive(bits.empty(n));
    if (tile.y & kFirst) {
      const int batch = int(uint(tile.w) / uint(u.heads_q)), head = tile.w - batch * u.heads_q;
      const int stage = q_pipe.stage();
      entry = find_entry(params, batch);
      if (one) {
        mbarrier_wait(shared.q_empty(stage), q_pipe.phase() ^ 1);
        const uint descriptor = tile_descriptor_at<S>(shared, q_pipe.n);
        const TandemTiles span =
            tandem_key_tiles(entry.band, tile.z, S::M, S::N, entry.seq_q, entry.seq_kv);
        st_shared(descriptor, tile.z, tile.w, span.begin, span.end);
        st_shared(descriptor + 16, span.full_begin, span.full_end, entry.seq_kv, entry.band.off);
        st_shared(descriptor + 32, entry.seq_q, is_packed(f.LENGTHS_Q) ? entry.seq_q : u.seq_q,
                  entry.first_q, head);
        st_shared(descriptor + 48, batch, 0, 0, 0);
        tma_load_tile<S::D_PANELS>(shared.q(stage), &params.q, shared.q_full(stage), S::M,
                                   entry.first_q + tile.z, head,
                                   is_packed(f.LENGTHS_Q) ? 0 : batch);
      }
      q_pipe.next();
      keys = FwdKeys{0, head / u.group, is_packed(f.LENGTHS_KV) ? 0 : batch, 0};
    }
    if (one) mbarrier_wait(shared.k_empty(k_pipe.stage()), k_pipe.phase() ^ 1);
    if (tile.y & kEnd) {
      if (one) mbarrier_arrive(shared.k_full(k_pipe.stage()));
    } else {
      keys.row = entry.first_kv + tile.x * S::N, keys.count = entry.seq_kv - tile.x * S::N;
      if (one)
        tma_load_tile<S::D_PANELS>(shared.k(k_pipe.stage()), &params.k,
                                   shared.k_full(k_pipe.stage()), S::N, keys.row, keys.head,
                                   keys.batch);
    }
    if (n > 0) copy_v(last, n - 1);
    last = keys;
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
TANDEM_DEVICE void consume_masked(const FwdOptionalParams& params,
                                  const FwdSharedStorage<S>& shared) {
  constexpr int N = S::N;
  const FwdBlock& u = params.block;
  const Features& f = params.features;
  const Bits<S> bits = mask_bitmap_of(shared);
  const int warpgroup = __shfl_sync(kAllLanes, int(threadIdx.x) / 128 - 1, 0);
  const float scale = step_scale(params);
  const uint64_t q_at = k_major(shared.q(0) + uint(warpgroup * 64 * kPanelBytes));
  const uint64_t k_at = k_major(shared.k(0)), v_at = mn_major(shared.v(0), S::K_PANEL);

  float s[N / 2], o[S::DV / 2];
  uint p[N / 4];
  PipelineCounter<S::Q_STAGES> q_pipe;
  KvPipeline<S> kv(shared);
  const auto product_s = [&] {
    gemm_qk<T, S>(s, advance(q_at, q_pipe.stage() * S::Q_BYTES),
                  advance(k_at, kv.k.stage() * S::K_BYTES));
  };
  const auto product_o = [&] {
    kv.wait_v();
    gemm_pv<T, S>(o, p, advance(v_at, kv.v.stage() * S::V_BYTES));
  };
  // Stages of the mask bitmap and steps of K have the same numbers. kv.k is one ahead of the tile
  // whose scores are computed.
  const auto next_flags = [&] {
    kv.wait_k();
    return bits.read_tile(kv.k.n).y;
  };
  const auto score = [&] {
    const uint place = kv.k.n - 1;
    const uint descriptor = tile_descriptor_at<S>(shared, q_pipe.n);
    const int4 tile = bits.read_tile(place), of = ld_shared_v4_s32(descriptor + 16);
    const int row = tile.z + accumulator_row(), column = tile.x * N + accumulator_col();
    change_scores<N>(s, params, ld_shared_v4_s32(descriptor + 32).w, row + of.w - column);
    if (f.DIST) {
      const bool powers = f.SOFTCAP || !plain_scale(u);
      add_distances<N>(s,
                       reinterpret_cast<const float*>(params.push.extra[f.AT_DIST]) +
                           int64_t(ld_shared_v4_s32(descriptor + 32).w) * params.extra.dist_window,
                       params.extra.dist_window, row + of.w - column,
                       powers ? kLog2e : 1.f / opaque(u.scale));
    }
    if (tile.x < of.x || tile.x >= of.y)
      mask_tile<N>(s, TandemBand{u.band_left, u.band_right, of.w}, row, column, of.z, -INFINITY);
    if (tile.y & kHasHidden)
      apply_mask_bitmap<N, Bits<S>::kPitch>(s, bits.keep(place), accumulator_row(), -INFINITY);
  };
  // Applies dropout to the weights, and releases the stage of the mask bitmap. It runs when no
  // product is in flight, as there are registers then.
  const auto drop = [&] {
    const uint place = kv.k.n - 1;
    if (f.DROPOUT)
      apply_mask_bitmap<N, Bits<S>::kPitch>(s, bits.drop(place), accumulator_row(), 0.f);
    __syncwarp();
    if (read_tid_x() % 32 == 0) mbarrier_arrive(bits.empty(place));
  };

  if (next_flags() & kEnd) return;
  if (S::PING_PONG && warpgroup == S::WARPGROUPS - 1) ping_pong_pass<S>(warpgroup);
  float factor[2];
  Softmax<N> softmax;
  const auto store = [&] {
    FwdWorkTile at;
    float lse[2], inverse[2];
    const uint descriptor = tile_descriptor_at<S>(shared, q_pipe.n - 1);
    read_work_tile(descriptor, &at);
    const int4 of = ld_shared_v4_s32(descriptor + 32);  // length, rows, first row, head
    const int row = at.row0 + accumulator_row();
    const float more = f.DROPOUT ? params.extra.drop_scale : 1.f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      end_row(params, of.w, softmax.origin(r), quad_sum(softmax.sum(r)), &lse[r], &inverse[r]);
      inverse[r] *= more;
      if (row + 8 * r >= of.x) lse[r] = -INFINITY;
    }
    store_lse(u, params.push, at, lse);
    store_rows<T, S::DV, true>(o, inverse,
                               reinterpret_cast<ushort*>(params.push.o) +
                                   ld_shared_v4_s32(descriptor + 48).x * u.o.b + of.w * u.o.h +
                                   int64_t(of.z) * u.o.s,
                               u, at.row0, of.y, of.x);
  };
  const auto clear = [&] {
#pragma unroll
    for (int i = 0; i < S::DV / 2; ++i) o[i] = 0.f;
  };
  clear();
  mbarrier_wait(shared.q_full(q_pipe.stage()), q_pipe.phase());
  product_s();
  wgmma_wait_group<0>();
  kv.release_k();
  score();
  softmax.step(s, scale, factor);
  drop();
  pack_tile<T, N>(p, s);
  for (;;) {
    int flags;
#pragma unroll 1
    for (;;) {
      flags = next_flags();
      if (flags & (kFirst | kEnd)) break;
      ping_pong_wait<S>(warpgroup);
      product_s();
      product_o();
      ping_pong_pass<S>(warpgroup);
      wgmma_wait_group<1>();
      kv.release_k();
      score();
      const bool rescale = softmax.step(s, scale, factor);
      optimization_barrier(s);
      wait_products(u, o);
      if (rescale) rescale_rows(o, factor);
      kv.release_v();
      drop();
      pack_tile<T, N>(p, s);
    }
    if (kv.elected) mbarrier_arrive(shared.q_empty(q_pipe.stage()));
    q_pipe.next();
    const bool more = !(flags & kEnd);
    Softmax<N> next_softmax;
    if (more) {
      mbarrier_wait(shared.q_full(q_pipe.stage()), q_pipe.phase());
      ping_pong_wait<S>(warpgroup);
      product_s();
      product_o();
      ping_pong_pass<S>(warpgroup);
      wgmma_wait_group<1>();
      kv.release_k();
      score();
      next_softmax.step(s, scale, factor);
      optimization_barrier(s);
    } else {
      product_o();
    }
    wgmma_wait_group<0>();
    kv.release_v();
    store();
    if (!more) break;
    clear();
    softmax = next_softmax;
    drop();
    pack_tile<T, N>(p, s);
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(FwdShape<ROW, FwdVariant::masked>::tile.threads(), 1)
    fwd_all(const __grid_constant__ FwdOptionalParams params) {
  using S = FwdShape<ROW, FwdVariant::masked>;
  static_assert(S::Q_STAGES == 2 && S::N == kMaskKeys, "as it is written");
  if (threadIdx.x == 0)
    mask_bitmap_of(FwdSharedStorage<S>{(shared_address(shared_memory()) + 1023u) & ~1023u})
        .init(kMaskProducers / 32, 4 * S::WARPGROUPS + 1);
  const FwdSharedStorage<S> shared = begin_kernel<S>(params);
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<S::PRODUCER>();
    if (threadIdx.x < 32)
      produce_masked<S>(params, shared);
    else
      produce_mask_bitmap<S>(params, shared);
  } else {
    warpgroup_reg_alloc<S::CONSUMER>();
    consume_masked<T, S>(params, shared);
  }
}

template <typename T, int ROW = 0>
Kernel<FwdOptionalParams> select(const char* name) {
  if constexpr (ROW < kFwdTileCount) {
    if constexpr (fwd_masked_shared_bytes(kFwdTiles[ROW]) > 0)
      if (std::strcmp(name, kFwdTiles[ROW].name) == 0) return fwd_all<T, ROW>;
    return select<T, ROW + 1>(name);
  } else {
    return nullptr;
  }
}

}  // namespace

Kernel<FwdOptionalParams> fwd_masked_kernel(tandem_dtype dtype, const char* tile) {
  if (!tile) return nullptr;
  if (dtype == TANDEM_F16) return select<Half>(tile);
  return dtype == TANDEM_BF16 ? select<Bfloat>(tile) : nullptr;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
