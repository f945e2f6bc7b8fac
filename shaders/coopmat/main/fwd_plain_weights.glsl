// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the plain loop of fwd: from the scores S of tile t to its part of acc. below: minus
// the rows' origins.
if (!BOTH_AHEAD) fetch_tile(stage_1, k, COL_OF(t + 1), D_CHUNKS);
{
  ACC top[RM];
  bool grows = false;
  EACH(r, RM) {
    top[r] = S[r][0];
    EACH(n, NB)
      ELEMENTS(i, top[r]) top[r][i] = max(top[r][i], S[r][n][i]);
    ELEMENTS(i, top[r]) {
      if (!MAXIMA_WAIT) below[r][i] = -log2_origin(m[r][i]);
      grows = grows || fma(top[r][i], log2_scale, below[r][i]) > SLACK;
    }
  }
  if (any_grows(grows)) {
    EACH(r, RM) {
      row_max(top[r]);
      ACC keep;
      if (MAXIMA_WAIT) {
        coopMatLoad(m[r], scratch, MY_SCRATCH, MN / 4, ROW_MAJOR);
        subgroupBarrier();
      }
      ELEMENTS(i, keep) {
        m[r][i] = moved_origin(m[r][i], top[r][i]);
        keep[i] = exp2(-log2_origin(m[r][i]) - below[r][i]);
        below[r][i] = -log2_origin(m[r][i]);
        l[r][i] = kept(l[r][i], keep[i]);
      }
      if (MAXIMA_WAIT) {
        coopMatStore(m[r], scratch, MY_SCRATCH, MN / 4, ROW_MAJOR);
        subgroupBarrier();
      }
      EACH(d, DV_OUT)
        ELEMENTS(i, keep) acc[r][d][i] = kept(acc[r][d][i], keep[i]);
    }
  }
  if (BOTH_AHEAD) fetch_tile(stage_2, v, COL_OF(t + 1), DV_CHUNKS);
  EACH(n, NB)
    EACH(r, RM)
      ELEMENTS(i, l[r]) {
        S[r][n][i] = exp2(fma(S[r][n][i], log2_scale, below[r][i]));
        l[r][i] += S[r][n][i];
      }
  if (BIAS_FIRST) { // for the next tile, as S has left its registers
    FETCH_BIAS(bias, row0, COL_OF(t + 1))
  }
  EACH(n, COL_STEPS) {
    OPERAND_A p[RM];
    EACH(r, RM) p[r] = COLS_TO_OPERAND(S[r], n);
    EACH(d, DV_OUT) {
      OPERAND_B y;
      coopMatLoad(y, streamed, SECOND + n * MK * PITCH + d * (MN / 8), PITCH, ROW_MAJOR);
      EACH(r, RM) acc[r][d] = coopMatMulAdd(p[r], y, acc[r][d]);
    }
  }
}
