// SPDX-License-Identifier: MIT OR Apache-2.0
// The work of bwd_head_sums, a workgroup a head. Workgroups behind those of bwd_sum_splits may do
// it, too. The rows' parts are added with batch and rows ascending within an invocation, then over
// invocations in order.

void store_sum(uvec2 to, int index, float own) {
  const int tid = int(gl_LocalInvocationIndex);
  barrier(); // the readers of the previous sum are done
  partial[tid] = own;
  barrier();
  if (tid != 0) return;
  for (int n = 1; n < WG; n++) own += partial[n];
  store_float(F32, word_address(to, index), own);
}

// index: of the head, over groups of batch entries. Slopes and sinks may have unlike numbers of
// groups; an empty batch has one.
void sum_head(int index) {
  const int group = index / block.heads_q, head = index % block.heads_q;
  const int first_slope = group * block.slope_entries, first_sink = group * block.sink_entries;
  const bool has_slope = group == 0 || first_slope < block.batch,
             has_sink = group == 0 || first_sink < block.batch;
  float tau = 0, slope = 0, sink = 0, by = 0;
  if (GRAD_SINK != 0 && block.seq_q > 0 && block.batch > 0 && has_sink)
    by = load_float(F32, word_address(push.sink, index));
  for (int b = 0; b < block.batch; b++) {
    const int row = b * block.heads_q + head;
    for (int i = int(gl_LocalInvocationIndex); i < block.seq_q; i += WG) {
      if (GRAD_TAU != 0 && group == 0)
        tau += load_float(F32, stat_address(push.tau_rows, row, block.seq_q, i));
      if (GRAD_SLOPE != 0 && b >= first_slope && b < first_slope + block.slope_entries)
        slope -= load_float(F32, stat_address(push.slope_rows, row, block.seq_q, i));
      if (GRAD_SINK != 0 && b >= first_sink && b < first_sink + block.sink_entries) {
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
  if (GRAD_TAU != 0 && group == 0) store_sum(push.d_tau, index, tau);
  if (GRAD_SLOPE != 0 && has_slope) store_sum(push.d_slope, index, slope);
  if (GRAD_SINK != 0 && has_sink) store_sum(push.d_sink, index, sink);
}
