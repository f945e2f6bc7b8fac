// SPDX-License-Identifier: MIT OR Apache-2.0
// expand_blocks: block lists as a keep mask (src/kernels/abi/expand_blocks.inc). Twin of
// shaders/scalar/expand_blocks.comp, which writes bytes alone. It is bound by what it writes.
#include "../kernels.h"
#include "../parts/mask.cuh"
#include "problem/mask_map.h"

namespace tandem {
namespace cuda {

namespace {
constexpr int kBlocks = TANDEM_LISTS_GROUP, kFinders = kLineGroup / kBlocks,
              kKeys = kBlocks * TANDEM_MAP_BLOCK;

// Four bits as bytes of 0 or 1.
TANDEM_DEVICE uint bytes_of(uint bits) { return (bits & 15u) * 0x00204081u & 0x01010101u; }
}  // namespace

__global__ void __launch_bounds__(kLineGroup)
    expand_blocks(const __grid_constant__ ExpandBlocksFull params) {
  TANDEM_SHARED_ARRAY(uint, entries, kLineGroup);
  const ExpandBlocksBlock& u = params.block;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index >= u.total) return;
  const int thread = int(threadIdx.x), across = (u.seq_kv + kKeys - 1) / kKeys;
  const int head = int(index / u.tiles), tile = int(index % u.tiles);
  const int row0 = tile / across * TANDEM_MAP_BLOCK, key0 = tile % across * kKeys;
  const int rows = (u.seq_q + u.block_q - 1) / u.block_q;  // of blocks
  const int64_t row_of_blocks = int64_t(head) * rows + row0 / u.block_q;

  // The last entry of the list that has a block of 64 keys, plus one; 0: none has.
  const int* list =
      reinterpret_cast<const int*>(params.push.blocks) + row_of_blocks * (2 + u.width);
  const int partial = tandem_min(tandem_max(__ldg(list), 0), u.bits ? u.bits : u.width),
            full = tandem_min(tandem_max(__ldg(list + 1), 0), u.width - partial);
  const int key = key0 + thread / kFinders * TANDEM_MAP_BLOCK, column = key / u.block_kv;
  uint entry = 0;
  if (key < u.seq_kv)
    for (int n = thread % kFinders; n < partial + full; n += kFinders)
      if (__ldg(list + 2 + n) == column) entry = uint(n) + 1;
  entries[thread] = entry;
  __syncthreads();
  entry = 0;
  if (thread < kBlocks)
    for (int n = 0; n < kFinders; ++n)
      entry = tandem_max(int(entry), int(entries[thread * kFinders + n]));
  __syncthreads();
  if (thread < kBlocks) entries[thread] = entry;
  __syncthreads();

  // The word of row i whose first key is j; a whole word, whether its keys exist or not.
  const auto word = [&](int i, int j) -> uint {
    const uint of = entries[(j - key0) / TANDEM_MAP_BLOCK];
    if (of == 0) return 0u;
    if (of > uint(partial) || u.bits == 0) return ~0u;
    const int64_t at = (row_of_blocks * u.bits + of - 1) * u.block_q + i % u.block_q;
    return __ldg(reinterpret_cast<const uint*>(params.push.block_bits) + at * (u.block_kv / 32) +
                 j % u.block_kv / 32);
  };
  constexpr int kWords = kKeys / 32;  // of a row; a thread has those of one column
  const int j = key0 + thread % kWords * 32;
  if (!u.packs) {
    for (int r = thread / kWords; r < TANDEM_MAP_BLOCK; r += kLineGroup / kWords) {
      const int i = row0 + r;
      if (i >= u.seq_q || j >= u.pitch) continue;
      const uint bits = word(i, j);
      uint4* to = reinterpret_cast<uint4*>(
          params.push.block_keep + uint64_t(head) * u.seq_q * u.pitch + uint64_t(i) * u.pitch + j);
      to[0] = make_uint4(bytes_of(bits), bytes_of(bits >> 4), bytes_of(bits >> 8),
                         bytes_of(bits >> 12));
      if (j + 16 < u.pitch)
        to[1] = make_uint4(bytes_of(bits >> 16), bytes_of(bits >> 20), bytes_of(bits >> 24),
                           bytes_of(bits >> 28));
    }
    return;
  }
  const int q_blocks = tandem_map_blocks(u.seq_q), kv_blocks = tandem_map_blocks(u.seq_kv),
            pitch = tandem_packed_pitch(kv_blocks), left = u.seq_kv - j;
  uint* to = reinterpret_cast<uint*>(params.push.packed_keep) +
             head * tandem_packed_size(q_blocks, kv_blocks);
  const uint existing = left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0u;
  uint shown = 0;  // bit 0: some pair; bit 1: not all
  for (int r = thread / kWords; r < TANDEM_MAP_BLOCK; r += kLineGroup / kWords) {
    const int i = row0 + r;
    const uint bits = i < u.seq_q ? word(i, j) & existing : 0u;
    if (i < u.seq_q) shown |= uint(bits != 0) | uint(bits != existing) << 1;
    if (j / 32 < pitch) to[int64_t(i) * pitch + j / 32] = bits;
  }
  __syncthreads();  // entries[] has been read
  entries[thread] = shown;
  __syncthreads();
  const int block = key0 / TANDEM_MAP_BLOCK + thread;
  if (thread >= 32) return;
  const bool exists = thread < kBlocks && block < kv_blocks;
  shown = 0;
  for (int n = 0; n < kLineGroup / kWords && exists; ++n)
    for (int w = 0; w < 2; ++w) shown |= entries[n * kWords + 2 * thread + w];
  const uint blocks = __ballot_sync(~0u, shown & 1);
  if (thread == 0) {
    static_assert(kBlocks == 16, "half a word");
    ushort* const half =
        reinterpret_cast<ushort*>(to + tandem_packed_some(q_blocks, kv_blocks) +
                                  int64_t(row0 / TANDEM_MAP_BLOCK) * tandem_some_pitch(kv_blocks)) +
        block / 16;
    half[0] = ushort(blocks);
    if (block + 16 >= kv_blocks && block % 32 == 0) half[1] = 0;  // the rest of the word
  }
  if (!exists) return;
  reinterpret_cast<unsigned char*>(
      to + tandem_packed_bits(q_blocks,
                              kv_blocks))[int64_t(row0 / TANDEM_MAP_BLOCK) * kv_blocks + block] =
      static_cast<unsigned char>(shown ^ 2u);
}

Kernel<ExpandBlocksFull> expand_blocks_full_kernel(tandem_dtype, const KernelChoice&, bool) {
  return expand_blocks;
}

}  // namespace cuda
}  // namespace tandem
