// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_origin: origin, relative lse and delta of far rows (src/problem/far_row.h). Twin of
// cuda/simt/bwd_origin.cu. The matrix paths have it, too. Most problems have no far row, and a
// workgroup ends when it has checked lse of its rows. Otherwise it takes one far row after another,
// an invocation a key. The kernels that read the origin form the same bits of a far row's scores
// (dot_rows()), so it needs no slack.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "parts/interface.glsl"

#define TANDEM_SPEC GLSL_SPEC
#define TANDEM_SHARED GLSL_SHARED
#include "kernels/abi/bwd_origin.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_origin.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_origin.inc"
} push;

#define BY_ELEMENT
#define ANYWHERE false
#define TID int(gl_LocalInvocationIndex)
#include "parts/tensor.glsl"
#include "parts/place.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"
#include "parts/row_score.glsl"
#include "parts/sink.glsl"

const int D_O_AT = QUADS / 2; // where the row of d_o begins

float reduce(float own, bool sum) {
  barrier(); // the readers of the previous value are done
  partial[TID] = own;
  barrier();
  float x = partial[0];
  for (int n = 1; n < WG; n++) x = sum ? x + partial[n] : max(x, partial[n]);
  return x;
}
float reduce_max(float x) { return reduce(x, false); }
float reduce_sum(float x) { return reduce(x, true); }

// <row j of t, the row in shared memory from quad first on>, in the order of dot_rows().
float dot_row(int first, View t, int j) {
  const uvec2 at = row_address(t, j);
  float sum = 0;
  [[dont_unroll]] for (int col = 0; col < t.width; col += 4) {
    const vec4 x = rows[first + col / 4], y = to_floats(load_words(t, at, col));
    sum = fma(x.x, y.x, sum);
    sum = fma(x.y, y.y, sum);
    sum = fma(x.z, y.z, sum);
    sum = fma(x.w, y.w, sum);
  }
  return sum;
}
// The score of the current row, and of its distance from the origin.
float own_score(View k, int i, int j) {
  return is_seen(i, j) ? score_of(dot_row(0, k, j), i, j) : HIDDEN;
}
float own_distance(View k, int i, int j, float origin) {
  const float s = own_score(k, i, j);
  return is_hidden(s) ? s : from_origin(s, origin);
}

// The threshold in z relative to the row's largest. Newton's steps on a convex sum, from the left,
// do not pass it.
float find_threshold(View k, int i, float origin, TandemTiles tiles) {
  float t = -1.0;
  for (int turn = 0; turn < 48; turn++) {
    float sum = 0, slope = 0;
    for (int j = tiles.begin * WG + TID; j < min(tiles.end * WG, entry.seq_kv); j += WG) {
      const float x = base_of(own_distance(k, i, j, origin), t), u = entmax_power(x);
      sum = fma(x, u, sum);
      slope += u;
    }
    sum = reduce_sum(sum);
    slope = reduce_sum(slope);
    const float step = (sum - 1.0) / (extra.entmax_exponent * slope);
    if (!(step > 1e-8)) break;
    t = min(t + step, 0.0);
  }
  return t;
}

// A part of row i's keys, whose own lse is origin + relative, or whose relative is NO_LSE, as it
// sees none: takes the whole row's lse where that tells (far_row.h).
void take_whole(int i, inout float origin, inout float relative) {
  const float lse = uintBitsToFloat(Load1(stat_address(push.lse, inputs.head, block.seq_q, i)).w);
  if (relative == NO_LSE) {
    origin = lse;
    relative = 0;
    return;
  }
  const float whole = lse - origin;
  if (whole > relative + block.part_slack * abs(lse)) relative = min(whole, 3.4e+38);
}

void find_origin(View q, View k, View v, View d_o, int h, int i) {
  const TandemTiles tiles = tandem_key_tiles(mask_band(), i, 1, WG, entry.seq_q, entry.seq_kv);
  const int begin = tiles.begin * WG + TID, end = min(tiles.end * WG, entry.seq_kv);
  barrier(); // the previous row is not read any more
  for (int n = TID; n < D_O_AT; n += WG) {
    if (4 * n < q.width) rows[n] = to_floats(load_words(q, row_address(q, i), 4 * n));
    if (DELTA != 0 && 4 * n < d_o.width)
      rows[D_O_AT + n] = to_floats(load_words(d_o, row_address(d_o, i), 4 * n));
  }
  barrier();

  float origin = HIDDEN, sink = HIDDEN, relative = 0, delta = 0;
  for (int j = begin; j < end; j += WG) origin = max(origin, own_score(k, i, j));
  origin = reduce_max(origin);
  if (SINK != 0) {
    sink = sink_of(entry_batch, h, i);
    origin = max(origin, sink);
  }
  if (is_hidden(origin)) origin = 0; // lse belongs to other inputs
  if (NORM == ENTMAX) {
    relative = find_threshold(k, i, origin, tiles);
  } else {
    for (int j = begin; j < end; j += WG) {
      const float p = weight(own_distance(k, i, j, origin), 0.0);
      relative += p;
      if (DELTA == 0 || p == 0) continue;
      float dp = dot_row(D_O_AT, v, j);
      if (DROPOUT != 0) dp *= drop_factor(drop_quad(i, j >> 2) >> (j & 3)).x;
      delta = fma(p, dp, delta);
    }
    relative = reduce_sum(relative);
    if (DELTA != 0) delta = reduce_sum(delta);
    if (SINK != 0) relative += weight(from_origin(sink, origin), 0.0);
    // A row that sees no key has weights of 0.
    delta = relative > 0 ? delta / relative : 0.0;
    if (DELTA != 0 && D_LSE != 0 && relative > 0)
      delta -= uintBitsToFloat(Load1(stat_address(push.d_lse, inputs.head, block.seq_q, i)).w);
    relative = relative > 0 ? log(relative) : NO_LSE;
    if (PART != 0) take_whole(i, origin, relative);
  }
  if (TID != 0) return;
  Store2(far_address(push.delta, inputs.head, block.seq_q, i)).w =
      floatBitsToUint(vec2(origin, relative));
  if (DELTA != 0)
    Store1(stat_address(push.delta, inputs.head, block.seq_q, i)).w = floatBitsToUint(delta);
}

void main() {
  Place place;
  if (!find_place(block.heads_q, place)) return;
  const int b = place.batch, h = place.head, hk = h / block.group, row0 = place.tile * WG;
  const int own = row0 + TID, head = b * block.heads_q + h;
  bool far = false;
  if (own < block.seq_q)
    far = tandem_is_far(uintBitsToFloat(Load1(stat_address(push.lse, head, block.seq_q, own)).w));
  rows[TID / 4][TID % 4] = far ? 1.0 : 0.0;
  barrier();
  vec4 some = vec4(0);
  for (int n = 0; n < WG / 4; n++) some += rows[n];
  if (some == vec4(0)) return;

  partial[TID] = far ? 1.0 : 0.0;
  barrier();
  uint bits[4] = uint[](0u, 0u, 0u, 0u); // for up to 128 rows
  for (int n = 0; n < WG; n++) bits[n / 32] |= partial[n] != 0 ? 1u << (n % 32) : 0u;
  set_entry(b);
  set_head(b, h);
  const View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
  const View k =
      kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  const View v =
      kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
  const View d_o =
      q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
  for (int n = 0; n < WG; n++)
    if ((bits[n / 32] >> (n % 32) & 1u) != 0 && row0 + n < entry.seq_q)
      find_origin(q, k, v, d_o, h, row0 + n);
}
