// SPDX-License-Identifier: MIT OR Apache-2.0
// The openers of backends that this build was made without: they exist and say so.
#include "border.h"
#include "tandem/tandem_cuda.h"

#if !TANDEM_WITH_CUDA
extern "C" tandem_status tandem_cuda_device_create(int, const tandem_device_options*,
                                                   tandem_device**) {
  return tandem::report(
      tandem::Status(TANDEM_ERROR_NO_BACKEND, "this build was made without CUDA"));
}
#endif

#if !TANDEM_WITH_VULKAN
// tandem_vulkan.h needs Vulkan's own header, which such a build need not have; on the C border all
// these pointers are alike.
extern "C" TANDEM_API tandem_status tandem_vk_device_create(const void*,
                                                            const tandem_device_options*,
                                                            tandem_device**) {
  return tandem::report(
      tandem::Status(TANDEM_ERROR_NO_BACKEND, "this build was made without Vulkan"));
}
extern "C" TANDEM_API tandem_status tandem_vk_required_extensions(void*, void*, void*, uint32_t*,
                                                                  const char* const**) {
  return tandem::report(
      tandem::Status(TANDEM_ERROR_NO_BACKEND, "this build was made without Vulkan"));
}
extern "C" TANDEM_API tandem_status tandem_vk_required_features(void*, void*, void*, void*, void*) {
  return tandem::report(
      tandem::Status(TANDEM_ERROR_NO_BACKEND, "this build was made without Vulkan"));
}
#endif
