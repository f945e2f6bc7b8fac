// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv: d_k and d_v of ROWS keys of one kv head: shaders/scalar/bwd_dkv.comp with matrices
// (docs/kernels/coopmat.md). Keys are the rows of the tile, query rows its columns. The sum is over
// the group's query heads and the query tiles that see the keys, in order. With GRAD_K or GRAD_V
// alone, only what that gradient needs is loaded, multiplied and kept.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "coopmat/begin.glsl"

#define TANDEM_SPEC GLSL_SPEC
#include "kernels/abi/bwd_dkv.inc"
layout(set = 0, binding = 0, std140) uniform Block {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/bwd_dkv.inc"
} block;
layout(push_constant) uniform Push {
#define TANDEM_ADDRESS GLSL_ADDRESS
#define TANDEM_ADDRESSES GLSL_ADDRESSES
#define TANDEM_PUSH GLSL_PUSH
#include "kernels/abi/bwd_dkv.inc"
} push;

#include "parts/tensor.glsl"
#include "parts/place.glsl"
#include "parts/extra.glsl"
#include "parts/score.glsl"
#include "parts/mask.glsl"
#include "parts/softmax.glsl"
#include "parts/weight.glsl"
#define FLIPS true
#if TANDEM_PAIR
#define ROUNDS_FAST true
#endif
#include "coopmat/matrix.glsl"
#include "coopmat/stage.glsl"
#define OWNS_KEYS true
#define PIPES_BIAS (TANDEM_LEAN == 0 && TANDEM_PAIR == 0)
#define BIAS_BEGINS (BIAS_PIPED && NB > 1 && (TANDEM_CM2 == 1 || TANDEM_BF16 == 1))
#include "coopmat/bias.glsl"
#define WANTS_SLOPE (GRAD_K != 0)
#if !TANDEM_PAIR                   // its products are of two kinds
#define MASKS_FIRST FIRST_IS_EXACT // D 128, causal: 5 % faster on an H100; bwd_dq is not
#endif
#include "coopmat/element.glsl"
#if TANDEM_DS
#include "coopmat/ds.glsl"
uvec2 ds_from; // the head's dS, from the workgroup's first key on
// The dS of a skipped tile, which bwd_dq and bwd_dbias may visit.
void leave_no_ds(int t, int row0) {
  DsStore to = DsStore(ds_from);
  [[dont_unroll]] for (int n = TID; n < ROWS * COLS / 8; n += WG)
      to.w[ds_chunk(t * COLS + n % (COLS / 8) * 8, row0 % DS_BLOCK + n / (COLS / 8))] = uvec4(0);
}
#define SKIPPED(t, row0) leave_no_ds(t, row0);
// All query rows that see one of the keys of a workgroup of bwd_dbias.
const int SEEN_ROWS = ROWS > DS_SUM_KEYS ? ROWS : DS_SUM_KEYS;
#define SEEN_FROM(row0) (row0 / SEEN_ROWS * SEEN_ROWS)
#else
#define SEEN_ROWS ROWS
#define SEEN_FROM(row0) row0
#endif
#include "coopmat/skip.glsl"
#include "coopmat/far.glsl"
#if TANDEM_PARTS
#include "coopmat/parts.glsl"
#endif

// Numbers of the streamed query rows: origin, delta, share.
#if TANDEM_PAIR
shared vec4 stats[2 * 3 * COLS / 4]; // of two stages
#else
shared vec4 stats[3 * COLS / 4];
#endif
const int STATS = NORM == ELASTIC ? 3 : 2;

float fetch_stat(int head, int n, int col0) {
  const int i = col0 + n % COLS;
  if (n < COLS) return row_origin(head, i);
  if (n >= 2 * COLS) return share_of(i);
  if (GRAD_K == 0 || i >= entry.seq_q) return 0.0;
  return uintBitsToFloat(Load1(stat_address(push.delta, head, block.seq_q, i)).w);
}
// Numbers of a step's columns, the same in every row: row major with stride 0.
#if TANDEM_KN == 1
#define OF_COL(x, q) x
#define STEP_STATS(x, which) \
  ACC x;                     \
  if (which < STATS) coopMatLoad(x, stats, (which * COLS + n * MK) / 4, 0, ROW_MAJOR);
#else
#define OF_COL(x, q) x[(q) % KN]
#define STEP_STATS(x, which)                                                                  \
  ACC x[KN];                                                                                  \
  if (which < STATS) {                                                                        \
    EACH(c, KN) coopMatLoad(x[c], stats, (which * COLS + n * MK + c * MN) / 4, 0, ROW_MAJOR); \
  }
#endif
// If products start from the bias, the bias of the next block is put into the scratch, and that of
// the block after it is fetched. This is done before the products, or behind those of S and dP:
// with f16 the compiler spills what is prefetched behind them (H100, 580.159.04: bwd_dkv 2.64 and
// 3.04 ms, bf16 2.55 and 2.47). But it is behind all else that uses the scratch: dropout, and
// operands without conversions.
const bool BIAS_EARLY = BIAS_FIRST && TANDEM_CM2 == 1 && DROPOUT == 0;
#define PIPE_BIAS                                                                                 \
  {                                                                                               \
    put_bias(bias[0]);                                                                            \
    fetch_bias(BIAS_OF(bias, [0]), n + 2 < NB ? i0 + 2 * MN : next * COLS + (n + 2 - NB) * MN, 0, \
               row0, BLOCK_ROW);                                                                  \
  }
const int STAT_TURNS = (STATS * COLS + WG - 1) / WG;

#if TANDEM_LEAN
#include "coopmat/lean_bwd_dkv.glsl"
#elif TANDEM_PAIR
#include "coopmat/pair_bwd_dkv.glsl"
#else
void main() {
  Place place;
#if TANDEM_DS
  int chunk_head;
  if (!place_in_chunk(1, chunk_head, place)) return;
#elif TANDEM_PARTS
  if (!find_place(block.heads_q / block.group * SPLITS, place)) return;
  const int split = place.head % SPLITS;
  place.head /= SPLITS;
#else
  if (!find_place(block.heads_q / block.group, place)) return;
#endif
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = (int(block.tiles) - 1 - place.tile) * ROWS;
  const int b = place.batch, hk = place.head, my_row0 = row0 + BLOCK_ROW;
  set_entry(b);
  begin_scores();
  begin_iota();
  begin_votes();
  if (TID == 0) OWN_WORD = 0;
  uint turns = 0; // tiles so far; OWN_WORD: the last one with a far row
  View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
#if TANDEM_PARTS
  const TandemTiles all_tiles =
      tandem_query_tiles(mask_band(), row0, ROWS, COLS, entry.seq_q, entry.seq_kv);
  const int heads = all_tiles.begin < all_tiles.end ? block.group : 0;
#else
  TandemTiles tiles =
      tandem_query_tiles(mask_band(), SEEN_FROM(row0), SEEN_ROWS, COLS, entry.seq_q, entry.seq_kv);
  const int heads = tiles.begin < tiles.end ? block.group : 0;
#endif
#if TANDEM_DS // whole DS_BLOCKs, as bwd_dq reads them
  tiles.begin = tiles.begin / (DS_BLOCK / COLS) * (DS_BLOCK / COLS);
  tiles.end = min((tiles.end + DS_BLOCK / COLS - 1) / (DS_BLOCK / COLS) * (DS_BLOCK / COLS),
                  (block.seq_q + COLS - 1) / COLS);
#endif

  OPERAND_A mk[RM][D_BLOCKS], mv[RM][DV_BLOCKS];
  LOAD_OPERANDS(mk, 2, k, row0, D_BLOCKS, D_CHUNKS)
  if (GRAD_K != 0) {
    LOAD_OPERANDS(mv, 1, v, row0, DV_BLOCKS, DV_CHUNKS)
  }
  ACC acc_k[RM][D_OUT], acc_v[RM][DV_OUT];
  EACH(r, RM) {
    EACH(d, D_OUT) acc_k[r][d] = ACC(0.0);
    EACH(d, DV_OUT) acc_v[r][d] = ACC(0.0);
  }

  for (int g = 0; g < heads; g++) {
#if TANDEM_PARTS
    const TandemTiles tiles = own_tiles(all_tiles, heads, g, split);
    if (tiles.begin >= tiles.end) continue;
#endif
    const int h = hk * block.group + g, head = b * block.heads_q + h;
    set_head(b, h);
    View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
    View d_o =
        q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
#if TANDEM_DS
    ds_from = ds_address(block.ds, chunk_head * block.group + g, row0);
    DsStore to = DsStore(ds_from);
#endif
    float stat[STAT_TURNS];
    BIAS_ARRAY(bias, [STEP_BLOCKS])
    int next = next_tile(tiles.begin, tiles.end, row0, true);
    if (SKIP_KEEP && next >= tiles.end) continue;
    if (BIAS_PIPED) fetch_bias(BIAS_OF(bias, [0]), next * COLS, 0, row0, BLOCK_ROW);
    if (BIAS_FIRST) {
      put_bias(bias[0]);
      fetch_bias(BIAS_OF(bias, [0]), next * COLS + MN, 0, row0, BLOCK_ROW);
    }
    fetch_tile(stage_1, q, next * COLS, D_CHUNKS);
    fetch_tile(stage_2, d_o, next * COLS, DV_CHUNKS);
    EACH(i, STAT_TURNS)
      if (TID + i * WG < STATS * COLS) stat[i] = fetch_stat(head, TID + i * WG, next * COLS);
    while (next < tiles.end) {
      const int t = next, col0 = t * COLS;
      barrier(); // the readers of the tile before are done
      put_keep();
      put_tile(0, stage_1, q, col0, D_CHUNKS);
      put_tile(SECOND, stage_2, d_o, col0, DV_CHUNKS);
      EACH(i, STAT_TURNS) {
        const int n = TID + i * WG;
        if (n < STATS * COLS) stats[n / 4][n % 4] = stat[i];
      }
      turns++;
      if (own_far) atomicMax(OWN_WORD, turns);
      own_far = false;
      barrier();
      const bool far = OWN_WORD == turns;
      next = next_tile(t + 1, tiles.end, row0, true);
      if (next < tiles.end) {
        fetch_tile(stage_1, q, next * COLS, D_CHUNKS);
        fetch_tile(stage_2, d_o, next * COLS, DV_CHUNKS);
        EACH(i, STAT_TURNS)
          if (TID + i * WG < STATS * COLS) stat[i] = fetch_stat(head, TID + i * WG, next * COLS);
      }

      // Takes one matrix of columns after another, in a loop that stays rolled: only the
      // accumulators and the operands of k and v live from one iteration to the next. Unrolled, S
      // and dP of all columns need registers too, and on an H100 (580.159.04) 4 products run at 229
      // TFLOP/s instead of 276 at D 128, 298 instead of 340 at D 64.
      const bool partial = t < tiles.full_begin || t >= tiles.full_end;
      [[dont_unroll]] for (int n = 0; n < COL_STEPS; n++) {
        const int at = n * MK * PITCH, i0 = col0 + n * MK;
        ACC s[STEP_BLOCKS], dp[STEP_BLOCKS], slope[STEP_BLOCKS];
        if (BIAS_PIPED && !BIAS_FIRST) {
          put_bias(bias[0]);
          subgroupBarrier();
          fetch_bias(BIAS_OF(bias, [0]), n + 1 < COL_STEPS ? i0 + MK : next * COLS, 0, row0,
                     BLOCK_ROW);
        }
        EACH(q, STEP_BLOCKS) {
          if (!BIAS_PIPED)
            fetch_bias(BIAS_OF(bias, [q]), i0, STEP_COL(q), row0, BLOCK_ROW + STEP_ROW(q));
          if (BIAS_FIRST) subgroupBarrier(); // put into the scratch in the previous block
          s[q] = first_block(BIAS_OF(bias, [q]), 0, true);
          if (BIAS_EARLY && TANDEM_BF16 == 0) PIPE_BIAS
          dp[q] = ACC(0.0);
          if (MASKS_FIRST && NEEDS_MASK(partial))
            mask_block(s[q], AT_COL(i0, q), my_row0 + STEP_ROW(q), true);
        }
        // S and dP are interleaved, as their products do not depend on each other.
        EACH(d, MOST_BLOCKS) {
          if (d < D_BLOCKS) MULTIPLY_LEFT(s, mk, 2, at, d)
          if (GRAD_K != 0 && NORM != ENTMAX && d < DV_BLOCKS)
            MULTIPLY_LEFT(dp, mv, 1, SECOND + at, d)
        }
        if (BIAS_EARLY && TANDEM_BF16 == 1) PIPE_BIAS
        FINISH_STEP(s, slope, bias, 0, i0, my_row0, true, partial)
        if (far) {
          FAR_STEP(s, q, k, head, i0, my_row0, true)
        }
        STEP_STATS(origin, 0)
        STEP_STATS(delta, 1)
        if (NORM == ENTMAX) { // without a weight in the block, nothing follows
          bool any = false;
          EACH(q, STEP_BLOCKS)
            ELEMENTS(k, s[q]) any = any || s[q][k] > OF_COL(origin, q)[k];
          if (LEAVES_BLOCKS && !subgroupAny(any)) continue;
          if (GRAD_K != 0) {
            EACH(d, DV_BLOCKS) MULTIPLY_LEFT(dp, mv, 1, SECOND + at, d)
          }
        }
        STEP_STATS(share, 2)
        OPERAND_A p[RM], ds[RM];
        BEFORE(p)
        BEFORE(ds)
        EACH(q, STEP_BLOCKS) {
          ELEMENTS(k, s[q]) s[q][k] = base_at(s[q][k], OF_COL(origin, q)[k]);
          ACC y = s[q];
          if (NORM != SOFTMAX) {
            ELEMENTS(k, s[q]) y[k] = weight_of(s[q][k], OF_COL(share, q)[k]);
          }
          if (DROPOUT != 0) {
            ACC factor = drop_block(AT_COL(i0, q), my_row0 + STEP_ROW(q), true);
            ELEMENTS(k, factor) {
              y[k] *= factor[k];
              dp[q][k] *= factor[k];
            }
          }
          if (GRAD_V != 0) {
            PUT_OPERAND(p, q, y, (y))
          }
          if (GRAD_K != 0) {
            ELEMENTS(k, s[q])
              s[q][k] = ds_at(s[q][k], OF_COL(share, q)[k], dp[q][k], OF_COL(delta, q)[k]);
            if (SOFTCAP != 0) {
              ELEMENTS(k, s[q]) s[q][k] *= slope[q][k];
            }
            PUT_OPERAND(ds, q, s[q], (s[q]))
          }
        }
        if (BIAS_FIRST && !BIAS_EARLY) PIPE_BIAS
        EACH(d, MOST_OUT) {
          if (GRAD_V != 0 && d < DV_OUT) {
            OPERAND_B y;
            coopMatLoad(y, streamed, SECOND + at + d * (MN / 8), PITCH, ROW_MAJOR);
            EACH(r, RM) acc_v[r][d] = coopMatMulAdd(p[r], y, acc_v[r][d]);
          }
          if (GRAD_K != 0 && d < D_OUT) {
            OPERAND_B y;
            coopMatLoad(y, streamed, at + d * (MN / 8), PITCH, ROW_MAJOR);
            EACH(r, RM) acc_k[r][d] = coopMatMulAdd(ds[r], y, acc_k[r][d]);
          }
        }
#if TANDEM_DS
        EACH(r, RM)
          coopMatStore(ds[r], to.w, ds_chunk(i0, row0 % DS_BLOCK + BLOCK_ROW + r * MM), DS_PITCH,
                       ROW_MAJOR);
#endif
        if (COL_STEPS == 1) break; // no loop, so that addresses are constants
      }
    }
  }

#if TANDEM_PARTS
  const int part = (split * block.batches + b) * (block.heads_q / block.group) + hk;
#endif
  if (GRAD_K != 0) {
#if TANDEM_PARTS
    Parts4 to = part_rows(block.ds, part, row0, block.head_dim);
#else
    View d_k =
        kv_view(push.d_k, block.d_k, b, hk, stored_kv(), block.head_dim, (push.wide & 16u) != 0);
#endif
    EACH(r, RM)
      EACH(d, D_OUT)
        ELEMENTS(k, acc_k[r][d]) acc_k[r][d][k] *= block.scale;
#if TANDEM_PARTS
    STORE_PART(acc_k, to, D_OUT, block.head_dim)
#else
    PUT_BLOCKS(acc_k, D_OUT)
    store_rows(d_k, row0, D_CHUNKS, entry.seq_kv);
#endif
  }
  if (GRAD_V != 0) {
#if TANDEM_PARTS
    Parts4 to = part_rows(uint(block.first), part, row0, block.head_dim_v);
    STORE_PART(acc_v, to, DV_OUT, block.head_dim_v)
#else
    View d_v =
        kv_view(push.d_v, block.d_v, b, hk, stored_kv(), block.head_dim_v, (push.wide & 32u) != 0);
    PUT_BLOCKS(acc_v, DV_OUT)
    store_rows(d_v, row0, DV_CHUNKS, entry.seq_kv);
#endif
  }
}
#endif
