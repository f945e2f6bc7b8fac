// SPDX-License-Identifier: MIT OR Apache-2.0
// Changes of a module that need its entry point: what becomes of f32 numbers below 2^-126, and its
// name.
#ifndef TANDEM_SRC_VULKAN_ENTRY_H
#define TANDEM_SRC_VULKAN_ENTRY_H
#include <cstdint>

#include "base/host_memory.h"

namespace tandem {

// Adds to a module the execution mode DenormPreserve of 32 bits. Without it a driver may take
// subnormal numbers for 0, and NVIDIA's does. Only where a device lists the mode as one that may be
// set apart from those of other widths. *words: a valid module with one entry point.
void preserve_denormals(Vec<uint32_t>* words);

// The name of an entry point in modules of pipelines whose dispatches begin at a base. NVIDIA's
// driver (580.159.04, H200) keeps compiled modules by their words, without regard to
// VK_PIPELINE_CREATE_DISPATCH_BASE: a pipeline that was made with the flag behind one without it
// counted its workgroups from 0. So the module has another name, and other words.
constexpr const char* kSliceEntry = "slice";
// Renames the one entry point of a module from "main".
void name_slice_entry(Vec<uint32_t>* words);

}  // namespace tandem
#endif
