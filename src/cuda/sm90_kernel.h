// SPDX-License-Identifier: MIT OR Apache-2.0
// What the kernels of cuda.sm90 have in common on the host: how the recorder of a launch is made.
// Each of their rows in the registry has one in the tables of sm90_fwd.cpp and sm90_bwd.cpp, which
// names a class derived from Sm90Kernel. The class says what is the kernel's own: its selector, its
// grid, and the parameters beside block, push, optional inputs and tensor maps.
#ifndef TANDEM_SRC_CUDA_SM90_KERNEL_H
#define TANDEM_SRC_CUDA_SM90_KERNEL_H
#include <type_traits>

#include "kernels/params.h"
#include "plan/sm90/tensor_maps.h"
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

// A row of a table: how a kernel of the registry is recorded.
struct Sm90Row {
  KernelId kernel;
  Status (*record)(const Sm90Recording& from, Recorder* recorder);
};
struct Sm90Rows {
  const Sm90Row *first, *last;
  const Sm90Row* begin() const { return first; }
  const Sm90Row* end() const { return last; }
};
Sm90Rows sm90_fwd_rows();
Sm90Rows sm90_bwd_rows();

// The block and the push of each stem, for parameters of any kernel.
#define TANDEM_STEM(Name, name)                                                    \
  inline void set_block(const Plan& plan, const Launch& launch, Name##Block* to) { \
    *to = name##_block(plan, launch);                                              \
  }                                                                                \
  inline void set_push(const Plan& plan, const Launch& launch, const Addresses& a, \
                       Name##Push* to) {                                           \
    *to = name##_push(plan, launch, a);                                            \
  }
#include "kernels/stems.inc"

template <typename Params, typename = void>
struct TakesOptionalInputs : std::false_type {};
template <typename Params>
struct TakesOptionalInputs<Params, std::void_t<decltype(Params::extra)>> : std::true_type {};

// A kernel of a launch. A recorder holds it. Derived classes replace what differs, and have
//   cuda::Kernel<Params> kernel() const;   // nullptr: not built
template <typename ParamsOfKernel>
class Sm90Kernel {
 public:
  using Params = ParamsOfKernel;
  Sm90Kernel(const Plan& of, const Launch& its)
      : plan(of), launch(its), choice(its.of<Sm90Launch>()), problem(of.problem) {}
  // Decides, once, what depends on the device.
  Status prepare(const Launching&) { return Status(); }
  Sm90Grid grid() const { return sm90_grid(launch); }
  // Sets the parameters that are constant for a plan. They are zeros before.
  void set_fixed(Params* params) const {
    set_block(plan, launch, &params->block);
    if constexpr (TakesOptionalInputs<Params>::value) {
      params->extra = extra_block(problem);
      params->features = features_of(problem);
    }
  }
  // Sets those of an execute, but not the addresses of tensor maps.
  void set_addresses(const Addresses& a, Params* params) const {
    set_push(plan, launch, a, &params->push);
  }
  // Launches what follows the kernel within its step of the plan.
  cudaError_t launch_rest(Params*, cudaStream_t) const { return cudaSuccess; }

 protected:
  const Plan& plan;
  const Launch& launch;
  const Sm90Launch& choice;
  const Problem& problem;
};

// The recorder of a kernel. Own: a class as described.
template <typename Own>
Status record_sm90(const Sm90Recording& from, Recorder* recorder) {
  using Params = typename Own::Params;
  Own own(from.plan, from.launch);
  const cuda::Kernel<Params> kernel = own.kernel();
  if (!kernel) return no_kernel(from.launch);
  TANDEM_TRY(own.prepare(from.with));
  Params fixed{};
  own.set_fixed(&fixed);
  TANDEM_TRY(encode_tensor_maps(from.tensor_maps, from.plan.problem, from.launch, &fixed));
  const Sm90Grid grid = own.grid();
  Launcher<Params> start;
  TANDEM_TRY(start.prepare(kernel, from.with, grid.groups, grid.threads, grid.shared_bytes));
  const auto replace = from.tensor_maps.replace;
  const auto bias = bias_address(from.plan, from.launch);
  const bool has_attributes = grid.has_attributes();
  *recorder = [=](cudaStream_t stream, const Addresses& a) {
    Params params = fixed;
    if (!replace_addresses(replace, bias, a, &params)) return cudaErrorInvalidValue;
    own.set_addresses(a, &params);
    const cudaError_t error =
        has_attributes
            ? launch_with_attributes(reinterpret_cast<const void*>(kernel), grid, &params, stream)
            : start(&params, stream);
    return error != cudaSuccess ? error : own.launch_rest(&params, stream);
  };
  return Status();
}

}  // namespace tandem
#endif
