// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bwd_dkv_full.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

struct BwdDkvFamily {
  static constexpr Stem kStem = Stem::bwd_dkv;
  static constexpr bool kFull = true;
  using Pointer = Kernel<BwdDkvHeadFull>;
  template <typename T, int ROW>
  static Pointer get() {
    return bwd_dkv_full<T, ROW>;
  }
};

Kernel<BwdDkvHeadFull> bwd_dkv_full_kernel(tandem_dtype dtype, const Launch& launch) {
  return select_kernel<BwdDkvFamily>(dtype, launch);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
