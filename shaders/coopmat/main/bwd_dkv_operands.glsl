// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dkv: left operands mk and mv, and what is summed.
OPERAND_A mk[RM][D_BLOCKS], mv[RM][DV_BLOCKS];
LOAD_OPERANDS(mk, 2, k, row0, D_BLOCKS, D_CHUNKS)
if (GRAD_K != 0) {
  LOAD_OPERANDS(mv, 1, v, row0, DV_BLOCKS, DV_CHUNKS)
}
ACC acc_k[RM][D_OUT], acc_v[RM][DV_OUT];
EACH(r, RM) {
  EACH(d, D_OUT) acc_k[r][d] = ACC(0.0);
  EACH(d, DV_OUT) acc_v[r][d] = ACC(0.0);
}
