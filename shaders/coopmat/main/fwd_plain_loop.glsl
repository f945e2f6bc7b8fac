// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of fwd: the plain loop (fwd_plain.glsl). S names the scores that a part takes:
// s, or ahead. If no tile is masked, an unused multiplication behind the last tile costs less than
// leaving in the middle.
ACC below[RM], s[RM][NB], ahead[RM][NB];
BIAS_ARRAY(bias, [RM][NB])
if (MAXIMA_WAIT) {
  EACH(r, RM) {
    ELEMENTS(i, m[r]) below[r][i] = -log2_origin(m[r][i]);
    coopMatStore(m[r], scratch, MY_SCRATCH, MN / 4, ROW_MAJOR);
  }
  subgroupBarrier();
}
int t = tiles.begin;
if (t < tiles.end) {
  if (BIAS_FIRST) {
    FETCH_BIAS(bias, row0, t * COLS)
  }
  fetch_tile(stage_1, k, t * COLS, D_CHUNKS);
  put_tile(0, stage_1, k, 0, D_CHUNKS);
  if (BOTH_AHEAD) {
    fetch_tile(stage_2, v, t * COLS, DV_CHUNKS);
    fetch_tile(stage_1, k, COL_OF(t + 1), D_CHUNKS);
  } else
    fetch_tile(stage_1, v, t * COLS, DV_CHUNKS);
  barrier();
#define S s
#include "coopmat/main/fwd_plain_scores.glsl"
#undef S
  if (BOTH_AHEAD && WHOLE == 0) { // two at a time, which saves copies of the prefetch
    for (;;) {
#define S s
#include "coopmat/main/fwd_plain_weights.glsl"
#undef S
      t++;
      if (WHOLE == 0 && t >= tiles.end) break;
#define S ahead
#include "coopmat/main/fwd_plain_next.glsl"
#undef S
      if (WHOLE != 0 && t >= tiles.end) break;

#define S ahead
#include "coopmat/main/fwd_plain_weights.glsl"
#undef S
      t++;
      if (WHOLE == 0 && t >= tiles.end) break;
#define S s
#include "coopmat/main/fwd_plain_next.glsl"
#undef S
      if (WHOLE != 0 && t >= tiles.end) break;
    }
  } else {
    for (;;) {
#define S s
#include "coopmat/main/fwd_plain_weights.glsl"
#undef S
      t++;
      if (WHOLE == 0 && t >= tiles.end) break;
#define S s
#include "coopmat/main/fwd_plain_next.glsl"
#undef S
      if (WHOLE != 0 && t >= tiles.end) break;
    }
  }
}
if (MAXIMA_WAIT) {
  EACH(r, RM) {
    coopMatLoad(m[r], scratch, MY_SCRATCH, MN / 4, ROW_MAJOR);
    subgroupBarrier();
  }
}
