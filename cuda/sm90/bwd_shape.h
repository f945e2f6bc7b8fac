// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles of bwd_dkv_dq and what they need of shared memory and of the workspace; for the host and the kernel.
#ifndef TANDEM_CUDA_SM90_BWD_SHAPE_H
#define TANDEM_CUDA_SM90_BWD_SHAPE_H
#include <cstdint>

namespace tandem {
namespace cuda {
namespace sm90 {

constexpr int kBwdThreads = 384;    // a warpgroup of helpers and two that multiply
constexpr int kMaxShared = 232448;  // of a workgroup of compute capability 9.0

// The row serves head sizes up to d. q and d_o come in boxes of br rows, k and v of bc.
struct BwdShape {
  int d, br, bc;
  int q_stages, do_stages, ds_stages;
  bool wide;  // bwd_dkv_dq_wide.cu: P passes through shared memory, too, and d_q goes straight to the workspace
};
constexpr BwdShape kBwdShapes[] = {
    {64, 128, 128, 2, 2, 2, false},
    {96, 64, 128, 2, 2, 2, false},
    {128, 64, 128, 2, 2, 2, false},
    {192, 128, 64, 2, 1, 1, true},
    {256, 128, 64, 1, 1, 1, true},
};
constexpr int kBwdShapeCount = int(sizeof(kBwdShapes) / sizeof(kBwdShapes[0]));

// The row for both head sizes, -1 if there is none.
constexpr int bwd_shape(int head_dim, int head_dim_v) {
  const int d = head_dim > head_dim_v ? head_dim : head_dim_v;
  for (int row = 0; row < kBwdShapeCount; ++row)
    if (d <= kBwdShapes[row].d) return row;
  return -1;
}

constexpr int bwd_panels(const BwdShape& s) { return (s.d + 63) / 64; }
// Where things lie in shared memory, in bytes from its beginning, a multiple of 1,024.
constexpr int bwd_k_bytes(const BwdShape& s) { return bwd_panels(s) * s.bc * 128; }
constexpr int bwd_q_bytes(const BwdShape& s) { return bwd_panels(s) * s.br * 128; }
constexpr int bwd_ds_bytes(const BwdShape& s) { return s.br * s.bc * 2; }
constexpr int bwd_at_v(const BwdShape& s) { return bwd_k_bytes(s); }
constexpr int bwd_at_q(const BwdShape& s) { return 2 * bwd_k_bytes(s); }
constexpr int bwd_at_do(const BwdShape& s) { return bwd_at_q(s) + s.q_stages * bwd_q_bytes(s); }
constexpr int bwd_at_ds(const BwdShape& s) { return bwd_at_do(s) + s.do_stages * bwd_q_bytes(s); }
constexpr int bwd_at_dq(const BwdShape& s) {
  return bwd_at_ds(s) + (s.ds_stages + (s.wide ? 1 : 0)) * bwd_ds_bytes(s);
}
constexpr int bwd_at_stats(const BwdShape& s) { return bwd_at_dq(s) + (s.wide ? 0 : 2 * 16384); }
constexpr int bwd_at_barriers(const BwdShape& s) { 
  return bwd_at_stats(s) + (s.q_stages + s.do_stages) * s.br * 4;
}
constexpr int bwd_shared_bytes(const BwdShape& s) {
  return bwd_at_barriers(s) + (1 + 2 * (s.q_stages + s.do_stages)) * 8;
}
constexpr bool bwd_shapes_fit() {
  for (const BwdShape& s : kBwdShapes)
    if (bwd_shared_bytes(s) > kMaxShared) return false;
  return true;
}
static_assert(bwd_shapes_fit(), "a row needs more shared memory than there is");

// The sums of d_q: per head of the batch, blocks of 64 rows x 64 features, panels innermost; in a block the elements
// lie as the accumulators of a product do (wgmma.cuh): 128 threads' first float4, their second, and so on.
constexpr int kSumsBlock = 64 * 64;
constexpr int64_t bwd_query_tiles(const BwdShape& s, int64_t seq_q) { return (seq_q + s.br - 1) / s.br; }
constexpr int64_t bwd_row_blocks(const BwdShape& s, int64_t seq_q) {
  return bwd_query_tiles(s, seq_q) * (s.br / 64);
}
constexpr int64_t bwd_sums_bytes(const BwdShape& s, int64_t batch_heads, int64_t seq_q) {
  return batch_heads * bwd_row_blocks(s, seq_q) * bwd_panels(s) * kSumsBlock * 4;
}
// A number per block of 64 rows: how many tiles of keys have added theirs.
constexpr int64_t bwd_turns_bytes(const BwdShape& s, int64_t batch_heads, int64_t seq_q) {
  return batch_heads * bwd_row_blocks(s, seq_q) * 4;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
