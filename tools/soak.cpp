// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem check --soak: random problems for hours. A file keeps where the next run goes on, and what
// ran: {"seed", "problems", "options", "seconds", "commits": {commit: problems}, "devices": [{path,
// device, driver, runs, refused, failures, worst, repeat}], "pairs_failed", "failed": [...]}.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "check.h"
#include "compare.h"
#include "files.h"
#include "tools.h"

namespace tandem::tool {
namespace {

using Json = nlohmann::ordered_json;

volatile std::sig_atomic_t interrupted = 0;

// What decides which problems a seed means, and so has to be the same in each run of a file.
std::string sequence_of(const CheckOptions& o) {
  return fmt::format("--work {}{}{}{}{}", o.work, o.preset.empty() ? "" : " --preset " + o.preset,
                     o.magnitudes.empty() ? "" : " --magnitudes " + o.magnitudes,
                     o.lead < 0 ? "" : fmt::format(" --lead {}", o.lead),
                     o.repeats > 0 ? fmt::format(" --repeats {}", o.repeats) : "");
}

Json read(const std::string& file, const CheckOptions& options) {
  std::ifstream in(file);
  if (!in)
    return {{"seed", options.seed},
            {"problems", 0},
            {"options", sequence_of(options)},
            {"seconds", 0},
            {"commits", Json::object()},
            {"devices", Json::array()},
            {"pairs_failed", 0},
            {"failed", Json::array()}};
  Json state = Json::parse(in, nullptr, false);
  if (state.is_discarded() || !state.is_object() || !state.contains("problems") ||
      !state.contains("devices"))
    throw std::runtime_error(file + " is no file of tandem check --soak");
  const std::string begun = state.at("options"), asked = sequence_of(options);
  if (begun != asked)
    throw std::runtime_error(
        fmt::format("{} was begun with '{}', and this is '{}'; another file "
                    "can take it",
                    file, begun, asked));
  return state;
}

// Whole or not at all: a machine that stops meanwhile leaves the file as it was.
void write(const Json& state, const std::string& file) {
  const std::string part = file + ".part";
  std::ofstream out(part);
  out << state.dump(1) << "\n";
  out.close();
  if (!out || !harness::replace_file(part, file))
    throw std::runtime_error(file + " cannot be written");
}

// The totals of the file and of this process together.
Json sum(const Json& before, const Checker& checker, int64_t problems, double seconds) {
  Json state = before;
  state["problems"] = before.at("problems").get<int64_t>() + problems;
  state["seconds"] = before.at("seconds").get<int64_t>() + int64_t(seconds);
  Json& of_commit = state["commits"][build_commit()];
  of_commit = (of_commit.is_null() ? 0 : of_commit.get<int64_t>()) + problems;
  for (const CheckTotals& t : checker.totals()) {
    Json* row = nullptr;
    for (Json& r : state["devices"])
      if (r.at("path") == t.path && r.at("device") == t.device && r.at("driver") == t.driver)
        row = &r;
    if (!row) {
      state["devices"].push_back({{"path", t.path},
                                  {"device", t.device},
                                  {"driver", t.driver},
                                  {"runs", 0},
                                  {"refused", 0},
                                  {"failures", 0},
                                  {"worst", -1.0},
                                  {"repeat", ""}});
      row = &state["devices"].back();
    }
    const auto add = [&](const char* key, int64_t n) {
      (*row)[key] = row->at(key).get<int64_t>() + n;
    };
    add("runs", t.runs);
    add("refused", t.refused);
    add("failures", t.failures);
    if (t.worst > row->at("worst").get<double>())
      (*row)["worst"] = t.worst, (*row)["repeat"] = t.repro;
  }
  state["pairs_failed"] = before.at("pairs_failed").get<int64_t>() + checker.pairs();
  for (const std::string& line : checker.failures())
    state["failed"].push_back({{"commit", build_commit()}, {"repeat", line}});
  return state;
}

std::string line_of(const Json& state, int64_t now, double minutes) {
  int64_t runs = 0, failures = state.at("pairs_failed");
  double worst = -1;
  for (const Json& row : state.at("devices")) {
    runs += row.at("runs").get<int64_t>();
    failures += row.at("failures").get<int64_t>();
    worst = std::max(worst, row.at("worst").get<double>());
  }
  char time[32];
  const std::time_t t = std::time(nullptr);
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M", std::gmtime(&t));
  return fmt::format(
      "{} {} problems ({:.0f} a minute), {} runs, {} failures, worst error ratio {:.3f}", time,
      state.at("problems").get<int64_t>(), double(now) / std::max(minutes, 0.01), runs, failures,
      worst);
}

}  // namespace

int run_soak(const SoakOptions& options) {
  check_writable(options.file);
  const Json before = read(options.file, options.check);
  const int64_t first = before.at("problems");
  CheckOptions batch = options.check;
  batch.seed = before.at("seed");
  batch.quiet = true;
  batch.per_kernels = int(harness::kSameKernels);  // seeds follow each other
  batch.stop = [] { return interrupted != 0; };
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
  fmt::print("Tandem {} ({}), seed {}, from problem {} on; {}\n", version_text(), build_commit(),
             batch.seed, first, options.file);

  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Checker checker(stdout);
  int64_t done = 0;
  bool ok = true;
  while (!interrupted) {
    const double from = elapsed();
    const int64_t left = options.problems > 0 ? options.problems - first - done
                                              : std::numeric_limits<int64_t>::max();
    const double time_left = options.check.seconds > 0 ? options.check.seconds - from : 60;
    if (left <= 0 || time_left <= 0) break;
    batch.from = uint64_t(first + done);
    batch.cases = int(std::min<int64_t>(left, 1 << 20));
    batch.seconds = std::min(time_left, 60.0);
    const CheckResult result = checker.run(batch);
    if (result.problems == 0) break;
    done += result.problems;
    ok = result.ok;
    const Json state = sum(before, checker, done, elapsed());
    write(state, options.file);
    fmt::print("{}\n", line_of(state, result.problems, (elapsed() - from) / 60));
    std::fflush(stdout);
  }
  return ok ? 0 : 1;
}

}  // namespace tandem::tool
