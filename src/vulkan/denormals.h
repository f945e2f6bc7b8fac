// SPDX-License-Identifier: MIT OR Apache-2.0
// What becomes of f32 numbers below 2^-126 in a shader.
#ifndef TANDEM_SRC_VULKAN_DENORMALS_H
#define TANDEM_SRC_VULKAN_DENORMALS_H
#include <cstdint>

#include "base/host_memory.h"

namespace tandem {

// Adds to a module the execution mode DenormPreserve of 32 bits. Without it a driver may take
// subnormal numbers for 0, and NVIDIA's does. Only where a device lists the mode as one that may be
// set apart from those of other widths. *words: a valid module with one entry point.
void preserve_denormals(Vec<uint32_t>* words);

}  // namespace tandem
#endif
