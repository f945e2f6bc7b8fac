// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem check: random problems, or ones like those of real models. Every device and path runs them
// against the reference in double, and every pair of devices against each other with the same tile.
#include "check.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "ahead.h"
#include "compare.h"
#include "magnitudes.h"
#include "models.h"
#include "tools.h"

namespace tandem::tool {
namespace {

using harness::Case;
using harness::CaseResult;
using harness::Judgement;
using harness::Magnitudes;
using harness::Outputs;

// A device restricted to one of its paths.
struct Subject {
  std::string label;  // "vulkan:0/scalar"
  std::unique_ptr<harness::Session> session;
  CheckTotals totals;
};

struct Tally {
  int cases = 0;
  double worst = -1;
  std::string repro;
};

class Check {
 public:
  explicit Check(std::FILE* out) : out_(out) {}
  CheckResult run(const CheckOptions& options, const CheckProgress& progress);
  std::vector<CheckTotals> totals() const;
  const std::vector<std::string>& failed() const { return failed_; }
  int64_t failed_pairs() const { return failed_pairs_; }

 private:
  void open(const std::vector<std::string>& devices, const std::string& disable);
  // What a problem runs with, by its seed and by what was asked for.
  harness::CaseOptions options_of(uint64_t seed) const;
  using Next = std::function<bool(std::pair<tandem_problem, uint64_t>* problem_and_seed)>;
  std::unique_ptr<harness::PlansAhead> plan_ahead(const Next& next);
  void run_case(const tandem_problem& problem, uint64_t seed, const Magnitudes& magnitudes);
  void run_pairs(Case& with_tile, std::vector<std::unique_ptr<Outputs>>* outputs,
                 const std::vector<CaseResult>& results);
  std::string repro_of(const tandem_problem& problem, uint64_t seed,
                       const Magnitudes& magnitudes = {}) const {
    return harness::repro(problem, seed, magnitudes) +
           (lead_ < 0 ? "" : fmt::format(" --lead {}", lead_));
  }
  void count(Subject& subject, const CaseResult& result, const std::string& repro);
  void failure(const std::string& who, const CaseResult& result, const std::string& repro);
  void failure(Subject& subject, const CaseResult& result, const std::string& repro) {
    ++subject.totals.failures;
    failure(subject.label, result, repro);
  }
  void report() const;

  std::FILE* const out_;
  std::vector<Subject> subjects_;
  std::vector<tandem_kernel_info> registry_ = harness::registry();
  std::map<std::pair<std::string, uint32_t>, Tally> kernels_;  // subject, registry index
  std::map<std::string, Tally> pairs_;
  std::map<std::pair<std::string, std::string>, int> refused_;  // subject, reason
  std::map<std::string, int> features_;
  int failures_ = 0, ran_ = 0, repeats_ = 0, lead_ = -1;
  std::vector<std::string> failed_;  // what repeats each failure
  int64_t failed_pairs_ = 0;
};

void Check::open(const std::vector<std::string>& devices, const std::string& disable) {
  for (const std::string& name : devices) {
    // One subject a path, so that paths which a plan would not prefer run too.
    std::vector<std::string> subjects;
    if (name.find('/') == std::string::npos)
      for (const std::string& path : harness::paths_of(name)) subjects.push_back(name + "/" + path);
    if (subjects.empty()) subjects.push_back(name);
    for (const std::string& subject : subjects) {
      harness::SessionOptions o;
      o.disable = disable;
      o.aligned = true;
      Subject s;
      s.session = harness::Session::open(subject, o);
      s.label = s.session->name();
      fmt::print(out_, "  {:<18} {}; {}\n", s.label, s.session->info().name,
                 s.session->info().driver);
      subjects_.push_back(std::move(s));
    }
  }
}

std::vector<CheckTotals> Check::totals() const {
  std::vector<CheckTotals> all;
  for (const Subject& s : subjects_) {
    all.push_back(s.totals);
    all.back().path = s.label;
    all.back().device = s.session->info().name;
    all.back().driver = s.session->info().driver;
  }
  return all;
}

void Check::failure(const std::string& who, const CaseResult& result, const std::string& repro) {
  ++failures_;
  failed_.push_back(repro);
  fmt::print(out_, "FAILED {}: {}\n", who, result.message);
  if (!result.plan.empty()) fmt::print(out_, "  plan:   {}\n", result.plan);
  fmt::print(out_, "  repeat: {}\n", repro);
  std::fflush(out_);
}

// Which kernel answers for a tensor. bwd_dot, bwd_row_sums and bwd_row_sums_dq leave delta, which
// shows in what is made of it.
bool answers_for(const std::string& stem, const std::string& tensor) {
  if (stem == "fwd" || stem == "fwd_combine") return tensor == "o" || tensor == "lse";
  if (stem == "bwd_dkv") return tensor == "d_k" || tensor == "d_v";
  if (stem == "bwd_dkv_dist") return tensor == "d_k" || tensor == "d_v" || tensor == "d_dist_bias";
  if (stem == "bwd_dq") return tensor == "d_q";
  if (stem == "bwd_dbias") return tensor == "d_bias";
  if (stem == "bwd_dist_bias") return tensor == "d_dist_bias";
  if (stem == "bwd_sum_splits") return tensor == "d_bias" || tensor == "d_dist_bias";
  if (stem == "bwd_head_sums")
    return tensor == "d_slope" || tensor == "d_tau" || tensor == "d_sink";
  return tensor != "o" && tensor != "lse" && tensor != "d_v";
}

// A refusal so that it can be counted: the first reason that is not the user's own, without the
// problem's numbers: "vulkan.scalar: # optional inputs at once, ...".
std::string reason_of(const std::string& message) {
  const size_t list = message.find("takes this problem: ");
  std::string reason = list == std::string::npos ? message : message.substr(list + 20);
  for (size_t end; (end = reason.find("; ")) != std::string::npos;) {
    if (reason.find("disabled by") > end)
      reason.resize(end);
    else
      reason.erase(0, end + 2);
  }
  return harness::without_numbers(reason.substr(0, reason.find(", this problem has")));
}

// "K/N": every N-th group of problems that share kernels, from the K-th on.
struct Shard {
  uint64_t index = 0, of = 1;
  bool has(uint64_t seed) const { return seed / harness::kSameKernels % of == index; }
};
Shard parse_shard(const std::string& text) {
  Shard shard;
  if (text.empty()) return shard;
  char* end = nullptr;
  shard.index = std::strtoull(text.c_str(), &end, 10);
  shard.of = *end == '/' ? std::strtoull(end + 1, &end, 10) : 0;
  if (*end != '\0' || shard.index >= shard.of)
    throw harness::Error(TANDEM_ERROR_INVALID_ARGUMENT,
                         "--shard is '" + text + "', must be as 0/4");
  return shard;
}

void Check::count(Subject& subject, const CaseResult& result, const std::string& repro) {
  ++ran_;
  CheckTotals& totals = subject.totals;
  ++totals.runs;
  if (result.ok && result.worst_ratio() > totals.worst)
    totals.worst = result.worst_ratio(), totals.repro = repro;
  for (uint32_t index : result.kernels) {
    Tally& t = kernels_[{subject.label, index}];
    ++t.cases;
    for (const Judgement& j : result.judgements)
      if (answers_for(registry_[index].stem, j.tensor) && j.ratio > t.worst) {
        t.worst = j.ratio;
        t.repro = repro;
      }
  }
}

harness::CaseOptions Check::options_of(uint64_t seed) const {
  harness::CaseOptions options = harness::random_options(seed);
  if (repeats_ > 0) options.repeats = repeats_;
  if (lead_ >= 0) options.lead = lead_;
  return options;
}

// Makes the plans of each problem on the subjects that are worth it; null: none is. What a forced
// tile takes is made when it is asked for.
std::unique_ptr<harness::PlansAhead> Check::plan_ahead(const Next& next) {
  struct Devices {
    tandem_device *aligned, *any;
  };
  std::vector<Devices> devices;
  for (const Subject& s : subjects_)
    if (harness::is_worth_planning_ahead(*s.session))
      devices.push_back({s.session->device(), s.session->for_addresses(false).device()});
  if (devices.empty()) return nullptr;
  std::vector<harness::PlanAhead> plans;  // of the next problem, the last one first
  return std::make_unique<harness::PlansAhead>(
      [this, devices, next, plans](harness::PlanAhead* plan) mutable {
        std::pair<tandem_problem, uint64_t> problem;
        if (plans.empty()) {
          if (!next(&problem)) return false;
          const bool aligned = options_of(problem.second).lead == 0;
          for (auto d = devices.rbegin(); d != devices.rend(); ++d) {
            tandem_device* const device = aligned ? d->aligned : d->any;
            plans.push_back({device, problem.first});
            if (problem.first.direction == TANDEM_BACKWARD)
              plans.push_back({device, harness::forward_of(problem.first)});
          }
        }
        *plan = plans.back();
        plans.pop_back();
        return true;
      });
}

void Check::run_case(const tandem_problem& problem, uint64_t seed, const Magnitudes& magnitudes) {
  Case planned(problem, seed, options_of(seed));
  // Where scores are large, results have other rules, and those of two devices may rightly differ.
  std::unique_ptr<harness::MagnitudeRules> rules;
  if (!magnitudes.usual()) {
    harness::fill_magnitudes(magnitudes, planned);
    rules = std::make_unique<harness::MagnitudeRules>(planned);
  }
  const std::string repro = repro_of(problem, seed, magnitudes);
  std::vector<std::unique_ptr<Outputs>> outputs(subjects_.size());
  std::vector<CaseResult> results(subjects_.size());
  uint32_t rows = 0, cols = 0;  // the tile of the first GPU; pairs are compared with this one
  for (size_t n = 0; n < subjects_.size(); ++n) {
    outputs[n] = std::make_unique<Outputs>();
    CaseResult& r = results[n];
    harness::Session& session = *subjects_[n].session;
    r = rules ? harness::run_and_judge(planned, *rules, session, outputs[n].get())
              : planned.run_and_judge(session, outputs[n].get());
    if (r.refused) {
      ++subjects_[n].totals.refused;
      ++refused_[{subjects_[n].label, reason_of(r.message)}];
      continue;
    }
    count(subjects_[n], r, repro);
    if (!r.ok) failure(subjects_[n], r, repro);
    if (r.ok && subjects_[n].session->backend() != "cpu" && rows == 0)
      rows = r.tile_rows, cols = r.tile_cols;
  }
  if (subjects_.size() < 2 || rules) return;
  // Those that chose another tile run again with the common one forced.
  tandem_problem forced = problem;
  forced.tile_rows = rows;
  forced.tile_cols = cols;
  Case with_tile(forced, seed, options_of(seed));
  for (size_t n = 0; n < subjects_.size(); ++n) {
    CaseResult& r = results[n];
    if (!r.ok || rows == 0 || (r.tile_rows == rows && r.tile_cols == cols)) continue;
    r = with_tile.run(*subjects_[n].session, outputs[n].get());
    // The pairs see the first run alone.
    if (r.ok) planned.judge(*outputs[n], &r);
    if (!r.ok && !r.refused) failure(subjects_[n], r, repro_of(forced, seed));
  }
  run_pairs(planned, &outputs, results);
}

void Check::run_pairs(Case& planned, std::vector<std::unique_ptr<Outputs>>* outputs,
                      const std::vector<CaseResult>& results) {
  const std::string repro = repro_of(planned.problem(), planned.seed());
  for (size_t a = 0; a < subjects_.size(); ++a)
    for (size_t b = a + 1; b < subjects_.size(); ++b) {
      if (!results[a].ok || !results[b].ok) continue;
      CaseResult pair;
      pair.ok = true;
      planned.judge_pair(*(*outputs)[a], *(*outputs)[b], &pair);
      const std::string label = subjects_[a].label + " : " + subjects_[b].label;
      Tally& t = pairs_[label];
      ++t.cases;
      if (pair.worst_ratio() > t.worst) t.worst = pair.worst_ratio(), t.repro = repro;
      if (!pair.ok) ++failed_pairs_, failure(label, pair, repro);
    }
}

void Check::report() const {
  fmt::print(out_, "\nAgainst the reference in double ({} is the limit of the error ratio)\n",
             harness::kRatioLimit);
  Table table({"  device/path", "kernel", ">cases", ">worst ratio", "the worst one"});
  for (const auto& [key, t] : kernels_)
    table.add({"  " + key.first, harness::short_kernel_name(registry_[key.second]),
               std::to_string(t.cases), t.worst < 0 ? "-" : fmt::format("{:.3f}", t.worst),
               t.repro});
  fmt::print(out_, "{}", table.text());
  if (!pairs_.empty()) {
    fmt::print(out_, "\nDevice against device, with the same tile\n");
    Table pairs({"  pair", ">cases", ">worst ratio", "the worst one"});
    for (const auto& [label, t] : pairs_)
      pairs.add({"  " + label, std::to_string(t.cases), fmt::format("{:.3f}", t.worst), t.repro});
    fmt::print(out_, "{}", pairs.text());
  }
  std::string features;
  for (const auto& [word, n] : features_)
    features += fmt::format("{}{} {}", features.empty() ? "" : ", ", word, n);
  fmt::print(out_, "\nProblems with: {}\n", features);
  for (const auto& [who, n] : refused_)
    fmt::print(out_, "{}: no kernel for {} problems: {}\n", who.first, n, who.second);
}

CheckResult Check::run(const CheckOptions& options, const CheckProgress& progress) {
  if (!options.quiet)
    fmt::print(out_, "Tandem {} ({}), seed {}{}\n", version_text(), build_commit(), options.seed,
               options.shard.empty() ? "" : ", part " + options.shard);
  repeats_ = options.repeats;
  lead_ = options.lead;
  if (subjects_.empty()) open(chosen_devices(options.devices), options.disable);
  if (options.devices.empty() && !options.quiet)
    for (const harness::DeviceName& d : harness::list_devices())
      if (!d.usable()) fmt::print(out_, "  {:<18} not usable: {}\n", d.name, d.reason);

  const auto start = std::chrono::steady_clock::now();
  const bool repeat = !options.repro.empty();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const int first = int(options.first.size()), cases = repeat ? 1 : first + options.cases;
  harness::RandomLimits limits;
  limits.max_work = options.work;
  limits.tidy = 40;
  const bool on_cpu = std::all_of(subjects_.begin(), subjects_.end(),
                                  [](const Subject& s) { return s.session->backend() == "cpu"; });
  if (on_cpu) limits.f64 = 10;
  const Shard shard = parse_shard(options.shard);
  // Few problems are to see many kernels, many are to compile few.
  const auto same = int(harness::kSameKernels);
  const int per = options.per_kernels > 0 ? std::min(options.per_kernels, same)
                  : cases < 1000          ? 4
                                          : same;
  // The problem with this number; false: it is another part's.
  struct Drawn {
    bool named = false;
    uint64_t seed = 0;
    tandem_problem problem;
  };
  const auto draw = [&](int at, Drawn* drawn) {
    drawn->named = !repeat && at < first;
    const uint64_t n = options.from + uint64_t(std::max(0, at - first));
    drawn->seed = options.seed + n / uint64_t(per) * uint64_t(same) + n % uint64_t(per);
    if (!repeat && !drawn->named && !shard.has(drawn->seed)) return false;
    drawn->problem = repeat         ? problem_of(options.repro)
                     : drawn->named ? problem_of(options.first[size_t(at)])
                     : options.preset.empty()
                         ? harness::random_problem(drawn->seed, limits)
                         : harness::random_model_problem(drawn->seed, options.work);
    return true;
  };
  std::unique_ptr<harness::PlansAhead> ahead;
  if (cases > 1)  // one alone would only open a second device
    ahead = plan_ahead([&, at = 0](auto* next) mutable {
      Drawn drawn;
      while (at < cases)
        if (draw(at++, &drawn)) {
          *next = {drawn.problem, drawn.seed};
          return true;
        }
      return false;
    });
  int n = 0;  // problems that ran
  for (int at = 0; at < cases; ++at) {
    if (n > 0 && options.seconds > 0 && elapsed() > options.seconds) break;
    if (options.stop && options.stop()) break;
    Drawn drawn;
    if (!draw(at, &drawn)) continue;
    const auto& [named, seed, problem] = drawn;
    if (progress) progress(at, cases, elapsed());
    for (const std::string& word : harness::feature_words(problem)) ++features_[word];
    Magnitudes magnitudes;
    if (repeat)
      magnitudes = harness::parse_magnitudes(options.magnitudes);
    else if (options.magnitudes != "none" && !named)
      magnitudes =
          harness::random_magnitudes(seed, problem, options.magnitudes == "all" ? 100 : 33);
    if (!magnitudes.usual()) ++features_["magnitudes"];
    run_case(problem, seed, magnitudes);
    ++n;
  }
  if (progress) progress(cases, cases, elapsed());
  if (!options.quiet) report();

  const int messages = harness::total_validation_messages();
  if (messages) fmt::print(out_, "{} messages of Vulkan's validation layers\n", messages);
  if (ran_ == 0) fmt::print(out_, "Nothing ran, so nothing was checked.\n");
  const bool ok = failures_ == 0 && ran_ > 0 && messages == 0;
  if (!options.quiet)
    fmt::print(out_, "{}: {} runs of {} problems, {} failures, {:.1f} s\n", ok ? "OK" : "FAILED",
               ran_, n, failures_, elapsed());
  CheckResult result;
  result.ok = ok;
  result.runs = ran_;
  result.problems = n;
  result.failures = failures_;
  result.seconds = elapsed();
  for (const auto& [key, t] : kernels_) {
    ++result.kernels;
    result.worst = std::max(result.worst, t.worst);
  }
  return result;
}

}  // namespace

CheckResult run_check(const CheckOptions& options, std::FILE* out, const CheckProgress& progress) {
  return Check(out).run(options, progress);
}

class Checker::Impl : public Check {
  using Check::Check;
};
Checker::Checker(std::FILE* out) : impl_(std::make_unique<Impl>(out)) {}
Checker::~Checker() = default;
CheckResult Checker::run(const CheckOptions& options) { return impl_->run(options, {}); }
std::vector<CheckTotals> Checker::totals() const { return impl_->totals(); }
std::vector<std::string> Checker::failures() const { return impl_->failed(); }
int64_t Checker::pairs() const { return impl_->failed_pairs(); }

void add_check(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("check", "Every device against the reference and against each other");
  auto options = std::make_shared<CheckOptions>();
  command->add_option("--cases", options->cases, "Random problems")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the first problem")->capture_default_str();
  command->add_option("--device", options->devices,
                      "cpu, vulkan:N, cuda:N, or as cpu/ref with one path; default: all");
  CLI::Option* repro =
      command->add_option("--repro", options->repro, "Run this problem line, with --seed, instead");
  command
      ->add_option("--preset", options->preset,
                   "models: problems like those of real models (tandem bench --preset models "
                   "--list), a few percent off and smaller, in place of any")
      ->check(CLI::IsMember({"models"}))
      ->excludes(repro);
  command->add_option("--repeats", options->repeats,
                      "Runs of each problem on each device; their bits must be the same where the "
                      "plan promises it");
  command
      ->add_option(
          "--lead", options->lead,
          "Elements between a buffer's start and its tensor, up to 8: where addresses are no "
          "multiples of 16 bytes other kernels run; default: by the seed, 0 for --repro alone")
      ->check(CLI::Range(0, 8));
  command->add_option("--magnitudes", options->magnitudes,
                      "With --repro the words that it was printed with; otherwise which problems "
                      "have scores, masks "
                      "and values of any size: all, none or, by default, one of three");
  command->add_option("--per-kernels", options->per_kernels,
                      "Problems that share kernels, up to 32; default: 4, from 1,000 cases on 32");
  command->add_option("--shard", options->shard,
                      "K/N: only the K-th of N parts of the problems, counted from 0");
  command->add_option("--disable", options->disable,
                      "Paths and tiles to do without, as \"t64k32\"");
  command->add_option("--seconds", options->seconds, "Begin no new problem after this time");
  auto soak = std::make_shared<std::string>();
  command
      ->add_option(
          "--soak", *soak,
          "Random problems for hours, one line a minute: the file keeps the seed, how many "
          "have run and totals by device, and the next run goes on from there. --cases is "
          "then how many the file is to count in all; Ctrl-C ends it")
      ->excludes(repro)
      ->excludes("--shard")
      ->excludes("--per-kernels");
  command->add_option("--work", options->work, "About the most B Hq Sq Sk (D + Dv) of a problem")
      ->capture_default_str();
  command->callback([=] {
    // A problem that is named alone runs the kernels of its plan.
    if (!options->repro.empty() && command->count("--seed") == 0 && options->lead < 0)
      options->lead = 0;
    if (!soak->empty()) {
      *exit_code = run_soak({*soak, command->count("--cases") ? options->cases : 0, *options});
      return;
    }
    CheckProgress progress;
    if (stderr_is_terminal() && options->repro.empty())
      progress = [](int at, int of, double) {
        if (at < of)
          fmt::print(stderr, "\r  case {} of {} ", at + 1, of);
        else
          fmt::print(stderr, "\r{:30}\r", "");
      };
    *exit_code = run_check(*options, stdout, progress).ok ? 0 : 1;
  });
}

}  // namespace tandem::tool
