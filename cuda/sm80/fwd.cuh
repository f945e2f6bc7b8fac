// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd on tensor cores: o and lse from q, k, v. A workgroup owns Br query rows of one head, a warp
// 16 or 32 of them. The operation is that of cuda/simt/fwd.cu.
#ifndef TANDEM_CUDA_SM80_FWD_CUH
#define TANDEM_CUDA_SM80_FWD_CUH
#include "../parts/max_logit.cuh"
#include "../parts/softmax.cuh"
#include "inputs.cuh"
#include "key_warps.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

// Row reductions of the online softmax, where a warp has all columns of its rows.
struct OwnRows {
  TANDEM_DEVICE bool any(bool x) const { return any_of_warp(x); }
  // Replaces the number that a lane has of each of its rows by the largest, or the sum, of all
  // numbers of the row.
  template <int MT>
  TANDEM_DEVICE void join_max(float (&x)[MT][2]) const {
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) x[r][h] = quad_max(x[r][h]);
  }
  template <int MT>
  TANDEM_DEVICE void join_sum(float (&x)[MT][2]) const {
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) x[r][h] = quad_sum(x[r][h]);
  }
};
// Row reductions where HALVES warps side by side have a part each of the columns of their rows.
// any() votes over the workgroup, so that all its warps take the same branch.
template <int BR, int HALVES>
struct SharedRows {
  uint numbers;  // f32 [HALVES, Br] in shared memory
  TANDEM_DEVICE bool any(bool x) const { return __syncthreads_or(x) != 0; }
  template <int MT>
  TANDEM_DEVICE void join_max(float (&x)[MT][2]) const {
    OwnRows().join_max(x);
    swap(x, [](float a, float b) { return fmaxf(a, b); });
  }
  template <int MT>
  TANDEM_DEVICE void join_sum(float (&x)[MT][2]) const {
    OwnRows().join_sum(x);
    swap(x, [](float a, float b) { return a + b; });
  }

 private:
  template <int MT, typename F>
  TANDEM_DEVICE void swap(float (&x)[MT][2], const F& f) const {
    const Lane me(thread_number());
    const int row = 16 * MT * (me.warp / HALVES) + me.g, half = me.warp % HALVES;
    const auto place = [&](int of, int r, int h) {
      return numbers + 4u * uint(of * BR + row + 16 * r + 8 * h);
    };
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (me.t == 0) put_number(place(half, r, h), x[r][h]);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // In one order, so that all warps get the same bits.
        x[r][h] = __uint_as_float(get_word(place(0, r, h)));
#pragma unroll
        for (int of = 1; of < HALVES; ++of)
          x[r][h] = f(x[r][h], __uint_as_float(get_word(place(of, r, h))));
      }
  }
};

// Online softmax of a lane's rows. A weight is 2^(s c - m c), one fma and one exp2. m moves only
// when a score of the row exceeds it by more than slack.
//
// EXACT: for f32, where nothing rounds weights and results again. m is the maximum and a weight is
// 2^((s - m) c), so that the largest is 1 to the last bit.
//
// Without EXACT a row is far if |m c| is beyond 2^20. m c is rounded by up to half of its ulp,
// which is a power of 2 in every weight. In a far row that would leave the range of the type, or of
// f32. So weights of far rows are 2^((s - m) c), too.
template <int MT, bool EXACT = false>
struct OnlineRows {
  float m[MT][2];         // origin of the raw scores
  float l[MT][2];         // this lane's part of the sum of the row
  bool some_far = false;  // whether a row of the warp is far

  TANDEM_DEVICE OnlineRows() {
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) m[r][h] = minus_infinity(), l[r][h] = 0.f;
  }
  static TANDEM_DEVICE bool far(float m, float c) {
    return !EXACT && fabsf(m * c) > 1048576.f && m != minus_infinity();
  }
  // What is subtracted from exponents: m c, or m if EXACT. A row that has seen no key yet may have
  // any finite number: its weights are 0. Not for far rows.
  static TANDEM_DEVICE float base(float m, float c) {
    return m == minus_infinity() ? 0.f : EXACT ? m : __fmul_rn(m, c);
  }
  // The exponent of a weight. s: the raw score; base: as base() gives it.
  static TANDEM_DEVICE float exponent(float s, float c, float base) {
    return EXACT ? __fmul_rn(s - base, c) : fmaf(s, c, -base);
  }
  // What m c was rounded by. This is a power of 2 in every weight.
  static TANDEM_DEVICE float off(float m, float c) {
    return EXACT || far(m, c) ? 0.f : fmaf(m, c, -base(m, c));
  }
  // The factor of earlier weights when the origin moves from m to now.
  static TANDEM_DEVICE float moved(float m, float now, float c) {
    if (m == minus_infinity()) return 0.f;
    float x = (base(m, c) - base(now, c)) * (EXACT ? c : 1.f);
    if (far(m, c))
      x = far(now, c) ? (m - now) * c : fmaf(m, c, -base(now, c));
    else if (far(now, c))
      x = fmaf(-now, c, base(m, c));
    return exp2_fast(x);
  }

  // Turns raw scores into weights. Rescales earlier results where an origin moves. slack: that of
  // FwdBlock.
  template <int N, int O, typename Shared = OwnRows>
  TANDEM_DEVICE void step(float (&s)[MT][N][4], float (&o)[MT][O][4], float c, float slack,
                          const Shared& rows = Shared()) {
    float top[MT][2];
    bool moves = false;
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        top[r][h] = fmaxf(s[r][0][2 * h], s[r][0][2 * h + 1]);
#pragma unroll
        for (int n = 1; n < N; ++n)
          top[r][h] = fmaxf(top[r][h], fmaxf(s[r][n][2 * h], s[r][n][2 * h + 1]));
        moves |= (top[r][h] - m[r][h]) * c > (EXACT ? 0.f : slack);
      }
    if (rows.any(moves)) {
      rows.join_max(top);
      bool any_far = false;
#pragma unroll
      for (int r = 0; r < MT; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          // Each row decides for itself, so that its bits do not depend on the rows beside it.
          const bool grows = (top[r][h] - m[r][h]) * c > (EXACT ? 0.f : slack);
          const float now = grows ? top[r][h] : m[r][h];
          const float factor = moved(m[r][h], now, c);
          any_far |= far(now, c);
          m[r][h] = now;
          l[r][h] *= factor;
#pragma unroll
          for (int n = 0; n < O; ++n) o[r][n][2 * h] *= factor, o[r][n][2 * h + 1] *= factor;
        }
      if constexpr (!EXACT) some_far = any_of_warp(any_far);
    }
    if (!EXACT && some_far) {
      weigh_far(s, c);
      return;
    }
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float less = base(m[r][h], c);
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int x = 2 * h; x < 2 * h + 2; ++x) {
            s[r][n][x] = exp2_fast(exponent(s[r][n][x], c, less));
            l[r][h] += s[r][n][x];
          }
      }
  }

 private:
  template <int N>
  TANDEM_DEVICE void weigh_far(float (&s)[MT][N][4], float c) {
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool of_row = far(m[r][h], c);
        const float from = of_row ? m[r][h] : 0.f, less = of_row ? 0.f : base(m[r][h], c);
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int x = 2 * h; x < 2 * h + 2; ++x) {
            s[r][n][x] = exp2_fast(fmaf(s[r][n][x] - from, c, -less));
            l[r][h] += s[r][n][x];
          }
      }
  }
};

// Stores lse of the lane's rows, from `row` on, raises the largest logit, and forms the numbers
// that o is multiplied or divided by. factor: of weights beside a sink. half: the warp's, of its
// rows' keys; part: over batch and splits.
template <typename T, typename Inputs, typename Params, typename Softmax, typename Rows, int MT>
TANDEM_DEVICE void finish_rows(float (&divisor)[MT][2], [[maybe_unused]] float (&factor)[MT][2],
                               const Params& params, const Exponent& e, Softmax& softmax,
                               const Rows& rows, const Lane& me, int part, int head, int row,
                               [[maybe_unused]] int half) {
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  float* lse = reinterpret_cast<float*>(push.lse);
  const int64_t lse0 = (int64_t(part) * u.heads_q + head) * u.seq_q;
  rows.join_sum(softmax.l);
  if (push.max_logit) {
    const float unit = e.first ? 1.f : e.scale;
    float top = minus_infinity();
#pragma unroll
    for (int r = 0; r < MT; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (row + 16 * r + 8 * h < u.seq_q && softmax.l[r][h] > 0.f)
          top = fmaxf(top, __fmul_rn(softmax.m[r][h], unit));
    raise_max_logit(u, push, part / u.splits, head, top);
  }
#pragma unroll
  for (int r = 0; r < MT; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float l = softmax.l[r][h], m = softmax.m[r][h];
      const float off = Softmax::off(m, e.c) * kLn2;
      const int i = row + 16 * r + 8 * h;
      if constexpr (Inputs::SOME) {
        const float* sink = params.spec.SINK
                                ? reinterpret_cast<const float*>(push.sink) +
                                      sink_head(params.spec.SINK, u, part / u.splits, head)
                                : nullptr;
        divisor[r][h] = factor[r][h] = 1.f;
        if (l > 0.f) {
          divisor[r][h] = l;
          if (sink) {
            const float x = __ldg(sink), top = fmaxf(m, x), keep = expf(m - top);
            // Weights are relative to a rounded origin, but with f32.
            factor[r][h] = kIsF32<T> ? keep : keep * expf(-off);
            divisor[r][h] = fmaf(l, factor[r][h], expf(x - top));
          }
          if (!kIsF32<T>) divisor[r][h] = __fdiv_rn(1.f, divisor[r][h]);
        }
        if (lse && half == 0 && me.t == 0 && i < u.seq_q) {
          if (u.splits > 1 && l > 0.f)
            put_part_lse(lse, lse0 + i, m, logf(l) - off);
          else if (!kIsF32<T> && l > 0.f && !sink)
            lse[lse0 + i] = m + (logf(l) - off);
          else
            lse[lse0 + i] =
                l > 0.f ? joined_lse(sink, m, kIsF32<T> ? l : l * expf(-off)) : minus_infinity();
        }
        continue;
      }
      if (lse && half == 0 && me.t == 0 && i < u.seq_q) {
        const float top = __fmul_rn(m, e.first ? 1.f : e.scale);
        if (u.splits > 1 && l > 0.f)
          put_part_lse(lse, lse0 + i, top, logf(l) - off);
        else
          lse[lse0 + i] = l > 0.f ? top + (logf(l) - off) : minus_infinity();
      }
      divisor[r][h] = !(l > 0.f) ? 1.f : kIsF32<T> ? l : __fdiv_rn(1.f, l);
    }
}

// Stores o and lse of the lane's rows, from `row` on. o: of the features from `feature` on. half:
// the warp's, of those that have the same rows.
template <typename T, int ROW, typename Inputs, typename Params, typename Softmax, typename Rows,
          int MT, int N>
TANDEM_DEVICE void store_o(const Params& params, const Inputs& in, const Exponent& e,
                           Softmax& softmax, const Rows& rows, const Place& at, int part, int row,
                           const float (&o)[MT][N][4], int half, int feature) {
  using S = MmaShape<ROW>;
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  const Lane me;
  // f32 results are divided by it. 16-bit results, which are rounded once more, are multiplied by
  // it.
  float divisor[MT][2];
  [[maybe_unused]] float factor[MT][2];  // of weights beside a sink
  finish_rows<T, Inputs>(divisor, factor, params, e, softmax, rows, me, part, at.head, row, half);
  const auto of_row = [&](float x, int r, int h) {
    if constexpr (Inputs::SOME) x *= factor[r][h];
    return kIsF32<T> ? __fdiv_rn(x, divisor[r][h]) : __fmul_rn(x, divisor[r][h]);
  };
  if (u.splits > 1) {
    const View<F32> out = part_view(push.o, u.o, part, at.head, u.seq_q);
    if constexpr (kIsF32<T>)
      store_columns(out, row, o, of_row);
    else
      store_numbers(out, row, feature + 2 * me.t, o, of_row);
  } else {
    const int row0 = at.tile * S::BR;
    const View<T> out = in.written_queries(push.o, u.o, at.head, u.head_dim_v, push.wide & 8u);
    store_averages<S::WIDTH>(out, row0, SharedArrays<S>().q, row - me.g - row0, o, of_row, feature);
  }
}

template <typename T, int ROW, typename Params>
TANDEM_DEVICE void form_o(const Params& params) {
  using S = MmaShape<ROW>;
  // HALVES > 1: so many warps side by side own the same rows. Each multiplies its part of the keys
  // and sums its part of the features, and P passes through shared memory. They agree on the
  // origins of the rows.
  constexpr int W = S::WIDTH, MT = S::MT, BR = S::BR, BC = S::BC, HALVES = S::HALVES;
  static_assert(HALVES == 1 || S::STAGES == 1, "barriers as they are");
  // Key warps (key_warps.cuh) copy their own tiles, and need no barrier in the loop.
  constexpr int KEY_WARPS = S::KEY_WARPS, COPIERS = KEY_WARPS > 1 ? 32 : S::THREADS;
  static_assert(KEY_WARPS == 1 || (S::STAGES > 1 && HALVES == 1), "as it is written");
  using Inputs = InputsOf<T, ROW, Params>;
  const FwdBlock& u = params.block;
  const FwdPush& push = params.push;
  // Tiles of few rows are launched with programmatic dependent launch.
  constexpr bool FEW = BR <= kFewRows;
  if constexpr (FEW) grid_dependency_wait();
  Place at;
  if (!find_queries<ROW>(params, &at)) return;
  const int part = at.batch;  // over batch and splits
  at.batch = part / u.splits;
  const int kv_head = at.head / u.group;
  const int row0 = at.tile * BR;
  const Inputs in(params, at.batch);
  const View<T> q = in.queries(push.q, u.q, at.head, u.head_dim, push.wide & 1u);
  const View<T> k = in.keys(push.k, u.k, kv_head, u.head_dim, push.wide & 2u);
  const View<T> v = in.keys(push.v, u.v, kv_head, u.head_dim_v, push.wide & 4u);
  const TandemBand band = in.band();
  const TandemTiles span = tandem_split_tiles(
      tandem_key_tiles(band, row0, BR, BC, in.seq_q(), in.seq_kv()), part % u.splits, u.splits);
  // The first tile from t on that keep leaves something of.
  const auto next = [&](int t) {
    if constexpr (Inputs::SOME)
      while (t < span.end && in.template leaves_out<S::THREADS>(at.head, row0, BR, t * BC, BC)) ++t;
    return t;
  };

  const Lane me;
  const int half = HALVES > 1 ? me.warp % HALVES : 0, key_warp = KEY_WARPS > 1 ? me.warp : 0;
  const SharedArrays<S> tiles;
  const int own = KEY_WARPS > 1 ? 0 : 16 * MT * (me.warp / HALVES);
  const int row = row0 + own + me.g;  // the lane's first row
  const int copier = int(threadIdx.x) % COPIERS, first_stage = key_warp * S::STAGES;
  const int key = half * (BC / HALVES), feature = half * (S::FEATURES / HALVES);
  const SharedLeft<W, MT> q_at(tiles.q, own);
  HeldLeft<W, S::HELD ? MT : 1> q_held;
  const Exponent e(u.scale, Inputs::SOME);
  using Softmax = OnlineRows<MT, kIsF32<T>>;
  Softmax softmax;
  float o[MT][S::FEATURES / HALVES / 8][4];
  clear(o);
  const auto rows = [&] {
    if constexpr (HALVES > 1)
      return SharedRows<BR, HALVES>{tiles.numbers};
    else
      return OwnRows();
  }();

  const auto load_keys = [&](int to, int first) {
    load_rows<W, BC, COPIERS, FEW>(tiles.k + (first_stage + to) * S::KV_TILE, k, first, copier);
    if (S::STAGES > 1)
      load_rows<W, BC, COPIERS, FEW>(tiles.v + (first_stage + to) * S::KV_TILE, v, first, copier);
  };
  load_rows<W, BR, S::THREADS, FEW>(tiles.q, q, row0);
  commit();
  int t = next(span.begin) + key_warp;
  constexpr int AHEAD = S::STAGES > 1 ? S::STAGES - 1 : 1;  // tiles that are fetched ahead
  static_assert((AHEAD == 1 && KEY_WARPS == 1) || !Inputs::SOME,
                "the tile after next() is not known");
#pragma unroll
  for (int n = 0; n < AHEAD; ++n) {
    if (t + n * KEY_WARPS < span.end) load_keys(n, (t + n * KEY_WARPS) * BC);
    commit();
  }
  if constexpr (S::HELD || KEY_WARPS > 1) {
    wait<AHEAD>();
    __syncthreads();
  }
  if constexpr (S::HELD) q_held.load(q_at);
  int stage = 0;
#pragma unroll 1
  for (int after; t < span.end; t = Inputs::SOME ? after : t + KEY_WARPS) {
    const int col0 = t * BC;
    if constexpr (Inputs::SOME) after = next(t + 1);
    wait<AHEAD - 1>();
    if constexpr (KEY_WARPS > 1)
      sync_warp();
    else
      __syncthreads();
    if constexpr (S::STAGES > 1) {
      constexpr int FURTHER = AHEAD * KEY_WARPS;
      if ((Inputs::SOME ? after : t + FURTHER) < span.end)
        load_keys(S::STAGES == 2 ? 1 - stage : (stage + AHEAD) % S::STAGES,
                  Inputs::SOME ? after * BC : col0 + FURTHER * BC);
    } else {
      load_rows<W, BC, S::THREADS, FEW>(tiles.v, v, col0);
    }
    commit();
    [[maybe_unused]] BiasBlock<MT, BC / HALVES / 8> bias;
    if constexpr (Inputs::SOME)
      in.template load_bias<true>(bias, at.head, row, col0 + key + 2 * me.t);
    float s[MT][BC / HALVES / 8][4];
    // k_at and v_at are formed in the loop: formed before it, they make ptxas spill more
    // (D 128: 3 % slower on an H100).
    const RowsReach<T, W> k_at(tiles.k, false);
    if constexpr (S::HELD)
      product_nt<W, T>(s, q_held, k_at, (first_stage + stage) * BC + key);
    else
      product_nt<W, T>(s, SharedLeft<W, MT>(tiles.q, own), k_at, (first_stage + stage) * BC + key);
    e.apply(s);
    bool edge = t < span.full_begin || t >= span.full_end;
    if constexpr (Inputs::SOME) {
      in.template apply<true>(s, bias, at.head, row, col0 + key + 2 * me.t);
      edge |= row0 + BR > in.seq_q();
    }
    if (edge)
      hide(
          s, row, col0 + key + 2 * me.t, [&](int i) { return i + band.off - band.left; },
          [&](int i) {
            // Rows behind the entry's length are written where it is padded.
            if (Inputs::SOME && i >= in.seq_q()) return -1;
            return tandem_min(i + band.off + band.right, in.seq_kv() - 1);
          });
    softmax.step(s, o, e.c, u.slack, rows);
    uint p[MT][BC / HALVES / kDepth<T>][4];
    pack_rows<T>(p, s);
    if constexpr (HALVES > 1) put_rows<BC, true>(tiles.p, own, key, p);
    if constexpr (S::STAGES == 1) {
      wait<0>();
      __syncthreads();
      if ((Inputs::SOME ? after : t + 1) < span.end)
        load_keys(0, Inputs::SOME ? after * BC : col0 + BC);
      commit();
    }
    const AcrossReach<T, W> v_at(tiles.v, true);
    if constexpr (HALVES > 1)
      product_nn<W, T, BC / 16>(o, SharedLeft<BC, MT>(tiles.p, own), v_at, stage * BC, feature);
    else
      product_nn<W, T>(o, p, v_at, (first_stage + stage) * BC);
    if constexpr (S::STAGES > 1) stage = S::STAGES == 2 ? 1 - stage : (stage + 1) % S::STAGES;
  }
  if constexpr (FEW) launch_dependent_grids();
  wait<0>();
  __syncthreads();  // for Q, where no tile was visited
  if constexpr (KEY_WARPS > 1) {
    float own_o[MT][S::FEATURES / KEY_WARPS / 8][4];
    add_key_warps<KEY_WARPS, S::FEATURES>(own_o, softmax, o, e.c, tiles.q, tiles.k);
    store_o<T, ROW, Inputs>(params, in, e, softmax, WholeRows(), at, part, row, own_o, key_warp,
                            key_warp * (S::FEATURES / KEY_WARPS));
  } else {
    store_o<T, ROW, Inputs>(params, in, e, softmax, rows, at, part, row, o, half, feature);
  }
}

template <typename T, int ROW>
__global__ void __launch_bounds__(MmaShape<ROW>::THREADS, MmaShape<ROW>::GROUPS)
    fwd(const __grid_constant__ FwdParams params) {
  form_o<T, ROW>(params);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
#endif
