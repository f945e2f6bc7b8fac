// SPDX-License-Identifier: MIT OR Apache-2.0
// The sink of a row of head h of batch entry b, or with SINK 2 the row's own
// (src/kernels/abi/fwd.inc). Rows past the end have that of the last one.
float sink_of(int b, int h, int row) {
  int n = h;
  if (SINK == 2) n = h * block.seq_q + min(row, block.seq_q - 1);
  if (SINK == 3) n += b / block.sink_entries * block.heads_q;
  return load_float(F32, word_address(push.sink, n));
}
