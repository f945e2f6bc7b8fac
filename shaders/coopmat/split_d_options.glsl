// SPDX-License-Identifier: MIT OR Apache-2.0
// Options of the kernels whose features are split over subgroups (split_d.glsl).
#define SPLIT_D 1
#ifndef STREAMED
#define STREAMED (2 * COLS * PITCH)
#endif
#define KEEP_BY_ELEMENT 1
#define ROUNDS_FAST true
#define BIAS_BEGINS false
#define MASKS_FIRST false
