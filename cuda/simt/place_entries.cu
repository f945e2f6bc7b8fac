// SPDX-License-Identifier: MIT OR Apache-2.0
// place_entries: where the batch entries of gapped tensors lie. Twin of
// shaders/scalar/place_entries.comp.
#include "../kernels.h"
#include "../parts/extra.cuh"

namespace tandem {
namespace cuda {

namespace {

TANDEM_DEVICE void place(int b, int batch, uint64_t offsets_at, uint64_t lengths_at, int total,
                         int longest, bool ranks, uint64_t places_at) {
  const int* offsets = reinterpret_cast<const int*>(offsets_at);
  const int own = __ldg(offsets + b);
  const TandemSequence s =
      tandem_gapped_rows(own, __ldg(reinterpret_cast<const int*>(lengths_at) + b), total, longest);
  int rank = 0;
  for (int n = 0; ranks && n < batch; ++n) {
    const int other = __ldg(offsets + n);
    rank += other < own || (other == own && n < b);
  }
  int* to = reinterpret_cast<int*>(places_at) + int64_t(b) * TANDEM_PLACE_NUMBERS;
  to[0] = s.first, to[1] = s.first + s.rows, to[2] = rank;
}

}  // namespace

__global__ void __launch_bounds__(kLineGroup)
    place_entries(const __grid_constant__ PlaceEntriesFull params) {
  const PlaceEntriesBlock& u = params.block;
  const PlaceEntriesPush& push = params.push;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  const int b = int(index) * kLineGroup + int(threadIdx.x);
  if (index >= u.total || b >= u.batch) return;
  if (push.places_q)
    place(b, u.batch, push.offsets_q, push.lengths_q, u.total_q, u.seq_q, u.ranks != 0,
          push.places_q);
  if (push.places_kv)
    place(b, u.batch, push.offsets_kv, push.lengths_kv, u.total_kv, u.seq_kv, false,
          push.places_kv);
}

Kernel<PlaceEntriesFull> place_entries_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return place_entries;
}

}  // namespace cuda
}  // namespace tandem
