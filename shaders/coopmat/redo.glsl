// SPDX-License-Identifier: MIT OR Apache-2.0
// Recomputes rows of fwd for which matrices do not suffice, key by key in f32, an invocation a row,
// in a launch behind fwd. These rows have scores so far from 0 that a power of two relative to the
// rounded maximum leaves f32, or f16; or only scores below the loop's initial one, which it takes
// for hidden; or, with elastic softmax, entmax and split keys, they are far rows
// (src/problem/far_row.h).
#include "parts/row_score.glsl"

// 2^19: below 2^20 in powers of two.
const float MOST_LSE = NORM == ENTMAX                  ? 256.0
                       : NORM == SOFTMAX && SPLIT == 0 ? 524288.0
                                                       : TANDEM_FAR_LSE;
bool is_lost(float lse) { return !(abs(lse) <= MOST_LSE); } // also NaN, and rows that saw no key

// The score of a row's key; HIDDEN if it is hidden.
float key_score(View q, View k, int i, int j) {
  if (!is_seen(i, j)) return HIDDEN;
  if (BIAS != 0 && is_hidden(load_bias(i, j))) return HIDDEN;
  return score_of(dot_rows(q, i, k, j), i, j);
}
// The same relative to the largest one.
float key_distance(View q, View k, int i, int j, float top) {
  const float s = key_score(q, k, i, j);
  return is_hidden(s) ? s : from_origin(s, top);
}

// entmax's threshold relative to the row's largest z. Newton's steps on a convex sum, from the
// left, do not pass it.
float row_threshold(View q, View k, int i, float top, int begin, int end) {
  float t = -1.0;
  [[dont_unroll]] for (int turn = 0; turn < 48; turn++) {
    float sum = 0, slope = 0;
    [[dont_unroll]] for (int j = begin; j < end; j++) {
      const float x = base_of(key_distance(q, k, i, j, top), t), u = entmax_power(x);
      sum = fma(x, u, sum);
      slope += u;
    }
    const float step = (sum - 1.0) / (extra.entmax_exponent * slope);
    if (!(step > 1e-8)) break;
    t = min(t + step, 0.0);
  }
  return t;
}

// Whether a row sees one of these keys. In a part of its keys, a row of a mask often sees none. No
// condition stands before a load, so that many are on their way at a time.
const int SEEN_AT_ONCE = 16;
bool sees_any(int i, int begin, int end) {
  uint any = 0;
  [[dont_unroll]] for (int from = begin; any == 0 && from < end; from += SEEN_AT_ONCE) {
    EACH(n, SEEN_AT_ONCE) {
      const int j = min(from + n, end - 1);
      uint seen = uint(is_visible(i, j));
      if (KEEP != 0) seen &= uint(is_kept(i, j));
      if (SPANS != 0) seen &= uint(is_spanned(i, j));
      if (BIAS != 0) seen &= uint(!is_hidden(load_bias(i, j)));
      any |= seen;
    }
  }
  return any != 0;
}

const int REDO_QUADS = 8; // columns of o at a time, in units of four
void redo_row(View q, View k, View v, View o, int head, int h, int i, int begin, int end) {
  // No effect, but to the compiler keys then differ between invocations. lavapipe (Mesa 26) also
  // runs this with all invocations off, and then reads from uniform addresses that are not set
  // (extra.glsl).
  begin += min(i, 0);
  float top = HIDDEN, sum = 0, relative = 0;
  if (int(KEEP == 0) + int(SPANS == 0) + int(BIAS == 0) < 3 && !sees_any(i, begin, end))
    end = begin;
  [[dont_unroll]] for (int j = begin; j < end; j++) top = max(top, key_score(q, k, i, j));
  const bool sees = !is_hidden(top);
  if (MAX_LOGIT != 0 && sees) raise_max_logit(entry_batch, h, top);
  if (!sees) end = begin;
  if (NORM == ENTMAX) {
    if (sees) relative = row_threshold(q, k, i, top, begin, end);
  } else {
    // The sink is one more score without a value.
    const float sink = SINK != 0 ? sink_of(entry_batch, h, i) : HIDDEN;
    if (sees && SINK != 0) top = max(top, sink);
    [[dont_unroll]] for (int j = begin; j < end; j++) sum +=
        weight(key_distance(q, k, i, j, top), 0.0);
    if (sees && SINK != 0) sum += weight(from_origin(sink, top), 0.0);
    relative = log(sum);
  }
  const float share = share_of(i);
  [[dont_unroll]] for (int col = 0; col < v.width; col += 4 * REDO_QUADS) {
    vec4 acc[REDO_QUADS];
    EACH(n, REDO_QUADS) acc[n] = vec4(0);
    [[dont_unroll]] for (int j = begin; j < end; j++) {
      float y = base_of(key_distance(q, k, i, j, top), NORM == SOFTMAX ? 0.0 : relative);
      y = weight_of(y, share);
      if (DROPOUT != 0) y *= drop_factor(drop_quad(i, j >> 2) >> (j & 3)).x;
      if (y == 0) continue;
      const uvec2 row = row_address(v, j);
      EACH(n, REDO_QUADS)
        if (col + 4 * n < v.width)
          acc[n] = fma(vec4(y), to_floats(load_words(v, row, col + 4 * n)), acc[n]);
    }
    EACH(n, REDO_QUADS) {
      if (col + 4 * n >= v.width) continue;
      if (NORM == SOFTMAX && sees) acc[n] /= sum;
      if (SPLIT != 0)
        Store4(part_address(o, i, col + 4 * n)).w = floatBitsToUint(acc[n]);
      else
        store_words(o, row_address(o, i), col + 4 * n, acc[n]);
    }
  }
  if (SPLIT != 0 && sees) {
    store_part_lse(push.lse, head, block.seq_q, i, top, relative);
    return;
  }
  Store1(stat_address(push.lse, head, block.seq_q, i)).w =
      sees ? floatBitsToUint(top + relative) : LSE_NONE;
}
