// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bwd_dq_full.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

struct BwdDqFamily {
  static constexpr Stem kStem = Stem::bwd_dq;
  static constexpr bool kFull = true;
  using Pointer = Kernel<BwdDqFull>;
  template <typename T, int ROW>
  static Pointer get() {
    return bwd_dq_full<T, ROW>;
  }
};

Kernel<BwdDqFull> bwd_dq_full_kernel(tandem_dtype dtype, const Launch& launch, bool) {
  return select_kernel<BwdDqFamily>(dtype, launch);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
