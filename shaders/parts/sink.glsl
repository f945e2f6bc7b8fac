// SPDX-License-Identifier: MIT OR Apache-2.0
// The sink of a row of head h, or with SINK 2 the row's own (src/kernels/abi/fwd.inc). Rows past
// the end have that of the last one.
float sink_of(int h, int row) {
  return load_float(
      F32, word_address(push.sink, SINK > 1 ? h * block.seq_q + min(row, block.seq_q - 1) : h));
}
