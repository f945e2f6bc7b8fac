// SPDX-License-Identifier: MIT OR Apache-2.0
// merge: o and lse of one head from those of parts of its keys.
#include <algorithm>
#include <cmath>

#include "element.h"
#include "reference.h"

namespace tandem {

void RefParts::weigh(bool stepwise, int64_t row, RefWeights* to) const {
  const auto r = [&](double x) { return stepwise ? double(float(x)) : x; };
  to->seen = 0;
  to->sum = 0;
  to->weight.assign(size_t(count), 0);
  for (int64_t n = 0; n < count; ++n) {
    const double x = lse_of(n)[row];
    if (x == -INFINITY) continue;
    if (to->seen == 0 || x > to->origin) to->origin = x;
    ++to->seen;
  }
  for (int64_t n = 0; n < count; ++n) {
    const double x = lse_of(n)[row];
    if (x == -INFINITY) continue;
    double& y = to->weight[size_t(n)];
    y = x == to->origin ? 1 : r(std::exp(r(x - to->origin)));
    to->sum = r(to->sum + y);
  }
  for (double& y : to->weight)
    if (to->seen > 0) y = r(y / to->sum);
}

void merge_ref(const Problem& p, Precision precision, const RefParts& parts, double* o, double* lse,
               double* o_floor) {
  const bool stepwise = precision == Precision::stepwise && p.dtype != TANDEM_F64;
  const auto r = [&](double x) { return stepwise ? double(float(x)) : x; };
  RefWeights w;
  for (int64_t i = 0; i < p.seq_q; ++i) {
    parts.weigh(stepwise, i, &w);
    for (int64_t c = 0; c < p.head_dim_v; ++c) {
      double sum = 0, floor = 0, last = 0;
      for (int64_t n = 0; n < parts.count; ++n) {
        if (parts.lse_of(n)[i] == -INFINITY) continue;  // whatever its o holds
        last = parts.o_of(n)[i * p.head_dim_v + c];
        sum = r(sum + w.weight[size_t(n)] * last);
        floor += w.weight[size_t(n)] * std::fabs(last);
      }
      if (w.seen == 1) sum = last;
      o[i * p.head_dim_v + c] = stepwise ? round_element(sum, p.dtype) : sum;
      if (o_floor) o_floor[i * p.head_dim_v + c] = floor;
    }
    lse[i] = w.seen == 0 ? -INFINITY : w.seen == 1 ? w.origin : r(w.origin + r(std::log(w.sum)));
  }
}

}  // namespace tandem
