// SPDX-License-Identifier: MIT OR Apache-2.0
// hopper_tiles.inc as C++ values, with what planner, kernels and tensor maps have to agree on.
#ifndef TANDEM_SRC_HOPPER_TILES_H
#define TANDEM_SRC_HOPPER_TILES_H
#include <cstdint>

#include "registry.h"

namespace tandem {

struct HopperTile {
  const char* name;
  Stem stem;
  int max_d, max_dv, br, bc, groups, stages;
  bool persistent;
  constexpr int invocations() const { return (groups + 1) * 128; }
};

constexpr int kPanelWidth = 64;  // features, 128 bytes: a row of SWIZZLE_128B
constexpr int panels(int64_t d) { return int((d + kPanelWidth - 1) / kPanelWidth); }

// Bytes of a tile of 16-bit elements in whole panels.
constexpr int panel_bytes(int rows, int d_panels) { return rows * d_panels * kPanelWidth * 2; }

constexpr int kHopperBarrierBytes = 256;  // mbarriers, behind the tiles
constexpr int kHopperAlign = 1024;        // of tiles; dynamic shared memory may begin less aligned

// Dynamic shared memory of a launch: what cuda/sm90/<stem>.cu lays out.
constexpr int hopper_fwd_bytes(const HopperTile& t, int d_panels, int dv_panels) {
  const int q = panel_bytes(t.br, d_panels);
  const int kv = t.stages * (panel_bytes(t.bc, d_panels) + panel_bytes(t.bc, dv_panels));
  return kHopperAlign + q + kv + kHopperBarrierBytes;
}
constexpr int hopper_bwd_bytes(const HopperTile& t, int d_panels, int dv_panels) {
  const int kv = panel_bytes(t.bc, d_panels) + panel_bytes(t.bc, dv_panels);
  const int streamed = t.stages * (panel_bytes(t.br, d_panels) + panel_bytes(t.br, dv_panels));
  const int ds = t.br * t.bc * 2, dq = t.br * d_panels * kPanelWidth * 4;
  const int rows = t.stages * 2 * t.br * 4;  // lse and delta
  return kHopperAlign + kv + streamed + ds + dq + rows + kHopperBarrierBytes;
}
constexpr int hopper_shared_bytes(const HopperTile& t, int d_panels, int dv_panels) {
  return t.stem == Stem::fwd ? hopper_fwd_bytes(t, d_panels, dv_panels)
                             : hopper_bwd_bytes(t, d_panels, dv_panels);
}

// Rows of a box of the copy engine: q and d_o, k and v.
constexpr int hopper_box_rows(const HopperTile& t, bool kv) { return kv ? t.bc : t.br; }

// bwd_dkv_dq adds to dq_sum, f32 [B, Hq, query tiles of Br rows, Br * panels(D) * 64]: whole tiles, the elements of one
// in an order that bwd_dq_cast.cu knows. A workgroup of that converts one tile.
constexpr int64_t dq_tile_floats(const HopperTile& t, int64_t d) {
  return int64_t(t.br) * panels(d) * kPanelWidth;
}
constexpr int kCastGroup = 256;

constexpr HopperTile kHopperTiles[] = {
#define TANDEM_HOPPER_TILE(name, stem, max_d, max_dv, Br, Bc, groups, stages, persistent) \
  {#name, Stem::stem, max_d, max_dv, Br, Bc, groups, stages, persistent != 0},
#include "hopper_tiles.inc"
};
constexpr int kHopperTileCount = int(sizeof(kHopperTiles) / sizeof(kHopperTiles[0]));

#define TANDEM_HOPPER_TILE(name, stem, max_d, max_dv, Br, Bc, groups, stages, persistent)          \
  static_assert(max_d % 64 == 0 && max_dv % 64 == 0 && max_d <= 256 && max_dv <= 256,              \
                "whole panels, of heads up to 256");                                               \
  static_assert(Br <= 256 && Bc <= 256, "a box of the copy engine has no more rows");              \
  static_assert(Br % 8 == 0 && Bc % 8 == 0, "the swizzle repeats every 8 rows");                   \
  static_assert(groups == 2 || groups == 3, "registers for the accumulators of the others");       \
  static_assert((Stem::stem == Stem::fwd ? Br : Bc) % 64 == 0, "a product has 64 rows");           \
  static_assert(hopper_shared_bytes({#name, Stem::stem, max_d, max_dv, Br, Bc, groups, stages, 0}, \
                                    panels(max_d), panels(max_dv)) <= 227 * 1024,                  \
                "shared memory of a workgroup on Hopper");
#include "hopper_tiles.inc"

}  // namespace tandem
#endif
