// SPDX-License-Identifier: MIT OR Apache-2.0
#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include "gates.h"
#include "kernels/kernel_rows.h"
#include "kernels/registry.h"
#include "plan/coopmat/tiles.h"
#include "plan/quirks.h"
#include "problem/problem.h"

namespace gates {
namespace {

// Each kernel, for each type and width of a head; then each optional input, and all at once. part:
// compiled for every change.
struct Line {
  bool part;
  const char* problem;
};
const Line kLines[] = {
    {true, "fwd f16 hq2 sq1000 d64"},
    {true, "bwd f16 hq2 sq1000 d128 bias:f16:1x1x1000 grads=qkvb d_bias:f32"},
    {true, "bwd f32 hq2 sq1000 d64"},
    {false, "fwd f16 hq2 sq1000 d32"},
    {false, "bwd f16 hq2 sq1000 d32"},
    {false, "bwd f16 hq2 sq1000 d64"},
    {false, "fwd f16 hq2 sq1000 d128"},
    {false, "bwd f16 hq2 sq1000 d128"},
    {false, "fwd f16 hq2 sq1000 d256"},
    {false, "bwd f16 hq2 sq1000 d256"},
    {false, "fwd f16 hq2 sq1000 d512"},
    {false, "bwd f16 hq2 sq1000 d512"},
    {false, "bwd f16 hq2 sq1000 d576 dv512 causal_top_left softcap=5 kv_padded"},
    {false, "fwd f16 hq2 sq1000 d72 dv40"},
    {false, "bwd f16 hq2 sq1000 d72 dv40"},
    {false, "fwd bf16 hq2 sq1000 d64"},
    {false, "bwd bf16 hq2 sq1000 d64"},
    {false, "fwd bf16 hq2 sq1000 d128"},
    {false, "bwd bf16 hq2 sq1000 d128"},
    {false, "fwd f32 hq2 sq1000 d64"},
    {false, "fwd f32 hq2 sq1000 d128"},
    {false, "bwd f32 hq2 sq1000 d128"},
    {false, "fwd f32 hq2 sq1000 d256"},
    {false, "bwd f32 hq2 sq1000 d256"},
    {true, "fwd f16 hq8 hk2 sq1 sk4096 d128"},
    {false, "fwd f16 hq2 sq16 sk4096 d64 splits=3"},
    {true, "fwd f16 hq2 sq1000 d64 bias:f16:1x2x1000 keep:1x1x1000"},
    {false,
     "fwd f16 hq2 sq1000 d64 causal_top_left left=100 softcap=5 alibi dist=64 sink "
     "kv_padded"},
    {false, "fwd f16 hq2 sq1000 d64 dropout=0.1"},
    {true, "bwd f16 hq2 sq1000 d64 spans=2:1x1 causal_top_left"},
    {true, "bwd f16 hq2 sq1000 d64 table=169:u8:1 grads=qkvi"},
    {true, "merge f32 hq2 sq1000 dv128 parts=4 part_o:bf16 into"},
    {true, "bwd_merge bf16 hq2 sq1000 dv128 parts=4 d_lse"},
    {false, "fwd f16 hq2 sq1000 d64 spans=1:1x1"},
    {false, "fwd f16 hq2 sq1000 d64 blocks=64x128:4+2:1x1"},
    {false, "fwd f16 b2 hq2 sq1000 d64 q_gapped=1500 kv_gapped=1500"},
    {false, "fwd f16 hq2 sq1000 d64 elastic"},
    {true, "fwd f16 hq2 sq1000 d64 entmax=1.5"},
    {false, "bwd f16 hq2 sq1000 d64 keep:1x1x1000 dropout=0.1"},
    {false, "bwd f16 hq2 sq1000 d64 causal_top_left left=100 softcap=5 q_padded kv_padded"},
    {false, "bwd f16 hq2 sq1000 d64 bias:f16:1x2x1000 grads=qkvb d_bias:f16"},
    {false, "bwd f16 b2 hq2 sq1000 d64 bias:f16:1x2x1000 grads=qkvb d_bias:f32"},
    {false,
     "bwd f16 hq2 sq1000 d64 bias:f16:1x1x1 alibi dist=64 sink grads=qkvbdas "
     "d_bias:f32"},
    {true, "bwd f16 hq2 sq1000 d64 elastic grads=qkvt"},
    {false, "bwd f16 hq2 sq1000 d64 entmax=1.5 grads=qkv"},
    {false,
     "bwd f16 hq2 sq1000 d128 entmax=1.7 bias:f16:1x2x1000 keep:1x1x1000 "
     "dropout=0.1 causal_top_left softcap=5"},
    {true,
     "bwd f32 hq2 sq1000 d64 causal_top_left softcap=5 bias:f32:1x1x1000 "
     "keep:1x1x1000 alibi dist=64 sink dropout=0.1 kv_padded grads=qkvbdas "
     "d_bias:f32"},
    {false, "bwd f32 hq2 sq1000 d64 elastic grads=qkvt"},
    {false, "fwd f32 hq2 sq1000 d64 entmax=1.5"},
};

// Those of `tandem info`.
const char* const kUsual[] = {
    "bwd bf16 b4 hq16 hk16 sq2048 sk2048 d128 causal_top_left",
    "bwd f16 b4 hq16 hk16 sq2048 sk2048 d128 causal_top_left",
    "bwd f32 b16 hq12 hk12 sq512 sk512 d64",
    "fwd f16 b1 hq32 hk8 sq4096 sk4096 d128 causal_bottom_right",
    "fwd f16 b8 hq32 hk8 sq1 sk4096 d128 causal_bottom_right",
    "fwd f16 b8 hq16 hk16 sq1025 sk1025 d72",
    "fwd f32 b1 hq8 hk1 sq1024 sk1024 d256",
    "bwd f32 b1 hq3 hk1 sq77 sk131 d40 dv24",
};

template <typename Spec>
std::string bytes_of(const Spec& spec) {
  return std::string(reinterpret_cast<const char*>(&spec), sizeof(spec));
}

// What makes a pipeline: two launches with one key have the same.
std::string key_of(const Plan& plan, const Launch& launch) {
  std::string key = module_name(plan, launch).c_str();
  key += " " + std::to_string(launch.of<MatrixLaunch>().subgroup) + " ";
  switch (launch.stem) {
#define TANDEM_STEM(Name, name)                 \
  case Stem::name:                              \
    key += bytes_of(name##_spec(plan, launch)); \
    break;
#define TANDEM_FUSED(Name, name) \
  case Stem::name:               \
    break;
#include "kernels/stems.inc"
  }
  return key;
}

bool is_on_matrices(const Plan& plan) { return std::strncmp(plan.path, "coopmat", 7) == 0; }

// Without the quirks that end with a version of the driver.
Caps of_later_driver(Caps caps) {
  caps.driver_version = kAny;
  return caps;
}

}  // namespace

Plan plan_of(const String& line, const Caps& caps) {
  tandem_problem given;
  Status status = parse_problem(line.c_str(), &given);
  Problem problem;
  if (status.ok()) status = make_problem(&given, &problem);
  Plan plan;
  if (status.ok()) status = make_plan(problem, caps, &plan);
  if (!status.ok()) throw std::runtime_error((line + ": " + status.message()).c_str());
  return plan;
}

std::vector<Job> jobs_for(const Caps& caps, bool part) {
  std::vector<Job> jobs;
  std::set<std::string> seen;
  const auto add = [&](const Line& line, const Plan& plan, bool lifted) {
    for (const Launch& launch : plan.launches) {
      if (launch.joins() || !seen.insert(key_of(plan, launch)).second) continue;
      if (part && !line.part) continue;
      Job job{String(line.problem) + (lifted ? kLifted : ""), plan, lifted};
      job.plan.launches = {Launch(launch)};
      jobs.push_back(job);
    }
  };
  for (const Line& line : kLines) {
    const Plan plan = plan_of(line.problem, caps);
    add(line, plan, false);
    if (is_on_matrices(plan)) continue;
    const Plan lifted = plan_of(line.problem, of_later_driver(caps));
    if (is_on_matrices(lifted)) add(line, lifted, true);
  }
  return jobs;
}

std::vector<String> missing_kernels(const std::vector<Job>& jobs) {
  std::set<String> paths, reached;
  for (const Job& job : jobs) paths.insert(job.plan.path);
  const auto has_matrices = [](Stem stem) {
    return std::any_of(std::begin(kMatrixTiles), std::end(kMatrixTiles),
                       [&](const MatrixTile& t) { return t.stem == stem; });
  };
  for (const Job& job : jobs) {
    const Stem stem = job.plan.launches[0].stem;
    for (const String& path : paths)  // others are the same pipeline on every path
      if (path == job.plan.path || !has_matrices(stem))
        reached.insert(path + "." + stem_name(stem));
  }
  std::vector<String> missing;
  for (const KernelRow& row : kKernels) {
    const String name = String(row.path) + "." + stem_name(row.stem);
    if (row.backend == Backend::vulkan && paths.count(row.path) && !reached.count(name))
      missing.push_back(name);
  }
  return missing;
}

std::vector<String> plans_for(const Caps& caps) {
  std::vector<String> lines;
  const auto add = [&](const String& text, const char* indent) {
    std::istringstream in(text.c_str());
    for (std::string line; std::getline(in, line);) lines.push_back(indent + String(line.c_str()));
  };
  add(describe_caps(caps), "");
  for (const char* line : kUsual) {
    lines.push_back(line);
    add(explain(plan_of(line, caps).problem, caps), "  ");
  }
  return lines;
}

}  // namespace gates
