// SPDX-License-Identifier: MIT OR Apache-2.0
// How the backward with a dense bias on Hopper shares out tiles of keys where it sums d_bias: clusters of a workgroup for each entry
// of the batch, and, on multiprocessors that these leave over, clusters of two, which take the batch in passes. Host, kernels
// and tests include it.
#ifndef TANDEM_SRC_BWD_SHARES_H
#define TANDEM_SRC_BWD_SHARES_H
#include <cstdint>

#include "hopper_tiles.h"

#ifdef __CUDACC__
#define TANDEM_SHARES __host__ __device__ constexpr
#else
#define TANDEM_SHARES constexpr
#endif

namespace tandem {

// Clusters that sum d_bias come in rounds of as many as the device has at a time. Of the last round, if it is not full, each
// tile of keys is shared by several clusters, which have parts of its queries and add up d_k and d_v by way of the workspace.
struct BwdTail {
  int64_t whole;  // clusters with all queries of a tile of keys
  int parts;
};
// What a workgroup leaves there.
constexpr int64_t bwd_tail_floats(const BwdShape& s) { return 2 * s.bc * bwd_panels(s) * 64; }
// How many workgroups there is room for. groups: those with all queries of a tile of keys.
constexpr int64_t bwd_tail_room(int64_t groups) { return groups < 60 ? 4 * groups : 240; }
constexpr int64_t kBwdEnds = 2;  // to begin and to end takes as long as about two tiles of queries
// walks: tiles of keys of all heads; slots: clusters at a time; size: workgroups of one; tiles: of queries.
constexpr BwdTail bwd_tail(int64_t walks, int64_t slots, int64_t size, int64_t tiles) {
  BwdTail best{walks, 1};
  if (slots <= 0 || walks % slots == 0) return best;
  const int64_t rest = walks % slots;
  int64_t least = tiles + kBwdEnds;  // in tiles
  for (int parts = 2; parts <= 16 && parts <= tiles; ++parts) {
    const int64_t rounds = (rest * parts + slots - 1) / slots;
    const int64_t takes = rounds * ((tiles + parts - 1) / parts + kBwdEnds);
    if (rest * parts * size <= bwd_tail_room(walks * size) && takes < least)
      least = takes, best = {walks - rest, parts};
  }
  return best;
}
// Multiprocessors that clusters of the whole batch leave over get clusters of two, which take the batch in passes and so long for a
// tile of keys: sums of d_bias then go through the workspace. At most kMaxPairs, which need this much of it each.
constexpr int kMaxPairs = 8;
constexpr int64_t bwd_pass_floats(const BwdShape& s, int64_t group, int64_t seq_q) {
  return group * ((seq_q + s.br - 1) / s.br) * s.br * s.bc;
}

// Who fetches which tiles, numbered from 0 on, parts of cut ones last (BwdTail). Clusters of the whole batch have the first `slots`.
// The whole ones behind these come in blocks of `span`, of each of which the first `pairs` are reserved for clusters of two, so that
// these work on the same heads as the others do then; of the last block, to which the parts belong, what is left of
// `reserved`. Who finds nothing else takes reserved ones: all are done, whichever clusters are started.
struct BwdShares {
  int slots, items;  // items: those that are not reserved, parts and all
  int pairs, reserved, blocks, span;
};
// The number of the nth reserved one, and of the nth of the others, from `slots` on.
TANDEM_SHARES int bwd_reserved_item(const BwdShares& x, int n) {
  return x.slots + n / x.pairs * x.span + n % x.pairs;
}
TANDEM_SHARES int bwd_other_item(const BwdShares& x, int n) {
  const int between = x.span - x.pairs, block = (n - x.slots) / between;
  return n + (block < x.blocks - 1 ? (block + 1) * x.pairs : x.reserved);
}

// What a cluster of two takes for a tile, in tenths of what one of the whole batch takes: later passes read what earlier ones have
// summed (measured; docs/hopper-measured.md).
constexpr int64_t bwd_pair_tenths(const BwdShape& s, int64_t passes) {
  return s.d <= 64 ? 13 + 22 * (passes - 1) : 11 + 16 * (passes - 1);
}

struct BwdPlanned {
  BwdShares shares;
  BwdTail tail;  // whole: with those that are reserved
};
// walks: tiles of keys of all heads; slots, size: clusters of the whole batch at a time (0: nobody knows), and workgroups of one;
// tiles: of queries; pairs: clusters of two, which take so many tenths for a tile. Such that all are done soonest, and of
// those ways the one with the fewest reserved: pairs that end early leave multiprocessors to bwd_dq_cast.
constexpr BwdPlanned bwd_planned(int64_t walks, int64_t slots, int64_t size, int64_t tiles,
                                 int64_t pairs, int64_t tenths) {
  const auto rounds = [&](int64_t many) { return slots == 0 ? 0 : (many + slots - 1) / slots; };
  BwdPlanned best{};
  int64_t least = 0;  // as all times here, in hundredths of what a cluster of the whole batch takes
  const int64_t end = pairs == 0 ? 0 : walks - slots;
  for (int64_t reserved = 0; reserved == 0 || reserved < end; ++reserved) {
    const int64_t blocks = reserved == 0 ? 0 : (reserved + pairs - 1) / pairs;
    const int64_t theirs = 10 * blocks * tenths;
    if (reserved > 0 && theirs >= least) break;
    const BwdTail tail = bwd_tail(walks - reserved, slots, size, tiles);
    const int64_t whole = tail.whole + reserved, parts = (walks - whole) * tail.parts;
    // Each block has others, too: bwd_other_item() counts blocks by them.
    const int64_t span = blocks == 0 ? 1 : (whole - slots) / blocks;
    if (reserved > 0 && span <= pairs) continue;
    const int64_t part = 100 * ((tiles + tail.parts - 1) / tail.parts + kBwdEnds);
    const int64_t others = 100 * rounds(tail.whole) + rounds(parts) * part / (tiles + kBwdEnds);
    const int64_t takes = theirs > others ? theirs : others;
    if (reserved > 0 && takes >= least) continue;
    least = takes;
    best = {{int(slots), int(tail.whole + parts), reserved == 0 ? 0 : int(pairs), int(reserved),
             int(blocks), int(span)},
            {whole, tail.parts}};
  }
  return best;
}

#undef TANDEM_SHARES
}  // namespace tandem
#endif
