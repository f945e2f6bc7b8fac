// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot: delta_i = <d_o_i, o_i> - d_lse_i of one query head.
#include "ref_row.h"

namespace tandem {

void bwd_dot_ref(const Problem& p, Precision precision, const RefHead& head, double* delta) {
  with_precision(p, precision, [&](auto real) {
    using Real = decltype(real);
    // rows behind the length are not read
    const int64_t rows = head.q_len < 0 ? p.seq_q : head.q_len;
    for (int64_t i = 0; i < p.seq_q; ++i) {
      Real sum = 0;
      for (int64_t c = 0; i < rows && c < p.head_dim_v; ++c) {
        const int64_t n = i * p.head_dim_v + c;
        sum += stored(Real(head.d_o[n]), p.dtype) * stored(Real(head.o[n]), p.dtype);
      }
      Real x = stored(sum, p.dtype);
      if (head.d_lse && i < rows && head.lse[i] != -std::numeric_limits<double>::infinity())
        x = stored(x - Real(head.d_lse[i]), p.dtype);
      delta[i] = double(x);
    }
  });
}

}  // namespace tandem
