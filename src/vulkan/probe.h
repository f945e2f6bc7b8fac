// SPDX-License-Identifier: MIT OR Apache-2.0
// What a device has to show, as no property of Vulkan tells it.
#ifndef TANDEM_SRC_VULKAN_PROBE_H
#define TANDEM_SRC_VULKAN_PROBE_H
#include "plan/caps.h"
#include "vk.h"

namespace tandem {

// MatrixShape::copies of the shapes of caps, by a shader for each (shaders/coopmat/
// matrix_places.comp) on desc.queue, which it waits for. Whatever fails leaves them false: kernels
// then pass operands through shared memory, which is right on any device.
void probe_matrix_copies(PFN_vkGetInstanceProcAddr gipa, const VkTable& vk,
                         const tandem_vk_device_desc& desc, Caps* caps);

}  // namespace tandem
#endif
