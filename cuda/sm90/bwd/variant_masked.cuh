// SPDX-License-Identifier: MIT OR Apache-2.0
// Variant of bwd_dkv_dq with masks, dropout and a distance bias beside the inputs of
// variant_varlen.cuh. The two auxiliary warps that the other variants leave idle produce the mask
// bitmaps of the query tiles (mask_bitmap.cuh). All other warps take the tiles that the bitmap
// stages name.
#ifndef TANDEM_CUDA_SM90_BWD_VARIANT_MASKED_CUH
#define TANDEM_CUDA_SM90_BWD_VARIANT_MASKED_CUH
#include "../mask_bitmap.cuh"
#include "dq_postprocess.cuh"
#include "variant_varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The mask bitmap stages in the part of the variant. Behind them and their mbarriers lie the work
// tile and the derivatives of softcap for each thread's elements, as pairs of f16.
template <int TILE>
TANDEM_DEVICE MaskBitmapStages<kBwdShapes[TILE].br> mask_bitmap_at(uint variant) {
  using Bits = MaskBitmapStages<kBwdShapes[TILE].br>;
  return {variant, variant + kMaskStages * Bits::kStageBytes};
}

template <int TILE>
struct MaskedLayout {
  static constexpr int kAtWorkTile = mask_bitmap_bytes(kBwdShapes[TILE].br),
                       kAtDerivatives = bwd_masked_derivatives_at(kBwdShapes[TILE]);
};
// Address of a copy of the work tile in shared memory, as registers are short. Three times four
// words: left, right and off of the band, and seq_kv; col0, begin and end of the span, and seq_q;
// full_begin and full_end of the span, the batch entry and the kv head.
template <int TILE>
TANDEM_DEVICE uint work_tile_at() {
  using M = BwdSharedStorage<TILE, Varlen>;
  return shared_address(aligned_shared_memory()) + M::kAtVariant + MaskedLayout<TILE>::kAtWorkTile;
}

// Iterator of the Q loop: the query tiles in the order of the bitmap stages. Each warp counts the
// stages for itself, and releases a stage as it takes the next one.
template <int TILE, typename Variant>
struct MaskedQTiles {
  static constexpr int kBr = kBwdShapes[TILE].br;
  const MaskBitmapStages<kBr> bits;
  const BwdWorkTile& work;
  uint n = 0;
  bool waits = true;  // false: the warp needs no bitmap, and all tiles are visited
  TANDEM_DEVICE MaskedQTiles(const typename Variant::Params&, const BwdWorkTile& work)
      : bits(mask_bitmap_at<TILE>(
            BwdSharedStorage<TILE, Variant>{shared_address(aligned_shared_memory())}.variant())),
        work(work) {}
  TANDEM_DEVICE int next(int head, int from) {
    if (from > work.span.begin) {
      __syncwarp();
      if (int(threadIdx.x) % 32 == 0) mbarrier_arrive(bits.empty(n));
      ++n;
    }
    if (!waits) return from;
    const int4 tile = bits.wait_tile(n);
    return !(tile.y & kEnd) && tile.z == head ? tile.x : work.span.end;
  }
  template <typename Block>
  TANDEM_DEVICE uint before(const Block& u, const BwdWorkTile& work, int, int t) const {
    return dq_order<TILE>(u, work, t);
  }
};

// SCORES: softcap, ALiBi and a distance bias may be present, too. DROPOUT: dropout may. PRODUCER:
// registers of a producer thread.
template <bool SCORES, bool DROPOUT, int PRODUCER>
struct Masked : Varlen {
  static constexpr bool kVisitsHeads = true, kHasMaskBitmap = true, kLazyZero = false,
                        kFarBefore = false;
  using Registers = sm90::Registers<PRODUCER>;
  static constexpr int bytes(const BwdShape& s) { return bwd_masked_bytes(s, DROPOUT); }
  static constexpr int kDqWarps = 1;
  template <int TILE>
  using QTiles = MaskedQTiles<TILE, Masked>;
  // Producer threads of the bitmap, and the warps that release a stage: the producer warp, the dQ
  // warp and eight consumer warps.
  static constexpr int kMaskProducers = 64, kReaders = 10;
  // The first keys of all heads come before the second ones. Of a tree and of a prefix they are
  // seen by most rows: started last, those of the last head would end long after all others. In a
  // deterministic order the number says who waits for whom.
  static TANDEM_DEVICE uint work_index(const Params& params) {
    const BwdDkvDqBlock& u = params.block;
    const uint index = params.first_group + workgroup_index(), heads = u.total / u.tiles;
    if (params.interleaved_heads || index >= u.total) return index;
    constexpr uint kHeads = 4;  // side by side, so that L2 holds their rows
    const uint first = index / (kHeads * u.tiles) * kHeads, width = min(kHeads, heads - first),
               n = index - first * u.tiles;
    return (first + n % width) * u.tiles + n / width;
  }
  // Whether a work tile has one query tile, which is then visited whatever the mask shows of it. So
  // its loads need not wait for the bitmap.
  static TANDEM_DEVICE bool has_one_q_tile(int group, int begin, int end) {
    return group == 1 && end - begin == 1;
  }
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, Masked>& memory) {
    init_load_barrier(memory);
    mask_bitmap_at<TILE>(memory.variant()).init(kMaskProducers / 32, kReaders);
  }

  template <typename T, int TILE>
  struct Consumer {
    static constexpr int BR = kBwdShapes[TILE].br;
    using Bits = MaskBitmapStages<BR>;
    const Params& params;
    const Bits bits;
    // Address of the thread's derivatives of softcap: 16 bytes of every 4 KiB.
    const uint left;
    const int shift;
    uint n = 0;  // number of the tile's bitmap stage
    int head;
    float sum;
    TANDEM_DEVICE Consumer(const Params& params, const BwdWorkTile& work,
                           const BwdSharedStorage<TILE, Masked>& memory)
        : params(params),
          bits(mask_bitmap_at<TILE>(memory.variant())),
          left(memory.variant() + MaskedLayout<TILE>::kAtDerivatives + 16 * (threadIdx.x - 128)),
          shift(work.band.off - work.col0) {}
    static TANDEM_DEVICE int thread() {
      return read_tid_x() - 128;  // read again, as registers are short
    }
    // Distance i + off - j of the thread's first element in the tile.
    TANDEM_DEVICE int distance() const {
      const int x = thread();
      return bits.read_tile(n).x * BR + 2 * (x % 4) + shift - (x / 32 * 16 + x % 32 / 4);
    }
    TANDEM_DEVICE void begin_head(int of) { head = of, sum = 0.f; }
    // The numbers of this head in an optional input that has `each` numbers a head.
    TANDEM_DEVICE const float* numbers(uint slot, int each) const {
      return reinterpret_cast<const float*>(params.extra_at[slot]) + int64_t(head) * each;
    }
    // Sets the weights that the band hides to 0.
    TANDEM_DEVICE void hide_edge(float (&p)[BR / 2]) {
      const int4 at = bits.read_tile(n);
      if (!(at.y & kEdge)) return;
      const uint4 band = ld_shared_v4_u32(work_tile_at<TILE>()),
                  more = ld_shared_v4_u32(work_tile_at<TILE>() + 16);
      const int x = thread();
      sm90::hide<BR>(p, TandemBand{int(band.x), int(band.y), int(band.z)},
                     int(more.x) + x / 32 * 16 + x % 32 / 4, int(band.w), at.x * BR + 2 * (x % 4),
                     0.f);
    }
    // Sets elements whose bit is not set to 0, in half of the tile. Each half is behind a branch,
    // so that not all words are loaded before the first is used: registers would not suffice.
    template <int FIRST>
    TANDEM_DEVICE void hide(float (&s)[BR / 2]) {
      if (!(bits.read_tile(n).y & kHasHidden)) return;
      const uint words = bits.keep(n);
      const auto each = [&](int i, bool kept) { s[i] = kept ? s[i] : 0.f; };
      const int x = thread();
      const uint from = words + uint(x / 64 * Bits::kPitch + 2 * (x % 4)) * 4;
      const int bit = x / 32 % 2 * 16 + x % 32 / 4;
#pragma unroll
      for (int j = FIRST; j < FIRST + BR / 16; ++j) {
        const uint2 two = ld_shared_v2_u32(from + 32 * j);
        const uint a = two.x >> bit, b = two.y >> bit;
        each(4 * j, a & 1u), each(4 * j + 1, b & 1u);
        each(4 * j + 2, a & 256u), each(4 * j + 3, b & 256u);
      }
    }
    // The warp's bits of dropout in the tile's stage: 16 bits of each row, its keys.
    TANDEM_DEVICE uint dropped() const {
      return bits.drop(n) + uint(thread() / 32) * (2 * Bits::kPitch);
    }
    // Writes them, a row a lane at each step. dP is in flight meanwhile.
    TANDEM_DEVICE void find_dropped() const {
      if (!DROPOUT || !params.features.DROPOUT) return;
      const int row0 = bits.read_tile(n).x * BR, warp = thread() / 32;
      const uint index =
          ld_shared_v4_u32(work_tile_at<TILE>() + 32).z * uint(params.block.heads_q) + uint(head);
      const int quad = (int(ld_shared_v4_u32(work_tile_at<TILE>() + 16).x) + 16 * warp) / 4;
#pragma unroll 1
      for (int row = thread() % 32; row < BR; row += 32)
        st_shared_u16(dropped() + uint(2 * row),
                      drop_bits<16>(params.features, params.extra, params.extra_at,
                                    params.drop_offset, index, row0 + row, quad));
      __syncwarp();
    }
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int, int) {
      find_dropped();
      const Features& f = params.features;
      if (SCORES && f.SOFTCAP) {
        uint pairs[4];
        soft_cap(s, params.block.scale, params.extra.softcap, [&](int i, float x, float y) {
          pairs[i / 2 % 4] = Half::pack(x, y);
          if (i % 8 == 6)
            st_shared(left + 4096 * (i / 8), int(pairs[0]), int(pairs[1]), int(pairs[2]),
                      int(pairs[3]));
        });
        scale2 = 1.f;
      }
      if (SCORES && f.DIST) {
        const int first = distance(), window = params.extra.dist_window;
        if (__any_sync(kAllLanes, first + BR >= 0 && first - 8 < window)) {
          const float* dist = numbers(f.AT_DIST, window);
#pragma unroll
          for (int i = 0; i < BR / 2; ++i) {
            const int at = first + 8 * (i / 4) + i % 2 - 8 * (i / 2 % 2);
            s[i] = fmaf(s[i], scale2, at >= 0 && at < window ? __ldg(dist + at) * kLog2e : 0.f);
          }
          scale2 = 1.f;
        }
      }
      if (SCORES && f.ALIBI) {
        const float first = float(distance()), slope = kLog2e * __ldg(numbers(f.AT_SLOPE, 1));
#pragma unroll
        for (int j = 0; j < BR / 8; ++j) {
          const float2 l = ld_shared_v2_f32(lse + 32 * j);
#pragma unroll
          for (int i = 4 * j; i < 4 * j + 4; ++i)
            s[i] = exp2_fast(fmaf(s[i], scale2,
                                  fmaf(-slope, SoftcapAlibi::Consumer<T, TILE>::away(first, i),
                                       i % 2 ? -l.y : -l.x)));
        }
      } else {
        sm90::weigh<BR>(s, scale2, lse);
      }
      hide<0>(s);
      hide<BR / 16>(s);
    }
    template <typename Push>
    TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint lse, int, int,
                                 const FarTile<Push>& tile) {
      find_dropped();
      const Features& f = params.features;
      const int first = distance(), window = params.extra.dist_window;
      sm90::weigh_far<BR>(s, lse, tile, [&](int j, uint zero) {
        const float each = __uint_as_float(uint(__float_as_int(scale)) + zero);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] = __fmul_rn(each, s[i]);
        if (SCORES && f.SOFTCAP) {
          float x[4];
#pragma unroll
          for (int e = 0; e < 4; ++e)
            s[4 * j + e] = far_cap(s[4 * j + e], params.extra.softcap,
                                   __fdividef(1.f, params.extra.softcap), &x[e]);
          const uint to = left + 4096 * (j / 2) + 8 * (j % 2);
          st_shared(to, Half::pack(x[0] * kDerivativeUnit, x[1] * kDerivativeUnit));
          st_shared(to + 4, Half::pack(x[2] * kDerivativeUnit, x[3] * kDerivativeUnit));
        }
        if (SCORES && f.DIST) {
          const float* dist = numbers(f.AT_DIST, window);
#pragma unroll
          for (int i = 4 * j; i < 4 * j + 4; ++i) {
            const int at = first + 8 * j + i % 2 - 8 * (i / 2 % 2) + int(zero);
            if (at >= 0 && at < window) s[i] = __fadd_rn(s[i], __ldg(dist + at));
          }
        }
        if (SCORES && f.ALIBI) {
          const float slope = __ldg(numbers(f.AT_SLOPE, 1));
#pragma unroll
          for (int i = 4 * j; i < 4 * j + 4; ++i)
            s[i] = __fsub_rn(
                s[i], __fmul_rn(slope, SoftcapAlibi::Consumer<T, TILE>::away(float(first), i)));
        }
      });
      hide<0>(s);
      hide<BR / 16>(s);
    }
    TANDEM_DEVICE void pack(uint (&)[BR / 4], const float (&)[BR / 2]) {}
    TANDEM_DEVICE void differentiate(uint (&y)[BR / 4], uint (&ds)[BR / 4],
                                     const float (&p)[BR / 2], const float (&dp)[BR / 2],
                                     uint delta, int) {
      const bool cap = SCORES && params.features.SOFTCAP, grad = SCORES && params.slope_parts != 0;
      const bool drops = DROPOUT && params.features.DROPOUT != 0;
      // Beside dropout and with tiles of 64 query rows the branch would spill 60 bytes more.
      if (!SCORES && (BR == 128 || !DROPOUT) && !drops) {
#pragma unroll
        for (int j = 0; j < BR / 8; ++j) {
          const float2 l = ld_shared_v2_f32(delta + 32 * j);
#pragma unroll
          for (int n = 4 * j; n < 4 * j + 4; n += 2) {
            y[n / 2] = T::pack(p[n], p[n + 1]);
            ds[n / 2] = T::pack(p[n] * (dp[n] - l.x), p[n + 1] * (dp[n + 1] - l.y));
          }
        }
        return;
      }
      const float first = float(distance()), more = drops ? params.extra.drop_scale : 1.f;
      const int bit = thread() % 32 / 4;
      const uint from = dropped() + uint(thread() % 4 * 4);
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        const float2 l = ld_shared_v2_f32(delta + 32 * j);
        uint a = ~0u, b = ~0u;  // bits of two columns: what dropout keeps
        if (drops) {
          const uint two = ld_shared_u32(from + 16 * j);
          a = two >> bit, b = two >> (bit + 16);
        }
        uint z[2] = {};
        if (cap) {
          const uint2 two = ld_shared_v2_u32(left + 4096 * (j / 2) + 8 * (j % 2));
          z[0] = two.x, z[1] = two.y;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int n = 4 * j + 2 * r;
          const float stay0 = a & 1u << 8 * r ? more : 0.f, stay1 = b & 1u << 8 * r ? more : 0.f;
          y[n / 2] = T::pack(p[n] * stay0, p[n + 1] * stay1);
          float d = p[n] * fmaf(dp[n], stay0, -l.x), e = p[n + 1] * fmaf(dp[n + 1], stay1, -l.y);
          if (grad) {
            sum = fmaf(d, SoftcapAlibi::Consumer<T, TILE>::away(first, n), sum);
            sum = fmaf(e, SoftcapAlibi::Consumer<T, TILE>::away(first, n + 1), sum);
          }
          if (cap) multiply_capped(d, e, z[r]);
          ds[n / 2] = T::pack(d, e);
        }
      }
    }
    TANDEM_DEVICE void wait_ds() {}
    TANDEM_DEVICE void signal_ds() {}
    TANDEM_DEVICE void keep_ds(const uint (&)[BR / 4], int) {}
    TANDEM_DEVICE void end_head(const BwdWorkTile& work, int head) {
      if (!SCORES || !params.slope_parts) return;
      const BwdDkvDqBlock& u = params.block;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (threadIdx.x % 32 == 0)
        reinterpret_cast<float*>(
            params.slope_parts)[((int64_t(work.batch) * u.heads_q + head) * u.tiles + work.tile) *
                                    kBwdParts +
                                (threadIdx.x - 128) / 32] = sum;
    }
  };

  // Advances the dQ semaphore of a skipped query tile, when it is that tile's turn. The work tile
  // is computed again, as registers are short.
  template <int TILE>
  static TANDEM_DEVICE void pass(const Params& params, int head, int t) {
    constexpr BwdShape S = kBwdShapes[TILE];
    const BwdDkvDqBlock& u = params.block;
    BwdWorkTile work;
    find_work_tile(u, S, 1, params.interleaved_heads, params.first_group + workgroup_index(),
                   &work);
    refine<TILE>(params, &work);
    const int64_t tiles =
        first_tile<TILE, Masked>(u, work, rank_of<Masked>(params, work), head, params.packed_tiles);
    uint* semaphore =
        reinterpret_cast<uint*>(params.push.dq_semaphores) + (tiles + t) * (S.br / 64);
    semaphore_wait(semaphore, dq_order<TILE>(u, work, t));
    semaphore_release(semaphore);
  }
  // Produces the bitmap stages. Three words of a stage describe its tile: query tile, flags and
  // query head of the group. In a deterministic order these warps also advance the dQ semaphore of
  // a skipped tile.
  template <typename T, int TILE>
  static TANDEM_DEVICE void run_auxiliary(const Params& params, const BwdWorkTile& work,
                                          const BwdSharedStorage<TILE, Masked>& memory) {
    constexpr BwdShape S = kBwdShapes[TILE];
    const BwdDkvDqBlock& u = params.block;
    const int thread = int(threadIdx.x) - 64;
    const auto bits = mask_bitmap_at<TILE>(memory.variant());
    const uint at = work_tile_at<TILE>();
    const auto put = [&](uint n, int x, int y, int z, int w) {
      st_shared(at + 16 * n, __int_as_float(x), __int_as_float(y), __int_as_float(z),
                __int_as_float(w));
    };
    put(0, work.band.left, work.band.right, work.band.off, work.seq_kv);
    put(1, work.col0, work.span.begin, work.span.end, work.seq_q);
    put(2, work.span.full_begin, work.span.full_end, work.batch, work.head_kv);
    __syncwarp();
    uint place = 0;
    const auto publish = [&](int t, int flags, int head) {
      if (thread == 0)
        st_shared(bits.tile(place), __int_as_float(t), __int_as_float(flags), __int_as_float(head),
                  0.f);
      __syncwarp();
      if (thread % 32 == 0) mbarrier_arrive(bits.full(place));
      ++place;
    };
    for (int n = 0; n < u.group; ++n) {
      MaskTiles<S.br / TANDEM_MAP_BLOCK, true> tiles(
          params.features, params.extra, params.extra_at, work.batch, work.head_kv * u.group + n,
          work.col0 / TANDEM_MAP_BLOCK, (work.col0 + S.bc) / TANDEM_MAP_BLOCK);
      const auto skip = [&](int t) {
        if (u.deterministic && thread == 0)
          pass<TILE>(params, int(ld_shared_v4_u32(at + 32).w) * u.group + n, t);
      };
      int before = int(ld_shared_v4_u32(at + 16).y);  // tiles in front of it are done, or skipped
      // Found again for each tile, as registers are short.
      const auto one = [&] {
        const uint4 x = ld_shared_v4_u32(at + 16);
        return has_one_q_tile(u.group, int(x.y), int(x.z));
      };
#pragma unroll 1
      for (int t = before;; ++t) {
        const int last = int(ld_shared_v4_u32(at + 16).z);
        if (!one()) t = tiles.next(t, last);
        for (; before < min(t, last); ++before) skip(before);
        if (t >= last) break;
        before = t + 1;
        MaskBitmapProducer<S.br, kMaskProducers, kMaskBarrier, SCORES ? 4 : 2> producer(
            params.features, params.extra, params.extra_at);
        const auto begin = [&] {
          const uint4 x = ld_shared_v4_u32(at + 16), y = ld_shared_v4_u32(at + 32);
          producer.batch = int(y.z), producer.head = int(y.w) * u.group + n;
          producer.seq_q = int(x.w), producer.seq_kv = int(ld_shared_v4_u32(at).w);
          return int(x.x);
        };
        mbarrier_wait(bits.empty(place), bits.phase(place) ^ 1);
        bool hides = false;
        if (const int col0 = begin();
            !producer.masks(bits.keep(place), t * S.br, col0, tiles.tile(t), &hides)) {
          if (!one()) {
            skip(t);
            continue;
          }
          hides = true;
        }
        const uint4 full = ld_shared_v4_u32(at + 32);
        const bool edge = t < int(full.x) || t >= int(full.y) ||
                          int(ld_shared_v4_u32(at + 16).x) + S.bc > int(ld_shared_v4_u32(at).w);
        publish(t, (hides ? kHasHidden : 0) | (edge ? kEdge : 0), n);
      }
    }
    mbarrier_wait(bits.empty(place), bits.phase(place) ^ 1);
    publish(0, kEnd, 0);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
