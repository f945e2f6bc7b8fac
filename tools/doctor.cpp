// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem doctor: what a machine's devices are, which paths they take and why no others, whether
// results are right, and how fast some models are. One report for an issue.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <utility>

#include "bench.h"
#include "check.h"
#include "models.h"
#include "tools.h"
#include "usual.h"

namespace tandem::tool {
namespace {

struct Options {
  std::vector<std::string> devices;
  std::string out = "tandem-doctor.md", disable;
  double seconds = 60, bench_seconds = 40;
  uint64_t seed = 1;
};

// What runs first, so that the kernels of the most usual problems are judged in the shortest time.
constexpr const char* kFirst[] = {
    "bwd f16 b1 hq4 hk2 sq130 sk200 d64 causal_bottom_right",
    "bwd bf16 b1 hq2 hk2 sq200 sk200 d128 causal_top_left",
    "bwd f32 b2 hq2 hk1 sq77 sk131 d40 dv24",
    "bwd f16 b1 hq2 hk2 sq100 sk100 d72",
    "fwd f16 b2 hq8 hk2 sq1 sk900 d128 causal_bottom_right",
    "bwd bf16 b1 hq2 hk2 sq300 sk300 d64 causal_top_left left=100",
    "bwd f16 b2 hq2 hk2 sq49 sk49 d32 bias:f16:1x2x49 d_bias:f16 grads=qkvb",
    "bwd f32 b1 hq2 hk1 sq90 sk90 d256"};

// Models that are timed: vision, diffusion, training, decoding. A device on the CPU has one entry
// of the first instead.
constexpr const char* kModels[] = {"vit-b16-224", "swin-t-stage3",    "sdxl-self-64",
                                   "gpt2-small",  "t5-large-encoder", "llama3-8b",
                                   "qwen25-0b5",  "llama3-8b-decode", "nanogpt-char-f32"};
constexpr const char* kSmall = "bwd f32 b1 hq12 hk12 sq197 sk197 d64 dv64";

// Beside the usual problems: a long document in one call. An execute over kLongMs gets a warning.
constexpr Usual kLong = {"long prompt",
                         "fwd f16 b1 hq16 hk16 sq32768 sk32768 d128 dv128 causal_top_left"};
constexpr double kLongMs = 500;

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A bar on stderr, where that is a terminal.
class Bar {
 public:
  void show(const std::string& what, double part) {
    if (!on_) return;
    constexpr int kWidth = 32;
    const int full = int(kWidth * std::min(1.0, std::max(0.0, part)));
    fmt::print(stderr, "\r{:<28} [{}{}] {:3.0f} %", what.substr(0, 28), std::string(full, '#'),
               std::string(kWidth - full, '.'), 100 * std::min(1.0, part));
    std::fflush(stderr);
  }
  ~Bar() { clear(); }
  void clear() {
    if (on_) fmt::print(stderr, "\r{:70}\r", "");
  }

 private:
  const bool on_ = stderr_is_terminal();
};

class Doctor {
 public:
  explicit Doctor(const Options& options) : options_(options) {}
  int run();

 private:
  // A line of the report, and one that is also printed.
  void line(const std::string& text) { report_ += text + "\n"; }
  void say(const std::string& text) {
    bar_.clear();
    fmt::print("{}\n", text);
    std::fflush(stdout);
    line(text);
  }
  void wrong(const std::string& text) { wrong_.push_back(text); }
  void machine();
  void plans(const harness::Session& session);
  void parity(const std::string& device, double seconds);
  // Returns the operations that the timed models had a second: the median. 0: none was timed.
  double times(harness::Session& session);
  void long_executes(const harness::Session& session, double rate);
  void save() const;

  const Options& options_;
  Bar bar_;
  std::string report_;
  std::vector<std::string> wrong_;
};

void Doctor::machine() {
  line("# Tandem on a GPU: a report of `tandem doctor`");
  line("");
  say(fmt::format("Tandem {} ({}) on {}", version_text(), build_commit(), system_text()));
  // Values that may hold a path of the user's are left out.
  for (const char* name : {"TANDEM_DEVICE", "TANDEM_DISABLE", "TANDEM_CPU_ISA"})
    if (const char* value = std::getenv(name)) line(fmt::format("- {}={}", name, value));
  for (const char* name : {"TANDEM_CACHE", "VK_DRIVER_FILES", "VK_ADD_DRIVER_FILES",
                           "VK_ICD_FILENAMES", "VK_INSTANCE_LAYERS", "CUDA_VISIBLE_DEVICES"})
    if (std::getenv(name)) line(fmt::format("- {} is set", name));
  line("");
}

void Doctor::plans(const harness::Session& session) {
  line("");
  line("What planning sees:");
  line("```");
  for (const std::string& l : lines_of(harness::describe(session.device()))) line(l);
  line("```");
  line("Which path each usual problem takes, and why no other:");
  line("```");
  for (const Usual& u : kUsual) {
    line(fmt::format("{}: {}", u.what, u.line));
    for (const std::string& l :
         lines_of(harness::explain(session.device(), harness::parse(u.line))))
      line("  " + l);
    try {
      const harness::Plan plan(session, harness::parse(u.line));
      fmt::print("  {:<18} {}\n", u.what, plan.info().name);
    } catch (const harness::Error& e) {
      line(fmt::format("  no plan: {}", e.what()));
      fmt::print("  {:<18} no plan\n", u.what);
      wrong(fmt::format("{}: {}: {}", session.name(), u.what, e.what()));
    }
  }
  line("```");
}

void Doctor::parity(const std::string& device, double seconds) {
  CheckOptions check;
  check.devices = {device};
  check.disable = options_.disable;
  check.first.assign(std::begin(kFirst), std::end(kFirst));
  check.cases = 1000;
  check.per_kernels = 4;
  check.seed = options_.seed;
  check.seconds = seconds;
  std::FILE* out = std::tmpfile();
  if (!out) throw harness::Error(TANDEM_ERROR_BACKEND, "there is no room for a temporary file");
  CheckResult result;
  try {
    result = run_check(check, out, [&](int at, int of, double so_far) {
      bar_.show(device + ": parity", std::max(double(at) / of, so_far / seconds));
    });
  } catch (...) {
    std::fclose(out);
    throw;
  }
  std::string text;
  std::rewind(out);
  for (int c; (c = std::fgetc(out)) != EOF;) text += char(c);
  std::fclose(out);
  say("");
  say(fmt::format(
      "Parity: {}: {} runs of {} problems on {} kernels, {} failures, worst error ratio "
      "{:.3f} (limit 2), {:.0f} s",
      result.ok ? "OK" : "FAILED", result.runs, result.problems, result.kernels, result.failures,
      std::max(0.0, result.worst), result.seconds));
  line("```");
  for (const std::string& l : lines_of(text)) line(l);
  line("```");
  if (!result.ok) wrong(fmt::format("{}: parity failed", device));
}

double Doctor::times(harness::Session& session) {
  harness::TimeOptions time;
  time.warmup_seconds = session.on_cpu() ? 0.05 : 0.3;
  time.round_seconds = session.on_cpu() ? 0 : 0.2;
  time.min_reps = 3;
  time.max_seconds = 1.5;
  std::vector<BenchCase> cases;
  if (session.on_cpu()) {
    cases.push_back({"vit-b16-224, one image, f32", problem_of(kSmall)});
  } else {
    for (const char* name : kModels)
      for (BenchCase& c : preset_cases("models"))
        if (c.name == name) cases.push_back(std::move(c));
  }
  Table table({"model", "op", "path", ">ms", ">TFLOP/s", "problem"});
  std::vector<std::string> left_out;
  const auto start = std::chrono::steady_clock::now();
  bool first = true;
  std::vector<double> rates;
  for (const BenchCase& c : cases) {
    if (!std::exchange(first, false) && since(start) > options_.bench_seconds) {
      left_out.push_back(c.name + ": no time left");
      continue;
    }
    bar_.show(session.name() + ": " + c.name, since(start) / options_.bench_seconds);
    try {
      for (const Result& r : bench_rows(session, c, time)) {
        rates.push_back(1e12 * r["tflops"].get<double>());
        table.add({c.name, r["op"].get<std::string>(), r["path"].get<std::string>(),
                   fmt::format("{:.4g}", r["ms"].get<double>()),
                   fmt::format("{:.3g}", r["tflops"].get<double>()),
                   r["problem"].get<std::string>()});
      }
    } catch (const harness::Error& e) {
      left_out.push_back(c.name + ": " + e.what());
      const bool small = e.code() == TANDEM_ERROR_DEVICE_OUT_OF_MEMORY ||
                         e.code() == TANDEM_ERROR_OUT_OF_MEMORY ||
                         e.code() == TANDEM_ERROR_UNSUPPORTED;
      if (!small) wrong(fmt::format("{}: {}: {}", session.name(), c.name, e.what()));
    }
  }
  bar_.clear();
  if (!table.empty()) {
    line("```");
    say(table.text());
    line("```");
  }
  for (const std::string& l : left_out) say("not timed: " + l);
  std::sort(rates.begin(), rates.end());
  return rates.empty() ? 0 : rates[rates.size() / 2];
}

// Warns of executes that drivers may end as a job that hangs, and that hold up a frame.
void Doctor::long_executes(const harness::Session& session, double rate) {
  if (session.backend() == "cpu") return;  // no driver ends its work
  std::vector<Usual> usual(std::begin(kUsual), std::end(kUsual));
  usual.push_back(kLong);
  for (const Usual& u : usual) {
    tandem_plan_info info{};
    try {
      info = harness::Plan(session, harness::parse(u.line)).info();
    } catch (const harness::Error&) {
      continue;  // plans() has told
    }
    const double ms = info.estimated_ms > 0 ? info.estimated_ms
                      : rate > 0            ? 1e3 * info.flops / rate
                                            : 0;
    if (ms <= kLongMs) continue;
    const std::string budget =
        fmt::format("{:.2g} operations, about 50 ms each", info.flops * 50 / ms);
    say(fmt::format(
        "WARNING: {}: {}: one execute takes about {:.1f} s, and drivers end jobs of one "
        "to ten seconds: {}",
        session.name(), u.what, ms / 1e3,
        session.backend() == "cuda"
            ? "call it with fewer heads or batch entries (slices are cut between "
              "kernels on CUDA)"
            : "record it in slices (docs/guide/slices.md) of " + budget));
  }
}

void Doctor::save() const {
  std::ofstream file(options_.out);
  file << report_;
  file.close();
  if (!file) throw std::runtime_error(options_.out + " cannot be written");
}

int Doctor::run() {
  check_writable(options_.out);
  const auto start = std::chrono::steady_clock::now();
  machine();
  const std::vector<std::string> devices = chosen_devices(options_.devices);
  if (options_.devices.empty())
    for (const harness::DeviceName& d : harness::list_devices())
      if (!d.usable()) say(fmt::format("{} is not usable: {}", d.name, d.reason));
  if (devices.empty()) wrong("there is no device");
  for (const std::string& name : devices) {
    try {
      harness::SessionOptions o;
      o.disable = options_.disable;
      o.aligned = true;
      const auto session = harness::Session::open(name, o);
      say("");
      say(fmt::format("## {}: {}; driver: {}", name, session->info().name, session->info().driver));
      plans(*session);
      parity(name, options_.seconds / double(devices.size()));
      line("");
      line("Times of models, without judging:");
      long_executes(*session, times(*session));
    } catch (const harness::Error& e) {
      say(fmt::format("{}: {}", name, e.what()));
      wrong(fmt::format("{}: {}", name, e.what()));
    }
  }
  say("");
  for (const std::string& w : wrong_) say("WRONG: " + w);
  say(fmt::format("{}, {:.0f} s", wrong_.empty() ? "OK" : "FAILED", since(start)));
  save();
  fmt::print("The report is in {}\n", options_.out);
  return wrong_.empty() ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "doctor", "What the devices are, whether their results are right, and a report of it");
  auto options = std::make_shared<Options>();
  command->add_option("--device", options->devices,
                      "cpu, vulkan:N, cuda:N, or as cpu/ref with one path; default: all");
  command->add_option("--out", options->out, "The report")->capture_default_str();
  command
      ->add_option("--seconds", options->seconds,
                   "For parity on all devices; a problem that has begun is finished")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--bench-seconds", options->bench_seconds,
                   "For the times of models on each device; 0: none but the first")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--disable", options->disable, "Paths to do without, as \"cpu.simd\"");
  command->add_option("--seed", options->seed, "Of parity's random problems")
      ->capture_default_str();
  command->callback([options, exit_code] { *exit_code = Doctor(*options).run(); });
}

}  // namespace tandem::tool
