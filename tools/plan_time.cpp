// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem plan --time: what each pipeline of a problem's plans takes.
#include "plan_time.h"

#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <sstream>

namespace tandem::tool {
namespace {

// A pipeline, as the library's log reports it.
struct Made {
  std::string what;  // "fwd fwd128 wide"
  double ms = 0;
  unsigned long long words = 0, of = 0;  // of SPIR-V
};
struct Taken {
  std::vector<Made> pipelines;
  double plan_ms = 0;
};

void keep(void* user, tandem_log_level level, const char* message) {
  constexpr const char* kStart = "pipeline ";
  if (level != TANDEM_LOG_DEBUG || std::strncmp(message, kStart, std::strlen(kStart)) != 0) return;
  const char* what = message + std::strlen(kStart);
  const char* colon = std::strstr(what, ": ");
  unsigned long long us = 0;
  Made made;
  if (!colon ||
      std::sscanf(colon, ": %llu us, %llu of %llu words", &us, &made.words, &made.of) != 3)
    return;
  made.what.assign(what, colon);
  made.ms = double(us) / 1e3;
  static_cast<std::vector<Made>*>(user)->push_back(made);
}

// Plans all of them on a new device. blob: what it begins with; left: its own in the end.
std::vector<Taken> plan_all(const std::string& device, const std::string& disable,
                            const std::vector<tandem_problem>& problems,
                            const std::vector<char>& blob, std::vector<char>* left) {
  std::vector<Made> log;
  harness::SessionOptions options;
  options.disable = disable;
  options.log = keep;
  options.user = &log;
  options.cache = false;
  const auto session = harness::Session::open(device, options);
  if (!blob.empty())
    harness::check(tandem_device_set_cache(session->device(), blob.size(), blob.data()));
  std::vector<Taken> all;
  for (const tandem_problem& problem : problems) {
    log.clear();
    const auto start = std::chrono::steady_clock::now();
    const harness::Plan plan(*session, problem);
    Taken taken;
    taken.plan_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    taken.pipelines = log;
    all.push_back(taken);
  }
  size_t size = 0;
  harness::check(tandem_device_get_cache(session->device(), &size, nullptr));
  left->resize(size);
  harness::check(tandem_device_get_cache(session->device(), &size, left->data()));
  left->resize(size);
  return all;
}

// Milliseconds until a new device has all plans, each made by a thread of its own.
double plan_at_once(const std::string& device, const std::string& disable,
                    const std::vector<tandem_problem>& problems) {
  harness::SessionOptions options;
  options.disable = disable;
  options.cache = false;
  const auto session = harness::Session::open(device, options);
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::future<harness::Plan>> plans;
  for (const tandem_problem& problem : problems)
    plans.push_back(
        std::async(std::launch::async, [&] { return harness::Plan(*session, problem); }));
  for (auto& plan : plans) static_cast<void>(plan.get());
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

void set_if_not(const char* name, const char* value) {
#ifdef _WIN32
  if (!std::getenv(name)) _putenv_s(name, value);
#else
  setenv(name, value, 0);
#endif
}

// The forward of a backward's line: without the words that only a backward has.
std::string forward_of(const std::string& line) {
  std::istringstream in(line);
  std::string forward, word;
  while (in >> word) {
    if (word == "bwd") word = "fwd";
    if (word.compare(0, 6, "grads=") == 0 || word.compare(0, 2, "d_") == 0 ||
        word == "part_of_keys")
      continue;
    forward += (forward.empty() ? "" : " ") + word;
  }
  return forward;
}

}  // namespace

void without_driver_caches() {
  set_if_not("__GL_SHADER_DISK_CACHE", "0");        // NVIDIA
  set_if_not("MESA_SHADER_CACHE_DISABLE", "true");  // Mesa
}

void time_pipelines(const std::string& device, const std::string& line,
                    const std::string& disable) {
  std::vector<std::string> lines = {harness::print(harness::parse(line))};
  if (lines[0].compare(0, 3, "bwd") == 0) lines.insert(lines.begin(), forward_of(lines[0]));
  std::vector<tandem_problem> problems;
  for (const std::string& l : lines) problems.push_back(problem_of(l));

  std::vector<char> blob, unused;
  const std::vector<Taken> first = plan_all(device, disable, problems, {}, &blob),
                           again = plan_all(device, disable, problems, {}, &unused),
                           from = plan_all(device, disable, problems, blob, &unused);
  double sums[3] = {};
  for (size_t n = 0; n < problems.size(); ++n) {
    fmt::print("  {}\n", lines[n]);
    Table table({"    pipeline", ">first ms", ">again ms", ">blob ms", ">words", ">of"});
    for (size_t i = 0; i < first[n].pipelines.size(); ++i) {
      const Made& made = first[n].pipelines[i];
      const auto ms = [&](const Taken& t) {
        return i < t.pipelines.size() ? fmt::format("{:.2f}", t.pipelines[i].ms) : "-";
      };
      table.add({"    " + made.what, ms(first[n]), ms(again[n]), ms(from[n]),
                 std::to_string(made.words), std::to_string(made.of)});
    }
    table.add({"    the plan", fmt::format("{:.2f}", first[n].plan_ms),
               fmt::format("{:.2f}", again[n].plan_ms), fmt::format("{:.2f}", from[n].plan_ms), "",
               ""});
    fmt::print("{}", table.text());
    sums[0] += first[n].plan_ms, sums[1] += again[n].plan_ms, sums[2] += from[n].plan_ms;
  }
  fmt::print(
      "  all plans: {:.2f} ms on a new device, {:.2f} on a second one, {:.2f} with its blob "
      "of {} bytes\n",
      sums[0], sums[1], sums[2], blob.size());
  if (problems.size() > 1)
    fmt::print("  at once: {:.2f} ms on a new device, a thread a plan\n",
               plan_at_once(device, disable, problems));
}

}  // namespace tandem::tool
