// SPDX-License-Identifier: MIT OR Apache-2.0
// expand_table: the bias of each pair and head, from a table and the pairs' index. Twin of
// shaders/scalar/expand_table.comp.
#include "../kernels.h"
#include "../parts/table.cuh"

namespace tandem {
namespace cuda {

__global__ void __launch_bounds__(kLineGroup)
    expand_table(const __grid_constant__ ExpandTableFull params) {
  const ExpandTableBlock& u = params.block;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index >= u.total) return;
  const int64_t pairs = int64_t(u.seq_q) * u.seq_kv, entry = index / u.tiles,
                first = int64_t(index % u.tiles) * TANDEM_TABLE_PAIRS;
  const int count = int(pairs - first < TANDEM_TABLE_PAIRS ? pairs - first : TANDEM_TABLE_PAIRS);
  const float* table = reinterpret_cast<const float*>(params.push.bias_table);
  float* to = reinterpret_cast<float*>(params.push.table_bias) + entry * u.heads * pairs + first;
  constexpr int kEach = TANDEM_TABLE_PAIRS / kLineGroup;
  uint at[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int pair = n * kLineGroup + int(threadIdx.x);
    at[n] = pair < count ? load_index(params.push.bias_index, params.spec.INDEX,
                                      entry * pairs + first + pair)
                         : 0;
  }
  for (int h = 0; h < u.heads; ++h, table += u.size, to += pairs)
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int pair = n * kLineGroup + int(threadIdx.x);
      if (pair < count) to[pair] = at[n] < uint(u.size) ? __ldg(table + at[n]) : 0.f;
    }
}

Kernel<ExpandTableFull> expand_table_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return expand_table;
}

}  // namespace cuda
}  // namespace tandem
