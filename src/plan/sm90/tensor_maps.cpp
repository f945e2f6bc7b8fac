// SPDX-License-Identifier: MIT OR Apache-2.0
#include "tensor_maps.h"

#include <algorithm>

#include "base/number.h"
#include "plan/planner.h"
#include "plan/thrift.h"
#include "problem/mask_map.h"
#include "rows.h"
#include "tiles.h"

namespace tandem {

String tensor_map_refusal(const char* name, const Strides& s, int64_t batch, int64_t heads,
                          int64_t rows, int64_t features, tandem_dtype dtype) {
  const int unit = dtype == TANDEM_F32 ? 4 : 8;
  const struct {
    int64_t size, stride;
    const char* what;
  } steps[] = {{rows, s.s, "rows"}, {heads, s.h, "heads"}, {batch, s.b, "batch entries"}};
  if (s.d != 1) return text("the features of %s are not side by side", name);
  if (features % unit != 0)
    return text("%s has %lld features, TMA needs a multiple of %d", name, (long long)features,
                unit);
  for (const auto& step : steps) {
    if (step.size == 1) continue;
    if (step.stride % unit != 0 || step.stride == 0)
      return text("the %s of %s are %lld elements apart, TMA needs a multiple of %d", step.what,
                  name, (long long)step.stride, unit);
    if (step.stride >= int64_t(unit) << 36)  // 2^40 bytes
      return text("the %s of %s are %lld elements apart, beyond 2^%d", step.what, name,
                  (long long)step.stride, unit == 4 ? 38 : 39);
  }
  return "";
}

String why_packs_bias(const Problem& p) {
  if (!has_bias_tiles(p)) return "";
  if (p.bias.strides.s == 0 && p.seq_q > 1) return "one row of bias serves all queries";
  return tensor_map_refusal("bias", p.bias.strides, p.bias.batch, p.bias.heads, p.seq_q, 8,
                            p.bias.dtype);
}

PackedBias packed_bias(const Problem& p, int box_rows) {
  return {p.bias.batch, p.bias.heads, bias_row_step(p) == 0 ? box_rows : p.seq_q,
          ceil_div(p.seq_kv, 8) * 8};
}

int bias_row_step(const Problem& p) { return p.bias.strides.s == 0 && p.seq_q > 1 ? 0 : 1; }

int bias_box_rows(const Problem& p, const Launch& launch) {
  return p.backward ? kBwdShapes[launch.of<Sm90Launch>().row].br : kFwdBiasRows;
}

// From so many pairs on of a head of keep. Fewer are not worth a launch.
constexpr int64_t kPackedPairs = 1 << 20;
// With few queries the mask is on the way of each work tile of the backward. There it is packed for
// so many pairs of all heads, if so many heads share a row. H200, 100 queries, 4096 keys, 64 heads,
// a mask for 8 of them: 0.170 ms in place of 0.196; the forward 0.090 in place of 0.086.
constexpr int64_t kFewQueries = 128, kPackedPairsOfAll = 1 << 23, kSharingHeads = 4;
bool packs_few_queries(const Problem& p) {
  const int64_t masks =
      (p.keep.strides.b != 0 ? p.keep.batch : 1) * (p.keep.strides.h != 0 ? p.keep.heads : 1);
  return p.backward && p.seq_q <= kFewQueries && p.seq_kv > 0 &&
         p.batch * p.heads_q * p.seq_q >= ceil_div(kPackedPairsOfAll, p.seq_kv) &&
         p.batch * p.heads_q >= kSharingHeads * masks;
}
bool packs_keep(const Problem& p) {
  if (p.bias && sm90_has(p, trait::bias_tiles)) return p.spans || (p.keep && p.keep.strides.s != 0);
  if (!p.keep || p.keep.strides.s == 0 || p.visit_all) return false;
  if (p.seq_q * p.seq_kv < kPackedPairs && !packs_few_queries(p)) return false;
  // The bytes of block lists are more.
  if (!p.blocks && saves(p, Saving::packed_keep)) return false;
  // The rows with mask bitmaps.
  const int kernel = sm90_kernel(p);
  return kernel >= 0 && (kKernels[kernel].inputs & (kHasKeep | kHasBias)) == kHasKeep;
}

bool expands_to_bits(const Problem& p) { return p.blocks && packs_keep(p) && !(p.bias && p.spans); }

Strides packed_keep_strides(const Problem& p) {
  const PackedKeep copy = packed_keep(p);
  return {copy.batch == 1 ? 0 : copy.heads * copy.words, copy.heads == 1 ? 0 : copy.words,
          tandem_packed_pitch(tandem_map_blocks(int(p.seq_kv))), 1};
}

PackedKeep packed_keep(const Problem& p) {
  const int q = tandem_map_blocks(int(p.seq_q)), kv = tandem_map_blocks(int(p.seq_kv));
  const Strides& s = p.keep.strides;
  const int64_t batch = p.keep && s.b != 0 ? p.keep.batch : 1,
                heads = p.keep && s.h != 0 ? p.keep.heads : 1, words = tandem_packed_size(q, kv);
  if (!(p.bias && p.spans)) return {batch, heads, words};
  return {batch > 1 || p.spans.batch > 1 ? p.batch : 1, std::max(heads, p.spans.heads), words};
}

}  // namespace tandem
