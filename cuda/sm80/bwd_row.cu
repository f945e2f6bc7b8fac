// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bwd_row.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

struct BwdRow {
  static constexpr Stem kStem = Stem::bwd_row;
  static constexpr bool kFull = true;
  using Pointer = Kernel<BwdRowFull>;
  template <typename T, int ROW>
  static Pointer get() {
    return bwd_row<T, ROW>;
  }
};

Kernel<BwdRowFull> bwd_row_full_kernel(tandem_dtype dtype, const Launch& launch, bool) {
  return select_kernel<BwdRow>(dtype, launch);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
