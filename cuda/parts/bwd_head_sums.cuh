// SPDX-License-Identifier: MIT OR Apache-2.0
// The work of bwd_head_sums, which workgroups behind those of another operation may do, too.
#ifndef TANDEM_CUDA_PARTS_BWD_HEAD_SUMS_CUH
#define TANDEM_CUDA_PARTS_BWD_HEAD_SUMS_CUH
#include "../kernels.h"
#include "problem/far_row.h"
#include "simt.cuh"

namespace tandem {
namespace cuda {

// The sum of part(batch, row) over all rows of a head of batch entries [begin, end), in
// invocation 0. Each of the first kLineGroup invocations takes every kLineGroup-th row, with batch
// and rows ascending, and their sums are added in order. partial: kLineGroup floats of shared
// memory.
template <typename Part>
TANDEM_DEVICE float sum_rows(int begin, int end, int rows, float* partial, const Part& part) {
  const int thread = int(threadIdx.x);
  float sum = 0.f;
  for (int b = begin; b < end; ++b)
    for (int row = thread; row < rows && thread < kLineGroup; row += kLineGroup)
      sum += part(b, row);
  __syncthreads();  // the readers of the sum before are done
  if (thread < kLineGroup) partial[thread] = sum;
  __syncthreads();
  if (thread == 0)
    for (int n = 1; n < kLineGroup; ++n) sum += partial[n];
  return sum;
}

// exp(sink - lse) delta of a row of [B, Hq, Sq]. For a far row it comes from origin and relative
// lse, which lie in front of delta.
TANDEM_DEVICE float sink_part(float sink, uint64_t lse_at, uint64_t delta_at, int64_t row) {
  const float lse = __ldg(reinterpret_cast<const float*>(lse_at) + row);
  const float* delta = reinterpret_cast<const float*>(delta_at);
  if (lse == -INFINITY) return 0.f;
  if (!tandem_is_far(lse)) return expf(sink - lse) * __ldg(delta + row);
  const float* kept = delta - 2 * (row + 1);
  return expf(fminf(sink - __ldg(kept), 0.f) - __ldg(kept + 1)) * __ldg(delta + row);
}

// Sums the gradients of a head, by a workgroup of kLineGroup invocations or more. index: of the
// head, over groups of batch entries.
TANDEM_DEVICE void sum_head(const BwdHeadSumsFull& params, int index, float* partial) {
  const BwdHeadSumsBlock& u = params.block;
  const int group = index / u.heads_q, head = index % u.heads_q;
  const BwdHeadSumsPush& push = params.push;
  const auto of_rows = [&](uint64_t address, int batch, int row, int rows) {
    return __ldg(reinterpret_cast<const float*>(address) +
                 (int64_t(batch) * u.heads_q + head) * rows + row);
  };
  const auto at = [&](uint64_t address, int batch, int row) {
    return of_rows(address, batch, row, u.seq_q);
  };
  const auto put = [&](uint64_t address, float x) {
    if (threadIdx.x == 0) reinterpret_cast<float*>(address)[index] = x;
  };
  // Slopes and sinks may have unlike numbers of groups; an empty batch has one.
  const auto has = [&](int entries) { return group == 0 || group * entries < u.batch; };
  if (params.spec.GRAD_TAU && group == 0)
    put(push.d_tau, sum_rows(0, u.batch, u.seq_q, partial,
                             [&](int b, int row) { return at(push.tau_rows, b, row); }));
  if (const int n = u.slope_entries; params.spec.GRAD_SLOPE && has(n))
    put(push.d_slope, -sum_rows(group * n, (group + 1) * n, u.slopes, partial, [&](int b, int row) {
          return of_rows(push.slope_rows, b, row, u.slopes);
        }));
  if (const int n = u.sink_entries; params.spec.GRAD_SINK && has(n))
    put(push.d_sink, -sum_rows(group * n, (group + 1) * n, u.seq_q, partial, [&](int b, int row) {
          const float sink = __ldg(reinterpret_cast<const float*>(push.sink) + index);
          return sink_part(sink, push.lse, push.delta,
                           (int64_t(b) * u.heads_q + head) * u.seq_q + row);
        }));
}

}  // namespace cuda
}  // namespace tandem
#endif
