// SPDX-License-Identifier: MIT OR Apache-2.0
// Which tensors TMA can read on cuda.sm90, and the copy of a dense bias that it cannot read.
#ifndef TANDEM_SRC_PLAN_SM90_TENSOR_MAPS_H
#define TANDEM_SRC_PLAN_SM90_TENSOR_MAPS_H
#include "plan/launch.h"

namespace tandem {

// Why TMA cannot read a tensor; "" if it can. TMA needs contiguous features, and strides that are
// multiples of 16 bytes. dtype: f32, or any of 16 bits.
String tensor_map_refusal(const char* name, const Strides& s, int64_t batch, int64_t heads,
                          int64_t rows, int64_t features, tandem_dtype dtype = TANDEM_F16);

// Why pack_bias copies the dense bias of a problem to the workspace before fwd or bwd_dkv_dq: TMA
// cannot read it where it lies, or all queries have one row. "": the kernels read the bias itself.
String why_packs_bias(const Problem& p);
inline bool packs_bias(const Problem& p) { return !why_packs_bias(p).empty(); }

// That copy: [batch, heads, rows, pitch]. box_rows: rows of a TMA box of the bias. Where all
// queries have one row, the copy has as many equal rows as a box, which serve every tile of
// queries.
struct PackedBias {
  int64_t batch, heads, rows, pitch;
  int64_t elements() const { return batch * heads * rows * pitch; }
  Strides strides() const { return {heads * rows * pitch, rows * pitch, pitch, 1}; }
};
PackedBias packed_bias(const Problem& p, int box_rows);
// Rows of that box for fwd or bwd_dkv_dq, or for pack_bias before it.
int bias_box_rows(const Problem& p, const Launch& launch);

// Whether kernels read keep as bits and blocks, where each query has a row of its own. Those of the
// masked variant do where tiles may be skipped. Those with tiles of a bias read no other form, and
// spans in this one.
bool packs_keep(const Problem& p);
// Whether expand_blocks makes these of block lists. Otherwise pack_keep does of bytes and of spans.
bool expands_to_bits(const Problem& p);
// Strides of these bits in words; of a copy that the whole batch or all heads share, 0.
Strides packed_keep_strides(const Problem& p);
// That copy: as many heads as the masks have in memory, where strides of 0 repeat one; words of a
// head. Its batch entries are those of keep, of spans too 1 or B.
struct PackedKeep {
  int64_t batch, heads, words;
  int64_t elements() const { return batch * heads * words; }
};
PackedKeep packed_keep(const Problem& p);

// What kernels multiply a query's row by for its row of the bias: 1; 0 where all have one row.
int bias_row_step(const Problem& p);

}  // namespace tandem
#endif
