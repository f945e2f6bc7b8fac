// SPDX-License-Identifier: MIT OR Apache-2.0
// reduce_table: adds one query head's part to the gradient of its table of biases. GPUs sum the
// gradient of each pair's bias; this sums ds itself.
#include "ref_gradient.h"

namespace tandem {

void reduce_table_ref(const Problem& p, Precision precision, const RefHead& head,
                      double* d_bias_table, double* floor, double* slack) {
  with_precision(p, precision, [&](auto real) {
    add_ds<decltype(real)>(p, head, d_bias_table, floor, slack,
                           [&](const auto&, int64_t i, int64_t j) -> int64_t {
                             const int64_t n = head.bias_index[i * p.seq_kv + j];
                             return n < p.table.size ? n : -1;
                           });
  });
}

}  // namespace tandem
