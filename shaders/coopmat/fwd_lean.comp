// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd for lean tiles. m, of a row, and l, of an element, wait in shared memory. One invocation a
// row moves m, and forms the factor of the row's earlier results.
#version 460
#extension GL_GOOGLE_include_directive : require
#define OWN_COUNT (MM * MN + MM)
#include "coopmat/lean_options.glsl"
#include "coopmat/fwd_common.glsl"
#include "coopmat/lean.glsl"
#include "coopmat/lean_products.glsl"

// own_numbers: l, row by row, and m behind it; with elastic softmax and entmax, in their last pass,
// the rows' share and, as m, lse or the threshold. At the end lse lies where l did.
const int AT_M = MM * MN;
// No rule says which invocation of the subgroup accesses an element: hence the barriers.
ACC load_l() {
  ACC l;
  subgroupBarrier();
  coopMatLoad(l, own_numbers, MY_NUMBERS, MN / 4, ROW_MAJOR);
  return l;
}
void store_l(ACC l) {
  subgroupBarrier();
  coopMatStore(l, own_numbers, MY_NUMBERS, MN / 4, ROW_MAJOR);
}
void begin_rows() {
  for (int row = LANE; row < MM; row += SUBGROUP) OWN_NUMBER(AT_M + row) = ORIGIN;
  store_l(ACC(0.0));
  subgroupBarrier();
}

// Whether a score moves a row's origin.
bool grows_by(ACC top, ACC m) {
  bool grows = false;
  ELEMENTS(k, top) grows = grows || moves_origin(m[k], top[k]);
  return grows;
}
// Factors of what has been summed so far, behind move_rows(). They are loaded anew for each block
// of o, or the conditions of kept() would be live for all.
ACC load_factors() {
  ACC x;
  subgroupBarrier();
  coopMatLoad(x, scratch, MY_SCRATCH + MM * MN / 4, 0, COL_MAJOR);
  return x;
}
// Moves the rows' m to scores that exceed it by more than SLACK, and l with it.
void move_rows(ACC top) {
  coopMatStore(top, scratch, MY_SCRATCH, MM / 4, COL_MAJOR);
  subgroupBarrier();
  [[dont_unroll]] for (int row = LANE; row < MM; row += SUBGROUP) {
    const float before = OWN_NUMBER(AT_M + row);
    float m = HIDDEN_SCORE;
    [[dont_unroll]] for (int c = 0; c < MN; c++) m = max(m, SCRATCH_FLOAT(c * MM + row));
    m = moved_origin(before, m);
    OWN_NUMBER(AT_M + row) = m;
    SCRATCH_FLOAT(MM * MN + row) = exp2(log2_origin(before) - log2_origin(m));
  }
  ACC factor = load_factors(), l = load_l();
  ELEMENTS(k, l) l[k] = kept(l[k], factor[k]);
  store_l(l);
}
// The weights of a block of scores, which are added to l.
void weigh(inout ACC s) {
  ACC m = own_rows(AT_M), l = load_l();
  ELEMENTS(k, s) {
    s[k] = exp2(fma(s[k], log2_scale, -log2_origin(m[k])));
    l[k] += s[k];
  }
  store_l(l);
}
// From a tile's scores, the largest one in each place of a block.
#define TOP_OF(top, s) \
  ACC top = s[0][0];   \
  EACH(n, NB)          \
    ELEMENTS(k, top) top[k] = max(top[k], s[0][n][k]);

// The scores of a tile whose keys are in shared memory.
#define FORM_SCORES(s, row0, col0, partial, hides)                                \
  ACC s[1][NB], slope[1][NB];                                                     \
  BIAS_ARRAY(bias, [1][NB])                                                       \
  if (BIAS_FIRST) {                                                               \
    FETCH_BIAS(bias, row0, col0)                                                  \
  }                                                                               \
  EACH(n, NB) s[0][n] = first_block(BIAS_OF(bias, [0][SPAN_FIRST(n)]), n, false); \
  if (MASKS_FIRST && NEEDS_MASK(partial)) {                                       \
    MASK_TILE(s, (row0) + BLOCK_ROW, col0)                                        \
  }                                                                               \
  EACH(n, NB) {                                                                   \
    MULTIPLY_ROWS(s[0][n], 1, n* MN* PITCH, D_BLOCKS)                             \
  }                                                                               \
  if (!BIAS_FIRST) {                                                              \
    FETCH_BIAS(bias, row0, col0)                                                  \
  }                                                                               \
  FINISH_SCORES(s, slope, bias, (row0) + BLOCK_ROW, col0, partial, hides)

// A block of a split's partial output, in f32 without rounding.
void store_part_block(View t, int r0, int col, ACC x) {
  coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  EACH(i, (MM * MN / 4 + SUBGROUP - 1) / SUBGROUP) {
    const int n = LANE + i * SUBGROUP, row = n / (MN / 4), from = n % (MN / 4);
    if (n < MM * MN / 4 && r0 + row < t.rows && col + 4 * from < t.width)
      Store4(part_address(t, r0 + row, col + 4 * from)).w =
          floatBitsToUint(scratch[MY_SCRATCH + row * SCRATCH_PITCH + from]);
  }
  subgroupBarrier();
}

// Elastic softmax needs the rows' lse before the first weight, entmax their thresholds: passes over
// the scores alone. Leaves them, and the rows' share.
void search_rows(TandemTiles tiles) {
  SEARCH_ARRAY(search, )
  if (NORM == ENTMAX) { // search_high, which only the end of a pass needs, lies where l does
    begin_search(SEARCH_OF(search, ));
    store_l(search_high);
  }
  for (int pass = 0; pass < (NORM == ENTMAX ? MAX_PASSES : 1); pass++) {
    if (NORM == ENTMAX) {
      begin_pass(SEARCH_OF(search, ));
      if (SKIP_ENTMAX) begin_notes();
    }
    int next = next_live(tiles.begin, tiles, parked_place().tile * ROWS);
    while (next < tiles.end) {
      const int t = next, col0 = t * COLS;
      barrier(); // the readers of the tile before are done
      put_rows(0, COLS, parked(1), col0, D_CHUNKS, true);
      barrier();
      PARKED_PLACE
      next = next_live(t + 1, tiles, row0);
      const bool hides = spans_hide(my_row0, col0, false);
      FORM_SCORES(s, row0, col0, t < tiles.full_begin || t >= tiles.full_end, hides)
      if (NORM == ENTMAX) {
        bool any = false;
        EACH(n, NB) {
          const bool counts = search_block(SEARCH_OF(search, ), s[0][n], pass == 0);
          any = any || counts;
        }
        if (SKIP_ENTMAX && any) note_live_tile(t - tiles.begin);
      } else {
        TOP_OF(top, s)
        if (any_grows(grows_by(top, own_rows(AT_M)))) {
          move_rows(top);
          subgroupBarrier();
        }
        EACH(n, NB) weigh(s[0][n]);
      }
    }
    if (NORM == ENTMAX) {
      PARKED_PLACE
      ACC keys;
      ROWS_TO_MATRIX(keys, row,
                     float(tandem_key_count(mask_band(), my_row0 + row, entry.seq_q, entry.seq_kv)))
      search_high = load_l();
      const bool moves = end_pass(SEARCH_OF(search, ), keys, pass == 0);
      store_l(search_high);
      live_now = LIVE_WORDS - live_now;
      all_live = !SKIP_ENTMAX;
      if (!vote(moves)) break;
    }
  }
  PARKED_PLACE
  ACC m, l;
  if (NORM == ENTMAX) {
    m = search_t;
  } else {
    ACC factor;
    m = own_rows(AT_M);
    l = load_l();
    finish_rows(m, l, factor, place.head, my_row0);
  }
  coopMatStore(m, scratch, MY_SCRATCH, MM / 4, COL_MAJOR);
  subgroupBarrier();
  for (int row = LANE; row < MM; row += SUBGROUP) {
    OWN_NUMBER(AT_M + row) = SCRATCH_FLOAT(row);
    OWN_NUMBER(row) = share_of(my_row0 + row);
  }
  barrier(); // all have left the last tile
}

void main() {
  if (REDO != 0) {
    redo_rows();
    return;
  }
  {
    Place place;
    if (!find_place(block.heads_q, place)) return;
    const int b = SPLIT != 0 ? place.batch / block.splits : place.batch, h = place.head,
              hk = h / block.group;
    set_entry(b);
    park_place(place);
    park(0, q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, false));
    park(1, kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, false));
    park(2, kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, false));
  }
  begin_scores();
  begin_iota();
  begin_votes();
  begin_rows();
  barrier();
  TandemTiles tiles;
  {
    PARKED_PLACE
    tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
    if (SPLIT != 0) tiles = tandem_split_tiles(tiles, place.batch % block.splits, block.splits);
    if (tiles.begin < tiles.end)
      set_head(SPLIT != 0 ? place.batch / block.splits : place.batch, place.head);
    hold_rows(1, 0, row0, D_CHUNKS);
  }
  if (NORM != SOFTMAX) search_rows(tiles);

  ACC acc[DV_OUT];
  EACH(d, DV_OUT) acc[d] = ACC(0.0);
  int next = next_live(tiles.begin, tiles, parked_place().tile * ROWS);
  while (next < tiles.end) {
    const int t = next, col0 = t * COLS;
    PUT_TILE(col0)
    PARKED_PLACE
    next = next_live(t + 1, tiles, row0);
    const bool hides = spans_hide(my_row0, col0, false);
    FORM_SCORES(s, row0, col0, t < tiles.full_begin || t >= tiles.full_end, hides)
    if (NORM == SOFTMAX) {
      TOP_OF(top, s)
      if (any_grows(grows_by(top, own_rows(AT_M)))) {
        move_rows(top);
        EACH(d, DV_OUT) {
          const ACC factor = load_factors();
          ELEMENTS(k, factor) acc[d][k] = kept(acc[d][k], factor[k]);
          END_BLOCK(acc[d])
        }
        subgroupBarrier();
      }
    }
    OPERAND_A p[NB];
    EACH(n, NB) {
      if (NORM == SOFTMAX) {
        weigh(s[0][n]);
      } else { // m is lse or the threshold, l elastic's share
        ACC m = own_rows(AT_M), l = own_rows(0);
        ELEMENTS(k, m) s[0][n][k] = weight_of(base_at(s[0][n][k], m[k]), l[k]);
      }
      if (DROPOUT != 0) {
        ACC factor = drop_block(my_row0, col0 + n * MN, false);
        ELEMENTS(k, factor) s[0][n][k] *= factor[k];
      }
      p[n] = to_operand(s[0][n], NORM == SOFTMAX); // if a weight is NaN, so is l
    }
    EACH(n, NB) {
      ACCUMULATE(acc, p[n], SECOND + n * MK * PITCH, DV_OUT)
    }
  }

  PARKED_PLACE
  const int part = place.batch, h = place.head; // part: over batch entries and splits
  {
    ACC m = own_rows(AT_M);
    if (NORM == SOFTMAX) {
      ACC l = load_l(), factor;
      finish_rows(m, l, factor, h, my_row0);
      EACH(d, DV_OUT) {
        ELEMENTS(k, factor) acc[d][k] *= factor[k];
        END_BLOCK(acc[d])
      }
    }
    ELEMENTS(k, m) m[k] = NORM == ENTMAX && m[k] == NO_LSE ? -HIDDEN_SCORE : m[k];
    coopMatStore(m, own_numbers, MY_NUMBERS, MM / 4, COL_MAJOR);
  }
  // All matrices are put into shared memory first (the reason is in stage.glsl), lse after all that
  // uses the scratch.
  const int b = SPLIT != 0 ? part / block.splits : part;
  const View o = SPLIT != 0 ? part_view(push.o, block.o, part, h, entry.seq_q)
                            : q_view(push.o, block.o, b, h, stored_q(), block.head_dim_v,
                                     (push.wide & 8u) != 0);
  barrier();
  EACH(d, DV_OUT) {
#if !TANDEM_BF16
    if (SPLIT == 0)
      ELEMENTS(k, acc[d]) acc[d][k] = tandem_f16_average(acc[d][k]);
#endif
    if (SPLIT == 0)
      put_block(BLOCK_ROW * PITCH + d * (MN / 8), acc[d]);
    else
      store_part_block(o, my_row0, d * MN, acc[d]);
    END_BLOCK(acc[d])
  }
  barrier();
  for (int row = LANE; row < MM; row += SUBGROUP) SCRATCH_FLOAT(row) = OWN_NUMBER(row);
  subgroupBarrier();
  if (SPLIT == 0) store_rows(o, row0, DV_CHUNKS, entry.seq_q);
  store_lse(part * block.heads_q + h, row0);
}
