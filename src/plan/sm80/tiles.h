// SPDX-License-Identifier: MIT OR Apache-2.0
// Tiles of cuda.sm80 (tiles.inc) as C++ values, and what the planner, the kernels and tests derive
// from a row.
#ifndef TANDEM_SRC_PLAN_SM80_TILES_H
#define TANDEM_SRC_PLAN_SM80_TILES_H
#include <cstdint>

#include "kernels/stems.h"

namespace tandem {

struct AmpereTile {
  const char* name;
  Stem stem;
  int width, br, bc, warps, stages, halves, held, groups;
  TileTable table;
  int bytes = 2;  // of an element
  int key_warps = 1;
  constexpr int threads() const { return 32 * warps; }
  constexpr bool owns_keys() const { return stem == Stem::bwd_dkv || stem == Stem::bwd_dkv_dq; }
  constexpr int owned() const { return owns_keys() ? bc : br; }
  constexpr int streamed() const { return owns_keys() ? br : bc; }
  constexpr int row_blocks() const {  // of a warp
    return owned() * halves * key_warps / warps / 16;
  }
  // In bwd_dkv and bwd_dkv_dq two of four warps that share 32 keys form S, and two dP.
  constexpr bool swaps() const { return owns_keys() && halves == 4 && row_blocks() == 2; }
  constexpr int panels() const { return (width + 63) / 64; }  // of the dQ accumulator
};

// Rows of the tiles for few rows, as in decoding.
constexpr int kFewRows = 16;

// Whole heads: pitch in bytes of a row of the bias in shared memory. Eight rows of a tile begin in
// different banks.
constexpr int whole_bias_pitch(int bc, int element_bytes) { return bc * element_bytes + 16; }
// Columns of P and dS in shared memory: whole rows of chunks to swizzle.
constexpr int whole_p_cols(int bc) { return (bc + 31) / 32 * 32; }
// Whether their backward may sum d_bias over batch entries, in registers.
constexpr bool whole_sums_bias(const AmpereTile& t) { return t.bc <= 64 || t.width <= 32; }
// Where the arrays of a kernel of cuda/sm80 begin in shared memory, in bytes, and where they end.
// Kernels lack some of them.
struct AmpereShared {
  int q, d_o, k, v;  // tiles of rows, the streamed ones in stages; of whole heads in a stage
  int stage;         // whole heads: bytes of a stage
  int numbers;       // stages of three numbers of each query row; in fwd those that warps exchange
  int p, ds;         // P and dS, if warps share them
  int swap;          // f32 numbers of S and dP, which two warps exchange
  int out;           // whole heads: rows that outputs pass through
  int end;
};
constexpr AmpereShared ampere_shared(const AmpereTile& t) {
  const int queries = t.bytes * t.width * t.br, keys = t.bytes * t.width * t.bc;
  const int pairs = t.bytes * t.br * t.bc, numbers = 3 * 4 * t.br;
  AmpereShared at{};
  const auto take = [&at](int* begin, int bytes) { *begin = at.end, at.end += bytes; };
  if (t.table == TileTable::ampere_whole_heads) {  // without the bias
    take(&at.q, queries);
    if (t.owns_keys()) take(&at.d_o, queries);
    take(&at.k, keys), take(&at.v, keys);
    at.stage = at.end, at.end *= t.stages;
    if (!t.owns_keys()) return at;
    take(&at.p, t.bytes * t.br * whole_p_cols(t.bc)), take(&at.ds, at.end - at.p);
    take(&at.out, queries);
  } else if (t.stem == Stem::bwd_dbias) {
    take(&at.q, t.stages * queries), take(&at.d_o, t.stages * queries);
    take(&at.k, t.stages * keys), take(&at.v, t.stages * keys);
    take(&at.numbers, t.stages * numbers);
  } else if (t.owns_keys()) {
    take(&at.k, keys), take(&at.v, keys);
    take(&at.q, t.stages * queries), take(&at.d_o, t.stages * queries);
    take(&at.numbers, t.stages * numbers);
    if (t.halves > 1 || t.stem == Stem::bwd_dkv_dq) take(&at.ds, pairs);
    if (t.halves > 1) take(&at.p, pairs);
    if (t.swaps()) take(&at.swap, 2 * pairs);
  } else {
    take(&at.q, queries);
    if (t.stem != Stem::fwd) take(&at.d_o, queries);
    take(&at.k, t.stages * t.key_warps * keys), take(&at.v, t.stages * t.key_warps * keys);
    if (t.stem == Stem::fwd && t.halves > 1)
      take(&at.p, pairs), take(&at.numbers, 4 * t.halves * t.br);
    if (t.stem == Stem::bwd_dq && t.halves > 1) take(&at.ds, pairs);
  }
  return at;
}
constexpr int ampere_shared_bytes(const AmpereTile& t) { return ampere_shared(t).end; }

// The dQ accumulator of bwd_dkv_dq, f32: for each head blocks of 64 rows, each of panels of 64
// features.
constexpr int64_t ampere_row_blocks(int64_t seq_q) { return (seq_q + 63) / 64; }

constexpr AmpereTile kAmpereTiles[] = {
#define TANDEM_AMPERE_TILE(name, stem, width, Br, Bc, warps, stages, halves, held, groups, kind) \
  {#name, Stem::stem, width, Br, Bc, warps, stages, halves, held, groups, TileTable::ampere_##kind},
#define TANDEM_AMPERE_F32(name, stem, width, Br, Bc, warps, stages, halves, held, groups)          \
  {#name, Stem::stem, width, Br, Bc, warps, stages, halves, held, groups, TileTable::ampere_plain, \
   4},
#define TANDEM_AMPERE_INPUTS(name, stem, width, Br, Bc, warps, stages, halves, held, groups) \
  {                                                                                          \
      #name,                                                                                 \
      Stem::stem,                                                                            \
      width,                                                                                 \
      Br,                                                                                    \
      Bc,                                                                                    \
      warps,                                                                                 \
      stages,                                                                                \
      halves,                                                                                \
      held,                                                                                  \
      groups,                                                                                \
      TileTable::ampere_inputs,                                                              \
      4},
#define TANDEM_AMPERE_KEYS(name, stem, width, Br, Bc, warps, stages, held, groups, kind)       \
  {#name, Stem::stem, width, Br, Bc, warps, stages, 1, held, groups, TileTable::ampere_##kind, \
   2,     warps},
#include "plan/sm80/tiles.inc"
};
constexpr int kAmpereTileCount = int(sizeof(kAmpereTiles) / sizeof(kAmpereTiles[0]));

constexpr bool ampere_tiles_fit() {
  for (const AmpereTile& t : kAmpereTiles) {
    if (t.owned() * t.halves * t.key_warps % (16 * t.warps) != 0)
      return false;  // warps own whole blocks of 16
    if (t.streamed() % (16 * t.halves) != 0 || t.width % 32 != 0) return false;
    // An H100 has 227 KiB, an A100 163 KiB, others 99.
    if (ampere_shared_bytes(t) > 227 * 1024) return false;
  }
  return true;
}
static_assert(ampere_tiles_fit(), "a row of plan/sm80/tiles.inc breaks one of the rules above");

}  // namespace tandem
#endif
