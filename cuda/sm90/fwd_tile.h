// SPDX-License-Identifier: MIT OR Apache-2.0
// The tiles of cuda/sm90/fwd.cu, for host and kernel.
#ifndef TANDEM_CUDA_SM90_FWD_TILE_H
#define TANDEM_CUDA_SM90_FWD_TILE_H

namespace tandem {
namespace cuda {
namespace sm90 {

// A workgroup: `groups` warpgroups of 64 query rows each, and one more, of which a warp copies. Boxes of the maps:
// q rows() rows, k and v bc rows.
struct FwdTile {
  const char* name;
  int d, dv;   // head sizes up to these; the maps fill up with zeros
  int groups;  // warpgroups that compute
  int bc;      // keys of a step
  int stages;  // steps of k and of v in shared memory
  bool
      turns;  // warpgroups take turns at the tensor cores, one computes weights while another multiplies
  constexpr int rows() const { return 64 * groups; }
  constexpr int threads() const { return 128 * (groups + 1); }
};

constexpr int fwd_panels(int features) { return (features + 63) / 64; }
constexpr int fwd_barrier_count(const FwdTile& t) { return 2 + 4 * t.stages; }
// Dynamic shared memory: q, stages of k, stages of v, barriers; up to 1,023 bytes to begin at a multiple of 1,024.
constexpr int fwd_shared_bytes(const FwdTile& t) {
  return 1024 +
         128 *
             (t.rows() * fwd_panels(t.d) + t.stages * t.bc * (fwd_panels(t.d) + fwd_panels(t.dv))) +
         8 * fwd_barrier_count(t);
}

// In order of size: the first that is wide enough serves.
constexpr FwdTile kFwdTiles[] = {
    // name       D   Dv groups Bc stages turns
    {"h64", 64, 64, 3, 128, 2, true},
    {"h128", 128, 128, 2, 128, 2, true},
    {"h192", 192, 128, 2, 128, 2, true},
    {"h192v", 192, 192, 2, 96, 2, true},
    {"h256", 256, 256, 2, 80, 2, false},
#ifdef TANDEM_SM90_FWD_TRIALS
    TANDEM_SM90_FWD_TRIALS
#endif
};
constexpr int kFwdTileCount = int(sizeof(kFwdTiles) / sizeof(kFwdTiles[0]));

constexpr bool fwd_tiles_fit() {
  for (const FwdTile& t : kFwdTiles)
    if (fwd_shared_bytes(t) > 227 * 1024 || t.bc % 16 != 0 || t.rows() > 256) return false;
  return true;
}
static_assert(fwd_tiles_fit(), "a tile takes too much shared memory, or is none of whole matrices");

// The row that serves a problem's head sizes, or -1.
constexpr int fwd_tile_of(int d, int dv) {
  for (int row = 0; row < kFwdTileCount; ++row)
    if (d <= kFwdTiles[row].d && dv <= kFwdTiles[row].dv) return row;
  return -1;
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
