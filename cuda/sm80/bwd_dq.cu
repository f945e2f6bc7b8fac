// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bwd_dq.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

struct BwdDq {
  static constexpr Stem kStem = Stem::bwd_dq;
  static constexpr bool kFull = false;
  using Pointer = Kernel<BwdDqParams>;
  template <typename T, int ROW>
  static Pointer get() {
    return bwd_dq<T, ROW>;
  }
};

Kernel<BwdDqParams> bwd_dq_kernel(tandem_dtype dtype, const Launch& launch, bool) {
  return select_kernel<BwdDq>(dtype, launch);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
