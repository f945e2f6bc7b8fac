// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: o and lse of ROWS query rows of one head, over the key tiles that they see:
// shaders/scalar/fwd.comp with matrices (docs/kernels/coopmat.md).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
#include "kernels/abi/fwd.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/fwd.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/fwd.inc"
} push;

#include "parts/tensor.glsl"
#include "parts/place.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"
#define TAKES_BLOCKS true
#if TANDEM_CM2
const int KV_ROWS = KV_ROW >> 30 == 1 ? 1 : 0; // k and v have strides of their own
const int K_ROW = KV_ROWS == 1 ? KV_ROW & 0x7fff : KV_ROW & 0x1fffffff;
const int V_ROW = KV_ROWS == 1 ? KV_ROW >> 15 & 0x3fff : K_ROW;
#define ROW_CHUNKS(t, chunks) (KV_ROW == 0 ? int(t.row.x >> 4) : chunks == D_CHUNKS ? K_ROW : V_ROW)
// By bit 29. Numbers: glslang 16 uses the result of && between constants before it defines it.
const int ALL_EXIST = KV_ROW > 0 ? 1 - (KV_ROW >> 29 & 1) : 0;
#define TILES_EXIST ((WHOLE | ALL_EXIST) != 0)
#endif
#if TANDEM_TENSOR
#define STREAMED (2 * COLS * PITCH)
#define HELD 0
#endif
#include "coopmat/matrix.glsl"
#include "coopmat/stage.glsl"
#define BIAS_SPAN 2
#include "coopmat/bias.glsl"
#define MASKS_FIRST FIRST_IS_EXACT
#define BIAS_BEGINS (TANDEM_CM2 == 1 || BIAS_BLOCKS)
#include "coopmat/element.glsl"
#include "coopmat/skip.glsl"
#include "coopmat/entmax.glsl"
#include "parts/sink.glsl"
#include "coopmat/redo.glsl"
#include "problem/rounded_weights.h"
#if TANDEM_TENSOR
#include "coopmat/rows.glsl"
#endif

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Row1 { uint w[]; };

// Earlier results where the origin moves. Keys about -1e9 have weights that are infinite in f16,
// and so have their sums; where keys near 0 follow them keep is 0.
float kept(float x, float keep) { return keep != 0 ? x * keep : 0.0; }
// Most tiles change neither o nor need the reduction of the maximum. H100, 580.159.04: D 64 gains
// most.
const float SLACK = TANDEM_ORIGIN_SLACK;
// K is fetched once more after the last tile, without effect, which saves a branch. On an H100
// (580.159.04) it is 4 to 7 % faster with RM 2 (D 64), and up to 5 % slower with RM 1 (D 128).
const bool AGAIN = PREFETCHES && RM > 1;
// Without NVIDIA's reductions a maximum takes barriers of the subgroup. lavapipe (Mesa 26) makes
// them barriers of the workgroup, which must not be in a branch that only some subgroups take; no
// other device has subgroups of 8.
const bool ALWAYS_GROWS = TANDEM_CM2 == 0 && SUBGROUP == 8;

#if TANDEM_CM2
#include "coopmat/plain.glsl"
#define OWN_ORIGIN
#else
const bool PLAIN = false;
// RADV (Mesa 25.0) crashes on an origin that outlives the block
#define COL_OF(tile) (min(tile, tiles.end - 1) * COLS)
#define OWN_ORIGIN ACC origin[RM];
#endif

// In all elements of a row: lse from m and l, whose sum is formed first, and the factor of o.
// row0: first of the block.
void finish_rows(inout ACC m, inout ACC l, out ACC factor, int h, int row0) {
  row_sum(l);
  ACC sinks;
  if (SINK > 1) ROWS_TO_MATRIX(sinks, row, sink_of(h, row0 + row))
  const float head_sink = SINK == 1 ? sink_of(h, 0) : 0;
  ELEMENTS(k, factor) {
    // The factor from the rounded origin to m itself, in natural units. A row with one visible key
    // has l = 1, and so an lse that is its score to the last bit.
    factor[k] = l[k] != 0 ? exp2(-fma(m[k], log2_scale, -log2_origin(m[k]))) : 0.0;
    l[k] *= factor[k];
    m[k] = natural_score(m[k]);
    if (SINK != 0 && l[k] != 0) { // one more score without a value, in rows that see a key
      const float sink = SINK > 1 ? sinks[k] : head_sink, top = max(m[k], sink),
                  keep = weight(m[k], top);
      factor[k] *= keep;
      l[k] = l[k] * keep + weight(sink, top);
      // The weights of lost rows may be infinite, whatever the sink. Their own m leaves them lost.
      if (!is_lost(m[k])) m[k] = top;
    }
    factor[k] = l[k] != 0 ? factor[k] / l[k] : 0.0;
    m[k] = l[k] != 0 ? m[k] + log(l[k]) : -HIDDEN_SCORE;
  }
}
// From a tile's scores s[RM][NB]: the largest score in each place of a block, the origins of the
// rows' weights, and whether a score changes a row's maximum (SLACK).
#define BEGIN_ROWS(s, m, top, origin, grows)                              \
  ACC top[RM];                                                            \
  OWN_ORIGIN                                                              \
  bool grows = false;                                                     \
  EACH(r, RM) {                                                           \
    top[r] = s[r][0];                                                     \
    EACH(n, NB)                                                           \
      ELEMENTS(k, top[r]) top[r][k] = max(top[r][k], s[r][n][k]);         \
    ELEMENTS(k, top[r]) {                                                 \
      origin[r][k] = log2_origin(m[r][k]);                                \
      grows = grows || fma(top[r][k], log2_scale, -origin[r][k]) > SLACK; \
    }                                                                     \
  }
// Stores the rows' lse, which lies in the subgroup's scratch. head counts over batch entries, or
// parts, and heads.
void store_lse(int head, int row0) {
  Row1 to = Row1(stat_address(push.lse, head, block.seq_q, row0));
  [[dont_unroll]] for (int n = LANE; n < RM * MM; n += SUBGROUP) {
    const int at = BLOCK_ROW + n;
    if (row0 + at >= block.seq_q) continue;
    const float x = SCRATCH_FLOAT(n);
    to.w[at] = row0 + at < entry.seq_q && x != -HIDDEN_SCORE ? floatBitsToUint(x) : LSE_NONE;
    // The rounding error is less than a 16-bit weight's, or the row is recomputed (REDO).
    if (SPLIT != 0) Store1(part_rest_address(push.lse, head, block.seq_q, row0 + at)).w = 0;
  }
}

// The launch that is only for the rows that the one before has lost, by the lse that it has stored.
// It is a pipeline of its own: beside the loop over tiles this code cost an H100 (580.159.04) four
// fifths of that loop's speed, as its compiler then kept matrices in memory.
const bool REDO = KV_ROW < 0;
void redo_rows() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
  const int part = place.batch, b = SPLIT != 0 ? part / block.splits : part, h = place.head,
            hk = h / block.group;
  const int row0 = place.tile * ROWS, head = part * block.heads_q + h;
  set_entry(b);
  set_head(b, h);
  const View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
  const View k =
      kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  const View v =
      kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
  const View o = SPLIT != 0 ? part_view(push.o, block.o, part, h, entry.seq_q)
                            : q_view(push.o, block.o, b, h, stored_q(), block.head_dim_v,
                                     (push.wide & 8u) != 0);
  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  if (SPLIT != 0) tiles = tandem_split_tiles(tiles, part % block.splits, block.splits);
  [[dont_unroll]] for (int n = TID; n < ROWS; n += WG) {
    const int i = row0 + n;
    if (i >= entry.seq_q || tandem_key_count(mask_band(), i, entry.seq_q, entry.seq_kv) == 0)
      continue;
    if (is_lost(uintBitsToFloat(Load1(stat_address(push.lse, head, block.seq_q, i)).w)))
      redo_row(q, k, v, o, head, h, i, tiles.begin * COLS, min(tiles.end * COLS, entry.seq_kv));
  }
}

#if TANDEM_LEAN
#include "coopmat/lean_fwd.glsl"
#else
void main() {
  if (REDO) {
    redo_rows();
    return;
  }
  Place place;
  if (!find_place(block.heads_q, place)) return;
  const int part = place.batch; // over batch entries and splits
  const int b = SPLIT != 0 ? part / block.splits : part, h = place.head, hk = h / block.group;
  const int row0 = place.tile * ROWS;
  const int my_row0 = row0 + BLOCK_ROW;
  set_entry(b);
  begin_scores();
  begin_iota();
  begin_votes();
  View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
  View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  if (SPLIT != 0) tiles = tandem_split_tiles(tiles, part % block.splits, block.splits);
  if (tiles.begin < tiles.end) set_head(b, h);

  OPERAND_A mq[RM][D_BLOCKS];
#if TANDEM_TENSOR
  LOAD_ROWS(mq, q, my_row0, D_BLOCKS)
#else
  LOAD_OPERANDS(mq, 1, q, row0, D_BLOCKS, D_CHUNKS)
#endif

  // m: a maximum of the row's scores, the same in all columns. Weights are powers of two relative
  // to m * log2_scale, rounded. l: until the end, each element's own part of the sum.
  ACC acc[RM][DV_OUT], m[RM], l[RM];
#if TANDEM_CM2
  ACC origin[RM];
#endif
  EACH(r, RM) {
    m[r] = ACC(ORIGIN);
    l[r] = ACC(0.0);
    EACH(d, DV_OUT) acc[r][d] = ACC(0.0);
  }

  // Elastic softmax needs the rows' lse before the first weight, entmax their thresholds: passes
  // over the scores alone.
  if (NORM != SOFTMAX) {
    SEARCH_ARRAY(search, [RM])
    if (NORM == ENTMAX) {
      EACH(r, RM) begin_search(SEARCH_OF(search, [r]));
    }
    for (int pass = 0; pass < (NORM == ENTMAX ? MAX_PASSES : 1); pass++) {
      if (NORM == ENTMAX) {
        EACH(r, RM) begin_walk(SEARCH_OF(search, [r]));
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
        FINISH_SCORES(s, slope, bias, my_row0, col0, t < tiles.full_begin || t >= tiles.full_end)
        if (NORM == ENTMAX) {
          bool any = false;
          EACH(r, RM)
            EACH(n, NB) {
              const bool counts = search_block(SEARCH_OF(search, [r]), s[r][n], pass == 0);
              any = any || counts;
            }
          if (SKIP_ENTMAX && any) note_live_tile(t - tiles.begin);
        } else {
          BEGIN_ROWS(s, m, top, origin, grows)
          if (ALWAYS_GROWS || subgroupAny(grows)) {
            EACH(r, RM) {
              row_max(top[r]);
              ELEMENTS(k, m[r]) {
                m[r][k] = max(m[r][k], top[r][k]);
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
          ROWS_TO_MATRIX(keys, row,
                         float(tandem_key_count(mask_band(), my_row0 + r * MM + row, entry.seq_q,
                                                entry.seq_kv)))
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
  }

  // One of two loops, so that specialise() leaves the driver one to compile.
#if TANDEM_CM2
  if (PLAIN) {
    PLAIN_LOOP
  }
#endif
  if (!PLAIN) {
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
      next =
          next_live(t + 1, tiles, row0); // while S has no registers, which keep needs for its loads
      if (!BIAS_FIRST) {
        FETCH_BIAS(bias, row0, col0)
      }
      ACC s[RM][NB], slope[RM][NB];
      EACH(r, RM)
        EACH(n, NB) {
          if (BIAS_FIRST && SPAN > 1 && n == SPAN_FIRST(n)) begin_bias(bias[r][n]);
          s[r][n] = first_block(BIAS_OF(bias, [r][SPAN_FIRST(n)]), n, false);
        }
      const bool partial = t < tiles.full_begin || t >= tiles.full_end;
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

      FINISH_SCORES(s, slope, bias, my_row0, col0, partial)
      if (NORM != SOFTMAX) { // m is lse or the threshold, l elastic's share
        EACH(n, NB)
          EACH(r, RM)
            ELEMENTS(k, m[r]) s[r][n][k] = weight_of(base_at(s[r][n][k], m[r][k]), l[r][k]);
      } else {
        // One branch for all of the subgroup's rows, and all exponentials behind it.
        BEGIN_ROWS(s, m, top, origin, grows)
        if (ALWAYS_GROWS || subgroupAny(grows)) {
          EACH(r, RM) {
            row_max(top[r]);
            ACC keep;
            ELEMENTS(k, keep) {
              m[r][k] = max(m[r][k], top[r][k]);
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
  }

  EACH(r, RM) {
    if (NORM == SOFTMAX) {
      ACC factor;
      finish_rows(m[r], l[r], factor, h, my_row0 + r * MM);
      EACH(d, DV_OUT)
        ELEMENTS(k, factor) acc[r][d][k] *= factor[k];
    }
  }
#if !TANDEM_BF16
  if (SPLIT == 0)
    EACH(r, RM)
      EACH(d, DV_OUT)
        ELEMENTS(k, m[r]) acc[r][d][k] = tandem_f16_average(acc[r][d][k]);
#endif
  // All matrices are put into shared memory first (the reason is in stage.glsl), lse after all that
  // uses the scratch.
  const View o = SPLIT != 0 ? part_view(push.o, block.o, part, h, entry.seq_q)
                            : q_view(push.o, block.o, b, h, stored_q(), block.head_dim_v,
                                     (push.wide & 8u) != 0);
#if TANDEM_TENSOR
  if (SPLIT == 0) {
    STORE_ROWS(acc, o, my_row0, DV_OUT, entry.seq_q)
  } else {
    STORE_ROWS_OF_PART(acc, o, my_row0, DV_OUT)
  }
#else
  if (SPLIT == 0) {
    PUT_BLOCKS(acc, DV_OUT)
  } else if (PARTS_FIT) {
    PUT_PARTS(acc)
  } else {
    EACH(r, RM)
      EACH(d, DV_OUT) store_part(o, my_row0 + r * MM, d * MN, acc[r][d]);
  }
#endif
  EACH(r, RM) {
    // Columns are equal. Only the first of a block remains, as the next block begins behind it.
    ACC lse;
    ELEMENTS(k, lse) lse[k] = NORM == ENTMAX && m[r][k] == NO_LSE ? -HIDDEN_SCORE : m[r][k];
    coopMatStore(lse, scratch, MY_SCRATCH + r * MM / 4, MM / 4, COL_MAJOR);
    subgroupBarrier();
  }
#if !TANDEM_TENSOR
  if (SPLIT == 0)
    store_rows(o, row0, DV_CHUNKS, entry.seq_q);
  else if (PARTS_FIT)
    store_parts(o, row0);
#endif
  store_lse(part * block.heads_q + h, row0);
}
#endif
