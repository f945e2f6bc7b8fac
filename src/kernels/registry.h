// SPDX-License-Identifier: MIT OR Apache-2.0
// kernels.inc and paths.inc as C++ values.
#ifndef TANDEM_SRC_KERNELS_REGISTRY_H
#define TANDEM_SRC_KERNELS_REGISTRY_H
#include <cstdint>

#include "problem/problem.h"
#include "stems.h"

namespace tandem {

// Element types and tables of tiles of a row (kernels.inc).
enum class DtypeSet : uint8_t { f32, f16, bf16, half, every };
enum class TileTable : uint8_t {
  none,
  any,
  simt,
  matrix,
  ampere,
  hopper_fwd,
  hopper_bwd,
  hopper_row,
  hopper_dq,
  hopper_support
};
constexpr bool has_dtype(DtypeSet set, tandem_dtype dtype) {
  return set == DtypeSet::every ||
         set == (dtype == TANDEM_F32   ? DtypeSet::f32
                 : dtype == TANDEM_F16 ? DtypeSet::f16
                                       : DtypeSet::bf16) ||
         (set == DtypeSet::half && dtype != TANDEM_F32);
}

struct KernelRow {
  Stem stem;
  Backend backend;
  const char *path, *variant;
  DtypeSet dtypes;
  TileTable tiles;
  uint32_t inputs;  // bits of Extra that its problems may have
};

namespace kernel_rows {  // with the words of the column of inputs
constexpr uint32_t none = 0, elastic = kHasElastic, entmax = kHasEntmax, softcap = kHasSoftcap,
                   bias = kHasBias, dist = kHasDistBias, alibi = kHasAlibi, keep = kHasKeep,
                   sink = kHasSink, dropout = kHasDropout, lengths = kHasLengths,
                   softmax = softcap | bias | dist | alibi | keep | sink | dropout | lengths,
                   all = softmax | elastic | entmax;
constexpr KernelRow kKernels[] = {
#define TANDEM_KERNEL(stem, backend, path, variant, dtypes, tiles, inputs) \
  {Stem::stem, Backend::backend, #path, #variant, DtypeSet::dtypes, TileTable::tiles, (inputs)},
#include "kernels.inc"
};
}  // namespace kernel_rows
using kernel_rows::kKernels;
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

// The variant of a stem with one kernel on its path.
constexpr const char* kOnlyVariant = "only";

// The registry row of a kernel; -1: there is none.
int find_kernel(Stem stem, Backend backend, const char* path, const char* variant);
// Whether a path has kernels of a stem.
bool has_kernels(Stem stem, Backend backend, const char* path);
// Names of a kernel: "fwd.decoupled" and "cuda.sm90.fwd.decoupled"; without the variant where there
// is only one.
String short_kernel_name(const KernelRow& row);
String kernel_name(const KernelRow& row);

}  // namespace tandem
#endif
