// SPDX-License-Identifier: MIT OR Apache-2.0
// fwd's loop over tiles for softmax without dropout, keep and distance biases (KV_ROW,
// src/kernels/params.cpp). Products start from a dense bias; softcap and ALiBi come behind them. It
// is for coopmat2, where left operands are as wide as accumulators (KN is 1). An iteration begins
// with the exponentials, and multiplies the next tile's scores at its end. Then no branch but that
// of the row maxima is between the products: around a branch NVIDIA's compiler (580.159.04) copies
// o from registers to registers (bench/lab/2026-11.md, "What a compiler makes of the loop").

const bool PLAIN = KV_ROW != 0 && PREFETCHES;
// K and V are prefetched in registers of their own, each from where the previous tile is stored: a
// whole iteration ahead. With RM 2, a bias, or heads of more than 192, they alternate, as there is
// no room for two: a block of features takes 8 registers of o and 4 of q.
const bool FAR = int(RM != 1) + int(BIAS != 0) + int(2 * DV_BLOCKS + D_BLOCKS > 36) == 0;
// The rows' maxima stay in the scratch, where only the branch that changes them reads them. Not on
// lavapipe, whose barriers of a subgroup are the workgroup's; no other device has subgroups of 8.
const bool PARKS = int(!PLAIN) + int(RM != 1) + int(BIAS != 0) + int(SUBGROUP == 8) == 0;
#define PARK(m) coopMatStore(m, scratch, MY_SCRATCH, MN / 4, ROW_MAJOR);
#define UNPARK(m) coopMatLoad(m, scratch, MY_SCRATCH, MN / 4, ROW_MAJOR);

#define COL_OF(tile) (min(tile, tiles.end - 1) * COLS)
// Scores of tile t, whose K is in shared memory, in s. A block's products start from its mask,
// unless score inputs come between them.
#define PLAIN_SCORES(s)                                                                          \
  if (BIAS_FIRST) {                                                                              \
    EACH(r, RM)                                                                                  \
      EACH(n, NB) {                                                                              \
        if (SPAN > 1 && n == SPAN_FIRST(n)) begin_bias(bias[r][n]);                              \
        s[r][n] = first_block(BIAS_OF(bias, [r][SPAN_FIRST(n)]), n, false);                      \
      }                                                                                          \
  } else {                                                                                       \
    EACH(n, NB)                                                                                  \
      EACH(r, RM) s[r][n] = ACC(0.0);                                                            \
  }                                                                                              \
  if (MASKS_FIRST && NEEDS_MASK(t < tiles.full_begin || t >= tiles.full_end)) {                  \
    MASK_TILE(s, my_row0, t* COLS)                                                               \
  }                                                                                              \
  EACH(d, D_BLOCKS)                                                                              \
    EACH(n, NB) {                                                                                \
      OPERAND_B y;                                                                               \
      coopMatLoad(y, streamed, n* MN* PITCH + d * (MK / 8), PITCH, COL_MAJOR);                   \
      EACH(r, RM) {                                                                              \
        LEFT_OPERAND(x, mq, 1, r, d)                                                             \
        s[r][n] = coopMatMulAdd(x, y, s[r][n]);                                                  \
      }                                                                                          \
    }                                                                                            \
  if (HAS_SCORES) {                                                                              \
    ACC slope[RM][NB];                                                                           \
    FINISH_SCORES(s, slope, bias, my_row0, t* COLS, t < tiles.full_begin || t >= tiles.full_end) \
  }
#define PUT_V                                   \
  if (FAR)                                      \
    put_tile(SECOND, stage_2, v, 0, DV_CHUNKS); \
  else                                          \
    put_tile(SECOND, stage_1, v, 0, DV_CHUNKS); \
  barrier();

// All that follows the scores s of tile t, and the scores of the next tile, in ahead: s itself, or
// other matrices. below: minus the origin. If no tile is masked, an unused multiplication behind
// the last tile costs less than leaving in the middle.
#define PLAIN_STEP(s, ahead)                                                                \
  if (!FAR) fetch_tile(stage_1, k, COL_OF(t + 1), D_CHUNKS);                                \
  {                                                                                         \
    ACC top[RM];                                                                            \
    bool grows = false;                                                                     \
    EACH(r, RM) {                                                                           \
      top[r] = s[r][0];                                                                     \
      EACH(n, NB)                                                                           \
        ELEMENTS(i, top[r]) top[r][i] = max(top[r][i], s[r][n][i]);                         \
      ELEMENTS(i, top[r]) {                                                                 \
        if (!PARKS) below[r][i] = -log2_origin(m[r][i]);                                    \
        grows = grows || fma(top[r][i], log2_scale, below[r][i]) > SLACK;                   \
      }                                                                                     \
    }                                                                                       \
    if (subgroupAny(grows)) {                                                               \
      EACH(r, RM) {                                                                         \
        row_max(top[r]);                                                                    \
        ACC keep;                                                                           \
        if (PARKS) {                                                                        \
          UNPARK(m[r])                                                                      \
          subgroupBarrier();                                                                \
        }                                                                                   \
        ELEMENTS(i, keep) {                                                                 \
          m[r][i] = max(m[r][i], top[r][i]);                                                \
          keep[i] = exp2(-log2_origin(m[r][i]) - below[r][i]);                              \
          below[r][i] = -log2_origin(m[r][i]);                                              \
          l[r][i] = kept(l[r][i], keep[i]);                                                 \
        }                                                                                   \
        if (PARKS) {                                                                        \
          PARK(m[r])                                                                        \
          subgroupBarrier();                                                                \
        }                                                                                   \
        EACH(d, DV_OUT)                                                                     \
          ELEMENTS(i, keep) acc[r][d][i] = kept(acc[r][d][i], keep[i]);                     \
      }                                                                                     \
    }                                                                                       \
    if (FAR) fetch_tile(stage_2, v, COL_OF(t + 1), DV_CHUNKS);                              \
    EACH(n, NB)                                                                             \
      EACH(r, RM)                                                                           \
        ELEMENTS(i, l[r]) {                                                                 \
          s[r][n][i] = exp2(fma(s[r][n][i], log2_scale, below[r][i]));                      \
          l[r][i] += s[r][n][i];                                                            \
        }                                                                                   \
    if (BIAS_FIRST) { /* for the next tile, as S has left its registers */                  \
      FETCH_BIAS(bias, row0, COL_OF(t + 1))                                                 \
    }                                                                                       \
    EACH(n, NB) {                                                                           \
      OPERAND_A p[RM];                                                                      \
      EACH(r, RM) p[r] = to_operand(s[r][n], true);                                         \
      EACH(d, DV_OUT) {                                                                     \
        OPERAND_B y;                                                                        \
        coopMatLoad(y, streamed, SECOND + n * MK * PITCH + d * (MN / 8), PITCH, ROW_MAJOR); \
        EACH(r, RM) acc[r][d] = coopMatMulAdd(p[r], y, acc[r][d]);                          \
      }                                                                                     \
    }                                                                                       \
  }                                                                                         \
  t++;                                                                                      \
  if (WHOLE == 0 && t >= tiles.end) break;                                                  \
  put_tile(0, stage_1, k, 0, D_CHUNKS);                                                     \
  barrier();                                                                                \
  if (FAR)                                                                                  \
    fetch_tile(stage_1, k, COL_OF(t + 1), D_CHUNKS);                                        \
  else                                                                                      \
    fetch_tile(stage_1, v, COL_OF(t), DV_CHUNKS);                                           \
  PLAIN_SCORES(ahead)                                                                       \
  PUT_V                                                                                     \
  if (WHOLE != 0 && t >= tiles.end) break;

#define PLAIN_LOOP                                                                   \
  ACC below[RM], s[RM][NB], ahead[RM][NB];                                           \
  BIAS_ARRAY(bias, [RM][NB])                                                         \
  if (PARKS) {                                                                       \
    EACH(r, RM) {                                                                    \
      ELEMENTS(i, m[r]) below[r][i] = -log2_origin(m[r][i]);                         \
      PARK(m[r])                                                                     \
    }                                                                                \
    subgroupBarrier();                                                               \
  }                                                                                  \
  int t = tiles.begin;                                                               \
  if (t < tiles.end) {                                                               \
    if (BIAS_FIRST) {                                                                \
      FETCH_BIAS(bias, row0, t* COLS)                                                \
    }                                                                                \
    fetch_tile(stage_1, k, t* COLS, D_CHUNKS);                                       \
    put_tile(0, stage_1, k, 0, D_CHUNKS);                                            \
    if (FAR) {                                                                       \
      fetch_tile(stage_2, v, t* COLS, DV_CHUNKS);                                    \
      fetch_tile(stage_1, k, COL_OF(t + 1), D_CHUNKS);                               \
    } else                                                                           \
      fetch_tile(stage_1, v, t* COLS, DV_CHUNKS);                                    \
    barrier();                                                                       \
    PLAIN_SCORES(s)                                                                  \
    PUT_V                                                                            \
    if (FAR && WHOLE == 0) { /* two at a time, which saves copies of the prefetch */ \
      for (;;) {                                                                     \
        PLAIN_STEP(s, ahead)                                                         \
        PLAIN_STEP(ahead, s)                                                         \
      }                                                                              \
    } else {                                                                         \
      for (;;) {                                                                     \
        PLAIN_STEP(s, s)                                                             \
      }                                                                              \
    }                                                                                \
  }                                                                                  \
  if (PARKS) {                                                                       \
    EACH(r, RM) {                                                                    \
      UNPARK(m[r])                                                                   \
      subgroupBarrier();                                                             \
    }                                                                                \
  }
