// SPDX-License-Identifier: MIT OR Apache-2.0
// Parts of the tiles of keys of bwd_dkv_dq. Several workgroups may share a tile of keys: each takes
// a part of the Q loop, and they add up d_k and d_v through the workspace, in the order of the
// parts. The Q loop of a tile is a list of pairs (query head of the group, query tile), heads
// outermost, with trait::heads_inside tiles outermost; a part is a contiguous run of it. The host,
// the kernels and the tests include this.
#ifndef TANDEM_SRC_PLAN_SM90_BWD_PARTS_H
#define TANDEM_SRC_PLAN_SM90_BWD_PARTS_H
#include <cstdint>

#include "tiles.h"

#ifdef __CUDACC__
#define TANDEM_BWD_PARTS __host__ __device__ constexpr
#else
#define TANDEM_BWD_PARTS constexpr
#endif

namespace tandem {

// What a tile of keys adds to the count of its head that a programmatically launched bwd_dq_cast
// waits for. The tile may be split in up to as many parts, each of which adds its share.
constexpr int kWholeTile = 16;

// Most parts of a tile of keys.
constexpr int kMaxBwdParts = 16;
// Partial sums of d_k and d_v of a workgroup, in floats.
constexpr int64_t bwd_partial_floats(const BwdShape& s) { return 2 * s.bc * bwd_panels(s) * 64; }

// Number of parts of a tile of keys whose Q loop has `pairs` pairs. longest: pairs of a part at
// most. A tile that no query sees has one part, which stores zeros.
TANDEM_BWD_PARTS int bwd_part_count(int pairs, int longest) {
  return pairs <= longest ? 1 : (pairs + longest - 1) / longest;
}
// The first pair of part n of `parts`; of part number `parts`, the end. The first parts have a pair
// more if they do not come out even.
TANDEM_BWD_PARTS int bwd_part_begin(int pairs, int parts, int n) {
  const int more = pairs % parts;
  return pairs / parts * n + (n < more ? n : more);
}

#undef TANDEM_BWD_PARTS
}  // namespace tandem
#endif
