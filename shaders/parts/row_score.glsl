// SPDX-License-Identifier: MIT OR Apache-2.0
// Scores one by one, in f32, whatever a kernel's products use: for far rows
// (src/problem/far_row.h). The sums have the order of those of product_nt() (tile.glsl), and so the
// same bits.

// Four features of a row. Kernels that know more of their tensors define it.
#ifndef ROW_WORDS
#define ROW_WORDS(t, row, col) load_words(t, row, col)
#endif
// <row i of a, row j of b>
float dot_rows(View a, int i, View b, int j) {
  const uvec2 at_a = row_address(a, i), at_b = row_address(b, j);
  float sum = 0;
  [[dont_unroll]] for (int col = 0; col < a.width; col += 4) {
    const vec4 x = to_floats(ROW_WORDS(a, at_a, col)), y = to_floats(ROW_WORDS(b, at_b, col));
    sum = fma(x.x, y.x, sum);
    sum = fma(x.y, y.y, sum);
    sum = fma(x.z, y.z, sum);
    sum = fma(x.w, y.w, sum);
  }
  return sum;
}

bool is_seen(int i, int j) {
  return is_visible(i, j) && (KEEP == 0 || is_kept(i, j)) && (SPANS == 0 || is_spanned(i, j));
}

// Score of query row i and key j, which it sees, from their product. score_tile() for one element.
float score_of(float product, int i, int j) {
  precise float s = product * block.scale;
  float slope;
  if (SOFTCAP != 0) s = cap_score(s, slope);
  if (BIAS != 0) s = s + load_bias(i, j);
  return add_inputs(s, i, j);
}
