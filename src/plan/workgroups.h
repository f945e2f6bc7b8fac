// SPDX-License-Identifier: MIT OR Apache-2.0
// Workgroups of the kernels without tiles.
#ifndef TANDEM_SRC_PLAN_WORKGROUPS_H
#define TANDEM_SRC_PLAN_WORKGROUPS_H
#include <cstdint>

namespace tandem {

// Workgroups have 128 invocations, which every device allows: kLineGroup in bwd_sum_splits,
// bwd_head_sums and pack_bias; in bwd_dot kDotLanes invocations for each of kDotRows rows.
constexpr int kLineGroup = 128;
constexpr int kDotRows = 8, kDotLanes = 16;

// Workgroup of fwd_combine, of kCombineGroup invocations: lanes, of four features each, times
// slices, of splits, times rows.
constexpr int kCombineGroup = 128;
struct CombineShape {
  int lanes = 1, slices = 1;
  int shares = 1;  // workgroups that share a row
  CombineShape(uint32_t splits, int64_t head_dim_v) {
    while (lanes * 4 < head_dim_v && lanes < kCombineGroup / 2) lanes *= 2;
    shares = int((head_dim_v + 4 * lanes - 1) / (4 * lanes));
    // As many slices as have two splits each.
    while (slices * lanes < kCombineGroup && uint32_t(slices) * 4 <= splits) slices *= 2;
  }
  int rows() const { return kCombineGroup / (lanes * slices); }
};
// Invocations of merge and bwd_merge for a row, of kLineGroup: at most a warp of CUDA, of four
// features each, or up to kMergeQuads times four where a row has more than 128.
constexpr int kMergeQuads = 5;
// Quads of features of the widest head: bwd_origin holds a row of q and one of d_o.
constexpr int kHeadQuads = 144;
constexpr int merge_lanes(int64_t head_dim_v) {
  int lanes = 1;
  while (lanes < 32 && lanes * 4 < head_dim_v) lanes *= 2;
  return lanes;
}
constexpr int merge_rows(int64_t head_dim_v) { return kLineGroup / merge_lanes(head_dim_v); }
// Floats of a row of o's parts: a whole number of chunks of every kernel that writes them.
constexpr int64_t part_pitch(int64_t head_dim_v) { return (head_dim_v + 7) / 8 * 8; }

// Where bwd_dkv_dq sums d_bias in slices of the batch: the pitch of a row of a slice's sums, whole
// chunks of eight floats.
constexpr int64_t bias_parts_pitch(int64_t seq_kv) { return (seq_kv + 7) / 8 * 8; }

// Largest number of entries of d_dist_bias a head that bwd_dkv_dist forms. Each tile of keys
// leaves as many in the workspace.
constexpr int kFusedWindow = 1024;

}  // namespace tandem
#endif
