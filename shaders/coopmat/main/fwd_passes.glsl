// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of fwd: elastic softmax needs the rows' lse before the first weight, entmax
// their thresholds: passes over the scores alone. Leaves them in m, and the rows' share in l.
SEARCH_ARRAY(search, [RM])
if (NORM == ENTMAX) {
  EACH(r, RM) begin_search(SEARCH_OF(search, [r]));
}
for (int pass = 0; pass < (NORM == ENTMAX ? MAX_PASSES : 1); pass++) {
  if (NORM == ENTMAX) {
    EACH(r, RM) begin_pass(SEARCH_OF(search, [r]));
    if (SKIP_ENTMAX) begin_notes();
  }
  int next = next_live(tiles.begin, tiles, row0);
  if (next < tiles.end) fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
  while (next < tiles.end) {
    const int t = next, col0 = t * COLS;
    barrier(); // the readers of the tile before are done
    put_keep();
    put_tile(0, stage_1, k, col0, D_CHUNKS);
    barrier();
    next = next_live(t + 1, tiles, row0);
    const bool hides = spans_hide(my_row0, col0, false);
    if (next < tiles.end) fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
    BIAS_ARRAY(bias, [RM][NB])
    FETCH_BIAS(bias, row0, col0)
    ACC s[RM][NB], slope[RM][NB];
    EACH(r, RM)
      EACH(n, NB) s[r][n] = ACC(0.0);
    EACH(d, D_BLOCKS)
      EACH(n, NB) {
        OPERAND_B y;
        coopMatLoad(y, streamed, n * MN * PITCH + d * (MK / 8), PITCH, COL_MAJOR);
        EACH(r, RM) {
          LEFT_OPERAND(x, mq, 1, r, d)
          s[r][n] = coopMatMulAdd(x, y, s[r][n]);
        }
      }
    FINISH_SCORES(s, slope, bias, my_row0, col0, t < tiles.full_begin || t >= tiles.full_end, hides)
    if (NORM == ENTMAX) {
      bool any = false;
      EACH(r, RM)
        EACH(n, NB) {
          const bool counts = search_block(SEARCH_OF(search, [r]), s[r][n], pass == 0);
          any = any || counts;
        }
      if (SKIP_ENTMAX && any) note_live_tile(t - tiles.begin);
    } else {
      ACC top[RM];
#if !TANDEM_CM2 // RADV (Mesa 25.0) crashes on an origin that outlives the block
      ACC origin[RM];
#endif
      bool grows = false;
      BEGIN_ROWS(s, m, top, origin, grows)
      if (any_grows(grows)) {
        EACH(r, RM) {
          row_max(top[r]);
          ELEMENTS(k, m[r]) {
            m[r][k] = moved_origin(m[r][k], top[r][k]);
            l[r][k] = kept(l[r][k], exp2(origin[r][k] - log2_origin(m[r][k])));
            origin[r][k] = log2_origin(m[r][k]);
          }
        }
      }
      EACH(r, RM)
        EACH(n, NB)
          ELEMENTS(k, m[r]) l[r][k] += exp2(fma(s[r][n][k], log2_scale, -origin[r][k]));
    }
  }
  if (NORM == ENTMAX) {
    bool moves = false;
    EACH(r, RM) {
      ACC keys;
      ROWS_TO_MATRIX(
          keys, row,
          float(tandem_key_count(mask_band(), my_row0 + r * MM + row, entry.seq_q, entry.seq_kv)))
      const bool still = end_pass(SEARCH_OF(search, [r]), keys, pass == 0);
      moves = moves || still;
    }
    live_now = LIVE_WORDS - live_now;
    all_live = !SKIP_ENTMAX;
    if (!vote(moves)) break;
  }
}
EACH(r, RM) {
  if (NORM == ENTMAX) {
    m[r] = search_t[r];
  } else {
    ACC factor;
    finish_rows(m[r], l[r], factor, h, my_row0 + r * MM);
    ROWS_TO_MATRIX(l[r], row, share_of(my_row0 + r * MM + row))
  }
}
barrier(); // all have left the last tile
