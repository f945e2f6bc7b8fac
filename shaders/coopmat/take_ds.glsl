// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dq from the dS that bwd_dkv left: one product. Streamed tiles are K, and dS as stored, keys
// by query rows; loaded by columns it is the left operand.
#include "coopmat/ds.glsl"
#include "coopmat/ds_place.glsl"
const int DS_CHUNKS = ROWS / 8;      // of a key
const int DS_STAGED = DS_CHUNKS + 1; // of a key in shared memory
const int DS_VEC = (COLS * DS_CHUNKS + WG - 1) / WG;
uvec4 ds_stage[DS_VEC], ds_ahead[DS_VEC]; // of the next tile, and of the one behind it
#define k_stage stage_1
#define k_ahead stage_2

// An invocation's chunk of dS in the turn-th iteration of a copy, as chunk_of() (stage.glsl).
int ds_chunk_of(int turn) {
  return OWN_CHUNK(TID + turn * WG, TID, COLS * DS_CHUNKS, COLS * DS_CHUNKS % WG == 0);
}
const bool DS_FOR_ALL = COLS * DS_CHUNKS >= WG; // every invocation has a chunk

void fetch_ds(out uvec4 stage[DS_VEC], int n, int row0, int j0) {
  Rows4 from = Rows4(ds_address(block.work, n, j0));
  const int first = ds_chunk(row0, j0 % DS_BLOCK);
  EACH(i, DS_VEC) {
    const int at = ds_chunk_of(i), j = at / DS_CHUNKS;
    if (!DS_FOR_ALL && at >= COLS * DS_CHUNKS) continue;
    const uvec4 words = from.w[first + j * DS_PITCH + at % DS_CHUNKS];
    // Keys past the end repeat the last one, in bwd_dkv, too.
    stage[i] = TILES_EXIST || j0 + j < block.seq_kv ? words : uvec4(0);
  }
}
void put_ds(int to, uvec4 stage[DS_VEC]) {
  EACH(i, DS_VEC) {
    const int n = ds_chunk_of(i);
    if (!DS_FOR_ALL && n >= COLS * DS_CHUNKS) continue;
    streamed[to + n / DS_CHUNKS * DS_STAGED + n % DS_CHUNKS] = stage[i];
  }
}

// The first tile from t on of which bwd_dkv may have left something.
#define NEXT_DS(t) (SKIP_SPANS ? next_shown(t, tiles.end, row0, ROWS, false) : (t))
#define FETCH(k_to, ds_to, tile)                \
  if ((tile) < tiles.end) {                     \
    fetch_tile(k_to, k, (tile)*COLS, D_CHUNKS); \
    fetch_ds(ds_to, n, row0, (tile)*COLS);      \
  }
