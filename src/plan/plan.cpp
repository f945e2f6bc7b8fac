// SPDX-License-Identifier: MIT OR Apache-2.0
// Tries the paths of a backend in order, and records why it refuses one. A later path replaces the
// first that accepts the problem where its estimated time surely is less (cost/cost.h).
#include "plan.h"

#include <algorithm>

#include "cost/cost.h"
#include "kernels/kernel_rows.h"
#include "planner.h"
#include "thrift.h"

namespace tandem {
namespace {

String path_name(int n) { return String(backend_name(kPaths[n].backend)) + "." + kPaths[n].name; }

constexpr MakePlanner kPlanners[] = {
#define TANDEM_PATH(backend, name, what) make_##backend##_##name,
#include "kernels/paths.inc"
};

// Makes the plan of a path for plan->problem, whatever its workspace; otherwise adds to its
// refusals. settled: set if no other path may take the problem.
bool try_savings(int n, const Caps& caps, Plan* plan, bool* settled) {
  // The path sees the problem that its choice goes by, and then the one that it is for.
  const bool invariant = plan->problem.batch_invariant;
  const Problem form = invariant ? plan->problem.invariant_form() : plan->problem;
  Problem seen = form;
  Caps copy;
  if (invariant) copy = caps;
  const Caps& device = invariant ? copy : caps;
  const std::unique_ptr<PathPlanner> path = kPlanners[n](kPaths[n], seen, device);
  const Refuse refuse = [&](const String& who, const String& why) {
    plan->refusals.push_back({who, why});
    return false;
  };
  const String name = path->name();
  if (is_disabled(caps, name)) return refuse(name, kDisabled);
  // Merges are bound by memory: one path of a backend has kernels for them.
  if (plan->problem.parts && !has_kernels(kPaths[n].id, merge_stem(plan->problem)))
    return refuse(name, text("it has no %s kernel", stem_name(merge_stem(plan->problem))));
  if (plan->problem.dtype == TANDEM_F64 && !takes_dtype(kPaths[n].id, TANDEM_F64))
    return refuse(name, "it has no kernel for tensors of f64, which cpu.ref alone computes");
  String why = path->refuse();
  if (!why.empty()) return refuse(name, why);
  for (; path->choose(refuse); seen = form, copy.cores = caps.cores) {
    Vec<Launch> launches;
    why = path->launches(&launches);
    if (!why.empty()) {
      refuse(path->chosen(), why);
      continue;
    }
    if (invariant) {
      *settled = true;
      seen = plan->problem;
      if (seen.cores > 0 && seen.cores < cores_of(caps)) copy.cores = uint32_t(seen.cores);
      launches.clear();
      why = path->refuse();
      if (why.empty()) why = path->unfit();
      if (why.empty()) why = path->launches(&launches);
      if (!why.empty())
        return refuse(path->chosen(), why + "; a batch-invariant problem may not take another one");
    }
    Plan made = *plan;
    made.path = kPaths[n].name;
    made.launches = std::move(launches);
    ScratchExtents extents;
    path->scratch(&made, &extents);
    lay_out_workspace(extents, &made);
    path->finish(&made);
    why = kernels_refusal(caps, made);
    if (!why.empty()) {
      refuse(path->chosen(), why);
      if (invariant) return false;
      continue;
    }
    *plan = std::move(made);
    return true;
  }
  return false;
}

// Fills in plan if the path takes the problem within its limit of the workspace; otherwise adds to
// its refusals. settled: as of try_savings().
bool try_path(int n, const Caps& caps, Plan* plan, bool* settled) {
  Plan made = *plan;
  if (!try_savings(n, caps, &made, settled)) {
    plan->refusals = std::move(made.refusals);
    return false;
  }
  const uint64_t limit = plan->problem.workspace_limit;
  uint64_t least = made.workspace_size;
  Problem thrifty = plan->problem;
  // What a saving computes in another way has other bits.
  while (limit > 0 && made.workspace_size > limit && !thrifty.batch_invariant) {
    const Launch* fwd = made.find(Stem::fwd);
    if (!save_more(fwd ? fwd->splits : 1, &thrifty)) break;
    Plan next = *plan;
    next.problem = thrifty;
    if (!try_savings(n, caps, &next, settled))
      continue;  // what is left is no plan; a later saving may be
    made = std::move(next);
    least = std::min(least, made.workspace_size);
  }
  if (limit > 0 && least < plan->least_workspace) {
    plan->least_workspace = least;
    plan->least_path = path_name(n);
  }
  made.least_workspace = plan->least_workspace;
  made.least_path = plan->least_path;
  if (limit > 0 && made.workspace_size > limit) {
    plan->refusals.push_back(
        {path_name(n), text("its workspace has %llu bytes or more, the limit is %llu",
                            (unsigned long long)least, (unsigned long long)limit)});
    return false;
  }
  *plan = std::move(made);
  return true;
}

// Replaces a plan for `problem` by that of a later path than `first` that surely is faster.
void rank_later_paths(const Problem& problem, int first, const Caps& caps, Plan* plan) {
  if (problem.batch_invariant || !may_rank(problem, caps)) return;
  Estimate taken = estimate(*plan, caps);
  for (int n = first + 1; n < kPathCount && taken.inside; ++n) {
    if (kPaths[n].backend != caps.backend) continue;
    const double least = least_ms(problem, caps, kPaths[n].name);
    if (least <= 0 || least * kRankMargin >= taken.ms) continue;
    Plan other;
    other.problem = problem;
    other.backend = plan->backend;
    other.refusals = plan->refusals;
    other.refusals.push_back({plan->name(), ""});
    const size_t at = other.refusals.size() - 1;
    bool settled = false;
    if (!try_path(n, caps, &other, &settled)) continue;
    const Estimate e = estimate(other, caps);
    if (!is_surely_faster(e, taken)) continue;
    other.refusals[at].reason = text("%s; %s.%s takes %s", taken.words().c_str(),
                                     backend_name(other.backend), other.path, e.words().c_str());
    *plan = std::move(other);
    taken = e;
  }
}

// Whether each row of a problem may have a sink of its own. All of Vulkan's kernels take one. For
// 16 bits cuda.sm80 and cuda.simt do; cuda.sm90 does not, and what it takes is not left to
// cuda.simt.
bool takes_sinks_of_rows(const Problem& p, const Caps& caps) {
  if (caps.backend == Backend::vulkan) return true;
  const auto on = [&](const char* path) { return !is_disabled(caps, path); };
  return caps.backend == Backend::cuda && p.element_size() == 2 &&
         ((caps.sm80_code && on("cuda.sm80")) ||
          (on("cuda.simt") && !(caps.sm90_code && on("cuda.sm90"))));
}

}  // namespace

Status find_least_workspace(const Problem& problem, const Caps& caps, uint64_t* bytes) {
  Problem limited = problem;
  limited.workspace_limit = 1;  // no array is that small
  Plan plan;
  const Status status = make_plan(limited, caps, &plan);
  if (!status.ok() && status.code() != TANDEM_ERROR_WORKSPACE) return status;
  *bytes = status.ok() ? plan.workspace_size : plan.least_workspace;
  return Status();
}

bool is_disabled(const Caps& caps, const String& name) {
  return std::find(caps.disabled.begin(), caps.disabled.end(), name) != caps.disabled.end();
}

Status make_plan(const Problem& problem, const Caps& caps, Plan* plan) {
  // The choice of a batch-invariant problem goes by all cores.
  if (problem.cores > 0 && problem.cores < cores_of(caps) && !problem.batch_invariant) {
    Caps fewer = caps;
    fewer.cores = uint32_t(problem.cores);
    return make_plan(problem, fewer, plan);
  }
  *plan = Plan();
  plan->problem =
      caps.backend == Backend::cpu
          ? problem
          : problem
                .with_heads_as_rows(!problem.batch_invariant && takes_sinks_of_rows(problem, caps))
                .with_dense_bias();
  plan->backend = caps.backend;
  const Problem whole = plan->problem;
  bool settled = false;
  for (int n = 0; n < kPathCount && !settled; ++n)
    if (kPaths[n].backend == caps.backend && try_path(n, caps, plan, &settled)) {
      rank_later_paths(whole, n, caps, plan);
      return Status();
    }
  if (plan->least_workspace != UINT64_MAX)
    return fail(TANDEM_ERROR_WORKSPACE,
                "problem.workspace_limit is %llu; the smallest workspace of this problem here has "
                "%llu bytes (%s)",
                (unsigned long long)problem.workspace_limit,
                (unsigned long long)plan->least_workspace, plan->least_path.c_str());
  String message = text("no %s path takes this problem:", backend_name(caps.backend));
  for (const Refusal& r : plan->refusals) message += " " + r.candidate + ": " + r.reason + ";";
  message.pop_back();
  return fail(TANDEM_ERROR_UNSUPPORTED, "%s", message.c_str());
}

}  // namespace tandem
