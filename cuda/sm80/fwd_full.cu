// SPDX-License-Identifier: MIT OR Apache-2.0
#include "fwd_full.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

struct FwdFamily {
  static constexpr Stem kStem = Stem::fwd;
  static constexpr bool kFull = true;
  using Pointer = Kernel<FwdFull>;
  template <typename T, int ROW>
  static Pointer get() {
    return fwd_full<T, ROW>;
  }
};

Kernel<FwdFull> fwd_full_kernel(tandem_dtype dtype, const Launch& launch, bool) {
  return select_kernel<FwdFamily>(dtype, launch);
}

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
