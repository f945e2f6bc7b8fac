// SPDX-License-Identifier: MIT OR Apache-2.0
// S and dP of a tile whose rows are query rows, with which bwd_row_sums, bwd_dq, bwd_dbias and
// bwd_dist_bias begin.

float row_origin[RM], row_delta[RM], row_share[RM]; // of this invocation's query rows
// a bit for each row: its scores are relative to an origin of bwd_origin
uint far_rows;

void load_rows(int b, int h, int row0) {
  far_rows = 0;
  [[unroll]] for (int i = 0; i < RM; i++) {
    const int row = row0 + TROW + TR * i, head = b * block.heads_q + h;
    row_origin[i] = lse_origin(LSE_NONE);
    row_delta[i] = 0;
    row_share[i] = share_of(row);
    if (row < entry.seq_q) {
      row_origin[i] = lse_origin(Load1(stat_address(push.lse, head, block.seq_q, row)).w);
      if (is_far_origin(row_origin[i])) {
        far_rows |= 1u << i;
        row_origin[i] = load_far(push.delta, head, block.seq_q, row).y;
      }
      if (ROW_DELTA)
        row_delta[i] = uintBitsToFloat(Load1(stat_address(push.delta, head, block.seq_q, row)).w);
    }
  }
}

// Forms the bases, and dP with dropout. False: the tile has no part in any sum. fetch_nt of d = 0
// must have been called, unless tiles may be skipped.
bool pair_tile(out vec4 base[RQ], out vec4 dp[RQ], View q, View d_o, int row0, View k, View v,
               int col0, bool partial) {
  uint shown;
  if (!open_tile(q, row0, k, col0, false, shown)) return false;
  product_nt(base, q, row0, k, col0);
  if (!SKIP_ENTMAX) fetch_nt(d_o, row0, v, col0, 0);
  score_tile(base, row0, col0, false);
  if (partial) mask_tile(base, row0, col0);
  if (HAS_BITS) show_tile(base, shown);
  if (far_rows != 0) {
    [[unroll]] for (int i = 0; i < RM; i++) {
      if ((far_rows >> i & 1u) == 0) continue;
      base[i] = from_origin(
          base[i], vec4(load_far(push.delta, inputs.head, block.seq_q, row0 + TROW + TR * i).x));
    }
  }
  [[unroll]] for (int i = 0; i < RM; i++) base[i] = bases(base[i], vec4(row_origin[i]));
  if (SKIP_ENTMAX) {
    if (!vote(has_support(base))) return false;
    fetch_nt(d_o, row0, v, col0, 0);
  }
  product_nt(dp, d_o, row0, v, col0);
  if (DROPOUT != 0) drop_tile(dp, row0, col0);
  return true;
}
vec4 pair_ds(vec4 base, vec4 dp, int i) {
  return ds_of(base, vec4(row_share[i]), dp, vec4(row_delta[i]));
}
