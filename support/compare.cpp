// SPDX-License-Identifier: MIT OR Apache-2.0
#include "compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include "cpu/reference.h"
#include "problem.h"

namespace tandem::support {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kF32 = 0x1p-24;  // half an ulp, relative
// Weights this small beside the largest terms may be lost: f32 arithmetic may flush what lies below 2^-126,
// before or after other factors join.
constexpr double kVanishing = 0x1p-100;

double rounding_unit(uint32_t dtype) {
  return dtype == TANDEM_F32 ? 0x1p-24 : dtype == TANDEM_F16 ? 0x1p-11 : 0x1p-8;
}

std::string number(double x) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", x);
  return text;
}

// The largest of the rows' mean magnitudes.
double row_magnitude(const std::vector<double>& values, int64_t width) {
  double largest = 0;
  for (size_t row = 0; row + size_t(width) <= values.size(); row += size_t(width)) {
    double sum = 0;
    for (size_t n = row; n < row + size_t(width); ++n) sum += std::fabs(values[n]);
    largest = std::max(largest, sum / double(width));
  }
  return largest;
}

// How far an output tensor may be from the truth.
struct Bounds {
  Dims dims{};
  std::vector<double> want;
  std::vector<double> row_error;      // what 2.0 in a ratio means, per row
  std::vector<double> element_error;  // per element
};

constexpr size_t kEnoughRows = 16;

// The stepwise error per unit of terms that 9 of 10 rows stay below, among rows with as many terms as
// each row has (within a factor of two, or more where there are few such rows). Rows without terms are
// negative and do not count.
std::vector<double> usual_errors(const std::vector<double>& relative,
                                 const std::vector<double>& counts, size_t live) {
  std::map<int, std::vector<double>> bins;
  const auto bin_of = [&](size_t row) { return std::ilogb(std::max(1.0, counts[row])); };
  for (size_t row = 0; row < relative.size(); ++row)
    if (relative[row] >= 0) bins[bin_of(row)].push_back(relative[row]);
  std::map<int, double> usual;
  for (const auto& [bin, own] : bins) {
    std::vector<double> pool;
    for (int reach = 0; pool.size() < std::min(kEnoughRows, live); ++reach) {
      pool.clear();
      for (const auto& [other, errors] : bins)
        if (std::abs(other - bin) <= reach) pool.insert(pool.end(), errors.begin(), errors.end());
    }
    const auto nine_tenths = pool.begin() + std::ptrdiff_t(pool.size() * 9 / 10);
    std::nth_element(pool.begin(), nine_tenths, pool.end());
    usual[bin] = *nine_tenths;
  }
  std::vector<double> per_row(relative.size());
  for (size_t row = 0; row < relative.size(); ++row)
    if (relative[row] >= 0) per_row[row] = usual[bin_of(row)];
  return per_row;
}

Bounds make_bounds(const Samples& x, uint32_t dtype, double f32_roundings) {
  Bounds b;
  b.dims = x.dims;
  b.want = x.exact;
  b.element_error.resize(x.exact.size());
  const size_t width = size_t(x.dims.d), rows = width ? x.exact.size() / width : 0;
  b.row_error.resize(rows);
  std::vector<double> errors(rows), terms(rows), relative(rows, -1);
  double vanishing = 0;
  for (double terms_of_one : x.floor) vanishing = std::max(vanishing, kVanishing * terms_of_one);
  size_t live = 0;
  for (size_t row = 0; row < rows; ++row) {
    // Sums of many terms of one sign lose a rounding per term in the worst case, its root as a rule.
    const double f32 = kF32 * (f32_roundings + std::sqrt(std::max(0.0, x.counts[row])));
    double largest = 0;
    for (size_t n = row * width; n < (row + 1) * width; ++n) {
      errors[row] = std::max(errors[row], std::fabs(x.stepwise[n] - x.exact[n]));
      terms[row] = std::max(terms[row], x.floor[n]);
      largest = std::max(largest, std::fabs(x.exact[n]));
      b.element_error[n] = x.floor[n] == 0 ? 0
                                           : 4 * (rounding_unit(dtype) + f32) * x.floor[n] +
                                                 ulp(0, dtype) + vanishing;
    }
    if (terms[row] == 0) continue;
    ++live;
    relative[row] = errors[row] / terms[row];
    b.row_error[row] = ulp(largest, dtype) + f32_roundings * kF32 * terms[row] + vanishing;
  }
  const std::vector<double> usual = usual_errors(relative, x.counts, live);
  for (size_t row = 0; row < rows; ++row) {
    if (relative[row] < 0) continue;
    b.row_error[row] += 2 * std::max(errors[row], usual[row] * terms[row]);
    // Too few rows to know what is usual.
    if (live < kEnoughRows) b.row_error[row] += rounding_unit(dtype) * terms[row];
  }
  return b;
}

std::string place(const Dims& dims, size_t row) {
  const auto r = int64_t(row);
  return "b" + std::to_string(r / (dims.s * dims.h)) + " h" + std::to_string(r / dims.s % dims.h) +
         " row " + std::to_string(r % dims.s);
}

// got against want within bounds.
Judgement judge_tensor(const std::string& name, const Bounds& bounds,
                       const std::vector<double>& want, const std::vector<double>& got) {
  Judgement j;
  j.tensor = name;
  const size_t width = size_t(bounds.dims.d);
  double told = -1;  // the ratio of the row that j.where tells of
  for (size_t row = 0; row < bounds.row_error.size(); ++row) {
    double worst = 0, limit = bounds.row_error[row];
    size_t at = row * width, beyond = got.size();
    for (size_t n = row * width; n < (row + 1) * width; ++n) {
      double error = got[n] == want[n] ? 0 : std::fabs(got[n] - want[n]);
      if (std::isnan(error)) error = kInfinity;
      if (error > bounds.element_error[n] && beyond == got.size()) beyond = n;
      if (error > worst) worst = error, at = n;
    }
    const double ratio = worst == 0 ? 0 : limit == 0 ? kInfinity : kRatioLimit * worst / limit;
    bool ok = ratio <= kRatioLimit;
    if (ok && beyond < got.size()) ok = false, at = beyond, limit = bounds.element_error[at];
    // A failure is told before a good row, and the worst of its kind before others.
    if ((j.ok && !ok) || (j.ok == ok && ratio > told)) {
      told = ratio;
      j.error = std::fabs(got[at] - want[at]);
      j.where = place(bounds.dims, row) + " column " + std::to_string(at % width) + ": got " +
                number(got[at]) + ", want " + number(want[at]) + " +- " + number(limit);
    }
    j.ratio = std::max(j.ratio, ratio);
    j.ok &= ok;
  }
  return j;
}

Judgement judge_lse(const Dims& rows, const std::vector<double>& want,
                    const std::vector<float>& got, double f32_roundings) {
  Judgement j;
  j.tensor = "lse";
  for (size_t n = 0; n < want.size(); ++n) {
    const double g = double(got[n]);
    const double error = g == want[n] ? 0 : std::fabs(g - want[n]);
    const double limit = std::isinf(want[n]) ? 0
                                             : std::max(1e-5, kF32 * f32_roundings) *
                                                   std::max(1.0, std::fabs(want[n]));
    const double ratio = error == 0                        ? 0
                         : std::isnan(error) || limit == 0 ? kInfinity
                                                           : kRatioLimit * error / limit;
    if (j.where.empty() || ratio > j.ratio) {
      j.where = place(rows, n) + ": got " + number(g) + ", want " + number(want[n]);
      j.error = error;
      j.ratio = ratio;
    }
    j.ok &= ratio <= kRatioLimit;
  }
  return j;
}

void append(Judgement j, CaseResult* result) {
  if (!j.ok) {
    result->ok = false;
    if (result->message.empty()) result->message = j.tensor + ": " + j.where;
  }
  result->judgements.push_back(std::move(j));
}

}  // namespace

double score_roundings(double scale, int64_t head_dim, const std::vector<double>& q,
                       const std::vector<double>& k) {
  return 8 + std::fabs(scale) * double(head_dim) * row_magnitude(q, head_dim) *
                 row_magnitude(k, head_dim);
}

Judgement judge_rows(const std::string& name, const Samples& rows, uint32_t dtype,
                     double f32_roundings, const std::vector<double>& got) {
  return judge_tensor(name, make_bounds(rows, dtype, f32_roundings), rows.exact, got);
}

// Keys that query row i sees, and query rows that see key j.
double visible_keys(const Problem& p, int64_t i) {
  const int64_t at = i + p.band.off;
  return double(std::min(p.seq_kv - 1, at + p.band.right) - std::max<int64_t>(0, at - p.band.left) +
                1);
}
double visible_rows(const Problem& p, int64_t j) {
  const int64_t at = j - p.band.off;
  return double(std::min(p.seq_q - 1, at + p.band.left) - std::max<int64_t>(0, at - p.band.right) +
                1);
}

double CaseResult::worst_ratio() const {
  double worst = 0;
  for (const Judgement& j : judgements) worst = std::max(worst, j.ratio);
  return worst;
}

HostTensor& Outputs::gradient(Role role) {
  return role == Role::d_q ? d_q : role == Role::d_k ? d_k : d_v;
}
const HostTensor& Outputs::gradient(Role role) const {
  return const_cast<Outputs*>(this)->gradient(role);
}

struct Case::Impl {
  tandem_problem problem;
  uint64_t seed = 0;
  CaseOptions options;
  HostTensor q, k, v, d_o;
  bool judged = false;
  Reference truth;
  double f32_roundings = 0;
  Bounds o, d_q, d_k, d_v;

  bool backward() const { return problem.direction == TANDEM_BACKWARD; }
  tandem_problem forward() const {
    tandem_problem p = problem;
    p.direction = TANDEM_FORWARD;
    return p;
  }
  Bounds& bounds(Role role) {
    return role == Role::o ? o : role == Role::d_q ? d_q : role == Role::d_k ? d_k : d_v;
  }
  void make_reference();
};

Case::Case(const tandem_problem& problem, uint64_t seed, const CaseOptions& options)
    : impl_(new Impl) {
  impl_->problem = problem;
  impl_->seed = seed;
  impl_->options = options;
  for (Role role : {Role::q, Role::k, Role::v, Role::d_o}) {
    if (role == Role::d_o && !impl_->backward()) continue;
    input(role) = HostTensor(problem, role, options.lead);
    input(role).fill_normal(seed * 8 + uint64_t(role), options.input_scale);
  }
}

Case::~Case() = default;
const tandem_problem& Case::problem() const { return impl_->problem; }
uint64_t Case::seed() const { return impl_->seed; }

HostTensor& Case::input(Role role) {
  return role == Role::q   ? impl_->q
         : role == Role::k ? impl_->k
         : role == Role::v ? impl_->v
                           : impl_->d_o;
}

void Case::Impl::make_reference() {
  if (judged) return;
  Problem checked;
  const Status status = tandem::make_problem(&problem, &checked);
  if (!status.ok()) throw Error(status.code(), status.message());
  RefInputs inputs;
  inputs.q = q.dense();
  inputs.k = k.dense();
  inputs.v = v.dense();
  if (backward()) inputs.d_o = d_o.dense();
  const double work = double(problem.batch * problem.heads_q) * double(problem.seq_q) *
                      double(problem.seq_kv) * double(problem.head_dim + problem.head_dim_v);
  const unsigned threads = work < 1e6 ? 1 : std::max(1u, std::thread::hardware_concurrency());
  truth = tandem::reference(checked, inputs, Precision::exact, threads);
  const Reference plain = tandem::reference(checked, inputs, Precision::stepwise, threads);
  f32_roundings = score_roundings(double(checked.scale), problem.head_dim, inputs.q, inputs.k);
  const auto set = [&](Role role, const std::vector<double>& exact, const std::vector<double>& step,
                       const std::vector<double>& floor) {
    Samples x{dims_of(problem, role), exact, step, floor, {}};
    const bool kv = role == Role::d_k || role == Role::d_v;
    for (int64_t row = 0; row < x.dims.b * x.dims.h * x.dims.s; ++row)
      x.counts.push_back(kv ? double(checked.group()) * visible_rows(checked, row % x.dims.s)
                            : visible_keys(checked, row % x.dims.s));
    bounds(role) = make_bounds(x, problem.q.dtype, f32_roundings);
  };
  set(Role::o, truth.o, plain.o, truth.o_floor);
  if (checked.wants(TANDEM_GRAD_Q)) set(Role::d_q, truth.d_q, plain.d_q, truth.d_q_floor);
  if (checked.wants(TANDEM_GRAD_K)) set(Role::d_k, truth.d_k, plain.d_k, truth.d_k_floor);
  if (checked.wants(TANDEM_GRAD_V)) set(Role::d_v, truth.d_v, plain.d_v, truth.d_v_floor);
  judged = true;
}

const std::vector<double>& Case::reference(Role role) {
  impl_->make_reference();
  return impl_->bounds(role).want;
}

const std::vector<double>& Case::reference_lse() {
  impl_->make_reference();
  return impl_->truth.lse;
}

// ---- running --------------------------------------------------------------------------------------

namespace {

// One tensor of a run: what the host has, and the device's copy.
struct Placed {
  std::string name;
  const void* host = nullptr;  // what the device must still hold afterwards; null: an output
  size_t bytes = 0;
  Buffer buffer;
};

class Run {
 public:
  Run(Session& session, const CaseOptions& options) : session_(session), options_(options) {}

  tandem_buffer input(const char* name, const void* host, size_t bytes, size_t offset) {
    Placed p{name, host, bytes, session_.buffer(bytes)};
    p.buffer.upload(host, bytes);
    return place(std::move(p), offset);
  }
  tandem_buffer output(const char* name, size_t bytes, size_t offset) {
    Placed p{name, nullptr, bytes, session_.buffer(bytes)};
    p.buffer.fill(0xff);
    return place(std::move(p), offset);
  }
  tandem_buffer workspace(size_t bytes) {
    if (bytes == 0) return {0, 0};
    Placed p{"workspace", nullptr, bytes, session_.buffer(bytes)};
    p.buffer.fill(options_.workspace_byte);
    return place(std::move(p), 0);
  }
  void fetch(const char* name, void* to) const {
    for (const Placed& p : placed_)
      if (p.name == name) p.buffer.download(to, p.bytes);
  }
  // "" if nothing was written that should not have been.
  std::string damage() const {
    for (const Placed& p : placed_) {
      const std::string guard = p.buffer.broken_guard();
      if (!guard.empty()) return p.name + ": " + guard;
      if (!p.host) continue;
      std::vector<uint8_t> now(p.bytes);
      p.buffer.download(now.data(), p.bytes);
      if (p.bytes && std::memcmp(now.data(), p.host, p.bytes) != 0)
        return p.name + ": this input was written";
    }
    return {};
  }
  void refill() {
    for (Placed& p : placed_)
      if (!p.host) p.buffer.fill(p.name == "workspace" ? uint8_t(~options_.workspace_byte) : 0xff);
  }

 private:
  tandem_buffer place(Placed p, size_t offset) {
    placed_.push_back(std::move(p));
    const Buffer& b = placed_.back().buffer;
    return options_.addresses ? b.address(offset) : b.handle(offset);
  }
  Session& session_;
  const CaseOptions& options_;
  std::vector<Placed> placed_;
};

void note_plan(const Plan& plan, CaseResult* result) {
  const tandem_plan_info& info = plan.info();
  result->plan = info.name;
  result->path = info.path;
  result->tile_rows = info.tile_rows;
  result->tile_cols = info.tile_cols;
  result->kernels.insert(result->kernels.end(), info.kernels, info.kernels + info.kernel_count);
}

std::string check_gaps(const char* name, const HostTensor& tensor) {
  const std::string broken = tensor.broken_gap();
  return broken.empty() ? broken : std::string(name) + ": " + broken;
}

// Executes, and again as often as options say: the same bits each time. "" or what went wrong.
std::string execute(Session& session, const Plan& plan, const tandem_args& args, Run* run,
                    const CaseOptions& options,
                    const std::vector<std::pair<const char*, HostTensor*>>& outputs,
                    std::vector<float>* lse) {
  for (int time = 0; time < std::max(1, options.repeats); ++time) {
    if (time > 0) run->refill();
    session.run(plan, args);
    for (const auto& [name, tensor] : outputs) {
      std::vector<uint8_t> bytes(tensor->bytes.size());
      run->fetch(name, bytes.data());
      if (time > 0 && bytes != tensor->bytes)
        return std::string(name) + ": other bits in run " + std::to_string(time + 1);
      tensor->bytes = std::move(bytes);
    }
    if (lse) {
      std::vector<float> values(lse->size());
      run->fetch("lse", values.data());
      if (time > 0 && !values.empty() &&
          std::memcmp(values.data(), lse->data(), values.size() * sizeof(float)) != 0)
        return "lse: other bits in run " + std::to_string(time + 1);
      *lse = std::move(values);
    }
    const std::string damage = run->damage();
    if (!damage.empty()) return damage;
  }
  for (const auto& [name, tensor] : outputs) {
    std::string gap = check_gaps(name, *tensor);
    if (!gap.empty()) return gap;
  }
  return {};
}

}  // namespace

CaseResult Case::run(Session& session, Outputs* outputs) {
  Impl& c = *impl_;
  CaseResult result;
  const size_t lead = size_t(c.options.lead) * element_size(c.problem.q.dtype);
  const size_t rows = size_t(c.problem.batch * c.problem.heads_q * c.problem.seq_q);
  const auto add_input = [&](Run* run, tandem_args* args, Role role, const HostTensor& t) {
    buffer_of(*args, role) = run->input(role_name(role), t.bytes.data(), t.bytes.size(), lead);
  };
  try {
    {
      const Plan plan(session, c.forward());
      note_plan(plan, &result);
      Run run(session, c.options);
      tandem_args args = TANDEM_ARGS_INIT;
      add_input(&run, &args, Role::q, c.q);
      add_input(&run, &args, Role::k, c.k);
      add_input(&run, &args, Role::v, c.v);
      outputs->o = HostTensor(c.problem, Role::o, c.options.lead);
      args.o = run.output("o", outputs->o.bytes.size(), lead);
      const bool want_lse = !c.options.no_lse || c.backward();
      outputs->lse.assign(want_lse ? rows : 0, std::numeric_limits<float>::quiet_NaN());
      if (want_lse) args.lse = run.output("lse", rows * sizeof(float), 0);
      args.workspace = run.workspace(size_t(plan.info().workspace_size));
      args.workspace_size = plan.info().workspace_size;
      result.message = execute(session, plan, args, &run, c.options, {{"o", &outputs->o}},
                               want_lse ? &outputs->lse : nullptr);
      if (!result.message.empty()) return result;
    }
    if (c.backward()) {
      const Plan plan(session, c.problem);
      note_plan(plan, &result);
      Run run(session, c.options);
      tandem_args args = TANDEM_ARGS_INIT;
      add_input(&run, &args, Role::q, c.q);
      add_input(&run, &args, Role::k, c.k);
      add_input(&run, &args, Role::v, c.v);
      add_input(&run, &args, Role::o, outputs->o);
      add_input(&run, &args, Role::d_o, c.d_o);
      args.lse = run.input("lse", outputs->lse.data(), rows * sizeof(float), 0);
      std::vector<std::pair<const char*, HostTensor*>> written;
      for (Role role : {Role::d_q, Role::d_k, Role::d_v}) {
        HostTensor& t = outputs->gradient(role);
        t = HostTensor();
        if (!is_output(c.problem, role)) continue;
        t = HostTensor(c.problem, role, c.options.lead);
        buffer_of(args, role) = run.output(role_name(role), t.bytes.size(), lead);
        written.emplace_back(role_name(role), &t);
      }
      args.workspace = run.workspace(size_t(plan.info().workspace_size));
      args.workspace_size = plan.info().workspace_size;
      result.message = execute(session, plan, args, &run, c.options, written, nullptr);
      if (!result.message.empty()) return result;
    }
    result.ok = true;
  } catch (const Error& e) {
    result.refused = e.code() == TANDEM_ERROR_UNSUPPORTED;
    result.message = e.what();
  }
  return result;
}

void Case::judge(const Outputs& outputs, CaseResult* result) {
  impl_->make_reference();
  Impl& c = *impl_;
  const auto add = [&](Judgement j) { append(std::move(j), result); };
  add(judge_tensor("o", c.o, c.o.want, outputs.o.dense()));
  if (!outputs.lse.empty())
    add(judge_lse(dims_of(c.problem, Role::o), c.truth.lse, outputs.lse, c.f32_roundings));
  for (Role role : {Role::d_q, Role::d_k, Role::d_v}) {
    if (!is_output(c.problem, role)) continue;
    add(judge_tensor(role_name(role), c.bounds(role), c.bounds(role).want,
                     outputs.gradient(role).dense()));
  }
}

void Case::judge_pair(const Outputs& a, const Outputs& b, CaseResult* result) {
  impl_->make_reference();
  Impl& c = *impl_;
  const auto add = [&](Judgement j) { append(std::move(j), result); };
  add(judge_tensor("o", c.o, a.o.dense(), b.o.dense()));
  if (!a.lse.empty() && !b.lse.empty())
    add(judge_lse(dims_of(c.problem, Role::o), std::vector<double>(a.lse.begin(), a.lse.end()),
                  b.lse, c.f32_roundings));
  for (Role role : {Role::d_q, Role::d_k, Role::d_v})
    if (is_output(c.problem, role))
      add(judge_tensor(role_name(role), c.bounds(role), a.gradient(role).dense(),
                       b.gradient(role).dense()));
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

}  // namespace tandem::support
