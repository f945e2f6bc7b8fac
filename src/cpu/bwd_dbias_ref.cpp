// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dbias: adds one query head's part to the d_bias of the bias that it reads.
#include "ref_gradient.h"

namespace tandem {

void bwd_dbias_ref(const Problem& p, Precision precision, const RefHead& head, double* d_bias,
                   double* floor, double* slack) {
  with_precision(p, precision, [&](auto real) {
    add_ds<decltype(real)>(p, head, d_bias, floor, slack, [&](const auto&, int64_t i, int64_t j) {
      return (p.bias.rows == 1 ? 0 : i * p.seq_kv) + j;
    });
  });
}

}  // namespace tandem
