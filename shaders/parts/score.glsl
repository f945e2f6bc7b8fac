// SPDX-License-Identifier: MIT OR Apache-2.0
// From the raw product to the score s. precise: a product contracted into the difference in the
// argument of exp would not be rounded, and s would differ from the s that row maximum and lse were
// made of. As every step is precise, forward and backward kernels have the same bits.
#include "problem/tanh.h"

float cap_score(float s, out float slope) {
  precise float ratio = s / extra.softcap;
  float t = tandem_tanh(ratio);
  slope = tandem_tanh_slope(ratio, t);
  precise float capped = extra.softcap * t;
  return capped;
}

float load_bias(int i, int j) {
  return load_float(BIAS, add64(inputs.bias, to_bytes(add64(mul64(extra.bias.sd.xy, near_query(i)),
                                                            mul64(extra.bias.sd.zw, near_key(j))),
                                                      BIAS_SHIFT)));
}
float load_dist(int t) {
  float d = load_float(F32, word_address(inputs.dist, clamp(t, 0, extra.dist_window - 1)));
  return t >= 0 && t < extra.dist_window ? d : 0.0;
}
// The terms after bias.
float add_inputs(float s, int i, int j) {
  const int t = i + entry.off - j;
  precise float x = s;
  if (DIST != 0) x = x + load_dist(t);
  if (ALIBI != 0) {
    precise float far = inputs.slope * float(abs(t));
    x = x - far;
  }
  if (NORM == ENTMAX) x = x * extra.entmax_scale;
  return x;
}

#ifndef BY_ELEMENT
vec4 cap_slope[RQ]; // softcap: the derivative of the capped score, for the backward

// Query rows from i0, keys from j0. flip: the rows of the tile are keys.
void score_tile(inout vec4 s[RQ], int i0, int j0, bool flip) {
  [[unroll]] for (int r = 0; r < RQ; r++) {
    precise vec4 scaled = s[r] * block.scale;
    if (SOFTCAP != 0) {
      [[unroll]] for (int c = 0; c < 4; c++) {
        float slope;
        scaled[c] = cap_score(scaled[c], slope);
        cap_slope[r][c] = slope;
      }
    }
    if (BIAS != 0 || DIST != 0 || ALIBI != 0 || NORM == ENTMAX) {
      [[unroll]] for (int c = 0; c < 4; c++) {
        const int i = query_of(i0, r, c, flip), j = key_of(j0, r, c, flip);
        if (BIAS != 0) scaled[c] = scaled[c] + load_bias(i, j);
        scaled[c] = add_inputs(scaled[c], i, j);
      }
    }
    s[r] = scaled;
  }
}

// ds of the score as ds of the scaled product.
vec4 through_cap(vec4 ds, int r) { return SOFTCAP != 0 ? ds * cap_slope[r] : ds; }
#endif
