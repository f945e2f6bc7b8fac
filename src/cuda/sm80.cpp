// SPDX-License-Identifier: MIT OR Apache-2.0
#include "sm80.h"

#include <algorithm>

#include "kernels/params.h"
#include "plan/sm80/heuristics.h"

namespace tandem {
bool sm80_loads() {
  const auto kernel = cuda::sm80::bwd_dq_cast_kernel(TANDEM_F16, cuda::KernelChoice(), true);
  cudaFuncAttributes attributes;
  const bool loads =
      kernel &&
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) == cudaSuccess;
  if (!loads) cudaGetLastError();
  return loads;
}

cuda::KernelChoice kernel_choice(const Launch& launch) {
  cuda::KernelChoice of;
  of.tile = launch.tile.name;
  of.d_blocks = launch.d_blocks, of.dv_blocks = launch.dv_blocks;
  of.row = launch.of<Sm80Launch>().row;
  of.tf32 = launch.rounds_to_tf32();
  return of;
}

using cuda::LookUp;

// The kernels of whole heads.
template <>
Status record(LookUp<cuda::sm80::FwdWholeFull> find, const Plan& plan, const Launch& launch,
              const Launching& with, Recorder* recorder) {
  Launcher<cuda::sm80::FwdWholeFull> start;
  TANDEM_TRY(
      prepare_launch(find(plan.problem.dtype, kernel_choice(launch), true), launch, with, &start));
  cuda::sm80::FwdWholeFull fixed{};
  fixed.block = fwd_block(plan, launch), fixed.spec = fwd_spec(plan, launch);
  fixed.extra = extra_block(plan.problem), fixed.features = features_of(plan.problem);
  fixed.batch = int(plan.problem.batch), fixed.sliced = sm80_slices_batch(plan.problem);
  *recorder = [=, &plan, &launch](const LaunchOn& on, const Addresses& a) {
    cuda::sm80::FwdWholeFull params = fixed;
    params.push = fwd_push(plan, launch, a);
    return start(&params, on);
  };
  return Status();
}

template <>
Status record(LookUp<cuda::sm80::BwdWholeFull> find, const Plan& plan, const Launch& launch,
              const Launching& with, Recorder* recorder) {
  const Problem& p = plan.problem;
  Launcher<cuda::sm80::BwdWholeFull> start;
  TANDEM_TRY(prepare_launch(find(p.dtype, kernel_choice(launch), true), launch, with, &start));
  cuda::sm80::BwdWholeFull fixed{};
  fixed.block = bwd_dq_block(plan, launch), fixed.spec = bwd_dq_spec(plan, launch);
  fixed.extra = extra_block(p), fixed.features = features_of(p);
  fixed.batch = int(p.batch), fixed.sliced = sm80_slices_batch(p);
  fixed.d_k = p.d_k, fixed.d_v = p.d_v;
  if (launch.splits > 1) {
    const int64_t pitch = bias_parts_pitch(p.seq_kv), head = p.seq_q * pitch;
    fixed.block.d_bias = {p.heads_q * head, head, pitch, 1};
    fixed.spec.D_BIAS = TANDEM_F32;
  }
  *recorder = [=, &plan, &launch](const LaunchOn& on, const Addresses& a) {
    const Problem& problem = plan.problem;
    cuda::sm80::BwdWholeFull params = fixed;
    params.push = bwd_dq_push(plan, launch, a);
    if (!problem.wants(TANDEM_GRAD_Q)) params.push.d_q = 0;
    const BwdDkvPush kv = bwd_dkv_push(plan, launch, a);
    params.d_k_at = problem.wants(TANDEM_GRAD_K) ? kv.d_k : 0;
    params.d_v_at = problem.wants(TANDEM_GRAD_V) ? kv.d_v : 0;
    params.wide_kv = kv.wide >> 4 & 3u;
    return start(&params, on);
  };
  return Status();
}

// bwd_dkv_dq of f32 problems with optional inputs.
template <>
Status record(LookUp<cuda::sm80::BwdDkvDqInputs> find, const Plan& plan, const Launch& launch,
              const Launching& with, Recorder* recorder) {
  const Problem& p = plan.problem;
  Launcher<cuda::sm80::BwdDkvDqInputs> start;
  TANDEM_TRY(prepare_launch(find(p.dtype, kernel_choice(launch), true), launch, with, &start));
  cuda::sm80::BwdDkvDqInputs fixed{};
  fixed.block = bwd_dkv_block(plan, launch), fixed.spec = bwd_dkv_spec(plan, launch);
  fixed.extra = extra_block(p), fixed.features = features_of(p);
  if (launch.stores_d_bias) {
    fixed.d_bias = p.d_bias;
    fixed.d_bias_type = uint32_t(p.d_bias_dtype);
  }
  *recorder = [=, &plan, &launch](const LaunchOn& on, const Addresses& a) {
    const Problem& problem = plan.problem;
    cuda::sm80::BwdDkvDqInputs params = fixed;
    params.push = bwd_dkv_push(plan, launch, a);
    if (!problem.wants(TANDEM_GRAD_K)) params.push.d_k = 0;
    if (!problem.wants(TANDEM_GRAD_V)) params.push.d_v = 0;
    params.d_q_accum = a.d_q_accum;
    params.d_bias_at = a.d_bias;
    // Without the accumulator, or with counts, the kernel stores d_q.
    if (!a.d_q_accum || a.d_q_counts)
      params.d_q = {bwd_dq_push(plan, launch, a).wide & 16u, problem.d_q, a.d_q, a.d_q_counts};
    return start(&params, on);
  };
  return Status();
}

template <>
Status record(LookUp<cuda::sm80::BwdDkvDqParams> find, const Plan& plan, const Launch& launch,
              const Launching& with, Recorder* recorder) {
  Launcher<cuda::sm80::BwdDkvDqParams> start;
  TANDEM_TRY(
      prepare_launch(find(plan.problem.dtype, kernel_choice(launch), true), launch, with, &start));
  const BwdDkvDqBlock block = bwd_dkv_dq_block(plan, launch);
  *recorder = [=, &plan, &launch](const LaunchOn& on, const Addresses& a) {
    const BwdDkvPush from = bwd_dkv_push(plan, launch, a);
    cuda::sm80::BwdDkvDqParams params{
        block, bwd_dkv_dq_push(plan, launch, a), from.q, from.k, from.v, from.d_o, from.wide, {},
        0};
    if (a.d_q_counts)
      params.d_q = {bwd_dq_push(plan, launch, a).wide & 16u, plan.problem.d_q, a.d_q, a.d_q_counts};
    return start(&params, on);
  };
  return Status();
}

// bwd_dkv with optional inputs, and bwd_dq and bwd_head_sums where they have joined it.
template <>
Status record(LookUp<cuda::sm80::BwdDkvHeadFull> find, const Plan& plan, const Launch& launch,
              const Launching& with, Recorder* recorder) {
  const auto kernel = find(plan.problem.dtype, kernel_choice(launch), true);
  Launcher<cuda::sm80::BwdDkvHeadFull> start;
  TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
  cuda::sm80::BwdDkvHeadFull fixed{};
  fixed.block = bwd_dkv_block(plan, launch);
  fixed.extra = extra_block(plan.problem);
  fixed.features = features_of(plan.problem);
  fixed.spec = bwd_dkv_spec(plan, launch);
  const Launch *dq = plan.find(Stem::bwd_dq), *head = plan.find(Stem::bwd_head_sums);
  if (!dq || !dq->joins()) dq = nullptr;
  if (!head || !head->joins()) head = nullptr;
  if (dq) {
    fixed.dq.block = bwd_dq_block(plan, *dq);
    fixed.dq.extra = fixed.extra;
    fixed.dq.features = fixed.features;
    fixed.dq.spec = bwd_dq_spec(plan, *dq);
  }
  if (head) {
    fixed.head.block = bwd_head_sums_block(plan, *head);
    fixed.head.spec = bwd_head_sums_spec(plan, *head);
  }
  if (dq || head) {
    const uint32_t total = launch.total + (dq ? dq->total : 0) + (head ? head->total : 0);
    TANDEM_TRY(start.prepare(kernel, with, dim3(total), launch.invocations(),
                             std::max(launch.shared_bytes, dq ? dq->shared_bytes : 0)));
  }
  *recorder = [=, &plan, &launch](const LaunchOn& on, const Addresses& a) {
    cuda::sm80::BwdDkvHeadFull params = fixed;
    params.push = bwd_dkv_push(plan, launch, a);
    if (dq) params.dq.push = bwd_dq_push(plan, *dq, a);
    if (head) params.head.push = bwd_head_sums_push(plan, *head, a);
    return start(&params, on);
  };
  return Status();
}

template <>
Status record(LookUp<cuda::sm80::BwdDqCastParams> find, const Plan& plan, const Launch& launch,
              const Launching& with, Recorder* recorder) {
  Launcher<cuda::sm80::BwdDqCastParams> start;
  TANDEM_TRY(
      prepare_launch(find(plan.problem.dtype, kernel_choice(launch), true), launch, with, &start));
  const BwdDqCastBlock block = bwd_dq_cast_block(plan, launch);
  *recorder = [=, &plan, &launch](const LaunchOn& on, const Addresses& a) {
    const bool wide = (bwd_dq_push(plan, launch, a).wide & 16u) != 0;
    cuda::sm80::BwdDqCastParams params{block, bwd_dq_cast_push(plan, launch, a), wide};
    return start(&params, on);
  };
  return Status();
}

}  // namespace tandem
