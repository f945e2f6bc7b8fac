// SPDX-License-Identifier: MIT OR Apache-2.0
// How the backward kernels for Hopper are recorded.
#include <algorithm>

#include "plan/sm90/rows.h"
#include "sm90_kernel.h"

namespace tandem {
namespace {

using cuda::Kernel;
using cuda::sm90::BwdBias;
using cuda::sm90::BwdDkvDistParams;
using cuda::sm90::BwdDkvDqBiasParams;
using cuda::sm90::BwdDkvDqEntmaxParams;
using cuda::sm90::BwdDkvDqOptionalParams;
using cuda::sm90::BwdDkvDqParams;
using cuda::sm90::BwdDkvDqPartsParams;
using cuda::sm90::BwdDkvWithDqParams;
using cuda::sm90::BwdDqCastParams;
using cuda::sm90::BwdRowSumsDqParams;
using cuda::sm90::BwdRowSumsParams;

// What all forms of bwd_dkv_dq have: dQ postprocess, gradients of heads, dynamic tile scheduler and
// lazy zero-initialisation.
template <typename ParamsOfKernel>
class BwdDkvDq : public Sm90Kernel<ParamsOfKernel> {
 public:
  using Params = ParamsOfKernel;
  BwdDkvDq(const Plan& of, const Launch& its)
      : Sm90Kernel<Params>(of, its), has_cast(of.find(Stem::bwd_dq_cast) != nullptr) {}

  void set_fixed(Params* params) const {
    Sm90Kernel<Params>::set_fixed(params);
    if (postprocesses()) params->d_q.strides = problem.d_q;
    params->interleaved_heads = int(choice.interleaved_heads);
    const int64_t heads = problem.batch * problem.heads_kv;
    const auto rows =
        uint32_t(plan.template of<Sm90Plan>().lazy_zero.bytes / uint64_t(heads) / kZeroBytes);
    params->lazy_zero = {
        0,    int(choice.eager_zero_heads), int(heads),         int(problem.heads_kv),
        rows, rows / launch.tiles,          rows % launch.tiles};
  }
  void set_addresses(const Addresses& a, Params* params) const {
    Sm90Kernel<Params>::set_addresses(a, params);
    if (a.head_counts) params->heads = {a.head_counts, a.sink, a.d_sink, a.d_slope};
    params->tile_counter = a.tile_counter;
    params->lazy_zero.counters = a.lazy_zero_counters;
    if (a.d_q_counts) params->d_q.counts = a.d_q_counts;
    if (!postprocesses()) return;
    params->d_q.address = a.d_q;
    if (choice.cooperative_postprocess)
      params->d_q.claims =
          a.d_q_counts + uint64_t(bwd_counts_bytes(1, problem.batch * problem.heads_kv));
  }

 protected:
  using Sm90Kernel<Params>::plan;
  using Sm90Kernel<Params>::launch;
  using Sm90Kernel<Params>::choice;
  using Sm90Kernel<Params>::problem;

 private:
  bool postprocesses() const { return plan.scratch[Scratch::d_q_counts].present && !has_cast; }
  const bool has_cast;  // whether bwd_dq_cast converts the dQ accumulator
};

class BwdDkvDqParts : public BwdDkvDq<BwdDkvDqPartsParams> {
 public:
  using BwdDkvDq::BwdDkvDq;
  Sm90Grid grid() const {
    Sm90Grid grid = sm90_grid(launch);
    if (launch.has(trait::two_sided)) grid.cluster = kTwoSidedCluster;
    return grid;
  }
  // A slice has whole clusters.
  bool cut(const LaunchOn& on, Params* params, Sm90Grid* grid) const {
    params->first_group = on.first_group;
    grid->groups = dim3(on.groups * std::max(grid->cluster, 1u));
    return true;
  }
  void set_fixed(Params* params) const {
    BwdDkvDq::set_fixed(params);
    params->most_parts = std::max(choice.parts.most, 1);
    params->wave = int(choice.wave);
    params->part_pairs = choice.parts.pairs;
  }
  void set_addresses(const Addresses& a, Params* params) const {
    BwdDkvDq::set_addresses(a, params);
    params->dkv_partials = a.dkv_partials;
    params->dkv_partial_counts = a.dkv_partial_counts;
  }
};

class BwdDkvDqEntmax : public BwdDkvDq<BwdDkvDqEntmaxParams> {
 public:
  using BwdDkvDq::BwdDkvDq;
  void set_fixed(Params* params) const {
    BwdDkvDq::set_fixed(params);
    params->support_words = int(support_words(problem.seq_kv));
  }
  void set_addresses(const Addresses& a, Params* params) const {
    BwdDkvDq::set_addresses(a, params);
    params->support = a.support;
    params->q_rows = a.q, params->d_o_rows = a.d_o;
  }
};

class BwdDkvDqOptional : public BwdDkvDq<BwdDkvDqOptionalParams> {
 public:
  using BwdDkvDq::BwdDkvDq;
  void set_fixed(Params* params) const {
    BwdDkvDq::set_fixed(params);
    if (is_packed(problem.lengths_q))
      params->packed_tiles =
          int(bwd_packed_tiles(kBwdShapes[choice.row], problem.total_q, problem.batch));
  }
  void set_addresses(const Addresses& a, Params* params) const {
    BwdDkvDq::set_addresses(a, params);
    const BwdDkvPush from = bwd_dkv_push(plan, launch, a);
    std::copy_n(from.extra, kExtraAddresses, params->extra_at);
    params->drop_offset = from.drop_offset;
    if (a.places_q) params->ranks = a.places_q + 2 * sizeof(int32_t);
    if (problem.wants(TANDEM_GRAD_SLOPE)) params->slope_parts = a.slope_rows;
  }
};

// A dense bias. Where d_bias is summed over the batch, workgroups run in clusters of a schedule
// (bwd_cluster_schedule.h), and two-CTA clusters may follow in a launch of their own.
class BwdDkvDqBias : public BwdDkvDq<BwdDkvDqBiasParams> {
 public:
  BwdDkvDqBias(const Plan& of, const Launch& its) : BwdDkvDq(of, its), grid_(sm90_grid(its)) {
    if (launch.second_kernel >= 0)  // of the one row with trait::two_cta
      two_cta_kernel_ = cuda::sm90::bwd_dkv_dq_bias_two_cta_kernel(problem.dtype, choice.row);
    if (sums_dbias_in_slices(problem))
      cluster_ = kSliceCluster;
    else if (reduces_dbias_in_clusters(problem))
      cluster_ = unsigned(problem.batch);
    split_ = {launch.total / (problem.bias.batch == 1 ? problem.batch : 1), 1};
  }

  Status prepare(Kernel<Params> kernel, const Launching& with) {
    kernel_ = kernel;
    if (slices()) return schedule_slices(with);
    if (cluster_ > 1 && launch.groups_y == 1) TANDEM_TRY(schedule_clusters(with));
    // There are as many persistent clusters as the device runs at a time. In a deterministic order
    // a cluster waits for those that were started before it, so each has one tile.
    persistent_ = !launch.has(trait::postprocess) && !problem.deterministic &&
                  0 < schedule_.slots && schedule_.slots < schedule_.items;
    if (schedule_.items > 0)
      grid_.groups.x = cluster_ * unsigned(persistent_ ? schedule_.slots : schedule_.items);
    // A single workgroup is launched as a cluster, too. In any other launch cluster_sync() is a
    // barrier of the workgroup, at which its two kinds of warps wait by two instructions, and
    // synccheck of compute-sanitizer reports that as an error.
    grid_.cluster = cluster_;
    return Status();
  }
  Sm90Grid grid() const { return grid_; }

  void set_fixed(Params* params) const {
    BwdDkvDq::set_fixed(params);
    BwdBias& bias = params->bias;
    bias.d_bias_strides = problem.d_bias;
    bias.group = int(problem.heads_q / problem.bias.heads);
    bias.shared = problem.bias.batch == 1 ? int(problem.batch) : 1;
    bias.d_bias_f32 = problem.d_bias_dtype == TANDEM_F32;
    bias.passes = 1;
    if (slices()) {
      const int64_t heads = problem.heads_q, pitch = bias_parts_pitch(problem.seq_kv);
      bias.passes = choice.passes, bias.slices = int(launch.splits), bias.slice_pitch = int(pitch);
      bias.d_bias_strides = {heads * problem.seq_q * pitch, problem.seq_q * pitch, pitch, 1};
      bias.d_bias_f32 = 1;
    }
    bias.row_step = bias_row_step(problem);
    bias.whole = int(split_.whole), bias.parts = split_.parts;
    bias.schedule = schedule_;
    bias.keep_group = 1;
    bias.bottom_right = problem.has_lengths() && problem.bottom_right && problem.banded();
    if (packs_keep(problem)) {
      bias.keep_strides = packed_keep_strides(problem);
      bias.skips = !problem.visit_all;
      bias.keep_group = int(problem.heads_q / packed_keep(problem).heads);
    } else if (problem.keep) {
      bias.keep_strides = problem.keep.strides;
      bias.keep_group = int(problem.heads_q / problem.keep.heads);
    }
  }
  void set_addresses(const Addresses& a, Params* params) const {
    BwdDkvDq::set_addresses(a, params);
    params->bias.d_bias = slices() ? a.bias_parts : a.d_bias;
    params->bias.keep = a.keep;
    params->bias.lengths_q = a.lengths_q, params->bias.lengths_kv = a.lengths_kv;
    if (slices()) params->bias.counter = a.tile_counter;
    params->bias.parts_at = a.dkv_partials, params->bias.counts = a.dkv_partial_counts;
    params->bias.sums_at = a.pass_sums;
    if (persistent_)
      params->bias.counter = a.dkv_partial_counts + 8 * uint64_t(bwd_partial_slots(launch.total));
  }
  cudaError_t launch_rest(Params* params, cudaStream_t stream) const {
    const auto clusters = unsigned(schedule_.two_cta_clusters);
    if (clusters == 0) return cudaSuccess;
    params->bias.passes = int(cluster_) / 2;
    Sm90Grid grid = grid_;
    grid.groups.x = 2 * clusters, grid.cluster = 2, grid.programmatic = true;
    return launch_with_attributes(reinterpret_cast<const void*>(two_cta_kernel_), grid, params,
                                  stream);
  }

 private:
  bool slices() const { return launch.has(trait::slices); }
  // As many clusters as the device runs at a time, or as many as there are items. They fetch their
  // items.
  Status schedule_slices(const Launching& with) {
    grid_.cluster = cluster_;
    grid_.groups = dim3(cluster_);  // whole clusters, as their number is asked for
    schedule_.items = int(int64_t(launch.total) / problem.batch * launch.splits);
    int64_t slots = 0;
    TANDEM_TRY(count_clusters(kernel_, cluster_, with, &slots));
    const int64_t clusters =
        slots > 0 ? std::min<int64_t>(slots, schedule_.items) : schedule_.items;
    grid_.groups = dim3(cluster_ * unsigned(clusters));
    return Status();
  }
  // How many clusters of a kernel the device runs at a time.
  Status count_clusters(Kernel<Params> kernel, unsigned cluster, const Launching& with,
                        int64_t* count) const {
    Launcher<Params> loaded;
    TANDEM_TRY(prepare_launch(kernel, launch, with, &loaded));
    Sm90Grid grid = grid_;
    grid.cluster = cluster;
    *count = max_active_clusters(reinterpret_cast<const void*>(kernel), grid);
    if (problem.cores > 0)  // the driver counts with all SMs
      *count =
          std::clamp<int64_t>(problem.cores / int64_t(cluster), 1, std::max<int64_t>(*count, 1));
    return Status();
  }
  Status schedule_clusters(const Launching& with) {
    int64_t slots = 0, two_cta_clusters = 0;
    TANDEM_TRY(count_clusters(kernel_, cluster_, with, &slots));
    if (slots > 0 && two_cta_kernel_) {
      TANDEM_TRY(count_clusters(two_cta_kernel_, 2, with, &two_cta_clusters));
      two_cta_clusters =
          std::clamp<int64_t>(two_cta_clusters - slots * problem.batch / 2, 0, kMaxTwoCtaClusters);
    }
    const BwdShape& shape = kBwdShapes[choice.row];
    const BwdClusterPlan planned = plan_bwd_clusters(
        launch.total / problem.batch, slots, problem.batch, bwd_query_tiles(shape, problem.seq_q),
        two_cta_clusters, bwd_two_cta_tenths(shape, problem.batch / 2));
    schedule_ = planned.schedule;
    split_ = planned.split;
    return Status();
  }

  Kernel<Params> kernel_ = nullptr;
  Sm90Grid grid_;
  Kernel<Params> two_cta_kernel_ = nullptr;  // of Launch::second_kernel
  unsigned cluster_ = 1;
  bool persistent_ = false;
  BwdQuerySplit split_{};
  BwdClusterSchedule schedule_{};
};

// bwd_dkv and bwd_dq of wide heads in one launch. Of a problem with both it is bwd_dkv's, which
// comes first. bwd_head_sums's work is joined to the first of them.
class BwdDkvWithDq : public Sm90Kernel<BwdDkvWithDqParams> {
 public:
  BwdDkvWithDq(const Plan& of, const Launch& its)
      : Sm90Kernel(of, its),
        dkv_(its.stem == Stem::bwd_dkv ? &its : nullptr),
        dq_(dkv_ ? joined_launch(of, Stem::bwd_dq) : &its),
        head_(dkv_ || !of.find(Stem::bwd_dkv) ? joined_launch(of, Stem::bwd_head_sums) : nullptr) {}

  Sm90Grid grid() const {
    Sm90Grid grid = sm90_grid(launch);
    const bool both = dkv_ && dq_;
    const uint32_t total = launch.total + (both ? dq_->total : 0) + (head_ ? head_->total : 0);
    if (total > launch.total) grid.groups = dim3(total);
    if (both) grid.shared_bytes = std::max(launch.shared_bytes, dq_->shared_bytes);
    return grid;
  }
  void set_fixed(Params* params) const {
    if (dkv_) params->block = bwd_dkv_block(plan, *dkv_);
    if (dq_) params->dq.block = bwd_dq_block(plan, *dq_);
    params->softcap = problem.softcap;
    if (!head_) return;
    params->head.block = bwd_head_sums_block(plan, *head_);
    params->head.spec = bwd_head_sums_spec(plan, *head_);
  }
  void set_addresses(const Addresses& a, Params* params) const {
    if (dkv_) {
      params->push = bwd_dkv_push(plan, *dkv_, a);
      if (!problem.wants(TANDEM_GRAD_K)) params->push.d_k = 0;
      if (!problem.wants(TANDEM_GRAD_V)) params->push.d_v = 0;
    }
    if (dq_) params->dq.push = bwd_dq_push(plan, *dq_, a);
    if (head_) params->head.push = bwd_head_sums_push(plan, *head_, a);
  }

 private:
  const Launch *dkv_, *dq_, *head_;  // nullptr: not of this launch
};

class BwdRowSums : public Sm90Kernel<BwdRowSumsParams> {
 public:
  using Sm90Kernel::Sm90Kernel;
  void set_fixed(Params* params) const {
    Sm90Kernel::set_fixed(params);
    params->support_words = int(support_words(problem.seq_kv));
    params->support_rows = gathers_rows(problem);
  }
  void set_addresses(const Addresses& a, Params* params) const {
    Sm90Kernel::set_addresses(a, params);
    params->support = a.support;
    params->zeroed = a.zeroed, params->zeroed_end = a.zeroed_end;
  }
};

class BwdRowSumsDq : public Sm90Kernel<BwdRowSumsDqParams> {
 public:
  using Sm90Kernel::Sm90Kernel;
  void set_fixed(Params* params) const {
    Sm90Kernel::set_fixed(params);
    params->spec = bwd_row_sums_dq_spec(plan, launch);
    const Launch* sum = plan.find_sum(TANDEM_GRAD_DIST_BIAS);
    if (sum && sum->joins()) params->zeroed_count = int(sum_counts_bytes(problem.heads_kv) / 4);
  }
  void set_addresses(const Addresses& a, Params* params) const {
    Sm90Kernel::set_addresses(a, params);
    params->zeroed = a.sum_counts;
  }
};

class BwdDkvDist : public Sm90Kernel<BwdDkvDistParams> {
 public:
  BwdDkvDist(const Plan& of, const Launch& its)
      : Sm90Kernel(of, its), reduces_tau_(joined_launch(of, Stem::bwd_head_sums) != nullptr) {
    const Launch* sum = of.find_sum(TANDEM_GRAD_DIST_BIAS);
    reduces_dist_ = sum && sum->joins();
  }
  void set_addresses(const Addresses& a, Params* params) const {
    Sm90Kernel::set_addresses(a, params);
    if (reduces_dist_) params->sums.d_dist = a.d_dist_bias, params->sums.counts = a.sum_counts;
    if (reduces_tau_) params->sums.tau_rows = a.tau_rows, params->sums.d_tau = a.d_tau;
  }

 private:
  bool reduces_dist_ = false, reduces_tau_;
};

class BwdDqCast : public Sm90Kernel<BwdDqCastParams> {
 public:
  BwdDqCast(const Plan& of, const Launch& its)
      : Sm90Kernel(of, its), head_(joined_launch(of, Stem::bwd_head_sums)) {}
  Sm90Grid grid() const {
    Sm90Grid grid = sm90_grid(launch);
    if (head_) grid.groups = dim3(launch.total + head_->total);
    if (grid.programmatic) grid.cluster = 1;
    return grid;
  }
  void set_fixed(Params* params) const {
    Sm90Kernel::set_fixed(params);
    const Launch& fused = *plan.find(Stem::bwd_dkv_dq);
    const bool shared = fused.has(trait::bias_tiles) && problem.bias.batch == 1;
    params->entries = shared ? int(problem.batch) : 1;
    if (is_packed(problem.lengths_q)) {
      const BwdShape& shape = kBwdShapes[choice.row];
      params->total_q = int(problem.total_q);
      params->gapped = problem.lengths_q == Lengths::gapped;
      params->tile_blocks = shape.br / 64;
      params->packed_blocks =
          int(bwd_packed_tiles(shape, problem.total_q, problem.batch)) * params->tile_blocks;
    }
    params->by_rows = fused.has(trait::gathers);
    params->done = kWholeTile * fused.tiles;
    params->group = int(problem.group());
    if (!head_) return;
    params->head.block = bwd_head_sums_block(plan, *head_);
    params->head.spec = bwd_head_sums_spec(plan, *head_);
  }
  void set_addresses(const Addresses& a, Params* params) const {
    Sm90Kernel::set_addresses(a, params);
    if (head_) params->head.push = bwd_head_sums_push(plan, *head_, a);
    if (is_packed(problem.lengths_q)) params->lengths_q = places_or_lengths_q(a);
    if (choice.programmatic) params->counts = a.d_q_counts;
  }

 private:
  const Launch* head_;  // bwd_head_sums; nullptr: not of this launch
};

}  // namespace

TANDEM_RECORDS(BwdDkvDqParams, BwdDkvDq<BwdDkvDqParams>)
TANDEM_RECORDS(BwdDkvDqPartsParams, BwdDkvDqParts)
TANDEM_RECORDS(BwdDkvDqBiasParams, BwdDkvDqBias)
TANDEM_RECORDS(BwdDkvDqOptionalParams, BwdDkvDqOptional)
TANDEM_RECORDS(BwdDkvDqEntmaxParams, BwdDkvDqEntmax)
TANDEM_RECORDS(BwdDkvDistParams, BwdDkvDist)
TANDEM_RECORDS(BwdRowSumsDqParams, BwdRowSumsDq)
TANDEM_RECORDS(BwdRowSumsParams, BwdRowSums)
TANDEM_RECORDS(BwdDkvWithDqParams, BwdDkvWithDq)
TANDEM_RECORDS(BwdDqCastParams, BwdDqCast)

}  // namespace tandem
