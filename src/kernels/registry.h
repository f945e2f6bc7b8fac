// SPDX-License-Identifier: MIT OR Apache-2.0
// kernels.inc and paths.inc as C++ values.
#ifndef TANDEM_SRC_KERNELS_REGISTRY_H
#define TANDEM_SRC_KERNELS_REGISTRY_H
#include <cstdint>

#include "columns.h"
#include "problem/problem.h"

namespace tandem {

// Paths and rows of the registry by name: PathId::cuda_sm90, KernelId::cuda_simt_fwd_plain.
enum class PathId : uint8_t {
#define TANDEM_PATH(backend, name, what) backend##_##name,
#include "paths.inc"
};
enum class KernelId : uint16_t {
#define TANDEM_KERNEL(stem, backend, path, variant, dtypes, tiles, needs, inputs, traits, folder, \
                      source, params)                                                             \
  backend##_##path##_##stem##_##variant,
#include "kernels.inc"
};

struct KernelRow {
  Stem stem;
  Backend backend;
  const char *path, *variant;
  DtypeSet dtypes;
  TileTable tiles;
  uint32_t needs, inputs;  // bits of Extra that its problems have, and that they may have
  uint32_t traits;
  PathId path_id;
  constexpr bool has(uint32_t of) const { return (traits & of) != 0; }
  constexpr bool takes(uint32_t of) const { return (needs & ~of) == 0 && (of & ~inputs) == 0; }
};

namespace kernel_rows {
// Inline: one in the library, not one a source.
inline constexpr KernelRow kKernels[] = {
#define TANDEM_KERNEL(stem, backend, path, variant, dtypes, tiles, needs, inputs, traits, folder, \
                      source, params)                                                             \
  {Stem::stem,       Backend::backend, #path,    #variant, DtypeSet::dtypes,                      \
   TileTable::tiles, (needs),          (inputs), (traits), PathId::backend##_##path},
#include "kernels.inc"
};
}  // namespace kernel_rows
using kernel_rows::kKernels;
constexpr int kKernelCount = int(sizeof(kKernels) / sizeof(kKernels[0]));
// Of a launch for which there is no kernel; the plan is then refused (kernels_refusal()).
inline constexpr KernelRow kNoKernel{};

struct PathRow {
  PathId id;
  Backend backend;
  const char* name;
  const char* what;
};
constexpr PathRow kPaths[] = {
#define TANDEM_PATH(backend, name, what) {PathId::backend##_##name, Backend::backend, #name, what},
#include "paths.inc"
};
constexpr int kPathCount = int(sizeof(kPaths) / sizeof(kPaths[0]));

// The variant of a stem with one kernel on its path.
constexpr const char* kOnlyVariant = "only";

// The first row of a stem and a path with exactly these traits that takes a type and inputs (bits
// of Extra). If none does, the last one with the traits, by which a refusal can say what it lacks;
// -1: there is none.
int find_kernel(PathId path, Stem stem, uint32_t traits, tandem_dtype dtype, uint32_t inputs);
// Whether a path has kernels of a stem.
bool has_kernels(PathId path, Stem stem);
// Whether a path has kernels for tensors of a type.
bool takes_dtype(PathId path, tandem_dtype dtype);
// Whether a row is the fwd of a set of optional inputs that has kernels of its own (trait::fixed),
// and the name of a kernel's set in TANDEM_DISABLE: "cuda.simt.elastic".
constexpr bool is_fixed_set(const KernelRow& row) {
  return row.stem == Stem::fwd && row.traits == trait::fixed;
}
String fixed_set_name(const KernelRow& of);
// Names of a kernel: "fwd.decoupled" and "cuda.sm90.fwd.decoupled"; without the variant where there
// is only one.
String short_kernel_name(const KernelRow& row);
String kernel_name(const KernelRow& row);

}  // namespace tandem
#endif
