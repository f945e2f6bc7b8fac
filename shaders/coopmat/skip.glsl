// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles without a key that spans and keep show are skipped before any of their rows is loaded. The
// next tile that has one is known before it is fetched, so its rows are prefetched in registers as
// usual.

const bool SKIPS = VISITS_ALL ? false : SKIP != 0;
const bool SKIP_KEEP = KEEP != 0 && SKIPS;
const bool SKIP_SPANS = SPANS != 0 && SKIPS;
const bool SKIP_MASKED = SKIP_KEEP || SKIP_SPANS;
const bool SKIP_ENTMAX = NORM == ENTMAX && SKIPS;
#include "parts/map.glsl"
#include "parts/vote.glsl"

// With entmax a subgroup may skip a block after S. Not on lavapipe (Mesa 26), which makes barriers
// of the subgroup, of which there are more, barriers of the workgroup; no other device has
// subgroups of 8.
const bool LEAVES_BLOCKS = SKIP_ENTMAX && SUBGROUP != 8;

#if KEEP_BY_ELEMENT
// Whether a tile with the workgroup's rows from own on and the streamed ones from streamed on has a
// kept key, or may have one: with feature stride 1 whole words are tested, and with them up to
// three keys on either side. flip: the workgroup's rows are keys.
bool keeps_any(int own, int streamed, bool flip) {
  if (!SKIP_KEEP) return true;
  const int i0 = flip ? streamed : own, j0 = flip ? own : streamed, rows = flip ? COLS : ROWS,
            cols = flip ? ROWS : COLS;
  const bool words = extra.keep.sd.zw == uvec2(1, 0);
  const int in_row = words ? cols / 4 + 1 : cols;
  const int row_end = min(i0 + rows, entry.seq_q), key_end = min(j0 + cols, entry.seq_kv);
  bool any = false;
  [[dont_unroll]] for (int n = TID; n < rows * in_row; n += WG) {
    const int i = i0 + n / in_row,
              j = words ? min(j0 + n % in_row * 4, key_end - 1) : j0 + n % in_row;
    if (i >= row_end || j >= key_end) continue;
    if (words) {
      uvec2 at = add64(inputs.keep, add64(mul64(extra.keep.sd.xy, i), j));
      any = any || Load1(uvec2(at.x & ~3u, at.y)).w != 0;
    } else {
      any = any || is_kept(i, j);
    }
  }
  return vote(any);
}
#define put_keep()
#else
// keep of the subgroup's part of a tile: up to 32 keys of a query row a word, the words of 32 keys
// one row after the other. It is read once, into registers, as a tile is chosen, and is put into
// shared memory as the tile begins. More invocations than words repeat them, as branches of some
// invocations cost too much here (stage.glsl).
const int KEEP_TURNS = KEEP != 0 ? (KEEP_WORDS + SUBGROUP - 1) / SUBGROUP : 1;
const int KEEP_KEYS = FLIPS ? OWN : COLS < 32 ? COLS : 32; // of a word
uint keep_ahead[KEEP_TURNS];
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer KeepWords {
  uint w[];
};

int keep_word(int turn) {
  const int n = LANE + turn * SUBGROUP;
  return KEEP_WORDS % SUBGROUP == 0 ? n : n % KEEP_WORDS;
}
void put_keep() { // barriers are before and behind
  if (KEEP == 0) return;
  EACH(turn, KEEP_TURNS) {
    const int n = keep_word(turn);
    scratch[MY_SCRATCH + KEEP_AT + n / 4][n % 4] = uintBitsToFloat(keep_ahead[turn]);
  }
}
// Bit n: whether byte n is not 0.
uint kept_bytes(uint w) {
  return ((((w & 0x7f7f7f7fu) + 0x7f7f7f7fu) | w) & 0x80808080u) * 0x00204081u >> 28;
}

// Reads the bits of the tile with the workgroup's rows from own on and the streamed ones from
// streamed on; false if it has no kept key. All loads are in flight together. Only words that hold
// a byte of an existing key are read, or four of them where all rows begin and end at multiples of
// 16 bytes.
bool keeps_any(int own, int streamed, bool flip) {
  if (KEEP == 0) return true;
  const int first = own + BLOCK_ROW;
  int keys[KEEP_TURNS]; // that exist, of each word
  uvec2 at[KEEP_TURNS]; // the first one, or the last one that exists
  EACH(turn, KEEP_TURNS) {
    const int n = keep_word(turn);
    const int i = FLIPS ? streamed + n : first + n % OWN,
              j = FLIPS ? first : streamed + n / OWN * 32;
    keys[turn] = clamp(entry.seq_kv - j, 0, KEEP_KEYS);
    at[turn] = add64(inputs.keep, add64(mul64(extra.keep.sd.xy, near_query(i)),
                                        mul64(extra.keep.sd.zw, near_key(j))));
    keep_ahead[turn] = 0;
  }
  // The compiler has to see that the branches are the whole workgroup's.
  const uint lowest = push.extra[AT_KEEP].x | extra.keep.bh.x | extra.keep.bh.z | extra.keep.sd.x |
                      uint(block.seq_kv);
  if (extra.keep.sd.zw != uvec2(1, 0)) {
    [[dont_unroll]] for (int e = 0; e < KEEP_KEYS; e++) {
      EACH(turn, KEEP_TURNS) {
        const uvec2 byte =
            add64(at[turn], mul64(extra.keep.sd.zw, clamp(e, 0, max(keys[turn] - 1, 0))));
        const uint word = Load1(uvec2(byte.x & ~3u, byte.y)).w;
        keep_ahead[turn] |= (word >> 8u * (byte.x & 3u) & 0xffu) != 0 ? 1u << e : 0u;
      }
    }
  } else if (KEEP_KEYS % 16 == 0 && (lowest & 15u) == 0) {
    uvec4 w[KEEP_TURNS][2];
    EACH(turn, KEEP_TURNS) {
      Rows4 from = Rows4(uvec2(at[turn].x & ~15u, at[turn].y));
      EACH(c, 2)
        if (16 * c < KEEP_KEYS) w[turn][c] = from.w[16 * c < keys[turn] ? c : 0];
    }
    EACH(turn, KEEP_TURNS)
      EACH(c, 8)
        if (4 * c < KEEP_KEYS) keep_ahead[turn] |= kept_bytes(w[turn][c / 4][c % 4]) << 4 * c;
  } else {
    uint w[KEEP_TURNS][9];
    EACH(turn, KEEP_TURNS) {
      KeepWords from = KeepWords(uvec2(at[turn].x & ~3u, at[turn].y));
      const int last = (int(at[turn].x & 3u) + max(keys[turn] - 1, 0)) / 4;
      EACH(c, 9)
        if (4 * c <= KEEP_KEYS) w[turn][c] = from.w[min(c, last)];
    }
    EACH(turn, KEEP_TURNS) {
      const uint odd = at[turn].x & 3u;
      EACH(c, 9)
        if (4 * c <= KEEP_KEYS) {
          const uint bits = kept_bytes(w[turn][c]);
          keep_ahead[turn] |= c == 0 ? bits >> odd : bits << (4 * c - 1 - int(odd)) << 1;
        }
    }
  }
  bool any = false;
  EACH(turn, KEEP_TURNS) {
    keep_ahead[turn] = bitfieldExtract(keep_ahead[turn], 0, keys[turn]);
    any = any || keep_ahead[turn] != 0;
  }
  return !SKIP_KEEP || vote(any);
}
#endif
// The first tile from t on, before end, that is not skipped. first: first row of the workgroup;
// flip: its rows are keys.
int next_tile(int t, int end, int first, bool flip) {
  if (KEEP == 0 && !SKIP_SPANS) return t;
  [[dont_unroll]] for (; t < end; t++) {
    if (SKIP_SPANS) {
      const int shown = next_shown(t, end, first, ROWS, flip);
      SKIPPED(t, min(shown, end), first)
      t = shown;
      if (t >= end) break;
    }
    if (KEEP == 0) break;
    if (keeps_any(first, t * COLS, flip)) break;
    SKIPPED(t, t + 1, first)
  }
  return t;
}
// Whether spans may hide something of the subgroup's part of a tile: of its rows from own on and
// the streamed ones from streamed on.
bool spans_hide(int own, int streamed, bool flip) {
  if (SPANS == 0) return false;
  if (!HAS_MAP) return true;
  const int rows = RM * MM;
  return (flip ? map_of(streamed, COLS, own, rows) : map_of(own, rows, streamed, COLS)).y == 0;
}
