// SPDX-License-Identifier: MIT OR Apache-2.0
#include "kernel_rows.h"

#include "plan/planner.h"

namespace tandem {

String row_module(const KernelRow& row, tandem_dtype dtype) {
  const String name = stem_name(row.stem);
  if (row.tiles != TileTable::matrix) return name;
  const String variant = row.traits == trait::none ? "" : String("_") + row.variant;
  return name + text("_%s_%s", row.path, dtype_name(dtype)) + variant;
}

String module_name(const Plan& plan, const Launch& l) {
  const int redoes = l.of<MatrixLaunch>().redoes;
  return row_module(redoes < 0 ? l.row() : kKernels[redoes], plan.problem.dtype);
}

bool takes_wide(const Plan& plan, const Launch& l, const Addresses& a) {
  switch (l.stem) {
#define TANDEM_STEM(Name, name) \
  case Stem::name:              \
    return wide_inputs(name##_block(plan, l), wide_of(name##_push(plan, l, a)));
#define TANDEM_HOPPER(Name, name) \
  case Stem::name:                \
    break;
#include "stems.inc"
  }
  return false;
}

String kernels_refusal(const Caps& caps, const Plan& plan) {
  for (const Launch& l : plan.launches) {
    if (l.kernel < 0) return text("it has no kernel %s with the traits wanted", stem_name(l.stem));
    for (int row : {l.kernel, l.other_kernel, l.second_kernel}) {
      if (row < 0) continue;
      const KernelRow& kernel = kKernels[row];
      if (!caps.disabled.empty() && is_disabled(caps, kernel_name(kernel)))
        return text("its kernel %s is %s", short_kernel_name(kernel).c_str(), kDisabled);
      // Paths look at the inputs that they know. This is for those that are new.
      if ((plan.problem.inputs() & ~kernel.inputs) != 0)
        return text("its kernel %s has no %s", short_kernel_name(kernel).c_str(),
                    plan.problem.extras(kernel.inputs).c_str());
    }
  }
  return "";
}

Vec<int> kernels_at(const Plan& plan, const Addresses& a) {
  const auto& unaligned = plan.of<Sm90Plan>().unaligned;
  if (unaligned && !sm90_takes(plan, a)) return kernels_at(*unaligned, a);
  Vec<int> rows;
  for (const Launch& l : plan.launches) {
    const bool other =
        l.other_kernel >= 0 &&
        !(l.of<SimtLaunch>().fast_total > 0 ? takes_fast_dot(a) : takes_wide(plan, l, a));
    rows.push_back(other ? l.other_kernel : l.kernel);
    if (l.second_kernel >= 0) rows.push_back(l.second_kernel);
  }
  return rows;
}

Vec<int> kernels_at(const Plan& plan, const tandem_args& args) {
  Addresses a;
  if (plan.backend == Backend::cuda) {
    const auto at = [](const ArgUse&, const tandem_buffer& b, uint64_t* address) {
      *address = b.handle + b.offset;
      return Status();
    };
    if (!resolve_args(plan, arg_uses(plan), args, at, &a).ok()) return {};  // at() does not fail
  }
  return kernels_at(plan, a);
}

}  // namespace tandem
