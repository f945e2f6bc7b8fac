// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dbias: stores the tile, or adds up its rows where bias has one for all.
uvec2 elements = add64(mul64(block.d_bias.bh.xy, bias_b), mul64(block.d_bias.bh.zw, place.head));
begin_ds(add64(elements, mul64(uvec2(block.part, 0), split)), ONE_ROW != 0 ? 1 : block.seq_q);
if (ONE_ROW == 0) {
  EACH(r, RM)
    EACH(n, NB) store_ds(acc[r][n], i0 + BLOCK_ROW + r * MM, col0 + n * MN, MY_SCRATCH);
  return;
}
// Sums the rows of a block, then blocks and subgroups, in order. The sums of all subgroups lie in
// the streamed array.
barrier();
EACH(n, NB) {
  EACH(r, RM) {
    coopMatStore(acc[r][n], scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
    subgroupBarrier();
    for (int c = LANE; c < MN; c += SUBGROUP) {
      float sum = 0;
      for (int row = 0; row < MM; row++) sum += SCRATCH_FLOAT(row * 4 * SCRATCH_PITCH + c);
      const int at = (int(gl_SubgroupID) * RM + r) * COLS + n * MN + c;
      streamed[at / 4][at % 4] = floatBitsToUint(sum);
    }
    subgroupBarrier();
  }
}
barrier();
for (int c = 8 * TID; c < COLS; c += 8 * WG) {
  vec4 low = vec4(0), high = vec4(0);
  for (int part = 0; part < ROWS / MM; part++) {
    low += uintBitsToFloat(streamed[(part * COLS + c) / 4]);
    high += uintBitsToFloat(streamed[(part * COLS + c) / 4 + 1]);
  }
  store_chunk(0, col0 + c, low, high);
}
