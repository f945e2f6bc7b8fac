// SPDX-License-Identifier: MIT OR Apache-2.0
// Options of bwd_dq from the dS that bwd_dkv left (take_ds.glsl): K, and dS, keys by query rows.
#define NO_SCRATCH 1
#define TWO_TILES (COLS * (PITCH + ROWS / 8 + 1))
#define STREAMED (TWO_TILES > ROWS * PITCH ? TWO_TILES : ROWS * PITCH)
