// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv_dq with a dense bias and its gradient: the variant (variant_plain.cuh), and the kernel,
// whose clusters are persistent.
#ifndef TANDEM_CUDA_SM90_BWD_VARIANT_BIAS_CUH
#define TANDEM_CUDA_SM90_BWD_VARIANT_BIAS_CUH
#include "../keep_mask.cuh"
#include "../ptx/cluster.cuh"
#include "../tile_scheduler/bwd_cluster.cuh"
#include "dbias_reduce.cuh"
#include "dkv_dq.cuh"
#include "kernels/columns.h"
#include "shown_q_tiles.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// A dense bias, with a row for every query, and its gradient. The workgroups of all batch entries
// that share a bias form a cluster. They visit the same tiles side by side, and each reduces its
// share of a tile of dS over all of them, in f32 and in the order of the batch. No S x S array is
// stored. Row: of src/kernels/kernels.inc. KEEP: there is a keep mask, too. The consumer warps read
// it, each for its own 16 keys, and set the weights of hidden elements to 0. ENDS: there may be
// lengths, and no mask. F32: the bias is of f32, not of the tensors' type.
//
// Lengths. In a cluster the spans of all entries are the same, whatever their lengths. Behind the
// end of an entry the producer warp has zeros in place of Q, K, V and dO, and the weights are 0. So
// dS is 0 there, too, and the sums of d_bias and of dQ need no test.
template <typename Row>
struct BiasVariant : BwdVariant {
  static constexpr bool KEEP = (Row::inputs & tandem::kHasKeep) != 0,
                        ENDS = (Row::inputs & kHasLengths) != 0, F32 = Row::has(trait::f32_bias),
                        POSTPROCESS = Row::has(trait::postprocess),
                        TWO_CTA = Row::has(trait::two_cta), SLICES = Row::has(trait::slices),
                        kHasBias = true, kHasKeep = KEEP, kHasEnds = ENDS, kPersistent = true;
  using Bias = BiasVariant;
  using Params = BwdDkvDqBiasParams;
  static constexpr bool kAnyOrder = false;
  static constexpr int kDqWarps = 1;
  // With heads up to 96 and 64 rows the consumer warps have registers to spare for d_bias.
  template <int TILE>
  using Registers = sm90::Registers<F32 && kBwdShapes[TILE].d <= 96 ? 72 : 56>;
  static constexpr int bytes(const BwdShape& s) { return bwd_bias_stages(s) * bwd_ds_bytes(s); }
  static constexpr float kHidden = 0.f;
  static constexpr float kLse = kLog2e;  // what lse is multiplied by
  // The band of the spans of a cluster. That of a batch entry may depend on its lengths.
  static TANDEM_DEVICE TandemBand cluster_band(const Params& params) {
    return ENDS && params.bias.bottom_right ? TandemBand{TANDEM_BAND_OPEN, TANDEM_BAND_OPEN, 0}
                                            : mask_band(params.block);
  }
  template <int TILE>
  struct QTilesOfClusters : AllQTiles<TILE> {
    const Params& params;
    TANDEM_DEVICE QTilesOfClusters(const Params& params, const BwdWorkTile& work)
        : AllQTiles<TILE>(params, work), params(params) {}
    TANDEM_DEVICE uint before(const BwdDkvDqBlock& u, const BwdWorkTile& work, int, int t) const {
      if (cluster_size() == 1) return dq_order<TILE>(u, work, t);
      BwdWorkTile of_all = work;
      of_all.band = cluster_band(params), of_all.seq_q = u.seq_q, of_all.seq_kv = u.seq_kv;
      return dq_order<TILE>(u, of_all, t);
    }
  };
  template <int TILE>
  using UnmaskedQTiles = std::conditional_t<ENDS, QTilesOfClusters<TILE>, AllQTiles<TILE>>;
  template <int TILE>
  using QTiles =
      std::conditional_t<KEEP, ShownQTiles<TILE, UnmaskedQTiles<TILE>>, UnmaskedQTiles<TILE>>;
  // Takes the lengths of the batch entry of a work tile. A workgroup that is its own cluster visits
  // the query tiles of the entry alone. In a cluster the others have to be masked.
  static TANDEM_DEVICE void take_lengths(const Params& params, const BwdShape& shape,
                                         BwdWorkTile* work) {
    const BwdDkvDqBlock& u = params.block;
    const auto length = [&](uint64_t at, int longest) {
      int64_t first;
      return entry_length(at ? Lengths::padded : Lengths::full, at, work->batch, longest, 0,
                          &first);
    };
    if (!(params.bias.lengths_q | params.bias.lengths_kv)) return;
    const auto tiles = [&](const TandemBand& band) {
      return tandem_query_tiles(band, work->col0, shape.bc, shape.br, work->seq_q, work->seq_kv);
    };
    if (params.bias.bottom_right) work->span = tiles(cluster_band(params));
    work->seq_q = length(params.bias.lengths_q, u.seq_q);
    work->seq_kv = length(params.bias.lengths_kv, u.seq_kv);
    if (params.bias.bottom_right) work->band.off = work->seq_kv - work->seq_q;
    const TandemTiles own = tiles(work->band);
    if (cluster_size() == 1)
      work->span = own;
    else
      work->span.full_begin = own.full_begin, work->span.full_end = own.full_end;
  }
  // The work tile of an item and a batch entry; false if there is none. Items number the tiles of
  // keys of all heads. From params.bias.whole on, each tile has params.bias.parts items, one for
  // each part of its queries.
  static TANDEM_DEVICE bool find(const Params& params, const BwdShape& shape, uint item, uint entry,
                                 BwdWorkTile* work) {
    const uint inner = uint(params.bias.shared), whole = uint(params.bias.whole);
    const bool cut = inner > 1 && item >= whole;
    uint index = item;
    if (cut) {
      const uint parts = uint(params.bias.parts), n = index - whole;
      work->part = int(n % parts), work->parts = int(parts);
      index = whole + n / parts;
    }
    if (!find_work_tile(params.block, shape, int(inner), params.block.deterministic,
                        index * inner + entry, work))
      return false;
    if constexpr (ENDS) take_lengths(params, shape, work);
    if (cut) {
      const int tiles = work->span.end - work->span.begin, from = work->span.begin;
      work->span.begin = from + tiles * work->part / work->parts;
      work->span.end = from + tiles * (work->part + 1) / work->parts;
      work->shared = int((index - whole) * inner + entry);
    }
    return true;
  }

  // Stages for a tile of the bias, which dS of the same tile replaces: a warp writes dS where it
  // has read the bias, or with F32 where its warpgroup has. A stage is free when d_bias has been
  // reduced from it. The product of dQ reads it, too, but is done by then: before a load the
  // producer warp waits for a free stage of Q. mbarriers of a stage: full, when the bias is
  // loaded; written, when the whole cluster has written dS; read, when the whole cluster has
  // reduced d_bias.
  template <int TILE>
  struct At {
    static constexpr BwdShape kShape = kBwdShapes[TILE];
    static constexpr int kStages = bwd_bias_ds_stages(kShape), kDs = kShape.ds_stages;
    static_assert(kStages >= kShape.q_stages, "a free stage of Q says that products are done");
    static constexpr int kBytes = bwd_ds_bytes(kShape);
    uint ds, variant, first;
    TANDEM_DEVICE explicit At(const BwdSharedStorage<TILE, Bias>& memory)
        : ds(memory.ds(0)), variant(memory.variant()), first(memory.variant_barriers()) {}
    TANDEM_DEVICE uint tile(int stage) const {
      return (stage < kDs ? ds : variant - uint(kDs * kBytes)) + uint(stage * kBytes);
    }
    TANDEM_DEVICE uint full(int stage) const { return first + 8 * stage; }
    TANDEM_DEVICE uint written(int stage) const { return first + 8 * (kStages + stage); }
    TANDEM_DEVICE uint read(int stage) const { return first + 8 * (2 * kStages + stage); }
  };

  template <int TILE>
  static TANDEM_DEVICE uint tile_descriptor_at(const BwdSharedStorage<TILE, Bias>& memory) {
    return memory.variant_barriers() + 3 * At<TILE>::kStages * 8;
  }
  // The next item of the cluster, behind the work-tile descriptor: two mbarriers and a word. The
  // first workgroup of a cluster fetches the item for all.
  struct Next {
    uint at;
    template <int TILE>
    TANDEM_DEVICE explicit Next(const BwdSharedStorage<TILE, Bias>& memory)
        : at(tile_descriptor_at(memory) + kBwdDescriptorBytes) {}
    TANDEM_DEVICE uint described() const { return at; }  // the item has arrived
    // In the first workgroup: all workgroups have read the item.
    TANDEM_DEVICE uint asked() const { return at + 8; }
    TANDEM_DEVICE uint word() const { return at + 16; }
  };
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, Bias>& memory) {
    const At<TILE> at(memory);
    const Next next(memory);
    const int size = int(cluster_size());
    for (int stage = 0; stage < At<TILE>::kStages; ++stage) {
      mbarrier_init(at.full(stage), 1);
      mbarrier_init(at.written(stage), size);
      mbarrier_init(at.read(stage), 2 * size);
    }
    tile_descriptor_of(memory).init();
    if (ENDS) mbarrier_init(raw_barrier(memory), 1);
    mbarrier_init(next.described(), 1);
    mbarrier_init(next.asked(), size);
  }

  template <int TILE>
  struct Loader {
    const Params& params;
    const At<TILE> at;
    const int col0, batch;
    PipelineState<At<TILE>::kStages> pipe;
    TANDEM_DEVICE Loader(const Params& params, const BwdWorkTile& work,
                         const BwdSharedStorage<TILE, Bias>& memory)
        : params(params), at(memory), col0(work.col0), batch(work.batch), pipe(work.begun) {}
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int row0, int head) {
      constexpr BwdShape S = kBwdShapes[TILE];
      if (params.bias.d_bias) mbarrier_wait(at.read(pipe.stage()), pipe.phase() ^ 1);
      if (int(threadIdx.x) % 32 == 0) {
        mbarrier_arrive_expect_tx(at.full(pipe.stage()), At<TILE>::kBytes);
        const int entry = params.bias.shared != 1 ? 0 : batch;
        constexpr int kKeys = F32 ? 32 : 64;  // of a panel
#pragma unroll
        for (int c = 0; c < S.bc / kKeys; ++c)
          tma_load(at.tile(pipe.stage()) + c * S.br * 128, &params.bias.bias, at.full(pipe.stage()),
                   col0 + kKeys * c, row0 * params.bias.row_step, head / params.bias.group, entry);
      }
      __syncwarp();
      pipe.next();
    }
  };

  template <typename T, int TILE>
  struct Consumer : Plain::Consumer<T, TILE> {
    static constexpr int BR = kBwdShapes[TILE].br;
    const Params& params;
    const At<TILE> at;
    // Number of tiles that were begun, from which stage and phase follow.
    uint tile;
    // Whether the thread index and the offset of its words in a tile are kept. With 128 rows there
    // are no registers for them.
    static constexpr bool kKeeps = BR <= 64;
    int kept = int(threadIdx.x);
    uint offset = bias_offset(int(threadIdx.x));
    static TANDEM_DEVICE uint bias_offset(int thread) {
      const int lane = thread % 32;
      if constexpr (F32)
        return uint((thread / 128 - 1) * BR * 256 + thread / 64 % 2 * BR * 128) +
               swizzle_128b(lane % 4 * 2, thread / 32 % 2 * 4 + lane / 16) + uint(lane / 4 % 4 * 4);
      return uint((thread / 128 - 1) * BR * 128) +
             swizzle_128b(lane % 8 + lane / 16 * 8, thread / 32 % 4 * 2 + (lane / 8 & 1));
    }
    TANDEM_DEVICE int thread() const { return kKeeps ? kept : read_tid_x(); }
    TANDEM_DEVICE Consumer(const Params& params, const BwdWorkTile& work,
                           const BwdSharedStorage<TILE, Bias>& memory)
        : Plain::Consumer<T, TILE>(params, work, {memory.base}),
          params(params),
          at(memory),
          tile(work.begun) {}
    TANDEM_DEVICE int stage() const { return int((tile - 1) % At<TILE>::kStages); }
    TANDEM_DEVICE uint ds_tile() const { return at.tile(stage()); }
    // The thread's first words of the bias, loaded while S of the tile is formed.
    uint first[4];
    // F32: the words of two queries and two keys, as four accumulators of S have them. from: of the
    // first of them, in SWIZZLE_128B.
    static TANDEM_DEVICE void load_four(uint (&r)[4], uint from) {
      r[0] = ld_shared_u32(from);
      r[1] = ld_shared_u32((from ^ 16u) + 128);
      r[2] = ld_shared_u32(from ^ 32u);
      r[3] = ld_shared_u32((from ^ 48u) + 128);
    }
    TANDEM_DEVICE uint bias_words() const {
      return ds_tile() + (kKeeps ? offset : bias_offset(read_tid_x()));
    }
    TANDEM_DEVICE void begin_tile() {
      ++tile;
      mbarrier_wait(at.full(stage()), int((tile - 1) / At<TILE>::kStages % 2));
      if constexpr (F32)
        load_four(first, bias_words());
      else
        ldmatrix_x4_trans(first, bias_words());
    }
    TANDEM_DEVICE void weigh_f32(float (&s)[BR / 2], float scale2, uint lse) {
      const uint from = bias_words();
      uint r[2][4] = {{first[0], first[1], first[2], first[3]}};
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        if (j + 1 < BR / 8) load_four(r[(j + 1) % 2], from + 1024 * (j + 1));
        const float2 l = ld_shared_v2_f32(lse + 32 * j);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = s[4 * j + i];
          x = exp2_fast(
              fmaf(x, scale2, fmaf(__uint_as_float(r[j % 2][i]), kLog2e, -(i % 2 ? l.y : l.x))));
        }
      }
    }
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int, int) {
      if constexpr (F32) return weigh_f32(s, scale2, lse);
      const uint from = bias_words();
#pragma unroll
      for (int k = 0; k < BR / 16; ++k) {
        uint r[4] = {first[0], first[1], first[2], first[3]};
        if (k > 0) ldmatrix_x4_trans(r, from + 2048 * k);
        const float2 l = ld_shared_v2_f32(lse + 64 * k), m = ld_shared_v2_f32(lse + 64 * k + 32);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          float& x = s[8 * k + 2 * n];
          float& y = s[8 * k + 2 * n + 1];
          x = exp2_fast(fmaf(x, scale2, fmaf(T::low(r[n]), kLog2e, -(n < 2 ? l.x : m.x))));
          y = exp2_fast(fmaf(y, scale2, fmaf(T::high(r[n]), kLog2e, -(n < 2 ? l.y : m.y))));
        }
      }
    }
    template <typename Push>
    TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint lse, int, int,
                                 const FarTile<Push>& far) {
      const uint from = bias_words();
      uint r[4] = {first[0], first[1], first[2], first[3]};
      sm90::weigh_far<BR>(s, lse, far, [&](int j, uint zero) {
        if constexpr (F32) {
          if (j > 0) load_four(r, from + 1024 * j + zero);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            s[4 * j + i] = __fadd_rn(__fmul_rn(scale, s[4 * j + i]), __uint_as_float(r[i]));
          return;
        }
        if (j > 0 && j % 2 == 0) ldmatrix_x4_trans(r, from + 1024 * j + zero);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
          float& x = s[4 * j + n];
          float& y = s[4 * j + n + 1];
          const uint two = r[j % 2 * 2 + n / 2];
          x = __fadd_rn(__fmul_rn(scale, x), T::low(two));
          y = __fadd_rn(__fmul_rn(scale, y), T::high(two));
        }
      });
    }
    // What the mask hides. One row for all queries: of the thread's two keys, as bits 0 and 1.
    // Otherwise, of the 16 keys of the warp, in rows lane + 32 n of the tile, as 16 bits each.
    uint hidden[BR / 64];
    TANDEM_DEVICE bool has_mask_rows() const { return params.bias.keep_strides.s != 0; }
    // Of a head: the elements of the mask from the first one on.
    TANDEM_DEVICE int64_t mask_head(const BwdWorkTile& work, int head) const {
      const BwdBias& b = params.bias;
      return work.batch * b.keep_strides.b + head / b.keep_group * b.keep_strides.h;
    }
    // Reads a mask of one row, once for each head.
    TANDEM_DEVICE void read_mask_row(const BwdWorkTile& work, int head) {
      if (has_mask_rows()) return;
      const int x = read_tid_x() - 128, key = work.col0 + x / 32 * 16 + x % 32 / 4;
      const char* from = reinterpret_cast<const char*>(params.bias.keep) + mask_head(work, head) +
                         key * params.bias.keep_strides.d;
      hidden[0] = 0;
      if (ENDS && !params.bias.keep) return;
      if (key < work.seq_kv && __ldg(from) == 0) hidden[0] = 1;
      if (key + 8 < work.seq_kv && __ldg(from + 8 * params.bias.keep_strides.d) == 0)
        hidden[0] |= 2;
    }
    // Reads the rows of a query tile, while S is formed, from the bits that pack_keep has left.
    // These end with a block of 64 rows.
    TANDEM_DEVICE void read_mask_rows(const BwdWorkTile& work, int head, int t) {
      if (!has_mask_rows()) return;
      const int x = read_tid_x() - 128, row = t * BR + x % 32;
      const int64_t pitch = params.bias.keep_strides.s;  // in words
      const auto* from =
          reinterpret_cast<const ushort*>(reinterpret_cast<const uint*>(params.bias.keep) +
                                          mask_head(work, head) + row * pitch) +
          work.col0 / 16 + x / 32;
#pragma unroll
      for (int n = 0; n < BR / 64; ++n) {
        const bool exists = t * BR + 64 * n < params.block.seq_q;
        hidden[n] = exists ? ~(uint(__ldg(from + 64 * n * 2 * pitch)) |
                               uint(__ldg(from + (64 * n + 32) * 2 * pitch)) << 16)
                           : 0;
      }
    }
    TANDEM_DEVICE void hide_masked(float (&p)[BR / 2]) const {
      if (!has_mask_rows()) {
        if (!__any_sync(kAllLanes, hidden[0] != 0)) return;
#pragma unroll
        for (int i = 0; i < BR / 2; ++i)
          if (hidden[0] & (i % 4 < 2 ? 1u : 2u)) p[i] = 0.f;
        return;
      }
      const int lane = read_tid_x() % 32;
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int n = 0; n < BR / 64; ++n) {
          // Bits 0 and 8: row i / 2 of eights, the thread's two keys; 16 and 24: 32 rows further.
          const uint bits =
              __shfl_sync(kAllLanes, hidden[n], i / 2 * 8 + lane % 4 * 2 + i % 2) >> (lane / 4);
          float* const to = p + 4 * (i / 2 + 8 * n) + i % 2;
          if (bits & 1u) to[0] = 0.f;
          if (bits & 0x100u) to[2] = 0.f;
          if (bits & 0x10000u) to[16] = 0.f;
          if (bits & 0x1000000u) to[18] = 0.f;
        }
    }
    TANDEM_DEVICE void wait_ds() {
      if constexpr (F32) named_barrier_sync(kWarpgroup + thread() / 128 - 1, 128);
    }
    TANDEM_DEVICE void signal_ds() {
      const uint to = uint(thread()) - 128;
      if (params.bias.d_bias && to < cluster_size())
        mbarrier_arrive_remote(cluster_address(at.written(stage()), to));
    }
    // Sums d_k and d_v over the workgroups that share a tile of keys (gather_partials()).
    template <int N>
    TANDEM_DEVICE bool gather(const BwdWorkTile& work, uint scratch, float (&d_k)[N],
                              float (&d_v)[N]) {
      return gather_partials({params.bias.parts_at, params.bias.counts, work.parts}, work, scratch,
                             d_k, d_v);
    }
  };

  // The two auxiliary warps reduce this workgroup's share of each tile of d_bias. In a multi-pass
  // cluster a thread leaves sums in the workspace, for itself in the next pass.
  template <typename T, int TILE>
  static TANDEM_DEVICE void run_auxiliary(const Params& params, const BwdWorkTile& work,
                                          const BwdSharedStorage<TILE, Bias>&) {
    constexpr BwdShape S = kBwdShapes[TILE];
    static_assert(S.bc == 128, "16 threads a row");
    if (!params.bias.d_bias) return;
    const BwdDkvDqBlock& u = params.block;
    // Passes that follow. In slices the first pass stores zeros where nothing is visible, as later
    // ones add to what is there; otherwise the last one does.
    const int left = TWO_CTA  ? params.bias.passes - 1 - int(work.pass)
                     : SLICES ? int(work.pass)
                              : 0;
    // Number of tiles that were reduced, from which stage and phase follow.
    uint tile = work.begun;
    const int begin = work.part == 0 && left == 0 ? 0 : work.span.begin;
    const int end =
        work.part == work.parts - 1 && left == 0 ? (u.seq_q + S.br - 1) / S.br : work.span.end;
    float4* parts = nullptr;
    if (TWO_CTA)
      parts = reinterpret_cast<float4*>(params.bias.sums_at) +
              int64_t(blockIdx.x) * u.group * ((u.seq_q + S.br - 1) / S.br) * (S.br / 8 * 2 * 64) +
              (read_tid_x() - 64);
    QTiles<TILE> visited(params, work);
    for (int n = 0; n < u.group; ++n) {
      int next = visited.next(n, work.span.begin);
#pragma unroll 1
      for (int t = begin; t < end; ++t) {
        // Computed again for each tile, as late as possible: the sums need the registers.
        const At<TILE> at(
            BwdSharedStorage<TILE, Bias>{opaque_copy(shared_address(aligned_shared_memory()))});
        const int stage = int(tile % At<TILE>::kStages);
        const auto share = [&] {
          const int entry = SLICES ? work.slice : params.bias.shared != 1 ? 0 : work.batch;
          return bias_share<S.br, BwdSharedStorage<TILE, Bias>::kDsPanel>(
              params.bias, at.tile(stage), {entry, work.head_kv * u.group + n, t * S.br, work.col0},
              u.seq_q, SLICES ? params.bias.slice_pitch : u.seq_kv);
        };
        if (t < work.span.begin || t >= work.span.end || t < next) {
          if (left > 0) continue;
          if constexpr (SLICES)
            reduce_slice_rows<T, false>(share(), 0);
          else
            reduce_rows<T>(share(), 0);
          continue;
        }
        next = visited.next(n, t + 1);
        const auto await = [&] {
          mbarrier_wait(at.written(stage), int(tile / At<TILE>::kStages % 2));
        };
        if constexpr (TWO_CTA) {
          // There are at least two passes (uses_two_cta_clusters() of the planner): the first one
          // is not the last.
          if (left == params.bias.passes - 1)
            reduce_pair<T, S.br, false, false>(share, parts, await);
          else if (left > 0)
            reduce_pair<T, S.br, true, false>(share, parts, await);
          else
            reduce_pair<T, S.br, true, true>(share, parts, await);
          parts += S.br / 8 * 2 * 64;
        } else if constexpr (SLICES) {
          await();
          if (work.pass == 0)
            reduce_slice<T, S.br, false>(share(), uint(work.present));
          else
            reduce_slice<T, S.br, true>(share(), uint(work.present));
        } else {
          await();
          reduce_tile<T, S.br>(share());
        }
        __syncwarp();
        const uint lane = uint(read_tid_x()) % 32;
        if (lane < cluster_size()) mbarrier_arrive_remote(cluster_address(at.read(stage), lane));
        ++tile;
      }
    }
  }
};

// Clusters of the whole batch, or by the row's traits:
//   postprocess  the last workgroup of a head also converts the dQ accumulator to d_q. This is a
//                kernel of its own, as registers are short, and for small problems alone.
//   two_cta      two-CTA clusters beside those of the whole batch
//   slices       more batch entries than a cluster has workgroups. An item is a tile of keys and a
//                slice of the batch, which a cluster takes in several passes; each slice has sums
//                of d_bias of its own.
template <typename T, int TILE, typename Row>
__global__ void __launch_bounds__(kBwdThreads, 1)
    bwd_dkv_dq_bias(const __grid_constant__ BwdDkvDqBiasParams params) {
  using Bias = BiasVariant<Row>;
  constexpr bool POSTPROCESS = Bias::POSTPROCESS, SLICES = Bias::SLICES,
                 COPIES = !POSTPROCESS && !SLICES && !Bias::F32;
  {
    const BwdSharedStorage<TILE, Bias> memory{shared_address(aligned_shared_memory())};
    // The kernel of the two-CTA clusters, or the one after both, may start.
    launch_dependent_grids();
    if (COPIES && threadIdx.x < kZeroBytes / 16) {
      st_shared(memory.base + LazyZeroCopies::kAt<TILE> + 16 * threadIdx.x, 0.f, 0.f, 0.f, 0.f);
      fence_proxy_async_shared();
    }
    if (threadIdx.x == 0) {
      Bias::template init<TILE>(memory);
      Barriers<TILE>(memory.barriers()).init();
    }
    cluster_sync();
  }
  using Scheduler = ClusterTileScheduler<TILE, Bias>;
  if (threadIdx.x < 128) {
    warpgroup_reg_dealloc<Bias::template Registers<TILE>::kProducer>();
    const int warp = __shfl_sync(~0u, read_tid_x() / 32, 0);
    if (warp == 0)
      load_work_tiles<TILE, Bias, Scheduler>(params);
    else if (warp >= 2)
      for_each_work_tile<TILE, Bias, Scheduler, true>(
          params, [&](const BwdSharedStorage<TILE, Bias>& here, const BwdWorkTile& work) {
            Bias::template run_auxiliary<T, TILE>(params, work, here);
          });
    else
      for_each_work_tile<TILE, Bias, Scheduler, true>(
          params, [&](const BwdSharedStorage<TILE, Bias>& here, const BwdWorkTile& work) {
            accumulate_dq<COPIES, false, SLICES>(params, work, here, 0, 0);
            if constexpr (POSTPROCESS)
              signal_last(params, work, here);
            else if (read_tid_x() % 32 == 0 && !(SLICES && work.ghost))
              signal_postprocess(params, work);
          });
  } else {
    warpgroup_reg_alloc<Bias::template Registers<TILE>::kConsumer>();
    for_each_work_tile<TILE, Bias, Scheduler, false>(
        params, [&](const BwdSharedStorage<TILE, Bias>& here, const BwdWorkTile& work) {
          main_loop<T, TILE, Bias, true, true>(params, work, here);
          if constexpr (POSTPROCESS) {
            if (wait_last(here)) postprocess_dq<T, TILE, Bias>(params, work, 0);
          }
        });
  }
  // No workgroup ends while others of the cluster may still read its tiles.
  cluster_sync();
  // The kernel of the two-CTA clusters must not end before the one beside it, as the kernel after
  // both waits for this one alone. One workgroup sees to that; the SMs of the others are free for
  // bwd_dq_cast.
  if (Bias::TWO_CTA && blockIdx.x == 0) grid_dependency_wait();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
