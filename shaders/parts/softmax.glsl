// SPDX-License-Identifier: MIT OR Apache-2.0
// The weights: exp(s - origin). The origin is the running row maximum in fwd, and lse in the
// backward. Differences are in natural units, so if s equals the origin the weight is exactly 1.

// precise: see score.glsl.
float weight(float s, float origin) {
  precise float x = s - origin;
  return is_hidden(s) ? 0.0 : exp(x);
}
vec4 weights(vec4 s, vec4 origin) {
  return vec4(weight(s.x, origin.x), weight(s.y, origin.y), weight(s.z, origin.z),
              weight(s.w, origin.w));
}

// lse as an origin. A row that saw no key gets an origin above every score, so its weights are
// zeros.
const float NO_LSE = 3.402823466e+38;
// A row's own lse is at most the number below: scores go up to NO_LSE itself.
float real_lse(float lse) { return min(lse, 3.40282326e+38); }
float lse_origin(uint bits) { return bits == LSE_NONE ? NO_LSE : real_lse(uintBitsToFloat(bits)); }

// Far rows (src/problem/far_row.h): of the backward, as lse_origin() determines, and scores
// relative to the row's origin.
bool is_far_origin(float origin) { return origin != NO_LSE && tandem_is_far(origin); }
float from_origin(float s, float origin) {
  precise float x = s - origin;
  return min(x, 0.0);
}
vec4 from_origin(vec4 s, vec4 origin) {
  return vec4(from_origin(s.x, origin.x), from_origin(s.y, origin.y), from_origin(s.z, origin.z),
              from_origin(s.w, origin.w));
}

#ifndef BY_ELEMENT
// Combines one value a row over the invocations of the row, in a fixed order; all get the result.
// Uses the pool.
void share_rows(float x[RM]) {
  barrier(); // the pool's readers are done
  [[unroll]] for (int v = 0; v < (RM + 3) / 4; v++) {
    vec4 four = vec4(0);
    [[unroll]] for (int e = 0; e < 4; e++) if (4 * v + e < RM) four[e] = x[4 * v + e];
    pool[(PAIRED != 0 ? TROW * TC + TCOL : TID) * ((RM + 3) / 4) + v] = four;
  }
  barrier();
}
void row_max(inout float x[RM]) {
  share_rows(x);
  [[unroll]] for (int v = 0; v < (RM + 3) / 4; v++) {
    vec4 best = pool[TROW * TC * ((RM + 3) / 4) + v];
    for (int t = 1; t < TC; t++) best = max(best, pool[(TROW * TC + t) * ((RM + 3) / 4) + v]);
    [[unroll]] for (int e = 0; e < 4; e++) if (4 * v + e < RM) x[4 * v + e] = best[e];
  }
}
void row_sum(inout float x[RM]) {
  share_rows(x);
  [[unroll]] for (int v = 0; v < (RM + 3) / 4; v++) {
    vec4 sum = pool[TROW * TC * ((RM + 3) / 4) + v];
    for (int t = 1; t < TC; t++) sum += pool[(TROW * TC + t) * ((RM + 3) / 4) + v];
    [[unroll]] for (int e = 0; e < 4; e++) if (4 * v + e < RM) x[4 * v + e] = sum[e];
  }
}
#endif
