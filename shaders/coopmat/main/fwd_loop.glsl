// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of fwd: the loop over tiles for everything.
// K of a tile is in shared memory when its iteration begins. V is loaded during the first
// product, K of the next tile during the second, so one set of staging registers suffices.
int next = next_live(tiles.begin, tiles, row0);
if (next < tiles.end) {
  fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
  put_tile(0, stage_1, k, next * COLS, D_CHUNKS);
  barrier();
}
BIAS_ARRAY(bias, [RM][NB])
if (BIAS_FIRST && next < tiles.end) {
  FETCH_BIAS(bias, row0, next * COLS)
}
while (next < tiles.end) {
  const int t = next, col0 = t * COLS;
  fetch_tile(stage_1, v, col0, DV_CHUNKS);
  put_keep();
  next = next_live(t + 1, tiles, row0); // while S has no registers, which keep needs for its loads
  if (!BIAS_FIRST) {
    FETCH_BIAS(bias, row0, col0)
  }
  ACC s[RM][NB], slope[RM][NB];
  EACH(r, RM)
    EACH(n, NB) {
      if (BIAS_FIRST && SPAN > 1 && n == SPAN_FIRST(n)) begin_bias(bias[r][n]);
      s[r][n] = first_block(BIAS_OF(bias, [r][SPAN_FIRST(n)]), n, false);
    }
  const bool partial = t < tiles.full_begin || t >= tiles.full_end,
             hides = spans_hide(my_row0, col0, false);
  if (MASKS_FIRST && NEEDS_MASK(partial)) {
    MASK_TILE(s, my_row0, col0)
  }
  EACH(d, D_BLOCKS)
    EACH(n, NB) {
      OPERAND_B y;
      coopMatLoad(y, streamed, n * MN * PITCH + d * (MK / 8), PITCH, COL_MAJOR);
      EACH(r, RM) {
        LEFT_OPERAND(x, mq, 1, r, d)
        s[r][n] = coopMatMulAdd(x, y, s[r][n]);
      }
    }
  put_tile(SECOND, stage_1, v, col0, DV_CHUNKS);
  barrier();
  if (AGAIN || next < tiles.end) fetch_tile(stage_1, k, COL_OF(next), D_CHUNKS);

  FINISH_SCORES(s, slope, bias, my_row0, col0, partial, hides)
  if (NORM != SOFTMAX) { // m is lse or the threshold, l elastic's share
    EACH(n, NB)
      EACH(r, RM)
        ELEMENTS(k, m[r]) s[r][n][k] = weight_of(base_at(s[r][n][k], m[r][k]), l[r][k]);
  } else {
    // One branch for all of the subgroup's rows, and all exponentials behind it.
    ACC top[RM];
#if !TANDEM_CM2 // RADV (Mesa 25.0) crashes on an origin that outlives the block
    ACC origin[RM];
#endif
    bool grows = false;
    BEGIN_ROWS(s, m, top, origin, grows)
    if (any_grows(grows)) {
      EACH(r, RM) {
        row_max(top[r]);
        ACC keep;
        ELEMENTS(k, keep) {
          m[r][k] = moved_origin(m[r][k], top[r][k]);
          keep[k] = exp2(origin[r][k] - log2_origin(m[r][k]));
          origin[r][k] = log2_origin(m[r][k]);
          l[r][k] = kept(l[r][k], keep[k]);
        }
        EACH(d, DV_OUT)
          ELEMENTS(k, keep) acc[r][d][k] = kept(acc[r][d][k], keep[k]);
      }
    }
    EACH(n, NB)
      EACH(r, RM)
        ELEMENTS(k, l[r]) {
          s[r][n][k] = exp2(fma(s[r][n][k], log2_scale, -origin[r][k]));
          l[r][k] += s[r][n][k];
        }
  }
  OPERAND_A p[RM][COL_STEPS];
  BEFORE(p[RM])
  EACH(n, NB)
    EACH(r, RM) {
      if (DROPOUT != 0) {
        ACC factor = drop_block(my_row0 + r * MM, col0 + n * MN, false);
        ELEMENTS(k, factor) s[r][n][k] *= factor[k];
      }
      PUT_OPERAND(p[r], n, s[r][n], (s[r][n], NORM == SOFTMAX)) // if a weight is NaN, so is l
    }
  if (BIAS_FIRST) { // for the next tile, as S has left its registers
    FETCH_BIAS(bias, row0, COL_OF(next))
  }
  EACH(n, COL_STEPS)
    EACH(d, DV_OUT) {
      OPERAND_B y;
      coopMatLoad(y, streamed, SECOND + n * MK * PITCH + d * (MN / 8), PITCH, ROW_MAJOR);
      EACH(r, RM) acc[r][d] = coopMatMulAdd(p[r][n], y, acc[r][d]);
    }
  if (AGAIN || next < tiles.end) put_tile(0, stage_1, k, next * COLS, D_CHUNKS);
  barrier();
}
