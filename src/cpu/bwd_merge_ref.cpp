// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_merge: the gradients of o and lse of one head's parts.
#include <cmath>

#include "element.h"
#include "reference.h"

namespace tandem {

void bwd_merge_ref(const Problem& p, Precision precision, const RefParts& parts, const double* d_o,
                   const double* d_lse, const RefPartGradients& out) {
  const bool stepwise = precision == Precision::stepwise && p.dtype != TANDEM_F64;
  const auto r = [&](double x) { return stepwise ? double(float(x)) : x; };
  const int64_t Dv = p.head_dim_v;
  RefWeights w;
  std::vector<double> products(size_t(parts.count)), floors(size_t(parts.count));
  for (int64_t i = 0; i < p.seq_q; ++i) {
    parts.weigh(stepwise, i, &w);
    double average = 0, average_floor = 0;
    const double of_lse = d_lse && w.seen > 0 ? d_lse[i] : 0;
    for (int64_t n = 0; n < parts.count; ++n) {
      const bool sees = parts.lse_of(n)[i] != -INFINITY;
      const double weight = w.weight[size_t(n)];
      double product = 0, floor = 0;
      for (int64_t c = 0; c < Dv; ++c) {
        const double given = sees ? d_o[i * Dv + c] : 0, x = sees ? parts.o_of(n)[i * Dv + c] : 0;
        product = r(product + x * given);
        floor += std::fabs(x * given);
        const double scaled = !sees ? 0 : w.seen == 1 ? given : weight * given;
        const int64_t at = (n * out.rows + i) * Dv + c;
        out.d_o[at] = stepwise ? round_element(scaled, p.parts.dtype) : scaled;
        if (out.d_o_floor) out.d_o_floor[at] = std::fabs(scaled);
      }
      products[size_t(n)] = product, floors[size_t(n)] = floor;
      if (!sees) continue;
      average = r(average + weight * product);
      average_floor += weight * floor;
    }
    for (int64_t n = 0; n < parts.count; ++n) {
      const bool sees = parts.lse_of(n)[i] != -INFINITY;
      const double weight = w.weight[size_t(n)];
      const int64_t at = n * out.rows + i;
      out.d_lse[at] = !sees         ? 0
                      : w.seen == 1 ? of_lse
                                    : r(weight * r(of_lse + r(products[size_t(n)] - average)));
      if (out.d_lse_floor)
        out.d_lse_floor[at] =
            !sees ? 0 : weight * (std::fabs(of_lse) + floors[size_t(n)] + average_floor);
    }
  }
}

}  // namespace tandem
