// SPDX-License-Identifier: MIT OR Apache-2.0
// Far rows (far.glsl) of the backward with lean tiles.

// far_block() by way of the scratch, an element an invocation. All subgroups come here together:
// lavapipe (Mesa 26) makes barriers of the subgroup barriers of the workgroup.
void far_block_in_scratch(inout ACC s, View q, View k, int head, int i0, int j0, bool flip) {
  coopMatStore(s, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
  [[dont_unroll]] for (int n = LANE; n < MM * MN; n += SUBGROUP) {
    const int row = n / MN, col = n % MN, i = i0 + (flip ? col : row), j = j0 + (flip ? row : col);
    bool far = false;
    if (i < entry.seq_q)
      far = tandem_is_far(uintBitsToFloat(Load1(stat_address(push.lse, head, block.seq_q, i)).w));
    if (far) SCRATCH_FLOAT(row * 4 * SCRATCH_PITCH + col) = far_score(q, k, head, i, j);
  }
  subgroupBarrier();
  coopMatLoad(s, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);
  subgroupBarrier();
}
