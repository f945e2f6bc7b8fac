// SPDX-License-Identifier: MIT OR Apache-2.0
// Scores, masks and dropout of matrices, element by element, by the functions of the kernels
// without matrices (score.glsl, mask.glsl, weight.glsl).
//
// Weights are 2^(s * log2_scale - origin), one fma and one exp2. Without score inputs s is the raw
// product, and log2_scale includes the scale. With score inputs s is the score in natural units.

const float LOG2E = 1.4426950408889634;
// BIAS_BEGINS: a block's products start from the bias, divided by the
// scale. It can then be fetched, and changed into a matrix, while the block has nothing else in
// registers, and costs one multiplication.
const bool BIAS_MATRICES = BIAS_BLOCKS || BIAS_CHUNKS;
const bool BIAS_FIRST =
    BIAS_BEGINS ? BIAS_MATRICES && NORM == SOFTMAX && SOFTCAP == 0 && FOLDED != 0 : false;
const bool BIAS_SCORES = BIAS_FIRST ? false : BIAS != 0;
const bool HAS_SCORES = SOFTCAP != 0 || BIAS_SCORES || DIST != 0 || ALIBI != 0 || NORM == ENTMAX;
// Less than a row's initial origin, whatever log2_scale is, and finite, as nothing here makes an
// infinity. Elastic softmax and entmax compare scores with it, so its last bits are none that a
// mask of a round number has.
const float HIDDEN_SCORE = -1.0234567e34;
const float ORIGIN = -1e30;

// The scale is in log2_scale, except scales for which HIDDEN_SCORE would leave its range, or lose
// its sign (src/kernels/params.cpp).
const bool folded = HAS_SCORES || FOLDED != 0;
float log2_scale, over_scale; // 1 / scale

void begin_scores() {
  log2_scale = HAS_SCORES || !folded ? LOG2E : block.scale * LOG2E;
  if (BIAS_FIRST) over_scale = 1.0 / block.scale;
}
// Initial value of a block's products.
ACC first_block(Chunks bias, ACC words, int part, bool flip) {
  ACC x = ACC(0.0);
  if (BIAS_FIRST) {
    x = bias_block(bias, words, part, flip);
    ELEMENTS(k, x) x[k] *= over_scale;
  }
  return x;
}

// A score as the products (and the score inputs) form it: in powers of two, rounded, and in natural
// units. precise: see score.glsl.
float log2_origin(float s) {
  precise float x = s * log2_scale;
  return x;
}
float natural_score(float s) {
  precise float x = HAS_SCORES || !folded ? s : s * block.scale;
  return x;
}

// The origin of a row's weights by its lse: - lse in powers of two. With elastic softmax it is lse
// itself, as thresholds compare p with a share of 1, and a score that equals lse then has p = 1 to
// the last bit. With entmax it is the threshold. A row that saw no key, or does not exist, gets an
// origin that no score reaches.
#define NO_ORIGIN (NORM == SOFTMAX ? uintBitsToFloat(LSE_NONE) : NO_LSE)
float weight_origin(uint bits) {
  const float lse = lse_origin(bits);
  return NORM == SOFTMAX ? -LOG2E * lse : lse;
}
// The base of a score (weight.glsl).
float base_at(float s, float origin) {
  if (NORM == SOFTMAX) return exp2(fma(s, log2_scale, origin));
  precise float x = natural_score(s) - origin;
  if (NORM == ENTMAX) return max(x, 0.0);
  return s == HIDDEN_SCORE || (BIAS != 0 && is_hidden(s)) ? -1.0 : exp2(x * LOG2E);
}
float ds_at(float base, float share, float dp, float delta) {
  return slope_of(base) * (live_dp(base, share, dp) - delta);
}

#if TANDEM_CM2
float alibi_at(float s, int t, float slope) {
  precise float far = slope * float(abs(t));
  precise float x = s - far;
  return x;
}
float alibi_of(const in uint r, const in uint c, const in float s, const in int t0,
               const in float slope) {
  return alibi_at(s, t0 + int(r) - KEY_STEP * int(c), slope);
}
float alibi_flipped(const in uint r, const in uint c, const in float s, const in int t0,
                    const in float slope) {
  return alibi_at(s, t0 + int(c) - KEY_STEP * int(r), slope);
}
#endif
// A block with query rows from i0 and keys from j0 on (block_key()). flip: its rows are the keys.
// slope: softcap's derivative, with WANTS_SLOPE; unused, it makes lavapipe's compiler (Mesa 26)
// crash with entmax and a bias. bias: the block of it, if it is read by chunks.
void score_block(inout ACC s, inout ACC slope, ACC bias, int i0, int j0, bool flip) {
  ACC queries = query_numbers(flip), keys = key_numbers(flip);
  ELEMENTS(k, s) {
    precise float x = s[k] * block.scale;
    if (SOFTCAP != 0) {
      float derivative;
      x = cap_score(x, derivative);
      if (WANTS_SLOPE) slope[k] = derivative;
    }
    if (BIAS_SCORES && BIAS_MATRICES)
      x = x + bias[k];
    else if (BIAS_SCORES)
      x = x + load_bias(i0 + int(queries[k]), j0 + int(keys[k]));
    s[k] = x;
  }
  const int t0 = i0 + entry.off - j0; // distance of the first element
  // A block beyond the window has no distance biases.
  if (DIST != 0 && t0 > -QUERIES && t0 - KEY_STEP * (KEYS - 1) < extra.dist_window) {
    ELEMENTS(k, s) {
      precise float x = s[k] + load_dist(t0 + int(queries[k] - keys[k]));
      s[k] = x;
    }
  }
#if TANDEM_CM2
  if (ALIBI != 0) {
    if (flip)
      coopMatPerElementNV(s, s, alibi_flipped, t0, inputs.slope);
    else
      coopMatPerElementNV(s, s, alibi_of, t0, inputs.slope);
  }
#else
  if (ALIBI != 0) {
    ELEMENTS(k, s) {
      precise float far = inputs.slope * float(abs(t0 + int(queries[k] - keys[k])));
      precise float x = s[k] - far;
      s[k] = x;
    }
  }
#endif
  if (NORM == ENTMAX) {
    ELEMENTS(k, s) {
      precise float x = s[k] * extra.entmax_scale;
      s[k] = x;
    }
  }
}

// Hides what the band and the end of the keys hide of a block. With numbers from the block's first
// on, visible is low <= key - query row <= high. Numbers this large are exact in f32.
float band_limit(int x) { return float(clamp(x, -0x100000, 0x100000)); }
void mask_block(inout ACC s, int i0, int j0, bool flip) {
  const TandemBand band = mask_band();
  const float high = band_limit(i0 + band.off + band.right - j0),
              low = band_limit(i0 + band.off - band.left - j0);
  const float keys = band_limit(entry.seq_kv - j0), scale = folded ? 1.0 : block.scale;
  ACC queries = query_numbers(flip), numbers = key_numbers(flip);
  ELEMENTS(k, s) {
    const float i = queries[k], j = numbers[k];
    bool hidden = j >= keys;
    if (BAND != 0) hidden = hidden || j - i > high || j - i < low;
    s[k] = hidden ? HIDDEN_SCORE : s[k] * scale;
  }
}

#if KEEP_BY_ELEMENT
void keep_block(inout ACC s, int i0, int j0, bool flip) {
  ACC queries = query_numbers(flip), keys = key_numbers(flip);
  ELEMENTS(k, s)
    if (!is_kept(i0 + int(queries[k]), j0 + int(keys[k]))) s[k] = HIDDEN_SCORE;
}
#define KEEP_TILE(s, i0, j0) \
  EACH(r, RM)                \
    EACH(n, NB) keep_block(s[r][n], i0 + r * MM, block_key(j0, n), false);
#define KEEP_STEP(s, i0, j0, flip) \
  EACH(q, STEP_BLOCKS) keep_block(s[q], i0 + STEP_QUERY(q, flip), j0 + STEP_KEY(q, flip), flip);
#else
// By the subgroup's bits of the tile (put_keep()). Query row and key, or rather its column, are
// counted from the first ones of its part. Words and bits come as matrices of floats, with which
// nothing is computed, so that no element's row and column have to be known.
void keep_block(inout ACC s, int i, int j) {
  const int row = MY_SCRATCH + KEEP_AT + (FLIPS ? i : j / 32 * OWN + i) / 4,
            key = KEY_BITS + j % 32 / 4;
  ACC words, bits;
  if (FLIPS) {
    coopMatLoad(words, scratch, row, 0, ROW_MAJOR);
    coopMatLoad(bits, iota, key, 0, COL_MAJOR);
  } else {
    coopMatLoad(words, scratch, row, 0, COL_MAJOR);
    coopMatLoad(bits, iota, key, 0, ROW_MAJOR);
  }
  ELEMENTS(k, s)
    s[k] = (floatBitsToUint(words[k]) & floatBitsToUint(bits[k])) != 0 ? s[k] : HIDDEN_SCORE;
}
#define KEEP_TILE(s, i0, j0) \
  EACH(r, RM)                \
    EACH(n, NB) keep_block(s[r][n], r * MM, n * MN);
// Streamed tiles begin at multiples of COLS.
#define KEEP_STEP(s, i0, j0, flip)                                         \
  EACH(q, STEP_BLOCKS)                                                     \
    keep_block(s[q], (flip ? (i0) & (COLS - 1) : 0) + STEP_QUERY(q, flip), \
               (flip ? 0 : (j0) & (COLS - 1)) + STEP_KEY(q, flip));
#endif

// Hides what spans hide of a block, where they may hide something: in few tiles (spans_hide()).
void span_block(inout ACC s, int i0, int j0, bool flip) {
  ACC queries = query_numbers(flip), keys = key_numbers(flip);
  ELEMENTS(k, s)
    if (!is_spanned(i0 + int(queries[k]), j0 + int(keys[k]))) s[k] = HIDDEN_SCORE;
}
#define SPAN_TILE(s, i0, j0) \
  EACH(r, RM)                \
    EACH(n, NB) span_block(s[r][n], i0 + r * MM, block_key(j0, n), false);
#define SPAN_STEP(s, i0, j0, flip) \
  EACH(q, STEP_BLOCKS) span_block(s[q], i0 + STEP_QUERY(q, flip), j0 + STEP_KEY(q, flip), flip);

// Factors of dropout for a block. One draw is four keys of a query row.
ACC drop_block(int i0, int j0, bool flip) {
  ACC x;
  for (int n = LANE; n < MM * MN / 4; n += SUBGROUP) {
    const int i = n / (KEYS / 4), quad = n % (KEYS / 4);
    scratch[MY_SCRATCH + i * KEYS_PITCH + quad] = drop_factor(drop_quad(i0 + i, j0 / 4 + quad));
  }
  subgroupBarrier();
  if (flip)
    coopMatLoad(x, scratch, MY_SCRATCH, KEYS_PITCH, COL_MAJOR);
  else
    coopMatLoad(x, scratch, MY_SCRATCH, KEYS_PITCH, ROW_MAJOR);
  subgroupBarrier();
  return x;
}

// From a tile's products to its scores. hides: spans_hide(). A macro, as a function would copy
// arrays of matrices. Every loop stands by itself: a mask inside the loops of the exponentials made
// bwd_dkv four times slower on NVIDIA (580.159.04), which then kept the matrices in memory.
// MASKS_FIRST: a block's products start from its mask, so that no branch stands between them and
// the exponentials. If nothing else changes the scores, HIDDEN_SCORE, which swallows the product,
// stays far below all others.
const bool FIRST_IS_EXACT = NORM == SOFTMAX && !HAS_SCORES && folded;
// WHOLE: no tile has a hidden key. Without the branch NVIDIA's compiler makes better code for the
// loop (docs/kernels/coopmat.md).
#define NEEDS_MASK(partial) ((WHOLE == 0 && (partial)) || !folded)
#define MASK_TILE(s, i0, j0) \
  EACH(r, RM)                \
    EACH(n, NB) mask_block(s[r][n], i0 + r * MM, block_key(j0, n), false);
#define FINISH_SCORES(s, slope, bias, i0, j0, partial, hides)                       \
  if (HAS_SCORES) {                                                                 \
    EACH(r, RM)                                                                     \
      EACH(n, NB) {                                                                 \
        ACC x;                                                                      \
        if (BIAS_SCORES && SPAN > 1 && n == SPAN_FIRST(n)) begin_bias(bias[r][n]);  \
        if (BIAS_SCORES && BIAS_MATRICES)                                           \
          x = bias_block(BIAS_OF(bias, [r][SPAN_FIRST(n)]), n, false);              \
        score_block(s[r][n], slope[r][n], x, i0 + r * MM, block_key(j0, n), false); \
      }                                                                             \
  }                                                                                 \
  if (!MASKS_FIRST && NEEDS_MASK(partial)) {                                        \
    MASK_TILE(s, i0, j0)                                                            \
  }                                                                                 \
  if (KEEP != 0) {                                                                  \
    KEEP_TILE(s, i0, j0)                                                            \
  }                                                                                 \
  if (SPANS != 0) {                                                                 \
    if (hides) {                                                                    \
      SPAN_TILE(s, i0, j0)                                                          \
    }                                                                               \
  }
// The same for one step's blocks, s[STEP_BLOCKS], bias[STEP_BLOCKS].
#define FINISH_STEP(s, slope, bias, part, i0, j0, flip, partial, hides)                            \
  if (HAS_SCORES) {                                                                                \
    EACH(q, STEP_BLOCKS) {                                                                         \
      ACC x;                                                                                       \
      if (BIAS_SCORES && BIAS_MATRICES) x = bias_block(BIAS_OF(bias, [q]), part, flip);            \
      score_block(s[q], slope[q], x, i0 + STEP_QUERY(q, flip), j0 + STEP_KEY(q, flip), flip);      \
    }                                                                                              \
  }                                                                                                \
  if (!MASKS_FIRST && NEEDS_MASK(partial)) {                                                       \
    EACH(q, STEP_BLOCKS) mask_block(s[q], i0 + STEP_QUERY(q, flip), j0 + STEP_KEY(q, flip), flip); \
  }                                                                                                \
  if (KEEP != 0) {                                                                                 \
    KEEP_STEP(s, i0, j0, flip)                                                                     \
  }                                                                                                \
  if (SPANS != 0) {                                                                                \
    if (hides) {                                                                                   \
      SPAN_STEP(s, i0, j0, flip)                                                                   \
    }                                                                                              \
  }
