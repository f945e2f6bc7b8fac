// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq where bwd_dkv left ds: one product. Streamed tiles are K, and ds as it lies, keys by query rows: loaded by columns it
// is the left operand.
const int DS_CHUNKS = ROWS / 8; // of a key: no more than a row of K has (src/plan_launches.cpp)
const int DS_VEC = (COLS * DS_CHUNKS + WG - 1) / WG;
uvec4 ds_stage[DS_VEC];

void fetch_ds(Rows4 from, int j0) {
  EACH(i, DS_VEC) {
    const int n = TID + i * WG, j = n / DS_CHUNKS;
    if (COLS * DS_CHUNKS % WG != 0 && n >= COLS * DS_CHUNKS) continue;
    const uvec4 words = from.w[(j0 + j) * DS_PITCH + n % DS_CHUNKS];
    // Keys past the end repeat the last one, in bwd_dkv, too.
    ds_stage[i] = TILES_EXIST || j0 + j < block.seq_kv ? words : uvec4(0);
  }
}
void put_ds(int to) {
  EACH(i, DS_VEC) {
    const int n = TID + i * WG;
    if (COLS * DS_CHUNKS % WG != 0 && n >= COLS * DS_CHUNKS) continue;
    streamed[to + n / DS_CHUNKS * PITCH + n % DS_CHUNKS] = ds_stage[i];
  }
}

void main() {
  Place place;
  if (!place_in_chunk(own_index(), block.heads_q, block.first, block.heads, place)) return;
  const int b = place.batch, h = place.head, row0 = place.tile * ROWS;
  set_entry(b);
  View k = kv_view(push.k, block.k, b, h / block.group, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  Rows4 from = Rows4(ds_address(block.sums, int(own_index() % uint(block.heads)), 0, row0 / 8));
  ACC acc[RM][D_OUT];
  EACH(r, RM) EACH(d, D_OUT) acc[r][d] = ACC(0.0);
  if (tiles.begin < tiles.end) {
    fetch_tile(stage_1, k, tiles.begin * COLS, D_CHUNKS);
    fetch_ds(from, tiles.begin * COLS);
  }
  int slot = 0; // where the tile lies
  for (int t = tiles.begin; t < tiles.end; t++) {
    if (SLOTS == 1) barrier(); // the readers of the tile before are done
    put_tile(slot, stage_1, k, t * COLS, D_CHUNKS);
    put_ds(slot + SECOND);
    barrier();
    if (t + 1 < tiles.end) {
      fetch_tile(stage_1, k, (t + 1) * COLS, D_CHUNKS);
      fetch_ds(from, (t + 1) * COLS);
    }
    EACH(n, COL_STEPS) {
      const int at = slot + n * MK * PITCH;
      OPERAND_A ds[RM];
      EACH(r, RM) coopMatLoad(ds[r], streamed, SECOND + at + (BLOCK_ROW + r * MM) / 8, PITCH, COL_MAJOR);
      EACH(d, D_OUT) {
        OPERAND_B y;
        coopMatLoad(y, streamed, at + d * (MN / 8), PITCH, ROW_MAJOR);
        EACH(r, RM) acc[r][d] = coopMatMulAdd(ds[r], y, acc[r][d]);
      }
    }
    NEXT_SLOT(slot)
  }
  View d_q = q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
  EACH(r, RM) EACH(d, D_OUT) ELEMENTS(k, acc[r][d]) acc[r][d][k] *= block.scale;
  PUT_BLOCKS(acc, D_OUT)
  store_rows(d_q, row0, D_CHUNKS, entry.seq_q);
}
