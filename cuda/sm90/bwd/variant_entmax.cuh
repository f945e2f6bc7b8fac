// SPDX-License-Identifier: MIT OR Apache-2.0
// The variant of bwd_dkv_dq for entmax, head sizes up to 128: y = x u and ds = u (dp - delta),
// where x = [z - t]_+. The threshold t is in lse's place. delta comes from bwd_row_sums, which also
// says which tiles hold support. With alpha = 1.5, u = x.
#ifndef TANDEM_CUDA_SM90_BWD_VARIANT_ENTMAX_CUH
#define TANDEM_CUDA_SM90_BWD_VARIANT_ENTMAX_CUH
#include "../numerics.cuh"
#include "dkv_dq.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// Iterator of the Q loop: the query tiles that have support in this workgroup's keys. A warp reads
// the bits of 32 tiles at a time.
template <int TILE>
struct SupportQTiles {
  static constexpr int kBr = kBwdShapes[TILE].br, kBlocks = kBr / 64;
  const BwdDkvDqEntmaxParams& params;
  const BwdWorkTile& work;
  int from = 0;   // query tile of the first bit of `live`
  uint live = 0;  // bits of 32 query tiles; 0: not read yet
  TANDEM_DEVICE SupportQTiles(const BwdDkvDqEntmaxParams& params, const BwdWorkTile& work)
      : params(params), work(work) {}
  // Support bits of a query tile, for 32 tiles of keys. index: which 32.
  TANDEM_DEVICE uint word(int n, int t, int index) const {
    if (!params.support || index >= kSupportWords) return ~0u;
    const BwdDkvDqBlock& u = params.block;
    const int64_t head = int64_t(work.batch) * u.heads_q + work.head_kv * u.group + n;
    const int blocks = (u.seq_q + 63) / 64;
    const uint* words = reinterpret_cast<const uint*>(params.support) +
                        (head * blocks + t * kBlocks) * params.support_words + index;
    uint x = __ldg(words);
    if (kBlocks == 2 && t * kBlocks + 1 < blocks) x |= __ldg(words + params.support_words);
    return x;
  }
  TANDEM_DEVICE int next(int n, int t) {
    if (t == work.span.begin) live = 0;  // the bits are those of another head
    while (t < work.span.end) {
      if (live == 0 || t >= from + 32) {
        from = t;
        const int mine = t + int(threadIdx.x) % 32;
        live = __ballot_sync(kAllLanes, mine < work.span.end &&
                                            (word(n, mine, work.tile / 32) >> work.tile % 32 & 1u));
      }
      const uint rest = live >> (t - from);
      if (rest) return t + __ffs(int(rest)) - 1;
      t = from + 32;
    }
    return t;
  }
  TANDEM_DEVICE uint before(const BwdDkvDqBlock& u, const BwdWorkTile&, int n, int t) const {
    const int end = tandem_key_tiles(work.band, t * kBr, kBr, kSupportKeys, u.seq_q, u.seq_kv).end;
    uint count = 0;
    for (int first = (work.tile + 1) / 32 * 32; first < end; first += 32) {
      uint x = word(n, t, first / 32);
      if (first <= work.tile) x &= ~0u << (work.tile + 1 - first);
      if (end - first < 32) x &= (1u << (end - first)) - 1u;
      count += uint(__popc(x));
    }
    return count;
  }
};

template <bool FAST>
struct Entmax : Plain {
  static constexpr bool kLazyZero = false, kFarBefore = false, kPersistent = false;
  using Params = BwdDkvDqEntmaxParams;
  static constexpr bool kAnyOrder = false;  // SupportQTiles counts upwards
  static constexpr float kLse = 1.f;
  template <int TILE>
  using QTiles = SupportQTiles<TILE>;
  static TANDEM_DEVICE int order(const Params&) { return 1; }
  static TANDEM_DEVICE int interleaved_heads(const Params& params) {
    return params.interleaved_heads;
  }
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, Entmax>&) {}
  template <int TILE>
  struct Loader {
    TANDEM_DEVICE Loader(const Params&, const BwdWorkTile&, const BwdSharedStorage<TILE, Entmax>&) {
    }
    TANDEM_DEVICE void rows(int, int, int) {}
    TANDEM_DEVICE void load(int, int) {}
  };
  template <typename T, int TILE>
  struct Consumer {
    static constexpr int BR = kBwdShapes[TILE].br;
    const Params& params;
    template <typename M>
    TANDEM_DEVICE Consumer(const Params& params, const BwdWorkTile&, const M&) : params(params) {}
    // Turns scores into x.
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float, uint origin, int, int) {
      const float scale = params.block.scale * params.extra.entmax_scale;
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        const float2 t = ld_shared_v2_f32(origin + 32 * j);
        s[4 * j] = fmaxf(fmaf(s[4 * j], scale, -t.x), 0.f);
        s[4 * j + 1] = fmaxf(fmaf(s[4 * j + 1], scale, -t.y), 0.f);
        s[4 * j + 2] = fmaxf(fmaf(s[4 * j + 2], scale, -t.x), 0.f);
        s[4 * j + 3] = fmaxf(fmaf(s[4 * j + 3], scale, -t.y), 0.f);
      }
    }
    template <typename Push>
    TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint origin, int, int,
                                 const FarTile<Push>& tile) {
      const float more = params.extra.entmax_scale;
      sm90::weigh_far<BR>(
          s, origin, 1.f, tile,
          [&](int j, uint) {
#pragma unroll
            for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] = __fmul_rn(more, __fmul_rn(scale, s[i]));
          },
          [](float x, float t) { return fmaxf(__fsub_rn(x, t), 0.f); });
    }
    TANDEM_DEVICE float power(float x) const { return FAST ? x : entmax_power(params, x); }
    TANDEM_DEVICE void pack(uint (&y)[BR / 4], const float (&x)[BR / 2]) {
      if constexpr (FAST) {
#pragma unroll
        for (int i = 0; i < BR / 4; ++i)
          y[i] = T::pack(x[2 * i] * x[2 * i], x[2 * i + 1] * x[2 * i + 1]);
      }
    }
    TANDEM_DEVICE void differentiate(uint (&y)[BR / 4], uint (&ds)[BR / 4],
                                     const float (&x)[BR / 2], const float (&dp)[BR / 2],
                                     uint delta, int) {
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        const float2 l = ld_shared_v2_f32(delta + 32 * j);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int n = 4 * j + 2 * r;
          const float a = power(x[n]), b = power(x[n + 1]);
          if constexpr (!FAST) y[2 * j + r] = T::pack(x[n] * a, x[n + 1] * b);
          ds[2 * j + r] = T::pack(a * (dp[n] - l.x), b * (dp[n + 1] - l.y));
        }
      }
    }
    TANDEM_DEVICE void wait_ds() {}
    TANDEM_DEVICE void signal_ds() {}
    TANDEM_DEVICE void keep_ds(const uint (&)[BR / 4], int) {}
  };
  template <typename T, int TILE>
  static TANDEM_DEVICE void run_auxiliary(const Params&, const BwdWorkTile&,
                                          const BwdSharedStorage<TILE, Entmax>&) {}
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
