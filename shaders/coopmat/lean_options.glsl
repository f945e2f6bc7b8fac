// SPDX-License-Identifier: MIT OR Apache-2.0
// Options of the kernels of lean tiles (lean.glsl), which also define OWN_COUNT: how many numbers a
// subgroup has of its own.
#define KEEP_BY_ELEMENT 1
// WIDE tensors have no features beside whole words (row_score.glsl).
#define ROW_WORDS(t, row, col) (WIDE != 0 ? load_wide(row, col) : load_words(t, row, col))
#define ROUNDS_IN_SCRATCH 1
