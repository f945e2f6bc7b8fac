// SPDX-License-Identifier: MIT OR Apache-2.0
// What the schedules of fwd have in common. REDO is a launch for the rows that the one before has
// lost; the loops over tiles are in the schedules' own files.
#define BIAS_IN_BLOCKS true
#define BIAS_SPAN 2
#ifndef BIAS_BEGINS
#define BIAS_BEGINS (TANDEM_CM2 == 1 || BIAS_BLOCKS)
#define MASKS_FIRST FIRST_IS_EXACT
#endif
#define ROW_CHUNKS(t, chunks) \
  (PLAIN_LOOP == 0 ? int(t.row.x >> 4) : chunks == D_CHUNKS ? K_ROW : V_ROW)
#define TILES_EXIST ((WHOLE | KEYS_EXIST) != 0)
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
#include "coopmat/matrix.glsl"
#include "coopmat/stage.glsl"
#include "coopmat/bias.glsl"
#include "coopmat/element.glsl"
#include "coopmat/skip.glsl"
#include "coopmat/entmax.glsl"
#include "parts/sink.glsl"
#include "parts/max_logit.glsl"
#include "coopmat/redo.glsl"
#include "problem/rounded_weights.h"

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Row1 { uint w[]; };

// Earlier results where the origin moves. Keys about -1e9 have weights that are infinite in f16,
// and so have their sums; where keys near 0 follow them keep is 0.
float kept(float x, float keep) { return keep != 0 ? x * keep : 0.0; }
// Most tiles change neither o nor need the reduction of the maximum. H100, 580.159.04: D 64 gains
// most.
const float SLACK = MAX_LOGIT != 0 ? 0.0 : TANDEM_ORIGIN_SLACK;
// Whether a score moves the origin of a row whose largest score so far is m; and that score then.
// Each row decides for itself, though a subgroup moves its rows in one branch: the bits of a row do
// not depend on the rows beside it.
bool moves_origin(float m, float top) { return fma(top, log2_scale, -log2_origin(m)) > SLACK; }
float moved_origin(float m, float top) { return moves_origin(m, top) ? top : m; }
// K is fetched once more after the last tile, without effect, which saves a branch. On an H100
// (580.159.04) it is 4 to 7 % faster with RM 2 (D 64), and up to 5 % slower with RM 1 (D 128).
const bool AGAIN = PREFETCHES && RM > 1;
// Without NVIDIA's reductions a maximum takes barriers of the subgroup. lavapipe (Mesa 26) makes
// them barriers of the workgroup, which must not be in a branch that only some subgroups take; no
// other device has subgroups of 8.
const bool ALWAYS_GROWS = TANDEM_CM2 == 0 && SUBGROUP == 8;
// Whether the subgroup moves its rows, as a score of them does.
bool any_grows(bool grows) { return ALWAYS_GROWS || subgroupAny(grows); }

#define COL_OF(tile) (min(tile, tiles.end - 1) * COLS)

// In all elements of a row: lse from m and l, whose sum is formed first, and the factor of o.
// Raises the largest logit, but not by lost rows: the launch behind this one forms their scores.
// row0: first of the block.
void finish_rows(inout ACC m, inout ACC l, out ACC factor, int h, int row0) {
  row_sum(l);
  ACC sinks;
  if (SINK == 2) ROWS_TO_MATRIX(sinks, row, sink_of(entry_batch, h, row0 + row))
  ACC rows, tops = m;
  if (MAX_LOGIT != 0) ROWS_TO_MATRIX(rows, row, float(row0 + row))
  const float head_sink = SINK != 0 && SINK != 2 ? sink_of(entry_batch, h, 0) : 0;
  ELEMENTS(k, factor) {
    // The factor from the rounded origin to m itself, in natural units. A row with one visible key
    // has l = 1, and so an lse that is its score to the last bit.
    factor[k] = l[k] != 0 ? exp2(-fma(m[k], log2_scale, -log2_origin(m[k]))) : 0.0;
    l[k] *= factor[k];
    m[k] = natural_score(m[k]);
    if (SINK != 0 && l[k] != 0) { // one more score without a value, in rows that see a key
      const float sink = SINK == 2 ? sinks[k] : head_sink, top = max(m[k], sink),
                  keep = weight(m[k], top);
      factor[k] *= keep;
      l[k] = l[k] * keep + weight(sink, top);
      // The weights of lost rows may be infinite, whatever the sink. Their own m leaves them lost.
      if (!is_lost(m[k])) m[k] = top;
    }
    factor[k] = l[k] != 0 ? factor[k] / l[k] : 0.0;
    m[k] = l[k] != 0 ? m[k] + log(l[k]) : -HIDDEN_SCORE;
  }
  if (MAX_LOGIT != 0) {
    float top = HIDDEN_SCORE;
    ELEMENTS(k, m)
      if (l[k] != 0 && !is_lost(m[k]) && rows[k] < float(entry.seq_q))
        top = max(top, natural_score(tops[k]));
    if (top > HIDDEN_SCORE) raise_max_logit(entry_batch, h, top);
  }
}
// From a tile's scores s[RM][NB]: the largest score in each place of a block, in top[RM], the
// origins of the rows' weights, and whether a score changes a row's maximum (SLACK).
#define BEGIN_ROWS(s, m, top, origin, grows)                      \
  EACH(r, RM) {                                                   \
    top[r] = s[r][0];                                             \
    EACH(n, NB)                                                   \
      ELEMENTS(k, top[r]) top[r][k] = max(top[r][k], s[r][n][k]); \
    ELEMENTS(k, top[r]) {                                         \
      origin[r][k] = log2_origin(m[r][k]);                        \
      grows = grows || moves_origin(m[r][k], top[r][k]);          \
    }                                                             \
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

// REDO: the launch that is only for the rows that the one before has lost, by the lse that it has
// stored. It is a pipeline of its own: beside the loop over tiles this code cost an H100
// (580.159.04) four fifths of that loop's speed, as its compiler then kept matrices in memory.
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
