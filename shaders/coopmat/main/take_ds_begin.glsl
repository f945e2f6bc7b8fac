// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dq from dS: where the workgroup is, its tensors and its tiles.
Place place;
int n;
if (!place_in_chunk(block.group, n, place)) return;
const int b = place.batch, h = place.head, row0 = place.tile * ROWS;
set_entry(b);
View k = kv_view(push.k, block.k, b, h / block.group, entry.seq_kv, block.head_dim,
                 (push.wide & 2u) != 0);
TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
if (SKIP_SPANS) {
  if (tiles.begin < tiles.end) set_head(b, h);
}
