// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of fwd, whose left operands are mq: acc and, in m, lse of the subgroup's rows.

// m: a maximum of the row's scores, the same in all columns. Weights are powers of two relative
// to m * log2_scale, rounded. l: until the end, each element's own part of the sum.
ACC acc[RM][DV_OUT], m[RM], l[RM];
#if TANDEM_CM2
ACC origin[RM];
#endif
EACH(r, RM) {
  m[r] = ACC(ORIGIN);
  l[r] = ACC(0.0);
  EACH(d, DV_OUT) acc[r][d] = ACC(0.0);
}

if (NORM != SOFTMAX) {
#include "coopmat/main/fwd_passes.glsl"
}

// One of two loops, so that specialise() leaves the driver one to compile.
if (PLAIN) {
#include "coopmat/main/fwd_plain_loop.glsl"
}
if (!PLAIN) {
#include "coopmat/main/fwd_loop.glsl"
}

EACH(r, RM) {
  if (NORM == SOFTMAX) {
    ACC factor;
    finish_rows(m[r], l[r], factor, h, my_row0 + r * MM);
    EACH(d, DV_OUT)
      ELEMENTS(k, factor) acc[r][d][k] *= factor[k];
  }
}
#if !TANDEM_BF16
if (SPLIT == 0)
  EACH(r, RM)
    EACH(d, DV_OUT)
      ELEMENTS(k, m[r]) acc[r][d][k] = tandem_f16_average(acc[r][d][k]);
#endif
