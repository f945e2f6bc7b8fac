// SPDX-License-Identifier: MIT OR Apache-2.0
// The online row state of fwd, and p from lse in the backward. Twin of shaders/parts/softmax.glsl.
#ifndef TANDEM_CUDA_PARTS_SOFTMAX_CUH
#define TANDEM_CUDA_PARTS_SOFTMAX_CUH
#include "mask.cuh"
#include "problem/far_row.h"
#include "problem/rounded_weights.h"
#include "tile.cuh"

namespace tandem {
namespace cuda {

// Reductions over a row, whose TC invocations are neighbours in a warp, or every other one (PAIRS).
template <typename S>
TANDEM_DEVICE float row_max(float x) {
#pragma unroll
  for (int lane = S::TC / 2; lane > 0; lane /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, S::PAIRS ? 2 * lane : lane));
  return x;
}
template <typename S>
TANDEM_DEVICE float row_sum(float x) {
#pragma unroll
  for (int lane = S::TC / 2; lane > 0; lane /= 2)
    x += __shfl_xor_sync(kAllLanes, x, S::PAIRS ? 2 * lane : lane);
  return x;
}

template <typename S>
struct OnlineSoftmax {
  float m[S::RM];  // the row's running maximum, the same in all its invocations
  float l[S::RM];  // this invocation's part of the row's sum

  TANDEM_DEVICE OnlineSoftmax() {
#pragma unroll
    for (int i = 0; i < S::RM; ++i) m[i] = minus_infinity(), l[i] = 0.f;
  }

  // Turns scores into p. factor: what earlier results of the row are to be multiplied by.
  TANDEM_DEVICE void step(float (&s)[S::RM][4], float (&factor)[S::RM]) {
#pragma unroll
    for (int i = 0; i < S::RM; ++i) {
      const float top =
          row_max<S>(fmaxf(fmaxf(m[i], fmaxf(s[i][0], s[i][1])), fmaxf(s[i][2], s[i][3])));
      // While no key is visible, -inf - -inf would be NaN. Any finite base gives p = 0 and factor
      // 0, and the results that are multiplied by it are still 0.
      const float base = top == minus_infinity() ? 0.f : top;
      factor[i] = expf(m[i] - base);
      m[i] = top;
      float sum = 0.f;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        s[i][c] = expf(s[i][c] - base);
        sum += s[i][c];
      }
      l[i] = fmaf(l[i], factor[i], sum);
    }
  }
};

// Backward: p = exp(s - lse). A row that sees no key has lse = -inf and weights 0.
TANDEM_DEVICE float weight(float s, float lse) {
  return lse == minus_infinity() ? 0.f : expf(s - lse);
}

// What bwd_origin has stored for a far row (src/problem/far_row.h): the origin of its scores, and
// lse relative to it. deltas: address of delta of the first of all rows; row: index among all rows.
struct FarRow {
  float origin, relative;
};
TANDEM_DEVICE FarRow far_row(uint64_t deltas, int64_t row) {
  const float* at = reinterpret_cast<const float*>(deltas) - 2 * (row + 1);
  return {__ldg(at), __ldg(at + 1)};
}
TANDEM_DEVICE float from_origin(float s, float origin) { return fminf(s - origin, 0.f); }

// Makes the scores of the tile's far rows relative to their origins. lse: address of the caller's
// lse. row0: index of the tile's first row among all rows; rows: how many exist from it on.
template <typename S>
TANDEM_DEVICE void take_far_rows(float (&s)[S::RM][4], uint64_t lse, uint64_t deltas, int64_t row0,
                                 int rows) {
  const Invocation<S> me;
#pragma unroll
  for (int i = 0; i < S::RM; ++i) {
    const int64_t row = row0 + me.row(i);
    if (me.row(i) >= rows || !tandem_is_far(__ldg(reinterpret_cast<const float*>(lse) + row)))
      continue;
    const float origin = far_row(deltas, row).origin;
#pragma unroll
    for (int c = 0; c < 4; ++c) s[i][c] = from_origin(s[i][c], origin);
  }
}
// The same where the tile's columns are query rows. lse of the invocation's columns becomes
// relative, too. row0: index of column 0.
template <typename S>
TANDEM_DEVICE void take_far_columns(float (&s)[S::RM][4], float (&lse)[4], uint64_t deltas,
                                    int64_t row0) {
  const Invocation<S> me;
  if (!(tandem_is_far(lse[0]) | tandem_is_far(lse[1]) | tandem_is_far(lse[2]) |
        tandem_is_far(lse[3])))
    return;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (!tandem_is_far(lse[c])) continue;
    const FarRow far = far_row(deltas, row0 + me.col(c));
    lse[c] = far.relative;
#pragma unroll
    for (int i = 0; i < S::RM; ++i) s[i][c] = from_origin(s[i][c], far.origin);
  }
}

// Stores lse = a + b of a part of a row's keys, for fwd_combine. Where it is not near 0, also
// stores the rounding error of a + b, in front of lse of all parts, counted downwards: without it,
// parts of unlike sizes would be combined with an error of 2^-24 of lse.
constexpr float kNearLse = 64.f;
TANDEM_DEVICE void put_part_lse(float* lse, int64_t row, float a, float b) {
  const float sum = __fadd_rn(a, b), of_b = __fsub_rn(sum, a);
  lse[row] = sum;
  if (fabsf(sum) > kNearLse)
    lse[-1 - row] = __fadd_rn(__fsub_rn(a, __fsub_rn(sum, of_b)), __fsub_rn(b, of_b));
}

// ---- with optional inputs -----------------------------------------------------------------------

// The head whose sink a head of a batch entry has. which: FwdSpec::SINK.
template <typename Block>
TANDEM_DEVICE int sink_head(uint which, const Block& u, int batch, int head) {
  return which == 3 ? batch / u.sink_entries * u.heads_q + head : head;
}
// The sink of a row; nullptr: there is none. head: its sink_head(); rows: of a head.
TANDEM_DEVICE const float* sink_of_row(uint which, uint64_t address, int head, int row, int rows) {
  if (!which) return nullptr;
  return reinterpret_cast<const float*>(address) +
         (which == 2 ? head * rows + tandem_min(row, rows - 1) : head);
}

// lse of a row with maximum m and sum l > 0, and with sink as one more score.
TANDEM_DEVICE float joined_lse(const float* sink, float m, float l) {
  if (!sink) return m + logf(l);
  const float s = __ldg(sink), top = fmaxf(m, s);
  return top + logf(fmaf(l, expf(m - top), expf(s - top)));
}
// The same, relative to m. A sink that is beyond f32 relative to m has all weight anyhow.
TANDEM_DEVICE float joined_lse_from(const float* sink, float m, float l) {
  if (!sink) return logf(l);
  const float s = fminf(__ldg(sink) - m, 3.402823466e38f), top = fmaxf(s, 0.f);
  return top + logf(fmaf(l, expf(-top), expf(s - top)));
}

// What the weights of a row are relative to, where that must be known before the first weight. at:
// lse of elastic softmax, or the threshold of entmax. from: 0, or of a far row
// (src/problem/far_row.h) its largest score, which is subtracted from the scores first; `at` is
// then relative to it.
struct RowOrigin {
  float at = 0.f, from = 0.f;
  // What is stored as lse. With elastic softmax a sink has a part in it. A sink far above all keys
  // is lse: their weights, at most 2^31 of e^0, do not reach e^-42 of its own. from + at would be
  // rounded to the last place of from.
  TANDEM_DEVICE float lse(const float* sink) const {
    if (from == 0.f) return at;
    return sink && at > 64.f ? __ldg(sink) : from + at;
  }
};

}  // namespace cuda
}  // namespace tandem
#endif
