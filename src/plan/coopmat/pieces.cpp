// SPDX-License-Identifier: MIT OR Apache-2.0
#include <algorithm>

#include "heuristics.h"
#include "plan/plan.h"

namespace tandem {

Vec<Piece> pieces_of(const Plan& plan) {
  const Problem& p = plan.problem;
  const auto shares = [&](size_t n) {
    return n < plan.launches.size() && plan.launches[n].has(trait::ds);
  };
  Vec<Piece> pieces;
  for (size_t n = 0; n < plan.launches.size();) {
    size_t end = n + 1;  // end of the launches that alternate
    while (shares(n) && shares(end)) ++end;
    const uint32_t chunks = plan.launches[n].of<MatrixLaunch>().chunks;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      for (size_t i = n; i < end; ++i) {
        Piece piece{plan.launches[i], chunk + 1 == chunks ? i + 1 : 0};
        Launch& l = piece.launch;
        if (shares(i)) {
          MatrixLaunch& of = *l.as<MatrixLaunch>();
          of.first_head = int(chunk) * of.kv_heads;
          const int64_t left = p.batch * p.heads_kv - of.first_head;
          of.heads = int(chunk_heads(p, l.stem, std::min<int64_t>(of.kv_heads, left)));
          l.total = l.tiles * uint32_t(of.heads) * l.splits;
          l.groups_x = std::min(l.groups_x, l.total);
          l.groups_y = (l.total + l.groups_x - 1) / l.groups_x;
        }
        pieces.push_back(piece);
      }
    }
    n = end;
  }
  return pieces;
}

}  // namespace tandem
