// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dkv by pairs: where the workgroup is, and its tensors.
// The first keys come first: with a causal mask most rows see them, and they take longest.
const int row0 = (int(block.tiles) - 1 - place.tile) * ROWS;
const int b = place.batch, hk = place.head, my_row0 = row0 + BLOCK_ROW;
const bool second = SECOND_OF_PAIR;
set_entry(b);
begin_scores();
begin_iota();
begin_votes();
if (TID == 0) OWN_WORD = 0;
uint turns = 0; // tiles that were put so far; OWN_WORD: the last one with a far row
View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
