// SPDX-License-Identifier: MIT OR Apache-2.0
#include "heuristics.h"
#include "kernels/params.h"

namespace tandem {

uint32_t kv_row_of(const Problem& p, const Launch& l) {
  const MatrixLaunch& own = l.of<MatrixLaunch>();
  if (l.row().path_id != PathId::vulkan_coopmat2 || !own.register_prefetch || !is_folded(p))
    return 0;
  // Of score inputs: a dense bias by chunks, as products start from it, or what needs no tensor.
  const bool chunks_of_bias = p.bias && bias_code(p, l) > 0;
  if (p.normalizer != Normalizer::softmax || p.dropout > 0 || p.keep || p.dist_window > 0 ||
      (p.bias && (!chunks_of_bias || p.softcap > 0 || p.alibi)))
    return 0;
  const bool ends = !tiles_exist(p, l);  // the last tile may have fewer keys
  const int64_t chunks = l.tile.bc * (std::max(p.head_dim, p.head_dim_v) / 8);
  if (!plain_loop_pays(p, own.row_blocks, ends) || chunks > 8 * l.tile.invocations()) return 0;
  // The kernel tells k and v apart by their numbers of blocks.
  const int64_t k = p.k.s / 8, v = p.v.s / 8;
  const bool same = k == v, two = l.d_blocks != l.dv_blocks;
  const auto fits = [](int64_t s, int bits) { return s > 0 && s < int64_t(1) << bits; };
  if (p.k.s % 8 != 0 || p.v.s % 8 != 0) return 0;
  const uint32_t partial = ends ? 1u << 29 : 0;
  if (same) return fits(k, 21) ? uint32_t(k) | partial : 0;
  return two && fits(k, 15) && fits(v, 14) ? 1u << 30 | partial | uint32_t(v) << 15 | uint32_t(k)
                                           : 0;
}

}  // namespace tandem
