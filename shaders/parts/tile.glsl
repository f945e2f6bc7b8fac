// SPDX-License-Identifier: MIT OR Apache-2.0
// Staging and the two products (docs/kernels/overview.md). Invocation (TROW, TCOL) owns the rows
// TROW + TR i of the tile, i < RM, and its columns 4 TCOL .. 4 TCOL + 3; with QUADS > 1 also those
// 4 TC further on. The arrays below are indexed by unrolled loops only, which keeps them in
// registers.

const int TR = ROWS / RM;
// vec4s; odd, so that 16-byte reads down a column hit different banks
const int NT_PITCH = DK / 4 + 1;
const int NN_PITCH = TC + 1;
const int P_PITCH = TC + 1;
// Quads of columns of an invocation. Element e of its RQ = RM QUADS scores has row e % RM and quad
// e / RM.
const int QUADS = COLS / (4 * TC);
// With QUADS > 1 the P tile, of one quad of each invocation, lies in the pool, behind the rows of
// product_nn().
const int P_AT = KC * NN_PITCH;

const int NT_LANES = DK / 4; // invocations that stage one row together
const int NN_LANES = TC;
// More invocations than vec4s of an operand: those of the first rows stage.
const bool NT_PART = ROWS * NT_LANES < WG;
// Where b has fewer rows than a: vec4s of b that an invocation stages. Else 0.
const int NT_LESS = COLS < ROWS ? COLS * DK / 4 / WG : 0;

// Columns of a product may begin at any row, also before the first (bwd_dist_bias).
#ifndef ANYWHERE
#define ANYWHERE false
#endif

#include "place.glsl"

// Tiles of one head, each of which FEATURE_PARTS workgroups share.
int tiles_of_head() { return int(block.tiles) / FEATURE_PARTS; }
// The part of the features that this workgroup sums, which is taken out of the tile's number.
int take_part(inout Place place) {
  if (FEATURE_PARTS == 1) return 0;
  const int part = place.tile / tiles_of_head();
  place.tile -= part * tiles_of_head();
  return part;
}
// A tensor of which this workgroup sums, or stores, the features of a part of so many blocks.
View own_features(View t, int part, int blocks) {
  if (FEATURE_PARTS > 1) t.first = part * blocks * 4 * TC;
  return t;
}

// LEAN: the tile is for invocations with few registers. Compilers join equal expressions and move
// them out of loops, and the addresses, indices and conditions of all steps would take more
// registers than the accumulators. What has passed through shared memory is new behind each
// barrier: a zero in the index of the invocation, and the address and strides of each View.
#define LEAN_WORDS (LEAN != 0 ? 25 : 0) // src/plan/tile.h counts them
#define TID (int(gl_LocalInvocationIndex) + (LEAN != 0 ? int(votes[VOTES]) : 0))
// PAIRED: neighbouring invocations have the same columns, of two rows.
#define TROW (PAIRED != 0 ? TID / (2 * TC) * 2 + TID % 2 : TID / TC)
#define TCOL (PAIRED != 0 ? TID / 2 % TC : TID % TC)
// With QUADS > 1 also rows come in quads, 4 TR apart: operands are read as vec4s of four rows.
#define OWN_ROW(i) (QUADS > 1 ? 4 * TROW + (i) % 4 + 4 * TR * ((i) / 4) : TROW + TR * (i))
#define ROW_OF(e) OWN_ROW((e) % RM)
#define COL_OF(e) (4 * (TCOL + TC * ((e) / RM)))
#include "vote.glsl"

// Comes before the first use of TID.
void open_lean() {
  if (LEAN == 0) return;
  if (gl_LocalInvocationIndex == 0) votes[VOTES] = 0;
  barrier();
}
// Stands between readers of earlier views, park(), and readers of its views.
void lean_barrier() {
  if (LEAN != 0) barrier();
}
// Leaves a view in shared memory: q, k, v, d_o have the slots 0 to 3.
View park(int slot, View t) {
  if (LEAN == 0) return t;
  if (gl_LocalInvocationIndex == 0) {
    const int at = VOTES + 1 + 6 * slot;
    votes[at] = t.base.x;
    votes[at + 1] = t.base.y;
    votes[at + 2] = t.row.x;
    votes[at + 3] = t.row.y;
    votes[at + 4] = t.col.x;
    votes[at + 5] = t.col.y;
  }
  t.slot = slot;
  return t;
}
// The view as it was parked, new behind each barrier.
View parked(View t) {
  if (LEAN == 0) return t;
  const int at = VOTES + 1 + 6 * t.slot;
  t.base = uvec2(votes[at], votes[at + 1]);
  t.row = uvec2(votes[at + 2], votes[at + 3]);
  t.col = uvec2(votes[at + 4], votes[at + 5]);
  return t;
}

// WIDE: register prefetch. Words are loaded into these registers during the previous step's product
// (fetch), and then stored in the pool (put). Otherwise put loads them itself, in rolled loops, as
// the element-wise load_words, unrolled at every fetch, would be most of the kernel's code.
uvec4 stage_m[NT_VEC], stage_n[NT_VEC], stage_k[NN_VEC];

bool stages_nt(int r) { return !NT_PART || r < ROWS; }
bool has_row(View t, int r) { return (!ANYWHERE || r >= 0) && r < t.rows; }

// Features [d, d + DK) of ROWS rows of a from a0 and of COLS rows of b from b0.
void fetch_nt(View a, int a0, View b, int b0, int d) {
  if (WIDE == 0) return;
  a = parked(a);
  b = parked(b);
  const int step = WG / NT_LANES;
  int r = TID / NT_LANES, col = d + 4 * (TID % NT_LANES);
  uvec2 a_at = row_address(a, a0 + r), a_step = mul64(a.row, step);
  uvec2 b_at = row_address(b, b0 + r), b_step = mul64(b.row, step);
  [[unroll]] for (int i = 0; i < NT_VEC; i++) {
    stage_m[i] = stages_nt(r) && a0 + r < a.rows && col < a.width ? load_wide(a_at, col) : uvec4(0);
    if (ANYWHERE) b_at = row_address(b, max(b0 + r, 0));
    if (NT_LESS == 0 || i < NT_LESS)
      stage_n[i] =
          stages_nt(r) && has_row(b, b0 + r) && col < b.width ? load_wide(b_at, col) : uvec4(0);
    a_at = add64(a_at, a_step);
    b_at = add64(b_at, b_step);
    r += step;
  }
}

uvec4 load_any(View t, int r, int col) {
  t = parked(t);
  return has_row(t, r) && col < t.width ? load_words(t, row_address(t, r), col) : uvec4(0);
}

// Where row r of b lies behind those of a: the four rows of a quad that neighbours read together
// are adjacent.
int n_place(int r) { return (r % 4) * TC + r / 4; }

// With QUADS > 1 operands are transposed: a vec4 has one feature of four rows. Products then need
// few registers for what they have read, and the next loads fit in beside it.
const int AT_PITCH = ROWS / 4 + 1, BT_PITCH = COLS / 4 + 1, BT_AT = DK * AT_PITCH;

// Stores four features of row r, from feature d of the step, to rows of `pitch` vec4s.
void put_transposed(int at, int pitch, int r, int d, vec4 x) {
  [[unroll]] for (int e = 0; e < 4; e++) pool[at + (d + e) * pitch + r / 4][r % 4] = x[e];
}

void put_nt(View a, int a0, View b, int b0, int d) {
  int r = TID / NT_LANES, c = TID % NT_LANES;
  if (!stages_nt(r)) return;
  if (QUADS > 1) {
    if (WIDE == 0) {
      [[dont_unroll]] for (int i = 0; i < NT_VEC; i++, r += WG / NT_LANES) {
        put_transposed(0, AT_PITCH, r, 4 * c, to_floats(load_any(a, a0 + r, d + 4 * c)));
        if (NT_LESS == 0 || r < COLS)
          put_transposed(BT_AT, BT_PITCH, r, 4 * c, to_floats(load_any(b, b0 + r, d + 4 * c)));
      }
      return;
    }
    [[unroll]] for (int i = 0; i < NT_VEC; i++) {
      put_transposed(0, AT_PITCH, r, 4 * c, to_floats(stage_m[i]));
      if (NT_LESS == 0 || i < NT_LESS)
        put_transposed(BT_AT, BT_PITCH, r, 4 * c, to_floats(stage_n[i]));
      r += WG / NT_LANES;
    }
    return;
  }
  if (WIDE == 0) {
    [[dont_unroll]] for (int i = 0; i < NT_VEC; i++, r += WG / NT_LANES) {
      pool[r * NT_PITCH + c] = to_floats(load_any(a, a0 + r, d + 4 * c));
      if (NT_LESS == 0 || r < COLS)
        pool[(ROWS + n_place(r)) * NT_PITCH + c] = to_floats(load_any(b, b0 + r, d + 4 * c));
    }
    return;
  }
  [[unroll]] for (int i = 0; i < NT_VEC; i++) {
    pool[r * NT_PITCH + c] = to_floats(stage_m[i]);
    if (NT_LESS == 0 || i < NT_LESS)
      pool[(ROWS + n_place(r)) * NT_PITCH + c] = to_floats(stage_n[i]);
    r += WG / NT_LANES;
  }
}

// s += four features of rows of a . the same of rows of b, in the pool from m and n.
void multiply_nt(inout vec4 s[RQ], int m, int n) {
  if (LEAN != 0) { // one column at a time
    vec4 x[RM];
    [[unroll]] for (int i = 0; i < RM; i++) x[i] = pool[m + i * TR * NT_PITCH];
    [[unroll]] for (int c = 0; c < 4; c++) {
      const vec4 y = pool[n + c * TC * NT_PITCH];
      [[unroll]] for (int i = 0; i < RM; i++) s[i][c] =
          fma(x[i].w, y.w, fma(x[i].z, y.z, fma(x[i].y, y.y, fma(x[i].x, y.x, s[i][c]))));
    }
    return;
  }
  vec4 y[4];
  [[unroll]] for (int c = 0; c < 4; c++) y[c] = pool[n + c * TC * NT_PITCH];
  [[unroll]] for (int i = 0; i < RM; i++) {
    vec4 x = pool[m + i * TR * NT_PITCH];
    s[i] = fma(vec4(x.x), vec4(y[0].x, y[1].x, y[2].x, y[3].x), s[i]);
    s[i] = fma(vec4(x.y), vec4(y[0].y, y[1].y, y[2].y, y[3].y), s[i]);
    s[i] = fma(vec4(x.z), vec4(y[0].z, y[1].z, y[2].z, y[3].z), s[i]);
    s[i] = fma(vec4(x.w), vec4(y[0].w, y[1].w, y[2].w, y[3].w), s[i]);
  }
}

// With QUADS > 1, s += one feature of rows of a . the same of rows of b.
void multiply_transposed(inout vec4 s[RQ], int d) {
  vec4 x[(RM + 3) / 4];
  [[unroll]] for (int h = 0; h < RM / 4; h++) x[h] = pool[d * AT_PITCH + TROW + TR * h];
  [[unroll]] for (int q = 0; q < QUADS; q++) {
    const vec4 y = pool[BT_AT + d * BT_PITCH + TCOL + TC * q];
    [[unroll]] for (int i = 0; i < RM; i++) s[q * RM + i] =
        fma(vec4(x[i / 4][i % 4]), y, s[q * RM + i]);
  }
}

// s = rows of a . (rows of b)^T. fetch_nt of d = 0 must have been called.
void product_nt(out vec4 s[RQ], View a, int a0, View b, int b0) {
  [[unroll]] for (int i = 0; i < RQ; i++) s[i] = vec4(0);
  int m = TROW * NT_PITCH, n = (ROWS + TCOL) * NT_PITCH;
  for (int d = 0; d < a.width; d += DK) {
    barrier(); // the pool's readers are done
    put_nt(a, a0, b, b0, d);
    barrier();
    if (d + DK < a.width) fetch_nt(a, a0, b, b0, d + DK);
    if (QUADS > 1) {
      [[unroll]] for (int k = 0; k < DK; k++) multiply_transposed(s, k);
    } else if (LEAN != 0) {
      m = TROW * NT_PITCH;
      n = (ROWS + TCOL) * NT_PITCH;
      [[dont_unroll]] for (int k = 0; k < DK / 4; k++) multiply_nt(s, m + k, n + k);
    } else if (PAIRED != 0) { // the loads of an iteration come during the one before
      [[unroll]] for (int k = 0; k < DK / 4; k++) multiply_nt(s, m + k, n + k);
    } else {
      for (int k = 0; k < DK / 4; k++) multiply_nt(s, m + k, n + k);
    }
  }
}

// Rows [k0, k0 + KC) of the tile of b that starts at row b0, features of one accumulator block.
void fetch_nn(View b, int b0, int k0, int block) {
  if (WIDE == 0) return;
  b = parked(b);
  const int step = WG / NN_LANES;
  int r = b0 + k0 + TID / NN_LANES, col = b.first + 4 * (block * TC + TID % NN_LANES);
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
    [[dont_unroll]] for (int i = 0; i < NN_VEC; i++, r += WG / NN_LANES) pool[r * NN_PITCH + c] =
        to_floats(load_any(b, b0 + k0 + r, b.first + 4 * (block * TC + c)));
    return;
  }
  [[unroll]] for (int i = 0; i < NN_VEC; i++) {
    pool[r * NN_PITCH + c] = to_floats(stage_k[i]);
    r += WG / NN_LANES;
  }
}

void put_ptile(vec4 p[RQ]) {
  [[unroll]] for (int i = 0; i < RM; i++) ptile[(TROW + TR * i) * P_PITCH + TCOL] = p[i];
}

// Own elements.
void get_ptile(out vec4 p[RQ]) {
  [[unroll]] for (int i = 0; i < RM; i++) p[i] = ptile[(TROW + TR * i) * P_PITCH + TCOL];
}

// acc += four columns of the P tile, from m . four rows in the pool, from n.
void multiply_nn(inout vec4 acc[RM], int m, int n) {
  if (LEAN != 0) { // one row at a time
    vec4 x[RM];
    [[unroll]] for (int i = 0; i < RM; i++) x[i] = ptile[m + i * TR * P_PITCH];
    [[unroll]] for (int c = 0; c < 4; c++) {
      const vec4 y = pool[n + c * NN_PITCH];
      [[unroll]] for (int i = 0; i < RM; i++) acc[i] = fma(vec4(x[i][c]), y, acc[i]);
    }
    return;
  }
  vec4 y[4];
  [[unroll]] for (int c = 0; c < 4; c++) y[c] = pool[n + c * NN_PITCH];
  [[unroll]] for (int i = 0; i < RM; i++) {
    vec4 x = ptile[m + i * TR * P_PITCH];
    acc[i] = fma(vec4(x.x), y[0], acc[i]);
    acc[i] = fma(vec4(x.y), y[1], acc[i]);
    acc[i] = fma(vec4(x.z), y[2], acc[i]);
    acc[i] = fma(vec4(x.w), y[3], acc[i]);
  }
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
    const int n = TCOL;
    if (LEAN != 0) {
      [[dont_unroll]] for (int k = 0; k < KC / 4; k++)
          multiply_nn(acc, m + k, n + 4 * k * NN_PITCH);
    } else if (PAIRED != 0) {
      [[unroll]] for (int k = 0; k < KC / 4; k++) multiply_nn(acc, m + k, n + 4 * k * NN_PITCH);
    } else {
      for (int k = 0; k < KC / 4; k++) multiply_nn(acc, m + k, n + 4 * k * NN_PITCH);
    }
  }
}

// Stores one accumulator block to rows from r0 of t. Rounding to 16 bits and element-wise stores
// are much code for something done once, so they stay in a rolled loop. The block must not have a
// dynamic index, so it passes through the P tile. Each invocation reads back what it has written.
void store_block(View t, int r0, int block, vec4 x[RM]) {
  const int col = t.first + 4 * (block * TC + TCOL);
  if (WIDE != 0 && DTYPE == F32) {
    [[unroll]] for (int i = 0; i < RM; i++) {
      const int r = r0 + OWN_ROW(i);
      if (r < t.rows && col < t.width) store_wide(row_address(t, r), col, x[i]);
    }
    return;
  }
  barrier(); // the P tile's readers are done
  [[unroll]] for (int i = 0; i < RM; i++) {
    const int at = OWN_ROW(i) * P_PITCH + TCOL;
    if (QUADS > 1)
      pool[P_AT + at] = x[i];
    else
      ptile[at] = x[i];
  }
  [[dont_unroll]] for (int i = 0; i < RM; i++) {
    const int r = r0 + OWN_ROW(i);
    if (r >= t.rows || col >= t.width) continue;
    const int at = OWN_ROW(i) * P_PITCH + TCOL;
    const vec4 y = QUADS > 1 ? pool[P_AT + at] : ptile[at];
    if (WIDE != 0)
      store_wide(row_address(t, r), col, y);
    else
      store_words(t, row_address(t, r), col, y);
  }
}

// The same to a split's partial output.
void store_part(View t, int r0, int block, vec4 x[RM]) {
  const int col = t.first + 4 * (block * TC + TCOL);
  [[unroll]] for (int i = 0; i < RM; i++) {
    const int r = r0 + OWN_ROW(i);
    if (r < t.rows && col < t.width) Store4(part_address(t, r, col)).w = floatBitsToUint(x[i]);
  }
}
