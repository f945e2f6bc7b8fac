// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem bench: forward and backward times by the device's own clock, with the error beside each.
#include "bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "bench_cases.h"
#include "bench_host.h"
#include "bench_result.h"
#include "bench_sample.h"
#include "models.h"
#include "problem/problem.h"
#include "tools.h"

namespace tandem::tool {
namespace {

using harness::Buffer;
using harness::HostTensor;
using harness::Role;
using harness::Session;

struct Options {
  std::vector<std::string> devices, problems, names, merge, compare;
  std::string preset, format = "table", out, commit, op = "both", disable;
  uint64_t seed = 1;
  bool list = false, no_check = false, host = false, turns = false;
  harness::TimeOptions time;
};

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

// The SM clock right after work, as NVIDIA's own tool reads it; 0 where there is no such tool.
int clock_now() {
#ifdef _WIN32
  FILE* pipe = _popen("nvidia-smi --query-gpu=clocks.sm --format=csv,noheader,nounits 2>NUL", "r");
#else
  FILE* pipe =
      popen("nvidia-smi --query-gpu=clocks.sm --format=csv,noheader,nounits 2>/dev/null", "r");
#endif
  if (!pipe) return 0;
  int mhz = 0;
  if (std::fscanf(pipe, "%d", &mhz) != 1) mhz = 0;
#ifdef _WIN32
  _pclose(pipe);
#else
  pclose(pipe);
#endif
  return mhz;
}

// Floating-point operations by the convention of published tables: products only, causal counts
// half of the square, backward is 2.5 times forward. Windows and Sq != Sk count what is visible.
double usual_flops(const tandem_problem& problem, bool backward) {
  const Problem p = [&] {
    Problem checked;
    const Status s = make_problem(&problem, &checked);
    if (!s.ok()) throw harness::Error(s.code(), s.message().c_str());
    return checked;
  }();
  const double square = double(p.batch * p.heads_q) * double(p.seq_q) * double(p.seq_kv);
  const bool window = p.band.left != TANDEM_BAND_OPEN || p.band.right > 0;
  double pairs = square;
  if (p.banded()) pairs = !window && p.seq_q == p.seq_kv ? square / 2 : visible_pairs(p);
  return 2 * pairs * double(p.head_dim + p.head_dim_v) * (backward ? 2.5 : 1);
}

// The same of a case. A model's batch entries have lengths of their own, and each counts its own.
double case_flops(const BenchCase& c, bool backward) {
  const tandem_problem& p = c.problem;
  if (!c.model || (p.lengths_q == TANDEM_LENGTHS_FULL && p.lengths_kv == TANDEM_LENGTHS_FULL))
    return usual_flops(p, backward);
  const auto lengths = [&](bool kv) {
    const bool full = (kv ? p.lengths_kv : p.lengths_q) == TANDEM_LENGTHS_FULL;
    return full ? std::vector<int64_t>(size_t(p.batch), kv ? p.seq_kv : p.seq_q)
                : harness::model_lengths(p, kv);
  };
  const std::vector<int64_t> q = lengths(false), kv = lengths(true);
  double flops = 0;
  for (size_t b = 0; b < q.size(); ++b) {
    tandem_problem one = harness::make_problem(TANDEM_FORWARD, tandem_dtype(p.q.dtype), 1,
                                               p.heads_q, p.heads_kv, q[b], kv[b], p.head_dim);
    one.head_dim_v = p.head_dim_v;
    harness::set_layout(one, harness::Layout::bhsd);
    one.mask = p.mask;
    one.align = p.align;
    one.window_left = p.window_left;
    one.window_right = p.window_right;
    flops += usual_flops(one, backward);
  }
  return flops;
}

std::string mask_word(const tandem_problem& p) {
  if (p.mask != TANDEM_MASK_CAUSAL) return "none";
  return p.align == TANDEM_BOTTOM_RIGHT && p.seq_q != p.seq_kv ? "causal_bottom_right" : "causal";
}

Result features_of(const tandem_problem& p) {
  Result words = Result::array();
  if (p.heads_q != p.heads_kv) words.push_back(p.heads_kv == 1 ? "mqa" : "gqa");
  if (p.window_left != TANDEM_UNBOUNDED) words.push_back(fmt::format("left={}", p.window_left));
  if (p.window_right != TANDEM_UNBOUNDED) words.push_back(fmt::format("right={}", p.window_right));
  for (const std::string& word : harness::feature_words(p))
    if (word != "plain") words.push_back(word);
  if (p.flags & TANDEM_FLAG_DETERMINISTIC) words.push_back("deterministic");
  if (p.tile_rows || p.tile_cols)
    words.push_back(fmt::format("tile={}x{}", p.tile_rows, p.tile_cols));
  return words;
}

// One case on one device: tensors that forward and backward share. Backward reads what forward
// wrote, so forward always runs.
class CaseRun {
 public:
  CaseRun(Session& session, const BenchCase& c, const Options& options);
  // Forward and backward, as --op says: prepared, timed by the caller, reported.
  size_t count() const { return directions_.size(); }
  void prepare(size_t n);
  std::function<void(tandem_stream)> record(size_t n) const;
  void judge(size_t n);                             // the error of the outputs that are there now
  void forget_inputs() { host_ = BenchTensors(); }  // the host's: no judging after it
  Result row(size_t n, const harness::Timing& time) const;

 private:
  struct Direction {
    bool backward = false;
    tandem_problem problem;
    harness::Plan plan;
    double build_seconds = 0, ratio = NAN;
    tandem_args args;
    Buffer workspace;
  };
  void fetch(Role role, HostTensor* tensor);
  bool guards_intact() const;

  Session& session_;
  const BenchCase& case_;
  const Options& options_;
  const bool forward_only_;
  tandem_problem problem_;
  BenchTensors host_;
  tandem_args args_ = TANDEM_ARGS_INIT;
  std::vector<Buffer> buffers_;
  Buffer outputs_[harness::kRoleCount], lse_, max_logit_;
  int64_t max_logit_batch_ = 0;
  std::vector<Direction> directions_;
};

CaseRun::CaseRun(Session& session, const BenchCase& c, const Options& options)
    : session_(session),
      case_(c),
      options_(options),
      forward_only_(c.forward_only || options.op == "fwd"),
      problem_(c.problem) {
  problem_.direction = TANDEM_BACKWARD;
  max_logit_batch_ = problem_.max_logit_batch;
  problem_.max_logit_batch = 0;
  const auto input = [&](Role role, HostTensor* t) {
    *t = HostTensor(problem_, role);
    if (c.model || role == Role::spans || role == Role::blocks || role == Role::block_bits ||
        role == Role::bias_index || (role == Role::keep && problem_.keep_rows > harness::kTree))
      harness::fill_model_input(problem_, role, options.seed, t);
    else
      harness::fill_input(problem_, role, options.seed, 1, t);
    buffers_.push_back(session.buffer(t->bytes.size()));
    buffers_.back().upload(t->bytes);
    harness::buffer_of(args_, role) = buffers_.back().handle();
  };
  for (Role role : harness::kInputs)
    if (harness::is_input(problem_, role) && (role != Role::d_o || !forward_only_))
      input(role, &host_[role]);
  const harness::DropoutSeed dropout = harness::dropout_seed_of(options.seed);
  args_.dropout_seed = dropout.seed;
  args_.dropout_offset = dropout.offset;
  for (Role role : harness::kOutputs) {
    const bool gradient = role != Role::o;
    if (gradient && (forward_only_ || !harness::is_output(problem_, role))) continue;
    const tandem_tensor layout = harness::layout_of(problem_, role);
    const int64_t elements = harness::extent(harness::dims_of(problem_, role), layout);
    Buffer& b = outputs_[int(role)];
    b = session.buffer(size_t(elements) * harness::element_size(layout.dtype));
    b.fill(0xff);
    harness::buffer_of(args_, role) = b.handle();
  }
  const size_t rows = size_t(problem_.batch * problem_.heads_q * problem_.seq_q);
  lse_ = session.buffer(rows * sizeof(float));
  args_.lse = lse_.handle();
  if (max_logit_batch_ > 0) {
    const std::vector<float> none(size_t(max_logit_batch_ * problem_.heads_q),
                                  -std::numeric_limits<float>::infinity());
    max_logit_ = session.buffer(none.size() * sizeof(float));
    max_logit_.upload(none.data(), none.size() * sizeof(float));
    args_.max_logit = max_logit_.handle();
  }
  directions_.resize(forward_only_ ? 1 : 2);
  directions_.back().backward = !forward_only_;
}

void CaseRun::fetch(Role role, HostTensor* tensor) {
  *tensor = HostTensor(problem_, role);
  if (outputs_[int(role)]) outputs_[int(role)].download(tensor->bytes.data(), tensor->bytes.size());
}

bool CaseRun::guards_intact() const {
  for (const Buffer& b : buffers_)
    if (!b.guards_intact()) return false;
  for (const Buffer& b : outputs_)
    if (!b.guards_intact()) return false;
  return true;
}

void CaseRun::prepare(size_t n) {
  Direction& d = directions_[n];
  d.problem = problem_;
  if (!d.backward) {
    d.problem = harness::forward_of(problem_);
    d.problem.max_logit_batch = max_logit_batch_;  // which a backward does not take
  }
  const auto start = std::chrono::steady_clock::now();
  d.plan = harness::Plan(session_, d.problem);
  d.build_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  d.args = args_;
  if (d.plan.info().workspace_size) {
    d.workspace = session_.buffer(size_t(d.plan.info().workspace_size));
    d.args.workspace = d.workspace.handle();
    d.args.workspace_size = d.plan.info().workspace_size;
  }
  session_.run(d.plan, d.args);  // once by itself, so that errors of the first use are not timed
}

std::function<void(tandem_stream)> CaseRun::record(size_t n) const {
  const Direction& d = directions_[n];
  return [&d](tandem_stream stream) { harness::check(tandem_execute(d.plan, stream, &d.args)); };
}

void CaseRun::judge(size_t n) {
  if (options_.no_check) return;
  Direction& d = directions_[n];
  if (!d.backward) {
    fetch(Role::o, &host_[Role::o]);
    host_.lse = lse_.download_as<float>();
    d.ratio = forward_ratio(d.problem, host_);
  } else {
    for (Role role : {Role::d_q, Role::d_k, Role::d_v}) fetch(role, &host_[role]);
    d.ratio = backward_ratio(d.problem, host_);
  }
}

Result CaseRun::row(size_t n, const harness::Timing& time) const {
  const Direction& d = directions_[n];
  const tandem_problem& problem = d.problem;
  const double ratio = options_.no_check || guards_intact() ? d.ratio : INFINITY;
  Result r;
  r["case"] = case_.name;
  r["op"] = d.backward ? "bwd" : "fwd";
  r["impl"] = "tandem";
  r["backend"] = d.plan.info().backend;
  r["path"] = d.plan.info().path;
  r["dtype"] = harness::dtype_word(problem.q.dtype);
  r["B"] = problem.batch;
  r["Hq"] = problem.heads_q;
  r["Hk"] = problem.heads_kv;
  r["Sq"] = problem.seq_q;
  r["Sk"] = problem.seq_kv;
  r["D"] = problem.head_dim;
  r["Dv"] = problem.head_dim_v;
  r["mask"] = mask_word(problem);
  r["features"] = features_of(problem);
  r["ms"] = time.median_ms;
  r["tflops"] = case_flops(case_, d.backward) / (1e9 * time.median_ms);
  // JSON has no infinity: a row that is wrong altogether gets a ratio that shows.
  if (std::isnan(ratio))
    r["max_err_ratio"] = nullptr;
  else
    r["max_err_ratio"] = std::isinf(ratio) ? 1e9 : ratio;
  const std::vector<std::string> unsampled = not_sampled(problem);
  if (!options_.no_check && !unsampled.empty()) r["not_sampled"] = unsampled;
  if (const double ms = d.plan.info().estimated_ms; ms > 0) r["estimated_ms"] = ms;
  r["spread"] = time.spread;
  r["reps"] = time.reps;
  r["agreed"] = time.agreed;
  r["clock"] = time.clock;
  r["build_ms"] = 1e3 * d.build_seconds;
  r["tile"] = fmt::format("{}x{}", d.plan.info().tile_rows, d.plan.info().tile_cols);
  r["problem"] = harness::print(problem);
  return r;
}

std::vector<BenchCase> chosen_cases(const Options& options) {
  std::vector<BenchCase> cases;
  for (const std::string& line : options.problems) {
    tandem_problem p = problem_of(line);
    if (harness::is_merge(p))
      throw harness::Error(TANDEM_ERROR_UNSUPPORTED,
                           "tandem bench times attention, and '" + line + "' is a merge");
    // One line serves both directions: a forward line says nothing of gradients, so it means all.
    if (p.direction == TANDEM_FORWARD) {
      p.d_o = p.o, p.d_q = p.q, p.d_k = p.k, p.d_v = p.v;
      p.gradients = TANDEM_GRAD_QKV;
      if (p.bias.dtype) {
        p.d_bias.dtype = p.bias.dtype;
        harness::set_layout(p, Role::d_bias, harness::Layout::bhsd);
        p.gradients |= TANDEM_GRAD_BIAS;
      }
      if (p.bias_table_size) p.gradients |= TANDEM_GRAD_BIAS_TABLE;
      if (p.dist_window) p.gradients |= TANDEM_GRAD_DIST_BIAS;
      if (p.alibi) p.gradients |= TANDEM_GRAD_SLOPE;
      if (p.normalizer == TANDEM_ELASTIC) p.gradients |= TANDEM_GRAD_TAU;
      if (p.sink) p.gradients |= TANDEM_GRAD_SINK;
    }
    cases.push_back({line.substr(line.find(' ') + 1), p});
  }
  if (!options.preset.empty() || cases.empty())
    for (BenchCase& c : preset_cases(options.preset.empty() ? "small" : options.preset))
      cases.push_back(std::move(c));
  if (options.names.empty()) return cases;
  std::vector<BenchCase> named;
  for (const std::string& name : options.names) {
    const size_t before = named.size();
    for (const BenchCase& c : cases)
      if (c.name == name) named.push_back(c);
    if (named.size() == before)
      throw harness::Error(TANDEM_ERROR_INVALID_ARGUMENT,
                           "no case is named '" + name + "'; --list shows the names");
  }
  return named;
}

Result list_cases(const std::vector<BenchCase>& cases) {
  Result list = Result::array();
  for (const BenchCase& c : cases) {
    const tandem_problem& p = c.problem;
    list.push_back({{"case", c.name},
                    {"dtype", harness::dtype_word(p.q.dtype)},
                    {"B", p.batch},
                    {"Hq", p.heads_q},
                    {"Hk", p.heads_kv},
                    {"Sq", p.seq_q},
                    {"Sk", p.seq_kv},
                    {"D", p.head_dim},
                    {"Dv", p.head_dim_v},
                    {"mask", mask_word(p)},
                    {"features", features_of(p)},
                    {"flops_fwd", case_flops(c, false)},
                    {"flops_bwd", case_flops(c, true)},
                    {"problem", harness::print(p)}});
    if (p.bias.dtype) {
      const harness::Dims d = harness::dims_of(p, Role::bias);
      list.back()["bias"] =
          Result{{"dtype", harness::dtype_word(p.bias.dtype)}, {"dims", {d.b, d.h, d.s, d.d}}};
    }
    if (c.forward_only) list.back()["ops"] = {"fwd"};
    if (c.model && p.lengths_q) list.back()["lengths_q"] = harness::model_lengths(p, false);
    if (c.model && p.lengths_kv) list.back()["lengths_kv"] = harness::model_lengths(p, true);
  }
  return list;
}

void add_word(Result* header, const char* key, const std::string& word, const char* separator) {
  std::string all = header->value(key, std::string());
  if ((separator + all + separator).find(separator + word + separator) != std::string::npos) return;
  (*header)[key] = all.empty() ? word : all + separator + word;
}

void save(const Result& result, const Options& options) {
  if (options.out.empty()) return;
  const auto ends = [&](const char* end) {
    const std::string e = end;
    return options.out.size() >= e.size() &&
           options.out.compare(options.out.size() - e.size(), e.size(), e) == 0;
  };
  if (ends(".csv")) {
    std::ofstream out(options.out);
    out << result_csv(result);
    out.flush();
    if (!out) throw std::runtime_error(options.out + " cannot be written");
  } else {
    save_result(result, options.out);
  }
}

// One result file as it grows: rows of all devices and cases.
struct Measured {
  const Options& options;
  int* exit_code;
  Result header, rows;
  int lowest_clock;

  void add(Result row) {
    // At once, as the file is written: a run that is cut off later has this much.
    fmt::print(stderr, "  {} {}: {:.4g} ms\n", row["op"].get<std::string>(),
               row["path"].get<std::string>(), row["ms"].get<double>());
    if (const auto& e = row["max_err_ratio"];
        e.is_number() && e.get<double>() > harness::kRatioLimit) {
      fmt::print(stderr, "  WRONG: error ratio {} of {} ({})\n", e.get<double>(),
                 row["op"].get<std::string>(), row["problem"].get<std::string>());
      *exit_code = 1;
    }
    rows.push_back(std::move(row));
  }
  void failed(const harness::Error& e) {
    fmt::print(stderr, "  {}\n", e.what());
    *exit_code = 1;
  }
  void keep(const Session& session) {
    if (const int mhz = session.on_cpu() ? 0 : clock_now())
      lowest_clock = lowest_clock ? std::min(lowest_clock, mhz) : mhz;
    if (lowest_clock) header["clocks_mhz"] = lowest_clock;
    save({{"header", header}, {"rows", rows}}, options);
  }
};

void one_by_one(Session& session, const std::vector<BenchCase>& cases, Measured* result) {
  const Options& options = result->options;
  for (const BenchCase& c : cases) {
    fmt::print(stderr, "{}: {}\n", session.name(), c.name);
    try {
      CaseRun run(session, c, options);
      for (size_t n = 0; n < run.count(); ++n) {
        run.prepare(n);
        const bool asked = options.op != "bwd" || n == 1;
        const harness::Timing time =
            asked ? session.time_in_turns({run.record(n)}, options.time)[0] : harness::Timing();
        run.judge(n);
        if (asked) result->add(run.row(n, time));
      }
    } catch (const harness::Error& e) {
      result->failed(e);
    }
    result->keep(session);
  }
}

// A change of the clock meanwhile concerns all cases, so that it does not change how their times
// compare.
void in_turns(Session& session, const std::vector<BenchCase>& cases, Measured* result) {
  const Options& options = result->options;
  std::vector<std::unique_ptr<CaseRun>> runs;
  for (const BenchCase& c : cases) {
    fmt::print(stderr, "{}: {}\n", session.name(), c.name);
    try {
      auto run = std::make_unique<CaseRun>(session, c, options);
      for (size_t n = 0; n < run->count(); ++n) {
        run->prepare(n);
        run->judge(n);
      }
      run->forget_inputs();  // the device holds the tensors of all cases; the host need not
      runs.push_back(std::move(run));
    } catch (const harness::Error& e) {
      result->failed(e);
      if (e.code() == TANDEM_ERROR_DEVICE_OUT_OF_MEMORY)
        fmt::print(stderr, "  --turns holds the tensors of all cases at once: name fewer\n");
    }
  }
  try {
    std::vector<std::function<void(tandem_stream)>> records;
    std::vector<std::pair<const CaseRun*, size_t>> asked;
    for (const auto& run : runs)
      for (size_t n = options.op == "bwd" ? 1 : 0; n < run->count(); ++n) {
        records.push_back(run->record(n));
        asked.emplace_back(run.get(), n);
      }
    fmt::print(stderr, "{}: {} rows in turns\n", session.name(), records.size());
    const std::vector<harness::Timing> times = session.time_in_turns(records, options.time);
    for (size_t i = 0; i < times.size(); ++i)
      result->add(asked[i].first->row(asked[i].second, times[i]));
  } catch (const harness::Error& e) {
    result->failed(e);
  }
  result->keep(session);
}

Result measure(const Options& options, int* exit_code) {
  const std::vector<BenchCase> cases =
      options.host ? std::vector<BenchCase>() : chosen_cases(options);
  Measured result{options, exit_code, Result(), Result::array(), 0};
  Result& header = result.header;
  for (const char* key : {"device", "driver", "backend"}) header[key] = "";
  header["commit"] = options.commit.empty() ? build_commit() : options.commit;
  header["date"] = utc_now();
  header["clocks_mhz"] = nullptr;
  if (options.turns) header["turns"] = true;
  for (const std::string& name : chosen_devices(options.devices)) {
    harness::SessionOptions o;
    o.disable = options.disable;
    const auto session = Session::open(name, o);
    add_word(&header, "device", session->info().name, "; ");
    add_word(&header, "driver", session->info().driver, "; ");
    add_word(&header, "backend", session->backend(), ",");
    if (options.host)
      for (Result& row : host_rows(*session, options.problems, options.time))
        result.rows.push_back(std::move(row));
    else if (options.turns)
      in_turns(*session, cases, &result);
    else
      one_by_one(*session, cases, &result);
  }
  return {{"header", std::move(header)}, {"rows", std::move(result.rows)}};
}

void show(const Result& result, const Options& options) {
  const std::string text = options.format == "json"  ? result.dump(2) + "\n"
                           : options.format == "csv" ? result_csv(result)
                           : options.host            ? host_table(result)
                                                     : result_table(result);
  fmt::print("{}", text);
  save(result, options);
}

constexpr int kSlower = 2;  // exit status of --compare; an error is 1

int run(const Options& options) {
  int exit_code = 0;
  if (!options.out.empty()) check_writable(options.out);
  if (!options.compare.empty()) {
    const Comparison c = compare_results(options.compare[0], options.compare[1]);
    fmt::print("{}", c.text);
    if (c.slower + c.lost > 0) exit_code = kSlower;
  } else if (!options.merge.empty()) {
    show(merge_results(options.merge), options);
  } else if (options.list) {
    fmt::print("{}\n", list_cases(chosen_cases(options)).dump(2));
  } else {
    const Result result = measure(options, &exit_code);
    if (result["rows"].empty()) {
      fmt::print(stderr, "Nothing ran, so there is no result.\n");
      return 1;
    }
    show(result, options);
  }
  return exit_code;
}

}  // namespace

std::vector<Result> bench_rows(Session& session, const BenchCase& c,
                               const harness::TimeOptions& time) {
  Options options;
  options.no_check = true;
  options.time = time;
  CaseRun run(session, c, options);
  std::vector<Result> rows;
  for (size_t n = 0; n < run.count(); ++n) {
    run.prepare(n);
    rows.push_back(run.row(n, session.time_in_turns({run.record(n)}, time)[0]));
  }
  return rows;
}

void add_bench(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("bench", "Times and errors of forward and backward");
  auto o = std::make_shared<Options>();
  std::string presets;
  for (const std::string& name : preset_names()) presets += (presets.empty() ? "" : ", ") + name;
  command->add_option("--device", o->devices,
                      "cpu, vulkan:N, cuda:N, or as cpu/ref with one path; default: all");
  command->add_option("--preset", o->preset, "A list of cases: " + presets + "; default: small");
  command->add_option("--case", o->names, "Only cases of these names");
  command->add_option("--problem", o->problems, "A problem line, in place of a preset");
  command->add_option("--op", o->op, "fwd, bwd or both")
      ->check(CLI::IsMember({"fwd", "bwd", "both"}))
      ->capture_default_str();
  command->add_option("--format", o->format, "table, csv or json")
      ->check(CLI::IsMember({"table", "csv", "json"}))
      ->capture_default_str();
  command->add_option("--out", o->out, "Also write a file: json, or csv by its ending");
  command->add_option("--commit", o->commit, "What the header says; default: the built tree's");
  command->add_option("--disable", o->disable, "Paths to do without, as \"cpu.simd\"");
  command->add_option("--seed", o->seed, "Of the inputs")->capture_default_str();
  command->add_option("--warmup", o->time.warmup_seconds,
                      "Seconds of work before timing; default: 1 on a GPU, 0.1 on a CPU");
  command->add_option("--reps", o->time.min_reps, "Samples of a round")->capture_default_str();
  command->add_option("--round-seconds", o->time.round_seconds,
                      "Least time of a round's samples; default: 0.6 on a GPU, 0 on a CPU");
  command->add_option("--max-seconds", o->time.max_seconds, "Most time for one row")
      ->capture_default_str();
  CLI::Option* turns = command->add_flag("--turns", o->turns,
                                         "Sample after sample of all cases in turns, their tensors "
                                         "held at once, in place of one case after "
                                         "the other; --max-seconds is for each row on the average");
  command->add_flag("--no-check", o->no_check, "Leave the error out");
  command
      ->add_flag("--host", o->host,
                 "Instead, what planning and recording cost the host; table or json")
      ->excludes("--preset")
      ->excludes("--case")
      ->excludes(turns);
  command->add_flag("--list", o->list, "Print the cases as json and run nothing");
  command->add_option("--merge", o->merge, "Join result files (of one device)")->expected(1, 100);
  command
      ->add_option("--compare", o->compare,
                   "Two result files, before and after: which cases are faster, slower or the same "
                   "within the noise. The exit status is 2 if one is slower or refused now")
      ->expected(2);
  command->callback([o, exit_code] { *exit_code = run(*o); });
}

}  // namespace tandem::tool
