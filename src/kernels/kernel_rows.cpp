// SPDX-License-Identifier: MIT OR Apache-2.0
#include "kernel_rows.h"

#include <cstring>

#include "plan/planner.h"
#include "plan/sm90/planner.h"
#include "plan/sm90/tiles.h"

namespace tandem {
namespace {

// The variant of a launch that multiplies matrices in Vulkan (module_name()).
const char* matrix_variant(const MatrixLaunch& l) {
  if (l.redo) return "redo";
  return l.matrix.k > l.matrix.n ? "k2"
         : l.lean                ? "lean"
         : l.tensors             ? "tensor"
         : l.pair && l.shares_ds ? "pair_ds"
         : l.pair                ? "pair"
         : l.shares_ds           ? "ds"
         : l.parts               ? "parts"
                                 : "base";
}

const char* sm90_bwd_dkv_dq_variant(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  switch (hopper_variant(p)) {
    case HopperVariant::bias:
      if (has_f32_bias(p)) return l.splits > 1 ? "bias_f32_slices" : "bias_f32";
      if (p.has_lengths()) return l.splits > 1 ? "bias_lengths_slices" : "bias_lengths";
      if (l.splits > 1) return p.keep ? "bias_keep_slices" : "bias_slices";
      if (p.keep) return "bias_keep";
      return p.wants(TANDEM_GRAD_Q) && !plan.find(Stem::bwd_dq_cast) ? "bias_postprocess" : "bias";
    case HopperVariant::row_bias:
      return l.of<Sm90Launch>().persistent ? "row_bias_persistent" : "row_bias";
    case HopperVariant::entmax:
      return p.alpha == 1.5f ? "entmax" : "entmax_any";
    case HopperVariant::varlen:
      return "varlen";
    case HopperVariant::softcap_alibi:
      return "softcap_alibi";
    case HopperVariant::masked:
      return "masked";
    default:
      if (l.of<Sm90Launch>().persistent) return "persistent";
      if (l.of<Sm90Launch>().parts.most > 0) return "plain_parts";
      if (!p.wants(TANDEM_GRAD_Q)) return "d_kv_alone";
      return p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V) ? "plain" : "d_q_alone";
  }
}

const char* sm90_variant(const Plan& plan, const Launch& l) {
  switch (l.stem) {
    case Stem::fwd:
      return sm90_fwd_variant(plan.problem, kFwdTiles[l.of<Sm90Launch>().row],
                              l.of<Sm90Launch>().scales_q);
    case Stem::bwd_dkv_dq:
      return sm90_bwd_dkv_dq_variant(plan, l);
    case Stem::pack_bias:
      return has_f32_bias(plan.problem) ? "f32" : kOnlyVariant;
    case Stem::bwd_row_sums:
      return plan.problem.alpha == 1.5f ? "entmax" : "entmax_any";
    case Stem::bwd_dkv:
    case Stem::bwd_dq:
      return plan.problem.softcap > 0 ? "softcap" : kOnlyVariant;
    default:
      return kOnlyVariant;
  }
}

const char* sm80_variant(Stem stem, const Sm80Launch& l) {
  if (stem == Stem::bwd_dq_cast) return kOnlyVariant;
  const AmpereTile& t = l.tile();
  if (t.kind == AmpereKind::whole_heads) return "whole_head";
  if (t.kind == AmpereKind::f32_inputs) return "f32_inputs";
  const bool full = t.kind == AmpereKind::full;
  if (stem == Stem::bwd_dbias) return full ? "mma_full" : "mma_bias";
  return full ? "full" : t.bytes == 2 ? "plain" : l.tf32 ? "tf32" : "f32";
}

// Whether a tiled kernel of simt reads a tensor by wide loads at addresses of an execute, which the
// strides have to allow, too.
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

// Whether bwd_dot of CUDA is the kernel that also zeroes what the next one adds to.
bool zeroes(const Plan& plan, const Launch& l) {
  return l.stem == Stem::bwd_dot && l.total > 0 &&
         (plan.zeroed_size > 0 || l.of<SimtLaunch>().fast_total > 0);
}

// The variant of a kernel of simt, which other paths of CUDA have as well. Of a tiled kernel this
// is the one with wide loads.
const char* simt_variant(const Plan& plan, const Launch& l) {
  const Problem& p = plan.problem;
  const bool plain = p.inputs() == 0;
  const SimtLaunch& own = l.of<SimtLaunch>();
  switch (l.stem) {
    case Stem::fwd_combine:
    case Stem::bwd_origin:
    case Stem::bwd_sum_splits:
    case Stem::bwd_head_sums:
      return kOnlyVariant;
    case Stem::bwd_dot:
      if (zeroes(plan, l)) return p.has_lengths() ? "zero_full" : own.tf32 ? "zero_tf32" : "zero";
      return plain ? "plain" : "full";
    case Stem::bwd_row_sums_dq:
    case Stem::bwd_dkv_dist:
      return kFixed[own.fixed].name;
    default:
      return plain ? "plain" : own.fixed >= 0 ? kFixed[own.fixed].name : "full";
  }
}

const char* variant_of(const Plan& plan, const Launch& l) {
  if (plan.backend == Backend::cpu) return kOnlyVariant;
  if (l.joins) return "joined";
  if (plan.backend == Backend::vulkan) {
    const MatrixLaunch* own = l.as<MatrixLaunch>();
    return own ? matrix_variant(*own) : kOnlyVariant;
  }
  if (l.as<Sm90Launch>()) return sm90_variant(plan, l);
  const Sm80Launch* own = l.as<Sm80Launch>();
  return own ? sm80_variant(l.stem, *own) : simt_variant(plan, l);
}

}  // namespace

const char* sm90_fwd_variant(const Problem& p, const FwdTile& t, bool scales_q) {
  switch (hopper_variant(p)) {
    case HopperVariant::bias:
      if (t.f32_bias) return p.has_lengths() ? "bias_f32_lengths" : "bias_f32";
      if (masks_bias(p)) return p.has_lengths() ? "bias_lengths" : "bias_keep";
      return t.bias ? "bias_192_rows" : scales_q ? "scaled_bias" : "bias";
    case HopperVariant::row_bias:
      return "row_bias";
    case HopperVariant::elastic:
      return t.decoupled ? "elastic_decoupled" : "elastic";
    case HopperVariant::entmax:
      return p.alpha == 1.5f ? "entmax" : "entmax_any";
    case HopperVariant::varlen:
      return "varlen";
    case HopperVariant::softcap_alibi:
      return "softcap_alibi";
    case HopperVariant::masked:
      return "masked";
    case HopperVariant::plain:
      break;
  }
  return t.decoupled ? "decoupled" : fwd_has_wide_heads(t) ? "wide_heads" : "plain";
}

String set_kernels(const Caps& caps, Plan* plan) {
  const auto find = [&](const Launch& l, const String& variant) {
    return find_kernel(l.stem, plan->backend, plan->path, variant.c_str());
  };
  const auto off = [&](int row) {
    return !caps.disabled.empty() && is_disabled(caps, kernel_name(kKernels[row]));
  };
  for (Launch& l : plan->launches) {
    const String variant = variant_of(*plan, l);
    SimtLaunch* own = l.as<SimtLaunch>();
    const bool simt = own && !l.joins;
    l.kernel = find(l, variant);
    if (simt && is_tiled(l.stem)) {
      const int narrow = find(l, variant + "_narrow");
      if (takes_wide(*plan, l, Addresses{}) && !(l.kernel >= 0 && off(l.kernel)))
        l.other_kernel = narrow;
      else
        l.kernel = narrow;
    }
    if (own && own->fast_total > 0) {
      const int fast = find(l, "fast");
      if (fast >= 0 && off(fast)) {
        own->fast_tiles = own->fast_total = 0;
        l.kernel = find(l, variant_of(*plan, l));
      } else {
        l.other_kernel = l.kernel, l.kernel = fast;
      }
    }
    if (l.of<Sm90Launch>().two_cta_clusters) l.second_kernel = find(l, "bias_two_cta");
    if (l.kernel < 0)
      return text("it has no kernel %s.%s", stem_name(l.stem), variant_of(*plan, l));
    for (int row : {l.kernel, l.other_kernel, l.second_kernel}) {
      if (row < 0) continue;
      const KernelRow& kernel = kKernels[row];
      if (off(row))
        return text("its kernel %s is %s", short_kernel_name(kernel).c_str(), kDisabled);
      // Paths look at the inputs that they know. This is for those that are new.
      if ((plan->problem.inputs() & ~kernel.inputs) != 0)
        return text("its kernel %s has no %s", short_kernel_name(kernel).c_str(),
                    plan->problem.extras(kernel.inputs).c_str());
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
