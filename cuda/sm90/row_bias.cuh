// SPDX-License-Identifier: MIT OR Apache-2.0
// A bias with one row for all queries of a head: where a head's row lies. Its elements are loaded
// one by one, so strides and addresses may be any.
#ifndef TANDEM_CUDA_SM90_ROW_BIAS_CUH
#define TANDEM_CUDA_SM90_ROW_BIAS_CUH
#include "../parts/extra.cuh"
#include "params.h"
#include "ptx/wgmma.cuh"

namespace tandem {
namespace cuda {
namespace sm90 {

struct BiasRow {
  uint64_t at;
  int64_t step;  // from a key to the next, in elements
  uint dtype;
  // address: of the optional inputs.
  TANDEM_DEVICE BiasRow(const ExtraBlock& extra, const Features& f, const uint64_t* address,
                        int batch, int head)
      : step(extra.bias.d), dtype(f.BIAS) {
    const int64_t first =
        group_of(batch, extra.bias_entries) * extra.bias.b + head / extra.bias_group * extra.bias.h;
    at = address[f.AT_BIAS] + uint64_t(first * (dtype == TANDEM_F32 ? 4 : 2));
  }
  // The bits of a key's number. Loads are plain ones: by the read-only path they might be moved
  // ahead of the grid dependency wait.
  TANDEM_DEVICE uint load(int key) const {
    return dtype == TANDEM_F32 ? reinterpret_cast<const uint*>(at)[key * step]
                               : uint(reinterpret_cast<const ushort*>(at)[key * step]);
  }
  TANDEM_DEVICE float number(uint bits) const {
    if (dtype == TANDEM_F32) return __uint_as_float(bits);
    return dtype == TANDEM_F16 ? Half::low(bits) : Bfloat::low(bits);
  }
};

}  // namespace sm90
}  // namespace cuda
}  // namespace tandem
#endif
