// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dkv where several workgroups share the query rows of a tile of keys, since there are few kv
// heads. Each leaves its sums of d_k and d_v in the workspace, in f32, for bwd_sum_splits to add in
// order. Tiles of keys are whole there, and heads whole matrices (src/plan/coopmat/planner.cpp), so
// that matrices are stored as they are.
#define D_V_PARTS block.own_1 // offset to those of d_v
#define SPLITS block.own_2    // parts of a tile of keys

// The tiles of query rows of the g-th query head that the n-th of the workgroups takes: they share
// those of all heads evenly.
TandemTiles own_tiles(TandemTiles tiles, int heads, int g, int n) {
  const int each = tiles.end - tiles.begin;
  const int begin = int(uint(n) * uint(each * heads) / uint(SPLITS)),
            end = int(uint(n + 1) * uint(each * heads) / uint(SPLITS));
  TandemTiles own = tiles;
  own.begin = tiles.begin + clamp(begin - g * each, 0, each);
  own.end = tiles.begin + clamp(end - g * each, 0, each);
  return own;
}

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Parts4 { vec4 w[]; };
// The rows from row0 on of a tensor's part, [splits,B,Hk,Sk,width]. from: offset from delta, in 256
// bytes; n: the split, batch entry and head.
Parts4 part_rows(uint from, int n, int row0, int width) {
  const uvec2 head = mul64(mul64(uvec2(4 * width, 0), block.seq_kv), n);
  return Parts4(add64(add64(push.delta, mul64(uvec2(from, 0), 256)),
                      add64(head, mul64(uvec2(4 * width, 0), row0))));
}
#define STORE_PART(x, to, blocks, width)                                               \
  EACH(r, RM)                                                                          \
    EACH(d, blocks)                                                                    \
      coopMatStore(x[r][d], to.w, (BLOCK_ROW + r * MM) * ((width) / 4) + d * (MN / 4), \
                   (width) / 4, ROW_MAJOR);
