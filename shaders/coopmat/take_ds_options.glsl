// SPDX-License-Identifier: MIT OR Apache-2.0
// Options of bwd_dq from the dS that bwd_dkv left (take_ds.glsl): K, and dS, keys by query rows.
// Results pass through their room by strips or slices of features (split_d.glsl).
#define NO_SCRATCH 1
#define STREAMED (COLS * (PITCH + ROWS / 8 + 1))
