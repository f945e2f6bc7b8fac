// SPDX-License-Identifier: MIT OR Apache-2.0
// Far rows (src/problem/far_row.h) in the backward with matrices. Their scores are formed again in
// f32, as bwd_origin forms them, because matrix products round differently, and products that start
// from the bias divided by the scale may have left f32. This is slow, and is in branches that are
// rarely taken. It has no barriers and no shared memory.
#include "parts/row_score.glsl"

bool own_far = false; // whether a row whose origin this invocation has loaded is far
// Origin of the weights of a row of q (weight_origin()). head: over all batch entries.
float row_origin(int head, int i) {
  if (i >= entry.seq_q) return NO_ORIGIN;
  uint bits = Load1(stat_address(push.lse, head, block.seq_q, i)).w;
  if (tandem_is_far(uintBitsToFloat(bits))) {
    own_far = true;
    bits = floatBitsToUint(load_far(push.delta, head, block.seq_q, i).y);
  }
  return weight_origin(bits);
}

// The score after the products and score inputs, relative to the origin of row i, which is far.
float far_score(View q, View k, int head, int i, int j) {
  if (!is_seen(i, j)) return HIDDEN_SCORE;
  const float s = score_of(dot_rows(q, i, k, j), i, j);
  if (is_hidden(s)) return HIDDEN_SCORE;
  const float x = from_origin(s, load_far(push.delta, head, block.seq_q, i).x);
  return HAS_SCORES || !folded ? x : x / block.scale;
}

// The far rows of a block with query rows from i0 and keys from j0 on. flip: its rows are the keys.
// The loop is rolled, for code size, although elements of a matrix should have constant indices.
void far_block(inout ACC s, View q, View k, int head, int i0, int j0, bool flip) {
  ACC queries = query_numbers(flip), keys = key_numbers(flip);
  const int count = s.length();
  [[dont_unroll]] for (int e = 0; e < count; e++) {
    int i = i0, j = j0;
    ELEMENTS(n, s) {
      i = n == e ? i0 + int(queries[n]) : i;
      j = n == e ? j0 + int(keys[n]) : j;
    }
    // No effect, but to the compiler row and key then differ between invocations: see redo_row().
    const int none_i = min(i, 0), none_j = min(j, 0);
    i += none_j;
    j += none_i;
    bool far = false;
    if (i < entry.seq_q)
      far = tandem_is_far(uintBitsToFloat(Load1(stat_address(push.lse, head, block.seq_q, i)).w));
    float x = 0;
    if (far) x = far_score(q, k, head, i, j);
    ELEMENTS(n, s) s[n] = far && n == e ? x : s[n];
  }
}
// A macro, as a function would copy arrays of matrices (element.glsl).
#define FAR_STEP(s, q, k, head, i0, j0, flip) \
  EACH(own, STEP_BLOCKS)                      \
    far_block(s[own], q, k, head, i0 + STEP_QUERY(own, flip), j0 + STEP_KEY(own, flip), flip);
