// SPDX-License-Identifier: MIT OR Apache-2.0
// Launches of the kernels for Hopper: the look-up of a kernel, and how it is launched.
#include "sm90.h"

#include "sm90_kernel.h"

namespace tandem {
namespace {

struct LaunchConfig {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};

  explicit LaunchConfig(const Sm90Grid& grid) {
    config.gridDim = grid.groups;
    config.blockDim = dim3(unsigned(grid.threads));
    config.dynamicSmemBytes = grid.shared_bytes;
    config.attrs = attributes;
    if (grid.cluster > 0)
      add(cudaLaunchAttributeClusterDimension)->clusterDim = {grid.cluster, 1, 1};
    if (grid.programmatic)
      add(cudaLaunchAttributeProgrammaticStreamSerialization)
          ->programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchAttributeValue* add(cudaLaunchAttributeID id) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute = {};
    attribute.id = id;
    return &attribute.val;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

}  // namespace

Sm90Grid sm90_grid(const Launch& launch) {
  return {dim3(launch.groups_x, launch.groups_y), launch.invocations(), launch.shared_bytes, 0,
          launch.of<Sm90Launch>().programmatic};
}

cudaError_t launch_with_attributes(const void* kernel, const Sm90Grid& grid, void* params,
                                   cudaStream_t stream) {
  LaunchConfig with(grid);
  with.config.stream = stream;
  void* arguments[] = {params};
  return cudaLaunchKernelExC(&with.config, kernel, arguments);
}

int max_active_clusters(const void* kernel, const Sm90Grid& grid) {
  const LaunchConfig with(grid);
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, kernel, &with.config) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

const Launch* joined_launch(const Plan& plan, Stem stem) {
  const Launch* launch = plan.find(stem);
  return launch && launch->joins() ? launch : nullptr;
}

bool has_sm90_code() { return true; }

bool sm90_loads() {
  cudaFuncAttributes attributes;
  const auto kernel = cuda::sm90::bwd_dq_cast_only_kernel(TANDEM_F16, 0);
  const bool loads =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)) == cudaSuccess;
  if (!loads) cudaGetLastError();
  return loads;
}

Status sm90_recorder(const Plan& plan, const Launch& launch, const Launching& with,
                     Recorder* recorder) {
  TensorMapFunctions tensor_maps;
  TANDEM_TRY(tensor_maps.load());
  const Sm90Recording from{plan, launch, with, tensor_maps};
  switch (KernelId(launch.kernel)) {
#define TANDEM_KERNEL(stem, backend, path, variant, dtypes, tiles, needs, inputs, traits, folder, \
                      source, params)                                                             \
  TANDEM_CUDA_ROW(stem, backend, path, variant, folder, source, params)
#define TANDEM_FROM_sm90(id, source, params, row) \
  case KernelId::id:                              \
    return record<cuda::sm90::params>(cuda::sm90::row##_kernel, from, recorder);
#include "kernels/kernels.inc"
    default:
      break;
  }
  return fail(TANDEM_ERROR_BACKEND, "the path sm90 has no kernel %s",
              short_kernel_name(launch.row()).c_str());
}

}  // namespace tandem
