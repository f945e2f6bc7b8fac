// SPDX-License-Identifier: MIT OR Apache-2.0
#include "bwd_dkv_dq.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

struct BwdDkvDq {
  static constexpr Stem kStem = Stem::bwd_dkv_dq;
  static constexpr bool kFull = false;
  using Pointer = Kernel<BwdDkvDqParams>;
  template <typename T, int ROW>
  static Pointer get() {
    return bwd_dkv_dq<T, ROW>;
  }
};

Kernel<BwdDkvDqParams> bwd_dkv_dq_kernel(tandem_dtype dtype, const Launch& launch) {
  return select_kernel<BwdDkvDq>(dtype, launch);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
