// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dkv with split features: everything behind the place and the tiles.
OPERAND_A left[LEFT_OWN];
LOAD_SLICES(left, k, v, row0)
ACC acc[LEFT_OWN];
EACH(d, LEFT_OWN) acc[d] = ACC(0.0);
// The rows of the first and of the second products: of q or d_o, and of the other one.
const int slice_at = SLICE * LEFT_OWN * (MK / 8), first_at = slice_at + (second ? SECOND : 0),
          then_at = slice_at + (second ? 0 : SECOND);

for (int g = 0; g < heads; g++) {
#include "coopmat/main/bwd_dkv_views.glsl"
#if SHARES_DS
  ds_from = ds_address(block.work, chunk_head * block.group + g, row0);
  DsStore to = DsStore(ds_from);
#endif
  float stat[STAT_TURNS];
  int next = next_tile(tiles.begin, tiles.end, row0, true);
  if (SKIP_MASKED && next >= tiles.end) continue;
  fetch_tile(stage_1, q, next * COLS, D_CHUNKS);
  fetch_tile(stage_2, d_o, next * COLS, DV_CHUNKS);
  EACH(i, STAT_TURNS)
    if (TID + i * WG < STATS * COLS) stat[i] = fetch_stat(head, TID + i * WG, next * COLS);
  while (next < tiles.end) {
    const int t = next, i0 = t * COLS;
    barrier(); // the readers of the tile before are done
    put_tile(0, stage_1, q, i0, D_CHUNKS);
    put_tile(SECOND, stage_2, d_o, i0, DV_CHUNKS);
    EACH(i, STAT_TURNS) {
      const int n = TID + i * WG;
      if (n < STATS * COLS) stats[n / 4][n % 4] = stat[i];
    }
    turns++;
    if (own_far) atomicMax(OWN_WORD, turns);
    own_far = false;
    barrier();
    const bool far = OWN_WORD == turns, partial = t < tiles.full_begin || t >= tiles.full_end;
    next = next_tile(t + 1, tiles.end, row0, true);
    const bool hides = spans_hide(my_row0, i0, true);
    BIAS_ARRAY(bias, [RM])
    fetch_bias(BIAS_OF(bias, [0]), i0, 0, row0, BLOCK_ROW);
    ACC s[RM], slope[RM], dp;
    SLICE_PRODUCTS(dp, left, first_at)
    barrier();
    SUM_SLICES(s[0], 0)
    if (REUSES_SCRATCH) {
      SUM_SLICES(dp, 1)
      barrier();
    }
    FINISH_STEP(s, slope, bias, 0, i0, my_row0, true, partial, hides)
    if (far) {
      FAR_STEP(s, q, k, head, i0, my_row0, true)
    }
    const int n = 0; // of a tile's steps, for STEP_STATS
    STEP_STATS(origin, 0)
    ELEMENTS(e, dp) s[0][e] = base_at(s[0][e], origin[e]);
    if (!REUSES_SCRATCH) {
      SUM_SLICES(dp, 1)
    }
    STEP_STATS(delta, 1)
    ACC y = s[0];
    if (DROPOUT != 0) {
      ACC factor = drop_block(i0, my_row0, true);
      ELEMENTS(e, y) {
        y[e] *= factor[e];
        dp[e] *= factor[e];
      }
    }
    ELEMENTS(e, y) {
      float ds = ds_at(s[0][e], 0.0, dp[e], delta[e]);
      if (SOFTCAP != 0) ds *= slope[0][e];
      y[e] = second ? ds : y[e];
    }
    const OPERAND_A own = to_operand(y); // P or dS
    // The last tile once more, if there is none left: what a branch does to registers costs more.
    const int from = min(next, tiles.end - 1) * COLS;
    fetch_tile(stage_1, q, from, D_CHUNKS);
    fetch_tile(stage_2, d_o, from, DV_CHUNKS);
    EACH(i, STAT_TURNS)
      if (TID + i * WG < STATS * COLS) stat[i] = fetch_stat(head, TID + i * WG, from);
    SUM_PRODUCTS(acc, LEFT_OWN, own, then_at)
#if SHARES_DS
    if (OWNER == SLICES)
      coopMatStore(own, to.w, ds_chunk(i0, row0 % DS_BLOCK + BLOCK_ROW), DS_PITCH, ROW_MAJOR);
#endif
  }
}

View d_k = kv_view(push.d_k, block.d_k, b, hk, stored_kv(), block.head_dim, (push.wide & 16u) != 0);
View d_v =
    kv_view(push.d_v, block.d_v, b, hk, stored_kv(), block.head_dim_v, (push.wide & 32u) != 0);
const float scale = second ? block.scale : 1.0;
EACH(d, LEFT_OWN)
  ELEMENTS(e, acc[d]) acc[d][e] *= scale;
EACH(pass, PASSES(LEFT_OWN)) {
  PUT_PASS(acc, LEFT_OWN, pass)
  if (GRAD_V != 0) store_pass(d_v, 0, SLICES, LEFT_OWN, row0, pass, entry.seq_kv);
  if (GRAD_K != 0) store_pass(d_k, SLICES, SLICES, LEFT_OWN, row0, pass, entry.seq_kv);
}
