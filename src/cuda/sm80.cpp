// SPDX-License-Identifier: MIT OR Apache-2.0
#include "cuda/sm80.h"

#include "../../cuda/sm80/kernels.h"

namespace tandem {
namespace {

template <typename P>
Status prepare(cuda::Kernel<P> kernel, const Launch& launch, const SharedMemory& memory) {
  if (!kernel)
    return fail(TANDEM_ERROR_BACKEND, "no CUDA kernel %s for tile %s", stem_name(launch.stem),
                launch.tile.name ? launch.tile.name : "-");
  return prepare_kernel(reinterpret_cast<const void*>(kernel), launch.invocations(),
                        launch.shared_bytes, memory);
}

template <typename P>
cudaError_t launch_kernel(cuda::Kernel<P> kernel, const Launch& launch, P* params,
                          cudaStream_t stream) {
  void* arguments[] = {params};
  return cudaLaunchKernel(kernel, dim3(launch.groups_x, launch.groups_y),
                          dim3(uint32_t(launch.invocations())), arguments, launch.shared_bytes,
                          stream);
}

}  // namespace

bool sm80_loads() {
  const void* kernel = cuda::sm80::any_kernel();
  cudaFuncAttributes attributes;
  const bool loads = kernel && cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess;
  if (!loads) cudaGetLastError();
  return loads;
}

Status sm80_recorder(const Plan& plan, const Launch& launch, const SharedMemory& memory,
                     Recorder* recorder) {
  const tandem_dtype dtype = plan.problem.dtype;
  if (launch.stem == Stem::bwd_dkv_dq) {
    const auto kernel = cuda::sm80::bwd_dkv_dq_kernel(dtype, launch);
    TANDEM_TRY(prepare(kernel, launch, memory));
    const BwdDkvDqBlock block = bwd_dkv_dq_block(plan, launch);
    *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
      const BwdDkvPush from = bwd_dkv_push(plan, launch, a);
      cuda::sm80::BwdDkvDqParams params{
          block, bwd_dkv_dq_push(plan, launch, a), from.q, from.k, from.v, from.d_o, from.wide};
      const cudaError_t error =
          cudaMemsetAsync(reinterpret_cast<void*>(a.d_q_sums), 0, size_t(plan.zeroed_size), stream);
      if (error != cudaSuccess) return error;
      return launch_kernel(kernel, launch, &params, stream);
    };
    return Status();
  }
  const auto kernel = cuda::sm80::bwd_dq_cast_kernel(dtype);
  TANDEM_TRY(prepare(kernel, launch, memory));
  const BwdDqCastBlock block = bwd_dq_cast_block(plan, launch);
  *recorder = [=, &plan, &launch](cudaStream_t stream, const Addresses& a) {
    const bool wide = (bwd_dq_push(plan, launch, a).wide & 16u) != 0;
    cuda::sm80::BwdDqCastParams params{block, bwd_dq_cast_push(plan, launch, a), wide};
    return launch_kernel(kernel, launch, &params, stream);
  };
  return Status();
}

}  // namespace tandem
