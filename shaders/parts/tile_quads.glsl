// SPDX-License-Identifier: MIT OR Apache-2.0
// O += P V of fwd in one go, where the tile is paired and has several quads of columns an
// invocation or two accumulator blocks. The blocks, SIDE of them, share what an invocation reads
// from the P tile. With QUADS > 1 P passes through it a quad of each invocation at a time, so that
// P and V take less of shared memory than S took before.
const int SIDE = DV_BLOCKS == 2 ? 2 : 1;
const int IN_ONE = QUADS > 1 ? 1 : SIDE == 2 ? PAIRED : 0; // 1: fwd takes what is below
// A step is KC / SIDE rows of V.
const int SIDE_ROWS = KC / SIDE, SIDE_LANES = SIDE * TC, SIDE_PITCH = SIDE * TC + 1;

void fetch_side(View b, int row0) {
  if (WIDE == 0) return;
  const int step = WG / SIDE_LANES;
  int r = row0 + TID / SIDE_LANES, col = 4 * (TID % SIDE_LANES);
  uvec2 at = row_address(b, r), at_step = mul64(b.row, step);
  [[unroll]] for (int i = 0; i < NN_VEC; i++) {
    stage_k[i] = r < b.rows && col < b.width ? load_wide(at, col) : uvec4(0);
    at = add64(at, at_step);
    r += step;
  }
}

void put_side(View b, int row0) {
  int r = TID / SIDE_LANES, c = TID % SIDE_LANES;
  if (WIDE == 0) {
    [[dont_unroll]] for (int i = 0; i < NN_VEC; i++, r += WG / SIDE_LANES)
        pool[r * SIDE_PITCH + c] = to_floats(load_any(b, row0 + r, 4 * c));
    return;
  }
  [[unroll]] for (int i = 0; i < NN_VEC; i++) {
    pool[r * SIDE_PITCH + c] = to_floats(stage_k[i]);
    r += WG / SIDE_LANES;
  }
}

// With QUADS > 1 the P tile is transposed, too: where it has four rows, h-th of this invocation, of
// the quad's column c. The rows' place is turned by the column, so that the columns of neighbours
// hit different banks. by: c / 4, or another number that is as much modulo 4.
int quad_place(int c, int by, int h) {
  return P_AT + c * (ROWS / 4) + (TROW + TR * h ^ by % 4 * 2);
}
void put_quad(vec4 p[RQ], int q) {
  [[unroll]] for (int e = 0; e < 4; e++) {
    [[unroll]] for (int h = 0; h < RM / 4; h++) {
      const int i = q * RM + 4 * h;
      pool[quad_place(4 * TCOL + e, TCOL, h)] =
          vec4(p[i][e], p[i + 1][e], p[i + 2][e], p[i + 3][e]);
    }
  }
}

// acc += p . (COLS rows of b from b0). fetch_side() of the first rows must have been called. With
// QUADS == 1 the P tile must hold p.
void product_sides(inout vec4 acc[DV_BLOCKS][RM], vec4 p[RQ], View b, int b0) {
  [[unroll]] for (int q = 0; q < QUADS; q++) {
    for (int k0 = 0; k0 < 4 * TC; k0 += SIDE_ROWS) {
      const int first = q * 4 * TC + k0;
      barrier(); // the pool's readers are done
      if (QUADS > 1 && k0 == 0) put_quad(p, q);
      put_side(b, b0 + first);
      barrier(); // and the P tile is complete
      if (first + SIDE_ROWS < COLS) fetch_side(b, b0 + first + SIDE_ROWS);
      if (QUADS > 1) {
        [[unroll]] for (int k = 0; k < SIDE_ROWS; k++) {
          vec4 x[(RM + 3) / 4];
          [[unroll]] for (int h = 0; h < RM / 4; h++) x[h] = pool[quad_place(k0 + k, k / 4, h)];
          [[unroll]] for (int side = 0; side < SIDE; side++) {
            const vec4 y = pool[k * SIDE_PITCH + side * TC + TCOL];
            [[unroll]] for (int i = 0; i < RM; i++) acc[side][i] =
                fma(vec4(x[i / 4][i % 4]), y, acc[side][i]);
          }
        }
        continue;
      }
      const int m = TROW * P_PITCH + k0 / 4;
      [[unroll]] for (int k = 0; k < SIDE_ROWS / 4; k++) {
        vec4 x[RM];
        [[unroll]] for (int i = 0; i < RM; i++) x[i] = ptile[m + k + i * TR * P_PITCH];
        [[unroll]] for (int side = 0; side < SIDE; side++) {
          vec4 y[4];
          [[unroll]] for (int c = 0; c < 4; c++) y[c] =
              pool[(4 * k + c) * SIDE_PITCH + side * TC + TCOL];
          [[unroll]] for (int i = 0; i < RM; i++) {
            acc[side][i] = fma(vec4(x[i].x), y[0], acc[side][i]);
            acc[side][i] = fma(vec4(x[i].y), y[1], acc[side][i]);
            acc[side][i] = fma(vec4(x[i].z), y[2], acc[side][i]);
            acc[side][i] = fma(vec4(x[i].w), y[3], acc[side][i]);
          }
        }
      }
    }
  }
}
