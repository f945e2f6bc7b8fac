// SPDX-License-Identifier: MIT OR Apache-2.0
// Score policy with lengths and sinks, and also with softcap and ALiBi. Registers are short: it
// reads the work-tile descriptor at each use.
#ifndef TANDEM_CUDA_SM90_FWD_SCORE_VARLEN_CUH
#define TANDEM_CUDA_SM90_FWD_SCORE_VARLEN_CUH
#include <cfloat>

#include "../softcap.cuh"
#include "main_loop_ping_pong.cuh"
#include "varlen.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

// The factor of scores after they are compared. Softcap leaves scores in powers of two.
TANDEM_DEVICE float step_scale(const FwdOptionalParams& params) {
  return plain_scale(params.block) && !params.features.SOFTCAP ? params.block.scale * kLog2e : 1.f;
}

TANDEM_DEVICE float product_unit(const FwdOptionalParams& params) {
  return params.features.SOFTCAP ? kLn2 : product_unit(params.block);
}

// The same of a kernel whose scores may be in natural units (score_row_bias.cuh).
template <typename S>
TANDEM_DEVICE float score_unit(const FwdOptionalParams& params) {
  return S::ROW_BIAS ? 1.f : product_unit(params);
}

// Turns products into scores, but for step_scale(). distance: i + off - j of the thread's first
// element.
template <int N>
TANDEM_DEVICE void change_scores(float (&s)[N / 2], const FwdOptionalParams& params, int head,
                                 int distance) {
  const float scale = opaque(params.block.scale);
  if (params.features.SOFTCAP) {
    soft_cap(s, scale, params.extra.softcap, [](int, float, float) {});
  } else if (!plain_scale(params.block)) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) s[i] *= scale * kLog2e;
  }
  if (params.features.ALIBI) {
    const bool powers = params.features.SOFTCAP || !plain_scale(params.block);
    // The slope stays finite: infinity times a distance of 0 would be NaN.
    const float slope = fminf(
        fmaxf(__ldg(reinterpret_cast<const float*>(params.push.extra[params.features.AT_SLOPE]) +
                    head) *
                  (powers ? kLog2e : 1.f / scale),
              -FLT_MAX),
        FLT_MAX);
    const float first = float(distance);
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      s[i] = fmaf(-slope, fabsf(first + float(8 * (i / 2 % 2) - 8 * (i / 4) - i % 2)), s[i]);
  }
}

// lse of a row whose weights, relative to its origin, add up to l, and the factor of o. A sink may
// be any number: it is compared with the origin by a difference that is rounded once.
template <typename S>
TANDEM_DEVICE void end_row(const FwdOptionalParams& params, int head, const Origin& origin, float l,
                           float* lse, float* inverse) {
  *lse = -INFINITY, *inverse = 0.f;
  if (l == 0.f) return;
  const float unit = origin.ln_unit(score_unit<S>(params));
  const FwdPush& push = params.push;
  if (!push.sink) {
    *lse = fmaf(origin.m, unit, logf(l));
    *inverse = __fdiv_rn(1.f, l);
    return;
  }
  const float sink = __ldg(reinterpret_cast<const float*>(push.sink) + head),
              above = fmaf(origin.m, unit, -sink), factor = expf(fminf(above, 0.f));
  l = fmaf(l, factor, expf(-fmaxf(above, 0.f)));
  *lse = above > 0.f ? fmaf(origin.m, unit, logf(l)) : sink + logf(l);
  *inverse = __fdiv_rn(factor, l);
}

// How many rows of the batch entry there are from the thread's first one on.
TANDEM_DEVICE int varlen_rows_left(uint descriptor) {
  return ld_shared_v4_s32(descriptor + 32).x - ld_shared_v4_s32(descriptor).x - accumulator_row();
}

// Raises the largest logit of a work tile's head.
template <typename S>
TANDEM_DEVICE void raise_varlen_max(const FwdOptionalParams& params, const Softmax<S::N>& softmax,
                                    uint descriptor) {
  raise_max_logit(params.block, params.push, softmax, score_unit<S>(params), [&] {
    return BatchHead{ld_shared_v4_s32(descriptor + 48).x, ld_shared_v4_s32(descriptor + 32).w};
  });
}

// Stores o and lse of a work tile. factor: what o is multiplied by besides.
template <typename T, typename S>
TANDEM_DEVICE void store_varlen(const FwdOptionalParams& params, const FwdConsumer<T, S>& c,
                                uint descriptor, float factor) {
  const FwdBlock& u = params.block;
  FwdWorkTile at;
  float lse[2], inverse[2];
  read_work_tile(descriptor, &at);
  const int4 of = ld_shared_v4_s32(descriptor + 32);  // length, rows, first row, head
  const int row = at.row0 + accumulator_row();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    end_row<S>(params, of.w, c.softmax.origin(r), quad_sum(c.softmax.sum(r)), &lse[r], &inverse[r]);
    inverse[r] *= factor;
    if (row + 8 * r >= of.x) lse[r] = -INFINITY;
  }
  store_lse(u, params.push, at, lse);
  store_rows<T, S::DV, true>(c.o, inverse,
                             reinterpret_cast<ushort*>(params.push.o) +
                                 ld_shared_v4_s32(descriptor + 48).x * u.o.b + of.w * u.o.h +
                                 int64_t(of.z) * u.o.s,
                             u, at.row0, of.y, of.x);
}

template <typename T, typename S, typename Params>
struct VarlenScore : ScorePolicy<T, S> {
  using ScorePolicy<T, S>::c;
  using Tile = FwdWorkTile;
  const Params& params;
  const float scale;
  TANDEM_DEVICE VarlenScore(const Params& p, FwdConsumer<T, S>& consumer,
                            const typename ScorePolicy<T, S>::Held&)
      : ScorePolicy<T, S>(consumer),
        params(p),
        scale(S::ROW_BIAS        ? kLog2e
              : S::SOFTCAP_ALIBI ? step_scale(p)
                                 : step_scale(p.block)) {}

  TANDEM_DEVICE bool next(Tile* to) {
    c.wait_q();
    return read_work_tile(tile_descriptor_at<S>(c.shared, c.q_pipe.n), to);
  }
  TANDEM_DEVICE void begin_tile(const Tile&) {
    c.wait_q();
    c.kv.wait_k();
  }
  TANDEM_DEVICE int first_step(const Tile& at) const { return at.span.end - 1; }
  TANDEM_DEVICE bool begin_step(const Tile& at, int t) {
    if (t < at.span.begin) return false;
    c.kv.wait_k();
    return true;
  }
  TANDEM_DEVICE void score(const Tile&, int t) {
    const FwdBlock& u = params.block;
    const uint descriptor = tile_descriptor_at<S>(c.shared, c.q_pipe.n);
    if constexpr (S::SOFTCAP_ALIBI)
      change_scores<S::N>(c.s, params, ld_shared_v4_s32(descriptor + 32).w,
                          ld_shared_v4_s32(descriptor).x + accumulator_row() +
                              ld_shared_v4_s32(descriptor + 16).w - (t * S::N + accumulator_col()));
    else
      scale_products(c.s, u);
    hide(t);
  }
  // Hides the keys that the band and the length of the entry hide.
  TANDEM_DEVICE void hide(int t) {
    const FwdBlock& u = params.block;
    const uint descriptor = tile_descriptor_at<S>(c.shared, c.q_pipe.n);
    const int4 of = ld_shared_v4_s32(descriptor + 16);  // full_begin, full_end, keys, off
    if (t < of.x || t >= of.y)
      mask_tile<S::N>(c.s, TandemBand{u.band_left, u.band_right, of.w},
                      ld_shared_v4_s32(descriptor).x + accumulator_row(),
                      t * S::N + accumulator_col(), of.z, -INFINITY);
  }
  TANDEM_DEVICE int rows_left(const Tile&) const {
    return varlen_rows_left(tile_descriptor_at<S>(c.shared, c.q_pipe.n));
  }
  TANDEM_DEVICE void raise_max(const Tile&) const {
    raise_varlen_max<S>(params, c.softmax, tile_descriptor_at<S>(c.shared, c.q_pipe.n));
  }
  TANDEM_DEVICE void store(const Tile&) {
    store_varlen<T, S>(params, c, tile_descriptor_at<S>(c.shared, c.q_pipe.n - 1), 1.f);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
