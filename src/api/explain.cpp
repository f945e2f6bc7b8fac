// SPDX-License-Identifier: MIT OR Apache-2.0
// Methods of a plan, and the text of tandem_explain().
#include <algorithm>
#include <cstring>

#include "kernels/params.h"
#include "plan/cost/cost.h"
#include "plan/plan.h"
#include "plan/sm90/tensor_maps.h"

namespace tandem {

int Launch::invocations() const {
  if (tile.br > 0) return tile.invocations();
  if (stem == Stem::bwd_dot) return kDotRows * kDotLanes;
  return stem == Stem::fwd_combine ? kCombineGroup : kLineGroup;
}

bool Launch::multiplies_matrices() const {
  return as<MatrixLaunch>() || as<Sm80Launch>() || as<Sm90Launch>();
}

int Launch::wide_elements() const {
  const Sm80Launch* sm80 = as<Sm80Launch>();
  return multiplies_matrices() && !(sm80 && sm80->tile().bytes == 4) ? 8 : 4;
}

int64_t d_bias_sums(const Problem& p, const Launch& l) {
  if (p.batch <= l.of<MatrixLaunch>().entries) return 0;  // a workgroup takes all entries at once
  const int64_t keys = (p.seq_kv + l.tile.bc - 1) / l.tile.bc * l.tile.bc;
  return int64_t(l.groups_x) * l.groups_y * l.tile.br * keys;
}

String Plan::name() const {
  String s = String(backend_name(backend)) + "." + path;
  const Tile t = tile();
  return t.br > 0 ? s + text(" %dx%d", t.br, t.bc) : s;
}

Tile Plan::tile() const {
  for (bool matrices : {true, false})
    for (const Launch& launch : launches)
      if (launch.tile.br > 0 && (launch.wide_elements() > 4 || !matrices)) return launch.tile;
  return Tile{};
}

bool Plan::stores_d_bias() const {
  for (const Launch& launch : launches)
    if (launch.stem == Stem::bwd_dbias || launch.stores_d_bias) return true;
  return false;
}

bool Plan::sums_scores_exactly() const {
  // Vulkan's kernels form the scores of far rows one by one, whatever they multiply.
  return backend == Backend::vulkan ||
         std::none_of(launches.begin(), launches.end(),
                      [](const Launch& l) { return l.multiplies_matrices(); });
}

uint32_t Plan::unordered() const {
  return scratch[Scratch::d_q_accum].present && problem.wants(TANDEM_GRAD_Q) &&
                 !problem.deterministic
             ? uint32_t(TANDEM_GRAD_Q)
             : 0;
}

int Plan::wide_elements() const {
  int elements = 4;
  for (const Launch& launch : launches) elements = std::max(elements, launch.wide_elements());
  return elements;
}

const Launch* Plan::find(Stem stem) const {
  for (const Launch& launch : launches)
    if (launch.stem == stem) return &launch;
  return nullptr;
}

const Launch* Plan::find_sum(uint32_t gradient) const {
  for (const Launch& launch : launches)
    if (launch.stem == Stem::bwd_sum_splits && launch.gradient == gradient) return &launch;
  return nullptr;
}

bool Plan::sums_dist() const {
  const Launch* fused = find(Stem::bwd_dkv_dist);
  return find(Stem::bwd_dist_bias) || (fused && fused->members > 0);
}

namespace {

// What explain() says of the members of a launch that its path alone has.
String explain(const Plan&, const Launch&, const std::monostate&) { return ""; }
String explain(const Plan&, const Launch&, const ScalarLaunch&) { return ""; }
String explain(const Plan&, const Launch& launch, const MatrixLaunch& l) {
  String s;
  if (launch.has(trait::ds) && launch.stem == Stem::bwd_dkv)
    s += text(", leaves ds, %d kv heads at a time", l.kv_heads);
  if (launch.stores_d_bias) s += ", and d_bias";
  if (l.sums_d_bias) s += ", a sum over the batch";
  if (l.entries > 1) s += text(", %d entries at once", l.entries);
  return s;
}
String explain(const Plan&, const Launch& launch, const SimtLaunch&) {
  return launch.has(trait::fixed) ? ", of " + fixed_set_name(launch.row()) : "";
}
String explain(const Plan&, const Launch& launch, const Sm80Launch& l) {
  String s = launch.stores_d_bias ? ", and d_bias" : "";
  if (l.programmatic) s += ", programmatic dependent launch";
  return s;
}
String explain(const Plan& plan, const Launch& launch, const Sm90Launch& l) {
  String s;
  if (l.programmatic)
    s += launch.stem == Stem::fwd || launch.stem == Stem::pack_bias
             ? ", programmatic dependent launch"
             : ", programmatic dependent launch in the tail of the launch before";
  if (launch.stem == Stem::pack_bias) s += ": " + why_packs_bias(plan.problem);
  if (launch.has(trait::scales_q)) s += ", q times the scale";
  if (launch.has(trait::persistent)) s += ", persistent";
  if (l.parts.most > 1)
    s += text(", up to %d share a tile of keys, %lld in all", l.parts.most,
              (long long)l.parts.workgroups);
  else if (l.parts.most == 1)
    s += ", longest tiles of keys first";
  if (launch.second_kernel >= 0) s += ", and two-CTA clusters beside them";
  if (l.eager_zero_heads && plan.problem.bias)
    s += text(", zeroes the dQ accumulator of kv heads from %u on", l.eager_zero_heads);
  if (l.cooperative_postprocess) s += ", cooperative dQ postprocess";
  if (launch.stem == Stem::bwd_dkv_dq && plan.zeroed_size > 0)
    s += plan.problem.deterministic ? ", d_q in a fixed order" : ", d_q in any order";
  if (l.stream_k_units > 0) s += text(", %d tiles by stream-K", l.stream_k_units * l.stream_k_unit);
  if (l.short_tiles > 0) s += text(", %d short tiles last", l.short_tiles);
  if (launch.stores_d_bias) s += ", and d_bias";
  return s;
}

// Which of the kernels of its stem a launch runs.
String variant_words(const Launch& l) {
  const auto variant = [](int row) { return kKernels[row].variant; };
  if (l.joins() || std::strcmp(variant(l.kernel), kOnlyVariant) == 0) return "";
  String s = text(", variant %s", variant(l.kernel));
  if (l.other_kernel >= 0)
    s += text(" (%s at addresses that do not allow it)", variant(l.other_kernel));
  if (l.second_kernel >= 0) s += text(" and %s", variant(l.second_kernel));
  return s;
}

// "cuda.sm80"
String path_name(const PathRow& row) { return String(backend_name(row.backend)) + "." + row.name; }

// What a path would take alone, as words; "" if it refuses the problem, or if that is not known.
String estimate_alone(const Problem& problem, const Caps& caps, const PathRow& path) {
  if (!cost_device(caps)) return "";
  Caps alone = caps;
  for (const PathRow& row : kPaths)
    if (row.backend == caps.backend && &row != &path) alone.disabled.push_back(path_name(row));
  Plan plan;
  return make_plan(problem, alone, &plan).ok() ? estimate(plan, caps).words() : "";
}

}  // namespace

String explain(const Problem& problem, const Caps& caps) {
  Plan plan;
  const Status status = make_plan(problem, caps, &plan);
  String s;
  for (const Refusal& r : plan.refusals) {
    s += text("%-24s refused: %s", r.candidate.c_str(), r.reason.c_str());
    for (const PathRow& row : kPaths)
      if (r.candidate == path_name(row))
        if (const String alone = estimate_alone(problem, caps, row); !alone.empty())
          s += "; alone it takes " + alone;
    s += "\n";
  }
  if (!status.ok()) return s;
  s += text("%-24s taken", plan.name().c_str());
  const String takes = estimate(plan, caps).words();
  if (const char* tile = plan.tile().name; tile && *tile) s += text(" (%s)", tile);
  s += text(", workspace %llu bytes%s%s\n", (unsigned long long)plan.workspace_size,
            takes.empty() ? "" : ", ", takes.c_str());
  if (const String slow = find_slow(plan, caps).sentence; !slow.empty()) s += "  " + slow + "\n";
  if (plan.problem.heads_q != problem.heads_q)
    s += text("  few queries a head: the %d heads that share keys are rows of one tile\n",
              int(problem.group()));
  const String narrow = narrow_inputs(plan.problem, plan.wide_elements());
  if (plan.backend != Backend::cpu && !narrow.empty())
    s += text("  slower: element by element, no multiple of %d: %s\n", plan.wide_elements(),
              narrow.c_str());
  for (const Launch& l : plan.launches) {
    s += text("  %-15s", stem_name(l.stem));
    if (l.joins()) s += " in an earlier launch,";
    if (l.groups_x)
      s += text(" %u x %u workgroups, %u bytes shared", l.groups_x, l.groups_y, l.shared_bytes);
    if (const uint32_t fast = l.of<SimtLaunch>().fast_total)
      s += text(" (%u where o and d_o lie at multiples of 16 bytes)", fast);
    if (l.splits > 1) s += text(", %u splits", l.splits);
    if (l.feature_parts > 1) s += text(", features of a tile in %u parts", l.feature_parts);
    s += std::visit([&](const auto& of) { return explain(plan, l, of); }, l.path);
    if (!l.multiplies_matrices() && plan.wide_elements() > 4 && l.tile.br > 0)
      s += text(", without matrices (%s)", l.tile.name);
    else if (l.tile.name && *l.tile.name && !l.joins())
      s += text(", tile %s", l.tile.name);
    s += variant_words(l) + "\n";
  }
  if (const auto& unaligned = plan.of<Sm90Plan>().unaligned)
    s += text("  with inputs at addresses that are no multiples of 16 bytes: %s\n",
              unaligned->name().c_str());
  // Paths behind the chosen one.
  bool behind = false;
  for (const PathRow& row : kPaths) {
    if (row.backend != caps.backend) continue;
    if (behind)
      if (const String alone = estimate_alone(problem, caps, row); !alone.empty())
        s += text("%-24s not tried: %s\n", path_name(row).c_str(), alone.c_str());
    behind = behind || std::strcmp(row.name, plan.path) == 0;
  }
  return s;
}

}  // namespace tandem
