// SPDX-License-Identifier: MIT OR Apache-2.0
// What the weights of a row are relative to, where that must be known before the first weight: lse
// of elastic softmax, or the threshold of entmax, which is searched for. Both take passes over the
// keys that form scores alone. Twin of shaders/parts/entmax.glsl.
#ifndef TANDEM_CUDA_PARTS_ENTMAX_CUH
#define TANDEM_CUDA_PARTS_ENTMAX_CUH
#include "softmax.cuh"
#include "weight.cuh"

namespace tandem {
namespace cuda {

// Live tiles of keys, which later passes visit. Of the first kLiveTiles, a bit in shared memory
// behind the P tile marks each dead one. Tiles beyond them are always visited.
struct LiveTiles {
  uint* dead;
  int begin;

  template <typename S>
  TANDEM_DEVICE void clear() const {
    for (int n = int(threadIdx.x); n < kLiveTiles / 32; n += S::WG) dead[n] = 0;
    __syncthreads();
  }
  TANDEM_DEVICE bool has(int tile) const {
    const int n = tile - begin;
    return n >= kLiveTiles || !(dead[n / 32] >> n % 32 & 1u);
  }
  // Called by all invocations, with a barrier before the next has() of the tile.
  TANDEM_DEVICE void remove(int tile) const {
    const int n = tile - begin;
    if (threadIdx.x == 0 && n < kLiveTiles) dead[n / 32] |= 1u << n % 32;
  }
};

// A row's state in the search.
struct Threshold {
  float t = 0.f, lo = 0.f, hi = 0.f;
  float from = 0.f;  // largest score of a far row, subtracted from all its scores first

  // Begins the search, after the first pass. m: largest score; l: sum of exponentials (elastic
  // softmax); keys: number of keys that the row sees by position. Returns false if t stays.
  TANDEM_DEVICE bool begin(const Extra& e, const float* sink, float m, float l, float keys) {
    // The rounding of a threshold moves all weights of its row, so entmax has far rows sooner.
    const bool far = is_entmax(e) ? fabsf(m) > 8.f && m > minus_infinity() : tandem_is_far(m);
    from = far ? m : 0.f;
    const float top = m - from;
    if (!is_entmax(e)) {
      t = !(l > 0.f)    ? minus_infinity()
          : from != 0.f ? joined_lse_from(sink, m, l)
                        : joined_lse(sink, m, l);
      return false;
    }
    t = lo = top - 1.f;
    // Slightly above the bound, as the root of equal scores must not lie on it.
    hi = top - 0.999f * powf(keys, -e.x.entmax_scale);
    return m != minus_infinity();
  }

  // Moves t by one step, from sums over the keys above t, where x = z - t. With alpha = 1.5 these
  // are sums of x, x^2 and 1; with 2, x and n are sums of x and 1; with any other alpha, x and xx
  // are sums of y and g. Returns false if t stays.
  TANDEM_DEVICE bool step(const Extra& e, float x, float xx, float n) {
    float excess, next;
    if (e.f.ALPHA == 1) {
      // The root, if the support stays the same. Where the parabola has no root, Newton's step.
      excess = xx - 1.f;
      const float d = x * x - n * excess;
      next = t + excess / (x + (d > 0.f ? sqrtf(d) : x));
    } else if (e.f.ALPHA == 2) {
      excess = x - 1.f;
      next = t + excess / n;
    } else {
      excess = x - 1.f;
      next = t + excess / (e.x.entmax_exponent * xx);
    }
    if (next == t) return false;
    if (excess >= 0.f)
      lo = t;
    else
      hi = t;
    if (!(next > lo && next < hi)) {
      next = lo + 0.5f * (hi - lo);
      if (!(next > lo && next < hi)) return false;
    }
    t = next;
    return true;
  }
};

constexpr int kMaxPasses = 64;  // passes at most; a dozen is a lot

// Finds the origins of the invocation's rows; `at` is -inf where no key is visible.
template <typename S, bool WIDE>
TANDEM_DEVICE void find_origin(RowOrigin (&origin)[S::RM], const Extra& e, const HeadExtra& of,
                               const float* sink, Stage<Any, S, WIDE>& stage, float4* pool,
                               float4* ptile, const LiveTiles& live, const View<Any>& q, int row0,
                               const View<Any>& k, const TandemTiles& span) {
  const Invocation<S> me;
  const bool entmax = is_entmax(e), skip = e.f.SKIP != 0;
  Threshold row[S::RM];
  float3 sum[S::RM];  // sums of a pass; in the first pass x is the maximum
  uint moving = (1u << S::RM) - 1;
  if (entmax && skip) live.clear<S>();
#pragma unroll 1
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    const bool first = pass == 0;
#pragma unroll 1
    for (int r = 0; r < S::RM; ++r) sum[r] = make_float3(first ? minus_infinity() : 0.f, 0.f, 0.f);
    bool fetched = false;
#pragma unroll 1
    for (int t = span.begin; t < span.end; ++t) {
      const int col0 = t * S::N;
      if (entmax && skip && !live.has(t)) continue;
      if (skip && tile_hidden<S, false>(e, of, row0, col0)) {
        if (entmax) live.remove(t);
        continue;
      }
      if (!fetched) stage.fetch_nt(q, row0, k, col0, 0);
      fetched = !skip && t + 1 < span.end;
      float s[S::RM][4] = {};
      product_nt(s, stage, pool, q, row0, k, col0, q.width, [&] {
        if (fetched) stage.fetch_nt(q, row0, k, col0 + S::N, 0);
      });
      put_ptile<S>(ptile, s);
      bool above = false;
      each_quad<S>(ptile, [&](int r, float(&z)[4]) {
        float slope[4];
        score_quad<true>(z, slope, e, of, row0 + me.row(r), col0 + me.col(0));
        float3 a = sum[r];
        if (first) {
          const float top = fmaxf(fmaxf(a.x, fmaxf(z[0], z[1])), fmaxf(z[2], z[3]));
          if (!entmax) {
            const float base = top == minus_infinity() ? 0.f : top;
            float l = 0.f;
#pragma unroll
            for (int c = 0; c < 4; ++c) l += expf(__fsub_rn(z[c], base));
            a.y = fmaf(a.y, expf(a.x - base), l);
          }
          a.x = top;
        } else {
          const Threshold now = row[r];
          if (now.from != 0.f)
#pragma unroll
            for (int c = 0; c < 4; ++c) z[c] = __fsub_rn(z[c], now.from);
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            above |= z[c] > now.lo;
            const float x = fmaxf(__fsub_rn(z[c], now.t), 0.f);
            const float g = entmax_power(e, x);
            a.x += e.f.ALPHA == 3 ? x * g : x;
            a.y += e.f.ALPHA == 3 ? g : x * x;
            a.z += x > 0.f ? 1.f : 0.f;
          }
        }
        sum[r] = a;
      });
      // All scores of the tile are at or below the lower bounds of their rows, which only rise.
      if (!first && skip && !__syncthreads_or(above)) live.remove(t);
    }
#pragma unroll 1
    for (int r = 0; r < S::RM; ++r) {
      const float3 a = sum[r];
      Threshold now = row[r];
      const uint bit = 1u << r;
      if (!first) {
        const float x = row_sum<S>(a.x), y = row_sum<S>(a.y), n = row_sum<S>(a.z);
        if ((moving & bit) && !now.step(e, x, y, n)) moving &= ~bit;
      } else {
        const float m = row_max<S>(a.x);
        const float l =
            entmax ? 0.f : row_sum<S>(a.y * expf(a.x - (m == minus_infinity() ? 0.f : m)));
        const float n = float(tandem_key_count(e.band, row0 + me.row(r), e.seq_q, e.seq_kv));
        if (!now.begin(e, sink, m, l, n)) moving &= ~bit;
      }
      row[r] = now;
    }
    if (!entmax || !__syncthreads_or(int(moving))) break;
  }
#pragma unroll
  for (int r = 0; r < S::RM; ++r) origin[r] = RowOrigin{row[r].t, row[r].from};
}

}  // namespace cuda
}  // namespace tandem
#endif
