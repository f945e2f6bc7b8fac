// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd for heads over 256, whose features are split over subgroups.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/split_d_options.glsl"
#define ROLES 1
#include "coopmat/fwd_common.glsl"
#include "coopmat/split_d.glsl"

const int OUT_OWN = DV_BLOCKS / SLICES;

#include "coopmat/split_d_parts.glsl"

void main() {
#include "coopmat/main/fwd_begin.glsl"
  OPERAND_A mq[LEFT_OWN];
  LOAD_SLICES(mq, q, q, row0)
  const int k_at = SLICE * LEFT_OWN * (MK / 8), v_at = SECOND + SLICE * OUT_OWN * (MN / 8);

  // As in main/fwd_rows.glsl.
  ACC acc[OUT_OWN], m = ACC(ORIGIN), l = ACC(0.0);
  EACH(d, OUT_OWN) acc[d] = ACC(0.0);

  // The parts of S pass through the scratch behind the barrier that V needs anyway.
  int next = next_live(tiles.begin, tiles, row0);
  if (next < tiles.end) {
    fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
    put_tile(0, stage_1, k, next * COLS, D_CHUNKS);
    barrier();
  }
  while (next < tiles.end) {
    const int t = next, col0 = t * COLS;
    fetch_tile(stage_1, v, col0, DV_CHUNKS);
    next = next_live(t + 1, tiles, row0);
    BIAS_ARRAY(bias, [RM][NB])
    FETCH_BIAS(bias, row0, col0)
    ACC s[RM][NB], slope[RM][NB];
    SLICE_PRODUCTS(s[0][0], mq, k_at)
    const bool partial = t < tiles.full_begin || t >= tiles.full_end,
               hides = spans_hide(my_row0, col0, false);
    put_tile(SECOND, stage_1, v, col0, DV_CHUNKS);
    barrier();
    if (next < tiles.end) fetch_tile(stage_1, k, next * COLS, D_CHUNKS);
    SUM_SLICES(s[0][0], 0)
    if (REUSES_SCRATCH) barrier();
    FINISH_SCORES(s, slope, bias, my_row0, col0, partial, hides)

    ACC top = s[0][0], origin;
    bool grows = false;
    ELEMENTS(e, top) {
      origin[e] = log2_origin(m[e]);
      grows = grows || moves_origin(m[e], top[e]);
    }
    if (any_grows(grows)) {
      row_max(top);
      ACC keep;
      ELEMENTS(e, keep) {
        m[e] = moved_origin(m[e], top[e]);
        keep[e] = exp2(origin[e] - log2_origin(m[e]));
        origin[e] = log2_origin(m[e]);
        l[e] = kept(l[e], keep[e]);
      }
      EACH(d, OUT_OWN)
        ELEMENTS(e, keep) acc[d][e] = kept(acc[d][e], keep[e]);
    }
    ELEMENTS(e, l) {
      s[0][0][e] = exp2(fma(s[0][0][e], log2_scale, -origin[e]));
      l[e] += s[0][0][e];
    }
    if (DROPOUT != 0) {
      ACC factor = drop_block(my_row0, col0, false);
      ELEMENTS(e, factor) s[0][0][e] *= factor[e];
    }
    const OPERAND_A p = to_operand(s[0][0], true); // if a weight is NaN, so is l
    SUM_PRODUCTS(acc, OUT_OWN, p, v_at)
    if (next < tiles.end) put_tile(0, stage_1, k, next * COLS, D_CHUNKS);
    barrier();
  }

  ACC factor;
  finish_rows(m, l, factor, h, my_row0);
  EACH(d, OUT_OWN)
    ELEMENTS(e, factor) acc[d][e] *= factor[e];
  const View o = SPLIT != 0 ? part_view(push.o, block.o, part, h, entry.seq_q)
                            : q_view(push.o, block.o, b, h, stored_q(), block.head_dim_v,
                                     (push.wide & 8u) != 0);
  if (SPLIT == 0) {
#if !TANDEM_BF16
    EACH(d, OUT_OWN)
      ELEMENTS(e, m) acc[d][e] = tandem_f16_average(acc[d][e]);
#endif
    STORE_SLICES(acc, OUT_OWN, o, row0, entry.seq_q)
  } else {
    STORE_PARTS(acc, o)
  }
  coopMatStore(m, scratch, MY_SCRATCH, MM / 4, COL_MAJOR);
  subgroupBarrier();
  if (OWNER == 0) store_lse(part * block.heads_q + h, row0);
}
