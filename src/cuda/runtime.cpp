// SPDX-License-Identifier: MIT OR Apache-2.0
#include "cuda/runtime.h"

namespace tandem {
namespace {

tandem_status code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return TANDEM_ERROR_DEVICE_OUT_OF_MEMORY;
    // Sticky: the context is of no more use, whoever's kernel it was.
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorCudartUnloading:
      return TANDEM_ERROR_DEVICE_LOST;
    default:
      return TANDEM_ERROR_BACKEND;
  }
}

}  // namespace

Status failed(const char* call, cudaError_t error) {
  cudaGetLastError();
  return fail(code_of(error), "%s: %s (cudaError_t %d)", call, cudaGetErrorString(error),
              int(error));
}

Status prepare_kernel(const void* kernel, int threads, size_t shared, const Launching& with) {
  cudaFuncAttributes attributes;
  TANDEM_CUDA_TRY("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, kernel));
  if (shared == 0) return Status();
  if (shared > 48 * 1024)  // what a block gets without asking
    // All that there is: other plans of the same kernel may take more than this one, before or later.
    TANDEM_CUDA_TRY("cudaFuncSetAttribute",
                    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         int(with.most_a_block - attributes.sharedSizeBytes)));
  // As much of the multiprocessor's memory as the workgroups that its registers hold can share; the
  // rest stays first-level cache.
  int groups = 0;
  TANDEM_CUDA_TRY("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
                  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&groups, kernel, threads, shared));
  const size_t wanted = size_t(groups) * (shared + with.reserved_a_block);
  const size_t percent = (100 * wanted + with.a_multiprocessor - 1) / with.a_multiprocessor;
  TANDEM_CUDA_TRY("cudaFuncSetAttribute",
                  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       int(percent < 100 ? percent : 100)));
  return Status();
}

}  // namespace tandem
