// SPDX-License-Identifier: MIT OR Apache-2.0
// The optional inputs (src/kernels/abi/features.inc): their parameters, the lengths and the offset
// of a batch entry, and where a head's part of each input begins. Inputs that are off leave no
// code.
layout(set = 0, binding = 1, std140) uniform ExtraBlock {
#define TANDEM_STRIDES GLSL_STRIDES
#define TANDEM_PARAM GLSL_PARAM
#include "kernels/abi/extra.inc"
} extra;

// The current batch entry. Its lengths replace the problem's everywhere but in lse, delta and the
// rows' parts.
struct Entry {
  int seq_q, seq_kv;
  int start_q, start_kv; // packed: its first rows in the tensors
  int off;               // t = i + off - j
};
Entry entry;
int entry_batch; // its number, for sinks

void set_entry(int b) {
  entry = Entry(block.seq_q, block.seq_kv, 0, 0, block.band_off);
  entry_batch = b;
  if (LENGTHS_Q != 0) {
    ivec2 s = sequence(push.extra[AT_LENGTHS_Q], LENGTHS_Q, b, block.seq_q, extra.total_q);
    entry.start_q = s.x;
    entry.seq_q = s.y;
  }
  if (LENGTHS_KV != 0) {
    ivec2 s = sequence(push.extra[AT_LENGTHS_KV], LENGTHS_KV, b, block.seq_kv, extra.total_kv);
    entry.start_kv = s.x;
    entry.seq_kv = s.y;
  }
  if (LENGTHS_Q != 0 || LENGTHS_KV != 0)
    entry.off = extra.bottom_right != 0 ? entry.seq_kv - entry.seq_q : 0;
}

// Rows that are stored. Rows behind a padded length are stored as zeros; rows behind a packed
// length belong to the next sequence.
int stored_q() { return LENGTHS_Q >= PACKED ? entry.seq_q : block.seq_q; }
int stored_kv() { return LENGTHS_KV >= PACKED ? entry.seq_kv : block.seq_kv; }

View q_view(uvec2 address, Strides s, int b, int h, int rows, int width, bool wide) {
  View t = make_view(address, s, b, h, rows, width, wide);
  if (LENGTHS_Q >= PACKED) t.base = row_address(t, entry.start_q);
  return t;
}
View kv_view(uvec2 address, Strides s, int b, int h, int rows, int width, bool wide) {
  View t = make_view(address, s, b, h, rows, width, wide);
  if (LENGTHS_KV >= PACKED) t.base = row_address(t, entry.start_kv);
  return t;
}

// One query head's part of the inputs. Only for heads with a visible tile: without any key, the
// addresses may be 0.
struct Inputs {
  uvec2 bias, keep, spans, dist;
  float slope, tau;
  int head; // over all batches
};
Inputs inputs;
// The head's mask map of spans, if tiles may be skipped; 0 until there is a head.
uvec2 head_map = uvec2(0);

const int BIAS_SHIFT = BIAS == F32 ? 2 : 1;
// Words of a row of the mask map (src/problem/mask_map.h), which has a bit a block.
int map_words(int blocks) { return (blocks + 31) / 32; }

const int BIAS_GROUPED = 1, KEEP_GROUPED = 2, SLOPES_GROUPED = 4; // bits of GROUPED
// The entry of an input that batch entry b reads: GROUPED has its bit where so many read one.
int group_of(int b, int bit, int entries) { return (GROUPED & bit) != 0 ? b / entries : b; }

void set_head(int b, int h) {
  if (BIAS != 0) {
    uvec2 elements = add64(mul64(extra.bias.bh.xy, group_of(b, BIAS_GROUPED, extra.bias_entries)),
                           mul64(extra.bias.bh.zw, h / extra.bias_group));
    inputs.bias = add64(push.extra[AT_BIAS], to_bytes(elements, BIAS_SHIFT));
  }
  if (KEEP != 0)
    inputs.keep =
        add64(push.extra[AT_KEEP],
              add64(mul64(extra.keep.bh.xy, group_of(b, KEEP_GROUPED, extra.keep_entries)),
                    mul64(extra.keep.bh.zw, h / extra.keep_group)));
  if (SPANS != 0) {
    const int n =
        b / extra.spans_entries * (block.heads_q / extra.spans_group) + h / extra.spans_group;
    inputs.spans = add64(push.extra[AT_SPANS], mul64(to_bytes(extra.spans.bh.zw, 2), n));
    const int q = extra.map_q_blocks, kv = extra.map_kv_blocks;
    if (SKIP != 0)
      head_map = add64(push.extra[AT_MASK_MAP], mul64(add64(mul64(uvec2(8 * map_words(kv), 0), q),
                                                            mul64(uvec2(8 * map_words(q), 0), kv)),
                                                      n));
  }
  if (DIST != 0)
    inputs.dist = add64(push.extra[AT_DIST], mul64(to_bytes(uvec2(extra.dist_window, 0), 2), h));
  // The condition is for lavapipe. After the last iteration of a loop, or of a loop without
  // iterations, it runs the body with all invocations off, and still reads uniform addresses.
  if (block.seq_q > 0 && block.seq_kv > 0 && h < block.heads_q) {
    const int of =
        (GROUPED & SLOPES_GROUPED) != 0 ? b / extra.slope_entries * block.heads_q + h : h;
    if (ALIBI != 0) inputs.slope = load_float(F32, word_address(push.extra[AT_SLOPE], of));
    if (NORM == ELASTIC) inputs.tau = load_float(F32, word_address(push.extra[AT_TAU], h));
  }
  inputs.head = b * block.heads_q + h;
}

#ifndef BY_ELEMENT
// Query row and key of an invocation's element (r, c) of a tile. flip: its rows are keys.
int query_of(int i0, int r, int c, bool flip) { return i0 + (flip ? COL_OF(r) + c : ROW_OF(r)); }
int key_of(int j0, int r, int c, bool flip) { return j0 + (flip ? ROW_OF(r) : COL_OF(r) + c); }
#endif

// The nearest query row and key that exist. What is read for other elements is hidden afterwards;
// without a branch the loads of a tile are in flight together.
int near_query(int i) { return min(i, entry.seq_q - 1); }
int near_key(int j) { return clamp(j, 0, entry.seq_kv - 1); }
