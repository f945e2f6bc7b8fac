// SPDX-License-Identifier: MIT OR Apache-2.0
// Elastic softmax, with a distance bias or without: y = max(p + tau / n, 0). shift: tau / n of a
// row.
//   M = p > threshold(shift)
// M holds where y is above 0 and, with tau >= 0, wherever a key is visible. Until M is known, p of
// hidden keys is kUnseen, which is below every threshold.
#ifndef TANDEM_CUDA_SM90_BWD_VARIANT_ELASTIC_CUH
#define TANDEM_CUDA_SM90_BWD_VARIANT_ELASTIC_CUH
#include "../elastic_shift.cuh"
#include "variant_plain.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr float kUnseen = -1.f;
TANDEM_DEVICE float threshold(float shift) { return shift >= 0.f ? -0.5f : -shift; }

// Whether a tile of `rows` queries from i0 on and `cols` keys from j0 on has elements in the window
// of the distance bias.
TANDEM_DEVICE bool has_dist(int window, int off, int i0, int rows, int j0, int cols) {
  const int distance = i0 + off - j0;
  return (distance + rows > 0) & (distance - cols < window - 1);
}

// Stores the distance bias, times log2 e, of the ROWS + COLS - 1 diagonals of a tile to shared
// memory, by one warp. The diagonal of the first query and the last key comes first. Outside the
// window the bias is 0.
template <int ROWS, int COLS>
TANDEM_DEVICE void put_dist(uint to, const float* dist, int window, int distance) {
#pragma unroll
  for (int n = int(threadIdx.x) % 32; n < ROWS + COLS; n += 32) {
    const int t = distance - (COLS - 1) + n;
    st_shared(to + 4 * n, (t >= 0) & (t < window) ? __ldg(dist + t) * kLog2e : 0.f);
  }
}

// Variant of bwd_dkv_dist: d_k, d_v, and the key tile's part of d_dist_bias. The two auxiliary
// warps sum that part over the diagonals of dS, in a fixed order. dS is rounded as the products
// take it.
struct Elastic : BwdVariant {
  using Params = BwdDkvDistParams;
  static constexpr bool kAnyOrder = false;
  static constexpr int kDqWarps = 1;
  using Registers = sm90::Registers<56>;
  static constexpr float kHidden = kUnseen;
  static constexpr float kLse = kLog2e;
  template <int TILE>
  using QTiles = AllQTiles<TILE>;
  static constexpr int bytes(const BwdShape& s) { return bwd_elastic_bytes(s); }
  static TANDEM_DEVICE int order(const Params&) { return 1; }
  static TANDEM_DEVICE bool interleaved_heads(const Params&) { return false; }
  // Window of the distance bias; 0: there is none.
  static TANDEM_DEVICE int window(const Params& params) { return params.extra.dist_window; }

  template <int TILE>
  struct At {
    static constexpr int kBr = kBwdShapes[TILE].br, kBc = kBwdShapes[TILE].bc,
                         kDs = kBwdShapes[TILE].ds_stages;
    uint rows, first;
    TANDEM_DEVICE explicit At(const BwdSharedStorage<TILE, Elastic>& memory)
        : rows(memory.variant()), first(memory.variant_barriers()) {}
    TANDEM_DEVICE uint shift(int stage) const { return rows + stage * ((2 * kBr + kBc) * 4); }
    TANDEM_DEVICE uint dist(int stage) const { return shift(stage) + kBr * 4; }
    TANDEM_DEVICE uint written(int place) const { return first + 8 * place; }
    TANDEM_DEVICE uint read(int place) const { return first + 8 * (kDs + place); }
  };
  template <int TILE>
  static TANDEM_DEVICE void init(const BwdSharedStorage<TILE, Elastic>& memory) {
    const At<TILE> at(memory);
    for (int place = 0; place < At<TILE>::kDs; ++place) {
      mbarrier_init(at.written(place), 8);
      mbarrier_init(at.read(place), 2);
    }
  }
  static TANDEM_DEVICE void sync() { __syncthreads(); }
  static TANDEM_DEVICE void leave() {}

  template <int TILE>
  struct Loader {
    const Params& params;
    const BwdWorkTile& work;
    const At<TILE> at;
    TANDEM_DEVICE Loader(const Params& params, const BwdWorkTile& work,
                         const BwdSharedStorage<TILE, Elastic>& memory)
        : params(params), work(work), at(memory) {}
    TANDEM_DEVICE void rows(int t, int head, int stage) {
      constexpr int kBr = At<TILE>::kBr, kBc = At<TILE>::kBc;
      const uint64_t* address = params.push.extra;
      const float tau =
          __ldg(reinterpret_cast<const float*>(address[params.features.AT_TAU]) + head);
      for (int r = int(threadIdx.x) % 32; r < kBr; r += 32) {
        const int n =
            tandem_key_count(work.band, t * kBr + r, params.block.seq_q, params.block.seq_kv);
        st_shared(at.shift(stage) + 4 * r, elastic_shift(tau, n));
      }
      const int window = Elastic::window(params);
      if (has_dist(window, work.band.off, t * kBr, kBr, work.col0, kBc))
        put_dist<kBr, kBc>(at.dist(stage),
                           reinterpret_cast<const float*>(address[params.features.AT_DIST]) +
                               int64_t(head) * window,
                           window, t * kBr + work.band.off - work.col0);
    }
    TANDEM_DEVICE void load(int, int) {}
  };

  template <typename T, int TILE>
  struct Consumer {
    static constexpr int BR = kBwdShapes[TILE].br, BC = kBwdShapes[TILE].bc;
    const At<TILE> at;
    const Params& params;
    const uint ds_tiles;
    const int col0;
    PipelineState<At<TILE>::kDs> place;
    TANDEM_DEVICE Consumer(const Params& params, const BwdWorkTile& work,
                           const BwdSharedStorage<TILE, Elastic>& memory)
        : at(memory), params(params), ds_tiles(memory.ds(0)), col0(work.col0) {}
    TANDEM_DEVICE bool near(int t) const {
      return has_dist(Elastic::window(params), params.block.band_off, t * BR, BR, col0, BC);
    }
    TANDEM_DEVICE void weigh(float (&s)[BR / 2], float scale2, uint lse, int t, int stage) {
      if (near(t)) {
        // Element (query c, key r) has number c - r + BC - 1. The thread's second key is 8 further,
        // so its numbers are those of the first key 8 queries before.
        const int thread = int(threadIdx.x) - 128, lane = thread % 32;
        const uint from =
            at.dist(stage) + 4 * (2 * (lane % 4) + BC - 1 - (thread / 32 * 16 + lane / 4));
        float x = ld_shared_f32(from - 32), y = ld_shared_f32(from - 28);
#pragma unroll
        for (int j = 0; j < BR / 8; ++j) {
          const float2 l = ld_shared_v2_f32(lse + 32 * j);
          s[4 * j + 2] = exp2_fast(fmaf(s[4 * j + 2], scale2, x - l.x));
          s[4 * j + 3] = exp2_fast(fmaf(s[4 * j + 3], scale2, y - l.y));
          x = ld_shared_f32(from + 32 * j), y = ld_shared_f32(from + 32 * j + 4);
          s[4 * j] = exp2_fast(fmaf(s[4 * j], scale2, x - l.x));
          s[4 * j + 1] = exp2_fast(fmaf(s[4 * j + 1], scale2, y - l.y));
        }
      } else {
        sm90::weigh<BR>(s, scale2, lse);
      }
    }
    template <typename Push>
    TANDEM_DEVICE void weigh_far(float (&s)[BR / 2], float scale, uint lse, int t, int head,
                                 const FarTile<Push>& tile) {
      const int thread = int(threadIdx.x) - 128, lane = thread % 32,
                window = Elastic::window(params);
      const float* dist =
          reinterpret_cast<const float*>(params.push.extra[params.features.AT_DIST]) +
          int64_t(head) * window;  // not read where there is none
      // Distance i + off - j of the thread's first element.
      const int first =
          t * BR + 2 * (lane % 4) + params.block.band_off - col0 - (thread / 32 * 16 + lane / 4);
      sm90::weigh_far<BR>(s, lse, tile, [&](int j, uint zero) {
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) {
          const int at = first + 8 * j + i % 2 - 8 * (i / 2 % 2) + int(zero);
          s[i] = __fmul_rn(scale, s[i]);
          if (at >= 0 && at < window) s[i] = __fadd_rn(s[i], __ldg(dist + at));
        }
      });
    }
    TANDEM_DEVICE uint shifts(int stage) const { return at.shift(stage) + 8 * (threadIdx.x % 4); }
    TANDEM_DEVICE void pack(uint (&)[BR / 4], const float (&)[BR / 2]) {}
    TANDEM_DEVICE void differentiate(uint (&y)[BR / 4], uint (&ds)[BR / 4],
                                     const float (&p)[BR / 2], const float (&dp)[BR / 2],
                                     uint delta, int stage) {
      const uint from = shifts(stage);
#pragma unroll
      for (int j = 0; j < BR / 8; ++j) {
        const float2 l = ld_shared_v2_f32(delta + 32 * j), b = ld_shared_v2_f32(from + 32 * j);
        const float low = threshold(b.x), high = threshold(b.y);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int n = 4 * j + 2 * r;
          const bool first = p[n] > low, second = p[n + 1] > high;
          y[2 * j + r] = T::pack(first ? p[n] + b.x : 0.f, second ? p[n + 1] + b.y : 0.f);
          ds[2 * j + r] = T::pack(fmaxf(p[n], 0.f) * ((first ? dp[n] : 0.f) - l.x),
                                  fmaxf(p[n + 1], 0.f) * ((second ? dp[n + 1] : 0.f) - l.y));
        }
      }
    }
    TANDEM_DEVICE void wait_ds() {}
    TANDEM_DEVICE void signal_ds() {}
    TANDEM_DEVICE void keep_ds(const uint (&ds)[BR / 4], int t) {
      if (!(params.push.d_dist != 0 && near(t))) return;
      const int warpgroup = int(threadIdx.x) / 128 - 1, warp = int(threadIdx.x) / 32 % 4;
      const int lane = int(threadIdx.x) % 32;
      mbarrier_wait(at.read(place.stage()), place.phase() ^ 1);
      store_transposed<BR>(ds_tiles + place.stage() * (BR * BC * 2) + warpgroup * BR * 128, ds,
                           warp, lane);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(at.written(place.stage()));
      place.next();
    }
  };

  // The sum of `count` numbers, `step` apart, in order. Other SMs may have written them.
  static TANDEM_DEVICE float sum_of(const float* from, int64_t step, int count) {
    constexpr int kAtOnce = 8;
    float sum = 0.f;
    int n = 0;
#pragma unroll 1
    for (; n + kAtOnce <= count; n += kAtOnce, from += kAtOnce * step) {
      float x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) x[i] = __ldcg(from + i * step);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum += x[i];
    }
#pragma unroll 1
    for (; n < count; ++n, from += step) sum += __ldcg(from);
    return sum;
  }
  // d_tau of the query heads of a kv head. The two warps take the heads in turn; a lane has every
  // 32nd row.
  static TANDEM_DEVICE void sum_tau(const Params& params, const BwdWorkTile& work) {
    const BwdDkvDistBlock& u = params.block;
    const int lane = int(threadIdx.x) % 32;
    for (int n = int(threadIdx.x) / 32 - 2; n < u.group; n += 2) {
      const int head = work.head_kv * u.group + n;
      float sum = 0.f;
#pragma unroll 1
      for (int b = 0; b < int(u.total / u.tiles) / (u.heads_q / u.group); ++b)
        sum += sum_of(reinterpret_cast<const float*>(params.sums.tau_rows) +
                          (int64_t(b) * u.heads_q + head) * u.seq_q + lane,
                      32, (u.seq_q - lane + 31) / 32);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (lane == 0) reinterpret_cast<float*>(params.sums.d_tau)[head] = sum;
    }
  }
  // Sums the parts of d_dist_bias in order, as bwd_sum_splits does, by a warp whose own parts are
  // written. An entry belongs to the same thread in all workgroups. So of all warps with the same
  // number, the last one to arrive sums what the others have left. first: the thread's first entry.
  static TANDEM_DEVICE void sum_parts(const Params& params, const BwdWorkTile& work, int first) {
    const BwdDkvDistBlock& u = params.block;
    const int parts = int(u.total) / (u.heads_q / u.group), window = Elastic::window(params);
    uint before = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0)
      before =
          atom_add_acq_rel(params.sums.counts + 8 * work.head_kv + threadIdx.x / 32 % 2 * 4, 1);
    before = __shfl_sync(kAllLanes, before, 0);
    if (before + 1 != uint(parts)) return;
    for (int n = 0; n < u.group; ++n) {
      const int64_t head = work.head_kv * u.group + n;
      for (int t = first; t < window; t += 64)
        reinterpret_cast<float*>(params.sums.d_dist)[head * window + t] =
            sum_of(reinterpret_cast<const float*>(params.push.d_dist) + head * window + t,
                   int64_t(u.heads_q) * window, parts);
    }
  }

  // Sums dS over diagonals. A thread has every 64th diagonal, and in each row of dS two keys that
  // are 64 apart. In 64 rows these lie on three diagonals: all 64 elements of the middle one,
  // `thread` elements of the one before it, and the other 64 - `thread` of the one behind it.
  template <typename T, int TILE>
  static TANDEM_DEVICE void run_auxiliary(const Params& params, const BwdWorkTile& work,
                                          const BwdSharedStorage<TILE, Elastic>& memory) {
    constexpr BwdShape S = kBwdShapes[TILE];
    static_assert(S.bc == 128 && S.br % 64 == 0, "what is written below");
    // At the beginning there is no dS yet, and these warps would wait.
    if (params.sums.d_tau && work.tile == 0 && work.batch == 0) sum_tau(params, work);
    if (!params.push.d_dist) return;
    const BwdDkvDistBlock& u = params.block;
    const At<TILE> at(memory);
    const int thread = int(threadIdx.x) - 64, window = Elastic::window(params);
    // The thread's diagonals t = distance + x, with x 64 apart, are the same in all query tiles:
    // the distances of two tiles differ by a multiple of 64.
    const int first = (work.band.off - work.col0 + thread) & 63;
    PipelineState<S.ds_stages> place;
    for (int n = 0; n < u.group; ++n) {
      const int head = work.head_kv * u.group + n;
      float* part = reinterpret_cast<float*>(params.push.d_dist) +
                    ((int64_t(work.batch) * u.tiles + work.tile) * u.heads_q + head) * window;
      for (int t = first; t < window; t += 64) part[t] = 0.f;
#pragma unroll 1
      for (int t = work.span.begin; t < work.span.end; ++t) {
        if (!has_dist(window, work.band.off, t * S.br, S.br, work.col0, S.bc)) continue;
        mbarrier_wait(at.written(place.stage()), place.phase());
        const uint from = memory.ds(place.stage());
        const int distance = t * S.br + work.band.off - work.col0;
        const auto add = [&](int x, float sum) {
          const int d = distance + x;
          if ((d >= 0) & (d < window)) part[d] += sum;
        };
#pragma unroll 1
        for (int b = 0; b < S.br / 64; ++b) {
          float before = 0.f, whole = 0.f, behind = 0.f;
#pragma unroll 2
          for (int r = 0; r < 64; ++r) {
            const int row = 64 * b + r;
            const float x1 = element<T>(from, S.br, row, (r - thread) & 127);
            const float x2 = element<T>(from, S.br, row, r - thread + 64);
            whole += x2;
            if (r >= thread)
              behind += x1;
            else
              before += x1;
          }
          add(thread + 64 * b, behind);
          add(thread + 64 * b - 64, whole);
          add(thread + 64 * b - 128, before);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(at.read(place.stage()));
        place.next();
      }
    }
    if (params.sums.d_dist) sum_parts(params, work, first);
  }
  template <typename T>
  static TANDEM_DEVICE float element(uint tile, int rows, int row, int key) {
    const uint at =
        tile + (key >> 6) * (rows * 128) + swizzle_128b(row, key >> 3 & 7) + (key & 7) * 2;
    return T::low(ld_shared_u16(at));
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
