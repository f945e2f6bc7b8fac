// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bench_host.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#ifdef __linux__
#include <sched.h>
#endif

#include "compare.h"
#include "tools.h"

namespace tandem::tool {
namespace {

using Clock = std::chrono::steady_clock;
using harness::Role;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Keeps the calling thread on its core while it lives, where the system allows that. On another
// core the thread begins with cold caches, and a few calls then take two to three times as long
// (one execute through Vulkan, H100 80GB HBM3, 580.159.04: medians of processes 3.1 to 8 us, with a
// fixed core 3.1 to 4.2).
class OneCore {
 public:
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;
#ifdef __linux__
  OneCore() {
    const int core = sched_getcpu();
    cpu_set_t one;
    CPU_ZERO(&one);
    if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof before_, &before_) != 0)
      return;
    CPU_SET(core, &one);
    held_ = sched_setaffinity(0, sizeof one, &one) == 0;
  }
  ~OneCore() {
    if (held_) sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_;
  bool held_ = false;
#else
  OneCore() = default;
#endif
};

// A problem: what plans of it cost, and its plan, inputs and outputs, with which executes are
// timed.
class HostRun {
 public:
  HostRun(harness::Session& session, const std::string& name, const tandem_problem& problem,
          const harness::TimeOptions& warmup);
  void record();
  std::vector<Result> rows() const;

 private:
  double plan_us(const tandem_problem& problem) const {
    tandem_plan* plan = nullptr;
    const auto start = Clock::now();
    harness::check(tandem_plan_create(session_.device(), &problem, &plan));
    const double us = us_since(start);
    tandem_plan_destroy(plan);
    return us;
  }
  harness::Buffer& give(tandem_buffer* to, size_t bytes);
  void give_args();
  Result row(const char* what, std::vector<double> us) const;

  harness::Session& session_;
  const std::string name_;
  const tandem_problem problem_;
  const double first_us_;  // before plan_ is made
  const harness::Plan plan_;
  std::vector<double> cold_us_, cached_us_, execute_us_;
  std::vector<harness::Buffer> buffers_;
  tandem_args args_ = TANDEM_ARGS_INIT;
};

HostRun::HostRun(harness::Session& session, const std::string& name, const tandem_problem& problem,
                 const harness::TimeOptions& warmup)
    : session_(session),
      name_(name),
      problem_(problem),
      first_us_(plan_us(problem)),
      plan_(session, problem) {
  tandem_problem fresh = problem_;
  for (int n = 1; n <= 100; ++n) {
    fresh.scale = 0.1f + 1e-4f * float(n);  // a parameter, no constant of any kernel
    cold_us_.push_back(plan_us(fresh));
  }
  for (int n = 0; n <= 1000; ++n) cached_us_.push_back(plan_us(problem_));
  cached_us_.erase(cached_us_.begin());
  give_args();
  // An idle GPU's clocks are low, and commands may be written to memory that lies there.
  harness::TimeOptions once = warmup;
  once.min_reps = 1;
  once.max_seconds = 0;
  session_.time(plan_, args_, once);
  record();  // the driver's memory for so many commands
  execute_us_.clear();
}

Result HostRun::row(const char* what, std::vector<double> us) const {
  std::sort(us.begin(), us.end());
  const auto at = [&](double part) { return us[size_t(part * double(us.size() - 1) + 0.5)]; };
  Result r;
  r["case"] = name_;
  r["op"] = problem_.direction == TANDEM_BACKWARD ? "bwd" : "fwd";
  r["what"] = what;
  r["backend"] = session_.backend();
  r["path"] = plan_.info().path;
  r["us"] = at(0.5);
  r["us_p10"] = at(0.1);
  r["us_p90"] = at(0.9);
  r["samples"] = us.size();
  r["problem"] = harness::print(problem_);
  return r;
}

harness::Buffer& HostRun::give(tandem_buffer* to, size_t bytes) {
  buffers_.push_back(session_.buffer(bytes));
  *to = buffers_.back().handle();
  return buffers_.back();
}

// Inputs as problems have them: of sequences without a row, or of masks that hide all, a GPU would
// have nothing to compute.
void HostRun::give_args() {
  constexpr uint64_t kSeed = 1;
  for (Role role : harness::kInputs) {
    if (!harness::is_input(problem_, role)) continue;
    harness::HostTensor tensor(problem_, role);
    harness::fill_input(problem_, role, kSeed, 1, &tensor);
    give(&harness::buffer_of(args_, role), tensor.bytes.size()).upload(tensor.bytes);
  }
  const harness::DropoutSeed dropout = harness::dropout_seed_of(kSeed);
  args_.dropout_seed = dropout.seed;
  args_.dropout_offset = dropout.offset;
  const auto zeros = [&](tandem_buffer* to, size_t bytes) { give(to, bytes).fill(0); };
  for (Role role : harness::kOutputs) {
    if (role != Role::o && !harness::is_output(problem_, role)) continue;
    const tandem_tensor layout = harness::layout_of(problem_, role);
    const int64_t elements = harness::extent(harness::dims_of(problem_, role), layout);
    zeros(&harness::buffer_of(args_, role), size_t(elements) * harness::element_size(layout.dtype));
  }
  zeros(&args_.lse, size_t(problem_.batch * problem_.heads_q * problem_.seq_q) * sizeof(float));
  if (plan_.info().workspace_size) zeros(&args_.workspace, size_t(plan_.info().workspace_size));
  args_.workspace_size = plan_.info().workspace_size;
}

void HostRun::record() {
  session_.submit([&](tandem_stream stream) {
    for (int n = 0; n < 32; ++n) {
      const auto start = Clock::now();
      harness::check(tandem_execute(plan_, stream, &args_));
      execute_us_.push_back(us_since(start));
    }
  });
}

std::vector<Result> HostRun::rows() const {
  return {row("plan_first", {first_us_}), row("plan_cold", cold_us_),
          row("plan_cached", cached_us_), row("execute", execute_us_)};
}

// One of each kind of plan: with other kernels, launches or parameters.
std::vector<std::string> small_lines(bool on_cpu) {
  const std::string type = on_cpu ? "f32" : "bf16", rows = on_cpu ? "16" : "512",
                    sizes = type + " hq2 sq" + rows, small = sizes + (on_cpu ? " d64" : " d128"),
                    bias = " bias:" + type + ":1x2x" + rows + " d_bias:" + type + " grads=qkvb",
                    packed = on_cpu ? "32" : "1024";
  std::vector<std::string> lines = {
      "fwd " + small,
      "bwd " + small,
      "bwd " + small + " deterministic",
      "fwd " + sizes + " d256",
      "bwd " + sizes + " d256",
      "bwd " + small + " sink grads=qkvs",
      "bwd " + small + " alibi grads=qkva",
      "bwd " + small + " keep:1x1x" + rows + " dropout=0.1",
      "bwd " + small + " keep:1x1x" + rows + " sink grads=qkvs",
      "bwd b4 " + small + " q_packed=" + packed + " kv_packed=" + packed,
      "bwd " + small + bias,
      "bwd b4 " + small + bias,
      "bwd " + small + " entmax=1.5",
      "bwd " + small + " causal_top_left elastic dist=8 grads=qkvdt",
      "bwd " + small + " softcap=20 alibi sink keep:1x1x" + rows + " dropout=0.1 bias:f32:1x2x" +
          rows + " d_bias:f32 grads=qkvbas"};
  // f32, and more rows than a small problem has, which take the work of some launches elsewhere.
  if (!on_cpu) lines.insert(lines.end(), {"bwd f32 hq2 sq512 d128", "bwd bf16 hq2 sq4096 d128"});
  return lines;
}

}  // namespace

std::vector<Result> host_rows(harness::Session& session, const std::vector<std::string>& given,
                              const harness::TimeOptions& warmup) {
  // Small, so that no call waits for a GPU whose queue is full; on a CPU the work itself is timed.
  std::vector<std::string> lines = given;
  if (lines.empty()) lines = small_lines(session.on_cpu());
  std::vector<std::unique_ptr<HostRun>> runs;
  for (const std::string& line : lines) {
    fmt::print(stderr, "{}: {}\n", session.name(), line);
    try {
      runs.push_back(std::make_unique<HostRun>(session, line, problem_of(line), warmup));
    } catch (const harness::Error& error) {  // a path alone need not take all of our own lines
      if (!given.empty() || error.code() != TANDEM_ERROR_UNSUPPORTED) throw;
      fmt::print(stderr, "  left out: {}\n", error.what());
    }
  }
  {
    // In turns: other work on the machine's cores comes and goes, and hits all alike.
    [[maybe_unused]] const OneCore here;
    for (int round = 0; round < 64; ++round)
      for (const auto& run : runs) run->record();
  }
  std::vector<Result> rows;
  for (const auto& run : runs)
    for (Result& row : run->rows()) rows.push_back(std::move(row));
  return rows;
}

std::string host_table(const Result& result) {
  const Result& h = result["header"];
  std::string s = fmt::format("{}, {}; commit {}, {}\n", h["device"].get<std::string>(),
                              h["driver"].get<std::string>(), h["commit"].get<std::string>(),
                              h["date"].get<std::string>());
  Table table({"backend", "path", "op", "what", ">us", ">p10", ">p90", "case"});
  const auto us = [](const Result& r, const char* key) {
    return fmt::format("{:.2f}", r[key].get<double>());
  };
  for (const Result& r : result["rows"])
    table.add({r["backend"].get<std::string>(), r["path"].get<std::string>(),
               r["op"].get<std::string>(), r["what"].get<std::string>(), us(r, "us"),
               us(r, "us_p10"), us(r, "us_p90"), r["case"].get<std::string>()});
  return s + table.text();
}

}  // namespace tandem::tool
