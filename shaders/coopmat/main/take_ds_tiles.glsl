// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dq from dS: the loop over tiles, two at a time.
int t = NEXT_DS(tiles.begin), next = NEXT_DS(t + 1), after;
FETCH(k_stage, ds_stage, t)
FETCH(k_ahead, ds_ahead, next)
if (t < tiles.end) [[dont_unroll]]
  for (;;) {
#define K_STAGE k_stage
#define DS_STAGE ds_stage
#include "coopmat/main/take_ds_tile.glsl"
#undef K_STAGE
#undef DS_STAGE
    if (t >= tiles.end) break;
#define K_STAGE k_ahead
#define DS_STAGE ds_ahead
#include "coopmat/main/take_ds_tile.glsl"
#undef K_STAGE
#undef DS_STAGE
    if (t >= tiles.end) break;
  }
