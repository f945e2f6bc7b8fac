// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bench_sample.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cpu/reference.h"
#include "problem/block_lists.h"

namespace tandem::tool {
namespace {

using harness::Dims;
using harness::HostTensor;
using harness::Role;

constexpr int64_t kBlock = 8;  // rows of a sample
// Heads of a sample: as many as have so many scores together, two at least.
constexpr int64_t kHeads = 16, kScores = 1 << 16;

// First rows of the blocks that are looked at: both ends and the middle, the middle off any tile
// edge.
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
  std::map<Role, std::vector<double>> heads_of;  // what belongs to heads
  std::vector<double> bias_rows;                 // of the block at hand
  std::vector<uint8_t> keep_rows;
  std::vector<int32_t> span_rows, index_rows;

  Sampler(const tandem_problem& problem, const BenchTensors& tensors)
      : t(tensors), dtype(problem.q.dtype) {
    const Status status = make_problem(&problem, &p);
    if (!status.ok()) throw harness::Error(status.code(), status.message().c_str());
    if (p.seq_q == 0 || p.seq_kv == 0) return;
    const double plain = harness::score_roundings(
        double(p.scale), p.head_dim, rows_of(t[Role::q], 0, 0, 0, std::min<int64_t>(p.seq_q, 64)),
        rows_of(t[Role::k], 0, 0, 0, std::min<int64_t>(p.seq_kv, 64)));
    for (Role role : {Role::bias_table, Role::dist_bias, Role::slope, Role::tau, Role::sink})
      if (harness::is_input(problem, role)) heads_of[role] = t[role].dense();
    // Of the first head's first row: the magnitudes of all rows are alike.
    if (p.bias) heads_of[Role::bias] = rows_of(t[Role::bias], 0, 0, 0, 1);
    roundings = plain + harness::extra_roundings(
                            p, plain, std::max(largest(Role::bias), largest(Role::bias_table)),
                            largest(Role::dist_bias), largest(Role::slope));
  }
  double largest(Role role) {
    double x = 0;
    for (double value : heads_of[role]) x = std::max(x, std::fabs(value));
    return x;
  }

  // The samples of one tensor, judged together in the end.
  struct Tensor {
    const char* name;
    harness::Samples x;
    std::vector<double> got;
  };
  Tensor o{"o", {}, {}}, d_q{"d_q", {}, {}}, d_k{"d_k", {}, {}}, d_v{"d_v", {}, {}};

  void add(Tensor* to, const std::vector<double>& exact, const std::vector<double>& stepwise,
           const std::vector<double>& floor, const std::vector<double>& slack,
           const std::vector<double>& counts, const std::vector<double>& got) {
    append(&to->x.exact, exact);
    append(&to->x.stepwise, stepwise);
    append(&to->x.floor, floor);
    append(&to->x.slack, slack);
    append(&to->x.counts, counts);
    append(&to->got, got);
  }
  void judge(Tensor* tensor, int64_t features) {
    if (tensor->got.empty()) return;
    tensor->x.dims = Dims{1, 1, int64_t(tensor->x.counts.size()), features};
    const harness::Judgement j =
        harness::judge_rows(tensor->name, tensor->x, dtype, roundings, tensor->got);
    worst = std::max(worst, j.ok ? j.ratio : std::max(j.ratio, 1.01 * harness::kRatioLimit));
  }
  static void append(std::vector<double>* to, const std::vector<double>& from) {
    to->insert(to->end(), from.begin(), from.end());
  }
  std::vector<double> key_counts(int64_t first, int64_t rows) const {
    std::vector<double> counts;
    for (int64_t i = first; i < first + rows; ++i) counts.push_back(harness::visible_keys(p, i));
    return counts;
  }
  std::vector<double> row_counts(int64_t first, int64_t rows) const {
    std::vector<double> counts;
    for (int64_t j = first; j < first + rows; ++j)
      counts.push_back(double(p.group()) * harness::visible_rows(p, j));
    return counts;
  }

  // A problem of the query rows [first, first + rows) alone; only the diagonal moves.
  Problem query_block(int64_t first, int64_t rows) const {
    Problem block = p;
    block.seq_q = rows;
    block.band.off += int(first);
    cut_overlays(&block);
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
  // Both ends of the batch and of the heads and, where heads are small, more of them between: a
  // kernel that goes from one to the next may be wrong in those that it does not begin with.
  std::vector<std::pair<int64_t, int64_t>> heads() const {
    std::vector<std::pair<int64_t, int64_t>> list;
    const int64_t all = p.batch * p.heads_q;
    const int64_t count = std::min(
        all, std::clamp<int64_t>(kScores / std::max<int64_t>(p.seq_q * p.seq_kv, 1), 2, kHeads));
    for (int64_t n = 0; n < count; ++n) {
      const int64_t head = count > 1 ? n * (all - 1) / (count - 1) : 0;
      list.emplace_back(head / p.heads_q, head % p.heads_q);
    }
    return list;
  }

  // The optional inputs of the query rows [first, first + rows) of a head.
  void set_extras(int64_t b, int64_t h, int64_t first, int64_t rows, RefHead* head) {
    const auto row = [&](Role role, int64_t width) -> const double* {
      return heads_of.count(role) ? heads_of[role].data() + h * width : nullptr;
    };
    head->bias_table = row(Role::bias_table, p.table.size);
    if (p.table) {
      const std::vector<double> index =
          rows_of(t[Role::bias_index], p.index_entry(b), 0, first, rows);
      index_rows.assign(index.begin(), index.end());
    }
    head->bias_index = index_rows.data();
    head->dist_bias = row(Role::dist_bias, p.dist_window);
    const auto number = [&](Role role, int64_t entries) -> const double* {
      return heads_of.count(role) ? heads_of[role].data() + p.head_number(entries, b, h) : nullptr;
    };
    head->slope = number(Role::slope, p.slopes_batch);
    head->tau = row(Role::tau, 1);
    head->sink = number(Role::sink, p.sinks_batch);
    const auto overlay = [&](Role role, const Overlay& o) {
      const int64_t from = o.rows == 1 ? 0 : first, count = o.rows == 1 ? 1 : rows;
      return rows_of(t[role], p.entry_of(o, b), h / (p.heads_q / o.heads), from, count);
    };
    if (p.bias) bias_rows = overlay(Role::bias, p.bias);
    if (p.blocks) {
      const int64_t of = p.blocks_head(b, h), bh = of / p.blocks.heads, hh = of % p.blocks.heads;
      std::vector<int32_t> lists;
      for (double x : rows_of(t[Role::blocks], bh, hh, 0, p.blocks.rows(p.seq_q)))
        lists.push_back(int32_t(x));
      std::vector<uint32_t> bits;
      if (p.blocks.bits > 0)
        for (double x : rows_of(t[Role::block_bits], bh, hh, 0,
                                p.blocks.rows(p.seq_q) * p.blocks.bits * p.blocks.q))
          bits.push_back(uint32_t(int32_t(x)));
      keep_rows.resize(size_t(rows * p.seq_kv));
      for (int64_t i = 0; i < rows; ++i)
        expand_block_row(p, lists.data(), bits.data(), first + i, &keep_rows[size_t(i * p.seq_kv)]);
    } else if (p.keep) {
      const std::vector<double> keep = overlay(Role::keep, p.keep);
      keep_rows.assign(keep.begin(), keep.end());
    }
    if (p.spans) {  // rows count from the block's first
      const int64_t of = p.spans_head(b, h);
      const std::vector<double> spans =
          rows_of(t[Role::spans], of / p.spans.heads, of % p.spans.heads, 0, p.seq_kv);
      span_rows.clear();
      for (double x : spans)
        span_rows.push_back(int32_t(std::clamp<int64_t>(int64_t(x) - first, -1, rows)));
    }
    head->spans = span_rows.data();
    head->bias = bias_rows.data();
    head->keep = keep_rows.data();
    head->index = b * p.heads_q + h;
    head->score_error = harness::kScoreError;
  }
  // A block's overlays have the block's rows.
  static void cut_overlays(Problem* block) {
    for (Overlay* o : {&block->bias, &block->keep})
      if (*o && o->rows != 1) o->rows = block->seq_q;
  }
  // delta of a block's rows, by whichever of the two ways its normaliser has.
  static void make_delta(const Problem& block, Precision precision, const RefHead& head,
                         double* delta) {
    if (block.delta_is_dot()) return bwd_dot_ref(block, precision, head, delta);
    RefRows rows;
    rows.delta = delta;
    bwd_row_sums_ref(block, precision, head, rows);
  }

  // What the gradients of query rows of a head are formed from. head points into the others.
  struct GradientRows {
    std::vector<double> q, d_o, o, lse, d_lse, delta;
    RefHead head;
  };
  // k, v: all keys of the head's kv head.
  void read_gradient_rows(int64_t b, int64_t h, int64_t first, int64_t rows,
                          const std::vector<double>& k, const std::vector<double>& v,
                          GradientRows* to) {
    to->q = rows_of(t[Role::q], b, h, first, rows);
    to->d_o = rows_of(t[Role::d_o], b, h, first, rows);
    to->o = rows_of(t[Role::o], b, h, first, rows);
    to->lse = lse_of(b, h, first, rows);
    to->delta.resize(size_t(rows));
    RefHead& head = to->head;
    head.q = to->q.data(), head.k = k.data(), head.v = v.data(), head.d_o = to->d_o.data();
    head.o = to->o.data(), head.lse = to->lse.data(), head.delta = to->delta.data();
    head.stored_lse = true;
    if (p.d_lse) {
      to->d_lse = rows_of(t[Role::d_lse], b, h, first, rows);
      head.d_lse = to->d_lse.data();
    }
    set_extras(b, h, first, rows, &head);
  }

  void query_head(int64_t b, int64_t h);      // o, lse
  void query_gradient(int64_t b, int64_t h);  // d_q
  void kv_gradients(int64_t b, int64_t kv);   // d_k, d_v
  void last_keys(int64_t b, int64_t kv);      // of any normaliser, causal
};

void Sampler::query_head(int64_t b, int64_t h) {
  const std::vector<double> k = rows_of(t[Role::k], b, h / p.group(), 0, p.seq_kv);
  const std::vector<double> v = rows_of(t[Role::v], b, h / p.group(), 0, p.seq_kv);
  for (int64_t first : block_starts(p.seq_q)) {
    const int64_t rows = std::min(kBlock, p.seq_q - first);
    const Problem block = query_block(first, rows);
    const std::vector<double> q = rows_of(t[Role::q], b, h, first, rows);
    RefHead head;
    head.q = q.data(), head.k = k.data(), head.v = v.data();
    set_extras(b, h, first, rows, &head);
    const auto n = size_t(rows * p.head_dim_v);
    const auto count = size_t(rows);
    std::vector<double> exact(n), stepwise(n), floor(n), slack(n), lse(count), unused(count);
    fwd_ref(block, Precision::exact, head, exact.data(), lse.data(), floor.data(), slack.data());
    fwd_ref(block, Precision::stepwise, head, stepwise.data(), unused.data(), nullptr);
    add(&o, exact, stepwise, floor, slack, key_counts(first, rows),
        rows_of(t[Role::o], b, h, first, rows));
    const std::vector<double> wrote = lse_of(b, h, first, rows);
    const harness::Judgement j =
        harness::judge_lse(Dims{1, 1, rows, 1}, lse, std::vector<float>(wrote.begin(), wrote.end()),
                           roundings, p.normalizer == Normalizer::entmax);
    worst = std::max(worst, j.ratio);
  }
}

void Sampler::query_gradient(int64_t b, int64_t h) {
  const std::vector<double> k = rows_of(t[Role::k], b, h / p.group(), 0, p.seq_kv);
  const std::vector<double> v = rows_of(t[Role::v], b, h / p.group(), 0, p.seq_kv);
  for (int64_t first : block_starts(p.seq_q)) {
    const int64_t rows = std::min(kBlock, p.seq_q - first);
    const Problem block = query_block(first, rows);
    GradientRows of;
    read_gradient_rows(b, h, first, rows, k, v, &of);
    const auto n = size_t(rows * p.head_dim);
    std::vector<double> exact(n), stepwise(n), floor(n), slack(n);
    make_delta(block, Precision::exact, of.head, of.delta.data());
    bwd_dq_ref(block, Precision::exact, of.head, exact.data(), floor.data(), slack.data());
    make_delta(block, Precision::stepwise, of.head, of.delta.data());
    bwd_dq_ref(block, Precision::stepwise, of.head, stepwise.data(), nullptr);
    add(&d_q, exact, stepwise, floor, slack, key_counts(first, rows),
        rows_of(t[Role::d_q], b, h, first, rows));
  }
}

void Sampler::kv_gradients(int64_t b, int64_t kv) {
  // The whole group of query heads, one after the other.
  std::vector<double> q, d_o, out, lse;
  for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
    append(&q, rows_of(t[Role::q], b, h, 0, p.seq_q));
    append(&d_o, rows_of(t[Role::d_o], b, h, 0, p.seq_q));
    append(&out, rows_of(t[Role::o], b, h, 0, p.seq_q));
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
    const std::vector<double> k = rows_of(t[Role::k], b, kv, first, rows);
    const std::vector<double> v = rows_of(t[Role::v], b, kv, first, rows);
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
      add(&d_k, dk, dk_step, dk_floor, {}, row_counts(first, rows),
          rows_of(t[Role::d_k], b, kv, first, rows));
    if (p.wants(TANDEM_GRAD_V))
      add(&d_v, dv, dv_step, dv_floor, {}, row_counts(first, rows),
          rows_of(t[Role::d_v], b, kv, first, rows));
  }
}

// The last keys of a causal problem are seen by the last queries alone, so that these with all keys
// give their d_k and d_v.
void Sampler::last_keys(int64_t b, int64_t kv) {
  const int64_t keys = std::min<int64_t>({64, p.seq_q, p.seq_kv}), from = p.seq_kv - keys;
  // Row i sees keys up to i + off.
  const int64_t first = std::max<int64_t>(0, from - p.band.off), rows = p.seq_q - first;
  if (rows <= 0) return;
  const Problem block = query_block(first, rows);
  const std::vector<double> k = rows_of(t[Role::k], b, kv, 0, p.seq_kv);
  const std::vector<double> v = rows_of(t[Role::v], b, kv, 0, p.seq_kv);
  const auto nk = size_t(p.seq_kv * p.head_dim), nv = size_t(p.seq_kv * p.head_dim_v);
  // Head after head of the group, each as a group of one.
  std::vector<double> sums[2][4];  // d_k, d_v: exact, stepwise, floor, slack
  for (int n = 0; n < 4; ++n) sums[0][n].resize(nk), sums[1][n].resize(nv);
  Problem single = block;
  single.heads_q = single.heads_kv;
  for (Overlay* o : {&single.bias, &single.keep})
    if (*o) o->heads = single.heads_kv;
  for (int64_t h = kv * p.group(); h < (kv + 1) * p.group(); ++h) {
    GradientRows of;
    read_gradient_rows(b, h, first, rows, k, v, &of);
    std::vector<double> part[2][4];
    for (int n = 0; n < 4; ++n) part[0][n].resize(nk), part[1][n].resize(nv);
    make_delta(single, Precision::exact, of.head, of.delta.data());
    bwd_dkv_ref(single, Precision::exact, of.head, part[0][0].data(), part[1][0].data(),
                part[0][2].data(), part[1][2].data(), part[0][3].data(), part[1][3].data());
    make_delta(single, Precision::stepwise, of.head, of.delta.data());
    bwd_dkv_ref(single, Precision::stepwise, of.head, part[0][1].data(), part[1][1].data(), nullptr,
                nullptr);
    for (int which = 0; which < 2; ++which)
      for (int n = 0; n < 4; ++n)
        for (size_t at = 0; at < part[which][n].size(); ++at)
          sums[which][n][at] += part[which][n][at];
  }
  const auto tail = [&](const std::vector<double>& values, int64_t width) {
    return std::vector<double>(values.end() - keys * width, values.end());
  };
  for (int which = 0; which < 2; ++which) {
    const Role role = which == 0 ? Role::d_k : Role::d_v;
    const int64_t width = which == 0 ? p.head_dim : p.head_dim_v;
    if (!p.wants(which == 0 ? TANDEM_GRAD_K : TANDEM_GRAD_V)) continue;
    const auto& s = sums[which];
    add(which == 0 ? &d_k : &d_v, tail(s[0], width), tail(s[1], width), tail(s[2], width),
        tail(s[3], width), row_counts(from, keys), rows_of(t[role], b, kv, from, keys));
  }
}

// Whether there are samples at all, and of d_k and d_v.
bool samples_any(const Problem& p) { return p.dropout == 0 && !p.has_lengths(); }
bool samples_keys(const Problem& p) {
  const bool plain = p.extras().empty();
  return samples_any(p) && (plain || p.band.right == 0);
}

Problem checked(const tandem_problem& problem) {
  Problem p;
  const Status status = make_problem(&problem, &p);
  if (!status.ok()) throw harness::Error(status.code(), status.message().c_str());
  return p;
}

}  // namespace

std::vector<std::string> not_sampled(const tandem_problem& problem) {
  const Problem p = checked(problem);
  std::vector<std::string> names;
  for (Role role : harness::kOutputs) {
    if (!harness::is_output(problem, role)) continue;
    const bool keys = role == Role::d_k || role == Role::d_v;
    const bool sampled = role == Role::o || role == Role::d_q ? samples_any(p)
                         : keys                               ? samples_keys(p)
                                                              : false;
    if (!sampled) names.push_back(harness::role_name(role));
  }
  return names;
}

double forward_ratio(const tandem_problem& problem, const BenchTensors& tensors) {
  Sampler s(problem, tensors);
  if (!samples_any(s.p)) return NAN;
  for (const auto& [b, h] : s.heads()) s.query_head(b, h);
  s.judge(&s.o, s.p.head_dim_v);
  return s.worst;
}

double backward_ratio(const tandem_problem& problem, const BenchTensors& tensors) {
  Sampler s(problem, tensors);
  if (!samples_any(s.p)) return NAN;
  for (const auto& [b, h] : s.heads()) {
    if (s.p.wants(TANDEM_GRAD_Q)) s.query_gradient(b, h);
    if (!s.p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V)) continue;
    if (s.p.extras().empty())
      s.kv_gradients(b, h / s.p.group());
    else if (samples_keys(s.p))
      s.last_keys(b, h / s.p.group());
  }
  s.judge(&s.d_q, s.p.head_dim);
  s.judge(&s.d_k, s.p.head_dim);
  s.judge(&s.d_v, s.p.head_dim_v);
  return s.worst;
}

}  // namespace tandem::tool
