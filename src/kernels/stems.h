// SPDX-License-Identifier: MIT OR Apache-2.0
// stems.inc as C++ values. Kernels include this without the registry, so that a new row of
// kernels.inc compiles none of them again.
#ifndef TANDEM_SRC_KERNELS_STEMS_H
#define TANDEM_SRC_KERNELS_STEMS_H
#include <cstdint>

namespace tandem {

enum class Backend : uint8_t { cpu, vulkan, cuda };
enum class Stem : uint8_t {
#define TANDEM_STEM(Name, name) name,
#include "stems.inc"
};
constexpr int kStemCount = 0
#define TANDEM_STEM(Name, name) +1
#include "stems.inc"
    ;

// Tables of tiles, which rows of kernels.inc name: none, any size; plan/tiles.inc;
// plan/coopmat/tiles.inc; plan/sm80/tiles.inc, by its column `kind`; those of plan/sm90/tiles.inc.
enum class TileTable : uint8_t {
  none,
  any,
  simt,
  outer,
  matrix,
  ampere_plain,
  ampere_full,
  ampere_whole_heads,
  ampere_lengths,
  ampere_inputs,
  hopper_fwd,
  hopper_bwd,
  hopper_row,
  hopper_dq,
  hopper_support
};

constexpr bool is_ampere(TileTable table) {
  return table >= TileTable::ampere_plain && table <= TileTable::ampere_inputs;
}

// The operations of TANDEM_MERGE and TANDEM_MERGE_BACKWARD.
constexpr bool is_merge(Stem stem) { return stem == Stem::merge || stem == Stem::bwd_merge; }

// Whether workgroups of a kernel multiply tiles (kernels/abi/tile.inc). Others take rows or lines.
constexpr bool is_tiled(Stem stem) {
  return stem != Stem::place_entries && stem != Stem::pack_bias && stem != Stem::pack_keep &&
         stem != Stem::expand_blocks && stem != Stem::mask_map && stem != Stem::expand_table &&
         stem != Stem::reduce_table && stem != Stem::fwd_combine && stem != Stem::bwd_dot &&
         stem != Stem::bwd_origin && stem != Stem::bwd_dq_cast && stem != Stem::bwd_sum_splits &&
         stem != Stem::bwd_head_sums && !is_merge(stem);
}

// Whether a kernel handles the optional inputs, and has their parameters (kernels/abi/extra.inc).
constexpr bool has_extra(Stem stem) { return is_tiled(stem) || stem == Stem::bwd_origin; }

const char* backend_name(Backend backend);
const char* stem_name(Stem stem);
bool backend_built(Backend backend);

}  // namespace tandem
#endif
