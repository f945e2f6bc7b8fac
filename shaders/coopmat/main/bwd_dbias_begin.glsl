// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dbias: where the workgroup is, and what is summed.
Place place;
if (!find_place(block.bias_heads, place)) return;
const int bias_b = place.batch % block.bias_batch, split = place.batch / block.bias_batch;
const int key_tiles = (block.seq_kv + COLS - 1) / COLS, key_tile = place.tile % key_tiles,
          col0 = key_tile * COLS;
const int i0 = place.tile / key_tiles * ROWS; // row of bias; 0 with ONE_ROW
begin_scores();
begin_iota();
begin_votes();

ACC acc[RM][NB];
EACH(r, RM)
  EACH(n, NB) acc[r][n] = ACC(0.0);
