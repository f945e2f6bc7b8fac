// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias: one tile of d_bias, or a split's partial sum: shaders/scalar/bwd_dbias.comp with
// matrices (docs/kernels/coopmat.md). Every member has new rows and new keys, so neither stays in
// registers. Both operands pass through shared memory, STEP matrices of features at a time, and
// those of the next step, which may be the next member's, are prefetched in registers.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
#include "kernels/abi/bwd_dbias.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_dbias.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_dbias.inc"
} push;

const int STEP = 4; // src/plan/tiles.h
#define STEP_CHUNKS (STEP * MK / 8)
#define STEP_PITCH (STEP_CHUNKS + 1)
#if TANDEM_DS
#define STREAMED (64 * 65 / 4) // sum_ds.glsl: floats [64 query rows, DS_SUM_KEYS + 1]
#else
#define STREAMED ((ROWS + COLS) * STEP_PITCH) // query rows, then keys
#endif

#include "parts/tensor.glsl"
#include "parts/place.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"
#if TANDEM_DS
#define KEEP_BY_ELEMENT
#endif
#include "coopmat/matrix.glsl"
#include "coopmat/stage.glsl"
#define STORES_DS
#include "coopmat/bias.glsl"
#include "coopmat/element.glsl"
#include "coopmat/skip.glsl"
#if !TANDEM_DS
#include "coopmat/far.glsl"
#endif

// Member n * members / splits, where split n begins. The product may leave 32 bits.
int split_begin(int n) {
  const int whole = block.members / block.splits, rest = block.members % block.splits;
  return n * whole + n * rest / block.splits;
}

#if TANDEM_DS
#define DS_BIAS
#include "coopmat/ds.glsl"
#include "coopmat/sum_ds.glsl"
#else
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
    const int b = block.bias_batch == 1 ? reader / extra.bias_group : bias_b;
    const int hk = h / block.group;
    set_entry(b);
    const TandemTiles tiles =
        tandem_key_tiles(mask_band(), m.row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
    if (key_tile < tiles.begin || key_tile >= tiles.end) continue;
    set_head(b, h);
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

#if TANDEM_LEAN
#include "coopmat/lean_bwd_dbias.glsl"
#endif

void main() {
  Place place;
  if (!find_place(block.bias_heads, place)) return;
  const int bias_b = place.batch % block.bias_batch, split = place.batch / block.bias_batch;
  const int key_tiles = (block.seq_kv + COLS - 1) / COLS, key_tile = place.tile % key_tiles,
            col0 = key_tile * COLS;
  const int i0 = place.tile / key_tiles * ROWS; // row of bias; 0 with ONE_ROW
  begin_scores();
  begin_iota();
  begin_votes();

  ACC acc[RM][NB];
  EACH(r, RM)
    EACH(n, NB) acc[r][n] = ACC(0.0);
#if TANDEM_LEAN
  sum_members(acc, place, bias_b, split, i0, key_tile);
#else
  Member m;
  if (SKIP_KEEP) barrier();
  const int end = split_begin(split + 1);
  int member = find_member(split_begin(split), end, place, bias_b, i0, key_tile, m);
  if (member < end) fetch_step(m.q, m.row0, m.k, col0, 0);
  [[dont_unroll]] while (member < end) {
    const int my_row0 = m.row0 + BLOCK_ROW;
    put_keep();
    float origins[RM][ROW_TURNS], deltas[RM][ROW_TURNS], shares[RM][ROW_TURNS];
    BIAS_ARRAY(bias, [RM][NB])
    FETCH_BIAS(bias, m.row0, col0)
    ACC s[RM][NB], dp[RM][NB], slope[RM][NB];
    own_far = false;
    EACH(r, RM) {
      EACH(turn, ROW_TURNS) {
        const int row = my_row0 + r * MM + LANE + turn * SUBGROUP;
        origins[r][turn] = NO_ORIGIN;
        deltas[r][turn] = 0.0;
        shares[r][turn] = share_of(row);
        if (row < entry.seq_q && LANE + turn * SUBGROUP < MM) {
          origins[r][turn] = row_origin(m.head, row);
          deltas[r][turn] =
              uintBitsToFloat(Load1(stat_address(push.delta, m.head, block.seq_q, row)).w);
        }
      }
      EACH(n, NB) {
        s[r][n] = ACC(0.0);
        dp[r][n] = ACC(0.0);
      }
    }
    [[dont_unroll]] for (int step = 0; step < S_STEPS; step++) {
      put_step(m.q, m.row0, m.k, col0, step);
      if (step + 1 < S_STEPS)
        fetch_step(m.q, m.row0, m.k, col0, step + 1);
      else
        fetch_step(m.d_o, m.row0, m.v, col0, 0);
      MULTIPLY_STEP(s)
    }
    FINISH_SCORES(s, slope, bias, my_row0, col0, m.partial)
    if (subgroupAny(own_far)) {
      EACH(r, RM)
        EACH(n, NB) far_block(s[r][n], m.q, m.k, m.head, my_row0 + r * MM, col0 + n * MN, false);
    }
    EACH(r, RM) {
      ACC origin;
      SPREAD_ROWS(origin, origins[r])
      EACH(n, NB)
        ELEMENTS(k, origin) s[r][n][k] = base_at(s[r][n][k], origin[k]);
    }
    int next = end;
    [[dont_unroll]] for (int step = 0; step < DP_STEPS; step++) {
      put_step(m.d_o, m.row0, m.v, col0, step);
      if (step + 1 < DP_STEPS) {
        fetch_step(m.d_o, m.row0, m.v, col0, step + 1);
      } else if (DROPOUT == 0) { // dropout needs this member's numbers below
        next = find_member(member + 1, end, place, bias_b, i0, key_tile, m);
        if (next < end) fetch_step(m.q, m.row0, m.k, col0, 0);
      }
      MULTIPLY_STEP(dp)
    }
    EACH(r, RM) {
      ACC delta, share;
      SPREAD_ROWS(delta, deltas[r])
      if (NORM == ELASTIC) SPREAD_ROWS(share, shares[r])
      EACH(n, NB) {
        if (DROPOUT != 0) {
          ACC factor = drop_block(my_row0 + r * MM, col0 + n * MN, false);
          ELEMENTS(k, delta) dp[r][n][k] *= factor[k];
        }
        ELEMENTS(k, delta) acc[r][n][k] += ds_at(s[r][n][k], share[k], dp[r][n][k], delta[k]);
      }
    }
    if (DROPOUT != 0) {
      next = find_member(member + 1, end, place, bias_b, i0, key_tile, m);
      if (next < end) fetch_step(m.q, m.row0, m.k, col0, 0);
    }
    member = next;
  }
#endif

  uvec2 elements = add64(mul64(block.d_bias.bh.xy, bias_b), mul64(block.d_bias.bh.zw, place.head));
  begin_ds(add64(elements, mul64(uvec2(block.part, 0), split)), ONE_ROW != 0 ? 1 : block.seq_q);
  if (ONE_ROW == 0) {
    EACH(r, RM)
      EACH(n, NB) store_ds(acc[r][n], i0 + BLOCK_ROW + r * MM, col0 + n * MN, MY_SCRATCH);
    return;
  }
  // Sums the rows of a block, then blocks and subgroups, in order. The sums of all subgroups lie in
  // the streamed array.
  barrier();
  EACH(n, NB) {
    EACH(r, RM) {
      coopMatStore(acc[r][n], scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
      subgroupBarrier();
      for (int c = LANE; c < MN; c += SUBGROUP) {
        float sum = 0;
        for (int row = 0; row < MM; row++) sum += SCRATCH_FLOAT(row * 4 * SCRATCH_PITCH + c);
        const int at = (int(gl_SubgroupID) * RM + r) * COLS + n * MN + c;
        streamed[at / 4][at % 4] = floatBitsToUint(sum);
      }
      subgroupBarrier();
    }
  }
  barrier();
  for (int c = 8 * TID; c < COLS; c += 8 * WG) {
    vec4 low = vec4(0), high = vec4(0);
    for (int part = 0; part < ROWS / MM; part++) {
      low += uintBitsToFloat(streamed[(part * COLS + c) / 4]);
      high += uintBitsToFloat(streamed[(part * COLS + c) / 4 + 1]);
    }
    store_chunk(0, col0 + c, low, high);
  }
}
#endif
