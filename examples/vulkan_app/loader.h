// SPDX-License-Identifier: MIT OR Apache-2.0
#ifndef TANDEM_EXAMPLES_VULKAN_APP_LOADER_H
#define TANDEM_EXAMPLES_VULKAN_APP_LOADER_H
#include "tandem/tandem_vulkan.h"

// Opens the Vulkan loader, which stays open.
PFN_vkGetInstanceProcAddr open_loader();

#endif
