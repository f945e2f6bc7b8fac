// SPDX-License-Identifier: MIT OR Apache-2.0
#include "runtime.h"

namespace tandem {
namespace {

tandem_status code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return TANDEM_ERROR_DEVICE_OUT_OF_MEMORY;
    // Sticky errors: the context is unusable, whichever kernel failed.
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
  if (shared > 48 * 1024)  // the default limit of a block
    // The most that is possible, as other plans of the same kernel may need more than this one.
    TANDEM_CUDA_TRY("cudaFuncSetAttribute",
                    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         int(with.most_a_block - attributes.sharedSizeBytes)));
  // As much of the SM's memory as the workgroups that its registers hold can share. The rest stays
  // first-level cache.
  int groups = 0;
  TANDEM_CUDA_TRY("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
                  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&groups, kernel, threads, shared));
  const size_t wanted = size_t(groups) * (shared + with.reserved_a_block);
  const size_t percent = (100 * wanted + with.shared_of_sm - 1) / with.shared_of_sm;
  TANDEM_CUDA_TRY("cudaFuncSetAttribute",
                  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       int(percent < 100 ? percent : 100)));
  return Status();
}

cudaError_t launch_programmatic(const void* kernel, dim3 grid, unsigned threads, size_t shared,
                                void** arguments, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

Status prepare_programmatic(const void* kernel, const void** waits) {
  cudaFuncAttributes attributes;
  TANDEM_CUDA_TRY("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, kernel));
  *waits = attributes.ptxVersion >= 90 ? kernel : nullptr;
  if (!*waits) return Status();
  // An SM that runs two kernels at a time divides its memory between L1 and shared memory in one
  // way for both.
  TANDEM_CUDA_TRY("cudaFuncSetAttribute",
                  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared));
  return Status();
}

}  // namespace tandem
