// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles of CUDA's bwd_dot_fast. The planner and the kernel include this.
#ifndef TANDEM_SRC_PLAN_DOT_TILES_H
#define TANDEM_SRC_PLAN_DOT_TILES_H

namespace tandem {

constexpr int kFastDot = 128, kFastDotRows = 4;  // threads of a workgroup, rows of a thread
constexpr int bwd_dot_lanes(int head_dim_v) {
  return head_dim_v <= 64 ? 8 : head_dim_v <= 128 ? 16 : 32;
}
constexpr int bwd_dot_rows(int head_dim_v) {
  return kFastDot / bwd_dot_lanes(head_dim_v) * kFastDotRows;
}

}  // namespace tandem
#endif
