// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd: o and lse of ROWS query rows of one head, over the key tiles that they see
// (docs/kernels/overview.md).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
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
#include "parts/tile.glsl"
#include "parts/tile_quads.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"

// Elastic softmax and entmax: a bit for each row whose lse or threshold, an f32, would be rounded
// too much (src/problem/far_row.h). Scores and m of these rows are relative to far_origin.
uint far_rows = 0;
float far_origin[RM];

// From a key tile's product to its scores.
void finish_scores(inout vec4 s[RQ], int row0, int col0, TandemTiles tiles, int t, uint shown) {
  score_tile(s, row0, col0, false);
  if (t < tiles.full_begin || t >= tiles.full_end) mask_tile(s, row0, col0);
  if (HAS_BITS) show_tile(s, shown);
  if (NORM != SOFTMAX && far_rows != 0) {
    // QUADS is 1 here.
    [[unroll]] for (int i = 0; i < RM; i++) if ((far_rows >> i & 1u) != 0) s[i] =
        from_origin(s[i], vec4(far_origin[i]));
  }
}

// The scores of a key tile in a pass that needs nothing else; false: it is skipped. next: the tile
// behind it, or one from the end on.
bool visit_tile(out vec4 s[RQ], View q, int row0, View k, TandemTiles tiles, int t, int next) {
  uint shown;
  if (!open_tile(q, row0, k, t * COLS, false, shown)) return false;
  product_nt(s, q, row0, k, t * COLS);
  if (KNOWS_NEXT && next < tiles.end) fetch_nt(q, row0, k, next * COLS, 0);
  finish_scores(s, row0, t * COLS, tiles, t, shown);
  return true;
}

#include "parts/entmax.glsl"

// The first loads of the product with V.
void fetch_v(View v, int col0) {
  if (IN_ONE != 0)
    fetch_side(v, col0);
  else
    fetch_nn(v, col0, 0, 0);
}

#include "parts/sink.glsl"
#include "parts/max_logit.glsl"

// Adds the sink as one more score without a value, in rows that see a key. Returns the factor for
// the weights so far.
float add_sink(float sink, inout float m, inout float l) {
  if (is_hidden(m)) return 1;
  const float top = max(m, sink), keep = weight(m, top);
  l = l * keep + weight(sink, top);
  m = top;
  return keep;
}

// lse of each row, as it is stored, for elastic softmax. Until the end, each invocation has its own
// maximum and sum.
void find_lse(out float lse[RM], View q, int row0, View k, TandemTiles tiles, int h) {
  float m[RM], l[RM], own[RM];
  [[unroll]] for (int i = 0; i < RM; i++) {
    m[i] = HIDDEN;
    l[i] = 0;
  }
  int t = next_tile(tiles.begin, tiles.end, row0, false);
  if (KNOWS_NEXT && t < tiles.end) fetch_nt(q, row0, k, t * COLS, 0);
  for (int next; t < tiles.end; t = next) {
    next = next_tile(t + 1, tiles.end, row0, false);
    vec4 s[RQ];
    if (!visit_tile(s, q, row0, k, tiles, t, next)) continue;
    [[unroll]] for (int i = 0; i < RM; i++) {
      const float top = max(max(max(s[i].x, s[i].y), max(s[i].z, s[i].w)), m[i]);
      const float keep = weight(m[i], top);
      s[i] = weights(s[i], vec4(top));
      l[i] = l[i] * keep + (s[i].x + s[i].y + (s[i].z + s[i].w));
      m[i] = top;
    }
  }
  [[unroll]] for (int i = 0; i < RM; i++) own[i] = m[i];
  row_max(m);
  [[unroll]] for (int i = 0; i < RM; i++) l[i] *= weight(own[i], m[i]);
  row_sum(l);
  [[unroll]] for (int i = 0; i < RM; i++) {
    if (SINK != 0) add_sink(sink_of(entry_batch, h, row0 + OWN_ROW(i)), m[i], l[i]);
    precise float origin = m[i] + log(l[i]);
    lse[i] = l[i] != 0 ? real_lse(origin) : NO_LSE;
    if (is_far_origin(lse[i])) {
      far_rows |= 1u << i;
      far_origin[i] = m[i];
      lse[i] = log(l[i]);
    }
  }
}

void main() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
  const int features = take_part(place);
  const int part = place.batch; // over batch entries and splits
  const int b = SPLIT != 0 ? part / block.splits : part, h = place.head, hk = h / block.group;
  const int row0 = place.tile * ROWS;
  open_lean();
  set_entry(b);
  View q =
      park(0, q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0));
  View k =
      park(1, kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0));
  View v = park(
      2, kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0));
  v = own_features(v, features, DV_BLOCKS);
  lean_barrier();

  // m: the running maximum, the same in all invocations of a row. l: own part of the sum. For
  // elastic softmax and entmax m is the row's origin.
  float m[RM], l[RM];
  vec4 acc[DV_BLOCKS][RM];
  [[unroll]] for (int i = 0; i < RM; i++) {
    m[i] = HIDDEN;
    l[i] = 0;
    [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) acc[n][i] = vec4(0);
  }

  TandemTiles tiles = tandem_key_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  if (SPLIT != 0) tiles = tandem_split_tiles(tiles, part % block.splits, block.splits);
  if (tiles.begin < tiles.end) set_head(b, h);
  open_votes();
  if (NORM == ELASTIC) find_lse(m, q, row0, k, tiles, h);
  if (NORM == ENTMAX) find_threshold(m, q, row0, k, tiles);

  int t = next_tile(tiles.begin, tiles.end, row0, false);
  if (KNOWS_NEXT && t < tiles.end) fetch_nt(q, row0, k, t * COLS, 0);
  for (int next; t < tiles.end; t = next) {
    next = next_tile(t + 1, tiles.end, row0, false);
    const int col0 = t * COLS;
    if (SKIP_ENTMAX && !is_live_tile(t - tiles.begin)) continue;
    uint shown;
    if (!open_tile(q, row0, k, col0, false, shown)) continue;
    vec4 s[RQ];
    product_nt(s, q, row0, k, col0);
    // in flight during the softmax
    if (!SKIP_ENTMAX) fetch_v(v, col0);
    finish_scores(s, row0, col0, tiles, t, shown);

    if (NORM == SOFTMAX) {
      float top[RM];
      [[unroll]] for (int i = 0; i < RM; i++) {
        top[i] = max(max(max(s[i].x, s[i].y), max(s[i].z, s[i].w)), m[i]);
        if (QUADS > 1) {
          [[unroll]] for (int e = RM + i; e < RQ; e += RM) top[i] =
              max(max(max(s[e].x, s[e].y), max(s[e].z, s[e].w)), top[i]);
        }
      }
      row_max(top);
      [[unroll]] for (int i = 0; i < RM; i++) {
        float keep = weight(m[i], top[i]);
        s[i] = weights(s[i], vec4(top[i]));
        l[i] = l[i] * keep + (s[i].x + s[i].y + (s[i].z + s[i].w));
        if (QUADS > 1) {
          [[unroll]] for (int e = RM + i; e < RQ; e += RM) {
            s[e] = weights(s[e], vec4(top[i]));
            l[i] += s[e].x + s[e].y + (s[e].z + s[e].w);
          }
        }
        m[i] = top[i];
        [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) acc[n][i] *= keep;
      }
    } else {
      [[unroll]] for (int i = 0; i < RM; i++) s[i] = bases(s[i], vec4(m[i]));
      if (SKIP_ENTMAX) {
        if (!vote(has_support(s))) continue;
        fetch_v(v, col0);
      }
      [[unroll]] for (int i = 0; i < RM; i++) s[i] =
          weights_of(s[i], vec4(share_of(row0 + OWN_ROW(i))));
    }
    if (DROPOUT != 0) drop_tile(s, row0, col0);
    if (QUADS == 1) put_ptile(s);
    // in flight during the product
    if (KNOWS_NEXT && next < tiles.end) fetch_nt(q, row0, k, next * COLS, 0);
    if (IN_ONE != 0) {
      product_sides(acc, s, v, col0);
    } else {
      [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) product_nn(acc[n], v, col0, n, DV_BLOCKS);
    }
  }

  if (MAX_LOGIT != 0 && TCOL == 0) {
    float top = HIDDEN;
    [[unroll]] for (int i = 0; i < RM; i++) if (row0 + OWN_ROW(i) < entry.seq_q) top =
        max(top, m[i]);
    if (!is_hidden(top)) raise_max_logit(b, h, top);
  }
  if (NORM == SOFTMAX) {
    row_sum(l);
    [[unroll]] for (int i = 0; i < RM; i++) {
      if (SINK == 0) continue;
      const float keep = add_sink(sink_of(entry_batch, h, row0 + OWN_ROW(i)), m[i], l[i]);
      [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) acc[n][i] *= keep;
    }
  } else {
    [[unroll]] for (int i = 0; i < RM; i++) l[i] = m[i] != NO_LSE ? 1.0 : 0.0;
  }
  if (LENGTHS_Q != 0) {
    [[unroll]] for (int i = 0; i < RM; i++) if (row0 + OWN_ROW(i) >= entry.seq_q) l[i] = 0;
  }
  View o;
  if (SPLIT != 0)
    o = part_view(push.o, block.o, part, h, entry.seq_q);
  else
    o = q_view(push.o, block.o, b, h, stored_q(), block.head_dim_v, (push.wide & 8u) != 0);
  o = own_features(o, features, DV_BLOCKS);
  [[unroll]] for (int n = 0; n < DV_BLOCKS; n++) {
    [[unroll]] for (int i = 0; i < RM; i++) acc[n][i] = l[i] != 0 ? acc[n][i] / l[i] : vec4(0);
    if (SPLIT != 0)
      store_part(o, row0, n, acc[n]);
    else
      store_block(o, row0, n, acc[n]);
  }
  if (push.lse != uvec2(0) && TCOL == 0) {
    [[unroll]] for (int i = 0; i < RM; i++) {
      const int row = row0 + OWN_ROW(i);
      if (row >= block.seq_q) continue;
      if (NORM == SOFTMAX && SPLIT != 0 && l[i] != 0) {
        store_part_lse(push.lse, part * block.heads_q + h, block.seq_q, row, m[i], log(l[i]));
        continue;
      }
      if (NORM != SOFTMAX && (far_rows >> i & 1u) != 0) m[i] += far_origin[i];
      Store1(stat_address(push.lse, part * block.heads_q + h, block.seq_q, row)).w =
          l[i] != 0 ? floatBitsToUint(NORM == SOFTMAX ? m[i] + log(l[i]) : m[i]) : LSE_NONE;
    }
  }
}
