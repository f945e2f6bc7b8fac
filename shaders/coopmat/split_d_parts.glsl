// SPDX-License-Identifier: MIT OR Apache-2.0
// Results of splits of fwd whose features pass by slices (split_d.glsl). OUT_OWN: blocks of an
// owner.

// Parts of splits, in f32, pass through the array as results do, PART_BLOCKS of each slice at a
// time.
const int PART_ROOM = (STREAMED / ROWS - 1) / (OWNERS * MN / 4);
const int PART_BLOCKS = POWER_BELOW(PART_ROOM);
const int PART_QUADS = PART_BLOCKS * (MN / 4);
const int PART_ROW = OWNERS * PART_QUADS + 1;
void store_part_pass(View t, int r0, int pass) {
  const int quads = OWNERS * PART_QUADS, last = (OUT_OWN - pass * PART_BLOCKS) * (MN / 4) - 1,
            rows = min(ROWS, t.rows - r0) - 1;
  EACH(i, (ROWS * quads + WG - 1) / WG) {
    const int n = TID + i * WG, row = min(n / quads, rows), at = n % quads;
    int of = at / PART_QUADS, from = min(at % PART_QUADS, last);
    if (WIDE != 1) { // no branch, as in store_pass()
      const bool beyond = 4 * (of * OUT_OWN * (MN / 4) + pass * PART_QUADS + from) >= t.width;
      of = beyond ? 0 : of;
      from = beyond ? 0 : from;
    }
    const int quad = of * OUT_OWN * (MN / 4) + pass * PART_QUADS + from;
    Store4(part_address(t, r0 + row, 4 * quad)).w =
        streamed[row * PART_ROW + of * PART_QUADS + from];
  }
}
#define STORE_PARTS(x, t)                                                               \
  EACH(pass, (OUT_OWN + PART_BLOCKS - 1) / PART_BLOCKS) {                               \
    barrier();                                                                          \
    EACH(d, PART_BLOCKS)                                                                \
      if (pass * PART_BLOCKS + d < OUT_OWN)                                             \
        coopMatStore(x[pass * PART_BLOCKS + d], streamed,                               \
                     BLOCK_ROW* PART_ROW + OWNER * PART_QUADS + d * (MN / 4), PART_ROW, \
                     ROW_MAJOR);                                                        \
    barrier();                                                                          \
    store_part_pass(t, row0, pass);                                                     \
  }
