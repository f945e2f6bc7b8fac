// SPDX-License-Identifier: MIT OR Apache-2.0
// What this build was made without: openers of absent backends, which say so, and rows of the
// registry.
#include <cstring>

#include "border.h"
#include "cuda/backend.h"
#include "device.h"
#include "tandem/tandem_cuda.h"

#ifndef TANDEM_WITH_SM90  // defined for this file alone
#define TANDEM_WITH_SM90 0
#endif

#if !TANDEM_WITH_CUDA
extern "C" tandem_status tandem_cuda_device_create(int, const tandem_device_options*,
                                                   tandem_device**) {
  return tandem::report(TANDEM_ERROR_NO_BACKEND, "this build was made without CUDA");
}
extern "C" tandem_status tandem_cuda_device_create_with(const tandem_cuda_device_desc*,
                                                        const tandem_device_options*,
                                                        tandem_device**) {
  return tandem::report(TANDEM_ERROR_NO_BACKEND, "this build was made without CUDA");
}
extern "C" tandem_status tandem_cuda_execute_timed(const tandem_plan*, struct CUstream_st*,
                                                   const tandem_args*, struct CUevent_st* const*,
                                                   uint32_t) {
  return tandem::report(TANDEM_ERROR_NO_BACKEND, "this build was made without CUDA");
}
#endif

#if !TANDEM_WITH_VULKAN
// tandem_vulkan.h includes Vulkan's own header, which a build without Vulkan need not have. On the
// C border all these pointers are alike.
extern "C" TANDEM_API tandem_status tandem_vk_device_create(const void*,
                                                            const tandem_device_options*,
                                                            tandem_device**) {
  return tandem::report(TANDEM_ERROR_NO_BACKEND, "this build was made without Vulkan");
}
extern "C" TANDEM_API tandem_status tandem_vk_required_extensions(void*, void*, void*, uint32_t*,
                                                                  const char* const**) {
  return tandem::report(TANDEM_ERROR_NO_BACKEND, "this build was made without Vulkan");
}
extern "C" TANDEM_API tandem_status tandem_vk_required_features(void*, void*, void*, void*, void*) {
  return tandem::report(TANDEM_ERROR_NO_BACKEND, "this build was made without Vulkan");
}
extern "C" TANDEM_API tandem_status tandem_vk_execute_timed(const tandem_plan*, void*,
                                                            const tandem_args*, uint64_t,
                                                            uint32_t) {
  return tandem::report(TANDEM_ERROR_NO_BACKEND, "this build was made without Vulkan");
}
#endif

namespace tandem {

bool kernel_built(const KernelRow& row) {
  if (row.backend != Backend::cuda || !backend_built(row.backend))
    return backend_built(row.backend);
  bool has_sm90 = TANDEM_WITH_SM90;
#if TANDEM_CUDA_PLUGIN
  const CudaBackend* cuda = nullptr;
  if (!find_cuda_backend(&cuda).ok()) return false;
  has_sm90 = cuda->has_sm90();
#endif
  return has_sm90 || std::strcmp(row.path, "sm90") != 0;
}

}  // namespace tandem
