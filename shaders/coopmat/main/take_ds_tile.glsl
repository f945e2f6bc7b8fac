// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by the loop of bwd_dq from dS: takes tile t, whose rows are in K_STAGE and DS_STAGE, and
// fetches the next but one, as there is little to multiply meanwhile. OWN_OUT and OUT_AT:
// how many matrices of features the subgroup has of d_q, and where in a row the first one lies.
barrier(); // the readers of the tile before are done
put_tile(0, K_STAGE, k, t * COLS, D_CHUNKS);
put_ds(SECOND, DS_STAGE);
barrier();
after = NEXT_DS(next + 1);
FETCH(K_STAGE, DS_STAGE, after)
EACH(step, COL_STEPS) {
  const int at = step * MK * PITCH, ds_at = SECOND + step * MK * DS_STAGED;
  OPERAND_A ds[RM];
  EACH(r, RM) coopMatLoad(ds[r], streamed, ds_at + (BLOCK_ROW + r * MM) / 8, DS_STAGED, COL_MAJOR);
  EACH(d, OWN_OUT) {
    OPERAND_B y;
    coopMatLoad(y, streamed, OUT_AT(at) + d * (MN / 8), PITCH, ROW_MAJOR);
    EACH(r, RM) acc[r][d] = coopMatMulAdd(ds[r], y, acc[r][d]);
  }
}
t = next;
next = after;
