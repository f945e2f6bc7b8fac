// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv by pairs of subgroups (pair.glsl): the first forms S and d_v, the second dP and d_k, so
// each has one set of accumulators. A step is one block of columns. S passes from the first to the
// second, and both form the weights.
#include "coopmat/pair.glsl"

#define STATS_AT(stage, which) (((stage)*3 + (which)) * COLS)
#define LOAD_STATS(x, which) \
  ACC x;                     \
  if (which < STATS) coopMatLoad(x, stats, STATS_AT(stage, which) / 4, 0, ROW_MAJOR);

// A number of a streamed query row: as it is loaded, and as it is put into shared memory, which may
// load again.
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Numbers { uint w[]; };
uint fetch_number(int head, int n, int col0) {
  if (n >= 2 * COLS) return 0u;
  const int i = col0 + n % COLS;
  return Numbers(stat_address(n < COLS ? push.lse : push.delta, head, block.seq_q, 0))
      .w[TILES_EXIST ? i : min(i, entry.seq_q - 1)];
}
float number_of(uint bits, int head, int n, int col0) {
  const int i = col0 + n % COLS;
  if (n < COLS) return origin_of(bits, head, i);
  if (n >= 2 * COLS) return share_of(i);
  return TILES_EXIST || i < entry.seq_q ? uintBitsToFloat(bits) : 0.0;
}

// There is always something to fetch and to put, the last tile if there is none left: what a branch
// does to registers costs more. Rows of q and of d_o are fetched one after the other, with one set
// of registers; but together where dS is stored (H100, 580.159.04: 2.17 ms for 2.54, and 1.80 for
// 1.72 where it is not).
#if TANDEM_DS
#define DO_STAGE stage_2
#else
#define DO_STAGE stage_1
#endif
#define FROM(tile) (min(tile, tiles.end - 1) * COLS)
#define FETCH_Q(tile) fetch_rows(stage_1, q, FROM(tile), D_CHUNKS);
#define PUT_Q(n, tile) put_tile(STAGE(n), stage_1, q, (tile)*COLS, D_CHUNKS);
#define FETCH_DO(tile)                                                         \
  {                                                                            \
    fetch_rows(DO_STAGE, d_o, FROM(tile), DV_CHUNKS);                          \
    EACH(i, STAT_TURNS) {                                                      \
      const int word = TID + i * WG;                                           \
      if (word < STATS * COLS) stat[i] = fetch_number(head, word, FROM(tile)); \
    }                                                                          \
  }
#define PUT_DO(n, tile)                                                 \
  {                                                                     \
    put_tile(STAGE(n) + SECOND, DO_STAGE, d_o, (tile)*COLS, DV_CHUNKS); \
    EACH(i, STAT_TURNS) {                                               \
      const int word = TID + i * WG;                                    \
      if (word < STATS * COLS)                                          \
        stats[(STATS_AT(n, 0) + word) / 4][word % 4] =                  \
            number_of(stat[i], head, word, (tile)*COLS);                \
    }                                                                   \
    turns++;                                                            \
    if (own_far) atomicMax(OWN_WORD, turns);                            \
    own_far = false;                                                    \
  }

void main() {
  Place place;
#if TANDEM_DS
  int chunk_head;
  if (!place_in_chunk(1, chunk_head, place)) return;
#else
  if (!find_place(block.heads_q / block.group, place)) return;
#endif
  // The first keys come first: with a causal mask most rows see them, and they take longest.
  const int row0 = (int(block.tiles) - 1 - place.tile) * ROWS;
  const int b = place.batch, hk = place.head, my_row0 = row0 + BLOCK_ROW;
  const bool second = SECOND_OF_PAIR;
  set_entry(b);
  begin_scores();
  begin_iota();
  begin_votes();
  if (TID == 0) OWN_WORD = 0;
  uint turns = 0; // tiles that were put so far; OWN_WORD: the last one with a far row
  View k = kv_view(push.k, block.k, b, hk, entry.seq_kv, block.head_dim, (push.wide & 2u) != 0);
  View v = kv_view(push.v, block.v, b, hk, entry.seq_kv, block.head_dim_v, (push.wide & 4u) != 0);
  TandemTiles tiles =
      tandem_query_tiles(mask_band(), SEEN_FROM(row0), SEEN_ROWS, COLS, entry.seq_q, entry.seq_kv);
  const int heads = tiles.begin < tiles.end ? block.group : 0;
#if TANDEM_DS // whole DS_BLOCKs, as bwd_dq reads them
  tiles.begin = tiles.begin / (DS_BLOCK / COLS) * (DS_BLOCK / COLS);
  tiles.end = min((tiles.end + DS_BLOCK / COLS - 1) / (DS_BLOCK / COLS) * (DS_BLOCK / COLS),
                  (block.seq_q + COLS - 1) / COLS);
#endif

  OPERAND_A left[RM][MOST_BLOCKS];
  LOAD_PAIR(left, k, v, row0)
  ZERO_TAILS
  ACC acc[RM][MOST_OUT];
  EACH(r, RM)
    EACH(d, MOST_OUT) acc[r][d] = ACC(0.0);
  // Rows of the first and of the second products in a stage: of q or d_o, and of the other one.
  const int first_at = second ? SECOND : 0, then_at = second ? 0 : SECOND;

  for (int g = 0; g < heads; g++) {
    const int h = hk * block.group + g, head = b * block.heads_q + h;
    set_head(b, h);
    View q = q_view(push.q, block.q, b, h, entry.seq_q, block.head_dim, (push.wide & 1u) != 0);
    View d_o =
        q_view(push.d_o, block.d_o, b, h, entry.seq_q, block.head_dim_v, (push.wide & 8u) != 0);
#if TANDEM_DS
    ds_from = ds_address(block.ds, chunk_head * block.group + g, row0);
    DsStore to = DsStore(ds_from);
#endif
    uint stat[STAT_TURNS];
    BIAS_ARRAY(bias, [RM])
    int t = next_tile(tiles.begin, tiles.end, row0, true), stage = 0;
    if (SKIP_KEEP && t >= tiles.end) continue;
    FETCH_Q(t)
    barrier(); // the readers of the tiles before are done
    PUT_Q(0, t)
    FETCH_DO(t)
    PUT_DO(0, t)
    int next = next_tile(t + 1, tiles.end, row0, true);
    FETCH_Q(next)
#if TANDEM_DS
    FETCH_DO(next)
#endif
    while (t < tiles.end) {
      barrier();
      const bool far = OWN_WORD == turns, partial = t < tiles.full_begin || t >= tiles.full_end;
      const int at = STAGE(stage), i0 = t * COLS;
      EACH(r, RM) fetch_bias(BIAS_OF(bias, [r]), i0, 0, row0, BLOCK_ROW + r * MM);
      ACC x[RM], s[RM], slope[RM];
      PAIR_PRODUCTS(x, left, at + first_at)
      coopMatStore(x[0], scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR); // dP is not read there
      barrier();
      PUT_Q(stage ^ 1, next)
#if TANDEM_DS
      PUT_DO(stage ^ 1, next)
      const int after = next_tile(next + 1, tiles.end, row0, true);
#endif
      coopMatLoad(s[0], scratch, PAIR_SCRATCH(0), SCRATCH_PITCH, ROW_MAJOR);
      if (REUSES_SCRATCH) barrier();
      FINISH_STEP(s, slope, bias, 0, i0, my_row0, true, partial)
      if (far) {
        FAR_STEP(s, q, k, head, i0, my_row0, true)
      }
      LOAD_STATS(origin, 0)
      LOAD_STATS(delta, 1)
      LOAD_STATS(share, 2)
      OPERAND_A own[RM]; // P or dS
      EACH(r, RM) {
        ELEMENTS(n, s[r]) s[r][n] = base_at(s[r][n], origin[n]);
        ACC y = s[r];
        if (NORM != SOFTMAX) {
          ELEMENTS(n, y) y[n] = weight_of(s[r][n], share[n]);
        }
        if (DROPOUT != 0) {
          ACC factor = drop_block(i0, my_row0 + r * MM, true);
          ELEMENTS(n, y) {
            y[n] *= factor[n];
            x[r][n] *= factor[n];
          }
        }
        ELEMENTS(n, y) {
          float ds = ds_at(s[r][n], share[n], x[r][n], delta[n]);
          if (SOFTCAP != 0) ds *= slope[r][n];
          y[n] = second ? ds : y[n];
        }
        own[r] = to_operand(y);
      }
#if TANDEM_DS
      FETCH_Q(after)
      FETCH_DO(after)
#else
      FETCH_DO(next)
#endif
#define ACCUMULATE_BLOCK(d)                                                    \
  {                                                                            \
    OPERAND_B y;                                                               \
    coopMatLoad(y, streamed, at + then_at + (d) * (MN / 8), PITCH, ROW_MAJOR); \
    EACH(r, RM) acc[r][d] = coopMatMulAdd(own[r], y, acc[r][d]);               \
  }
      EACH(d, MOST_BLOCKS) ACCUMULATE_BLOCK(d)
#if TANDEM_DS
      if (second) {
        EACH(r, RM)
          coopMatStore(own[r], to.w, ds_chunk(i0, row0 % DS_BLOCK + BLOCK_ROW + r * MM), DS_PITCH,
                       ROW_MAJOR);
      }
      t = next;
      next = after;
#else
      PUT_DO(stage ^ 1, next)
      t = next;
      next = next_tile(next + 1, tiles.end, row0, true);
      FETCH_Q(next)
#endif
      stage ^= 1;
    }
  }

  View d_k =
      kv_view(push.d_k, block.d_k, b, hk, stored_kv(), block.head_dim, (push.wide & 16u) != 0);
  View d_v =
      kv_view(push.d_v, block.d_v, b, hk, stored_kv(), block.head_dim_v, (push.wide & 32u) != 0);
  const float scale = second ? block.scale : 1.0;
  EACH(r, RM)
    EACH(d, MOST_OUT)
      ELEMENTS(n, acc[r][d]) acc[r][d][n] *= scale;
  EACH(part, PARTS) {
    barrier();
    EACH(r, RM)
      EACH(d, PART)
        if (part * PART + d < MOST_OUT) put_block(PART_AT(r, d), acc[r][part * PART + d]);
    barrier();
    store_part_rows(d_v, 0, row0, part * PART_CHUNKS, entry.seq_kv);
    store_part_rows(d_k, PART_CHUNKS, row0, part * PART_CHUNKS, entry.seq_kv);
  }
}
