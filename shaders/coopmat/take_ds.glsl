// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq from the dS that bwd_dkv left: one product. Streamed tiles are K, and dS as stored, keys
// by query rows; loaded by columns it is the left operand.
const int DS_CHUNKS = ROWS / 8;      // of a key
const int DS_STAGED = DS_CHUNKS + 1; // of a key in shared memory
const int DS_VEC = (COLS * DS_CHUNKS + WG - 1) / WG;
uvec4 ds_stage[DS_VEC], ds_ahead[DS_VEC]; // of the next tile, and of the one behind it
#define k_stage stage_1
#define k_ahead stage_2

void fetch_ds(out uvec4 stage[DS_VEC], int n, int row0, int j0) {
  Rows4 from = Rows4(ds_address(block.sums, n, j0));
  const int first = ds_chunk(row0, j0 % DS_BLOCK);
  EACH(i, DS_VEC) {
    const int at = TID + i * WG, j = at / DS_CHUNKS;
    if (COLS * DS_CHUNKS % WG != 0 && at >= COLS * DS_CHUNKS) continue;
    const uvec4 words = from.w[first + j * DS_PITCH + at % DS_CHUNKS];
    // Keys past the end repeat the last one, in bwd_dkv, too.
    stage[i] = TILES_EXIST || j0 + j < block.seq_kv ? words : uvec4(0);
  }
}
void put_ds(int to, uvec4 stage[DS_VEC]) {
  EACH(i, DS_VEC) {
    const int n = TID + i * WG;
    if (COLS * DS_CHUNKS % WG != 0 && n >= COLS * DS_CHUNKS) continue;
    streamed[to + n / DS_CHUNKS * DS_STAGED + n % DS_CHUNKS] = stage[i];
  }
}

#define FETCH(k_to, ds_to, tile)                \
  if ((tile) < tiles.end) {                     \
    fetch_tile(k_to, k, (tile)*COLS, D_CHUNKS); \
    fetch_ds(ds_to, n, row0, (tile)*COLS);      \
  }
// Takes a tile. Prefetch is two tiles ahead, as there is little to multiply meanwhile.
#define TURN(k_from, ds_from)                                                               \
  barrier(); /* the readers of the tile before are done */                                  \
  put_tile(0, k_from, k, t* COLS, D_CHUNKS);                                                \
  put_ds(SECOND, ds_from);                                                                  \
  barrier();                                                                                \
  FETCH(k_from, ds_from, t + 2)                                                             \
  EACH(step, COL_STEPS) {                                                                   \
    const int at = step * MK * PITCH, ds_at = SECOND + step * MK * DS_STAGED;               \
    OPERAND_A ds[RM];                                                                       \
    EACH(r, RM)                                                                             \
      coopMatLoad(ds[r], streamed, ds_at + (BLOCK_ROW + r * MM) / 8, DS_STAGED, COL_MAJOR); \
    EACH(d, OWN_OUT) {                                                                      \
      OPERAND_B y;                                                                          \
      coopMatLoad(y, streamed, OUT_AT(at) + d * (MN / 8), PITCH, ROW_MAJOR);                \
      EACH(r, RM) acc[r][d] = coopMatMulAdd(ds[r], y, acc[r][d]);                           \
    }                                                                                       \
  }                                                                                         \
  if (++t >= tiles.end) break;

// Features of a subgroup's results: all, or half of them.
#if TANDEM_PAIR
#include "coopmat/pair.glsl"
#define OWN_OUT HALF_OUT
#define OUT_AT(at) at + out_at
#else
#define OWN_OUT D_OUT
#define OUT_AT(at) at
#endif

void main() {
  Place place;
  int n;
  if (!place_in_chunk(block.group, n, place)) return;
  const int b = place.batch, h = place.head, row0 = place.tile * ROWS;
  set_entry(b);
  View k = kv_view(push.k, block.k, b, h / block.group, entry.seq_kv, block.head_dim,
                   (push.wide & 2u) != 0);
  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  ACC acc[RM][OWN_OUT];
  EACH(r, RM)
    EACH(d, OWN_OUT) acc[r][d] = ACC(0.0);
#if TANDEM_PAIR
  const bool second = SECOND_OF_PAIR;
  const int out_at = FIRST_OUT * (MN / 8);
#endif
  FETCH(k_stage, ds_stage, tiles.begin)
  FETCH(k_ahead, ds_ahead, tiles.begin + 1)
  int t = tiles.begin;
  if (t < tiles.end) [[dont_unroll]]
    for (;;) {
      TURN(k_stage, ds_stage)
      TURN(k_ahead, ds_ahead)
    }
  View d_q = q_view(push.d_q, block.d_q, b, h, stored_q(), block.head_dim, (push.wide & 16u) != 0);
  EACH(r, RM)
    EACH(d, OWN_OUT)
      ELEMENTS(k, acc[r][d]) acc[r][d][k] *= block.scale;
#if TANDEM_PAIR
  PUT_HALVES(acc)
#else
  PUT_BLOCKS(acc, D_OUT)
#endif
  store_rows(d_q, row0, D_CHUNKS, entry.seq_q);
}
