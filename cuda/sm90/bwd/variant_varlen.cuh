// SPDX-License-Identifier: MIT OR Apache-2.0
// Variants of bwd_dkv_dq: lengths; and lengths with softcap and ALiBi, whose slope may have a
// gradient. Lengths cost the products nothing: the producer warp zeroes the rows behind an entry's
// end, so that they add nothing, and the masks use the entry's lengths.
#ifndef TANDEM_CUDA_SM90_BWD_VARIANT_VARLEN_CUH
#define TANDEM_CUDA_SM90_BWD_VARIANT_VARLEN_CUH
#include "../softcap.cuh"
#include "variant_plain.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

struct Varlen : BwdVariant {
  static constexpr bool kIsVarlen = true, kLazyZero = true, kFarBefore = true;
  using Params = BwdDkvDqOptionalParams;
  using Registers = sm90::Registers<40>;
  static constexpr bool has_kernel(const BwdShape& s) { return !s.wide; }
  static constexpr int bytes(const BwdShape& s) { return bwd_second_dq_bytes(s); }
  static constexpr float kHidden = 0.f;
  static constexpr bool kAnyOrder = false;
  static constexpr int kDqWarps = 2;
  static constexpr float kLse = kLog2e;
  template <int TILE>
  using QTiles = AllQTiles<TILE>;
  static TANDEM_DEVICE int order(const Params&) { return 1; }
  static TANDEM_DEVICE int interleaved_heads(const Params& params) {
    return params.interleaved_heads;
  }
  // Initialises the mbarrier of the TMA boxes that have to be zeroed in part.
  template <typename BwdSharedStorage>
  static TANDEM_DEVICE void init_load_barrier(const BwdSharedStorage& memory) {
    mbarrier_init(memory.variant_barriers(), 1);
  }
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, Varlen>& memory) {
    init_load_barrier(memory);
  }
  static TANDEM_DEVICE void sync() { __syncthreads(); }
  static TANDEM_DEVICE void leave() {}
  template <int TILE>
  static TANDEM_DEVICE void refine(const Params& params, BwdWorkTile* work) {
    constexpr BwdShape S = kBwdShapes[TILE];
    const BwdDkvDqBlock& u = params.block;
    const Features& f = params.features;
    const Lengths lengths_q = Lengths(f.LENGTHS_Q), lengths_kv = Lengths(f.LENGTHS_KV);
    int64_t first_q, first_kv;
    work->seq_q = entry_length(lengths_q, params.extra_at[f.AT_LENGTHS_Q], work->batch, u.seq_q,
                               params.extra.total_q, &first_q);
    work->seq_kv = entry_length(lengths_kv, params.extra_at[f.AT_LENGTHS_KV], work->batch, u.seq_kv,
                                params.extra.total_kv, &first_kv);
    work->first_q = int(first_q), work->first_kv = int(first_kv);
    if (is_packed(f.LENGTHS_Q)) work->map_q = 0;
    if (is_packed(f.LENGTHS_KV)) work->map_kv = 0, work->keys = work->seq_kv;
    if (params.extra.bottom_right) work->band.off = work->seq_kv - work->seq_q;
    work->span = tandem_query_tiles(work->band, work->col0, S.bc, S.br, work->seq_q, work->seq_kv);
  }
  template <int TILE>
  struct Loader {
    template <typename BwdSharedStorage>
    TANDEM_DEVICE Loader(const Params&, const BwdWorkTile&, const BwdSharedStorage&) {}
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int, int) {}
  };
  template <typename T, int TILE>
  struct Consumer : Plain::Consumer<T, TILE> {
    TANDEM_DEVICE Consumer(const Params& params, const BwdWorkTile& work,
                           const BwdSharedStorage<TILE, Varlen>& memory)
        : Plain::Consumer<T, TILE>(params, work, {memory.base}) {}
  };
  template <typename T, int TILE>
  static TANDEM_DEVICE void run_auxiliary(const Params&, const BwdWorkTile&,
                                          const BwdSharedStorage<TILE, Varlen>&) {}
};

struct SoftcapAlibi : Varlen {
  static constexpr bool kVisitsHeads = true, kFarBefore = false;
  using Registers = sm90::Registers<24>;  // the consumer warps need the rest
  static constexpr bool has_kernel(const BwdShape& s) { return has_softcap_alibi_kernel(s); }
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, SoftcapAlibi>& memory) {
    init_load_barrier(memory);
  }
  template <typename T, int TILE>
  struct Consumer {
    static constexpr int BR = kBwdShapes[TILE].br;
    const Params& params;
    const int shift;
    int tile;
    // ALiBi's slope of the head, times log2 e, and the thread's part of d_slope.
    float slope, sum;
    SoftcapDerivatives<BR / 2> left;
    TANDEM_DEVICE Consumer(const Params& params, const BwdWorkTile& work,
                           const BwdSharedStorage<TILE, SoftcapAlibi>&)
        : params(params), shift(work.band.off - work.col0) {}
    // Distance i + off - j of the thread's first element in the tile.
    TANDEM_DEVICE float distance() const {
      const int x = read_tid_x() - 128;  // read again, as registers are short
      return float(tile * BR + 2 * (x % 4) + shift - (x / 32 * 16 + x % 32 / 4));
    }
    TANDEM_DEVICE void begin_head(int head) {
      sum = slope = 0.f;
      if (params.features.ALIBI)
        slope =
            kLog2e *
            __ldg(reinterpret_cast<const float*>(params.extra_at[params.features.AT_SLOPE]) + head);
    }
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int t, int) {
      tile = t;
      if (params.features.SOFTCAP) {
        left.cap(s, params.block.scale, params.extra.softcap);
        scale2 = 1.f;
      }
      if (params.features.ALIBI) {
        const float first = distance();
#pragma unroll
        for (int j = 0; j < BR / 8; ++j) {
          const float2 l = ld_shared_v2_f32(lse + 32 * j);
#pragma unroll
          for (int i = 4 * j; i < 4 * j + 4; ++i)
            s[i] = exp2_fast(fmaf(s[i], scale2, fmaf(-slope, away(first, i), i % 2 ? -l.y : -l.x)));
        }
      } else {
        sm90::weigh<BR>(s, scale2, lse);
      }
    }
    template <typename Push>
    TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint lse, int t, int head,
                                 const FarTile<Push>& far) {
      tile = t;
      const Features& f = params.features;
      const float softcap = params.extra.softcap, inverse = __fdividef(1.f, softcap);
      const float first = distance();
      const float steep =
          f.ALIBI ? __ldg(reinterpret_cast<const float*>(params.extra_at[f.AT_SLOPE]) + head) : 0.f;
      sm90::weigh_far<BR>(s, lse, far, [&](int j, uint zero) {
        const float each = __uint_as_float(uint(__float_as_int(scale)) + zero);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i += 2) {
          if (f.SOFTCAP)
            left.cap_far(s, i, each, softcap, inverse);
          else
            s[i] = __fmul_rn(each, s[i]), s[i + 1] = __fmul_rn(each, s[i + 1]);
          if (f.ALIBI) {
            s[i] = __fsub_rn(s[i], __fmul_rn(steep, away(first, i)));
            s[i + 1] = __fsub_rn(s[i + 1], __fmul_rn(steep, away(first, i + 1)));
          }
        }
      });
    }
    TANDEM_DEVICE void pack(uint (&)[BR / 4], const float (&)[BR / 2]) {}
    TANDEM_DEVICE void differentiate(uint (&y)[BR / 4], uint (&ds)[BR / 4],
                                     const float (&p)[BR / 2], const float (&dp)[BR / 2],
                                     uint delta, int) {
      const bool cap = params.features.SOFTCAP != 0, grad = params.slope_parts != 0;
      const float first = distance();
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        const float2 l = ld_shared_v2_f32(delta + 32 * j);
#pragma unroll
        for (int n = 4 * j; n < 4 * j + 4; n += 2) {
          y[n / 2] = T::pack(p[n], p[n + 1]);
          float a = p[n] * (dp[n] - l.x), b = p[n + 1] * (dp[n + 1] - l.y);
          if (grad) {
            sum = fmaf(a, away(first, n), sum);
            sum = fmaf(b, away(first, n + 1), sum);
          }
          if (cap) multiply_capped(a, b, left.pairs[n / 2]);
          ds[n / 2] = T::pack(a, b);
        }
      }
    }
    TANDEM_DEVICE void wait_ds() {}
    TANDEM_DEVICE void signal_ds() {}
    TANDEM_DEVICE void keep_ds(const uint (&)[BR / 4], int) {}
    TANDEM_DEVICE void end_head(const BwdWorkTile& work, int head) {
      if (!params.slope_parts) return;
      const BwdDkvDqBlock& u = params.block;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (threadIdx.x % 32 == 0)
        reinterpret_cast<float*>(
            params.slope_parts)[((int64_t(work.batch) * u.heads_q + head) * u.tiles + work.tile) *
                                    kBwdParts +
                                (threadIdx.x - 128) / 32] = sum;
    }
    // Distance |i + off - j| of the thread's element i. first: the distance of its first element.
    static TANDEM_DEVICE float away(float first, int i) {
      return fabsf(first + float(8 * (i / 4) + i % 2 - 8 * (i / 2 % 2)));
    }
  };
  template <typename T, int TILE>
  static TANDEM_DEVICE void run_auxiliary(const Params&, const BwdWorkTile&,
                                          const BwdSharedStorage<TILE, SoftcapAlibi>&) {}
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
