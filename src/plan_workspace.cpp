// SPDX-License-Identifier: MIT OR Apache-2.0
// Layout of the workspace of a plan whose launches are made.
#include "bwd_cluster_schedule.h"
#include "fwd_stream_k.h"
#include "hopper_tiles.h"
#include "planner.h"

namespace tandem {
namespace {

uint64_t rows_of_sums(const Problem& p) {
  return uint64_t(p.batch * p.heads_q * ampere_row_blocks(p.seq_q) * 64);
}

}  // namespace

int64_t Plan::slope_parts() const {
  const Launch* fused = find(Stem::bwd_dkv_dq);
  return fused && fused->hopper >= 0 ? int64_t(fused->tiles) * kBwdParts : problem.seq_q;
}

void lay_out_workspace(Plan* plan) {
  const Problem& p = plan->problem;
  uint64_t end = 0;
  const auto place = [&](bool needed, uint64_t* offset, uint64_t floats) {
    if (!needed) return;
    *offset = (end + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    end = *offset + 4 * floats;
  };
  const auto rows = uint64_t(p.batch * p.heads_q * p.seq_q);
  const bool row_kernel =
      plan->find(Stem::bwd_row) || plan->find(Stem::bwd_row_dq) || plan->find(Stem::bwd_dot);
  // bwd_row always writes delta. In front of it lie two numbers for each far row.
  uint64_t far_offset = 0;
  const bool origins = plan->find(Stem::bwd_origin) != nullptr;
  place(origins, &far_offset, 2 * rows);
  place(row_kernel || origins, &plan->delta_offset, row_kernel ? rows : 0);
  place(row_kernel && p.wants(TANDEM_GRAD_TAU), &plan->tau_rows_offset, rows);
  place(row_kernel && p.wants(TANDEM_GRAD_SLOPE), &plan->slope_rows_offset,
        uint64_t(p.batch * p.heads_q * plan->slope_parts()));
  for (const Launch& l : plan->launches)
    if (l.stem == Stem::bwd_sum)
      place(true,
            l.gradient == TANDEM_GRAD_BIAS ? &plan->bias_parts_offset : &plan->dist_parts_offset,
            l.splits * uint64_t(gradient_elements(p, l.gradient)));
  if (const Launch* sum = plan->find_sum(TANDEM_GRAD_DIST_BIAS); sum && sum->joins)
    place(true, &plan->sum_counts_offset, uint64_t(sum_counts_bytes(p.heads_kv)) / 4);
  if (const Launch* d_q = plan->find(Stem::bwd_dq); d_q && d_q->sums_d_bias)
    place(true, &plan->bias_sums_offset, uint64_t(d_q->sums(p)));
  if (const Launch* d_q = plan->find(Stem::bwd_dq); d_q && d_q->shares_ds)
    // Room for the first chunk, which is the largest.
    place(true, &plan->ds_offset, uint64_t(d_q->heads * ds_bytes(p) / 4));
  if (const Launch* join = plan->find(Stem::fwd_join)) {
    place(true, &plan->o_parts_offset, join->splits * rows * uint64_t(part_pitch(p.head_dim_v)));
    // In front of lse lie its rounding errors, indexed downwards (put_part_lse() in
    // cuda/softmax.cuh).
    place(true, &plan->lse_parts_offset, 2 * join->splits * rows);
    plan->lse_parts_offset += 4 * join->splits * rows;
  }
  if (const Launch* fwd = plan->find(Stem::fwd); fwd && fwd->stream_k_units > 0) {
    const FwdTile& t = kFwdTiles[fwd->hopper];
    const int64_t parts = int64_t(fwd->groups_x) - fwd->stream_k_unit;
    place(true, &plan->partials_offset, uint64_t(parts * fwd_partial_floats(t)));
    place(true, &plan->partial_flags_offset, uint64_t(2 * parts * fwd_partial_flags(t)));
  }
  if (const Launch* fused = plan->find(Stem::bwd_dkv_dq)) {
    if (fused->ampere >= 0) {
      place(true, &plan->d_q_accum_offset,
            rows_of_sums(p) * uint64_t(kAmpereTiles[fused->ampere].width));
      place(!plan->find(Stem::bwd_dq_cast), &plan->d_q_counts_offset,
            uint64_t(bwd_counts_bytes(p.batch, p.heads_kv)) / 4);
      plan->zeroed_size = end - plan->d_q_accum_offset;
      plan->workspace_size = end;
      return;
    }
    const BwdShape& s = kBwdShapes[fused->hopper];
    // With optional inputs bwd_dkv_dq always forms the dQ accumulator.
    const bool sums = p.wants(TANDEM_GRAD_Q) || hopper_variant(p) != HopperVariant::plain;
    const bool packed = p.lengths_q == Lengths::packed;
    const int64_t heads = packed ? p.heads_q : p.batch * p.heads_q,
                  rows_of_head = packed ? bwd_packed_tiles(s, p.total_q, p.batch) * s.br : p.seq_q;
    place(hopper_variant(p) == HopperVariant::entmax && !p.visit_all, &plan->support_offset,
          uint64_t(p.batch * p.heads_q * support_blocks(p.seq_q) * support_words(p.seq_kv)));
    place(sums, &plan->d_q_accum_offset, uint64_t(bwd_dq_accum_bytes(s, heads, rows_of_head)) / 4);
    place(sums && p.deterministic, &plan->dq_semaphores_offset,
          uint64_t(bwd_dq_semaphore_bytes(s, heads, rows_of_head)) / 4);
    if (fused->eager_zero_heads > 0) {
      const auto of_head = uint64_t(bwd_dq_accum_bytes(s, p.group(), p.seq_q));
      plan->lazy_zero.eager_bytes = fused->eager_zero_heads * of_head;
      plan->lazy_zero.bytes = uint64_t(p.batch * p.heads_kv) * of_head;
      plan->lazy_zero.slices = p.bias ? uint64_t(p.batch) : 1;
      place(true, &plan->lazy_zero.counters_offset,
            uint64_t(bwd_lazy_zero_bytes(p.batch, p.heads_kv)) / 4);
    }
    place(fused->persistent, &plan->tile_counter_offset, 1);
    // A counter of the tiles that have added and, for the cooperative postprocess, one of claims.
    const Launch* cast = plan->find(Stem::bwd_dq_cast);
    const bool counted = p.wants(TANDEM_GRAD_Q) && (!cast || cast->programmatic_launch);
    place(counted, &plan->d_q_counts_offset,
          uint64_t(bwd_counts_bytes(p.batch, p.heads_kv)) / 4 *
              (fused->cooperative_postprocess ? 2 : 1));
    const Launch* head = plan->find(Stem::bwd_head);
    const bool heads_here = head && head->joins && !plan->find(Stem::bwd_dq_cast);
    // Zeroing then begins here.
    if (!sums) place(heads_here, &plan->d_q_accum_offset, 0);
    place(heads_here, &plan->head_counts_offset, uint64_t(bwd_head_counts_bytes(p.heads_kv)) / 4);
    const bool tail = sums && reduces_dbias_in_clusters(p);
    const int64_t room = bwd_partial_slots(fused->total);
    // Two more numbers count the tiles of keys that were fetched, and the reserved ones.
    place(tail, &plan->partial_flags_offset, uint64_t(2 * room + 2));
    if (sums || heads_here) plan->zeroed_size = end - plan->d_q_accum_offset;
    place(tail, &plan->partials_offset, uint64_t(room * bwd_partial_floats(s)));
    place(tail && fused->two_cta_clusters, &plan->pass_sums_offset,
          uint64_t(kMaxTwoCtaClusters * bwd_pass_floats(s, p.heads_q / p.heads_kv, p.seq_q)));
  }
  plan->workspace_size = end;
}

}  // namespace tandem
