// SPDX-License-Identifier: MIT OR Apache-2.0
// Layout of the workspace of a plan whose launches are made.
#include <algorithm>

#include "planner.h"
#include "problem/mask_map.h"
#include "problem/sequence.h"

namespace tandem {

// Arrays of every path.
void PathPlanner::scratch(Plan* plan, ScratchExtents* x) const {
  const int64_t rows = p.batch * p.heads_q * p.seq_q;
  const bool row_kernel = plan->find(Stem::bwd_row_sums) || plan->find(Stem::bwd_row_sums_dq) ||
                          plan->find(Stem::bwd_dot);
  // bwd_row_sums always writes delta. In front of it lie two numbers for each far row. Without keys
  // nothing writes them, but kernels of GPUs read them where an lse is far, whatever it should be.
  const bool origins = plan->find(Stem::bwd_origin) ||
                       (row.backend != Backend::cpu && p.seq_kv * p.heads_kv == 0 && row_kernel);
  if (row_kernel || origins) {
    const int64_t step = kWorkspaceAlignment / sizeof(float);
    x->delta = {row_kernel ? rows : 0, origins ? ceil_div(2 * rows, step) * step : 0};
  }
  if (plan->find(Stem::place_entries)) {
    const int64_t numbers = p.batch * TANDEM_PLACE_NUMBERS;
    if (p.lengths_q == Lengths::gapped) x->places_q = {numbers};
    if (p.lengths_kv == Lengths::gapped) x->places_kv = {numbers};
  }
  if (plan->find(Stem::expand_blocks))
    x->block_keep = {p.blocks.batch * p.blocks.heads * p.seq_q * keep_pitch(p.seq_kv)};
  if (plan->find(Stem::mask_map)) {
    const int64_t words =
        tandem_map_size(tandem_map_blocks(int(p.seq_q)), tandem_map_blocks(int(p.seq_kv)));
    x->mask_map = {p.spans.batch * p.spans.heads * words * 2};
  }
  if (p.expands_table()) {
    const int64_t biases = p.table.batch * p.heads_q * p.seq_q * p.seq_kv;
    if (plan->find(Stem::expand_table)) x->table_bias = {biases};
    if (plan->find(Stem::reduce_table)) x->d_table_bias = {biases};
  }
  plan->slope_parts = p.seq_q;
  if (row_kernel && p.wants(TANDEM_GRAD_TAU)) x->tau_rows = {rows};
  if (row_kernel && p.wants(TANDEM_GRAD_SLOPE)) x->slope_rows = {rows};
  for (const Launch& l : plan->launches) {
    if (l.stem != Stem::bwd_sum_splits) continue;
    ScratchExtent& parts = l.gradient == TANDEM_GRAD_BIAS         ? x->bias_parts
                           : l.gradient == TANDEM_GRAD_K          ? x->d_k_parts
                           : l.gradient == TANDEM_GRAD_V          ? x->d_v_parts
                           : l.gradient == TANDEM_GRAD_BIAS_TABLE ? x->table_parts
                                                                  : x->dist_parts;
    parts = {l.splits * gradient_elements(p, l.gradient)};
  }
  if (const Launch* combine = plan->find(Stem::fwd_combine)) {
    x->o_parts = {combine->splits * rows * part_pitch(p.head_dim_v)};
    x->lse_parts = {combine->splits * rows, combine->splits * rows};
  }
}

void lay_out_workspace(const ScratchExtents& x, Plan* plan) {
  uint64_t end = 0;
  bool zeroes = false;
  const auto place = [&](Scratch name, const ScratchExtent& extent) {
    if (extent.elements < 0) return;
    const ScratchRow& row = kScratch[int(name)];
    // Tensors of f64 are cpu.ref's, whose arrays are all of side_dtype().
    const auto element_size = plan->problem.dtype == TANDEM_F64
                                  ? uint64_t(plan->problem.side_size())
                                  : uint64_t(row.element_size);
    ScratchArray& array = plan->scratch[name];
    array.present = true;
    array.offset = (end + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment +
                   uint64_t(extent.front) * element_size;
    array.size = uint64_t(extent.elements) * element_size;
    end = array.offset + array.size;
    if (row.zeroed != Zeroed::first_kernel) return;
    if (!zeroes) plan->zeroed_offset = array.offset;
    zeroes = true;
    plan->zeroed_size = end - plan->zeroed_offset;
  };
#define TANDEM_SCRATCH(name, element, zeroed) place(Scratch::name, x.name);
#include "scratch.inc"
  plan->workspace_size = std::max(end, x.least_bytes);
}

}  // namespace tandem
