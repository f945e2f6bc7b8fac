// SPDX-License-Identifier: MIT OR Apache-2.0
// Path cpu.ref: the reference on the tensors of an execute. A unit is one head, group, or tensor of
// a bias.
#include <algorithm>
#include <cmath>
#include <limits>

#include "element.h"
#include "problem/block_lists.h"
#include "program.h"
#include "ref_row.h"
#include "reference.h"
#include "sequences.h"

namespace tandem {
namespace {

// One of q k v o, or a gradient of one.
struct Rows {
  const tandem_buffer& buffer;
  const Strides& strides;
  int64_t size, features;  // number of rows with padding, Sq or Sk
};

// Elements [first, first + count) of an array of the type Problem::side_dtype().
Vec<double> load_side(const Problem& p, const char* base, int64_t first, int64_t count) {
  Vec<double> to(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n) to[size_t(n)] = load_element(base, first + n, p.side_dtype());
  return to;
}
void store_side(const Problem& p, const Vec<double>& from, char* base, int64_t first) {
  for (size_t n = 0; n < from.size(); ++n)
    store_element(base, first + int64_t(n), p.side_dtype(), from[n]);
}

// What all units of an execute share.
struct Call {
  const Problem& p;
  const tandem_args& args;
  Sequences q, kv;
  bool shared;  // entries have rows in common
  Vec<double> bias_table, dist_bias, slope, tau, sink;
  Vec<int32_t> bias_index;  // [index batch, Sq, Sk]

  Call(const Problem& problem, const tandem_args& given)
      : p(problem),
        args(given),
        q(p.lengths_q, args.lengths_q, args.offsets_q, p.seq_q, p.total_q),
        kv(p.lengths_kv, args.lengths_kv, args.offsets_kv, p.seq_kv, p.total_kv) {
    Vec<TandemSequence> places(size_t(q.packed || kv.packed ? p.batch : 0));
    shared = q.are_shared(p.batch, places.data()) || kv.are_shared(p.batch, places.data());
    // What no query reads need not be given, and its address is not looked at.
    const bool queries = p.batch * p.heads_q * p.seq_q > 0,
               pairs = queries && p.heads_kv * p.seq_kv > 0;
    const auto get = [&](bool present, bool read, const tandem_buffer& buffer, int64_t count) {
      return present && read ? load_side(p, address<const char>(buffer), 0, count)
                             : Vec<double>(size_t(present ? count : 0));
    };
    bias_table = get(bool(p.table), pairs, args.bias_table, p.heads_q * p.table.size);
    if (p.table && pairs) load_index();
    dist_bias = get(p.dist_window > 0, pairs, args.dist_bias, p.heads_q * p.dist_window);
    slope = get(p.alibi, pairs, args.slope, p.slopes_batch * p.heads_q);
    tau = get(p.normalizer == Normalizer::elastic, pairs, args.tau, p.heads_q);
    sink = get(p.sink, queries, args.sink, p.sinks_batch * p.heads_q);
  }

  void load_index() {
    const int64_t count = p.table.batch * p.seq_q * p.seq_kv;
    bias_index.resize(size_t(count));
    const auto copy = [&](auto element) {
      const auto* from = address<const decltype(element)>(args.bias_index);
      for (int64_t n = 0; n < count; ++n) bias_index[size_t(n)] = int32_t(from[n]);
    };
    if (p.table.index == TANDEM_U8) return copy(uint8_t());
    if (p.table.index == TANDEM_U16) return copy(uint16_t());
    copy(int32_t());
  }

  // Loads heads heads of entry b as [heads, size, features], with zeros behind its length.
  Vec<double> gather(const Rows& t, const Sequences& rows, int64_t b, int64_t first,
                     int64_t heads) const {
    Vec<double> to(size_t(heads * t.size * t.features));
    const int64_t base = b * t.strides.b + rows.first(b) * t.strides.s;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < rows.rows(b); ++i)
        for (int64_t c = 0; c < t.features; ++c)
          to[size_t((h * t.size + i) * t.features + c)] = load_element(
              address<const char>(t.buffer),
              base + (first + h) * t.strides.h + i * t.strides.s + c * t.strides.d, p.dtype);
    return to;
  }
  // Stores one head. Rows behind a length are stored if they are padding.
  void scatter(const Vec<double>& from, const Rows& t, const Sequences& rows, int64_t b,
               int64_t h) const {
    const int64_t base = b * t.strides.b + rows.first(b) * t.strides.s + h * t.strides.h;
    const int64_t count = rows.packed ? rows.rows(b) : t.size;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < t.features; ++c)
        store_element(address<char>(t.buffer), base + i * t.strides.s + c * t.strides.d, p.dtype,
                      from[size_t(i * t.features + c)]);
  }

  // The rows of bias or keep that query heads [first, first + heads) of entry b read. step:
  // distance from one head's rows to the next one's.
  template <typename T, typename Load>
  Vec<T> overlay(const Overlay& o, int64_t b, int64_t first, int64_t heads, int64_t* step,
                 Load&& load) const {
    Vec<T> to;
    const int64_t Sk = p.seq_kv, readers = p.heads_q / o.heads;
    *step = readers == 1 ? o.rows * Sk : 0;
    for (int64_t h = first / readers; h <= (first + heads - 1) / readers; ++h)
      for (int64_t i = 0; i < o.rows; ++i)
        for (int64_t j = 0; j < Sk; ++j)
          to.push_back(T(load(p.entry_of(o, b) * o.strides.b + h * o.strides.h + i * o.strides.s +
                              j * o.strides.d)));
    return to;
  }
};

class RefProgram final : public Program {
 public:
  RefProgram(const Plan& plan, Pool& pool)
      : plan_(plan), pool_(pool), threads_(worth_threads(plan.problem, kFlopsOfThread)) {}

  Status record(tandem_stream, const tandem_args& args) const override {
    const Problem& p = plan_.problem;
    const Call call(p, args);
    for (const Launch& launch : plan_.launches) {
      MaxLogits largest(p, launch.stem == Stem::fwd ? 1 : 0);
      const auto run = [&](int64_t batch, int64_t heads, auto&& unit) {
        // If entries share rows, each entry writes them, so they run on one thread (alone).
        pool_.run(
            batch * heads, [&](int64_t n, void*) { unit(call, n / heads, n % heads); },
            call.shared ? 1 : threads_);
      };
      const auto is = [&](void (RefProgram::*unit)(const Call&, int64_t, int64_t) const) {
        return [this, unit](const Call& c, int64_t b, int64_t h) { (this->*unit)(c, b, h); };
      };
      switch (launch.stem) {
        case Stem::fwd:
          run(p.batch, p.heads_q,
              [&](const Call& c, int64_t b, int64_t h) { fwd(c, b, h, largest.of(b, h, 0)); });
          largest.raise(p, address<float>(args.max_logit));
          break;
        case Stem::bwd_dot:
        case Stem::bwd_row_sums:
          run(p.batch, p.heads_q, is(&RefProgram::delta));
          break;
        case Stem::bwd_dkv:
          run(p.batch, p.heads_kv, is(&RefProgram::dkv));
          break;
        case Stem::bwd_dq:
          run(p.batch, p.heads_q, is(&RefProgram::dq));
          break;
        case Stem::bwd_dbias:
          run(p.bias.batch, p.bias.heads, is(&RefProgram::dbias));
          break;
        case Stem::reduce_table:
          run(1, p.heads_q, is(&RefProgram::dtable));
          break;
        case Stem::bwd_dist_bias:
          run(1, p.heads_q, is(&RefProgram::ddist));
          break;
        case Stem::bwd_head_sums:
          head_sums(call);
          break;
        case Stem::merge:
        case Stem::bwd_merge:
          run(p.batch, p.heads_q, is(&RefProgram::merge));
          break;
        default:  // bwd_sum_splits: sums are never split here
          break;
      }
    }
    return Status();
  }

 private:
  struct Arrays : HostObject {
    Vec<double> q, k, v, o, d_o, lse, d_lse, delta, bias;
    Vec<uint8_t> keep;
    RefHead head;
  };

  char* workspace(const Call& call, Scratch name) const {
    return address<char>(call.args.workspace) + plan_.scratch[name].offset;
  }
  int64_t first_row(int64_t b, int64_t h) const {
    return (b * plan_.problem.heads_q + h) * plan_.problem.seq_q;
  }
  Rows rows(const tandem_buffer& buffer, const Strides& strides, bool kv, bool value) const {
    const Problem& p = plan_.problem;
    return {buffer, strides, kv ? p.seq_kv : p.seq_q, value ? p.head_dim_v : p.head_dim};
  }

  // Loads query heads [first, first + heads) of entry b with their kv head, as far as the stem
  // reads them.
  std::unique_ptr<Arrays> load(Stem stem, const Call& call, int64_t b, int64_t first,
                               int64_t heads) const {
    const Problem& p = call.p;
    const tandem_args& args = call.args;
    auto arrays = std::make_unique<Arrays>();
    Arrays& a = *arrays;
    const auto of_queries = [&](const tandem_buffer& buffer, const Strides& t, bool value) {
      return call.gather(rows(buffer, t, false, value), call.q, b, first, heads);
    };
    RefHead& x = a.head;
    x.stored_lse = x.stored_delta = p.side_dtype() == TANDEM_F32;
    x.q_len = call.q.rows(b);
    x.kv_len = call.kv.rows(b);
    if (stem == Stem::bwd_dot) {
      a.o = of_queries(args.o, p.o, true);
    } else {
      const int64_t kv = heads == 0 ? 0 : first / p.group();
      a.q = of_queries(args.q, p.q, false);
      a.k = call.gather(rows(args.k, p.k, true, false), call.kv, b, kv, 1);
      a.v = call.gather(rows(args.v, p.v, true, true), call.kv, b, kv, 1);
      load_extras(call, b, first, heads, &a);
    }
    if (stem != Stem::fwd) a.d_o = of_queries(args.d_o, p.d_o, true);
    if (stem != Stem::fwd) {
      const int64_t row = first_row(b, first), count = heads * p.seq_q;
      if (count > 0) a.lse = load_side(p, address<const char>(args.lse), row, count);
      if (count > 0 && p.d_lse) a.d_lse = load_side(p, address<const char>(args.d_lse), row, count);
      if (count > 0 && stem != Stem::bwd_dot && stem != Stem::bwd_row_sums && p.needs_delta())
        a.delta = load_side(p, workspace(call, Scratch::delta), row, count);
    }
    x.q = a.q.data(), x.k = a.k.data(), x.v = a.v.data(), x.o = a.o.data(), x.d_o = a.d_o.data();
    x.lse = a.lse.data(), x.delta = a.delta.data();
    if (p.d_lse) x.d_lse = a.d_lse.data();
    return arrays;
  }

  void load_extras(const Call& call, int64_t b, int64_t first, int64_t heads, Arrays* a) const {
    const Problem& p = call.p;
    RefHead& x = a->head;
    x.dist_bias = call.dist_bias.data() + first * p.dist_window;
    x.slope = call.slope.data() + (p.alibi ? p.head_number(p.slopes_batch, b, first) : 0);
    x.tau = call.tau.data() + (p.normalizer == Normalizer::elastic ? first : 0);
    x.sink = call.sink.data() + (p.sink ? p.head_number(p.sinks_batch, b, first) : 0);
    x.index = b * p.heads_q + first;
    x.dropout_seed = call.args.dropout_seed;
    x.dropout_offset = call.args.dropout_offset;
    if (heads * p.seq_q * p.seq_kv == 0) return;  // the other inputs need not be given then
    if (p.bias) {
      const char* base = address<const char>(call.args.bias);
      a->bias = call.overlay<double>(p.bias, b, first, heads, &x.bias_step, [&](int64_t at) {
        return load_element(base, at, p.bias.dtype);
      });
    }
    if (p.blocks) {
      const int64_t Sk = p.seq_kv, head = p.seq_q * Sk, of = p.blocks_head(b, first),
                    count = p.blocks_head(b, first + heads - 1) - of + 1;
      x.keep_step = p.blocks.heads == p.heads_q ? head : 0;
      a->keep.resize(size_t(count * head));
      const auto* lists = address<const int32_t>(call.args.blocks);
      const auto* bits = address<const uint32_t>(call.args.block_bits);
      for (int64_t n = 0; n < count; ++n)
        expand_blocks(p, lists + (of + n) * p.blocks.numbers(p.seq_q),
                      bits ? bits + (of + n) * p.blocks.words(p.seq_q) : nullptr,
                      &a->keep[size_t(n * head)]);
    } else if (p.keep) {
      const auto* base = address<const uint8_t>(call.args.keep);
      a->keep = call.overlay<uint8_t>(p.keep, b, first, heads, &x.keep_step,
                                      [&](int64_t at) { return base[at]; });
    }
    if (p.spans) {
      const int64_t head = p.spans.numbers(p.seq_kv);
      x.spans_step = p.spans.heads == p.heads_q ? head : 0;
      x.spans = address<const int32_t>(call.args.spans) + p.spans_head(b, first) * head;
    }
    if (p.table) {
      x.bias_table = call.bias_table.data() + first * p.table.size;
      x.bias_index = call.bias_index.data() + p.index_entry(b) * p.seq_q * p.seq_kv;
    }
    x.bias = a->bias.data();
    x.keep = a->keep.data();
  }

  // top: the largest logit of the head, which is raised; null: not wanted.
  void fwd(const Call& call, int64_t b, int64_t h, float* top) const {
    const Problem& p = call.p;
    const auto a = load(Stem::fwd, call, b, h, 1);
    Vec<double> o(size_t(p.seq_q * p.head_dim_v)), per_row(size_t(p.seq_q));
    double largest = -std::numeric_limits<double>::infinity();
    fwd_ref(p, Precision::exact, a->head, o.data(), per_row.data(), nullptr, nullptr, &largest);
    if (top) *top = float(largest);
    call.scatter(o, rows(call.args.o, p.o, false, true), call.q, b, h);
    if (auto* lse = address<char>(call.args.lse)) {
      // A row that sees a key keeps a finite lse. Otherwise its gradients would be those of a row
      // that sees none.
      const double most = p.side_dtype() == TANDEM_F64 ? std::numeric_limits<double>::max()
                                                       : std::numeric_limits<float>::max();
      for (double& x : per_row)
        if (std::isfinite(x)) x = std::clamp(x, -most, most);
      store_side(p, per_row, lse, first_row(b, h));
    }
  }

  // One head's rows of a tensor in memory as doubles, and back.
  static Vec<double> rows_of(const Problem& p, const char* from, const Strides& t,
                             tandem_dtype dtype, int64_t base) {
    Vec<double> to(size_t(p.seq_q * p.head_dim_v));
    for (int64_t i = 0; i < p.seq_q; ++i)
      for (int64_t c = 0; c < p.head_dim_v; ++c)
        to[size_t(i * p.head_dim_v + c)] = load_element(from, base + i * t.s + c * t.d, dtype);
    return to;
  }
  static void put_rows(const Problem& p, const double* from, char* to, const Strides& t,
                       tandem_dtype dtype, int64_t base) {
    for (int64_t i = 0; i < p.seq_q; ++i)
      for (int64_t c = 0; c < p.head_dim_v; ++c)
        store_element(to, base + i * t.s + c * t.d, dtype, from[i * p.head_dim_v + c]);
  }

  // merge, or bwd_merge.
  void merge(const Call& call, int64_t b, int64_t h) const {
    const Problem& p = call.p;
    const tandem_args& args = call.args;
    const int64_t all = p.batch * p.heads_q * p.seq_q, first = first_row(b, h), Dv = p.head_dim_v,
                  count = p.parts.count;
    const auto base = [&](const Strides& t) { return b * t.b + h * t.h; };
    Vec<double> o, lse, into_o, into_lse;
    for (int64_t n = 0; n < count; ++n) {
      const Vec<double> of_part = rows_of(p, address<const char>(args.part_o), p.part_o,
                                          p.parts.dtype, base(p.part_o) + n * p.parts.stride);
      o.insert(o.end(), of_part.begin(), of_part.end());
      const Vec<double> of_rows =
          load_side(p, address<const char>(args.part_lse), n * all + first, p.seq_q);
      lse.insert(lse.end(), of_rows.begin(), of_rows.end());
    }
    RefParts parts;
    parts.count = count + p.parts.into;
    parts.o = o.data(), parts.o_step = p.seq_q * Dv;
    parts.lse = lse.data(), parts.lse_step = p.seq_q;
    if (!p.backward) {
      auto* merged = address<char>(args.o);
      auto* merged_lse = address<char>(args.lse);
      if (p.parts.into) {
        into_o = rows_of(p, merged, p.o, p.dtype, base(p.o));
        into_lse = load_side(p, merged_lse, first, p.seq_q);
        parts.into_o = into_o.data(), parts.into_lse = into_lse.data();
      }
      Vec<double> sum(size_t(p.seq_q * Dv)), sum_lse(size_t(p.seq_q));
      merge_ref(p, Precision::exact, parts, sum.data(), sum_lse.data(), nullptr);
      put_rows(p, sum.data(), merged, p.o, p.dtype, base(p.o));
      if (merged_lse) store_side(p, sum_lse, merged_lse, first);
      return;
    }
    const Vec<double> d_o = rows_of(p, address<const char>(args.d_o), p.d_o, p.dtype, base(p.d_o));
    Vec<double> d_lse, d_part_o(size_t(count * p.seq_q * Dv)), d_part_lse(size_t(count * p.seq_q));
    if (p.d_lse) d_lse = load_side(p, address<const char>(args.d_lse), first, p.seq_q);
    RefPartGradients out;
    out.rows = p.seq_q;
    out.d_o = d_part_o.data(), out.d_lse = d_part_lse.data();
    bwd_merge_ref(p, Precision::exact, parts, d_o.data(), p.d_lse ? d_lse.data() : nullptr, out);
    for (int64_t n = 0; n < count; ++n) {
      put_rows(p, &d_part_o[size_t(n * p.seq_q * Dv)], address<char>(args.d_part_o), p.d_part_o,
               p.parts.dtype, base(p.d_part_o) + n * p.parts.d_stride);
      for (int64_t i = 0; i < p.seq_q; ++i)
        store_element(address<char>(args.d_part_lse), n * all + first + i, p.side_dtype(),
                      d_part_lse[size_t(n * p.seq_q + i)]);
    }
  }

  void delta(const Call& call, int64_t b, int64_t h) const {
    const Problem& p = call.p;
    const int64_t row = first_row(b, h);
    const auto n = size_t(p.seq_q);
    Vec<double> delta(n), tau(n), slope(n);
    if (plan_.find(Stem::bwd_dot)) {
      bwd_dot_ref(p, Precision::exact, load(Stem::bwd_dot, call, b, h, 1)->head, delta.data());
      if (!p.part_of_keys) far_deltas(call, b, h, &delta);
    } else {
      RefRows out;
      out.delta = delta.data(), out.tau = tau.data(), out.slope = slope.data();
      bwd_row_sums_ref(p, Precision::exact, load(Stem::bwd_row_sums, call, b, h, 1)->head, out);
    }
    store_side(p, delta, workspace(call, Scratch::delta), row);
    if (p.wants(TANDEM_GRAD_TAU)) store_side(p, tau, workspace(call, Scratch::tau_rows), row);
    if (p.wants(TANDEM_GRAD_SLOPE)) store_side(p, slope, workspace(call, Scratch::slope_rows), row);
  }

  // Far rows have the delta of the weights that the other stems recompute, whichever kernel made o.
  void far_deltas(const Call& call, int64_t b, int64_t h, Vec<double>* delta) const {
    const Problem& p = call.p;
    const Vec<double> lse =
        load_side(p, address<const char>(call.args.lse), first_row(b, h), p.seq_q);
    if (std::none_of(lse.begin(), lse.end(), is_far)) return;
    Vec<double> own(delta->size());
    RefRows out;
    out.delta = own.data();
    bwd_row_sums_ref(p, Precision::exact, load(Stem::bwd_row_sums, call, b, h, 1)->head, out);
    for (size_t i = 0; i < own.size(); ++i)
      if (is_far(lse[i])) (*delta)[i] = own[i];
  }

  void dq(const Call& call, int64_t b, int64_t h) const {
    const Problem& p = call.p;
    const auto a = load(Stem::bwd_dq, call, b, h, 1);
    Vec<double> d_q(size_t(p.seq_q * p.head_dim));
    bwd_dq_ref(p, Precision::exact, a->head, d_q.data(), nullptr);
    call.scatter(d_q, rows(call.args.d_q, p.d_q, false, false), call.q, b, h);
  }

  void dkv(const Call& call, int64_t b, int64_t h) const {
    const Problem& p = call.p;
    const auto a = load(Stem::bwd_dkv, call, b, h * p.group(), p.group());
    Vec<double> d_k(size_t(p.wants(TANDEM_GRAD_K) ? p.seq_kv * p.head_dim : 0));
    Vec<double> d_v(size_t(p.wants(TANDEM_GRAD_V) ? p.seq_kv * p.head_dim_v : 0));
    bwd_dkv_ref(p, Precision::exact, a->head, d_k.empty() ? nullptr : d_k.data(),
                d_v.empty() ? nullptr : d_v.data(), nullptr, nullptr);
    if (!d_k.empty()) call.scatter(d_k, rows(call.args.d_k, p.d_k, true, false), call.kv, b, h);
    if (!d_v.empty()) call.scatter(d_v, rows(call.args.d_v, p.d_v, true, true), call.kv, b, h);
  }

  // d_bias of one (batch, head) of bias, over the query heads that read it.
  void dbias(const Call& call, int64_t bias_batch, int64_t bias_head) const {
    const Problem& p = call.p;
    const Overlay& o = p.bias;
    Vec<double> sum(size_t(o.rows * p.seq_kv));
    const int64_t readers = p.heads_q / o.heads;
    for (int64_t b = 0; p.seq_q > 0 && b < p.batch; ++b)
      for (int64_t h = bias_head * readers; h < (bias_head + 1) * readers; ++h)
        if (p.entry_of(o, b) == bias_batch)
          bwd_dbias_ref(p, Precision::exact, load(Stem::bwd_dbias, call, b, h, 1)->head, sum.data(),
                        nullptr, nullptr);
    const Strides& t = p.d_bias;
    const int64_t base = bias_batch * t.b + bias_head * t.h;
    for (int64_t i = 0; i < o.rows; ++i)
      for (int64_t j = 0; j < p.seq_kv; ++j)
        store_element(address<char>(call.args.d_bias), base + i * t.s + j * t.d, p.d_bias_dtype,
                      sum[size_t(i * p.seq_kv + j)]);
  }

  void dtable(const Call& call, int64_t, int64_t h) const {
    const Problem& p = call.p;
    Vec<double> sum(size_t(p.table.size));
    for (int64_t b = 0; p.seq_q > 0 && p.seq_kv > 0 && b < p.batch; ++b)
      reduce_table_ref(p, Precision::exact, load(Stem::reduce_table, call, b, h, 1)->head,
                       sum.data(), nullptr, nullptr);
    store_side(p, sum, address<char>(call.args.d_bias_table), h * p.table.size);
  }

  void ddist(const Call& call, int64_t, int64_t h) const {
    const Problem& p = call.p;
    Vec<double> sum(size_t(p.dist_window));
    for (int64_t b = 0; p.seq_q > 0 && b < p.batch; ++b)
      bwd_dist_bias_ref(p, Precision::exact, load(Stem::bwd_dist_bias, call, b, h, 1)->head,
                        sum.data(), nullptr, nullptr);
    store_side(p, sum, address<char>(call.args.d_dist_bias), h * p.dist_window);
  }

  void head_sums(const Call& call) const {
    const Problem& p = call.p;
    const int64_t count = p.batch * p.heads_q * p.seq_q;
    const bool slope = p.wants(TANDEM_GRAD_SLOPE), tau = p.wants(TANDEM_GRAD_TAU),
               sink = p.wants(TANDEM_GRAD_SINK);
    const auto part = [&](bool wanted, Scratch name) {
      return wanted && count > 0 ? load_side(p, workspace(call, name), 0, count) : Vec<double>();
    };
    const Vec<double> delta = part(sink, Scratch::delta), taus = part(tau, Scratch::tau_rows),
                      slopes = part(slope, Scratch::slope_rows);
    Vec<double> sinks(size_t(sink ? count : 0));
    for (int64_t n = 0; sink && p.seq_q > 0 && n < p.batch * p.heads_q; ++n)
      sink_weights(call, n / p.heads_q, n % p.heads_q, &sinks[size_t(n * p.seq_q)]);
    RefHeadParts parts;
    parts.sink = sinks.data(), parts.delta = delta.data(), parts.tau = taus.data();
    parts.slope = slopes.data();
    for (int64_t h = 0; h < p.heads_q; ++h) {
      // The entries of a group are side by side.
      const auto each = [&](bool wanted, int64_t entries, const tandem_buffer& to, int which) {
        for (int64_t n = 0; wanted && n < entries; ++n) {
          const int64_t size = p.batch / entries;
          double sum = 0;
          bwd_head_sums_ref(p, Precision::exact, h, n * size, (n + 1) * size, parts,
                            which == 0 ? &sum : nullptr, which == 1 ? &sum : nullptr,
                            which == 2 ? &sum : nullptr);
          store_element(address<char>(to), n * p.heads_q + h, p.side_dtype(), sum);
        }
      };
      each(slope, p.slopes_batch, call.args.d_slope, 0);
      each(tau, 1, call.args.d_tau, 1);
      each(sink, p.sinks_batch, call.args.d_sink, 2);
    }
  }

  void sink_weights(const Call& call, int64_t b, int64_t h, double* to) const {
    const Problem& p = call.p;
    const Vec<double> lse =
        load_side(p, address<const char>(call.args.lse), first_row(b, h), p.seq_q);
    if (std::any_of(lse.begin(), lse.end(), is_far)) {
      sink_weights_ref(p, Precision::exact, load(Stem::bwd_row_sums, call, b, h, 1)->head, to);
      return;
    }
    RefHead head;  // no score is needed
    head.lse = lse.data(), head.sink = &call.sink[size_t(p.head_number(p.sinks_batch, b, h))];
    sink_weights_ref(p, Precision::exact, head, to);
  }

  static bool is_far(double lse) { return ScoreRows<double>::is_far(lse); }

  static constexpr double kFlopsOfThread = 1e5;
  const Plan plan_;
  Pool& pool_;
  const unsigned threads_;
};

}  // namespace

std::unique_ptr<Program> make_ref_program(const Plan& plan, Pool& pool) {
  return std::make_unique<RefProgram>(plan, pool);
}

}  // namespace tandem
