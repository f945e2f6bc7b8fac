// SPDX-License-Identifier: MIT OR Apache-2.0
#include "parity.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "api/handles.h"
#include "recorded_session.h"

namespace parity {
namespace {

// The paths that are asked for every problem; what the others refuse is theirs to say.
const std::vector<std::string> kGeneral = {"cpu.ref", "vulkan.scalar", "cuda.simt"};

std::vector<Target> all_targets;
std::map<uint32_t, long> counts;

std::map<std::string, std::set<std::string>> blamed;  // "suite|target" to tensors

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::string part;
  for (char c : list + ",") {
    if (c != ',') {
      part += c;
    } else if (!part.empty()) {
      parts.push_back(part);
      part.clear();
    }
  }
  return parts;
}

// Whether a device can run a kernel of its path at all. Vulkan's devices have other shapes of
// matrices, and not all have tensor addressing; some drivers have no programmatic launches.
bool can_run(const Target& target, const tandem::KernelRow& row) {
  const tandem::Caps& caps = target.session->device()->device->caps();
  std::string variant = row.variant;
  for (const tandem::String& word : caps.disabled)
    if (word == kernel_name(row) || (variant == "ds" && word == tandem::kDsWord)) return false;
  if (variant == "strips_k2") variant = "k2";  // both by the shape of the device's matrices
  if (variant == "tensor") return caps.coopmat_tensors;
  if (variant == "bias_two_cta") return caps.early_launches;
  // cuda.sm80 joins bwd_dq only where there are SMs for the workgroups of both.
  if (variant == "joined" && row.stem == tandem::Stem::bwd_dq) return caps.cores != 1;
  if (variant != "base" && variant != "k2" && variant != "lean") return true;
  for (const char* line : {"f16 sq64 d64", "bf16 sq64 d64"}) {
    const bool forward = row.stem == tandem::Stem::fwd;
    const tandem_problem given = parse((forward ? "fwd " : "bwd ") + std::string(line));
    tandem::Problem checked;
    tandem::Plan plan;
    if (!tandem::make_problem(&given, &checked).ok() || !make_plan(checked, caps, &plan).ok())
      continue;
    for (const tandem::Launch& l : plan.launches)
      if (variant == tandem::kKernels[l.kernel].variant) return true;
  }
  return false;
}

}  // namespace

Tier tier() {
  static const Tier chosen = [] {
    const char* text = std::getenv("TANDEM_TIER");
    const std::string name = text && *text ? text : "smoke";
    if (name == "smoke") return Tier::smoke;
    if (name == "ci") return Tier::ci;
    if (name == "device") return Tier::device;
    std::fprintf(stderr, "TANDEM_TIER is '%s', must be smoke, ci or device\n", name.c_str());
    std::exit(2);
  }();
  return chosen;
}

std::vector<Target>& targets() { return all_targets; }

bool takes(const Target& target, const tandem_problem& problem) {
  if (problem.q.dtype == TANDEM_F64) return target.path == "ref";
  if (target.general) return true;
  // A line "backend.path   refused: why"; a tile's has the tile's name in between.
  const std::string name = target.backend + "." + target.path;
  const std::string words = "\n" + explain(target.session->device(), problem);
  for (size_t at = 0; (at = words.find("\n" + name + " ", at)) != std::string::npos; ++at)
    if (words.compare(words.find_first_not_of(' ', at + 1 + name.size()), 8, "refused:") == 0)
      return false;
  return true;
}

tandem_problem in_f16(tandem_problem p) {
  for (Role role : kRoles) tensor_of(p, role).dtype = TANDEM_F16;
  p.flags &= ~TANDEM_FLAG_TF32;  // which is for f32
  return p;
}
void close_targets() { all_targets.clear(); }

std::unique_ptr<PlansAhead> plan_ahead(const std::function<void()>& run_cases) {
  std::vector<PlanAhead> plans;
  std::set<std::pair<tandem_device*, std::string>> seen;
  const auto planned = [&](tandem_device* device, const tandem_problem& p) {
    if (seen.insert({device, print(p)}).second) plans.push_back({device, p});
  };
  std::vector<Target> twins;
  for (Target& target : all_targets) {
    if (target.recorded || !is_worth_planning_ahead(*target.session)) continue;
    Target twin{target.name, target.backend, target.path, open_twin(*target.session, planned)};
    twin.general = target.general;
    twin.recorded = true;
    twins.push_back(std::move(twin));
  }
  if (twins.empty()) return nullptr;
  std::swap(all_targets, twins);
  run_cases();
  std::swap(all_targets, twins);
  counts.clear();
  blamed.clear();
  recorded_faults().clear();
  std::printf("plans to be made ahead: %zu\n", plans.size());
  return std::make_unique<PlansAhead>([plans, at = size_t(0)](PlanAhead* next) mutable {
    if (at == plans.size()) return false;
    *next = plans[at++];
    return true;
  });
}

bool any_recorded() {
  return std::any_of(all_targets.begin(), all_targets.end(),
                     [](const Target& t) { return t.recorded; });
}

std::string open_targets() {
  const char* wanted = std::getenv("TANDEM_DEVICE");
  const std::vector<std::string> names = wanted && *wanted ? split(wanted) : usable_devices();
  for (const std::string& word : names) {
    const size_t slash = word.find('/');
    const std::string name = word.substr(0, slash), kind = name.substr(0, name.find(':'));
    const bool recorded = kind == "recorded";
    const std::string profile = recorded ? name.substr(name.find(':') + 1) : "";
    const std::string backend = recorded ? recorded_backend(profile) : kind;
    const std::string only = slash == std::string::npos ? "" : word.substr(slash + 1);
    std::vector<std::string> paths;
    if (!recorded) paths = paths_of(name);
    for (const tandem::PathRow& row : tandem::kPaths)
      if (recorded && backend == tandem::backend_name(row.backend)) paths.push_back(row.name);
    if (paths.empty()) return "TANDEM_DEVICE: '" + name + "' is of no backend in this build";
    if (!only.empty() && std::find(paths.begin(), paths.end(), only) == paths.end())
      return "TANDEM_DEVICE: '" + word + "' names no path of " + backend;
    for (const std::string& path : paths) {
      if (!only.empty() && path != only) continue;
      Target target;
      target.backend = backend;
      target.path = path;
      target.general =
          std::find(kGeneral.begin(), kGeneral.end(), backend + "." + path) != kGeneral.end();
      try {
        target.recorded = recorded;
        if (recorded) {
          SessionOptions others;
          for (const std::string& other : paths)
            if (other != path)
              others.disable += (others.disable.empty() ? "" : ",") + backend + "." + other;
          target.session = open_recorded(profile, others);
        } else {
          SessionOptions options;
          options.aligned = true;
          target.session = Session::open(name + "/" + path, options);
        }
      } catch (const Error& e) {
        return name + ": " + e.what();
      }
      target.name = backend + "." + path + " on " + name;
      const tandem_problem plain = problem(TANDEM_FORWARD, TANDEM_F16, {1, 1, 1, 64, 64, 64, 64});
      if (!takes(target, plain)) {
        const std::string why = explain(target.session->device(), plain);
        if (!only.empty()) return "TANDEM_DEVICE: '" + word + "' cannot run:\n" + why;
        std::printf("left out: %s: %s\n", target.name.c_str(), why.c_str());
        continue;
      }
      std::printf("target %s: %s (%s)\n", target.name.c_str(), target.session->info().name,
                  target.session->info().driver);
      all_targets.push_back(std::move(target));
    }
  }
  return all_targets.empty() ? "no device to test" : "";
}

void count(const std::vector<uint32_t>& kernels) {
  for (uint32_t kernel : kernels) ++counts[kernel];
}

std::vector<std::string> report_counts(bool by_stem) {
  std::vector<std::string> idle;
  const std::vector<tandem_kernel_info> rows = registry();
  const auto of_stem = [&](const tandem_kernel_info& row) {
    long sum = 0;
    for (uint32_t i = 0; i < rows.size(); ++i)
      if (std::string(rows[i].stem) == row.stem && std::string(rows[i].backend) == row.backend &&
          std::string(rows[i].path) == row.path)
        sum += counts[i];
    return sum;
  };
  std::printf("cases of each registry row:\n");
  for (uint32_t i = 0; i < rows.size(); ++i) {
    bool here = false, can = false;
    for (const Target& target : all_targets)
      if (target.backend == rows[i].backend && target.path == rows[i].path) {
        here = true;
        can |= can_run(target, tandem::kKernels[i]);
      }
    std::printf("  %-30s %-15s %6ld%s\n", short_kernel_name(rows[i]).c_str(),
                (std::string(rows[i].backend) + "." + rows[i].path).c_str(), counts[i],
                !here  ? "  (no such device in this run)"
                : !can ? "  (not on this device)"
                       : "");
    if (can && (by_stem ? of_stem(rows[i]) : counts[i]) == 0) idle.push_back(kernel_name(rows[i]));
  }
  return idle;
}

bool ran_any() {
  return std::any_of(counts.begin(), counts.end(), [](const auto& row) { return row.second > 0; });
}

void blame(const Target& target, const std::string& suite, const std::string& tensor) {
  blamed[suite + "|" + target.name].insert(tensor);
}

std::string check_blame(const std::string& expected) {
  const size_t colon = expected.find(':');
  const std::string stem = expected.substr(0, colon);
  const std::string one = colon == std::string::npos ? "" : expected.substr(colon + 1);
  // What a stem computes, and what it spoils: the delta of bwd_dot and bwd_row_sums reaches d_q,
  // d_k and what sums ds, fwd's o everything.
  struct Row {
    const char* stem;
    std::set<std::string> must, may;
    std::vector<std::string> suites = {"exact", "ratio"};  // that notice it
  };
  const std::set<std::string> sums = {"d_bias",  "d_bias_table", "d_dist_bias",
                                      "d_slope", "d_tau",        "d_sink"};
  const auto with = [&](std::set<std::string> some) {
    some.insert(sums.begin(), sums.end());
    return some;
  };
  const Row rows[] = {
      {"place_entries", {"o", "d_q", "d_k"}, with({"lse", "d_q", "d_k", "d_v"}), {"ratio"}},
      {"pack_bias", {"o"}, with({"lse", "d_q", "d_k", "d_v"})},
      {"pack_keep", {"o"}, with({"lse", "d_q", "d_k", "d_v"}), {"ratio"}},
      {"expand_blocks", {"o"}, with({"lse", "d_q", "d_k", "d_v"}), {"ratio"}},
      {"mask_map", {"o"}, with({"lse", "d_q", "d_k", "d_v"}), {"ratio"}},
      {"expand_table", {"o"}, with({"lse", "d_q", "d_k", "d_v"}), {"ratio"}},
      {"reduce_table", {"d_bias_table"}, {}, {"ratio"}},
      {"fwd", {"o"}, with({"lse", "d_q", "d_k", "d_v"})},
      {"fwd_combine", {"o"}, with({"lse", "d_q", "d_k", "d_v"})},
      {"bwd_dot", {"d_q", "d_k"}, sums},
      {"bwd_origin", {"d_v over keys"}, {"d_v"}, {"magnitudes"}},
      {"bwd_row_sums", {"d_q", "d_bias"}, with({"d_k"})},
      {"bwd_dkv", {"d_k"}, {}},
      {"bwd_dq", {"d_q"}, {}},
      {"bwd_row_sums_dq", {"d_q"}, {}},
      {"bwd_dkv_dist", {"d_k"}, {}},
      {"bwd_dkv_dq", {"d_k"}, {}},
      {"bwd_dq_cast", {"d_q"}, {}},
      {"bwd_dbias", {"d_bias"}, {"d_bias_table"}},
      {"bwd_dist_bias", {"d_dist_bias"}, {}},
      {"bwd_sum_splits", {"d_bias"}, {"d_bias_table", "d_dist_bias"}},
      {"bwd_head_sums", {"d_tau", "d_sink"}, {"d_slope"}},
      {"merge", {"o"}, {"lse", "d_part_o", "d_part_lse"}, {"ratio"}},  // some share weights
      {"bwd_merge", {"d_part_lse"}, {"d_part_o"}, {"ratio"}}};
  const auto has = [&](const Target& target) {
    const std::vector<tandem_kernel_info> kernels = registry();
    return std::any_of(kernels.begin(), kernels.end(), [&](const tandem_kernel_info& k) {
      return stem == k.stem && target.backend == k.backend && target.path == k.path;
    });
  };
  for (const Row& row : rows) {
    if (stem != row.stem) continue;
    bool judged = false;
    for (const Target& target : all_targets)
      for (const std::string& suite : row.suites) {
        if (!one.empty() && suite != one) continue;
        const std::set<std::string>& found = blamed[suite + "|" + target.name];
        const std::string where = suite + " suite on " + target.name + ": ";
        if (target.path == "ref") {  // its kernels are as they were
          if (!found.empty()) return where + *found.begin() + " is blamed, and is right";
          continue;
        }
        if (!has(target)) continue;
        judged = true;
        // cuda.sm90 sums d_bias without parts.
        const bool of_distances = stem == "bwd_sum_splits" && target.path == "sm90";
        for (const std::string& tensor : of_distances ? row.may : row.must)
          if (found.count(tensor) == 0) return where + tensor + " is wrong and was not noticed";
        for (const std::string& tensor : found)
          if (row.must.count(tensor) + row.may.count(tensor) == 0)
            return where + tensor + " is blamed, which " + stem + " has no part in";
      }
    return judged ? "" : "no target of this run has a broken " + stem;
  }
  return "TANDEM_EXPECT_BROKEN is '" + stem + "', which is no operation";
}

uint64_t seed_of(const char* text, uint64_t n) {
  static const uint64_t shift = [] {
    const char* s = std::getenv("TANDEM_SEED");
    return s ? std::strtoull(s, nullptr, 0) : 0ull;
  }();
  uint64_t hash = Random::mix(shift + 0x7a11de);
  for (; *text; ++text) hash = Random::mix(hash ^ uint64_t(static_cast<unsigned char>(*text)));
  return Random::mix(hash + n) >> 32;  // short enough to retype
}

namespace {

struct Shard {
  uint64_t index = 0, of = 1;
};
const Shard& shard() {
  static const Shard chosen = [] {
    Shard s;
    const char* text = std::getenv("TANDEM_SHARD");
    if (!text || !*text) return s;
    char* end = nullptr;
    s.index = std::strtoull(text, &end, 10);
    s.of = *end == '/' ? std::strtoull(end + 1, &end, 10) : 0;
    if (*end != '\0' || s.index >= s.of) {
      std::fprintf(stderr, "TANDEM_SHARD is '%s', must be as 0/4\n", text);
      std::exit(2);
    }
    return s;
  }();
  return chosen;
}

// A problem without what has no part in the choice of kernels.
tandem_problem kernels_of(tandem_problem p) {
  const bool banded = p.mask != TANDEM_MASK_NONE || p.window_left != TANDEM_UNBOUNDED ||
                      p.window_right != TANDEM_UNBOUNDED;
  p.direction = TANDEM_BACKWARD;
  p.mask = banded ? TANDEM_MASK_CAUSAL : TANDEM_MASK_NONE;
  p.align = TANDEM_TOP_LEFT;
  p.window_left = p.window_right = TANDEM_UNBOUNDED;
  p.batch = p.heads_q = p.heads_kv = p.seq_q = p.seq_kv = 1;
  p.scale = 1;
  p.flags = 0;
  p.tile_rows = p.tile_cols = 0;
  p.splits = p.splits > 1 ? 2 : 0;
  if (p.softcap > 0) p.softcap = 1;
  if (p.dropout > 0) p.dropout = 0.5f;
  if (p.dist_window > 0) p.dist_window = 1;
  if (p.bias.dtype) p.bias_batch = p.bias_heads = p.bias_rows = 1;
  if (p.keep.dtype) p.keep_batch = p.keep_heads = p.keep_rows = 1;
  p.total_q = p.total_kv = 0;
  set_layout(p, Layout::bhsd);
  return p;
}

}  // namespace

bool sharded() { return shard().of > 1; }

bool mine(const tandem_problem& p) {
  if (!sharded()) return true;
  const double work = double(p.batch * p.heads_q) * double(p.seq_q) * double(p.seq_kv) *
                      double(p.head_dim + p.head_dim_v);
  const std::string line = print(work > 1e8 ? p : kernels_of(p));
  return seed_of(line.c_str()) % shard().of == shard().index;
}

tandem_problem problem(tandem_direction direction, tandem_dtype dtype, const Shape& s,
                       const Mask& mask, Layout layout) {
  tandem_problem p = make_problem(direction, dtype, s.b, s.hq, s.hk, s.sq, s.sk, s.d);
  p.head_dim_v = s.dv ? s.dv : s.d;
  p.mask = mask.mask;
  p.align = mask.align;
  p.window_left = mask.left;
  p.window_right = mask.right;
  set_layout(p, layout);
  return p;
}

void set_lengths_of(Case& test, bool kv, const std::vector<int64_t>& lengths) {
  HostTensor& t = test.input(kv ? Role::lengths_kv : Role::lengths_q);
  const bool packed = t.dims.d == int64_t(lengths.size()) + 1;
  REQUIRE((packed || t.dims.d == int64_t(lengths.size())));
  int64_t sum = 0;
  if (packed) t.set(0, 0, 0, 0, 0);
  for (size_t b = 0; b < lengths.size(); ++b) {
    sum += lengths[b];
    t.set(0, 0, 0, int64_t(b) + packed, double(packed ? sum : lengths[b]));
  }
}

void set_heads(Case& test, Role role, double value) {
  HostTensor& t = test.input(role);
  t.set_dense(std::vector<double>(size_t(t.dims.count()), value));
}

Span visible(const tandem_problem& p, int64_t row) {
  const int64_t off = p.align == TANDEM_BOTTOM_RIGHT ? p.seq_kv - p.seq_q : 0;
  Span s{0, p.seq_kv - 1};
  if (p.window_left != TANDEM_UNBOUNDED) s.first = std::max(s.first, row + off - p.window_left);
  if (p.window_right != TANDEM_UNBOUNDED) s.last = std::min(s.last, row + off + p.window_right);
  if (p.mask == TANDEM_MASK_CAUSAL) s.last = std::min(s.last, row + off);
  return s;
}

std::string vacuous(const Outputs& outputs) {
  for (Role role : kOutputs) {
    const std::vector<double> values = outputs.tensor(role).dense();
    const auto nothing = std::count_if(values.begin(), values.end(),
                                       [](double x) { return x == 0 || !std::isfinite(x); });
    if (values.size() >= 4 && nothing * 2 > std::ptrdiff_t(values.size()))
      return std::string(role_name(role)) + ": " + std::to_string(nothing) + " of " +
             std::to_string(values.size()) + " elements are zero or not finite";
  }
  return "";
}

bool lacks(const Target& target, const tandem_problem& problem) {
  if (target.backend == "cpu") return target.path == "simd" && !takes(target, problem);
  if (!takes(target, problem)) return true;
  if (problem.direction != TANDEM_BACKWARD) return false;
  return !takes(target, forward_of(problem));  // which runs first, and may be refused for its shape
}

int check_on(Target& target, Case& test, const Expect& expect, Outputs* outputs) {
  if (!mine(test.problem())) return 0;
  const std::string where = target.name + ": " + repro(test.problem(), test.seed());
  int failures = 0;
  auto fail = [&](const std::string& what) {
    ++failures;
    FAIL_CHECK(where << "\n  " << what);
  };
  Outputs own;
  if (!outputs) outputs = &own;
  CaseResult result;
  if (target.recorded) {
    const CaseResult run = test.run(*target.session, outputs);
    count(run.kernels);
    // A path for whatever there is takes all, on every device.
    if (run.refused && !expect.may_refuse && target.general)
      recorded_faults().insert(where + ": refused: " + run.message);
    return 0;
  }
  try {
    result = test.run_and_judge(*target.session, outputs);
  } catch (const Error& e) {
    fail(std::string("threw: ") + e.what());
    return failures;
  }
  if (result.refused) {
    const bool may = expect.may_refuse || lacks(target, test.problem());
    if (!may || target.path == expect.takes) fail("refused: " + result.message);
    return failures;
  }
  count(result.kernels);
  CHECK_MESSAGE(result.path == target.path, where << ": ran path " << result.path);
  if (!result.ok) {
    std::string what = result.message + " (" + result.plan + ")";
    for (const Judgement& j : result.judgements)
      if (!j.ok) {
        what += "\n    " + j.tensor + ": " + j.where;
        blame(target, "ratio", j.tensor);
      }
    fail(what);
    return failures;
  }
  if (!expect.sparse) {
    const std::string nothing = vacuous(*outputs);
    if (!nothing.empty()) fail("vacuous: " + nothing);
  }
  return failures;
}

void check(const tandem_problem& given, uint64_t seed, const Expect& expect) {
  Expect twice = expect;
  // The second run finds another filling in the workspace: equal bits say both that it needs no
  // initialisation and that a repeat gives the same.
  twice.options.repeats = std::max(2, expect.options.repeats);
  Case test(given, seed, twice.options);
  check_case(test, twice);
}

void check_many(const std::vector<tandem_problem>& problems, const char* name,
                const Expect& expect) {
  Expect twice = expect;
  twice.options.repeats = std::max(2, expect.options.repeats);
  const size_t batch = std::max(1u, std::thread::hardware_concurrency());
  std::vector<size_t> ours;
  for (size_t at = 0; at < problems.size(); ++at)
    if (mine(problems[at])) ours.push_back(at);
  for (size_t first = 0; first < ours.size(); first += batch) {
    std::vector<std::future<std::unique_ptr<Case>>> cases;
    for (size_t n = first; n < std::min(first + batch, ours.size()); ++n)
      cases.push_back(std::async(std::launch::async, [&, at = ours[n]] {
        auto test = std::make_unique<Case>(problems[at], seed_of(name, at), twice.options);
        if (!any_recorded()) test->reference_lse();
        return test;
      }));
    for (auto& test : cases) check_case(*test.get(), twice);
  }
}

void check_lines(std::initializer_list<const char*> lines, int repeats) {
  for (const char* line : lines) {
    Expect expect = sparse();
    expect.options.repeats = repeats;
    Case test(parse(line), seed_of(line), expect.options);
    CAPTURE(std::string(line));
    for (Target& target : targets()) check_on(target, test, expect);
  }
}

void check_case(Case& test, const Expect& expect) {
  const bool gpu = std::any_of(targets().begin(), targets().end(),
                               [](const Target& t) { return !t.session->on_cpu(); });
  std::unique_ptr<Case> f16;
  for (Target& target : targets()) {
    if (expect.gpu_only && gpu && target.session->on_cpu()) continue;
    if (target.path == expect.takes || takes(target, test.problem())) {
      check_on(target, test, expect);
      continue;
    }
    if (test.problem().q.dtype == TANDEM_F16) continue;
    if (test.problem().flags & TANDEM_FLAG_TF32) continue;  // there are enough of f16
    if (!f16) f16 = std::make_unique<Case>(in_f16(test.problem()), test.seed(), expect.options);
    if (takes(target, f16->problem())) check_on(target, *f16, expect);
  }
}

}  // namespace parity
