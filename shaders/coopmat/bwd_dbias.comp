// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias: one tile of d_bias, or a split's partial sum: shaders/scalar/bwd_dbias.comp with
// matrices (docs/kernels/coopmat.md). Every member has new rows and new keys, so neither stays in
// registers. Both operands pass through shared memory, STEP matrices of features at a time, and
// those of the next step, which may be the next member's, are prefetched in registers.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/bwd_dbias_members.glsl"

void main() {
#include "coopmat/main/bwd_dbias_begin.glsl"
  Member m;
  if (SKIP_KEEP) barrier();
  const int end = split_begin(split + 1);
  int member = find_member(split_begin(split), end, place, bias_b, i0, key_tile, m);
  if (member < end) fetch_step(m.q, m.row0, m.k, col0, 0);
  [[dont_unroll]] while (member < end) {
    const int my_row0 = m.row0 + BLOCK_ROW;
    const bool hides = spans_hide(my_row0, col0, false);
    put_keep();
    float origins[RM][ROW_TURNS], deltas[RM][ROW_TURNS], shares[RM][ROW_TURNS];
    BIAS_ARRAY(bias, [RM][NB])
    FETCH_BIAS(bias, m.row0, col0)
    ACC s[RM][NB], dp[RM][NB], slope[RM][NB];
    own_far = false;
    EACH(r, RM) {
      EACH(turn, ROW_TURNS) {
        const int row = my_row0 + r * MM + LANE + turn * SUBGROUP;
        origins[r][turn] = NO_ORIGIN;
        deltas[r][turn] = 0.0;
        shares[r][turn] = share_of(row);
        if (row < entry.seq_q && LANE + turn * SUBGROUP < MM) {
          origins[r][turn] = row_origin(m.head, row);
          deltas[r][turn] =
              uintBitsToFloat(Load1(stat_address(push.delta, m.head, block.seq_q, row)).w);
        }
      }
      EACH(n, NB) {
        s[r][n] = ACC(0.0);
        dp[r][n] = ACC(0.0);
      }
    }
    [[dont_unroll]] for (int step = 0; step < S_STEPS; step++) {
      put_step(m.q, m.row0, m.k, col0, step);
      if (step + 1 < S_STEPS)
        fetch_step(m.q, m.row0, m.k, col0, step + 1);
      else
        fetch_step(m.d_o, m.row0, m.v, col0, 0);
      MULTIPLY_STEP(s)
    }
    FINISH_SCORES(s, slope, bias, my_row0, col0, m.partial, hides)
    if (subgroupAny(own_far)) {
      EACH(r, RM)
        EACH(n, NB) far_block(s[r][n], m.q, m.k, m.head, my_row0 + r * MM, col0 + n * MN, false);
    }
    EACH(r, RM) {
      ACC origin;
      SPREAD_ROWS(origin, origins[r])
      EACH(n, NB)
        ELEMENTS(k, origin) s[r][n][k] = base_at(s[r][n][k], origin[k]);
    }
    int next = end;
    [[dont_unroll]] for (int step = 0; step < DP_STEPS; step++) {
      put_step(m.d_o, m.row0, m.v, col0, step);
      if (step + 1 < DP_STEPS) {
        fetch_step(m.d_o, m.row0, m.v, col0, step + 1);
      } else if (DROPOUT == 0) { // dropout needs this member's numbers below
        next = find_member(member + 1, end, place, bias_b, i0, key_tile, m);
        if (next < end) fetch_step(m.q, m.row0, m.k, col0, 0);
      }
      MULTIPLY_STEP(dp)
    }
    EACH(r, RM) {
      ACC delta, share;
      SPREAD_ROWS(delta, deltas[r])
      if (NORM == ELASTIC) SPREAD_ROWS(share, shares[r])
      EACH(n, NB) {
        if (DROPOUT != 0) {
          ACC factor = drop_block(my_row0 + r * MM, col0 + n * MN, false);
          ELEMENTS(k, delta) dp[r][n][k] *= factor[k];
        }
        ELEMENTS(k, delta) acc[r][n][k] += ds_at(s[r][n][k], share[k], dp[r][n][k], delta[k]);
      }
    }
    if (DROPOUT != 0) {
      next = find_member(member + 1, end, place, bias_b, i0, key_tile, m);
      if (next < end) fetch_step(m.q, m.row0, m.k, col0, 0);
    }
    member = next;
  }
#include "coopmat/main/bwd_dbias_store.glsl"
}
