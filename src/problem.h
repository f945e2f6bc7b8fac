// SPDX-License-Identifier: MIT OR Apache-2.0
// A tandem_problem that has been checked, with its defaults filled in. Everything behind the C border
// works on this.
#ifndef TANDEM_SRC_PROBLEM_H
#define TANDEM_SRC_PROBLEM_H
#include <cstdint>
#include <string>

#include "status.h"
#include "tile_range.h"

namespace tandem {

struct Strides {  // in elements; also the layout of a kernel's parameter block
  int64_t b, h, s, d;
};

struct Problem {
  bool backward = false;
  int64_t batch = 0, heads_q = 0, heads_kv = 0, seq_q = 0, seq_kv = 0, head_dim = 0, head_dim_v = 0;
  tandem_dtype dtype = TANDEM_F32;
  Strides q{}, k{}, v{}, o{}, d_o{}, d_q{}, d_k{}, d_v{};
  float scale = 0;
  TandemBand band{TANDEM_BAND_OPEN, TANDEM_BAND_OPEN, 0};
  uint32_t gradients = 0;  // TANDEM_GRAD_*; 0 forward
  bool deterministic = false;
  int tile_rows = 0, tile_cols = 0;  // 0: the planner chooses

  int64_t group() const { return heads_q / heads_kv; }
  bool banded() const { return band.left != TANDEM_BAND_OPEN || band.right != TANDEM_BAND_OPEN; }
  bool wants(uint32_t gradient) const { return (gradients & gradient) != 0; }
  // delta enters ds only; d_v alone does without it.
  bool needs_delta() const { return wants(TANDEM_GRAD_Q | TANDEM_GRAD_K); }
  int64_t element_size() const { return dtype == TANDEM_F32 ? 4 : 2; }
};

// Checks everything that can be wrong with a problem whatever the device. problem is written on success.
Status make_problem(const tandem_problem* given, Problem* problem);

// Pairs (i, j) that are visible, over all heads and batches: what the flops of a problem count.
double visible_pairs(const Problem& problem);
double problem_flops(const Problem& problem);

const char* dtype_name(tandem_dtype dtype);

// The problem line (docs/problem-line.md).
std::string print_problem(const tandem_problem& problem);
Status parse_problem(const char* line, tandem_problem* problem);

}  // namespace tandem
#endif
