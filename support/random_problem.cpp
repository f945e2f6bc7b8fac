// SPDX-License-Identifier: MIT OR Apache-2.0
// Random problems within the features of this version, with a bias towards edges: sizes around tile
// boundaries, lengths of 0 and 1, masks that hide everything.
#include <algorithm>

#include "compare.h"
#include "tiles.h"

namespace tandem::support {
namespace {

int64_t random_length(Random& r, int64_t limit) {
  static const std::vector<int64_t> edges = {1,  2,  3,  7,  8,  15, 16,  17,  31,  32,  33,
                                             47, 63, 64, 65, 95, 96, 127, 128, 129, 191, 255};
  const int64_t n = r.chance(55) ? r.pick(edges) : r.between(1, limit);
  return r.chance(2) ? 0 : std::min(n, limit);
}

void random_mask(Random& r, tandem_problem* p) {
  const int64_t reach = std::max<int64_t>(p->seq_q, p->seq_kv) + 2;
  if (r.chance(55)) p->mask = TANDEM_MASK_CAUSAL;
  if (r.chance(50)) p->align = TANDEM_BOTTOM_RIGHT;
  if (r.chance(30)) p->window_left = r.chance(20) ? 0 : r.below(reach);
  if (r.chance(p->mask == TANDEM_MASK_CAUSAL ? 5 : 30))
    p->window_right = r.chance(20) ? 0 : r.below(reach);
}

void random_layout(Random& r, tandem_problem* p) {
  static const std::vector<Layout> layouts = {Layout::bhsd,   Layout::bhsd,    Layout::bshd,
                                              Layout::gapped, Layout::gapped4, Layout::transposed};
  if (r.chance(40)) {
    set_layout(*p, r.chance(60) ? Layout::bhsd : Layout::bshd);
  } else {
    for (Role role : kRoles) set_layout(*p, role, r.pick(layouts));
  }
  // Inputs that repeat a dimension: the d_o of a sum, keys shared by a batch.
  if (r.chance(15)) std::fill(p->d_o.stride, p->d_o.stride + 4, 0);
  for (Role role : {Role::q, Role::k, Role::v, Role::d_o})
    if (r.chance(6)) tensor_of(*p, role).stride[r.below(4)] = 0;
}

}  // namespace

tandem_problem random_problem(uint64_t seed, const RandomLimits& limits) {
  static const std::vector<int64_t> head_dims = {1,  2,  3,  5,  8,  16, 24,  32,  33,  40,  48,
                                                 63, 64, 64, 72, 80, 96, 100, 128, 160, 192, 256};
  static const std::vector<int64_t> groups = {1, 1, 1, 2, 3, 4, 8};
  Random r(Random::mix(seed) ^ 0x7461646d);
  const bool backward = limits.backward_only || r.chance(65);
  const std::vector<tandem_dtype> dtypes = {TANDEM_F32, TANDEM_F32, TANDEM_F16, TANDEM_BF16};
  const tandem_dtype dtype = r.pick(dtypes);
  int64_t b = r.chance(60) ? 1 : r.between(2, 3), hk = r.chance(60) ? 1 : r.between(2, 3);
  int64_t group = r.pick(groups);
  int64_t sq = random_length(r, limits.max_seq);
  int64_t sk = r.chance(35) ? sq : random_length(r, limits.max_seq);
  const int64_t d = r.pick(head_dims), dv = r.chance(65) ? d : r.pick(head_dims);
  // Too much work: first fewer heads, then shorter sequences.
  const auto work = [&] { return b * hk * group * sq * sk * (d + dv); };
  while (work() > limits.max_work) {
    if (group > 2)
      group = 2;
    else if (b * hk > 2)
      (b > 1 ? b : hk) = 1;
    else
      (sq > sk ? sq : sk) = std::max(sq, sk) * 2 / 3;
  }
  if (r.chance(1)) b = 0;

  tandem_problem p = make_problem(backward ? TANDEM_BACKWARD : TANDEM_FORWARD, dtype, b, hk * group,
                                  hk, sq, sk, d);
  p.head_dim_v = dv;
  random_mask(r, &p);
  random_layout(r, &p);
  if (r.chance(20)) p.scale = float(r.between(1, 64)) / 128.0f;
  if (backward && r.chance(25)) p.gradients = uint32_t(r.between(1, 7));
  if (r.chance(30)) p.flags = TANDEM_FLAG_DETERMINISTIC;
  // The last tile of the table fits every device and problem, and is seldom the planner's choice.
  if (r.chance(15)) {
    p.tile_rows = uint32_t(kTiles[kTileCount - 1].br);
    p.tile_cols = uint32_t(kTiles[kTileCount - 1].bc);
  }
  return p;
}

CaseOptions random_options(uint64_t seed) {
  Random r(Random::mix(seed) ^ 0x6f7074);
  CaseOptions o;
  if (r.chance(20)) o.lead = r.between(1, 4);
  o.addresses = r.chance(25);
  o.no_lse = r.chance(20);
  o.workspace_byte = r.chance(50) ? 0xff : 0x7f;
  o.repeats = r.chance(20) ? 2 : 1;
  return o;
}

}  // namespace tandem::support
