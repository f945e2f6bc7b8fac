// SPDX-License-Identifier: MIT OR Apache-2.0
// reduce_table: sums the gradients of pairs by the entry of the table that they read. Twin of
// shaders/scalar/reduce_table.comp. All sums have a fixed order, however many pairs read one entry,
// and there is no atomic operation. Of a small table threads own entries, several of them an entry,
// each with its share of the pairs. Of a larger one each warp has a table of its own: lanes that
// read the same entry find each other, and the first of them adds their gradients in order.
#include "../kernels.h"
#include "../parts/table.cuh"

namespace tandem {
namespace cuda {

namespace {
// Adds each lane's value to the sum of its entry, by a whole warp. at: `entries` or more: to none.
TANDEM_DEVICE void add_alike(float* sums, uint at, uint entries, float value) {
  const int lane = int(threadIdx.x) % 32;
  const uint alike = __match_any_sync(~0u, at);
  const bool adds = __ffs(int(alike)) - 1 == lane;
  uint rest = adds ? alike & (alike - 1) : 0;  // of the lanes behind the first one
  float sum = value;
  while (__any_sync(~0u, rest != 0)) {
    const float other = __shfl_sync(~0u, value, rest ? __ffs(int(rest)) - 1 : lane);
    if (rest) sum += other;
    rest &= rest - 1;
  }
  if (adds && at < entries) sums[at] += sum;
  __syncwarp();
}
}  // namespace

__global__ void __launch_bounds__(kLineGroup)
    reduce_table(const __grid_constant__ ReduceTableFull params) {
  constexpr int kPairs = TANDEM_TABLE_PAIRS, kEntries = TANDEM_TABLE_ENTRIES;
  TANDEM_SHARED_ARRAY(uint, staged_index, kPairs);
  TANDEM_SHARED_ARRAY(float, staged, kPairs);
  constexpr int kWarps = kLineGroup / 32;
  TANDEM_SHARED_ARRAY(float, sums, kWarps* kEntries);
  const ReduceTableBlock& u = params.block;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index >= u.total) return;
  const int thread = int(threadIdx.x), first_entry = int(index % u.tiles) * kEntries,
            head = int(index / u.tiles % u.heads), split = int(index / u.tiles / u.heads),
            entries = u.size - first_entry < kEntries ? u.size - first_entry : kEntries;
  const int64_t pairs = int64_t(u.seq_q) * u.seq_kv;
  const int begin = int(int64_t(u.members) * split / u.splits),
            end = int(int64_t(u.members) * (split + 1) / u.splits);
  // Threads with a sum in a register: owner + owners x share.
  int owners = kLineGroup;
  while (owners / 2 >= entries) owners /= 2;
  const int owner = thread % owners, share = thread / owners, shares = kLineGroup / owners;
  const bool few = entries <= kLineGroup;
  float sum = 0.f;
  for (int n = thread; n < kWarps * kEntries; n += kLineGroup) sums[n] = 0.f;
  float* const own = sums + thread / 32 * kEntries;
  for (int chunk = begin; chunk < end; ++chunk) {
    const int64_t entry = chunk / u.chunks, first = int64_t(chunk % u.chunks) * kPairs;
    const float* from = reinterpret_cast<const float*>(params.push.d_table_bias) +
                        (entry * u.heads + head) * pairs + first;
    __syncthreads();
#pragma unroll
    for (int n = thread; n < kPairs; n += kLineGroup) {
      const bool exists = first + n < pairs;
      const uint at = exists ? load_index(params.push.bias_index, params.spec.INDEX,
                                          entry * pairs + first + n) -
                                   uint(first_entry)
                             : ~0u;
      const float value = exists ? __ldg(from + n) : 0.f;
      if (few)
        staged_index[n] = at, staged[n] = value;
      else
        add_alike(own, at, uint(entries), value);
    }
    __syncthreads();
    if (!few) continue;
#pragma unroll 8
    for (int n = share; n < kPairs; n += shares)
      if (staged_index[n] == uint(owner)) sum += staged[n];
  }
  if (few) {
    __syncthreads();
    sums[thread] = sum;
  }
  __syncthreads();
  float* to = reinterpret_cast<float*>(params.push.table_sums) +
              (int64_t(split) * u.heads + head) * u.size + first_entry;
  for (int n = thread; n < entries; n += kLineGroup) {
    float all = sums[n];
    for (int m = 1; few && m < shares; ++m) all += sums[m * owners + n];
    for (int m = 1; !few && m < kWarps; ++m) all += sums[m * kEntries + n];
    to[n] = all;
  }
}

Kernel<ReduceTableFull> reduce_table_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return reduce_table;
}

}  // namespace cuda
}  // namespace tandem
