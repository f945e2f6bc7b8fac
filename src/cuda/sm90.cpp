// SPDX-License-Identifier: MIT OR Apache-2.0
// Launches of the kernels for Hopper. Their tensors are passed as tensor maps, which hold the
// addresses of an execute.
#include "cuda/sm90.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "../../cuda/sm90/bwd/kernels.h"
#include "../../cuda/sm90/fwd/kernels.h"
#include "bwd_cluster_schedule.h"

namespace tandem {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
using ReplaceAddress = decltype(&cuTensorMapReplaceAddress);

// A tensor map without its address.
struct TensorMapShape {
  CUtensorMapDataType type;
  cuuint64_t sizes[4];
  cuuint64_t steps[3];  // in bytes
  cuuint32_t box[4];
};

// rows: rows of a TMA box.
TensorMapShape tensor_map_shape(const Problem& p, const Strides& s, int64_t heads, int64_t seq,
                                int64_t features, int rows) {
  // A dimension of size 1 has no step, whatever its stride says.
  const auto step = [](int64_t size, int64_t stride) {
    return size == 1 ? cuuint64_t(16) : cuuint64_t(stride) * 2;
  };
  return {
      p.dtype == TANDEM_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      {cuuint64_t(features), cuuint64_t(seq), cuuint64_t(heads), cuuint64_t(p.batch)},
      {step(seq, s.s), step(heads, s.h), step(p.batch, s.b)},
      {64, cuuint32_t(rows), 1, 1}};
}

// A tensor map whose address is replaced at each execute. It is held as bytes, as closures are
// allocated with less than its alignment of 64.
struct TensorMap {
  unsigned char bytes[sizeof(CUtensorMap)];
};

// Encodes a tensor map. cuTensorMapEncodeTiled needs an address that is not null; each execute
// replaces it. Encoding takes a microsecond, replacing much less.
Status encode_tensor_map(EncodeTiled function, const char* tensor, const TensorMapShape& shape,
                         TensorMap* map) {
  const cuuint32_t every[4] = {1, 1, 1, 1};
  CUtensorMap made;
  const CUresult result = function(
      &made, shape.type, 4, reinterpret_cast<void*>(uintptr_t(1) << 20), shape.sizes, shape.steps,
      shape.box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    return fail(TANDEM_ERROR_BACKEND, "cuTensorMapEncodeTiled of %s: CUresult %d", tensor,
                int(result));
  std::memcpy(map->bytes, &made, sizeof made);
  return Status();
}

bool encode(ReplaceAddress function, const TensorMap& map, uint64_t address, CUtensorMap* to) {
  std::memcpy(to, map.bytes, sizeof *to);
  return function(to, reinterpret_cast<void*>(address)) == CUDA_SUCCESS;
}

// The tensor maps of the inputs of a launch, as its recorder keeps them.
struct Inputs {
  ReplaceAddress function = nullptr;
  TensorMap q{}, k{}, v{}, d_o{}, bias{};

  // Writes the tensor maps to the parameters of a kernel, with the addresses of an execute: those
  // that all kernels have, and those of the backward.
  template <typename P>
  bool encode_to(const Addresses& a, P* params) const {
    return encode(function, q, a.q, &params->q) && encode(function, k, a.k, &params->k) &&
           encode(function, v, a.v, &params->v);
  }
  template <typename P>
  bool encode_all_to(const Addresses& a, P* params) const {
    return encode_to(a, params) && encode(function, d_o, a.d_o, &params->d_o);
  }
  bool encode_bias(const Addresses& a, CUtensorMap* to) const {
    return encode(function, bias, a.bias, to);
  }
};

// A packed tensor has one batch entry with all rows.
TensorMapShape row_tensor_map_shape(const Problem& p, const Strides& s, bool keys, int64_t features,
                                    int rows) {
  const int64_t heads = keys ? p.heads_kv : p.heads_q;
  if ((keys ? p.lengths_kv : p.lengths_q) != Lengths::packed)
    return tensor_map_shape(p, s, heads, keys ? p.seq_kv : p.seq_q, features, rows);
  TensorMapShape shape =
      tensor_map_shape(p, s, heads, keys ? p.total_kv : p.total_q, features, rows);
  shape.sizes[3] = 1, shape.steps[2] = 16;
  return shape;
}

// The dense bias, whose features are keys.
TensorMapShape bias_tensor_map_shape(const Problem& p, int rows) {
  TensorMapShape shape = tensor_map_shape(p, p.bias.strides, p.bias.heads, p.seq_q, p.seq_kv, rows);
  shape.sizes[3] = cuuint64_t(p.bias.batch);
  if (p.bias.batch == 1) shape.steps[2] = 16;
  return shape;
}

// Parameters that all forms of bwd_dkv_dq have: dQ postprocess, gradients of heads, dynamic tile
// scheduler and lazy zero-initialisation.
void set_dq_params(const Plan& plan, const Addresses& a, cuda::sm90::BwdDkvDqParams* params) {
  const Problem& p = plan.problem;
  params->d_q = {};
  params->heads = {};
  if (plan.head_counts_offset) params->heads = {a.head_counts, a.sink, a.d_sink, a.d_slope};
  const Launch& fused = *plan.find(Stem::bwd_dkv_dq);
  params->interleaved_heads = int(fused.interleaved_heads);
  params->tile_counter = a.tile_counter;
  const int64_t heads = p.batch * p.heads_kv;
  const auto rows = uint32_t(plan.lazy_zero.bytes / uint64_t(heads) / kZeroBytes);
  params->lazy_zero = {
      a.lazy_zero_counters, int(fused.eager_zero_heads), int(heads), int(p.heads_kv), rows,
      rows / fused.tiles,   rows % fused.tiles};
  if (!plan.d_q_counts_offset) return;
  params->d_q.counts = a.d_q_counts;
  if (plan.find(Stem::bwd_dq_cast)) return;
  params->d_q.strides = p.d_q;
  params->d_q.address = a.d_q;
  if (fused.cooperative_postprocess)
    params->d_q.claims = a.d_q_counts + uint64_t(bwd_counts_bytes(1, heads));
}

template <typename P>
Launcher<P> launcher_of(cuda::Kernel<P>) {
  return {};
}

// cluster: workgroups of a cluster.
cudaLaunchConfig_t cluster_config(const Launch& launch, unsigned groups, unsigned cluster,
                                  cudaLaunchAttribute* attribute) {
  attribute->id = cudaLaunchAttributeClusterDimension;
  attribute->val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(groups, launch.groups_y);
  config.blockDim = dim3(uint32_t(launch.invocations()));
  config.dynamicSmemBytes = launch.shared_bytes;
  config.attrs = attribute;
  config.numAttrs = 1;
  return config;
}
// programmatic_launch: the kernel may start once all workgroups of the kernel before it have
// allowed it.
template <typename P>
cudaError_t launch_clusters(cuda::Kernel<P> kernel, const Launch& launch, P* params,
                            cudaStream_t stream, unsigned groups, unsigned cluster,
                            bool programmatic_launch = false) {
  void* arguments[] = {params};
  cudaLaunchAttribute attribute[2]{};
  cudaLaunchConfig_t config = cluster_config(launch, groups, cluster, attribute);
  attribute[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[1].val.programmaticStreamSerializationAllowed = 1;
  if (programmatic_launch) config.numAttrs = 2;
  config.stream = stream;
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments);
}
// Programmatic dependent launch without clusters.
template <typename P>
cudaError_t launch_programmatic(cuda::Kernel<P> kernel, const Launch& launch, P* params,
                                cudaStream_t stream) {
  void* arguments[] = {params};
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config = cluster_config(launch, launch.groups_x, 1, &attribute);
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.stream = stream;
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments);
}
// How many clusters the device runs at a time; 0: unknown.
template <typename P>
int max_active_clusters(cuda::Kernel<P> kernel, const Launch& launch, unsigned cluster) {
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config = cluster_config(launch, launch.groups_x, cluster, &attribute);
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, reinterpret_cast<const void*>(kernel), &config) ==
      cudaSuccess)
    return count;
  cudaGetLastError();
  return 0;
}

// Schedule of the clusters of bwd_dkv_dq with a bias, where d_bias is summed over the batch.
Status schedule_clusters(const Plan& plan, const Launch& launch, const Launching& with,
                         BwdClusterPlan* planned) {
  const Problem& p = plan.problem;
  const auto kernel_of = [&](cuda::sm90::BiasForm form) {
    return cuda::sm90::bwd_dkv_dq_bias_kernel(p.dtype, launch.hopper, form);
  };
  const bool postprocesses = p.wants(TANDEM_GRAD_Q) && !plan.find(Stem::bwd_dq_cast);
  const auto kernel =
      kernel_of(postprocesses ? cuda::sm90::BiasForm::postprocess : cuda::sm90::BiasForm::whole);
  auto start = launcher_of(kernel);
  TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
  const int64_t slots = max_active_clusters(kernel, launch, unsigned(p.batch)),
                kv_tiles = launch.total / p.batch;
  int64_t two_cta_clusters = 0;
  if (slots > 0 && launch.two_cta_clusters) {
    const auto two_cta_kernel = kernel_of(cuda::sm90::BiasForm::passes);
    TANDEM_TRY(prepare_launch(two_cta_kernel, launch, with, &start));
    two_cta_clusters =
        std::clamp<int64_t>(max_active_clusters(two_cta_kernel, launch, 2) - slots * p.batch / 2, 0,
                            kMaxTwoCtaClusters);
  }
  const BwdShape& shape = kBwdShapes[launch.hopper];
  *planned = plan_bwd_clusters(kv_tiles, slots, p.batch, (p.seq_q + shape.br - 1) / shape.br,
                               two_cta_clusters, bwd_two_cta_tenths(shape, p.batch / 2));
  return Status();
}

// An even number that no other execute gets, by which workgroups recognise their flags in a
// workspace that is not zeroed. Its first bits are 01, which flags full of zeros or of ones do not
// have. The others start at an arbitrary value, so other garbage, also that of another process,
// matches with a probability of 2^-62. A replay of a graph has the number that was recorded, so
// workgroups put zeros in place of their flags (cuda/sm90/fwd/stream_k.cuh).
uint64_t unique_number() {
  static std::atomic<uint64_t> next{[] {
    const auto now = [](auto clock) { return uint64_t(clock.now().time_since_epoch().count()); };
    uint64_t x = now(std::chrono::system_clock()) ^ now(std::chrono::steady_clock()) << 32 ^
                 uint64_t(reinterpret_cast<uintptr_t>(&next));
    for (uint64_t factor : {0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu})
      x = (x ^ x >> 30) * factor, x ^= x >> 27;
    return x;
  }()};
  return (next.fetch_add(2, std::memory_order_relaxed) & ~uint64_t(0) >> 2 & ~uint64_t(1)) |
         uint64_t(1) << 62;
}

}  // namespace

bool sm90_loads() {
  cudaFuncAttributes attributes;
  const auto kernel = cuda::sm90::bwd_dq_cast_kernel(TANDEM_F16);
  const bool loads =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) == cudaSuccess;
  if (!loads) cudaGetLastError();
  return loads;
}

Status sm90_recorder(const Plan& plan, const Launch& launch, const Launching& with,
                     Recorder* recorder) {
  const Problem& p = plan.problem;
  const auto no_kernel = [](const Launch& of) {
    return fail(TANDEM_ERROR_BACKEND, "no CUDA kernel %s for tile %s", stem_name(of.stem),
                of.tile.name ? of.tile.name : "-");
  };
  EncodeTiled make = nullptr;
  Inputs inputs;
  TANDEM_TRY(find_driver_function("cuTensorMapEncodeTiled", &make));
  TANDEM_TRY(find_driver_function("cuTensorMapReplaceAddress", &inputs.function));
  const int br = launch.tile.br, bc = launch.tile.bc;
  const HopperVariant set = hopper_variant(p);
  const bool forward = launch.stem == Stem::fwd;
  const int q_rows =
      forward && set == HopperVariant::plain  ? fwd_plain_q_rows(kFwdTiles[launch.hopper])
      : forward && set == HopperVariant::bias ? fwd_bias_q_rows(kFwdTiles[launch.hopper])
                                              : br;
  if (launch.stem != Stem::bwd_dq_cast) {
    TANDEM_TRY(encode_tensor_map(make, "q", row_tensor_map_shape(p, p.q, false, p.head_dim, q_rows),
                                 &inputs.q));
    TANDEM_TRY(encode_tensor_map(make, "k", row_tensor_map_shape(p, p.k, true, p.head_dim, bc),
                                 &inputs.k));
    TANDEM_TRY(encode_tensor_map(make, "v", row_tensor_map_shape(p, p.v, true, p.head_dim_v, bc),
                                 &inputs.v));
    if (p.backward)
      TANDEM_TRY(encode_tensor_map(
          make, "d_o", row_tensor_map_shape(p, p.d_o, false, p.head_dim_v, br), &inputs.d_o));
    if (p.bias)
      TANDEM_TRY(encode_tensor_map(
          make, "bias", bias_tensor_map_shape(p, p.backward ? br : kFwdBiasRows), &inputs.bias));
  }
  switch (launch.stem) {
    case Stem::fwd: {
      if (set == HopperVariant::bias) {
        const auto kernel = launch.scales_q ? cuda::sm90::fwd_scaled_bias_kernel(launch)
                                            : cuda::sm90::fwd_bias_kernel(p.dtype, launch);
        auto start = launcher_of(kernel);
        TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
        cuda::sm90::FwdBiasParams fixed{};
        fixed.block = fwd_block(plan, launch);
        fixed.extra = extra_block(p);
        fixed.features = features_of(p);
        fixed.stream_k.units = launch.stream_k_units, fixed.stream_k.unit = launch.stream_k_unit;
        fixed.stream_k.short_tiles = launch.short_tiles;
        fixed.stream_k.shares = fwd_stream_k_shares(fixed.stream_k, int((p.seq_kv + bc - 1) / bc),
                                                    int(launch.groups_x));
        fixed.stream_k.batches = int(p.batch);
        *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
          cuda::sm90::FwdBiasParams params = fixed;
          if (!inputs.encode_to(a, &params) || !inputs.encode_bias(a, &params.bias))
            return cudaErrorInvalidValue;
          params.push = fwd_push(plan, launch, a);
          params.stream_k.partials = a.partials, params.stream_k.flags = a.partial_flags;
          params.stream_k.number = unique_number();
          return launch.programmatic_launch ? launch_programmatic(kernel, launch, &params, stream)
                                            : start(&params, stream);
        };
        return Status();
      }
      if (set != HopperVariant::plain) {
        const auto find =
            set == HopperVariant::entmax          ? (p.alpha == 1.5f ? cuda::sm90::fwd_entmax_kernel
                                                                     : cuda::sm90::fwd_entmax_any_kernel)
            : set == HopperVariant::elastic       ? cuda::sm90::fwd_elastic_kernel
            : set == HopperVariant::varlen        ? cuda::sm90::fwd_varlen_kernel
            : set == HopperVariant::softcap_alibi ? cuda::sm90::fwd_softcap_alibi_kernel
                                                  : cuda::sm90::fwd_masked_kernel;
        const auto kernel = find(p.dtype, launch);
        auto start = launcher_of(kernel);
        TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
        cuda::sm90::FwdOptionalParams fixed{};
        fixed.block = fwd_block(plan, launch);
        fixed.extra = extra_block(p);
        fixed.features = features_of(p);
        *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
          cuda::sm90::FwdOptionalParams params = fixed;
          if (!inputs.encode_to(a, &params)) return cudaErrorInvalidValue;
          params.push = fwd_push(plan, launch, a);
          return start(&params, stream);
        };
        return Status();
      }
      const auto kernel = cuda::sm90::fwd_kernel(p.dtype, launch);
      auto start = launcher_of(kernel);
      TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
      const FwdBlock block = fwd_block(plan, launch);
      *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
        cuda::sm90::FwdParams params;
        if (!inputs.encode_to(a, &params)) return cudaErrorInvalidValue;
        params.block = block;
        params.push = fwd_push(plan, launch, a);
        return launch.programmatic_launch ? launch_programmatic(kernel, launch, &params, stream)
                                          : start(&params, stream);
      };
      return Status();
    }
    case Stem::bwd_dkv_dq: {
      if (p.bias) {
        const bool postprocesses = p.wants(TANDEM_GRAD_Q) && !plan.find(Stem::bwd_dq_cast);
        const auto kernel = cuda::sm90::bwd_dkv_dq_bias_kernel(
            p.dtype, launch.hopper,
            postprocesses ? cuda::sm90::BiasForm::postprocess : cuda::sm90::BiasForm::whole);
        auto start = launcher_of(kernel);
        TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
        const BwdDkvDqBlock block = bwd_dkv_dq_block(plan, launch);
        cuda::sm90::BwdBias fixed{};
        fixed.d_bias_strides = p.d_bias;
        fixed.group = int(p.heads_q / p.bias.heads);
        fixed.shared = p.bias.batch == 1 ? int(p.batch) : 1;
        fixed.d_bias_f32 = p.d_bias_dtype == TANDEM_F32;
        fixed.passes = 1;
        const unsigned cluster = reduces_dbias_in_clusters(p) ? unsigned(p.batch) : 1;
        unsigned groups = launch.groups_x;
        fixed.whole = int(launch.total / uint32_t(fixed.shared)), fixed.parts = 1;
        const auto two_cta_kernel = cuda::sm90::bwd_dkv_dq_bias_kernel(
            p.dtype, launch.hopper, cuda::sm90::BiasForm::passes);
        if (cluster > 1 && launch.groups_y == 1) {
          BwdClusterPlan planned{};
          TANDEM_TRY(schedule_clusters(plan, launch, with, &planned));
          fixed.schedule = planned.schedule;
          fixed.whole = int(planned.split.whole), fixed.parts = planned.split.parts;
        }
        // There are as many persistent clusters as the device runs at a time. In a deterministic
        // order a cluster waits for those that were started before it, so each has one tile.
        const BwdClusterSchedule& schedule = fixed.schedule;
        const bool on = !postprocesses && !p.deterministic && 0 < schedule.slots &&
                        schedule.slots < schedule.items;
        if (schedule.items > 0) groups = cluster * unsigned(on ? schedule.slots : schedule.items);
        const auto two_cta_clusters = unsigned(schedule.two_cta_clusters);
        *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
          cuda::sm90::BwdDkvDqBiasParams params;
          if (!inputs.encode_all_to(a, &params) || !inputs.encode_bias(a, &params.bias.map))
            return cudaErrorInvalidValue;
          const CUtensorMap map = params.bias.map;
          params.push = bwd_dkv_dq_push(plan, launch, a);
          set_dq_params(plan, a, &params);
          params.bias = fixed;
          params.bias.map = map;
          params.bias.d_bias = a.d_bias;
          params.bias.parts_at = a.partials, params.bias.counts = a.partial_flags;
          params.block = block;
          // A single workgroup is launched as a cluster, too. In any other launch cluster_sync() is
          // a barrier of the workgroup, at which its two kinds of warps wait by two instructions,
          // and synccheck of compute-sanitizer reports that as an error.
          if (on)
            params.bias.counter = a.partial_flags + 8 * uint64_t(bwd_partial_slots(launch.total));
          const cudaError_t error =
              launch_clusters(kernel, launch, &params, stream, groups, cluster);
          if (error != cudaSuccess || two_cta_clusters == 0) return error;
          params.bias.passes = int(cluster) / 2;
          params.bias.sums_at = a.pass_sums;
          return launch_clusters(two_cta_kernel, launch, &params, stream, 2 * two_cta_clusters, 2,
                                 true);
        };
        return Status();
      }
      if (p.normalizer == Normalizer::entmax) {
        const auto kernel =
            cuda::sm90::bwd_dkv_dq_entmax_kernel(p.dtype, launch.hopper, p.alpha == 1.5f);
        auto start = launcher_of(kernel);
        TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
        cuda::sm90::BwdDkvDqEntmaxParams fixed{};
        fixed.block = bwd_dkv_dq_block(plan, launch);
        fixed.extra = extra_block(p);
        fixed.features = features_of(p);
        fixed.support_words = int(support_words(p.seq_kv));
        *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
          cuda::sm90::BwdDkvDqEntmaxParams params = fixed;
          if (!inputs.encode_all_to(a, &params)) return cudaErrorInvalidValue;
          params.push = bwd_dkv_dq_push(plan, launch, a);
          set_dq_params(plan, a, &params);
          params.support = a.support;
          return start(&params, stream);
        };
        return Status();
      }
      if (set != HopperVariant::plain) {
        const auto find = set == HopperVariant::varlen ? cuda::sm90::bwd_dkv_dq_varlen_kernel
                          : set == HopperVariant::softcap_alibi
                              ? cuda::sm90::bwd_dkv_dq_softcap_alibi_kernel
                              : cuda::sm90::bwd_dkv_dq_masked_kernel;
        const auto kernel = find(p.dtype, launch.hopper);
        auto start = launcher_of(kernel);
        TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
        cuda::sm90::BwdDkvDqOptionalParams fixed{};
        fixed.block = bwd_dkv_dq_block(plan, launch);
        fixed.extra = extra_block(p);
        fixed.features = features_of(p);
        if (p.lengths_q == Lengths::packed)
          fixed.packed_tiles = int(bwd_packed_tiles(kBwdShapes[launch.hopper], p.total_q, p.batch));
        *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
          cuda::sm90::BwdDkvDqOptionalParams params = fixed;
          if (!inputs.encode_all_to(a, &params)) return cudaErrorInvalidValue;
          params.push = bwd_dkv_dq_push(plan, launch, a);
          set_dq_params(plan, a, &params);
          const BwdDkvPush from = bwd_dkv_push(plan, launch, a);
          std::copy_n(from.extra, kExtraAddresses, params.extra_at);
          params.drop_offset = from.drop_offset;
          if (plan.problem.wants(TANDEM_GRAD_SLOPE)) params.slope_parts = a.slope_rows;
          return start(&params, stream);
        };
        return Status();
      }
      const auto kernel =
          cuda::sm90::bwd_dkv_dq_kernel(p.dtype, launch.hopper, p.wants(TANDEM_GRAD_Q),
                                        p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V), launch.persistent);
      auto start = launcher_of(kernel);
      TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
      const BwdDkvDqBlock block = bwd_dkv_dq_block(plan, launch);
      *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
        cuda::sm90::BwdDkvDqParams params;
        if (!inputs.encode_all_to(a, &params)) return cudaErrorInvalidValue;
        params.block = block;
        params.push = bwd_dkv_dq_push(plan, launch, a);
        set_dq_params(plan, a, &params);
        return start(&params, stream);
      };
      return Status();
    }
    case Stem::bwd_dkv:
    case Stem::bwd_dq: {  // of a problem with both, bwd_dkv, which comes first
      const Launch *dkv = plan.find(Stem::bwd_dkv), *dq = plan.find(Stem::bwd_dq);
      const bool keys = launch.stem == Stem::bwd_dkv, rows = !keys || (dq && dq->joins);
      int row = launch.hopper;
      if (!keys)
        while (row < kBwdShapeCount && kBwdShapes[row].d != kDqShapes[launch.hopper].d) ++row;
      const auto kernel = cuda::sm90::bwd_dkv_kernel(p.dtype, row);
      if (!kernel) return no_kernel(launch);
      cuda::sm90::BwdDkvWithDqParams fixed{};
      if (keys) fixed.block = bwd_dkv_block(plan, launch);
      if (rows) fixed.dq.block = bwd_dq_block(plan, *dq);
      const Launch* head = plan.find(Stem::bwd_head);  // joined to the first of them
      if (!head || !head->joins || (!keys && dkv)) head = nullptr;
      if (head) fixed.head.block = bwd_head_block(plan, *head);
      if (head) fixed.head.spec = bwd_head_spec(plan, *head);
      const bool both = keys && rows;
      const uint32_t total = launch.total + (both ? dq->total : 0) + (head ? head->total : 0);
      auto start = launcher_of(kernel);
      TANDEM_TRY(start.prepare(
          kernel, with, total > launch.total ? dim3(total) : dim3(launch.groups_x, launch.groups_y),
          launch.invocations(),
          both ? std::max(launch.shared_bytes, dq->shared_bytes) : launch.shared_bytes));
      *recorder = [=, &plan](cudaStream_t stream, const Addresses& a) {
        cuda::sm90::BwdDkvWithDqParams params = fixed;
        if (!inputs.encode_all_to(a, &params)) return cudaErrorInvalidValue;
        if (keys) {
          params.push = bwd_dkv_push(plan, *dkv, a);
          if (!plan.problem.wants(TANDEM_GRAD_K)) params.push.d_k = 0;
          if (!plan.problem.wants(TANDEM_GRAD_V)) params.push.d_v = 0;
        }
        if (rows) params.dq.push = bwd_dq_push(plan, *dq, a);
        if (head) params.head.push = bwd_head_push(plan, *head, a);
        return start(&params, stream);
      };
      return Status();
    }
    case Stem::bwd_row: {
      const auto kernel = cuda::sm90::bwd_row_kernel(p.dtype, launch.hopper, p.alpha == 1.5f);
      auto start = launcher_of(kernel);
      TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
      cuda::sm90::BwdRowParams fixed{};
      fixed.block = bwd_row_block(plan, launch);
      fixed.extra = extra_block(p);
      fixed.features = features_of(p);
      fixed.support_words = int(support_words(p.seq_kv));
      *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
        cuda::sm90::BwdRowParams params = fixed;
        if (!inputs.encode_all_to(a, &params)) return cudaErrorInvalidValue;
        params.push = bwd_row_push(plan, launch, a);
        params.support = a.support;
        params.zeroed = a.d_q_accum, params.zeroed_end = a.d_q_accum + plan.zeroed_size;
        return start(&params, stream);
      };
      return Status();
    }
    case Stem::bwd_row_dq: {
      const auto kernel = cuda::sm90::bwd_row_dq_kernel(p.dtype, launch.hopper);
      auto start = launcher_of(kernel);
      TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
      cuda::sm90::BwdRowDqParams fixed{};
      fixed.block = bwd_row_dq_block(plan, launch);
      fixed.extra = extra_block(p);
      fixed.features = features_of(p);
      fixed.spec = bwd_row_dq_spec(plan, launch);
      const Launch* sum = plan.find_sum(TANDEM_GRAD_DIST_BIAS);
      if (sum && sum->joins) fixed.zeroed_count = int(sum_counts_bytes(p.heads_kv) / 4);
      *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
        cuda::sm90::BwdRowDqParams params = fixed;
        if (!inputs.encode_all_to(a, &params)) return cudaErrorInvalidValue;
        params.push = bwd_row_dq_push(plan, launch, a);
        params.zeroed = a.sum_counts;
        return start(&params, stream);
      };
      return Status();
    }
    case Stem::bwd_dkv_ddist: {
      const auto kernel = cuda::sm90::bwd_dkv_ddist_kernel(p.dtype, launch.hopper);
      auto start = launcher_of(kernel);
      TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
      cuda::sm90::BwdDkvDdistParams fixed{};
      fixed.block = bwd_dkv_ddist_block(plan, launch);
      fixed.extra = extra_block(p);
      fixed.features = features_of(p);
      const Launch *sum = plan.find_sum(TANDEM_GRAD_DIST_BIAS), *head = plan.find(Stem::bwd_head);
      const bool sums = sum && sum->joins, heads = head && head->joins;
      *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
        cuda::sm90::BwdDkvDdistParams params = fixed;
        if (!inputs.encode_all_to(a, &params)) return cudaErrorInvalidValue;
        params.push = bwd_dkv_ddist_push(plan, launch, a);
        if (sums) params.sums.d_dist = a.d_dist_bias, params.sums.counts = a.sum_counts;
        if (heads) params.sums.tau_rows = a.tau_rows, params.sums.d_tau = a.d_tau;
        return start(&params, stream);
      };
      return Status();
    }
    case Stem::bwd_dq_cast: {
      const auto kernel = cuda::sm90::bwd_dq_cast_kernel(p.dtype);
      auto start = launcher_of(kernel);
      TANDEM_TRY(prepare_launch(kernel, launch, with, &start));
      cuda::sm90::BwdDqCastParams fixed{};
      fixed.block = bwd_dq_cast_block(plan, launch);
      const bool packed = p.lengths_q == Lengths::packed;
      fixed.entries = p.bias && p.bias.batch == 1 ? int(p.batch) : 1;
      if (packed) {
        const BwdShape& s = kBwdShapes[launch.hopper];
        fixed.total_q = int(p.total_q);
        fixed.tile_blocks = s.br / 64;
        fixed.packed_blocks = int(bwd_packed_tiles(s, p.total_q, p.batch)) * fixed.tile_blocks;
      }
      fixed.done = cuda::sm90::kWholeTile * plan.find(Stem::bwd_dkv_dq)->tiles;
      fixed.group = int(p.group());
      const Launch* head = plan.find(Stem::bwd_head);
      if (!head || !head->joins) head = nullptr;
      if (head) {
        fixed.head.block = bwd_head_block(plan, *head);
        fixed.head.spec = bwd_head_spec(plan, *head);
        start.set_grid(dim3(launch.total + head->total));
      }
      const unsigned groups = head ? launch.total + head->total : launch.groups_x;
      *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
        cuda::sm90::BwdDqCastParams params = fixed;
        params.push = bwd_dq_cast_push(plan, launch, a);
        if (head) params.head.push = bwd_head_push(plan, *head, a);
        if (packed) params.lengths_q = a.lengths_q;
        if (!launch.programmatic_launch) return start(&params, stream);
        params.counts = a.d_q_counts;
        return launch_clusters(kernel, launch, &params, stream, groups, 1, true);
      };
      return Status();
    }
    default:
      return fail(TANDEM_ERROR_BACKEND, "the path sm90 has no kernel %s", stem_name(launch.stem));
  }
}

}  // namespace tandem
