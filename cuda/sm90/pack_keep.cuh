// SPDX-License-Identifier: MIT OR Apache-2.0
// pack_keep: the bytes of keep as bits, and which blocks of 64 rows and 64 keys it hides
// (src/kernels/abi/pack_keep.inc). All heads and kernels that share a head of keep then read an
// eighth of its bytes, and skip blocks without looking at them. It is bound by memory. Beside a
// dense bias it takes spans, too: kernels with tiles of a bias have no room to make bits of them.
#ifndef TANDEM_CUDA_SM90_PACK_KEEP_CUH
#define TANDEM_CUDA_SM90_PACK_KEEP_CUH
#include "../parts/mask.cuh"
#include "mask_bytes.cuh"
#include "params.h"
#include "ptx/shared_memory.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {
namespace {

constexpr int kKeysOfLane = 16, kBlocksOfGroup = TANDEM_KEEP_GROUP;
static_assert(32 * kKeysOfLane == kBlocksOfGroup * TANDEM_MAP_BLOCK, "a warp has all keys");

// Of the 16 rows from row0 on, those that see a key, as bits. at: the key's `spans` intervals.
TANDEM_DEVICE uint rows_of_key(const int* at, int spans, int row0) {
  uint rows = 0;
#pragma unroll 1
  for (int n = 0; n < spans; ++n) {
    const int2 span = load_span(at + 2 * n);
    // Clamped first: the difference of any two numbers may leave 32 bits.
    const int begin = min(max(span.x, row0) - row0, 16), end = min(max(span.y, row0) - row0, 16);
    if (begin < end) rows |= ((1u << end) - 1) & ~((1u << begin) - 1);
  }
  return rows;
}

// A lane has 16 keys of each of a warp's 16 rows.
__global__ void __launch_bounds__(kLineGroup)
    pack_keep(const __grid_constant__ PackKeepParams params) {
  TANDEM_SHARED_ARRAY(uint, shown, 4 * kBlocksOfGroup);  // of a warp and a block: a byte's bits
  const PackKeepBlock& u = params.block;
  const uint index = blockIdx.y * gridDim.x + blockIdx.x;
  if (index >= u.total) return;
  const uint head = index / u.tiles, tile = index % u.tiles;
  const int q_blocks = tandem_map_blocks(u.seq_q), kv_blocks = tandem_map_blocks(u.seq_kv),
            across = (kv_blocks + kBlocksOfGroup - 1) / kBlocksOfGroup,
            pitch = tandem_packed_pitch(kv_blocks);
  const int q_block = int(tile) / across, kv_block = int(tile) % across * kBlocksOfGroup;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int row0 = q_block * TANDEM_MAP_BLOCK + warp * 16,
            key0 = kv_block * TANDEM_MAP_BLOCK + lane * kKeysOfLane, keys = u.seq_kv - key0;
  const Strides& s = u.keep;
  const int entry = int(head / uint(u.heads)), of_entry = int(head % uint(u.heads));
  const char* from = reinterpret_cast<const char*>(params.push.keep) +
                     int64_t(entry / u.keep_entries) * s.b +
                     int64_t(of_entry / u.keep_group) * s.h + key0 * s.d;
  uint rows[kKeysOfLane];  // of each key: the warp's rows that see it
#pragma unroll
  for (int n = 0; n < kKeysOfLane; ++n) rows[n] = 0xffffu;
  if (u.spans > 0) {
    const int64_t of = int64_t(entry / u.spans_entries) * u.spans_heads + of_entry / u.spans_group;
    const int* at = reinterpret_cast<const int*>(params.push.spans) +
                    (of * u.seq_kv + key0) * (2 * int64_t(u.spans));
#pragma unroll
    for (int n = 0; n < kKeysOfLane; ++n)
      rows[n] = n < keys ? rows_of_key(at + 2 * n * u.spans, u.spans, row0) : 0;
  }
  const int64_t words = tandem_packed_bits(q_blocks, kv_blocks);
  uint* to = reinterpret_cast<uint*>(params.push.packed_keep) +
             head * tandem_packed_size(q_blocks, kv_blocks);
  const bool wide = s.d == 1 && keys >= kKeysOfLane && s.s % 16 == 0 &&
                    reinterpret_cast<uint64_t>(from) % 16 == 0;
  const uint existing = keys >= kKeysOfLane ? 0xffffu : (1u << max(keys, 0)) - 1;
  uint some = 0, hidden = 0;
#pragma unroll 4
  for (int r = 0; r < 16; ++r) {
    const int row = row0 + r;
    uint bits = 0;
    if (row < u.seq_q && keys > 0) {
      const char* at = from + row * s.s;
      if (!u.has_keep) {
        bits = existing;
      } else if (wide) {
        const uint4 bytes = __ldg(reinterpret_cast<const uint4*>(at));
        bits = top_bits(bytes.x) >> 28 | top_bits(bytes.y) >> 24 | top_bits(bytes.z) >> 20 |
               top_bits(bytes.w) >> 16;
      } else if (s.d == 1) {
        bits = kept_bits<kKeysOfLane>(at, key0, keys);
      } else {
        for (int n = 0; n < min(kKeysOfLane, keys); ++n)
          bits |= uint(__ldg(at + n * s.d) != 0) << n;
      }
#pragma unroll
      for (int n = 0; n < kKeysOfLane; ++n) bits &= ~((~rows[n] >> r & 1) << n);
      some |= bits, hidden |= ~bits & existing;
    }
    const uint other = __shfl_xor_sync(~0u, bits, 1);
    if (lane % 2 == 0 && key0 / 32 < pitch)
      to[int64_t(row) * pitch + key0 / 32] = bits | other << 16;
  }
  // Four lanes have the keys of a block, four warps its rows.
  uint own = uint(some != 0) | uint(hidden != 0) << 1;
  own |= __shfl_xor_sync(~0u, own, 1);
  own |= __shfl_xor_sync(~0u, own, 2);
  if (lane % 4 == 0) shown[warp * kBlocksOfGroup + lane / 4] = own;
  __syncthreads();
  if (warp > 0) return;
  const bool exists = lane < kBlocksOfGroup && kv_block + lane < kv_blocks;
  uint all = 0;
  for (int n = 0; n < 4 && exists; ++n) all |= shown[n * kBlocksOfGroup + lane];
  const uint blocks = __ballot_sync(~0u, all & 1);
  if (exists)
    reinterpret_cast<unsigned char*>(to + words)[int64_t(q_block) * kv_blocks + kv_block + lane] =
        static_cast<unsigned char>(all ^ 2u);
  if (lane > 0) return;
  unsigned char* const bits =
      reinterpret_cast<unsigned char*>(to + tandem_packed_some(q_blocks, kv_blocks) +
                                       int64_t(q_block) * tandem_some_pitch(kv_blocks));
  static_assert(kBlocksOfGroup == 8, "a byte");
  bits[kv_block / 8] = static_cast<unsigned char>(blocks);
  if (kv_block + 8 >= kv_blocks)  // the rest of the word
    for (int n = across; n < 4 * tandem_some_pitch(kv_blocks); ++n) bits[n] = 0;
}

template <typename Row, typename Params, typename T, int TILE>
Kernel<Params> instance() {
  return pack_keep;
}

}  // namespace
}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
