// SPDX-License-Identifier: MIT OR Apache-2.0
#include "reference.h"

#include "element.h"
#include "pool.h"

namespace tandem {
namespace {

int64_t element_count(int64_t batch, int64_t heads, int64_t rows, int64_t features) {
  return batch * heads * rows * features;
}

// Calls each(contiguous index, strided index) for every element.
template <typename Each>
void for_each_element(const Strides& t, int64_t batch, int64_t heads, int64_t rows,
                      int64_t features, Each&& each) {
  int64_t n = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t s = 0; s < rows; ++s)
        for (int64_t d = 0; d < features; ++d) each(n++, b * t.b + h * t.h + s * t.s + d * t.d);
}

double* at(std::vector<double>& v, int64_t index) {
  return v.empty() ? nullptr : &v[size_t(index)];
}
const double* at(const std::vector<double>& v, int64_t index) {
  return v.empty() ? nullptr : &v[size_t(index)];
}

}  // namespace

std::vector<double> gather(const void* base, tandem_dtype dtype, const Strides& strides,
                           int64_t batch, int64_t heads, int64_t rows, int64_t features) {
  std::vector<double> to(size_t(element_count(batch, heads, rows, features)));
  for_each_element(strides, batch, heads, rows, features,
                   [&](int64_t n, int64_t at) { to[size_t(n)] = load_element(base, at, dtype); });
  return to;
}

void scatter(const std::vector<double>& from, void* base, tandem_dtype dtype,
             const Strides& strides, int64_t batch, int64_t heads, int64_t rows, int64_t features) {
  for_each_element(strides, batch, heads, rows, features,
                   [&](int64_t n, int64_t at) { store_element(base, at, dtype, from[size_t(n)]); });
}

Reference reference(const Problem& p, const RefInputs& inputs, Precision precision,
                    unsigned threads) {
  const int64_t B = p.batch, Hq = p.heads_q, Hk = p.heads_kv, Sq = p.seq_q, Sk = p.seq_kv;
  const int64_t D = p.head_dim, Dv = p.head_dim_v;
  const bool floors = precision == Precision::exact;
  Reference r;
  const auto sized = [](bool wanted, int64_t count) {
    return std::vector<double>(size_t(wanted ? count : 0));
  };
  r.o = sized(true, B * Hq * Sq * Dv);
  r.o_floor = sized(floors, B * Hq * Sq * Dv);
  r.lse = sized(true, B * Hq * Sq);
  r.delta = sized(p.backward, B * Hq * Sq);
  r.d_q = sized(p.wants(TANDEM_GRAD_Q), B * Hq * Sq * D);
  r.d_k = sized(p.wants(TANDEM_GRAD_K), B * Hk * Sk * D);
  r.d_v = sized(p.wants(TANDEM_GRAD_V), B * Hk * Sk * Dv);
  r.d_q_floor = sized(floors, int64_t(r.d_q.size()));
  r.d_k_floor = sized(floors, int64_t(r.d_k.size()));
  r.d_v_floor = sized(floors, int64_t(r.d_v.size()));
  if (B == 0 || Hq == 0) return r;

  // first: the first of the query heads that a call reads.
  const auto head = [&](int64_t first, int64_t kv) {
    RefHead x;
    x.q = at(inputs.q, first * Sq * D);
    x.k = at(inputs.k, kv * Sk * D);
    x.v = at(inputs.v, kv * Sk * Dv);
    x.d_o = at(inputs.d_o, first * Sq * Dv);
    x.o = at(r.o, first * Sq * Dv);
    x.lse = at(r.lse, first * Sq);
    x.delta = at(r.delta, first * Sq);
    return x;
  };
  Pool pool(threads == 0 ? 1 : threads);
  const int64_t group = p.group();
  if (Sq > 0)
    pool.run(B * Hq, [&](int64_t h, void*) {
      const RefHead x = head(h, h / group);
      fwd_ref(p, precision, x, at(r.o, h * Sq * Dv), at(r.lse, h * Sq), at(r.o_floor, h * Sq * Dv));
      if (!p.backward) return;
      bwd_dot_ref(p, precision, x, at(r.delta, h * Sq));
      if (p.wants(TANDEM_GRAD_Q))
        bwd_dq_ref(p, precision, x, at(r.d_q, h * Sq * D), at(r.d_q_floor, h * Sq * D));
    });
  if (Sk > 0 && p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V))
    pool.run(B * Hk, [&](int64_t h, void*) {
      bwd_dkv_ref(p, precision, head(h * group, h), at(r.d_k, h * Sk * D), at(r.d_v, h * Sk * Dv),
                  at(r.d_k_floor, h * Sk * D), at(r.d_v_floor, h * Sk * Dv));
    });
  return r;
}

}  // namespace tandem
