// SPDX-License-Identifier: MIT OR Apache-2.0
#include "fwd.cuh"

namespace tandem {
namespace cuda {
namespace sm80 {

struct Fwd {
  static constexpr Stem kStem = Stem::fwd;
  static constexpr bool kFull = false;
  using Pointer = Kernel<FwdParams>;
  template <typename T, int ROW>
  static Pointer get() {
    return fwd<T, ROW>;
  }
};

Kernel<FwdParams> fwd_kernel(tandem_dtype dtype, const Launch& launch, bool) {
  return select_kernel<Fwd>(dtype, launch);
}

const void* any_kernel() { return reinterpret_cast<const void*>(fwd<F16, 0>); }

}  // namespace sm80
}  // namespace cuda
}  // namespace tandem
