// SPDX-License-Identifier: MIT OR Apache-2.0
// What lies where in the workspace of a plan whose launches are made.
#include "bwd_shares.h"
#include "fwd_tail.h"
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
  // bwd_row writes delta whoever asks. Far rows have two numbers each in front of it.
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
    place(true, &plan->ds_offset, uint64_t(d_q->heads * ds_bytes(p) / 4));  // of the first chunk
  if (const Launch* join = plan->find(Stem::fwd_join)) {
    place(true, &plan->o_parts_offset, join->splits * rows * uint64_t(part_pitch(p.head_dim_v)));
    // In front of lse what it was rounded by, counted downwards (put_part_lse() in
    // cuda/softmax.cuh).
    place(true, &plan->lse_parts_offset, 2 * join->splits * rows);
    plan->lse_parts_offset += 4 * join->splits * rows;
  }
  if (const Launch* fwd = plan->find(Stem::fwd); fwd && fwd->tail_units > 0) {
    const FwdTile& t = kFwdTiles[fwd->hopper];
    const int64_t parts = int64_t(fwd->groups_x) - fwd->tail_unit;
    place(true, &plan->tail_offset, uint64_t(parts * fwd_part_floats(t)));
    place(true, &plan->tail_counts_offset, uint64_t(2 * parts * fwd_part_words(t)));
  }
  if (const Launch* fused = plan->find(Stem::bwd_dkv_dq)) {
    if (fused->ampere >= 0) {
      place(true, &plan->d_q_sums_offset,
            rows_of_sums(p) * uint64_t(kAmpereTiles[fused->ampere].width));
      place(!plan->find(Stem::bwd_dq_cast), &plan->d_q_counts_offset,
            uint64_t(bwd_counts_bytes(p.batch, p.heads_kv)) / 4);
      plan->zeroed_size = end - plan->d_q_sums_offset;
      plan->workspace_size = end;
      return;
    }
    const BwdShape& s = kBwdShapes[fused->hopper];
    // With optional inputs it forms them whoever asks.
    const bool sums = p.wants(TANDEM_GRAD_Q) || hopper_set(p) != HopperSet::plain;
    const bool packed = p.lengths_q == Lengths::packed;
    const int64_t heads = packed ? p.heads_q : p.batch * p.heads_q,
                  rows_of_head = packed ? bwd_packed_tiles(s, p.total_q, p.batch) * s.br : p.seq_q;
    place(hopper_set(p) == HopperSet::entmax && !p.visit_all, &plan->support_offset,
          uint64_t(p.batch * p.heads_q * support_blocks(p.seq_q) * support_words(p.seq_kv)));
    place(sums, &plan->d_q_sums_offset, uint64_t(bwd_sums_bytes(s, heads, rows_of_head)) / 4);
    place(sums && p.deterministic, &plan->turns_offset,
          uint64_t(bwd_turns_bytes(s, heads, rows_of_head)) / 4);
    if (fused->ahead > 0) {
      const auto of_head = uint64_t(bwd_sums_bytes(s, p.group(), p.seq_q));
      plan->ahead.first = fused->ahead * of_head;
      plan->ahead.sums = uint64_t(p.batch * p.heads_kv) * of_head;
      plan->ahead.entries = p.bias ? uint64_t(p.batch) : 1;
      place(true, &plan->ahead.words_offset, uint64_t(bwd_ahead_bytes(p.batch, p.heads_kv)) / 4);
    }
    place(fused->goes_on, &plan->next_offset, 1);
    // One of who has added, and where workgroups of a head round together one of claims.
    const Launch* cast = plan->find(Stem::bwd_dq_cast);
    const bool counted = p.wants(TANDEM_GRAD_Q) && (!cast || cast->early);
    place(counted, &plan->d_q_counts_offset,
          uint64_t(bwd_counts_bytes(p.batch, p.heads_kv)) / 4 * (fused->together ? 2 : 1));
    const Launch* head = plan->find(Stem::bwd_head);
    const bool heads_here = head && head->joins && !plan->find(Stem::bwd_dq_cast);
    if (!sums) place(heads_here, &plan->d_q_sums_offset, 0);  // where zeroing begins
    place(heads_here, &plan->head_counts_offset, uint64_t(bwd_head_counts_bytes(p.heads_kv)) / 4);
    const bool tail = sums && sums_in_clusters(p);
    const int64_t room = bwd_tail_room(fused->total);
    // And two numbers: how many tiles of keys were fetched, and how many reserved ones.
    place(tail, &plan->tail_counts_offset, uint64_t(2 * room + 2));
    if (sums || heads_here) plan->zeroed_size = end - plan->d_q_sums_offset;
    place(tail, &plan->tail_offset, uint64_t(room * bwd_tail_floats(s)));
    place(tail && fused->pairs, &plan->pass_sums_offset,
          uint64_t(kMaxPairs * bwd_pass_floats(s, p.heads_q / p.heads_kv, p.seq_q)));
  }
  plan->workspace_size = end;
}

}  // namespace tandem
