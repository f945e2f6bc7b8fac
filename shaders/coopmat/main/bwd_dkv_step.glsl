// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the loop of bwd_dkv over a tile's matrices of columns: the n-th.
const int at = n * MK * PITCH, i0 = col0 + n * MK;
ACC s[STEP_BLOCKS], dp[STEP_BLOCKS], slope[STEP_BLOCKS];
if (BIAS_PIPED && !BIAS_FIRST) {
  put_bias(bias[0]);
  subgroupBarrier();
  fetch_bias(BIAS_OF(bias, [0]), n + 1 < COL_STEPS ? i0 + MK : next * COLS, 0, row0, BLOCK_ROW);
}
EACH(q, STEP_BLOCKS) {
  if (!BIAS_PIPED) fetch_bias(BIAS_OF(bias, [q]), i0, STEP_COL(q), row0, BLOCK_ROW + STEP_ROW(q));
  if (BIAS_FIRST) subgroupBarrier(); // put into the scratch in the previous block
  s[q] = first_block(BIAS_OF(bias, [q]), 0, true);
  if (BIAS_EARLY && TANDEM_BF16 == 0) PIPE_BIAS
  dp[q] = ACC(0.0);
  if (MASKS_FIRST && NEEDS_MASK(partial))
    mask_block(s[q], AT_COL(i0, q), my_row0 + STEP_ROW(q), true);
}
// S and dP are interleaved, as their products do not depend on each other.
EACH(d, MOST_BLOCKS) {
  if (d < D_BLOCKS) MULTIPLY_LEFT(s, mk, 2, at, d)
  if (GRAD_K != 0 && NORM != ENTMAX && d < DV_BLOCKS) MULTIPLY_LEFT(dp, mv, 1, SECOND + at, d)
}
if (BIAS_EARLY && TANDEM_BF16 == 1) PIPE_BIAS
FINISH_STEP(s, slope, bias, 0, i0, my_row0, true, partial, hides)
if (far) {
  FAR_STEP(s, q, k, head, i0, my_row0, true)
}
STEP_STATS(origin, 0)
STEP_STATS(delta, 1)
if (NORM == ENTMAX) { // without a weight in the block, nothing follows
  bool any = false;
  EACH(q, STEP_BLOCKS)
    ELEMENTS(k, s[q]) any = any || s[q][k] > OF_COL(origin, q)[k];
  if (LEAVES_BLOCKS && !subgroupAny(any)) continue;
  if (GRAD_K != 0) {
    EACH(d, DV_BLOCKS) MULTIPLY_LEFT(dp, mv, 1, SECOND + at, d)
  }
}
STEP_STATS(share, 2)
OPERAND_A p[RM], ds[RM];
BEFORE(p)
BEFORE(ds)
EACH(q, STEP_BLOCKS) {
  ELEMENTS(k, s[q]) s[q][k] = base_at(s[q][k], OF_COL(origin, q)[k]);
  ACC y = s[q];
  if (NORM != SOFTMAX) {
    ELEMENTS(k, s[q]) y[k] = weight_of(s[q][k], OF_COL(share, q)[k]);
  }
  if (DROPOUT != 0) {
    ACC factor = drop_block(AT_COL(i0, q), my_row0 + STEP_ROW(q), true);
    ELEMENTS(k, factor) {
      y[k] *= factor[k];
      dp[q][k] *= factor[k];
    }
  }
  if (GRAD_V != 0) {
    PUT_OPERAND(p, q, y, (y))
  }
  if (GRAD_K != 0) {
    ELEMENTS(k, s[q]) s[q][k] = ds_at(s[q][k], OF_COL(share, q)[k], dp[q][k], OF_COL(delta, q)[k]);
    if (SOFTCAP != 0) {
      ELEMENTS(k, s[q]) s[q][k] *= slope[q][k];
    }
    PUT_OPERAND(ds, q, s[q], (s[q]))
  }
}
if (BIAS_FIRST && !BIAS_EARLY) PIPE_BIAS
EACH(d, MOST_OUT) {
  if (GRAD_V != 0 && d < DV_OUT) {
    OPERAND_B y;
    coopMatLoad(y, streamed, SECOND + at + d * (MN / 8), PITCH, ROW_MAJOR);
    EACH(r, RM) acc_v[r][d] = coopMatMulAdd(p[r], y, acc_v[r][d]);
  }
  if (GRAD_K != 0 && d < D_OUT) {
    OPERAND_B y;
    coopMatLoad(y, streamed, at + d * (MN / 8), PITCH, ROW_MAJOR);
    EACH(r, RM) acc_k[r][d] = coopMatMulAdd(ds[r], y, acc_k[r][d]);
  }
}
#if SHARES_DS
EACH(r, RM)
  coopMatStore(ds[r], to.w, ds_chunk(i0, row0 % DS_BLOCK + BLOCK_ROW + r * MM), DS_PITCH,
               ROW_MAJOR);
#endif
