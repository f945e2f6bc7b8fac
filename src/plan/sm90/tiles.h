// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles of cuda.sm90 (tiles.inc) as C++ values, and what the planner, the kernels and the
// tensor maps have to agree on: bytes of shared memory and of the workspace.
#ifndef TANDEM_SRC_PLAN_SM90_TILES_H
#define TANDEM_SRC_PLAN_SM90_TILES_H
#include <cmath>
#include <cstdint>

#include "plan/tile.h"

namespace tandem {

constexpr int kMaxShared = 232448;  // bytes of a workgroup, compute capability 9.0
// Smallest scale by which forward kernels multiply scores after they are compared and after a
// distance bias is added. A smaller scale comes before both. With a dense bias every scale is
// larger, as the bias is divided by it.
constexpr float kPlainScale = 1e-12f;

// ---- fwd ----
// Tile of fwd. A workgroup has `warpgroups` consumer warpgroups, of 64 query rows each, and a
// producer warpgroup. TMA boxes: rows() rows of Q, bc rows of K and V.
struct FwdTile {
  const char* name;
  int d, dv, warpgroups, bc, stages;
  bool ping_pong, decoupled, bias;
  int from, to;
  bool f32_bias = false;  // for a dense bias of f32 alone
  // Two warpgroups have the same 64 rows, and each a half of o's features
  // (cuda/sm90/fwd/fwd_halved_o.cuh): panels of V of a product. 0: each has rows of its own.
  int halved_panels = 0;
  int workgroups = 1;  // that take a work tile together, as a cluster, with 64 rows each
  constexpr bool halves_o() const { return halved_panels > 0; }
  // Query rows of a work tile.
  constexpr int rows() const { return 64 * (halves_o() ? workgroups : warpgroups); }
  constexpr int cluster() const { return workgroups; }
  constexpr int threads() const { return 128 * (warpgroups + 1); }
};

// Tiles whose kernels have softmax alone. With three warpgroups and 96 keys there are no registers
// for more, and bitmaps of masks come in words of 128 keys.
constexpr bool fwd_is_plain(const FwdTile& t) {
  return t.decoupled || t.halves_o() || t.warpgroups == 4 || (t.warpgroups == 3 && t.bc == 96);
}
// Elastic softmax and entmax take the tiles for heads of 128 in place of those for 96.
constexpr bool fwd_is_softmax(const FwdTile& t) { return t.d == 80 || t.d == 96; }

// Decoupled warpgroups, but with so few stages that all have to visit all keys of a work tile, with
// ping-pong scheduling.
constexpr bool fwd_visits_all(const FwdTile& t) { return t.decoupled && t.stages <= t.warpgroups; }

constexpr int fwd_panels(int features) { return (features + 63) / 64; }
// mbarriers of the stages of Q. In tiles for a dense bias alone each warpgroup has its own.
constexpr int fwd_q_barriers(const FwdTile& t) { return t.bias ? 2 * t.warpgroups : 4; }
// Bytes of dynamic shared memory: stages of Q, K and V, mbarriers, and up to 1,023 bytes of
// alignment to 1,024.
constexpr int fwd_shared_bytes(const FwdTile& t, int q_stages) {
  return 1024 +
         128 * (q_stages * t.rows() * fwd_panels(t.d) +
                t.stages * t.bc * (fwd_panels(t.d) + fwd_panels(t.dv))) +
         8 * (fwd_q_barriers(t) + 4 * t.stages);
}
// Stages of Q: two where there is room, so that Q of the next tile is loaded while this one is
// computed.
constexpr int fwd_q_stages(const FwdTile& t) {
  return fwd_shared_bytes(t, 2) <= kMaxShared ? 2 : 1;
}

// Tiles of two warpgroups with the same rows. Shared memory has, in panels of 64 rows: Q; twice the
// weights of a step; and stages of K and V, of a panel each. Behind them lie a number of each row
// and warpgroup, and mbarriers. V of a product lies in stages side by side.
constexpr int kMaxWholeHeadDim = int(kWholeFeatures);  // largest head size of the other tiles
constexpr int kHalvedKeys = 64;  // of a step, that a warpgroup has the scores of
constexpr int kHalvedPanelBytes = 64 * 128, kHalvedWeightPanels = 4, kHalvedRowBytes = 2 * 64 * 4;
constexpr int fwd_halved_fixed_bytes(const FwdTile& t) {
  return 1024 + kHalvedPanelBytes * (fwd_panels(t.d) + kHalvedWeightPanels) + kHalvedRowBytes +
         2 * 8;
}
constexpr int fwd_halved_stages(const FwdTile& t) {
  const int most = (kMaxShared - fwd_halved_fixed_bytes(t)) / (kHalvedPanelBytes + 2 * 8);
  return most / t.halved_panels * t.halved_panels;
}

constexpr int fwd_shared_bytes(const FwdTile& t) {
  return t.halves_o() ? fwd_halved_fixed_bytes(t) + t.stages * (kHalvedPanelBytes + 2 * 8)
                      : fwd_shared_bytes(t, fwd_q_stages(t));
}
// Rows of TMA boxes of K and V.
constexpr int fwd_kv_box_rows(const FwdTile& t) { return t.halves_o() ? kHalvedKeys : t.bc; }

// Plain softmax with one stage of Q, which has heads over 128
// (cuda/sm90/fwd/main_loop_wide_heads.cuh). TMA boxes of Q then have the rows of one warpgroup.
constexpr bool fwd_has_wide_heads(const FwdTile& t) {
  return !t.decoupled && !t.bias && !t.halves_o() && fwd_q_stages(t) == 1;
}
constexpr int fwd_plain_q_rows(const FwdTile& t) {
  return fwd_has_wide_heads(t) || t.halves_o() ? 64 : t.rows();
}
// Work-tile descriptors: four, where heads are wide or warpgroups are decoupled.
constexpr int kDecoupledDescriptors = 4;
constexpr int fwd_decoupled_descriptor_bytes(const FwdTile& t) { return 32 + 16 * t.warpgroups; }
constexpr int fwd_plain_shared_bytes(const FwdTile& t) {
  return fwd_shared_bytes(t) + (t.decoupled || fwd_has_wide_heads(t)
                                    ? kDecoupledDescriptors * fwd_decoupled_descriptor_bytes(t)
                                    : 0);
}

// A dense bias: bytes of a stage, in which each warpgroup has its rows, in TMA boxes of 64 rows of
// 128 bytes. 0 bytes of shared memory: there is no kernel for the tile.
constexpr int kFwdBiasRows = 64;
constexpr int fwd_bias_bytes(const FwdTile& t) { return t.rows() * t.bc * (t.f32_bias ? 4 : 2); }
// Whether Q may be multiplied by the scale, which has to be exact. Otherwise each element of the
// bias is divided by the scale. Heads up to 64.
constexpr bool fwd_scales_q(const FwdTile& t) {
  return !fwd_is_plain(t) && !t.bias && t.d <= 64 && t.dv <= 64;
}
// Whether the scale is a power of two that keeps bf16 values exact, except those under 2^-110.
inline bool has_exact_scale(float scale) {
  int exponent;
  return std::frexp(scale, &exponent) == 0.5f && exponent >= -15 && exponent <= 1;
}
// Work-tile descriptors, behind the mbarriers.
constexpr int kBiasDescriptors = 4, kBiasDescriptorBytes = 32;
constexpr int fwd_bias_barriers(const FwdTile& t, int bias_stages) {
  return 8 * (fwd_q_barriers(t) + 4 * t.stages + 2 * t.warpgroups * bias_stages);
}
constexpr int fwd_bias_shared_bytes(const FwdTile& t, int q_stages, int bias_stages) {
  return fwd_shared_bytes(t, q_stages) + bias_stages * (fwd_bias_bytes(t) + 2 * 8 * t.warpgroups) +
         kBiasDescriptors * kBiasDescriptorBytes;
}
// Stages of Q, two where there is room, and stages of the bias in what is left.
constexpr int fwd_bias_q_stages(const FwdTile& t) {
  return fwd_bias_shared_bytes(t, 2, 1) <= kMaxShared ? 2 : 1;
}
constexpr int fwd_bias_stages(const FwdTile& t) {
  return fwd_bias_shared_bytes(t, fwd_bias_q_stages(t), 2) <= kMaxShared ? 2 : 1;
}
constexpr int fwd_any_bias_shared_bytes(const FwdTile& t) {
  return fwd_bias_shared_bytes(t, fwd_bias_q_stages(t), fwd_bias_stages(t));
}
constexpr int fwd_bias_shared_bytes(const FwdTile& t) {
  const int bytes = fwd_any_bias_shared_bytes(t);
  return !fwd_is_plain(t) && !t.f32_bias && t.bc % 64 == 0 && bytes <= kMaxShared ? bytes : 0;
}

// The tile with two warpgroups, which leaves each thread more registers: of the masked variant, and
// of a keep mask beside a bias.
constexpr FwdTile fwd_two_warpgroup_tile(const FwdTile& t) {
  return {t.name, t.d, t.dv, 2, t.bc, t.stages, t.ping_pong, t.decoupled, t.bias, t.from, t.to};
}

// A keep mask or lengths beside the bias (cuda/sm90/fwd/fwd_bias_keep.cuh). First, one more
// mbarrier for each stage of the bias and warpgroup, at which the boxes arrive where the mask has
// one row.
// They are 16 bytes apart, as the full mbarriers are, so that one register has the address of both.
// Behind them four words of each say which keys that row hides. Then four more words of each
// work-tile descriptor, about the batch entry, and an mbarrier for each stage of V, at which a tile
// arrives that has rows behind the end of the entry. Last, a word for each of the latest tiles of
// keys, its number, and an address.
constexpr int kBiasEntryBytes = 16, kBiasKeyTiles = 4;
constexpr int fwd_bias_landed_bytes(const FwdTile& t) {
  return 2 * 16 * t.warpgroups * fwd_bias_stages(t);
}
constexpr int fwd_bias_mask_bytes(const FwdTile& t) {
  return fwd_bias_landed_bytes(t) + kBiasDescriptors * kBiasEntryBytes + 8 * t.stages +
         4 * kBiasKeyTiles + 8;
}
constexpr int fwd_bias_keep_shared_bytes(const FwdTile& row) {
  const FwdTile t = fwd_two_warpgroup_tile(row);
  const int bytes = t.bias || fwd_is_plain(row) ? 0 : fwd_bias_shared_bytes(t);
  return bytes > 0 && bytes + fwd_bias_mask_bytes(t) <= kMaxShared ? bytes + fwd_bias_mask_bytes(t)
                                                                   : 0;
}

// A dense bias of f32, with or without a mask, which one kernel serves.
constexpr int fwd_f32_bias_shared_bytes(const FwdTile& t) {
  return t.f32_bias ? fwd_any_bias_shared_bytes(t) + fwd_bias_mask_bytes(t) : 0;
}

// Elastic softmax: K and V share stages. Behind them each warpgroup has the distance bias of the
// head, with zeros for the other distances of a tile that has an entry. Decoupled warpgroups have
// as many stages as there is room for, and four work-tile descriptors.
constexpr int kFwdDistWindow = 2048, kElasticDescriptorBytes = 16;
constexpr int fwd_elastic_q_stages(const FwdTile& t) { return t.d <= 128 ? 2 : 1; }
constexpr int fwd_elastic_stage_bytes(const FwdTile& t) {
  return t.bc * 128 * fwd_panels(t.d > t.dv ? t.d : t.dv);
}
constexpr int fwd_dist_pad(const FwdTile& t) { return 64 + t.bc; }
constexpr int fwd_dist_entries(const FwdTile& t) { return kFwdDistWindow + 2 * fwd_dist_pad(t); }
constexpr int fwd_elastic_shared_bytes(const FwdTile& t, int stages) {
  const int q_stages = fwd_elastic_q_stages(t);
  return 1024 + 128 * q_stages * t.rows() * fwd_panels(t.d) + stages * fwd_elastic_stage_bytes(t) +
         t.warpgroups * fwd_dist_entries(t) * 4 + 16 * (q_stages + stages) +
         (t.decoupled ? kDecoupledDescriptors * kElasticDescriptorBytes : 0);
}
constexpr int fwd_elastic_stages(const FwdTile& t) {
  return t.decoupled
             ? (kMaxShared - fwd_elastic_shared_bytes(t, 0)) / (fwd_elastic_stage_bytes(t) + 16)
             : (t.d <= 64 ? 8 : 4);
}
constexpr int fwd_elastic_shared_bytes(const FwdTile& t) {
  return fwd_is_softmax(t) ? kMaxShared + 1 : fwd_elastic_shared_bytes(t, fwd_elastic_stages(t));
}

// Entmax. Behind the mbarriers: words of the search; two bitmaps a warpgroup, of the first
// kSupportTiles tiles of keys; and candidates of the two rows of each thread. 0 candidates: there
// is no kernel for the tile.
constexpr int kSupportTiles = 1024, kSupportWords = kSupportTiles / 32;
constexpr int kEntmaxQStages = 1;  // room for q of the next tile is better used for candidates
constexpr int kSearchWords = 48;   // bytes before the bitmaps
constexpr int fwd_entmax_lists_at(const FwdTile& t) {  // behind the mbarriers
  return kSearchWords + t.warpgroups * 2 * kSupportWords * 4;
}
constexpr int fwd_entmax_candidates(const FwdTile& t) {
  const int left = kMaxShared - fwd_shared_bytes(t, kEntmaxQStages) - fwd_entmax_lists_at(t);
  const int most = left / (t.warpgroups * 128 * 2 * 4) / 4 * 4;
  return fwd_is_plain(t) || fwd_is_softmax(t) || t.bias || t.d > 128 || most < 16 ? 0
         : most > 44                                                              ? 44
                                                                                  : most;
}
constexpr int fwd_entmax_shared_bytes(const FwdTile& t) {
  return fwd_entmax_candidates(t) == 0
             ? 0
             : fwd_shared_bytes(t, kEntmaxQStages) + fwd_entmax_lists_at(t) +
                   fwd_entmax_candidates(t) * t.warpgroups * 128 * 2 * 4;
}

// Lengths add an mbarrier and four work-tile descriptors. 0: there is no kernel for the tile.
constexpr int kFwdDescriptors = 4, kFwdDescriptorBytes = 64;
constexpr int fwd_any_varlen_shared_bytes(const FwdTile& t) {
  return fwd_shared_bytes(t) + 2 * 8 + kFwdDescriptors * kFwdDescriptorBytes;
}
constexpr int fwd_varlen_shared_bytes(const FwdTile& t) {
  const int bytes = fwd_any_varlen_shared_bytes(t);
  return !fwd_is_plain(t) && !t.bias && bytes <= kMaxShared ? bytes : 0;
}
// Wider heads have one kernel for lengths, softcap and ALiBi.
constexpr bool fwd_has_varlen_alone(const FwdTile& t) {
  return !fwd_is_plain(t) && !t.bias && t.d <= 128 && t.dv <= 128;
}

// A bias with one row for all queries adds stages with the numbers of a step's keys, as f32, each
// with two mbarriers (cuda/sm90/fwd/score_row_bias.cuh). It also takes the tile of four
// warpgroups, which then visit all keys of a work tile. 0: there is no kernel for the tile.
constexpr int kRowBiasStages = 4;
constexpr int fwd_row_bias_shared_bytes(const FwdTile& t) {
  const int bytes = fwd_any_varlen_shared_bytes(t) + kRowBiasStages * (2 * 8 + 4 * t.bc);
  return ((t.warpgroups == 4 && t.decoupled && !fwd_visits_all(t)) || !fwd_is_plain(t)) &&
                 !t.bias && bytes <= kMaxShared
             ? bytes
             : 0;
}

// Mask bitmap of masks and dropout (cuda/sm90/mask_bitmap.cuh). A stage holds the words of a tile
// of kMaskKeys keys, one for 32 keys and a row, and the description of the tile; it has two
// mbarriers.
constexpr int kMaskStages = 4, kMaskKeys = 128;
constexpr int mask_pitch(int rows) {
  return rows + 8;
}  // no bank conflict between lanes with the words of 8 rows
constexpr int mask_stage_bytes(int rows) { return 2 * kMaskKeys / 32 * mask_pitch(rows) * 4 + 16; }
constexpr int mask_bitmap_bytes(int rows) { return kMaskStages * (mask_stage_bytes(rows) + 16); }

// The masked variant: every optional input of softmax but a dense bias.
constexpr int fwd_masked_shared_bytes(const FwdTile& row) {
  const FwdTile t = fwd_two_warpgroup_tile(row);
  const int bytes = fwd_is_plain(row) ? 0 : fwd_varlen_shared_bytes(t);
  return bytes == 0 || fwd_q_stages(t) != 2 || t.bc != kMaskKeys ||
                 bytes + mask_bitmap_bytes(t.rows()) > kMaxShared
             ? 0
             : bytes + mask_bitmap_bytes(t.rows());
}

// A tile of two warpgroups with the same rows, with as many stages as fit.
constexpr FwdTile fwd_halved_tile(const char* name, int d, int dv, int panels, int workgroups) {
  FwdTile t{name,  d,     dv, 2, 2 * kHalvedKeys, 0,      false,
            false, false, 0,  0, false,           panels, workgroups};
  t.stages = fwd_halved_stages(t);
  return t;
}

constexpr FwdTile kFwdTiles[] = {
#define TANDEM_HOPPER_FWD(name, d, dv, warpgroups, bc, stages, ping_pong, decoupled, bias, from, \
                          to)                                                                    \
  {#name, d, dv, warpgroups, bc, stages, ping_pong != 0, decoupled != 0, bias != 0, from, to},
#define TANDEM_HOPPER_HALVED_FWD(name, d, dv, panels, workgroups) \
  fwd_halved_tile(#name, d, dv, panels, workgroups),
#define TANDEM_HOPPER_F32_BIAS_FWD(name, d, dv, warpgroups, bc, stages) \
  {#name, d, dv, warpgroups, bc, stages, true, false, false, 0, 0, true},
#include "tiles.inc"
};
constexpr int kAllFwdTileCount = int(sizeof(kFwdTiles) / sizeof(kFwdTiles[0]));
// Those for a dense bias of f32 come last.
constexpr int fwd_tiles_before_f32_bias() {
  int n = 0;
  while (n < kAllFwdTileCount && !kFwdTiles[n].f32_bias) ++n;
  return n;
}
constexpr int kFwdTileCount = fwd_tiles_before_f32_bias();

// ---- bwd_dkv_dq, bwd_dq_cast ----
constexpr int kBwdThreads = 384;  // a producer warpgroup and two consumer warpgroups
constexpr int kBwdParts = 8;      // partial sums of a tile: one of each consumer warp

// Tile of the backward. TMA boxes: br rows of Q and dO, bc rows of K and V.
struct BwdShape {
  const char* name;
  int d, br, bc, q_stages, do_stages, ds_stages;
  bool wide;
  bool f32_bias = false;  // for a dense bias of f32 alone
  // Heads over 256: the largest Dv; 0 with other heads.
  int wide_dv = 0;
  int value_dim = 0;  // the largest Dv of other heads; 0: Dv goes up to d
  // A two-CTA cluster has two sides: one workgroup has K and Q, the other one V and dO
  // (cuda/sm90/bwd/two_sides.cuh). Stages of Q and dO are of a panel each.
  constexpr bool two_sided() const { return wide_dv > 0; }
  constexpr int dv() const { return two_sided() ? wide_dv : value_dim > 0 ? value_dim : d; }
};
constexpr BwdShape kBwdShapes[] = {
#define TANDEM_HOPPER_BWD(name, d, dv, br, bc, q_stages, do_stages, ds_stages, wide) \
  {#name, d, br, bc, q_stages, do_stages, ds_stages, wide != 0, false, 0, dv},
#define TANDEM_HOPPER_TWO_SIDED_BWD(name, d, dv, q_stages, do_stages) \
  {#name, d, 64, 64, q_stages, do_stages, 1, false, false, dv},
#define TANDEM_HOPPER_F32_BIAS_BWD(name, d, br, bc, q_stages, do_stages, ds_stages) \
  {#name, d, br, bc, q_stages, do_stages, ds_stages, false, true},
#include "tiles.inc"
};
constexpr int kAllBwdShapeCount = int(sizeof(kBwdShapes) / sizeof(kBwdShapes[0]));
// Those for a dense bias of f32 come last.
constexpr int bwd_shapes_before_f32_bias() {
  int n = 0;
  while (n < kAllBwdShapeCount && !kBwdShapes[n].f32_bias) ++n;
  return n;
}
constexpr int kBwdShapeCount = bwd_shapes_before_f32_bias();

// Largest head size of bwd_dkv_dq in one workgroup. Wider heads, up to kMaxWholeHeadDim, have
// bwd_dkv and bwd_dq.
constexpr int kMaxFusedHeadDim = 128;
// Panels of Q and K, and of dO and V.
constexpr int bwd_panels(const BwdShape& s) { return (s.d + 63) / 64; }
constexpr int bwd_v_panels(const BwdShape& s) { return (s.dv() + 63) / 64; }
// Layout of shared memory: offsets in bytes from its beginning, which is a multiple of 1,024.
constexpr int bwd_k_bytes(const BwdShape& s) { return bwd_panels(s) * s.bc * 128; }
constexpr int bwd_v_bytes(const BwdShape& s) { return bwd_v_panels(s) * s.bc * 128; }
constexpr int bwd_q_bytes(const BwdShape& s) { return bwd_panels(s) * s.br * 128; }
constexpr int bwd_do_bytes(const BwdShape& s) { return bwd_v_panels(s) * s.br * 128; }
// A stage of dS. With a dense bias of f32 it first holds a tile of the bias, and dS of a warpgroup
// lies where the words of its 64 keys begin.
constexpr int bwd_ds_bytes(const BwdShape& s) { return s.br * s.bc * (s.f32_bias ? 4 : 2); }
constexpr int bwd_ds_panel_bytes(const BwdShape& s) { return s.br * (s.f32_bias ? 256 : 128); }
// Whether the two warpgroups form 32 features each of the 64 rows of dQ. Otherwise each forms 64
// rows, or a panel of features.
constexpr bool bwd_halves_dq(const BwdShape& s) { return s.d == 64 && s.br == 64; }
// Whether bwd_dkv holds V in registers. It then arrives where P will be, and Q has its room.
constexpr bool bwd_holds_v(const BwdShape& s) { return s.wide && s.dv() <= 128; }
constexpr int bwd_at_q(const BwdShape& s) {
  return bwd_k_bytes(s) + (bwd_holds_v(s) ? 0 : bwd_v_bytes(s));
}
constexpr int bwd_at_do(const BwdShape& s) { return bwd_at_q(s) + s.q_stages * bwd_q_bytes(s); }
constexpr int bwd_at_ds(const BwdShape& s) { return bwd_at_do(s) + s.do_stages * bwd_do_bytes(s); }
constexpr int bwd_at_v(const BwdShape& s) { return bwd_holds_v(s) ? bwd_at_ds(s) : bwd_k_bytes(s); }
constexpr int bwd_at_dq(const BwdShape& s) {
  return bwd_at_ds(s) + (s.ds_stages + (s.wide ? 1 : 0)) * bwd_ds_bytes(s);
}
constexpr int bwd_at_stats(const BwdShape& s) { return bwd_at_dq(s) + (s.wide ? 0 : 2 * 16384); }
// For each stage of Q, the far rows of the query tile: how many rows the tile has if any of them is
// far (src/problem/far_row.h), else 0, and the address of the first lse.
constexpr int kBwdFarBytes = 16;
constexpr int bwd_at_far(const BwdShape& s) {
  return bwd_at_stats(s) + (s.q_stages + s.do_stages) * s.br * 4;
}
constexpr int bwd_at_barriers(const BwdShape& s) {
  return bwd_at_far(s) + s.q_stages * kBwdFarBytes;
}
constexpr int bwd_shared_bytes(const BwdShape& s) {
  return bwd_at_barriers(s) + (1 + 2 * (s.q_stages + s.do_stages)) * 8;
}

// Bytes of a second stage of dQ, which the second dQ warp adds. Heads up to 128, where nothing else
// takes the room.
constexpr int bwd_second_dq_bytes(const BwdShape& s) { return s.wide ? 0 : 2 * 16384; }
// Work-tile descriptor of persistent workgroups (cuda/sm90/bwd/persistent.cuh): an mbarrier and
// three words.
constexpr int kBwdDescriptorBytes = 24;
constexpr int bwd_plain_shared_bytes(const BwdShape& s) {
  return bwd_shared_bytes(s) + bwd_second_dq_bytes(s) + (s.wide ? 0 : kBwdDescriptorBytes);
}
// Tiles with two sides. In panels of 64 rows and 64 features, the side of keys has K, stages of Q
// and dS; the side of values has V, those panels of K that dQ is its own of, stages of dO, weights
// in f32 and rounded, and dS. mbarriers lie behind both, at the same address.
constexpr int kTwoSidedCluster = 2;
constexpr int kSidePanelBytes = 64 * 128, kSideWeightBytes = 64 * 64 * 4;
constexpr int bwd_side_panels(int features) { return (features + 63) / 64; }
// Panels of dQ that the side of keys forms; the side of values forms the others.
constexpr int bwd_keys_dq_panels(const BwdShape& s) { return (bwd_side_panels(s.d) + 1) / 2; }
constexpr int bwd_values_dq_panels(const BwdShape& s) {
  return bwd_side_panels(s.d) - bwd_keys_dq_panels(s);
}
constexpr int bwd_keys_side_bytes(const BwdShape& s) {
  return kSidePanelBytes * (bwd_side_panels(s.d) + s.q_stages + 1);
}
constexpr int bwd_values_side_bytes(const BwdShape& s) {
  return kSidePanelBytes * (bwd_side_panels(s.dv()) + bwd_values_dq_panels(s) + s.do_stages + 2) +
         kSideWeightBytes;
}
constexpr int bwd_two_sided_barriers_at(const BwdShape& s) {
  return bwd_keys_side_bytes(s) > bwd_values_side_bytes(s) ? bwd_keys_side_bytes(s)
                                                           : bwd_values_side_bytes(s);
}
// mbarriers: of K or V; of P or dS, full and empty; full and empty of each stage. Then a word for
// each warpgroup.
constexpr int bwd_two_sided_shared_bytes(const BwdShape& s) {
  return bwd_two_sided_barriers_at(s) +
         8 * (3 + 2 * (s.q_stages > s.do_stages ? s.q_stages : s.do_stages)) + 2 * 16;
}

// Unit of lazy zero-initialisation (cuda/sm90/bwd/dq_lazy_zero.cuh): a store of a warp, or a copy.
constexpr int kZeroBytes = 512;
// A dense bias: stages for its tiles, which dS then overwrites, beside those for dS; three
// mbarriers each. Then the work-tile descriptor, two mbarriers and a word about the next tile, and
// zeros to copy, at a multiple of 16 bytes.
constexpr int bwd_bias_stages(const BwdShape& s) {
  return s.f32_bias ? 0 : s.br * s.bc > 64 * 128 ? 1 : 2;
}
constexpr int bwd_bias_ds_stages(const BwdShape& s) { return s.ds_stages + bwd_bias_stages(s); }
constexpr int bwd_bias_zeros_at(const BwdShape& s) {
  return (bwd_shared_bytes(s) + bwd_bias_stages(s) * bwd_ds_bytes(s) +
          3 * bwd_bias_ds_stages(s) * 8 + kBwdDescriptorBytes + 20 + 15) /
         16 * 16;
}
// Behind the zeros: the mbarrier of TMA boxes with rows behind the end of a batch entry.
constexpr int bwd_bias_raw_at(const BwdShape& s) { return bwd_bias_zeros_at(s) + kZeroBytes; }
constexpr int bwd_bias_shared_bytes(const BwdShape& s) { return bwd_bias_raw_at(s) + 8; }
// Elastic softmax adds, for each stage of Q, what tau adds to the weights of a row, and the
// distance bias of the tile's diagonals; also mbarriers of dS.
constexpr int bwd_elastic_bytes(const BwdShape& s) { return s.q_stages * (s.br + s.br + s.bc) * 4; }
constexpr int bwd_elastic_shared_bytes(const BwdShape& s) {
  return bwd_shared_bytes(s) + bwd_elastic_bytes(s) + 2 * s.ds_stages * 8;
}
// Whether a tile has a kernel with softcap and ALiBi, which keep numbers of each element.
constexpr bool has_softcap_alibi_kernel(const BwdShape& s) { return !s.wide && s.br <= 64; }
// Lengths add an mbarrier.
constexpr int bwd_varlen_shared_bytes(const BwdShape& s) {
  return bwd_shared_bytes(s) + bwd_second_dq_bytes(s) + 8;
}
// Masks add the mask bitmap and the work tile. Where there may be dropout or inputs of scores, too
// (others), derivatives of softcap follow.
constexpr int kBwdWorkTileBytes = 48;
constexpr int bwd_masked_derivatives_at(const BwdShape& s) {
  return mask_bitmap_bytes(s.br) + kBwdWorkTileBytes;
}
constexpr int bwd_masked_bytes(const BwdShape& s, bool others) {
  return bwd_masked_derivatives_at(s) + (others ? s.br * s.bc * 2 : 0);
}
constexpr bool has_masked_kernel(const BwdShape& s, bool others = true) {
  return (others ? has_softcap_alibi_kernel(s) : !s.wide) && s.bc == kMaskKeys &&
         bwd_shared_bytes(s) + 8 + bwd_masked_bytes(s, others) <= kMaxShared;
}
// Whether the masked variant has registers for softcap, ALiBi and a distance bias, too.
constexpr bool has_masked_scores(const BwdShape& s) { return has_masked_kernel(s) && s.d <= 96; }
constexpr int bwd_masked_shared_bytes(const BwdShape& s, bool others) {
  return has_masked_kernel(s, others) ? bwd_shared_bytes(s) + 8 + bwd_masked_bytes(s, others) : 0;
}
// Largest cluster that every device allows, in workgroups.
constexpr int kMaxCluster = 8;
// Workgroups of a cluster of trait::slices.
constexpr int kSliceCluster = 4;

// The dQ accumulator, f32: for each query head of the batch, blocks of 64 rows x 64 features,
// panels innermost. In a block the elements lie as wgmma accumulators do (cuda/sm90/ptx/wgmma.cuh):
// the first float4 of 128 threads, then their second, and so on.
constexpr int kDqAccumBlock = 64 * 64;
constexpr int64_t bwd_query_tiles(const BwdShape& s, int64_t seq_q) {
  return (seq_q + s.br - 1) / s.br;
}
constexpr int64_t bwd_row_blocks(const BwdShape& s, int64_t seq_q) {
  return bwd_query_tiles(s, seq_q) * (s.br / 64);
}
constexpr int64_t bwd_dq_accum_bytes(const BwdShape& s, int64_t batch_heads, int64_t seq_q) {
  return batch_heads * bwd_row_blocks(s, seq_q) * bwd_panels(s) * kDqAccumBlock * 4;
}
// Packed queries: query tiles of a head in the dQ accumulator. Those of a batch entry begin at tile
// (first row) / br + (rank of the entry: problem/sequence.h).
constexpr int64_t bwd_packed_tiles(const BwdShape& s, int64_t total_q, int64_t batch) {
  return total_q / s.br + batch;
}
// Deterministic dQ semaphores: for each block of 64 rows, how many tiles of keys have added to it.
constexpr int64_t bwd_dq_semaphore_bytes(const BwdShape& s, int64_t batch_heads, int64_t seq_q) {
  return batch_heads * bwd_row_blocks(s, seq_q) * 4;
}
// For each kv head: how many of its tiles of keys have added all of their dQ.
constexpr int64_t bwd_counts_bytes(int64_t batch, int64_t heads_kv) { return batch * heads_kv * 4; }
// Lazy zero-initialisation: for each kv head, how many slices of its accumulator are claimed, and
// how many are zero.
constexpr int64_t bwd_lazy_zero_bytes(int64_t batch, int64_t heads_kv) {
  return batch * heads_kv * 8;
}
// For each kv head: how many of its tiles of keys are done, over all batch entries. The last one
// reduces d_slope and d_sink.
constexpr int64_t bwd_head_sums_counts_bytes(int64_t heads_kv) { return heads_kv * 4; }

// Counters of the workgroups of bwd_dkv_dist that have left partial sums of d_dist_bias. For each
// kv head the last one adds them up, in order. Two warps do, each for the entries that the same
// warps of other workgroups left, so there are two counters. With more than sums_at_once() allows
// for a thread, bwd_sum_splits is faster.
constexpr int64_t sum_counts_bytes(int64_t heads_kv) { return 2 * heads_kv * 4; }
constexpr bool sums_at_once(int64_t entries, int64_t parts) { return entries * parts <= 64; }

// ---- bwd_row_sums_dq of elastic softmax: 128 queries a workgroup; boxes of K and V: bc rows ----
struct RowShape {
  const char* name;
  int d, br, bc, stages;
};
constexpr RowShape kRowShapes[] = {
#define TANDEM_HOPPER_ROW(name, d, br, bc, stages) {#name, d, br, bc, stages},
#include "tiles.inc"
};
constexpr int kRowShapeCount = int(sizeof(kRowShapes) / sizeof(kRowShapes[0]));
// Layout: Q and dO, stages of K and V, the distance bias of the diagonals of a tile for each,
// mbarriers.
constexpr int row_at_k(const RowShape& s) { return 2 * s.br * s.d * 2; }
constexpr int row_at_dist(const RowShape& s) { return row_at_k(s) + 2 * s.stages * s.bc * s.d * 2; }
constexpr int row_at_barriers(const RowShape& s) {
  return row_at_dist(s) + s.stages * (s.br + s.bc) * 4;
}
constexpr int row_shared_bytes(const RowShape& s) {
  return row_at_barriers(s) + (1 + 4 * s.stages) * 8;
}

// ---- bwd_dq, heads over 128: 128 queries a workgroup; boxes of K and V: bc rows ----
struct DqShape {
  const char* name;
  int d, dv, br, bc, k_stages, v_stages;
};
constexpr DqShape kDqShapes[] = {
#define TANDEM_HOPPER_DQ(name, d, dv, br, bc, k_stages, v_stages) \
  {#name, d, dv, br, bc, k_stages, v_stages},
#include "tiles.inc"
};
constexpr int kDqShapeCount = int(sizeof(kDqShapes) / sizeof(kDqShapes[0]));
// Layout: Q and dO, stages of K and of V, mbarriers.
constexpr int dq_at_k(const DqShape& s) { return s.br * (s.d + s.dv) * 2; }
constexpr int dq_at_v(const DqShape& s) { return dq_at_k(s) + s.k_stages * s.bc * s.d * 2; }
constexpr int dq_at_barriers(const DqShape& s) { return dq_at_v(s) + s.v_stages * s.bc * s.dv * 2; }
constexpr int dq_shared_bytes(const DqShape& s) {
  return dq_at_barriers(s) + (2 + 2 * (s.k_stages + s.v_stages)) * 8;
}
// The row of kDqShapes with the head sizes and TMA boxes of a tile of bwd_dkv; -1: none.
constexpr int dq_row(const BwdShape& s) {
  for (int n = 0; n < kDqShapeCount; ++n)
    if (kDqShapes[n].d == s.d && kDqShapes[n].dv == s.dv() && kDqShapes[n].br == s.br &&
        kDqShapes[n].bc == s.bc)
      return n;
  return -1;
}

// ---- bwd_row_sums of entmax: 64 queries a warpgroup; boxes of Q and dO: br() rows, K and V: bc
// ----
struct SupportShape {
  const char* name;
  int d, warpgroups, bc, stages;
  constexpr int br() const { return 64 * warpgroups; }
  constexpr int threads() const { return 128 * (warpgroups + 1); }
};
constexpr SupportShape kSupportShapes[] = {
#define TANDEM_HOPPER_SUPPORT(name, d, warpgroups, bc, stages) {#name, d, warpgroups, bc, stages},
#include "tiles.inc"
};
constexpr int kSupportShapeCount = int(sizeof(kSupportShapes) / sizeof(kSupportShapes[0]));
// Layout: up to 1,023 bytes of alignment to 1,024, Q and dO, stages of K and V, a bit for each tile
// of keys, mbarriers.
constexpr int support_at_k(const SupportShape& s) { return 2 * s.br() * s.d * 2; }
constexpr int support_at_words(const SupportShape& s) {
  return support_at_k(s) + 2 * s.stages * s.bc * s.d * 2;
}
constexpr int support_at_barriers(const SupportShape& s) {
  return support_at_words(s) + s.warpgroups * kSupportWords * 4;
}
constexpr int support_shared_bytes(const SupportShape& s) {
  return 1024 + support_at_barriers(s) + (1 + 4 * s.stages) * 8;
}
// Support bitmap that bwd_row_sums leaves for bwd_dkv_dq: for each block of 64 rows a bit for each
// of the first kSupportTiles tiles of kSupportKeys keys, whether they have support there. Further
// tiles are always visited.
constexpr int kSupportKeys = 128;
constexpr int64_t support_words(int64_t seq_kv) {
  const int64_t words = (seq_kv + 32 * kSupportKeys - 1) / (32 * kSupportKeys);
  return words < kSupportWords ? words : kSupportWords;
}
constexpr int64_t support_blocks(int64_t seq_q) { return (seq_q + 63) / 64; }
// The same with a bit for each row, for kernels that gather rows: of a head, 64 bits for each of
// the first kSupportTiles tiles of keys and, within it, each block of 64 rows.
constexpr int64_t support_rows_tiles(int64_t seq_kv) {
  const int64_t tiles = (seq_kv + kSupportKeys - 1) / kSupportKeys;
  return tiles < kSupportTiles ? tiles : kSupportTiles;
}

constexpr int kCastGroup = 128;  // threads of bwd_dq_cast, which converts a block

// ---- what every row must hold to ----
constexpr bool hopper_tiles_fit() {
  for (const FwdTile& t : kFwdTiles)
    if (fwd_shared_bytes(t) > kMaxShared || fwd_f32_bias_shared_bytes(t) > kMaxShared ||
        t.bc % 16 != 0 || t.rows() > 256 || t.halves_o() != (t.d > kMaxWholeHeadDim))
      return false;
  for (const BwdShape& s : kBwdShapes)
    if (s.two_sided() && (bwd_two_sided_shared_bytes(s) > kMaxShared || s.dv() > s.d ||
                          s.q_stages < bwd_side_panels(s.d) ||
                          s.do_stages < bwd_side_panels(s.dv()) || s.d <= kMaxWholeHeadDim))
      return false;
  for (const BwdShape& s : kBwdShapes)
    if (s.two_sided())
      continue;
    else if (bwd_shared_bytes(s) > kMaxShared ||
             (!s.wide && bwd_bias_shared_bytes(s) > kMaxShared) ||
             (!s.wide && !s.f32_bias && bwd_varlen_shared_bytes(s) > kMaxShared) ||
             s.br % 64 != 0 || s.bc % 16 != 0 || s.br > 256 || s.bc > 256)
      return false;
  for (const RowShape& r : kRowShapes)
    if (row_shared_bytes(r) > kMaxShared || r.br > 256 || r.bc > 256) return false;
  for (const BwdShape& s : kBwdShapes)
    if (!s.two_sided() && (s.wide != (s.d > kMaxFusedHeadDim) || s.dv() > s.d)) return false;
  for (const BwdShape& s : kBwdShapes)
    if (s.wide && dq_row(s) < 0) return false;
  for (const DqShape& r : kDqShapes)
    if (dq_shared_bytes(r) > kMaxShared || r.br > 256 || r.bc > 256) return false;
  for (const SupportShape& r : kSupportShapes)
    if (support_shared_bytes(r) > kMaxShared || r.br() > 256 || r.bc != kSupportKeys) return false;
  for (const BwdShape& s : kBwdShapes)
    if (!s.wide && !s.two_sided() && s.bc != kSupportKeys) return false;
  return true;
}
static_assert(hopper_tiles_fit(),
              "a row needs more shared memory than there is, or boxes of more "
              "than 256 rows, or is none of whole matrices");

}  // namespace tandem
#endif
