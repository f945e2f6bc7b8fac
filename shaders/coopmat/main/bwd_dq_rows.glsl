// SPDX-License-Identifier: MIT OR Apache-2.0
// Included by main() of bwd_dq: left operands mq and md_o, and numbers of the subgroup's rows.
OPERAND_A mq[RM][D_BLOCKS], md_o[RM][DV_BLOCKS];
LOAD_OPERANDS(mq, 2, q, row0, D_BLOCKS, D_CHUNKS)
LOAD_OPERANDS(md_o, 1, d_o, row0, DV_BLOCKS, DV_CHUNKS)

ACC acc[RM][D_OUT], origin[RM], delta[RM], share[RM]; // origin, delta and share of each row
own_far = false;
EACH(r, RM) {
  const int head = b * block.heads_q + h, from = my_row0 + r * MM;
  if (ENTRIES > 1) {
    for (int row = LANE; row < MM; row += SUBGROUP) {
      iota[OWN_NUMBERS + row / 4][row % 4] = row_origin(head, from + row);
      iota[OWN_NUMBERS + (MM + row) / 4][row % 4] = delta_of(head, from + row);
    }
    subgroupBarrier();
  } else {
    ROWS_TO_MATRIX(origin[r], row, row_origin(head, from + row))
    ROWS_TO_MATRIX(delta[r], row, delta_of(head, from + row))
  }
  if (NORM == ELASTIC) ROWS_TO_MATRIX(share[r], row, share_of(from + row))
  EACH(d, D_OUT) acc[r][d] = ACC(0.0);
}
const bool far = subgroupAny(own_far);
