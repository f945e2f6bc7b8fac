// SPDX-License-Identifier: MIT OR Apache-2.0
// Staging and the two products (docs/kernels/overview.md). Invocation (TROW, TCOL) owns the rows
// TROW + TR i of the tile, i < RM, and its columns 4 TCOL .. 4 TCOL + 3. The arrays below are
// indexed by unrolled loops only, which keeps them in registers.

const int TR = ROWS / RM;
// vec4s; odd, so that 16-byte reads down a column hit different banks
const int NT_PITCH = DK / 4 + 1;
const int NN_PITCH = TC + 1;
const int P_PITCH = COLS / 4 + 1;

const int NT_LANES = DK / 4; // invocations that stage one row together
const int NN_LANES = TC;

// Columns of a product may begin at any row, also before the first (bwd_dist_bias).
#ifndef ANYWHERE
#define ANYWHERE false
#endif

#include "place.glsl"

#define TID int(gl_LocalInvocationIndex)
#define TROW (TID / TC)
#define TCOL (TID % TC)

// WIDE: register prefetch. Words are loaded into these registers during the previous step's product
// (fetch), and then stored in the pool (put). Otherwise put loads them itself, in rolled loops, as
// the element-wise load_words, unrolled at every fetch, would be most of the kernel's code.
uvec4 stage_m[NT_VEC], stage_n[NT_VEC], stage_k[NN_VEC];

bool has_row(View t, int r) { return (!ANYWHERE || r >= 0) && r < t.rows; }

// Features [d, d + DK) of ROWS rows of a from a0 and of COLS rows of b from b0.
void fetch_nt(View a, int a0, View b, int b0, int d) {
  if (WIDE == 0) return;
  const int step = WG / NT_LANES;
  int r = TID / NT_LANES, col = d + 4 * (TID % NT_LANES);
  uvec2 a_at = row_address(a, a0 + r), a_step = mul64(a.row, step);
  uvec2 b_at = row_address(b, b0 + r), b_step = mul64(b.row, step);
  [[unroll]] for (int i = 0; i < NT_VEC; i++) {
    stage_m[i] = a0 + r < a.rows && col < a.width ? load_wide(a_at, col) : uvec4(0);
    if (ANYWHERE) b_at = row_address(b, max(b0 + r, 0));
    stage_n[i] = has_row(b, b0 + r) && col < b.width ? load_wide(b_at, col) : uvec4(0);
    a_at = add64(a_at, a_step);
    b_at = add64(b_at, b_step);
    r += step;
  }
}

uvec4 load_any(View t, int r, int col) {
  return has_row(t, r) && col < t.width ? load_words(t, row_address(t, r), col) : uvec4(0);
}

void put_nt(View a, int a0, View b, int b0, int d) {
  int r = TID / NT_LANES, c = TID % NT_LANES;
  if (WIDE == 0) {
    [[dont_unroll]] for (int i = 0; i < NT_VEC; i++, r += WG / NT_LANES) {
      pool[r * NT_PITCH + c] = to_floats(load_any(a, a0 + r, d + 4 * c));
      pool[(ROWS + (r % 4) * TC + r / 4) * NT_PITCH + c] = to_floats(load_any(b, b0 + r, d + 4 * c));
    }
    return;
  }
  [[unroll]] for (int i = 0; i < NT_VEC; i++) {
    pool[r * NT_PITCH + c] = to_floats(stage_m[i]);
    // The four rows that neighbours read together are adjacent.
    pool[(ROWS + (r % 4) * TC + r / 4) * NT_PITCH + c] = to_floats(stage_n[i]);
    r += WG / NT_LANES;
  }
}

// s = rows of a . (rows of b)^T. fetch_nt of d = 0 must have been called.
void product_nt(out vec4 s[RM], View a, int a0, View b, int b0) {
  [[unroll]] for (int i = 0; i < RM; i++) s[i] = vec4(0);
  const int m = TROW * NT_PITCH, n = (ROWS + TCOL) * NT_PITCH;
  for (int d = 0; d < a.width; d += DK) {
    barrier(); // the pool's readers are done
    put_nt(a, a0, b, b0, d);
    barrier();
    if (d + DK < a.width) fetch_nt(a, a0, b, b0, d + DK);
    for (int k = 0; k < DK / 4; k++) {
      vec4 y[4];
      [[unroll]] for (int c = 0; c < 4; c++) y[c] = pool[n + c * TC * NT_PITCH + k];
      [[unroll]] for (int i = 0; i < RM; i++) {
        vec4 x = pool[m + i * TR * NT_PITCH + k];
        s[i] = fma(vec4(x.x), vec4(y[0].x, y[1].x, y[2].x, y[3].x), s[i]);
        s[i] = fma(vec4(x.y), vec4(y[0].y, y[1].y, y[2].y, y[3].y), s[i]);
        s[i] = fma(vec4(x.z), vec4(y[0].z, y[1].z, y[2].z, y[3].z), s[i]);
        s[i] = fma(vec4(x.w), vec4(y[0].w, y[1].w, y[2].w, y[3].w), s[i]);
      }
    }
  }
}

// Rows [k0, k0 + KC) of the tile of b that starts at row b0, features of one accumulator block.
void fetch_nn(View b, int b0, int k0, int block) {
  if (WIDE == 0) return;
  const int step = WG / NN_LANES;
  int r = b0 + k0 + TID / NN_LANES, col = 4 * (block * TC + TID % NN_LANES);
  uvec2 at = row_address(b, r), at_step = mul64(b.row, step);
  [[unroll]] for (int i = 0; i < NN_VEC; i++) {
    stage_k[i] = r < b.rows && col < b.width ? load_wide(at, col) : uvec4(0);
    at = add64(at, at_step);
    r += step;
  }
}

void put_nn(View b, int b0, int k0, int block) {
  int r = TID / NN_LANES, c = TID % NN_LANES;
  if (WIDE == 0) {
    [[dont_unroll]] for (int i = 0; i < NN_VEC; i++, r += WG / NN_LANES)
      pool[r * NN_PITCH + c] = to_floats(load_any(b, b0 + k0 + r, 4 * (block * TC + c)));
    return;
  }
  [[unroll]] for (int i = 0; i < NN_VEC; i++) {
    pool[r * NN_PITCH + c] = to_floats(stage_k[i]);
    r += WG / NN_LANES;
  }
}

void put_ptile(vec4 p[RM]) {
  [[unroll]] for (int i = 0; i < RM; i++) ptile[(TROW + TR * i) * P_PITCH + TCOL] = p[i];
}

// acc += ptile . (COLS rows of b from b0), features of one block. fetch_nn of the block's first
// rows must have been called; on return that of the next block's has been.
void product_nn(inout vec4 acc[RM], View b, int b0, int block, int blocks) {
  for (int k0 = 0; k0 < COLS; k0 += KC) {
    barrier(); // the pool's readers are done
    put_nn(b, b0, k0, block);
    barrier(); // and the P tile is complete
    if (k0 + KC < COLS)
      fetch_nn(b, b0, k0 + KC, block);
    else if (block + 1 < blocks)
      fetch_nn(b, b0, 0, block + 1);
    const int m = TROW * P_PITCH + k0 / 4;
    for (int k = 0; k < KC / 4; k++) {
      vec4 y[4];
      [[unroll]] for (int c = 0; c < 4; c++) y[c] = pool[(4 * k + c) * NN_PITCH + TCOL];
      [[unroll]] for (int i = 0; i < RM; i++) {
        vec4 x = ptile[m + i * TR * P_PITCH + k];
        acc[i] = fma(vec4(x.x), y[0], acc[i]);
        acc[i] = fma(vec4(x.y), y[1], acc[i]);
        acc[i] = fma(vec4(x.z), y[2], acc[i]);
        acc[i] = fma(vec4(x.w), y[3], acc[i]);
      }
    }
  }
}

// Stores one accumulator block to rows from r0 of t. Rounding to 16 bits and element-wise stores
// are much code for something done once, so they stay in a rolled loop. The block must not have a
// dynamic index, so it passes through the P tile. Each invocation reads back what it has written.
void store_block(View t, int r0, int block, vec4 x[RM]) {
  const int col = 4 * (block * TC + TCOL);
  if (WIDE != 0 && DTYPE == F32) {
    [[unroll]] for (int i = 0; i < RM; i++) {
      const int r = r0 + TROW + TR * i;
      if (r < t.rows && col < t.width) store_wide(row_address(t, r), col, x[i]);
    }
    return;
  }
  barrier(); // the P tile's readers are done
  put_ptile(x);
  [[dont_unroll]] for (int i = 0; i < RM; i++) {
    const int r = r0 + TROW + TR * i;
    if (r >= t.rows || col >= t.width) continue;
    const vec4 y = ptile[(TROW + TR * i) * P_PITCH + TCOL];
    if (WIDE != 0)
      store_wide(row_address(t, r), col, y);
    else
      store_words(t, row_address(t, r), col, y);
  }
}

// The same to a split's partial output.
void store_part(View t, int r0, int block, vec4 x[RM]) {
  const int col = 4 * (block * TC + TCOL);
  [[unroll]] for (int i = 0; i < RM; i++) {
    const int r = r0 + TROW + TR * i;
    if (r < t.rows && col < t.width) Store4(part_address(t, r, col)).w = floatBitsToUint(x[i]);
  }
}
