// SPDX-License-Identifier: MIT OR Apache-2.0
// mask_map: the mask map of spans (src/problem/mask_map.h). Twin of shaders/scalar/mask_map.comp. A
// workgroup takes 32 blocks of keys of a head. Four threads find the bounds of a block, 16 keys
// each; then a thread writes a word of a plane, and the next one.
#include "../kernels.h"
#include "../parts/mask.cuh"
#include "problem/mask_map.h"

namespace tandem {
namespace cuda {

namespace {
constexpr int kBlocks = TANDEM_MAP_GROUP, kSlices = kLineGroup / kBlocks,
              kKeys = TANDEM_MAP_BLOCK / kSlices;
static_assert(kKeys * kLineGroup == kBlocks * TANDEM_MAP_BLOCK,
              "each thread has keys of one block");
}  // namespace

__global__ void __launch_bounds__(kLineGroup) mask_map(const __grid_constant__ MaskMapFull params) {
  TANDEM_SHARED_ARRAY(TandemSpanBounds, bounds, 2 * kLineGroup);
  const MaskMapBlock& u = params.block;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index >= u.total) return;
  const uint head = index / u.tiles;
  const int thread = int(threadIdx.x), word = int(index % u.tiles), block0 = word * kBlocks;
  const int* spans =
      reinterpret_cast<const int*>(params.push.spans) + int64_t(head) * u.seq_kv * 2 * u.spans;
  for (int n = 0; n < u.spans; ++n) {
    TandemSpanBounds own = tandem_no_spans();
    for (int m = 0; m < kKeys; ++m) {
      const int64_t j = int64_t(block0) * TANDEM_MAP_BLOCK + thread * kKeys + m;
      if (j >= u.seq_kv) break;
      const int2 span = load_span(spans + 2 * (j * u.spans + n));
      own = tandem_add_span(own, span.x, span.y);
    }
    bounds[n * kLineGroup + thread] = own;
  }
  __syncthreads();
  if (thread < kBlocks)
    for (int n = 0; n < u.spans; ++n) {
      TandemSpanBounds all = bounds[n * kLineGroup + thread * kSlices];
      for (int m = 1; m < kSlices; ++m)
        all = tandem_join_spans(all, bounds[n * kLineGroup + thread * kSlices + m]);
      __syncwarp();  // its first slice is another thread's
      bounds[n * kLineGroup + thread] = all;
      __syncwarp();
    }
  __syncthreads();

  const int q_blocks = tandem_map_blocks(u.seq_q), kv_blocks = tandem_map_blocks(u.seq_kv),
            q_words = tandem_map_words(u.seq_q), kv_words = tandem_map_words(u.seq_kv),
            blocks = tandem_min(kBlocks, kv_blocks - block0);
  uint2* rows =
      reinterpret_cast<uint2*>(params.push.mask_map) + head * tandem_map_size(q_blocks, kv_blocks);
  uint2* columns = rows + tandem_map_plane(q_blocks, kv_blocks);
  // Whether block n of the keys shows some, and all, of the rows of block q, as a bit of two words.
  const auto put = [&](uint2* to, int n, int q, int bit) {
    const int row0 = q * TANDEM_MAP_BLOCK, end = tandem_min(row0 + TANDEM_MAP_BLOCK, u.seq_q);
    for (int m = 0; m < u.spans; ++m) {
      const TandemSpanBounds x = bounds[m * kLineGroup + n];
      to->x |= uint(tandem_some_spanned(x, row0, end)) << bit;
      to->y |= uint(tandem_all_spanned(x, row0, end)) << bit;
    }
  };
  for (int q = thread; q < q_blocks; q += kLineGroup) {
    uint2 bits = make_uint2(0, 0);
    for (int n = 0; n < blocks; ++n) put(&bits, n, q, n);
    rows[int64_t(q) * kv_words + word] = bits;
  }
  for (int m = thread; m < blocks * q_words; m += kLineGroup) {
    const int n = m / q_words, first = m % q_words * 32;
    uint2 bits = make_uint2(0, 0);
    for (int q = first; q < tandem_min(first + 32, q_blocks); ++q) put(&bits, n, q, q - first);
    columns[int64_t(block0 + n) * q_words + m % q_words] = bits;
  }
}

Kernel<MaskMapFull> mask_map_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return mask_map;
}

}  // namespace cuda
}  // namespace tandem
