// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the loop of bwd_dq over a tile's matrices of columns: the turn-th.
// The last of the two blocks is the team's.
const int n = ENTRIES > 1 ? turn ^ TEAM ^ 1 : turn;
const int at = n * MK * PITCH, j0 = col0 + n * MK;
ACC s[STEP_BLOCKS], dp[STEP_BLOCKS], slope[STEP_BLOCKS];
ACC sum[STEP_BLOCKS];
EACH(q, STEP_BLOCKS) {
  if (SPAN == 1)
    fetch_bias(BIAS_OF(bias, [q]), row0, BLOCK_ROW + STEP_ROW(q), col0, n * MK + STEP_COL(q));
  if (SUMS != 0 && ENTRIES == 1) {
    sum[q] = ahead[q][0];
    ahead[q][0] = ahead[q][1];
    LOAD_SUM(ahead[q][1], q, t * NB + n + 2)
  }
  s[q] = ACC(0.0);
  dp[q] = ACC(0.0);
}
// S and dP are interleaved, as their products do not depend on each other.
EACH(d, MOST_BLOCKS) {
  if (d < D_BLOCKS) MULTIPLY_LEFT(s, mq, 2, at, d)
  if (NORM != ENTMAX && d < DV_BLOCKS) MULTIPLY_LEFT(dp, md_o, 1, SECOND + at, d)
}
if (SPAN > 1 && turn == 0) begin_bias(bias[0]);
FINISH_STEP(s, slope, bias, n, my_row0, j0, false, t < tiles.full_begin || t >= tiles.full_end,
            hides)
if (far) {
  FAR_STEP(s, q, k, b * block.heads_q + h, my_row0, j0, false)
}
// The block that the other team adds goes through the scratch, which the tile's last bias
// has left.
if (ENTRIES > 1 && turn == NB - 1)
  coopMatStore(own[0], scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
if (ENTRIES > 1) {
  coopMatLoad(origin[0], iota, OWN_NUMBERS, 0, COL_MAJOR);
  coopMatLoad(delta[0], iota, OWN_NUMBERS + MM / 4, 0, COL_MAJOR);
}
if (NORM == ENTMAX) { // without a weight in the block, nothing follows
  bool any = false;
  EACH(q, STEP_BLOCKS)
    ELEMENTS(k, s[q]) any = any || s[q][k] > OF_ROW(origin, q)[k];
  if (LEAVES_BLOCKS && !subgroupAny(any)) continue;
  EACH(d, DV_BLOCKS) MULTIPLY_LEFT(dp, md_o, 1, SECOND + at, d)
}
OPERAND_A ds[RM];
BEFORE(ds)
EACH(q, STEP_BLOCKS) {
  if (DROPOUT != 0) {
    ACC factor = drop_block(my_row0 + STEP_ROW(q), AT_COL(j0, q), false);
    ELEMENTS(k, factor) dp[q][k] *= factor[k];
  }
  ELEMENTS(k, s[q])
    s[q][k] = ds_at(base_at(s[q][k], OF_ROW(origin, q)[k]), OF_ROW(share, q)[k], dp[q][k],
                    OF_ROW(delta, q)[k]);
  if (ENTRIES > 1) {
    own[q] = s[q];
  } else if (SUMS != 0) {
    ELEMENTS(k, s[q]) sum[q][k] = b > 0 ? sum[q][k] + s[q][k] : s[q][k];
    if (b == block.batches - 1)
      store_ds(sum[q], my_row0 + STEP_ROW(q), j0, MY_SCRATCH);
    else
      coopMatStore(sum[q], sums.w, SUM_AT(q, t * NB + n), MN / 4, ROW_MAJOR);
#if TANDEM_CM2
  } else if (DS_HALVES && SOFTCAP == 0) {
    ds[q] = OPERAND_A(round_ds(s[q]));
    store_rounded(ds[q], my_row0 + STEP_ROW(q), AT_COL(j0, q), MY_SCRATCH);
    continue;
#endif
  } else if (D_BIAS != 0) {
    store_ds(s[q], my_row0 + STEP_ROW(q), AT_COL(j0, q), MY_SCRATCH);
  }
  if (SOFTCAP != 0) {
    ELEMENTS(k, s[q]) s[q][k] *= slope[q][k];
  }
  PUT_OPERAND(ds, q, s[q], (s[q]))
}
EACH(d, D_OUT) {
  OPERAND_B y;
  coopMatLoad(y, streamed, OWN_STREAMED(at) + d * (MN / 8), PITCH, ROW_MAJOR);
  EACH(r, RM) acc[r][d] = coopMatMulAdd(ds[r], y, acc[r][d]);
}
