// SPDX-License-Identifier: MIT OR Apache-2.0
// The search for entmax's threshold t, the root of f(t) = sum [z - t]_+^(1 / (alpha - 1)) = 1
// (docs/kernels/overview.md). All invocations of a row get the same sums, and so take the same
// steps.

// Rows whose largest z is beyond NEAR, either way, have thresholds relative to it, as t's own
// rounding changes all weights of a row.
const float NEAR = 8.0;
const int MAX_PASSES = 64; // a limit that no row is known to need
// Bitmaps of live tiles, which can still have a weight: those of this pass, and those that it finds
// for the next one. Tiles beyond the bitmap are always live.
const int LIVE_WORDS = SKIP_ENTMAX ? 64 : 1; // src/plan/plan.cpp counts them twice
shared uint live[2 * LIVE_WORDS];
int live_now = 0;

bool is_live_tile(int n) {
  return n >= 32 * LIVE_WORDS || (live[live_now + n / 32] >> (n % 32) & 1u) != 0;
}
void begin_notes() {
  for (int w = TID; w < LIVE_WORDS; w += WG) live[LIVE_WORDS - live_now + w] = 0;
}
void note_live_tile(int n) {
  if (n < 32 * LIVE_WORDS) atomicOr(live[LIVE_WORDS - live_now + n / 32], 1u << (n % 32));
}

// The step from t, by sums over the keys above t.
float entmax_step(float count, float sum, float sum2) {
  if (ALPHA == 1) return (sum2 - 1.0) / (sum + sqrt(max(fma(-count, sum2 - 1.0, sum * sum), 0.0)));
  if (ALPHA == 2) return (sum - 1.0) / count;
  return (sum - 1.0) / (extra.entmax_exponent * sum2); // sums of x^e and x^(e-1)
}

// t of each row, NO_LSE in rows that see no key.
void find_threshold(out float t[RM], View q, int row0, View k, TandemTiles tiles) {
  float top[RM], low[RM], high[RM];
  uint moving = 0; // a bit for each row
  [[unroll]] for (int i = 0; i < RM; i++) {
    top[i] = HIDDEN;
    t[i] = NO_LSE;
    low[i] = t[i];
    high[i] = t[i];
  }
  for (int pass = 0; pass < MAX_PASSES; pass++) {
    float count[RM], sum[RM], sum2[RM];
    [[unroll]] for (int i = 0; i < RM; i++) {
      count[i] = 0;
      sum[i] = 0;
      sum2[i] = 0;
    }
    if (SKIP_ENTMAX) begin_notes();
    int n = next_tile(tiles.begin, tiles.end, row0, false);
    if (KNOWS_NEXT && n < tiles.end) fetch_nt(q, row0, k, n * COLS, 0);
    for (int next; n < tiles.end; n = next) {
      next = next_tile(n + 1, tiles.end, row0, false);
      if (SKIP_ENTMAX && pass > 0 && !is_live_tile(n - tiles.begin)) continue;
      vec4 z[RQ];
      if (!visit_tile(z, q, row0, k, tiles, n, next)) continue;
      bool any = false;
      [[unroll]] for (int i = 0; i < RM; i++) {
        const float best = max(max(z[i].x, z[i].y), max(z[i].z, z[i].w));
        if (pass == 0) {
          // A key that is not above its invocation's maximum so far, less 1, is not above the row's
          // less 1.
          const bool exists = row0 + TROW + TR * i < entry.seq_q;
          if (exists) top[i] = max(top[i], best);
          any = any || (exists && best >= top[i] - 1.0); // the difference may round to top
          continue;
        }
        any = any || best > low[i];
        [[unroll]] for (int c = 0; c < 4; c++) {
          const float x = base_of(z[i][c], t[i]), u = entmax_power(x);
          count[i] += x > 0 ? 1.0 : 0.0;
          sum[i] += ALPHA == 3 ? x * u : x;
          sum2[i] += ALPHA == 3 ? u : x * x;
        }
      }
      if (SKIP_ENTMAX && any) note_live_tile(n - tiles.begin);
    }

    if (pass == 0) {
      row_max(top);
      [[unroll]] for (int i = 0; i < RM; i++) {
        if (is_hidden(top[i])) continue;
        if (abs(top[i]) > NEAR) {
          far_rows |= 1u << i;
          far_origin[i] = top[i];
          top[i] = 0.0;
        }
        const int n =
            tandem_key_count(mask_band(), row0 + TROW + TR * i, entry.seq_q, entry.seq_kv);
        low[i] = top[i] - 1.0;
        high[i] = top[i] - exp2(-extra.entmax_scale * log2(float(max(n, 1))));
        t[i] = low[i];
        moving |= 1u << i;
      }
    } else {
      if (ALPHA != 3) row_sum(count);
      row_sum(sum);
      if (ALPHA != 2) row_sum(sum2);
      [[unroll]] for (int i = 0; i < RM; i++) {
        if ((moving >> i & 1u) == 0) continue;
        const float step = entmax_step(count[i], sum[i], sum2[i]);
        if (step >= 0)
          low[i] = max(low[i], t[i]);
        else
          high[i] = min(high[i], t[i]);
        float next = t[i] + step;
        // A step of a few units in the last place ends the search.
        bool last = abs(step) <= 4e-7 * max(abs(t[i]), abs(top[i]));
        if (last) {
          next = clamp(next, low[i], max(high[i], low[i]));
        } else if (!(next > low[i] && next < high[i])) {
          next = 0.5 * (low[i] + high[i]);
          last = next <= low[i] || next >= high[i];
        }
        t[i] = next;
        if (last) moving &= ~(1u << i);
      }
    }
    live_now = LIVE_WORDS - live_now;
    if (!vote(moving != 0)) break;
  }
}
