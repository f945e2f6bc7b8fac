// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bwd_dkv.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

struct BwdDkv {
  static constexpr Stem kStem = Stem::bwd_dkv;
  static constexpr bool kFull = false;
  using Pointer = Kernel<BwdDkvParams>;
  template <typename T, int ROW>
  static Pointer get() {
    return bwd_dkv<T, ROW>;
  }
};

Kernel<BwdDkvParams> bwd_dkv_kernel(tandem_dtype dtype, const Launch& launch, bool) {
  return select_kernel<BwdDkv>(dtype, launch);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
