// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the plain loop of fwd: to tile t, whose scores come into S.
put_tile(0, stage_1, k, 0, D_CHUNKS);
barrier();
if (BOTH_AHEAD)
  fetch_tile(stage_1, k, COL_OF(t + 1), D_CHUNKS);
else
  fetch_tile(stage_1, v, COL_OF(t), DV_CHUNKS);
#include "coopmat/main/fwd_plain_scores.glsl"
