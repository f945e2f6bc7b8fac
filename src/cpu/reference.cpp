// SPDX-License-Identifier: MIT OR Apache-2.0
#include "reference.h"

#include "element.h"
#include "pool.h"
#include "problem/sequence.h"

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

namespace {

struct Size {
  std::vector<double> Reference::*value;
  std::vector<double> Reference::*floor;
  std::vector<double> Reference::*slack;
  bool wanted;
  int64_t count;
};

// Runs the stems of a problem over its heads.
class Whole {
 public:
  Whole(const Problem& problem, const RefInputs& inputs, Precision precision, unsigned threads,
        double score_error, bool round_scores)
      : p(problem),
        in(inputs),
        precision_(precision),
        pool_(threads == 0 ? 1 : threads),
        floors_(precision == Precision::exact),
        score_error_(floors_ ? score_error : 0),
        round_scores_(floors_ && round_scores) {}

  Reference run() {
    size();
    if (p.batch == 0 || p.heads_q == 0) return std::move(r);
    if (p.seq_q > 0) {
      pool_.run(p.batch * p.heads_q, [&](int64_t h, void*) { rows(h); });
      for (int64_t n = 0; n < int64_t(tops_.size()); ++n) {
        double& to =
            r.max_logit[size_t(p.head_number(p.max_logit_batch, n / p.heads_q, n % p.heads_q))];
        to = std::max(to, tops_[size_t(n)]);
      }
      if (!p.backward) return std::move(r);
      if (p.seq_kv > 0 && p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V))
        pool_.run(p.batch * p.heads_kv, [&](int64_t h, void*) { keys(h); });
      if (p.seq_kv > 0 && p.wants(TANDEM_GRAD_BIAS))
        pool_.run(p.bias.batch * p.bias.heads, [&](int64_t n, void*) { bias(n); });
      if (p.seq_kv > 0 && p.wants(TANDEM_GRAD_BIAS_TABLE))
        pool_.run(p.heads_q, [&](int64_t h, void*) { table(h); });
      if (p.wants(TANDEM_GRAD_DIST_BIAS))
        pool_.run(p.heads_q, [&](int64_t h, void*) { dist_bias(h); });
      if (p.wants(kHeadGradients))
        for (int64_t h = 0; h < p.heads_q; ++h) head_sums(h);
    }
    return std::move(r);
  }

 private:
  static constexpr uint32_t kHeadGradients = TANDEM_GRAD_TAU | TANDEM_GRAD_SLOPE | TANDEM_GRAD_SINK;

  void size() {
    const int64_t B = p.batch, Hq = p.heads_q, Hk = p.heads_kv, Sq = p.seq_q, Sk = p.seq_kv;
    const int64_t D = p.head_dim, Dv = p.head_dim_v;
    const auto wants = [&](uint32_t gradient) { return p.wants(gradient); };
    using R = Reference;
    const Size sizes[] = {
        {&R::o, &R::o_floor, &R::o_slack, true, B * Hq * Sq * Dv},
        {&R::d_q, &R::d_q_floor, &R::d_q_slack, wants(TANDEM_GRAD_Q), B * Hq * Sq * D},
        {&R::d_k, &R::d_k_floor, &R::d_k_slack, wants(TANDEM_GRAD_K), B * Hk * Sk * D},
        {&R::d_v, &R::d_v_floor, &R::d_v_slack, wants(TANDEM_GRAD_V), B * Hk * Sk * Dv},
        {&R::d_bias, &R::d_bias_floor, &R::d_bias_slack, wants(TANDEM_GRAD_BIAS),
         gradient_elements(p, TANDEM_GRAD_BIAS)},
        {&R::d_bias_table, &R::d_bias_table_floor, &R::d_bias_table_slack,
         wants(TANDEM_GRAD_BIAS_TABLE), gradient_elements(p, TANDEM_GRAD_BIAS_TABLE)},
        {&R::d_dist_bias, &R::d_dist_bias_floor, &R::d_dist_bias_slack,
         wants(TANDEM_GRAD_DIST_BIAS), gradient_elements(p, TANDEM_GRAD_DIST_BIAS)},
        {&R::d_slope, &R::d_slope_floor, &R::d_slope_slack, wants(TANDEM_GRAD_SLOPE),
         p.slopes_batch * Hq},
        {&R::d_tau, &R::d_tau_floor, &R::d_tau_slack, wants(TANDEM_GRAD_TAU), Hq},
        {&R::d_sink, &R::d_sink_floor, &R::d_sink_slack, wants(TANDEM_GRAD_SINK),
         p.sinks_batch * Hq}};
    for (const Size& s : sizes) {
      const auto count = size_t(s.wanted ? s.count : 0);
      (r.*s.value).resize(count);
      if (floors_) (r.*s.floor).resize(count);
      if (score_error_ > 0) (r.*s.slack).resize(count);
    }
    r.lse.resize(size_t(B * Hq * Sq));
    constexpr double none = -std::numeric_limits<double>::infinity();
    r.max_logit.assign(size_t(p.max_logit_batch * Hq), none);
    tops_.assign(size_t(p.max_logit_batch > 0 ? B * Hq : 0), none);
    if (p.backward) r.delta.resize(size_t(B * Hq * Sq));
    const auto per_row = [&](bool wanted, Part* part) {
      for (std::vector<double>* x : {&part->value, &part->floor, &part->slack})
        x->resize(size_t(wanted ? B * Hq * Sq : 0));
    };
    per_row(p.wants(TANDEM_GRAD_TAU), &tau_);
    per_row(p.wants(TANDEM_GRAD_SLOPE), &slope_);
    per_row(p.wants(TANDEM_GRAD_SINK), &delta_);
    sinks_.resize(size_t(p.wants(TANDEM_GRAD_SINK) ? B * Hq * Sq : 0));
  }

  // Query heads from first on, counted over the batch, and the kv head that they read.
  RefHead heads(int64_t first) const {
    const int64_t b = first / p.heads_q, h = first % p.heads_q, Sq = p.seq_q, Sk = p.seq_kv;
    const int64_t kv = b * p.heads_kv + h / p.group();
    RefHead x;
    x.q = at(in.q, first * Sq * p.head_dim);
    x.k = at(in.k, kv * Sk * p.head_dim);
    x.v = at(in.v, kv * Sk * p.head_dim_v);
    x.d_o = at(in.d_o, first * Sq * p.head_dim_v);
    x.o = at(r.o, first * Sq * p.head_dim_v);
    x.lse = at(r.lse, first * Sq);
    x.delta = at(r.delta, first * Sq);
    if (p.d_lse) x.d_lse = at(in.d_lse, first * Sq);
    const auto overlay = [&](const Overlay& o, int64_t* step) {
      *step = o.heads == p.heads_q ? o.rows * Sk : 0;
      return (p.entry_of(o, b) * o.heads + h / (p.heads_q / o.heads)) * o.rows * Sk;
    };
    if (p.bias) x.bias = in.bias.data() + overlay(p.bias, &x.bias_step);
    if (p.keep) x.keep = in.keep.data() + overlay(p.keep, &x.keep_step);
    if (p.spans) {
      const int64_t head = p.spans.numbers(Sk);
      x.spans_step = p.spans.heads == p.heads_q ? head : 0;
      x.spans = in.spans.data() + p.spans_head(b, h) * head;
    }
    if (p.table) {
      x.bias_table = at(in.bias_table, h * p.table.size);
      x.bias_index = in.bias_index.data() + p.index_entry(b) * Sq * Sk;
    }
    x.dist_bias = at(in.dist_bias, h * p.dist_window);
    x.slope = at(in.slope, p.head_number(p.slopes_batch, b, h));
    x.tau = at(in.tau, h);
    x.sink = at(in.sink, p.head_number(p.sinks_batch, b, h));
    if (!in.lengths_q.empty()) x.q_len = tandem_padded_rows(int(in.lengths_q[size_t(b)]), int(Sq));
    if (!in.lengths_kv.empty())
      x.kv_len = tandem_padded_rows(int(in.lengths_kv[size_t(b)]), int(Sk));
    x.index = first;
    x.dropout_seed = in.dropout_seed;
    x.dropout_offset = in.dropout_offset;
    x.score_error = score_error_;
    x.round_scores = round_scores_;
    return x;
  }

  void rows(int64_t h) {
    const int64_t row = h * p.seq_q, D = p.head_dim, Dv = p.head_dim_v;
    const RefHead x = heads(h);
    fwd_ref(p, precision_, x, at(r.o, row * Dv), at(r.lse, row), at(r.o_floor, row * Dv),
            at(r.o_slack, row * Dv), at(tops_, h));
    if (!p.backward) return;
    RefRows out;
    if (p.delta_is_dot())
      bwd_dot_ref(p, precision_, x, at(r.delta, row));
    else
      out.delta = at(r.delta, row);
    out.tau = at(tau_.value, row);
    out.slope = at(slope_.value, row);
    if (floors_) {
      out.delta_floor = at(delta_.floor, row), out.delta_slack = at(delta_.slack, row);
      out.tau_floor = at(tau_.floor, row), out.tau_slack = at(tau_.slack, row);
      out.slope_floor = at(slope_.floor, row), out.slope_slack = at(slope_.slack, row);
    }
    if (p.wants(TANDEM_GRAD_SINK)) sink_weights_ref(p, precision_, x, at(sinks_, row));
    if (!p.delta_is_dot() || p.wants(kHeadGradients)) bwd_row_sums_ref(p, precision_, x, out);
    if (p.wants(TANDEM_GRAD_Q))
      bwd_dq_ref(p, precision_, x, at(r.d_q, row * D), at(r.d_q_floor, row * D),
                 at(r.d_q_slack, row * D));
  }

  void keys(int64_t h) {
    const int64_t k = h * p.seq_kv * p.head_dim, v = h * p.seq_kv * p.head_dim_v;
    bwd_dkv_ref(p, precision_, heads(h * p.group()), at(r.d_k, k), at(r.d_v, v), at(r.d_k_floor, k),
                at(r.d_v_floor, v), at(r.d_k_slack, k), at(r.d_v_slack, v));
  }

  // d_bias of one (batch, head) of bias, from the query heads that read it.
  void bias(int64_t n) {
    const Overlay& o = p.bias;
    const int64_t readers = p.heads_q / o.heads, size = o.rows * p.seq_kv, to = n * size;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = n % o.heads * readers; h < (n % o.heads + 1) * readers; ++h)
        if (p.entry_of(o, b) == n / o.heads)
          bwd_dbias_ref(p, precision_, heads(b * p.heads_q + h), at(r.d_bias, to),
                        at(r.d_bias_floor, to), at(r.d_bias_slack, to));
    if (precision_ == Precision::stepwise)
      for (int64_t e = to; e < to + size; ++e)
        r.d_bias[size_t(e)] = round_element(r.d_bias[size_t(e)], p.d_bias_dtype);
  }

  void table(int64_t h) {
    const int64_t to = h * p.table.size;
    for (int64_t b = 0; b < p.batch; ++b)
      reduce_table_ref(p, precision_, heads(b * p.heads_q + h), at(r.d_bias_table, to),
                       at(r.d_bias_table_floor, to), at(r.d_bias_table_slack, to));
  }

  void dist_bias(int64_t h) {
    const int64_t to = h * p.dist_window;
    for (int64_t b = 0; b < p.batch; ++b)
      bwd_dist_bias_ref(p, precision_, heads(b * p.heads_q + h), at(r.d_dist_bias, to),
                        at(r.d_dist_bias_floor, to), at(r.d_dist_bias_slack, to));
  }

  void head_sums(int64_t h) {
    const auto sums = [&](const RefHeadParts& parts, std::vector<double>* slope,
                          std::vector<double>* tau, std::vector<double>* d_sink, double sign) {
      const auto each = [&](int64_t entries, auto&& sum) {
        const int64_t size = p.batch / entries;
        for (int64_t n = 0; n < entries; ++n) sum(n * size, (n + 1) * size, n * p.heads_q + h);
      };
      bwd_head_sums_ref(p, precision_, h, 0, p.batch, parts, nullptr, at(*tau, h), nullptr);
      // Floors and slack are sums of magnitudes.
      each(p.slopes_batch, [&](int64_t first, int64_t end, int64_t to) {
        bwd_head_sums_ref(p, precision_, h, first, end, parts, at(*slope, to), nullptr, nullptr);
        if (!slope->empty()) (*slope)[size_t(to)] *= sign;
      });
      each(p.sinks_batch, [&](int64_t first, int64_t end, int64_t to) {
        bwd_head_sums_ref(p, precision_, h, first, end, parts, nullptr, nullptr, at(*d_sink, to));
        if (!d_sink->empty()) (*d_sink)[size_t(to)] *= sign;
      });
    };
    RefHeadParts parts;
    parts.sink = sinks_.data();
    parts.delta = r.delta.data(), parts.tau = tau_.value.data(), parts.slope = slope_.value.data();
    sums(parts, &r.d_slope, &r.d_tau, &r.d_sink, 1);
    if (!floors_) return;
    parts.delta = delta_.floor.data(), parts.tau = tau_.floor.data();
    parts.slope = slope_.floor.data();
    sums(parts, &r.d_slope_floor, &r.d_tau_floor, &r.d_sink_floor, -1);
    parts.delta = delta_.slack.data(), parts.tau = tau_.slack.data();
    parts.slope = slope_.slack.data();
    if (score_error_ > 0) sums(parts, &r.d_slope_slack, &r.d_tau_slack, &r.d_sink_slack, -1);
  }

  struct Part {  // [B,Hq,Sq]
    std::vector<double> value, floor, slack;
  };
  const Problem& p;
  const RefInputs& in;
  const Precision precision_;
  Pool pool_;
  const bool floors_;
  const double score_error_;
  const bool round_scores_;
  Reference r;
  Part delta_, tau_, slope_;
  std::vector<double> sinks_;  // [B,Hq,Sq]: weights of the sinks
  std::vector<double> tops_;   // [B,Hq]: largest logits, if they are wanted
};

}  // namespace

namespace {

Reference merged(const Problem& p, const RefInputs& in, Precision precision) {
  Reference r;
  const int64_t rows = p.batch * p.heads_q * p.seq_q, count = p.parts.count, Dv = p.head_dim_v;
  const bool floors = precision == Precision::exact;
  const auto size = [&](std::vector<double>* x, bool wanted, int64_t n) {
    x->resize(size_t(wanted ? n : 0));
  };
  size(&r.o, !p.backward, rows * Dv);
  size(&r.o_floor, !p.backward && floors, rows * Dv);
  size(&r.lse, !p.backward, rows);
  size(&r.d_part_o, p.backward, count * rows * Dv);
  size(&r.d_part_o_floor, p.backward && floors, count * rows * Dv);
  size(&r.d_part_lse, p.backward, count * rows);
  size(&r.d_part_lse_floor, p.backward && floors, count * rows);
  for (int64_t row = 0; row < rows; row += p.seq_q) {  // heads
    RefParts parts;
    parts.count = count + p.parts.into;
    parts.o = at(in.part_o, row * Dv), parts.o_step = rows * Dv;
    parts.lse = at(in.part_lse, row), parts.lse_step = rows;
    if (p.parts.into) parts.into_o = at(in.into_o, row * Dv), parts.into_lse = at(in.into_lse, row);
    if (!p.backward) {
      merge_ref(p, precision, parts, at(r.o, row * Dv), at(r.lse, row), at(r.o_floor, row * Dv));
      continue;
    }
    RefPartGradients out;
    out.rows = rows;
    out.d_o = at(r.d_part_o, row * Dv), out.d_lse = at(r.d_part_lse, row);
    out.d_o_floor = at(r.d_part_o_floor, row * Dv);
    out.d_lse_floor = at(r.d_part_lse_floor, row);
    bwd_merge_ref(p, precision, parts, at(in.d_o, row * Dv), p.d_lse ? at(in.d_lse, row) : nullptr,
                  out);
  }
  return r;
}

}  // namespace

Reference reference(const Problem& problem, const RefInputs& inputs, Precision precision,
                    unsigned threads, double score_error, bool round_scores) {
  if (problem.parts) return merged(problem, inputs, precision);
  return Whole(problem, inputs, precision, threads, score_error, round_scores).run();
}

}  // namespace tandem
