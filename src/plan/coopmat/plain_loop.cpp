// SPDX-License-Identifier: MIT OR Apache-2.0
#include "heuristics.h"
#include "kernels/params.h"
#include "plan/quirks.h"

namespace tandem {

MatrixLaunch::PlainLoop plain_loop(const Problem& p, const Caps& caps, const Launch& l) {
  const MatrixLaunch& own = l.of<MatrixLaunch>();
  const MatrixLaunch::PlainLoop other;
  if (p.batch_invariant) return other;  // by strides and masks it would have one loop or the other
  if (find_quirk(caps, QuirkAction::doubled) || l.has(trait::split_d | trait::lean) ||
      !own.register_prefetch || !is_folded(p))
    return other;
  const bool coopmat2 = l.row().path_id == PathId::vulkan_coopmat2;
  if (own.row_blocks > 1 && !coopmat2 && !own.copies) return other;  // not measured
  // Of score inputs: a dense bias by chunks, as products start from it, or what needs no tensor.
  const bool chunks_of_bias = p.bias && bias_code(p, l) > 0 && coopmat2;
  if (p.normalizer != Normalizer::softmax || p.dropout > 0 || p.keep || p.spans ||
      p.dist_window > 0 || (p.bias && (!chunks_of_bias || p.softcap > 0 || p.alibi)))
    return other;
  const bool ends = !tiles_exist(p, l);  // the last tile may have fewer keys
  const int64_t chunks = l.tile.bc * (std::max(p.head_dim, p.head_dim_v) / 8);
  if (chunks > 8 * l.tile.invocations() || !in_force(caps, coopmat_rule::plain_loop) ||
      !plain_loop_pays(p, own.row_blocks, ends))
    return other;
  // Strides are constants of the pipeline. The kernel tells k and v apart by their numbers of
  // blocks, and rows lie so near that indices in a tile have 32 bits.
  const int64_t k = p.k.s / 8, v = p.v.s / 8;
  const bool told_apart = k == v || l.d_blocks != l.dv_blocks;
  const auto fits = [](int64_t s) { return s > 0 && s < int64_t(1) << 21; };
  if (p.k.s % 8 != 0 || p.v.s % 8 != 0 || !told_apart || !fits(k) || !fits(v)) return other;
  return {true, uint32_t(k), uint32_t(v), !ends};
}

}  // namespace tandem
