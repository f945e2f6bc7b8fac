// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_head: d_tau, d_slope and d_sink of one head from the rows' parts, in a fixed order. Twin of
// shaders/bwd_head.comp.
#include "kernels.h"
#include "simt.cuh"

namespace tandem {
namespace cuda {

// The sum of part(batch, row) over all rows of the head, in invocation 0: each takes every kLineGroup-th row,
// batch and rows ascending, and their sums are added in order.
template <typename Part>
TANDEM_DEVICE float sum_rows(const BwdHeadBlock& u, int rows, const Part& part) {
  float* partial = reinterpret_cast<float*>(shared_memory());
  float sum = 0.f;
  for (int b = 0; b < u.batch; ++b)
    for (int row = int(threadIdx.x); row < rows; row += kLineGroup) sum += part(b, row);
  __syncthreads();  // the readers of the sum before are done
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int n = 1; n < kLineGroup; ++n) sum += partial[n];
  return sum;
}

__global__ void __launch_bounds__(kLineGroup) bwd_head(const __grid_constant__ BwdHeadFull params) {
  const BwdHeadBlock& u = params.block;
  const BwdHeadPush& push = params.push;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index >= u.total) return;
  const int head = int(index);
  const auto of_rows = [&](uint64_t address, int batch, int row, int rows) {
    return __ldg(reinterpret_cast<const float*>(address) +
                 (int64_t(batch) * u.heads_q + head) * rows + row);
  };
  const auto at = [&](uint64_t address, int batch, int row) {
    return of_rows(address, batch, row, u.seq_q);
  };
  const auto put = [&](uint64_t address, float x) {
    if (threadIdx.x == 0) reinterpret_cast<float*>(address)[head] = x;
  };
  if (params.spec.GRAD_TAU)
    put(push.d_tau,
        sum_rows(u, u.seq_q, [&](int b, int row) { return at(push.tau_rows, b, row); }));
  if (params.spec.GRAD_SLOPE)
    put(push.d_slope, -sum_rows(u, u.slopes, [&](int b, int row) {
          return of_rows(push.slope_rows, b, row, u.slopes);
        }));
  if (params.spec.GRAD_SINK)
    put(push.d_sink, -sum_rows(u, u.seq_q, [&](int b, int row) {
          const float sink = __ldg(reinterpret_cast<const float*>(push.sink) + head);
          const float lse = at(push.lse, b, row);
          return lse == -INFINITY ? 0.f : expf(sink - lse) * at(push.delta, b, row);
        }));
}

Kernel<BwdHeadFull> bwd_head_full_kernel(const Launch&, bool) { return bwd_head; }

}  // namespace cuda
}  // namespace tandem
