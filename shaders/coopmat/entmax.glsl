// SPDX-License-Identifier: MIT OR Apache-2.0
// The search for entmax's threshold t (shaders/parts/entmax.glsl, docs/kernels/overview.md) with a
// row's numbers in all of its elements. Pass 0 finds the rows' maxima, the others step t. Until a
// pass ends, each element has sums and maxima of its own.

const int MAX_PASSES = 64; // a limit that no row is known to need
// Bitmaps of live tiles, which can still have a weight: those of this pass, and those that it finds
// for the next one. Tiles beyond the bitmap are always live.
const int LIVE_WORDS = SKIP_ENTMAX ? 64 : 1; // src/plan/plan.cpp counts them twice
shared uint live[2 * LIVE_WORDS];
int live_now = 0;
bool all_live = true; // in pass 0, and if no tile may be skipped

bool is_live_tile(int n) {
  return all_live || n >= 32 * LIVE_WORDS || (live[live_now + n / 32] >> (n % 32) & 1u) != 0;
}
void begin_notes() {
  for (int w = TID; w < LIVE_WORDS; w += WG) live[LIVE_WORDS - live_now + w] = 0;
}
void note_live_tile(int n) {
  if (n < 32 * LIVE_WORDS) atomicOr(live[LIVE_WORDS - live_now + n / 32], 1u << (n % 32));
}
// next_tile() among the tiles that earlier passes found live.
int next_live(int t, TandemTiles tiles, int row0) {
  if (SKIP_ENTMAX) {
    [[dont_unroll]] while (t < tiles.end && !is_live_tile(t - tiles.begin)) t++;
    if (!SKIP_MASKED) return t;
    [[dont_unroll]] for (; t < tiles.end; t++) {
      if (SKIP_SPANS) t = next_shown(t, tiles.end, row0, ROWS, false);
      if (t >= tiles.end) break;
      if (!is_live_tile(t - tiles.begin)) continue;
      if (!SKIP_KEEP) break;
      if (keeps_any(row0, t * COLS, false)) break;
    }
    return t;
  }
  return next_tile(t, tiles.end, row0, false);
}

// The step from t, by sums over the keys above t.
float entmax_step(float count, float sum, float sum2) {
  if (ALPHA == 1) return (sum2 - 1.0) / (sum + sqrt(max(fma(-count, sum2 - 1.0, sum * sum), 0.0)));
  if (ALPHA == 2) return (sum - 1.0) / count;
  return (sum - 1.0) / (extra.entmax_exponent * sum2); // sums of x^e and x^(e-1)
}

// State of a block of rows. moving: 1 in rows whose search has not ended.
// Not a struct, for the reason in bias.glsl: SEARCH_ARRAY declares that of an array of blocks, and
// SEARCH_OF passes a block's to the functions, which take it by SEARCH.
#define SEARCH_ARRAY(x, dims)                                                                 \
  ACC x##_top dims, x##_low dims, x##_high dims, x##_t dims, x##_moving dims, x##_count dims, \
      x##_sum dims, x##_sum2 dims;
#define SEARCH_OF(x, index)                                                                     \
  x##_top index, x##_low index, x##_high index, x##_t index, x##_moving index, x##_count index, \
      x##_sum index, x##_sum2 index
#define SEARCH                                                                                  \
  inout ACC top, inout ACC low, inout ACC high, inout ACC t, inout ACC moving, inout ACC count, \
      inout ACC sum, inout ACC sum2
void begin_search(SEARCH) {
  top = ACC(HIDDEN_SCORE);
  t = ACC(NO_LSE);
  low = t;
  high = t;
  moving = ACC(0.0);
}
void begin_pass(SEARCH) {
  count = ACC(0.0);
  sum = ACC(0.0);
  sum2 = ACC(0.0);
}
// Searches a block of z; true if the tile may be live in later passes.
bool search_block(SEARCH, ACC z, bool first) {
  bool any = false;
  if (first) {
    // A key that is not above its element's maximum so far, less 1, is not above the row's less 1.
    ELEMENTS(k, z) {
      top[k] = max(top[k], z[k]);
      any = any || (z[k] != HIDDEN_SCORE && z[k] >= top[k] - 1.0);
    }
    return any;
  }
  ELEMENTS(k, z) {
    any = any || z[k] > low[k];
    const float base = base_at(z[k], t[k]), u = entmax_power(base);
    count[k] += base > 0 ? 1.0 : 0.0;
    sum[k] += ALPHA == 3 ? base * u : base;
    sum2[k] += ALPHA == 3 ? u : base * base;
  }
  return any;
}
// keys: those that a row sees by position. True if the search of a row has not ended.
bool end_pass(SEARCH, ACC keys, bool first) {
  bool moves = false;
  if (first) {
    row_max(top);
    ELEMENTS(k, keys) {
      const bool exists = top[k] != HIDDEN_SCORE && keys[k] > 0;
      const float least = top[k] - 1.0,
                  most = top[k] - exp2(-extra.entmax_scale * log2(max(keys[k], 1.0)));
      low[k] = exists ? least : low[k];
      high[k] = exists ? most : high[k];
      t[k] = low[k];
      moving[k] = exists ? 1.0 : 0.0;
      moves = moves || exists;
    }
    return moves;
  }
  if (ALPHA != 3) row_sum(count);
  row_sum(sum);
  if (ALPHA != 2) row_sum(sum2);
  ELEMENTS(k, keys) {
    const bool is_moving = moving[k] != 0;
    const float now = t[k], step = entmax_step(count[k], sum[k], sum2[k]);
    const float least = step >= 0 ? max(low[k], now) : low[k],
                most = step >= 0 ? high[k] : min(high[k], now);
    float next = now + step;
    // A step of a few units in the last place ends the search.
    bool last = abs(step) <= 4e-7 * max(abs(now), abs(top[k]));
    if (last) {
      next = clamp(next, least, max(most, least));
    } else if (!(next > least && next < most)) {
      next = 0.5 * (least + most);
      last = next <= least || next >= most;
    }
    low[k] = is_moving ? least : low[k];
    high[k] = is_moving ? most : high[k];
    t[k] = is_moving ? next : now;
    moving[k] = is_moving && !last ? 1.0 : 0.0;
    moves = moves || (is_moving && !last);
  }
  return moves;
}
