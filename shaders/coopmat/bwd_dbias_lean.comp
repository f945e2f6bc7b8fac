// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias for lean tiles: the loop over members. Each step of features is loaded when it is
// needed.
#version 460
#extension GL_GOOGLE_include_directive : require
#define OWN_COUNT (3 * MM) // of the subgroup's rows: origin, delta, share
#include "coopmat/lean_options.glsl"
#include "coopmat/bwd_dbias_members.glsl"
#include "coopmat/lean.glsl"
#include "coopmat/lean_far.glsl"

// The step-th features of ROWS rows of the view in slot a, and of COLS keys of that in slot b.
void put_own_step(int a, int a0, int b, int b0, int step) {
  barrier(); // the readers of the step before are done
  [[dont_unroll]] for (int n = TID; n < (ROWS + COLS) * STEP_CHUNKS; n += WG) {
    const int row = n / STEP_CHUNKS, chunk = n % STEP_CHUNKS;
    streamed[row * STEP_PITCH + chunk] =
        row < ROWS ? load_chunk(parked(a), a0 + row, step * STEP_CHUNKS + chunk)
                   : load_chunk(parked(b), b0 + row - ROWS, step * STEP_CHUNKS + chunk);
  }
  barrier();
}

// Adds dS of the members of a split to acc. i0: row of bias.
void sum_members(inout ACC acc[RM][NB], Place bias_place, int bias_b, int split, int i0,
                 int key_tile) {
  const int end = split_begin(split + 1), col0 = key_tile * COLS;
  if (TID == 0) OWN_WORD = 0;
  barrier();
  uint turns = 0; // members so far; OWN_WORD: the last one with a far row
  int member = split_begin(split);
  [[dont_unroll]] for (;;) {
    barrier(); // the readers of the member before are done
    {
      Member m;
      member = find_member(member, end, bias_place, bias_b, i0, key_tile, m);
      if (member >= end) break;
      park(0, m.q);
      park(1, m.k);
      park(2, m.v);
      park(3, m.d_o);
      park_place(Place(m.row0 / ROWS, m.head, m.partial ? 1 : 0));
      turns++;
      own_far = false;
      for (int n = LANE; n < MM; n += SUBGROUP) {
        const int row = m.row0 + BLOCK_ROW + n;
        OWN_NUMBER(n) = row_origin(m.head, row);
        OWN_NUMBER(MM + n) =
            row < entry.seq_q
                ? uintBitsToFloat(Load1(stat_address(push.delta, m.head, block.seq_q, row)).w)
                : 0.0;
        OWN_NUMBER(2 * MM + n) = share_of(row);
      }
      if (own_far) atomicMax(OWN_WORD, turns);
    }
    barrier();
    ACC s[RM][NB], slope[RM][NB];
    EACH(n, NB) s[0][n] = ACC(0.0);
    [[dont_unroll]] for (int step = 0; step < S_STEPS; step++) {
      put_own_step(0, parked_place().tile * ROWS, 1, col0, step);
      MULTIPLY_STEP(s)
      EACH(n, NB) END_BLOCK(s[0][n])
    }
    {
      PARKED_PLACE
      BIAS_ARRAY(bias, [RM][NB])
      FETCH_BIAS(bias, row0, col0)
      FINISH_SCORES(s, slope, bias, my_row0, col0, place.batch != 0,
                    spans_hide(my_row0, col0, false))
      if (OWN_WORD == turns) {
        EACH(n, NB)
          far_block_in_scratch(s[0][n], parked(0), parked(1), place.head, my_row0, col0 + n * MN,
                               false);
      }
      ACC origin = own_rows(0);
      EACH(n, NB)
        ELEMENTS(k, origin) s[0][n][k] = base_at(s[0][n][k], origin[k]);
    }
    ACC dp[RM][NB];
    EACH(n, NB) dp[0][n] = ACC(0.0);
    [[dont_unroll]] for (int step = 0; step < DP_STEPS; step++) {
      put_own_step(3, parked_place().tile * ROWS, 2, col0, step);
      MULTIPLY_STEP(dp)
      EACH(n, NB) END_BLOCK(dp[0][n])
    }
    PARKED_PLACE
    EACH(n, NB) {
      if (DROPOUT != 0) {
        ACC factor = drop_block(my_row0, col0 + n * MN, false);
        ELEMENTS(k, factor) dp[0][n][k] *= factor[k];
      }
      ACC delta = own_rows(MM), share = own_rows(2 * MM);
      ELEMENTS(k, delta) acc[0][n][k] += ds_at(s[0][n][k], share[k], dp[0][n][k], delta[k]);
      END_BLOCK(acc[0][n])
    }
    member++;
  }
}

void main() {
#include "coopmat/main/bwd_dbias_begin.glsl"
  sum_members(acc, place, bias_b, split, i0, key_tile);
#include "coopmat/main/bwd_dbias_store.glsl"
}
