// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the loop of bwd_dkv over query heads, which goes on if a head has no tile: its tiles.
float stat[STAT_TURNS];
BIAS_ARRAY(bias, [STEP_BLOCKS])
int next = next_tile(tiles.begin, tiles.end, row0, true);
if (SKIP_MASKED && next >= tiles.end) continue;
if (BIAS_PIPED) fetch_bias(BIAS_OF(bias, [0]), next * COLS, 0, row0, BLOCK_ROW);
if (BIAS_FIRST) {
  put_bias(bias[0]);
  fetch_bias(BIAS_OF(bias, [0]), next * COLS + MN, 0, row0, BLOCK_ROW);
}
fetch_tile(stage_1, q, next * COLS, D_CHUNKS);
fetch_tile(stage_2, d_o, next * COLS, DV_CHUNKS);
EACH(i, STAT_TURNS)
  if (TID + i * WG < STATS * COLS) stat[i] = fetch_stat(head, TID + i * WG, next * COLS);
while (next < tiles.end) {
  const int t = next, col0 = t * COLS;
  barrier(); // the readers of the tile before are done
  put_keep();
  put_tile(0, stage_1, q, col0, D_CHUNKS);
  put_tile(SECOND, stage_2, d_o, col0, DV_CHUNKS);
  EACH(i, STAT_TURNS) {
    const int n = TID + i * WG;
    if (n < STATS * COLS) stats[n / 4][n % 4] = stat[i];
  }
  turns++;
  if (own_far) atomicMax(OWN_WORD, turns);
  own_far = false;
  barrier();
  const bool far = OWN_WORD == turns;
  next = next_tile(t + 1, tiles.end, row0, true);
  if (next < tiles.end) {
    fetch_tile(stage_1, q, next * COLS, D_CHUNKS);
    fetch_tile(stage_2, d_o, next * COLS, DV_CHUNKS);
    EACH(i, STAT_TURNS)
      if (TID + i * WG < STATS * COLS) stat[i] = fetch_stat(head, TID + i * WG, next * COLS);
  }

  // Takes one matrix of columns after another, in a loop that stays rolled: only the
  // accumulators and the operands of k and v live from one iteration to the next. Unrolled, S
  // and dP of all columns need registers too, and on an H100 (580.159.04) 4 products run at 229
  // TFLOP/s instead of 276 at D 128, 298 instead of 340 at D 64.
  const bool partial = t < tiles.full_begin || t >= tiles.full_end,
             hides = spans_hide(my_row0, col0, true);
  [[dont_unroll]] for (int n = 0; n < COL_STEPS; n++) {
#include "coopmat/main/bwd_dkv_step.glsl"
    if (COL_STEPS == 1) break; // no loop, so that addresses are constants
  }
}
