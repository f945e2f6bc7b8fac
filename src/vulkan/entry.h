// SPDX-License-Identifier: MIT OR Apache-2.0
// Changes of a module that need its entry point: which f32 numbers compilers keep, and its name.
#ifndef TANDEM_SRC_VULKAN_ENTRY_H
#define TANDEM_SRC_VULKAN_ENTRY_H
#include <cstdint>

#include "base/host_memory.h"

namespace tandem {

// SPIR-V's execution modes that a driver's compiler has to keep numbers for, by their numbers.
enum class Preserve : uint32_t {
  // DenormPreserve. Without it a driver may take subnormal numbers for 0, and NVIDIA's does. Only
  // where a device lists the mode as one that may be set apart from those of other widths.
  kDenormals = 4459,
  // SignedZeroInfNanPreserve. Without it a compiler may assume that there are no infinities.
  kInfinities = 4461,
};
// Adds to a module the execution mode, for 32 bits, and its capability. *words: a valid module with
// one entry point.
void preserve(Vec<uint32_t>* words, Preserve what);

// The name of an entry point in modules of pipelines whose dispatches begin at a base. NVIDIA's
// driver (580.159.04, H200) keeps compiled modules by their words, without regard to
// VK_PIPELINE_CREATE_DISPATCH_BASE: a pipeline that was made with the flag behind one without it
// counted its workgroups from 0. So the module has another name, and other words.
constexpr const char* kSliceEntry = "slice";
// Renames the one entry point of a module from "main".
void name_slice_entry(Vec<uint32_t>* words);

}  // namespace tandem
#endif
