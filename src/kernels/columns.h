// SPDX-License-Identifier: MIT OR Apache-2.0
// The words of the columns of kernels.inc as C++ values. Kernels include this without the registry,
// so that a new row compiles none of the others again.
#ifndef TANDEM_SRC_KERNELS_COLUMNS_H
#define TANDEM_SRC_KERNELS_COLUMNS_H
#include "inputs.h"
#include "stems.h"
#include "tandem/tandem.h"
#include "traits.h"

namespace tandem {

// Element types of a row. every: all but f64; any: f64 as well.
enum class DtypeSet : uint8_t { f32, f16, bf16, half, every, any };
constexpr bool has_dtype(DtypeSet set, tandem_dtype dtype) {
  if (set == DtypeSet::any) return true;
  if (dtype == TANDEM_F64) return false;
  return set == DtypeSet::every ||
         set == (dtype == TANDEM_F32   ? DtypeSet::f32
                 : dtype == TANDEM_F16 ? DtypeSet::f16
                                       : DtypeSet::bf16) ||
         (set == DtypeSet::half && dtype != TANDEM_F32);
}

namespace kernel_rows {  // where rows are expanded
using namespace trait;
constexpr uint32_t elastic = kHasElastic, entmax = kHasEntmax, softcap = kHasSoftcap,
                   bias = kHasBias, dist = kHasDistBias, alibi = kHasAlibi, keep = kHasKeep,
                   spans = kHasSpans, table = kHasTable, sink = kHasSink, dropout = kHasDropout,
                   lengths = kHasLengths,
                   softmax =
                       softcap | bias | dist | alibi | keep | spans | sink | dropout | lengths,
                   all = softmax | elastic | entmax;
}  // namespace kernel_rows

}  // namespace tandem
#endif
