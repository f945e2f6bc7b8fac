// SPDX-License-Identifier: MIT OR Apache-2.0
// What the kernels of cuda.sm90 have in common on the host: how the recorder of a launch is made.
// The type of a row's parameters names a class derived from Sm90Kernel (sm90_fwd.cpp,
// sm90_bwd.cpp). The class says what is the kernel's own: its grid, and the parameters beside
// block, push, optional inputs and tensor maps.
#ifndef TANDEM_SRC_CUDA_SM90_KERNEL_H
#define TANDEM_SRC_CUDA_SM90_KERNEL_H
#include <type_traits>

#include "../../cuda/sm90/params.h"
#include "kernels/params.h"
#include "look_ups.h"
#include "plan/sm90/tensor_maps.h"
#include "problem/mask_map.h"
#include "sm90_tensor_maps.h"

namespace tandem {

// How the workgroups of a kernel are launched.
struct Sm90Grid {
  dim3 groups;
  int threads;
  size_t shared_bytes;
  unsigned cluster = 0;       // workgroups of a cluster; 0: launched without clusters
  bool programmatic = false;  // it may start once all workgroups of the kernel before it allow it
  bool has_attributes() const { return cluster > 0 || programmatic; }
};
Sm90Grid sm90_grid(const Launch& launch);
// Launches a kernel with what Launcher does not know: clusters, programmatic dependent launch.
cudaError_t launch_with_attributes(const void* kernel, const Sm90Grid& grid, void* params,
                                   cudaStream_t stream);
// How many clusters of a kernel the device runs at a time; 0: unknown.
int max_active_clusters(const void* kernel, const Sm90Grid& grid);

// Launch of a stem in a plan whose work an earlier launch does; nullptr: there is none.
const Launch* joined_launch(const Plan& plan, Stem stem);

// What a recorder is made from. plan and launch must outlive the recorder.
struct Sm90Recording {
  const Plan& plan;
  const Launch& launch;
  const Launching& with;
  const TensorMapFunctions& tensor_maps;
};

// The look-ups of cuda/sm90, by the rows of kernels.inc.
namespace cuda {
namespace sm90 {
#define TANDEM_KERNEL(stem, backend, path, variant, dtypes, tiles, needs, inputs, traits, folder, \
                      source, params)                                                             \
  TANDEM_CUDA_ROW(stem, backend, path, variant, folder, source, params)
#define TANDEM_FROM_simt(id, source, params, row)
#define TANDEM_FROM_sm80(id, source, params, row)
#define TANDEM_FROM_sm90(id, source, params, row) \
  Kernel<params> row##_kernel(tandem_dtype dtype, int tile);
#include "kernels/kernels.inc"
#undef TANDEM_FROM_sm90
template <typename P>
using LookUp = Kernel<P> (*)(tandem_dtype, int tile);
}  // namespace sm90
}  // namespace cuda

// Makes the recorder of the kernel that a look-up finds: one for each type of parameters
// (sm90_fwd.cpp, sm90_bwd.cpp).
template <typename P>
Status record(cuda::sm90::LookUp<P> find, const Sm90Recording& from, Recorder* recorder);

template <typename Params, typename = void>
struct TakesOptionalInputs : std::false_type {};
template <typename Params>
struct TakesOptionalInputs<Params, std::void_t<decltype(Params::extra)>> : std::true_type {};

// A kernel of a launch. A recorder holds it. Derived classes replace what differs.
template <typename ParamsOfKernel>
class Sm90Kernel {
 public:
  using Params = ParamsOfKernel;
  Sm90Kernel(const Plan& of, const Launch& its)
      : plan(of), launch(its), choice(its.of<Sm90Launch>()), problem(of.problem) {}
  // Decides, once, what depends on the device.
  Status prepare(cuda::Kernel<Params>, const Launching&) { return Status(); }
  Sm90Grid grid() const { return sm90_grid(launch); }
  // Sets the parameters that are constant for a plan. They are zeros before.
  void set_fixed(Params* params) const {
    set_block(plan, launch, &params->block);
    if constexpr (TakesOptionalInputs<Params>::value) {
      params->extra = extra_block(problem);
      params->features = features_of(problem);
      if (packs_keep_) {
        params->features.KEEP = TANDEM_KEEP_BITS;
        params->extra.keep = packed_keep_strides(problem);
        if (joins_spans()) {
          const PackedKeep copy = packed_keep(problem);
          if (!problem.keep) params->features.AT_KEEP = params->features.AT_SPANS;
          params->features.SPANS = 0;
          params->extra.keep_group = int(problem.heads_q / copy.heads);
          params->extra.keep_entries = 1;
        }
      }
    }
  }
  // Sets those of an execute, but not the addresses of tensor maps.
  void set_addresses(const Addresses& a, Params* params) const {
    set_push(plan, launch, a, &params->push);
  }
  // Those that the kernel reads: keep's is that of its bits where pack_keep has made them.
  Addresses addresses(const Addresses& a) const {
    Addresses own = a;
    if (!packs_keep_ || launch.stem == Stem::pack_keep) return own;
    own.keep = a.packed_keep;
    if (joins_spans()) own.spans = a.packed_keep;
    return own;
  }
  // Cuts a launch to the workgroups of a slice; false: the kernel is not cut (plan/slices.cpp).
  bool cut(const LaunchOn& on, Params* params, Sm90Grid* grid) const {
    if constexpr (HasFirstGroup<Params>::value) {
      params->first_group = on.first_group;
      grid->groups = dim3(on.groups);
      return true;
    }
    return false;
  }
  // Launches what follows the kernel within its step of the plan.
  cudaError_t launch_rest(Params*, cudaStream_t) const { return cudaSuccess; }

 protected:
  const Plan& plan;
  const Launch& launch;
  const Sm90Launch& choice;
  const Problem& problem;

 private:
  // Whether the bits are those of spans, too.
  bool joins_spans() const { return problem.bias && problem.spans; }
  const bool packs_keep_ = plan.scratch[Scratch::packed_keep].present;
};

// The recorder of a kernel. Own: a class as described.
template <typename Own>
Status record_as(cuda::sm90::LookUp<typename Own::Params> find, const Sm90Recording& from,
                 Recorder* recorder) {
  using Params = typename Own::Params;
  const Launch& launch = from.launch;
  const int tile = launch.row().tiles == TileTable::none ? 0 : launch.of<Sm90Launch>().row;
  const cuda::Kernel<Params> kernel = find(from.plan.problem.dtype, tile);
  if (!kernel) return no_kernel(launch);
  Own own(from.plan, launch);
  TANDEM_TRY(own.prepare(kernel, from.with));
  Params fixed{};
  own.set_fixed(&fixed);
  TANDEM_TRY(encode_tensor_maps(from.tensor_maps, from.plan.problem, launch, &fixed));
  const Sm90Grid grid = own.grid();
  Launcher<Params> start;
  TANDEM_TRY(start.prepare(kernel, from.with, grid.groups, grid.threads, grid.shared_bytes));
  const auto replace = from.tensor_maps.replace;
  const auto bias = bias_address(from.plan, launch);
  const bool has_attributes = grid.has_attributes();
  *recorder = [=](const LaunchOn& on, const Addresses& a) {
    Params params = fixed;
    if (!replace_addresses(replace, bias, a, &params)) return cudaErrorInvalidValue;
    own.set_addresses(own.addresses(a), &params);
    const auto launch_on = [&](const Sm90Grid& with) {
      return launch_with_attributes(reinterpret_cast<const void*>(kernel), with, &params, on);
    };
    if (on.groups > 0) {
      Sm90Grid part = grid;
      return own.cut(on, &params, &part) ? launch_on(part) : cudaErrorInvalidValue;
    }
    const cudaError_t error = has_attributes ? launch_on(grid) : start(&params, on);
    return error != cudaSuccess ? error : own.launch_rest(&params, on);
  };
  return Status();
}

// record() of the kernels with parameters Params, by the class Own.
#define TANDEM_RECORDS(Params, ...)                                                               \
  template <>                                                                                     \
  Status record(cuda::sm90::LookUp<Params> find, const Sm90Recording& from, Recorder* recorder) { \
    return record_as<__VA_ARGS__>(find, from, recorder);                                          \
  }

}  // namespace tandem
#endif
