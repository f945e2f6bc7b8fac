// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dist_bias: adds one query head's part to its d_dist_bias, diagonal by diagonal.
#include "ref_gradient.h"

namespace tandem {

void bwd_dist_bias_ref(const Problem& p, Precision precision, const RefHead& head,
                       double* d_dist_bias, double* floor, double* slack) {
  with_precision(p, precision, [&](auto real) {
    add_ds<decltype(real)>(p, head, d_dist_bias, floor, slack,
                           [&](const auto& row, int64_t, int64_t j) {
                             const int64_t t = row.distance(j);
                             return t < p.dist_window ? t : -1;
                           });
  });
}

}  // namespace tandem
