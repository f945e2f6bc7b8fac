// SPDX-License-Identifier: MIT OR Apache-2.0
// stems.inc, kernels.inc and paths.inc as C++ values.
#ifndef TANDEM_SRC_REGISTRY_H
#define TANDEM_SRC_REGISTRY_H
#include <cstdint>

namespace tandem {

enum class Backend : uint8_t { cpu, vulkan, cuda };
enum class Stem : uint8_t {
#define TANDEM_STEM(Name, name) name,
#include "stems.inc"
};
constexpr int kStemCount = 0
#define TANDEM_STEM(Name, name) +1
#include "stems.inc"
    ;

// Whether workgroups of a kernel multiply tiles (interface/tile.inc). Others take rows or lines.
constexpr bool is_tiled(Stem stem) {
  return stem != Stem::fwd_join && stem != Stem::bwd_dot && stem != Stem::bwd_origin &&
         stem != Stem::bwd_dq_cast && stem != Stem::bwd_sum && stem != Stem::bwd_head;
}

// Whether a kernel handles the optional inputs, and has their parameters (interface/extra.inc).
constexpr bool has_extra(Stem stem) { return is_tiled(stem) || stem == Stem::bwd_origin; }

const char* backend_name(Backend backend);
const char* stem_name(Stem stem);
bool backend_built(Backend backend);

struct KernelRow {
  Stem stem;
  Backend backend;
  const char* path;
};
constexpr KernelRow kKernels[] = {
#define TANDEM_KERNEL(stem, backend, path) {Stem::stem, Backend::backend, #path},
#include "kernels.inc"
};
constexpr int kKernelCount = int(sizeof(kKernels) / sizeof(kKernels[0]));

struct PathRow {
  Backend backend;
  const char* name;
  const char* what;
};
constexpr PathRow kPaths[] = {
#define TANDEM_PATH(backend, name, what) {Backend::backend, #name, what},
#include "paths.inc"
};
constexpr int kPathCount = int(sizeof(kPaths) / sizeof(kPaths[0]));

// The registry row of a kernel, -1 if there is none.
int find_kernel(Stem stem, Backend backend, const char* path);

}  // namespace tandem
#endif
