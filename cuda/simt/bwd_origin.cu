// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_origin: origin, relative lse and delta of far rows (src/problem/far_row.h). Twin of
// shaders/scalar/bwd_origin.comp.
//
// Most problems have no such row: a workgroup reads lse of its rows and is done. Otherwise it takes
// kOriginRows of its rows at a time, key by key, without matrix hardware: in f32, or in double
// where the other kernels form scores on matrix hardware.
#include <cfloat>

#include "../parts/softmax.cuh"
#include "../parts/tf32.cuh"
#include "../parts/weight.cuh"
#include "problem/far_row.h"

namespace tandem {
namespace cuda {

constexpr int kOriginRows = 4, kOriginWarps = kLineGroup / 32;

// Shared memory: features of q and d_o of the present rows, partial sums of the warps, and which
// rows are far, as bits. top and below: of take_whole(), for the first thread alone.
struct OriginMemory {
  float4 q[kOriginRows][kHeadQuads], d_o[kOriginRows][kHeadQuads];
  float parts[kOriginWarps][kOriginRows];
  float top[kOriginRows], below[kOriginRows];
  uint far[kOriginWarps];
};

// Reduces x of each row by op over all threads of the workgroup. All threads get the result.
template <typename Op>
TANDEM_DEVICE void reduce_rows(OriginMemory& memory, float (&x)[kOriginRows], const Op& op) {
#pragma unroll
  for (int r = 0; r < kOriginRows; ++r)
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      x[r] = op(x[r], __shfl_xor_sync(kAllLanes, x[r], step));
  __syncthreads();  // the readers of the parts before are done
  if (threadIdx.x % 32 == 0)
#pragma unroll
    for (int r = 0; r < kOriginRows; ++r) memory.parts[threadIdx.x / 32][r] = x[r];
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kOriginRows; ++r) {
    x[r] = memory.parts[0][r];
    for (int n = 1; n < kOriginWarps; ++n) x[r] = op(x[r], memory.parts[n][r]);
  }
}

// An operand as products take it: with TANDEM_FLAG_TF32 kernels round it to 11 bits.
TANDEM_DEVICE float operand(float x, bool tf32) { return tf32 ? tf32_operand(x) : x; }
TANDEM_DEVICE float4 operands(const float4& x, bool tf32) {
  return make_float4(operand(x.x, tf32), operand(x.y, tf32), operand(x.z, tf32),
                     operand(x.w, tf32));
}

// A sum of products' magnitudes.
struct Magnitude {
  float sum;
  TANDEM_DEVICE explicit operator float() const { return sum; }
};

TANDEM_DEVICE Magnitude add_product(float x, float y, Magnitude m) {
  return {fmaf(fabsf(x), fabsf(y), m.sum)};
}
TANDEM_DEVICE float add_product(float x, float y, float sum) { return fmaf(x, y, sum); }
TANDEM_DEVICE double add_product(float x, float y, double sum) {
  return double(x) * double(y) + sum;
}

// Products of rows in shared memory with four keys, or values, from j on. Sum: float in the order
// of product_nt(), for the same bits; or double, as no order is that of matrix hardware. Then the
// results differ by the roundings of that hardware's sums alone. Or Magnitude.
template <typename Sum, typename T>
TANDEM_DEVICE void dot_quad(float (&to)[kOriginRows][4],
                            const float4 (&rows)[kOriginRows][kHeadQuads], const View<T>& keys,
                            int j, bool tf32) {
  Sum x[kOriginRows][4] = {};
#pragma unroll 1
  for (int col = 0; col < keys.width; col += 4) {
    typename T::Raw raw[4];
    load_words<T, false, 4, 1>(raw, keys, j, 0, col, 0);
    float4 of_row[kOriginRows];
#pragma unroll
    for (int r = 0; r < kOriginRows; ++r) of_row[r] = rows[r][col / 4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float4 y = operands(T::to_floats(raw[c]), tf32);
#pragma unroll
      for (int r = 0; r < kOriginRows; ++r) {
        x[r][c] = add_product(of_row[r].x, y.x, x[r][c]);
        x[r][c] = add_product(of_row[r].y, y.y, x[r][c]);
        x[r][c] = add_product(of_row[r].z, y.z, x[r][c]);
        x[r][c] = add_product(of_row[r].w, y.w, x[r][c]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kOriginRows; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) to[r][c] = float(x[r][c]);
}

template <typename T>
TANDEM_DEVICE void fill_rows(float4 (&to)[kOriginRows][kHeadQuads], const View<T>& rows, int row0,
                             bool tf32) {
#pragma unroll 1
  for (int n = int(threadIdx.x); n < kOriginRows * kHeadQuads; n += kLineGroup) {
    typename T::Raw raw;
    load_words<T, false, 1, 1>(&raw, rows, row0, n / kHeadQuads, 0, n % kHeadQuads * 4);
    to[n / kHeadQuads][n % kHeadQuads] = operands(T::to_floats(raw), tf32);
  }
}

// A part of a row's keys, whose largest score is top. Its own lse is origin + relative; relative is
// infinite where it sees none. Takes the whole row's lse where that tells (far_row.h), and then no
// slack: weights are relative to top, and one that is found below is as much too small. below: how
// far matrix hardware may find the scores, and lse with them, from these, where that is no small
// part of a weight.
TANDEM_DEVICE void take_whole(float lse, float top, float below, float part_slack, float* origin,
                              float* relative) {
  if (*relative == INFINITY) {
    *origin = lse, *relative = 0.f;
    return;
  }
  const float whole = lse - top;
  if (whole > *relative + part_slack * fabsf(lse) + (below > 0.25f ? below : 0.f))
    *origin = top, *relative = fminf(whole, FLT_MAX);
}

// Finds the threshold of entmax, in z relative to the origin. Newton's steps on a convex sum reach
// it from the left and do not pass it.
template <typename Each>
TANDEM_DEVICE void find_threshold(OriginMemory& memory, const Extra& e,
                                  float (&threshold)[kOriginRows], const Each& each) {
#pragma unroll
  for (int r = 0; r < kOriginRows; ++r) threshold[r] = -1.f;
#pragma unroll 1
  for (int turn = 0; turn < 48; ++turn) {
    float sum[kOriginRows] = {}, slope[kOriginRows] = {};
    each([&](int r, int, float z) {
      const float x = fmaxf(z - threshold[r], 0.f), u = entmax_power(e, x);
      sum[r] = fmaf(x, u, sum[r]);
      slope[r] += u;
    });
    const auto add = [](float a, float b) { return a + b; };
    reduce_rows(memory, sum, add);
    reduce_rows(memory, slope, add);
    bool moved = false;
#pragma unroll
    for (int r = 0; r < kOriginRows; ++r) {
      const float step = (sum[r] - 1.f) / (e.x.entmax_exponent * slope[r]);
      if (!(step > 1e-8f)) continue;
      threshold[r] = fminf(threshold[r] + step, 0.f);
      moved = true;
    }
    if (!moved) break;  // the same in all threads
  }
}

template <typename T>
TANDEM_DEVICE void find_origins(const BwdOriginFull& params, const Extra& e, const HeadExtra& of,
                                OriginMemory& memory, int head, int row0, uint far) {
  const BwdOriginBlock& u = params.block;
  const auto& push = params.push;
  const View<T> q = query_view<T>(e, 0, push.q, u.q, head, u.head_dim, push.wide & 1u),
                k = key_view<T>(e, 0, push.k, u.k, head / u.group, u.head_dim, push.wide & 2u),
                v = key_view<T>(e, 0, push.v, u.v, head / u.group, u.head_dim_v, push.wide & 4u),
                d_o = query_view<T>(e, 0, push.d_o, u.d_o, head, u.head_dim_v, push.wide & 8u);
  const bool delta_too = params.spec.DELTA != 0;
  __syncthreads();  // all threads have read the rows before
  const bool tf32 = params.spec.TF32 != 0;
  fill_rows(memory.q, q, row0, tf32);
  if (delta_too) fill_rows(memory.d_o, d_o, row0, tf32);
  __syncthreads();
  const TandemTiles span = tandem_key_tiles(e.band, row0, kOriginRows, 4, e.seq_q, e.seq_kv);
  // Calls visit(r, c, score) for all keys that a row sees, four at a time. With with_dp, dp[r][c]
  // then is dp of that key.
  float dp[kOriginRows][4] = {};
  const auto each_of = [&](bool with_dp, const auto& visit) {
#pragma unroll 1
    for (int t = span.begin + int(threadIdx.x); t < span.end; t += kLineGroup) {
      float s[kOriginRows][4];
      if (u.slack == 0.f)
        dot_quad<float>(s, memory.q, k, 4 * t, false);
      else
        dot_quad<double>(s, memory.q, k, 4 * t, tf32);
      if (with_dp) dot_quad<float>(dp, memory.d_o, v, 4 * t, tf32);
#pragma unroll
      for (int r = 0; r < kOriginRows; ++r) {
        float slope[4];
        const uint seen = score_quad<true, true>(s[r], slope, e, of, row0 + r, 4 * t);
        const uint kept = with_dp && e.f.DROPOUT ? kept_words(e, of, row0 + r, t) : ~0u;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          dp[r][c] = kept >> c & 1u ? dp[r][c] : 0.f;
          if (seen >> c & 1u) visit(r, c, s[r][c]);
        }
      }
    }
  };

  float origin[kOriginRows], relative[kOriginRows], delta[kOriginRows] = {};
#pragma unroll
  for (int r = 0; r < kOriginRows; ++r) origin[r] = minus_infinity();
  each_of(false, [&](int r, int, float s) { origin[r] = fmaxf(origin[r], s); });
  const auto largest = [](float a, float b) { return fmaxf(a, b); };
  reduce_rows(memory, origin, largest);
  // How far below it matrix hardware may find one of the largest scores: slack of the magnitudes
  // that the score is made of, which may be far larger than the score.
  float below[kOriginRows] = {};
  if (u.slack != 0.f) {
#pragma unroll 1
    for (int t = span.begin + int(threadIdx.x); t < span.end; t += kLineGroup) {
      float s[kOriginRows][4], size[kOriginRows][4];
      dot_quad<double>(s, memory.q, k, 4 * t, tf32);
      dot_quad<Magnitude>(size, memory.q, k, 4 * t, tf32);
#pragma unroll
      for (int r = 0; r < kOriginRows; ++r) {
        float slope[4];
        const uint seen = score_quad<true, true>(s[r], slope, e, of, row0 + r, 4 * t);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float product = fabsf(e.scale) * size[r][c];
          if (e.f.SOFTCAP) product = fminf(product, e.x.softcap);
          const float own = u.slack * (product + fabsf(s[r][c]));
          if ((seen >> c & 1u) && s[r][c] + own >= origin[r]) below[r] = fmaxf(below[r], own);
        }
      }
    }
    reduce_rows(memory, below, largest);
  }
  float sink = minus_infinity();
  if (params.spec.SINK)
    sink = __ldg(reinterpret_cast<const float*>(push.sink) +
                 sink_head(params.spec.SINK, u, e.batch, head));
#pragma unroll
  for (int r = 0; r < kOriginRows; ++r) {
    const float top = fmaxf(origin[r], sink);
    if (threadIdx.x == 0) memory.top[r] = top, memory.below[r] = below[r];
    origin[r] = top == minus_infinity()
                    ? 0.f
                    : fmaxf(top - fmaxf(below[r], u.slack * fabsf(top)), -FLT_MAX);
  }
  if (is_entmax(e)) {
    find_threshold(memory, e, relative, [&](const auto& visit) {
      each_of(false, [&](int r, int c, float z) { visit(r, c, fminf(z - origin[r], 0.f)); });
    });
  } else {
#pragma unroll
    for (int r = 0; r < kOriginRows; ++r) relative[r] = 0.f;
    each_of(delta_too, [&](int r, int c, float s) {
      const float p = expf(fminf(s - origin[r], 0.f));
      relative[r] += p;
      if (delta_too) delta[r] = fmaf(p, dp[r][c], delta[r]);
    });
    const auto add = [](float a, float b) { return a + b; };
    reduce_rows(memory, relative, add);
    if (delta_too) reduce_rows(memory, delta, add);
#pragma unroll
    for (int r = 0; r < kOriginRows; ++r) {
      const float sum = relative[r] + (params.spec.SINK ? expf(fminf(sink - origin[r], 0.f)) : 0.f);
      // Where no key is visible, although lse says that one is, weights are 0.
      relative[r] = sum > 0.f ? logf(sum) : INFINITY;
      delta[r] = sum > 0.f ? delta[r] / sum * (e.f.DROPOUT ? e.x.drop_scale : 1.f) : 0.f;
    }
  }
  if (threadIdx.x != 0) return;
  float* const deltas = reinterpret_cast<float*>(push.delta) + int64_t(of.index) * u.seq_q + row0;
#pragma unroll
  for (int r = 0; r < kOriginRows; ++r) {
    if (!(far >> r & 1u)) continue;
    const int64_t n = int64_t(of.index) * u.seq_q + row0 + r;
    if (params.spec.PART)
      take_whole(__ldg(reinterpret_cast<const float*>(push.lse) + n), memory.top[r],
                 memory.below[r], u.part_slack, &origin[r], &relative[r]);
    if (delta_too && e.f.D_LSE && relative[r] != INFINITY)
      delta[r] -= __ldg(reinterpret_cast<const float*>(push.d_lse) + n);
    float* const kept = reinterpret_cast<float*>(push.delta) - 2 * (n + 1);
    kept[0] = origin[r], kept[1] = relative[r];
    if (delta_too) deltas[r] = delta[r];
  }
}

// Tiles of kLineGroup rows whose lse a workgroup reads at a time.
constexpr int kOriginTiles = 4;

// A workgroup takes every gridDim.x-th tile: far rows are in few tiles, and often in neighbours.
__global__ void __launch_bounds__(kLineGroup)
    bwd_origin(const __grid_constant__ BwdOriginFull params) {
  const BwdOriginBlock& u = params.block;
  TANDEM_SHARED_ARRAY(OriginMemory, memory, 1);
#pragma unroll 1
  for (uint64_t first = blockIdx.x; first < u.total; first += kOriginTiles * gridDim.x) {
    float lse[kOriginTiles];
#pragma unroll
    for (int n = 0; n < kOriginTiles; ++n) {
      const uint64_t tile = first + n * gridDim.x;
      const int64_t head = int64_t(tile / u.tiles);
      const int row = int(tile % u.tiles) * kLineGroup + int(threadIdx.x);
      lse[n] = tile < u.total && row < u.seq_q
                   ? __ldg(reinterpret_cast<const float*>(params.push.lse) + head * u.seq_q + row)
                   : 0.f;
    }
    uint far = 0;
#pragma unroll
    for (int n = 0; n < kOriginTiles; ++n) far |= uint(tandem_is_far(lse[n])) << n;
    if (!__syncthreads_or(far)) continue;
#pragma unroll 1
    for (int n = 0; n < kOriginTiles; ++n) {
      const uint of_warp = __ballot_sync(kAllLanes, far >> n & 1u);
      __syncthreads();  // the tile before is done
      if (threadIdx.x % 32 == 0) memory->far[threadIdx.x / 32] = of_warp;
      __syncthreads();
      const uint tile = uint(first) + n * gridDim.x, head = tile / u.tiles;
      if (tile >= u.total) break;
      const Extra e = make_extra(params, int(head / u.heads_q));
      const HeadExtra of = head_extra(e, int(head % u.heads_q));
#pragma unroll 1
      for (int row = 0; row < kLineGroup; row += kOriginRows) {
        const uint some = memory->far[row / 32] >> row % 32 & ((1u << kOriginRows) - 1);
        if (some == 0) continue;
        with_type(params.spec.DTYPE, [&](auto type) {
          find_origins<decltype(type)>(params, e, of, *memory, int(head % u.heads_q),
                                       int(tile % u.tiles) * kLineGroup + row, some);
        });
      }
    }
  }
}

Kernel<BwdOriginFull> bwd_origin_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return bwd_origin;
}

}  // namespace cuda
}  // namespace tandem
