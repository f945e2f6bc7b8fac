// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias that forms dS: members one after the other, features by steps of STEP matrices.
#define STREAMED ((ROWS + COLS) * STEP_PITCH) // query rows, then keys
#define STEP 4                                // src/plan/coopmat/tile.h
#define STEP_CHUNKS (STEP * MK / 8)
#define STEP_PITCH (STEP_CHUNKS + 1)
#include "coopmat/bwd_dbias_common.glsl"
#include "coopmat/far.glsl"

const int S_STEPS = (D_BLOCKS + STEP - 1) / STEP, DP_STEPS = (DV_BLOCKS + STEP - 1) / STEP;
const int ROW_VEC = WIDE != 0 ? (ROWS * STEP_CHUNKS + WG - 1) / WG : 1;
const int COL_VEC = WIDE != 0 ? (COLS * STEP_CHUNKS + WG - 1) / WG : 1;
uvec4 row_stage[ROW_VEC], col_stage[COL_VEC];

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Step4 { uvec4 w[]; };

// The step-th features of rows from r0. Rows past the end repeat the last one: their keys are
// hidden, and their query rows have weight 0. Chunks are indexed from one address of the workgroup;
// src/kernels/params.cpp makes sure that rows are near enough.
#define FETCH_STEP(stage, vec, t, r0, count, step)                                             \
  if (WIDE != 0) {                                                                             \
    Step4 rows = Step4(row_address(t, r0));                                                    \
    const int row = int(t.row.x >> 4), last = min(count, t.rows - r0) - 1;                     \
    const int chunk = (step)*STEP_CHUNKS + TID % STEP_CHUNKS, width = t.width / 8;             \
    EACH(i, vec) {                                                                             \
      const uvec4 words = rows.w[min(TID / STEP_CHUNKS + i * (WG / STEP_CHUNKS), last) * row + \
                                 min(chunk, width - 1)];                                       \
      stage[i] = chunk < width ? words : uvec4(0);                                             \
    }                                                                                          \
  }
#define PUT_STEP(to, stage, vec, t, r0, count, step)                                   \
  if (WIDE != 0) {                                                                     \
    EACH(i, vec) {                                                                     \
      const int row = TID / STEP_CHUNKS + i * (WG / STEP_CHUNKS);                      \
      if (count * STEP_CHUNKS % WG == 0 || row < count)                                \
        streamed[(to + row) * STEP_PITCH + TID % STEP_CHUNKS] = stage[i];              \
    }                                                                                  \
  } else {                                                                             \
    [[dont_unroll]] for (int n = TID; n < count * STEP_CHUNKS; n += WG)                \
        streamed[(to + n / STEP_CHUNKS) * STEP_PITCH + n % STEP_CHUNKS] =              \
            load_chunk(t, r0 + n / STEP_CHUNKS, (step)*STEP_CHUNKS + n % STEP_CHUNKS); \
  }
void fetch_step(View a, int a0, View b, int b0, int step) {
  FETCH_STEP(row_stage, ROW_VEC, a, a0, ROWS, step)
  FETCH_STEP(col_stage, COL_VEC, b, b0, COLS, step)
}
void put_step(View a, int a0, View b, int b0, int step) {
  barrier(); // the readers of the step before are done
  PUT_STEP(0, row_stage, ROW_VEC, a, a0, ROWS, step)
  PUT_STEP(ROWS, col_stage, COL_VEC, b, b0, COLS, step)
  barrier();
}
#define MULTIPLY_STEP(x)                                                                           \
  EACH(d, STEP) {                                                                                  \
    OPERAND_A left[RM];                                                                            \
    EACH(r, RM)                                                                                    \
      coopMatLoad(left[r], streamed, (BLOCK_ROW + r * MM) * STEP_PITCH + d * (MK / 8), STEP_PITCH, \
                  ROW_MAJOR);                                                                      \
    EACH(n, NB) {                                                                                  \
      OPERAND_B y;                                                                                 \
      coopMatLoad(y, streamed, (ROWS + n * MN) * STEP_PITCH + d * (MK / 8), STEP_PITCH,            \
                  COL_MAJOR);                                                                      \
      EACH(r, RM) x[r][n] = coopMatMulAdd(left[r], y, x[r][n]);                                    \
    }                                                                                              \
  }

// Inputs of a member.
struct Member {
  View q, k, v, d_o;
  int row0, head; // over all batch entries
  bool partial;
};
// The number of the first member from n on, before end, that sees the key tile, or end. Sets entry
// and inputs to its own.
int find_member(int n, int end, Place place, int bias_b, int i0, int key_tile, out Member m) {
  [[dont_unroll]] for (; n < end; n++) {
    if (n >= block.members) continue; // for lavapipe (extra.glsl)
    const int reader = n / block.q_tiles;
    m.row0 = ONE_ROW != 0 ? n % block.q_tiles * ROWS : i0;
    const int h = place.head * extra.bias_group + reader % extra.bias_group;
    const int b = bias_b * extra.bias_entries + reader / extra.bias_group;
    const int hk = h / block.group;
    set_entry(b);
    const TandemTiles tiles =
        tandem_key_tiles(mask_band(), m.row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
    if (key_tile < tiles.begin || key_tile >= tiles.end) continue;
    set_head(b, h);
    if (SKIP_SPANS) {
      if (map_of(m.row0, ROWS, key_tile * COLS, COLS).x == 0) continue;
    }
    if (KEEP != 0 && !keeps_any(m.row0, key_tile * COLS, false)) continue;
    m.q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
    m.k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
    m.v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
    m.d_o = q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
    m.head = b * block.heads_q + h;
    m.partial = key_tile < tiles.full_begin || key_tile >= tiles.full_end;
    break;
  }
  return n;
}

// Numbers a row of the subgroup, one an invocation, in several iterations.
const int ROW_TURNS = (MM + SUBGROUP - 1) / SUBGROUP;
#define SPREAD_ROWS(x, value)                          \
  {                                                    \
    EACH(turn, ROW_TURNS) {                            \
      const int row = LANE + turn * SUBGROUP;          \
      if (row < MM) SCRATCH_FLOAT(row) = value[turn];  \
    }                                                  \
    subgroupBarrier();                                 \
    coopMatLoad(x, scratch, MY_SCRATCH, 0, COL_MAJOR); \
    subgroupBarrier();                                 \
  }
