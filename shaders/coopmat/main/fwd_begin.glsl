// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of fwd: where the workgroup is, its tensors, and the tiles that it takes.
if (REDO != 0) {
  redo_rows();
  return;
}
Place place;
if (!find_place(block.heads_q, place)) return;
const int part = place.batch; // over batch entries and splits
const int b = SPLIT != 0 ? part / block.splits : part, h = place.head, hk = h / block.group;
const int row0 = place.tile * ROWS;
const int my_row0 = row0 + BLOCK_ROW;
set_entry(b);
begin_scores();
begin_iota();
begin_votes();
View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
if (SPLIT != 0) tiles = tandem_split_tiles(tiles, part % block.splits, block.splits);
if (tiles.begin < tiles.end) set_head(b, h);
