// SPDX-License-Identifier: MIT OR Apache-2.0
// What the schedules of bwd_dkv by pairs of subgroups (pair.glsl) have in common. The first of a
// pair forms S and d_v, the second dP and d_k, so each has one set of accumulators. A step is one
// block of columns. S passes from the first to the second, and both form the weights.
#include "coopmat/pair_options.glsl"
#define STAT_STAGES 2
#include "coopmat/bwd_dkv_common.glsl"
#include "coopmat/pair.glsl"

#define STATS_AT(stage, which) (((stage)*3 + (which)) * COLS)
#define LOAD_STATS(x, which) \
  ACC x;                     \
  if (which < STATS) coopMatLoad(x, stats, STATS_AT(stage, which) / 4, 0, ROW_MAJOR);

// row_origin() in two steps, so that a load may be on its way before anything depends on it.
float origin_of(uint bits, int head, int i) {
  if (i >= entry.seq_q) return NO_ORIGIN;
  if (tandem_is_far(uintBitsToFloat(bits))) {
    own_far = true;
    bits = floatBitsToUint(load_far(push.delta, head, block.seq_q, i).y);
  }
  return weight_origin(bits);
}
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
// 1.72 where it is not). DO_STAGE: the registers of d_o.
#define FROM(tile) (min(tile, tiles.end - 1) * COLS)
#define FETCH_Q(tile) fetch_rows(stage_1, q, FROM(tile), D_CHUNKS);
#define PUT_Q(n, tile) put_tile(STAGE(n), stage_1, q, (tile) * COLS, D_CHUNKS);
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
