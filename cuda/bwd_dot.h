// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot before a bwd_dkv_dq: it also zeroes what that adds to, which saves a launch.
#ifndef TANDEM_CUDA_BWD_DOT_H
#define TANDEM_CUDA_BWD_DOT_H
#include "kernels.h"

namespace tandem {
namespace cuda {

template <typename P>  // BwdDotParams or BwdDotFull
struct Zeroing {
  P dot;
  uint64_t zeroed, zeroed_end;  // from a multiple of 16 to a multiple of 4
};

Kernel<Zeroing<BwdDotParams>> bwd_dot_zero_kernel(tandem_dtype dtype);
Kernel<Zeroing<BwdDotFull>> bwd_dot_zero_full_kernel();

}  // namespace cuda
}  // namespace tandem
#endif
