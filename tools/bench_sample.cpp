// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bench_sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cpu/reference.h"
#include "problem.h"

namespace tandem::tool {
namespace {

using support::Dims;
using support::HostTensor;
using support::Role;

constexpr int64_t kBlock = 8;  // rows of a sample

// First rows of the blocks that are looked at: both ends and the middle, the middle off any tile edge.
std::vector<int64_t> block_starts(int64_t size) {
  std::set<int64_t> starts{0};
  if (size > kBlock) starts.insert(size - kBlock);
  if (size > 4 * kBlock) starts.insert(size / 2 - 3);
  return {starts.begin(), starts.end()};
}

// Rows [first, first + count) of a head.
std::vector<double> rows_of(const HostTensor& t, int64_t b, int64_t h, int64_t first,
                            int64_t count) {
  std::vector<double> values;
  values.reserve(size_t(count * t.dims.d));
  for (int64_t s = first; s < first + count; ++s)
    for (int64_t d = 0; d < t.dims.d; ++d) values.push_back(t.get(b, h, s, d));
  return values;
}

struct Sampler {
  const BenchTensors& t;
  Problem p;
  uint32_t dtype;
  double roundings = 0, worst = 0;

  Sampler(const tandem_problem& problem, const BenchTensors& tensors)
      : t(tensors), dtype(problem.q.dtype) {
    const Status status = make_problem(&problem, &p);
    if (!status.ok()) throw support::Error(status.code(), status.message());
    if (p.seq_q == 0 || p.seq_kv == 0) return;
    roundings = support::score_roundings(double(p.scale), p.head_dim,
                                         rows_of(t.q, 0, 0, 0, std::min<int64_t>(p.seq_q, 64)),
                                         rows_of(t.k, 0, 0, 0, std::min<int64_t>(p.seq_kv, 64)));
  }

  // The samples of one tensor, judged together in the end.
  struct Tensor {
    const char* name;
    support::Samples x;
    std::vector<double> got;
  };
  Tensor o{"o", {}, {}}, d_q{"d_q", {}, {}}, d_k{"d_k", {}, {}}, d_v{"d_v", {}, {}};

  void add(Tensor* to, const std::vector<double>& exact, const std::vector<double>& stepwise,
           const std::vector<double>& floor, const std::vector<double>& counts,
           const std::vector<double>& got) {
    append(&to->x.exact, exact);
    append(&to->x.stepwise, stepwise);
    append(&to->x.floor, floor);
    append(&to->x.counts, counts);
    append(&to->got, got);
  }
  void judge(Tensor* tensor, int64_t features) {
    if (tensor->got.empty()) return;
    tensor->x.dims = Dims{1, 1, int64_t(tensor->x.counts.size()), features};
    const support::Judgement j =
        support::judge_rows(tensor->name, tensor->x, dtype, roundings, tensor->got);
    worst = std::max(worst, j.ok ? j.ratio : std::max(j.ratio, 1.01 * support::kRatioLimit));
  }
  static void append(std::vector<double>* to, const std::vector<double>& from) {
    to->insert(to->end(), from.begin(), from.end());
  }
  std::vector<double> key_counts(int64_t first, int64_t rows) const {
    std::vector<double> counts;
    for (int64_t i = first; i < first + rows; ++i) counts.push_back(support::visible_keys(p, i));
    return counts;
  }
  std::vector<double> row_counts(int64_t first, int64_t rows) const {
    std::vector<double> counts;
    for (int64_t j = first; j < first + rows; ++j)
      counts.push_back(double(p.group()) * support::visible_rows(p, j));
    return counts;
  }

  // A problem of the query rows [first, first + rows) alone; only the diagonal moves.
  Problem query_block(int64_t first, int64_t rows) const {
    Problem block = p;
    block.seq_q = rows;
    block.band.off += int(first);
    return block;
  }
  Problem key_block(int64_t first, int64_t rows) const {
    Problem block = p;
    block.seq_kv = rows;
    block.band.off -= int(first);
    return block;
  }
  std::vector<double> lse_of(int64_t b, int64_t h, int64_t first, int64_t count) const {
    const auto at = t.lse.begin() + (b * p.heads_q + h) * p.seq_q + first;
    return std::vector<double>(at, at + count);
  }
  // Both ends of the batch and of the heads.
  std::vector<std::pair<int64_t, int64_t>> heads() const {
    std::vector<std::pair<int64_t, int64_t>> list;
    if (p.batch * p.heads_q == 0) return list;
    list.emplace_back(0, 0);
    if (p.batch * p.heads_q > 1) list.emplace_back(p.batch - 1, p.heads_q - 1);
    return list;
  }

  void query_head(int64_t b, int64_t h);      // o, lse
  void query_gradient(int64_t b, int64_t h);  // d_q
  void kv_gradients(int64_t b, int64_t kv);   // d_k, d_v
};

void Sampler::query_head(int64_t b, int64_t h) {
  const std::vector<double> k = rows_of(t.k, b, h / p.group(), 0, p.seq_kv);
  const std::vector<double> v = rows_of(t.v, b, h / p.group(), 0, p.seq_kv);
  for (int64_t first : block_starts(p.seq_q)) {
    const int64_t rows = std::min(kBlock, p.seq_q - first);
    const Problem block = query_block(first, rows);
    const std::vector<double> q = rows_of(t.q, b, h, first, rows);
    RefHead head;
    head.q = q.data(), head.k = k.data(), head.v = v.data();
    const auto n = size_t(rows * p.head_dim_v);
    const auto count = size_t(rows);
    std::vector<double> exact(n), stepwise(n), floor(n), lse(count), unused(count);
    fwd_ref(block, Precision::exact, head, exact.data(), lse.data(), floor.data());
    fwd_ref(block, Precision::stepwise, head, stepwise.data(), unused.data(), nullptr);
    add(&o, exact, stepwise, floor, key_counts(first, rows), rows_of(t.o, b, h, first, rows));
    const std::vector<double> got = lse_of(b, h, first, rows);
    for (size_t r = 0; r < got.size(); ++r) {
      if (got[r] == lse[r]) continue;
      const double error = std::fabs(got[r] - lse[r]) / (1e-5 * std::max(1.0, std::fabs(lse[r])));
      worst = std::max(worst, std::isnan(error) || std::isinf(lse[r])
                                  ? std::numeric_limits<double>::infinity()
                                  : support::kRatioLimit * error);
    }
  }
}

void Sampler::query_gradient(int64_t b, int64_t h) {
  const std::vector<double> k = rows_of(t.k, b, h / p.group(), 0, p.seq_kv);
  const std::vector<double> v = rows_of(t.v, b, h / p.group(), 0, p.seq_kv);
  for (int64_t first : block_starts(p.seq_q)) {
    const int64_t rows = std::min(kBlock, p.seq_q - first);
    const Problem block = query_block(first, rows);
    const std::vector<double> q = rows_of(t.q, b, h, first, rows);
    const std::vector<double> out = rows_of(t.o, b, h, first, rows);
    const std::vector<double> d_o = rows_of(t.d_o, b, h, first, rows);
    const std::vector<double> lse = lse_of(b, h, first, rows);
    const auto n = size_t(rows * p.head_dim);
    std::vector<double> exact(n), stepwise(n), floor(n), delta(static_cast<size_t>(rows));
    RefHead head;
    head.q = q.data(), head.k = k.data(), head.v = v.data(), head.d_o = d_o.data();
    head.o = out.data(), head.lse = lse.data(), head.delta = delta.data();
    head.stored_lse = true;
    bwd_dot_ref(block, Precision::exact, head, delta.data());
    bwd_dq_ref(block, Precision::exact, head, exact.data(), floor.data());
    bwd_dot_ref(block, Precision::stepwise, head, delta.data());
    bwd_dq_ref(block, Precision::stepwise, head, stepwise.data(), nullptr);
    add(&d_q, exact, stepwise, floor, key_counts(first, rows), rows_of(t.d_q, b, h, first, rows));
  }
}

void Sampler::kv_gradients(int64_t b, int64_t kv) {
  // The whole group of query heads, one after the other.
  std::vector<double> q, d_o, out, lse;
  for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
    append(&q, rows_of(t.q, b, h, 0, p.seq_q));
    append(&d_o, rows_of(t.d_o, b, h, 0, p.seq_q));
    append(&out, rows_of(t.o, b, h, 0, p.seq_q));
    append(&lse, lse_of(b, h, 0, p.seq_q));
  }
  const auto deltas = [&](Precision precision) {
    std::vector<double> delta(lse.size());
    for (int64_t g = 0; g < p.group(); ++g) {
      RefHead one;
      one.o = out.data() + g * p.seq_q * p.head_dim_v;
      one.d_o = d_o.data() + g * p.seq_q * p.head_dim_v;
      one.lse = lse.data() + g * p.seq_q;
      bwd_dot_ref(p, precision, one, delta.data() + g * p.seq_q);
    }
    return delta;
  };
  const std::vector<double> exact_delta = deltas(Precision::exact);
  const std::vector<double> step_delta = deltas(Precision::stepwise);
  for (int64_t first : block_starts(p.seq_kv)) {
    const int64_t rows = std::min(kBlock, p.seq_kv - first);
    const Problem block = key_block(first, rows);
    const std::vector<double> k = rows_of(t.k, b, kv, first, rows);
    const std::vector<double> v = rows_of(t.v, b, kv, first, rows);
    RefHead group;
    group.q = q.data(), group.k = k.data(), group.v = v.data(), group.d_o = d_o.data();
    group.o = out.data(), group.lse = lse.data(), group.delta = exact_delta.data();
    group.stored_lse = true;
    const auto nk = size_t(rows * p.head_dim), nv = size_t(rows * p.head_dim_v);
    std::vector<double> dk(nk), dk_step(nk), dk_floor(nk), dv(nv), dv_step(nv), dv_floor(nv);
    bwd_dkv_ref(block, Precision::exact, group, dk.data(), dv.data(), dk_floor.data(),
                dv_floor.data());
    group.delta = step_delta.data();
    bwd_dkv_ref(block, Precision::stepwise, group, dk_step.data(), dv_step.data(), nullptr,
                nullptr);
    if (p.wants(TANDEM_GRAD_K))
      add(&d_k, dk, dk_step, dk_floor, row_counts(first, rows), rows_of(t.d_k, b, kv, first, rows));
    if (p.wants(TANDEM_GRAD_V))
      add(&d_v, dv, dv_step, dv_floor, row_counts(first, rows), rows_of(t.d_v, b, kv, first, rows));
  }
}

}  // namespace

double forward_ratio(const tandem_problem& problem, const BenchTensors& tensors) {
  Sampler s(problem, tensors);
  for (const auto& [b, h] : s.heads()) s.query_head(b, h);
  s.judge(&s.o, s.p.head_dim_v);
  return s.worst;
}

double backward_ratio(const tandem_problem& problem, const BenchTensors& tensors) {
  Sampler s(problem, tensors);
  for (const auto& [b, h] : s.heads()) {
    if (s.p.wants(TANDEM_GRAD_Q)) s.query_gradient(b, h);
    if (s.p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V)) s.kv_gradients(b, h / s.p.group());
  }
  s.judge(&s.d_q, s.p.head_dim);
  s.judge(&s.d_k, s.p.head_dim);
  s.judge(&s.d_v, s.p.head_dim_v);
  return s.worst;
}

}  // namespace tandem::tool
