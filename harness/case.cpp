// SPDX-License-Identifier: MIT OR Apache-2.0
// A case's inputs, its reference, and the judgement of what devices made of it.
#include <algorithm>
#include <cmath>

#include "base/usable_threads.h"
#include "case_impl.h"

namespace tandem::harness {
namespace {

constexpr double kMergeRoundings = 8;

// Of those that are finite: a bias that hides a key adds no rounding.
double largest(const std::vector<double>& values) {
  double x = 0;
  for (double v : values)
    if (std::isfinite(v)) x = std::max(x, std::fabs(v));
  return x;
}

void append(Judgement j, CaseResult* result) {
  if (!j.ok) {
    result->ok = false;
    if (result->message.empty()) result->message = j.tensor + ": " + j.where;
  }
  result->judgements.push_back(std::move(j));
}

struct Parts {  // of a Reference, for one output
  std::vector<double> Reference::*value;
  std::vector<double> Reference::*floor;
  std::vector<double> Reference::*slack;
};
Parts parts_of(Role role) {
  switch (role) {
    case Role::o:
      return {&Reference::o, &Reference::o_floor, &Reference::o_slack};
    case Role::d_q:
      return {&Reference::d_q, &Reference::d_q_floor, &Reference::d_q_slack};
    case Role::d_k:
      return {&Reference::d_k, &Reference::d_k_floor, &Reference::d_k_slack};
    case Role::d_v:
      return {&Reference::d_v, &Reference::d_v_floor, &Reference::d_v_slack};
    case Role::d_bias:
      return {&Reference::d_bias, &Reference::d_bias_floor, &Reference::d_bias_slack};
    case Role::d_bias_table:
      return {&Reference::d_bias_table, &Reference::d_bias_table_floor,
              &Reference::d_bias_table_slack};
    case Role::d_dist_bias:
      return {&Reference::d_dist_bias, &Reference::d_dist_bias_floor,
              &Reference::d_dist_bias_slack};
    case Role::d_slope:
      return {&Reference::d_slope, &Reference::d_slope_floor, &Reference::d_slope_slack};
    case Role::d_tau:
      return {&Reference::d_tau, &Reference::d_tau_floor, &Reference::d_tau_slack};
    case Role::d_part_o:
      return {&Reference::d_part_o, &Reference::d_part_o_floor, &Reference::d_part_o_slack};
    case Role::d_part_lse:
      return {&Reference::d_part_lse, &Reference::d_part_lse_floor, &Reference::d_part_lse_slack};
    default:
      return {&Reference::d_sink, &Reference::d_sink_floor, &Reference::d_sink_slack};
  }
}

// Whether a run leaves it: o comes from the forward before a backward.
bool is_left(const tandem_problem& p, Role role) {
  return is_output(p, role) || (role == Role::o && p.direction == TANDEM_BACKWARD);
}

// What no result may depend on: o of a part where it saw no key. A tensor that repeats elements
// keeps its own.
void spoil_hidden(const HostTensor& lse, HostTensor* o) {
  for (int64_t stride : o->layout.stride)
    if (stride == 0) return;
  if (o->dims.b > o->entries && o->entries > 0 && o->step == 0) return;
  int64_t n = 0;
  for (int64_t b = 0; b < o->dims.b; ++b)
    for (int64_t h = 0; h < o->dims.h; ++h)
      for (int64_t s = 0; s < o->dims.s; ++s)
        for (int64_t d = 0; d < o->dims.d && std::isinf(lse.get(b, h, s, 0)); ++d)
          o->set(b, h, s, d, n++ % 3 ? std::nan("") : INFINITY);
}

// A problem as one batch entry has it.
Problem entry_of(const Problem& p, const Sequences& q, const Sequences& kv, int64_t b) {
  Problem entry = p;
  entry.seq_q = q.length[size_t(b)];
  entry.seq_kv = kv.length[size_t(b)];
  if (p.bottom_right) entry.band.off = int(entry.seq_kv - entry.seq_q);
  return entry;
}

// Samples::operand. 1 / (1 - p) may come behind the product.
double operand_of(const Problem& p, Role role, const RefInputs& inputs) {
  const double kept = p.dropout > 0 ? 1 / (1 - double(p.dropout)) : 1;
  const double scale = std::fabs(double(p.scale));
  switch (role) {
    case Role::o:
      return kept * largest(inputs.v);
    case Role::d_q:
      return scale * largest(inputs.k);
    case Role::d_k:
      return scale * largest(inputs.q);
    case Role::d_v:
      return kept * largest(inputs.d_o);
    default:
      return 0;
  }
}

// Terms in the sums of each row of an output, as positions have it.
std::vector<double> counts_of(const Problem& p, Role role, const Dims& dims, const Sequences& q,
                              const Sequences& kv) {
  std::vector<double> counts;
  const auto rows = [&](int64_t n, double count) { counts.insert(counts.end(), size_t(n), count); };
  if (p.parts) {
    rows(dims.b * dims.h * dims.s, role == Role::o          ? p.parts.count + p.parts.into
                                   : role == Role::d_part_o ? 1
                                                            : double(p.head_dim_v));
    return counts;
  }
  switch (role) {
    case Role::o:
    case Role::d_q:
    case Role::d_k:
    case Role::d_v:
      for (int64_t b = 0; b < dims.b; ++b) {
        const Problem entry = entry_of(p, q, kv, b);
        for (int64_t h = 0; h < dims.h; ++h)
          for (int64_t s = 0; s < dims.s; ++s)
            if (role == Role::o || role == Role::d_q)
              counts.push_back(s < entry.seq_q ? visible_keys(entry, s) : 0);
            else
              counts.push_back(s < entry.seq_kv ? double(p.group()) * visible_rows(entry, s) : 0);
      }
      break;
    case Role::d_bias:
      rows(dims.b * dims.h * dims.s,
           dims.b * dims.h * dims.s == 0
               ? 0
               : double(p.batch * p.heads_q) * double(p.seq_q) / double(dims.b * dims.h * dims.s));
      break;
    case Role::d_dist_bias:
    case Role::d_sink:
      rows(dims.b * dims.h, double(p.batch / dims.b) * double(p.seq_q));
      break;
    default:
      rows(dims.b * dims.h, double(p.batch / dims.b) * double(p.seq_q) * double(p.seq_kv));
  }
  return counts;
}

}  // namespace

HostTensor& Outputs::tensor(Role role) {
  switch (role) {
    case Role::o:
      return o;
    case Role::d_q:
      return d_q;
    case Role::d_k:
      return d_k;
    case Role::d_v:
      return d_v;
    case Role::d_bias:
      return d_bias;
    case Role::d_bias_table:
      return d_bias_table;
    case Role::d_dist_bias:
      return d_dist_bias;
    case Role::d_slope:
      return d_slope;
    case Role::d_tau:
      return d_tau;
    case Role::d_part_o:
      return d_part_o;
    case Role::d_part_lse:
      return d_part_lse;
    default:
      return d_sink;
  }
}
const HostTensor& Outputs::tensor(Role role) const {
  return const_cast<Outputs*>(this)->tensor(role);
}
std::vector<Outputs::Written> Outputs::written(Role role) const {
  std::vector<Written> all = {{&tensor(role), ""}};
  if (role == Role::d_q)
    for (const Again& again : d_q_again)
      all.push_back({&again.d_q, "run " + std::to_string(again.run) + ": "});
  return all;
}

Case::Case(const tandem_problem& problem, uint64_t seed, const CaseOptions& options)
    : impl_(new Impl) {
  impl_->problem = problem;
  impl_->seed = seed;
  impl_->options = options;
  for (Role role : kInputs) {
    if (!is_input(problem, role)) continue;
    input(role) = HostTensor(
        problem, role,
        role == Role::into_lse ? 0 : options.lead + (role == Role::spans ? options.spans_lead : 0));
    fill_input(problem, role, seed, options.input_scale, &input(role));
  }
  spoil_gaps();
  if (is_merge(problem)) spoil_hidden(input(Role::part_lse), &input(Role::part_o));
  if (is_input(problem, Role::into_o)) spoil_hidden(input(Role::into_lse), &input(Role::into_o));
  const DropoutSeed dropout = dropout_seed_of(seed);
  dropout_seed = dropout.seed;
  dropout_offset = dropout.offset;
}

Case::~Case() = default;
const tandem_problem& Case::problem() const { return impl_->problem; }
uint64_t Case::seed() const { return impl_->seed; }
HostTensor& Case::input(Role role) { return impl_->inputs[size_t(role)]; }

Sequences Case::sequences(bool kv) const {
  const tandem_problem& p = impl_->problem;
  const auto kind = tandem_lengths(kv ? p.lengths_kv : p.lengths_q);
  const bool packed = kind == TANDEM_LENGTHS_PACKED;
  const int64_t size = kv ? p.seq_kv : p.seq_q, total = kv ? p.total_kv : p.total_q;
  const HostTensor& t = impl_->inputs[size_t(kv ? Role::lengths_kv : Role::lengths_q)];
  const HostTensor& offsets = impl_->inputs[size_t(kv ? Role::offsets_kv : Role::offsets_q)];
  Sequences s;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (kind == TANDEM_LENGTHS_GAPPED) {
      const int64_t start = std::clamp<int64_t>(int64_t(offsets.get(0, 0, 0, b)), 0, total);
      s.start.push_back(start);
      s.length.push_back(
          std::clamp<int64_t>(int64_t(t.get(0, 0, 0, b)), 0, std::min(size, total - start)));
      continue;
    }
    // The rule of the header once more: each offset as the nearest one that there is.
    const auto at = [&](int64_t n) {
      return std::clamp<int64_t>(int64_t(t.get(0, 0, 0, n)), 0, packed ? total : size);
    };
    const int64_t length = packed                          ? at(b + 1) - at(b)
                           : kind == TANDEM_LENGTHS_PADDED ? at(b)
                                                           : size;
    s.start.push_back(packed ? at(b) : 0);
    s.length.push_back(std::clamp<int64_t>(length, 0, size));
  }
  return s;
}

void Case::spoil_gaps() {
  const tandem_problem& p = impl_->problem;
  for (Role role : {Role::q, Role::k, Role::v, Role::d_o}) {
    const bool kv = role == Role::k || role == Role::v;
    if (!is_input(p, role) || (kv ? p.lengths_kv : p.lengths_q) != TANDEM_LENGTHS_GAPPED) continue;
    HostTensor& t = input(role);
    if (t.dims.s > 1 && t.layout.stride[2] == 0) continue;  // all rows are one
    const std::vector<bool> dead = dead_rows(t, sequences(kv));
    for (int64_t h = 0; h < t.dims.h; ++h)
      for (int64_t i = 0; i < t.dims.s; ++i)
        for (int64_t d = 0; dead[size_t(i)] && d < t.dims.d; ++d)
          t.set(0, h, i, d, std::numeric_limits<double>::quiet_NaN());
  }
}

std::vector<double> Case::logical(Role role, const HostTensor& tensor) const {
  const tandem_problem& p = impl_->problem;
  if (!is_packed(p, role)) return tensor.dense();
  const Dims n = logical_dims(p, role);
  const bool kv = role == Role::k || role == Role::v || role == Role::d_k || role == Role::d_v;
  const Sequences s = sequences(kv);
  std::vector<double> values(size_t(n.count()));
  for (int64_t b = 0; b < n.b; ++b)
    for (int64_t h = 0; h < n.h; ++h)
      for (int64_t i = 0; i < s.length[size_t(b)]; ++i)
        for (int64_t d = 0; d < n.d; ++d)
          values[size_t(((b * n.h + h) * n.s + i) * n.d + d)] =
              tensor.get(0, h, s.start[size_t(b)] + i, d);
  return values;
}

void Case::make_reference() {
  Impl& c = *impl_;
  if (c.judged) return;
  const tandem_problem& problem = c.problem;
  Problem checked;
  const Status status = tandem::make_problem(&problem, &checked);
  if (!status.ok()) throw Error(status.code(), status.message().c_str());
  const Sequences q = sequences(false), kv = sequences(true);
  RefInputs inputs;
  const auto get = [&](Role role, std::vector<double>* to) {
    if (is_input(problem, role)) *to = logical(role, input(role));
  };
  get(Role::q, &inputs.q);
  get(Role::k, &inputs.k);
  get(Role::v, &inputs.v);
  get(Role::d_o, &inputs.d_o);
  get(Role::d_lse, &inputs.d_lse);
  get(Role::part_o, &inputs.part_o);
  get(Role::part_lse, &inputs.part_lse);
  get(Role::into_o, &inputs.into_o);
  get(Role::into_lse, &inputs.into_lse);
  get(Role::bias, &inputs.bias);
  get(Role::bias_table, &inputs.bias_table);
  if (is_input(problem, Role::bias_index)) {
    const std::vector<double> index = input(Role::bias_index).dense();
    inputs.bias_index.assign(index.begin(), index.end());
  }
  get(Role::dist_bias, &inputs.dist_bias);
  get(Role::slope, &inputs.slope);
  get(Role::tau, &inputs.tau);
  get(Role::sink, &inputs.sink);
  if (is_input(problem, Role::keep)) {
    const std::vector<double> keep = input(Role::keep).dense();
    inputs.keep.assign(keep.begin(), keep.end());
  }
  if (is_input(problem, Role::blocks))
    inputs.keep = expanded_blocks(problem, input(Role::blocks), input(Role::block_bits));
  if (is_input(problem, Role::spans)) {
    const std::vector<double> spans = input(Role::spans).dense();
    inputs.spans.assign(spans.begin(), spans.end());
  }
  if (is_input(problem, Role::lengths_q)) inputs.lengths_q = q.length;
  if (is_input(problem, Role::lengths_kv)) inputs.lengths_kv = kv.length;
  inputs.dropout_seed = dropout_seed;
  inputs.dropout_offset = dropout_offset;

  const double work = double(problem.batch * problem.heads_q) * double(problem.seq_q) *
                      double(problem.seq_kv) * double(problem.head_dim + problem.head_dim_v);
  const unsigned threads = work < 1e6 ? 1 : usable_threads();
  // A merge has no scores; its weights carry the roundings of a difference and of exp.
  const double plain = is_merge(problem) ? kMergeRoundings
                                         : score_roundings(double(checked.scale), problem.head_dim,
                                                           inputs.q, inputs.k);
  c.f32_roundings =
      plain + extra_roundings(checked, plain,
                              std::max(largest(inputs.bias), largest(inputs.bias_table)),
                              largest(inputs.dist_bias), largest(inputs.slope));
  c.truth = tandem::reference(checked, inputs, Precision::exact, threads,
                              checked.dtype == TANDEM_F64 ? kScoreErrorF64 : kScoreError);
  const Reference step = tandem::reference(checked, inputs, Precision::stepwise, threads);
  for (Role role : kOutputs) {
    if (!is_left(problem, role)) continue;
    const Parts parts = parts_of(role);
    Samples x;
    x.dims = logical_dims(problem, role);
    x.exact = c.truth.*parts.value;
    x.stepwise = step.*parts.value;
    x.floor = c.truth.*parts.floor;
    x.slack = c.truth.*parts.slack;
    x.counts = counts_of(checked, role, x.dims, q, kv);
    x.chain = main_dtype(problem);
    // Of a merge it is all but what is stored in the end.
    if (checked.parts && x.chain != TANDEM_F64) x.chain = TANDEM_F32;
    x.tf32 = checked.tf32;
    x.operand = operand_of(checked, role, inputs);
    c.bounds[size_t(role)] = make_bounds(x, layout_of(problem, role).dtype, c.f32_roundings);
  }
  c.judged = true;
}

const std::vector<double>& Case::reference(Role role) {
  make_reference();
  return impl_->bounds[size_t(role)].want;
}

const std::vector<double>& Case::reference_lse() {
  make_reference();
  return impl_->truth.lse;
}

const std::vector<double>& Case::reference_terms(Role role) {
  make_reference();
  return impl_->truth.*parts_of(role).floor;
}

void Case::judge(const Outputs& outputs, CaseResult* result) {
  make_reference();
  Impl& c = *impl_;
  const bool threshold = c.problem.normalizer == TANDEM_ENTMAX;
  const bool tf32 = (c.problem.flags & TANDEM_FLAG_TF32) != 0;
  for (Role role : kOutputs) {
    if (!is_left(c.problem, role)) continue;
    const Bounds& bounds = c.bounds[size_t(role)];
    for (const auto& [tensor, run] : outputs.written(role)) {
      Judgement j = judge_tensor(role_name(role), bounds, bounds.want, logical(role, *tensor));
      j.where.insert(0, run);
      append(std::move(j), result);
    }
    if (role == Role::o && !outputs.lse.empty())
      append(judge_lse(logical_dims(c.problem, role), c.truth.lse, outputs.lse, c.f32_roundings,
                       threshold, tf32),
             result);
    if (role == Role::o && !outputs.lse_f64.empty())
      append(judge_lse(logical_dims(c.problem, role), c.truth.lse, outputs.lse_f64, c.f32_roundings,
                       threshold),
             result);
  }
  if (!outputs.max_logit.empty())
    append(judge_lse({1, 1, c.problem.max_logit_batch, c.problem.heads_q}, c.truth.max_logit,
                     outputs.max_logit, c.f32_roundings, false, tf32, "max_logit"),
           result);
}

void Case::judge_pair(const Outputs& a, const Outputs& b, CaseResult* result) {
  make_reference();
  Impl& c = *impl_;
  const bool threshold = c.problem.normalizer == TANDEM_ENTMAX;
  const bool tf32 = (c.problem.flags & TANDEM_FLAG_TF32) != 0;
  for (Role role : kOutputs) {
    if (!is_left(c.problem, role)) continue;
    append(judge_tensor(role_name(role), c.bounds[size_t(role)], logical(role, a.tensor(role)),
                        logical(role, b.tensor(role))),
           result);
    if (role == Role::o && !a.lse.empty() && !b.lse.empty())
      append(
          judge_lse(logical_dims(c.problem, role), std::vector<double>(a.lse.begin(), a.lse.end()),
                    b.lse, c.f32_roundings, threshold, tf32),
          result);
    if (role == Role::o && !a.lse_f64.empty() && !b.lse_f64.empty())
      append(judge_lse(logical_dims(c.problem, role), a.lse_f64, b.lse_f64, c.f32_roundings,
                       threshold),
             result);
  }
  if (!a.max_logit.empty())
    append(judge_lse({1, 1, c.problem.max_logit_batch, c.problem.heads_q},
                     std::vector<double>(a.max_logit.begin(), a.max_logit.end()), b.max_logit,
                     c.f32_roundings, false, tf32, "max_logit"),
           result);
}

CaseResult Case::run_and_judge(Session& session, Outputs* outputs) {
  Outputs own;
  Outputs* to = outputs ? outputs : &own;
  CaseResult result = run(session, to);
  if (result.ok) judge(*to, &result);
  return result;
}

CaseResult run_case(Session& session, const tandem_problem& problem, uint64_t seed,
                    const CaseOptions& options) {
  return Case(problem, seed, options).run_and_judge(session);
}

std::string repro(const tandem_problem& problem, uint64_t seed) {
  return "tandem check --repro \"" + print(problem) + "\" --seed " + std::to_string(seed);
}

}  // namespace tandem::harness
