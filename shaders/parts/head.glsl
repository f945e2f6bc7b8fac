// SPDX-License-Identifier: MIT OR Apache-2.0
// The work of bwd_head_sums, a workgroup a head. Workgroups behind those of bwd_sum_splits may do
// it, too. The rows' parts are added with batch and rows ascending within an invocation, then over
// invocations in order.

void store_sum(uvec2 to, int head, float own) {
  const int tid = int(gl_LocalInvocationIndex);
  barrier(); // the readers of the previous sum are done
  partial[tid] = own;
  barrier();
  if (tid != 0) return;
  for (int n = 1; n < WG; n++) own += partial[n];
  store_float(F32, word_address(to, head), own);
}

void sum_head(int head) {
  float tau = 0, slope = 0, sink = 0, by = 0;
  if (GRAD_SINK != 0 && block.seq_q > 0 && block.batch > 0)
    by = load_float(F32, word_address(push.sink, head));
  for (int b = 0; b < block.batch; b++) {
    const int row = b * block.heads_q + head;
    for (int i = int(gl_LocalInvocationIndex); i < block.seq_q; i += WG) {
      if (GRAD_TAU != 0) tau += load_float(F32, stat_address(push.tau_rows, row, block.seq_q, i));
      if (GRAD_SLOPE != 0)
        slope -= load_float(F32, stat_address(push.slope_rows, row, block.seq_q, i));
      if (GRAD_SINK != 0) {
        const uint lse = Load1(stat_address(push.lse, row, block.seq_q, i)).w;
        const float delta = load_float(F32, stat_address(push.delta, row, block.seq_q, i));
        float log_weight = by - uintBitsToFloat(lse);
        if (tandem_is_far(uintBitsToFloat(lse))) {
          const vec2 far = load_far(push.delta, row, block.seq_q, i);
          log_weight = min(by - far.x, 0.0) - far.y;
        }
        if (lse != LSE_NONE) sink -= exp(log_weight) * delta;
      }
    }
  }
  if (GRAD_TAU != 0) store_sum(push.d_tau, head, tau);
  if (GRAD_SLOPE != 0) store_sum(push.d_slope, head, slope);
  if (GRAD_SINK != 0) store_sum(push.d_sink, head, sink);
}
