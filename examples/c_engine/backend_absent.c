/* SPDX-License-Identifier: MIT OR Apache-2.0
 * For what the build was made without. */
#include "backend.h"

#if !WITH_VULKAN
backend* backend_open_vulkan(int index, size_t arena_bytes) {
  return engine_fail("vulkan:%d: this build has no Vulkan (arena of %zu)", index, arena_bytes),
         NULL;
}
#endif
#if !WITH_CUDA
backend* backend_open_cuda(int index, size_t arena_bytes) {
  return engine_fail("cuda:%d: this build has no CUDA (arena of %zu)", index, arena_bytes), NULL;
}
#endif
typedef int nothing_is_absent; /* a file may not be empty */
