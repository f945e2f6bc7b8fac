// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bench_host.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#ifdef __linux__
#include <sched.h>
#endif

#include "compare.h"
#include "tools.h"

namespace tandem::tool {
namespace {

using Clock = std::chrono::steady_clock;
using support::Role;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// While it lives the calling thread stays on its core, where the system lets it: moved to another one it begins with cold caches, and a
// few calls then take two to three times as long (one execute through Vulkan, H100 80GB HBM3, 580.159.04: medians of 3.1 to 8 us of
// one process after the other, 3.1 to 4.2 on a core each).
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

class HostRun {
 public:
  HostRun(support::Session& session, const std::string& name, const tandem_problem& problem,
          const support::TimeOptions& warmup)
      : session_(session), name_(name), problem_(problem), warmup_(warmup) {}
  void add_rows(std::vector<Result>* rows);

 private:
  double plan_us(const tandem_problem& problem) const {
    tandem_plan* plan = nullptr;
    const auto start = Clock::now();
    support::check(tandem_plan_create(session_.device(), &problem, &plan));
    const double us = us_since(start);
    tandem_plan_destroy(plan);
    return us;
  }
  Result row(const char* what, std::vector<double> us) const;
  std::vector<double> execute_us(const support::Plan& plan);

  support::Session& session_;
  const std::string name_;
  const tandem_problem problem_;
  const support::TimeOptions warmup_;
  std::string path_;
};

Result HostRun::row(const char* what, std::vector<double> us) const {
  std::sort(us.begin(), us.end());
  const auto at = [&](double part) { return us[size_t(part * double(us.size() - 1) + 0.5)]; };
  Result r;
  r["case"] = name_;
  r["op"] = problem_.direction == TANDEM_BACKWARD ? "bwd" : "fwd";
  r["what"] = what;
  r["backend"] = session_.backend();
  r["path"] = path_;
  r["us"] = at(0.5);
  r["us_p10"] = at(0.1);
  r["us_p90"] = at(0.9);
  r["samples"] = us.size();
  r["problem"] = support::print(problem_);
  return r;
}

std::vector<double> HostRun::execute_us(const support::Plan& plan) {
  std::vector<support::Buffer> buffers;
  tandem_args args = TANDEM_ARGS_INIT;
  const auto give = [&](tandem_buffer* to, size_t bytes) {
    buffers.push_back(session_.buffer(bytes));
    buffers.back().fill(0);
    *to = buffers.back().handle();
  };
  const auto tensor = [&](Role role) {
    const tandem_tensor layout = support::layout_of(problem_, role);
    const int64_t elements = support::extent(support::dims_of(problem_, role), layout);
    give(&support::buffer_of(args, role), size_t(elements) * support::element_size(layout.dtype));
  };
  for (Role role : support::kInputs)
    if (support::is_input(problem_, role)) tensor(role);
  tensor(Role::o);
  for (Role role : support::kOutputs)
    if (role != Role::o && support::is_output(problem_, role)) tensor(role);
  give(&args.lse, size_t(problem_.batch * problem_.heads_q * problem_.seq_q) * sizeof(float));
  if (plan.info().workspace_size) give(&args.workspace, size_t(plan.info().workspace_size));
  args.workspace_size = plan.info().workspace_size;

  std::vector<double> us;
  const auto record = [&] {
    session_.submit([&](tandem_stream stream) {
      for (int n = 0; n < 32; ++n) {
        const auto start = Clock::now();
        support::check(tandem_execute(plan, stream, &args));
        us.push_back(us_since(start));
      }
    });
  };
  // An idle GPU's clocks are low, and commands may be written to memory that lies there.
  support::TimeOptions once = warmup_;
  once.min_reps = 1;
  once.max_seconds = 0;
  session_.time(plan, args, once);
  record();  // the driver's memory for so many commands
  us.clear();
  // Over a while: other work on the machine's cores comes and goes.
  const OneCore here;
  for (int round = 0; round < 64; ++round) record();
  return us;
}

void HostRun::add_rows(std::vector<Result>* rows) {
  const double first = plan_us(problem_);
  const support::Plan plan(session_, problem_);
  path_ = plan.info().path;
  rows->push_back(row("plan_first", {first}));
  std::vector<double> us;
  tandem_problem fresh = problem_;
  for (int n = 1; n <= 100; ++n) {
    fresh.scale = 0.1f + 1e-4f * float(n);  // a parameter, no constant of any kernel
    us.push_back(plan_us(fresh));
  }
  rows->push_back(row("plan_cold", us));
  us.clear();
  for (int n = 0; n <= 1000; ++n) us.push_back(plan_us(problem_));
  us.erase(us.begin());
  rows->push_back(row("plan_cached", us));
  rows->push_back(row("execute", execute_us(plan)));
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

std::vector<Result> host_rows(support::Session& session, const std::vector<std::string>& given,
                              const support::TimeOptions& warmup) {
  // Small, so that a GPU is done with them sooner than the host; on a CPU the work itself is timed.
  std::vector<std::string> lines = given;
  if (lines.empty()) lines = small_lines(session.on_cpu());
  std::vector<Result> rows;
  for (const std::string& line : lines) {
    fmt::print(stderr, "{}: {}\n", session.name(), line);
    try {
      HostRun(session, line, problem_of(line), warmup).add_rows(&rows);
    } catch (const support::Error& error) {  // a path alone need not take all of our own lines
      if (!given.empty() || error.code() != TANDEM_ERROR_UNSUPPORTED) throw;
      fmt::print(stderr, "  left out: {}\n", error.what());
    }
  }
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
