// SPDX-License-Identifier: MIT OR Apache-2.0
// bwd_dot before bwd_dkv_dq: it also zeroes what that kernel adds to, which saves a launch.
#ifndef TANDEM_CUDA_SIMT_BWD_DOT_H
#define TANDEM_CUDA_SIMT_BWD_DOT_H
#include "../kernels.h"
#include "plan/dot_tiles.h"

namespace tandem {
namespace cuda {

template <typename P>  // BwdDotParams or BwdDotFull
struct Zeroing {
  P dot;
  uint64_t zeroed, zeroed_end;  // addresses: a multiple of 16 to a multiple of 4
  // The same in each of `entries` batch entries, `step` bytes apart, or in all of them as one.
  uint64_t first, first_end, step;
  uint32_t entries;
};

using BwdDotZeroParams = Zeroing<BwdDotParams>;
using BwdDotZeroFull = Zeroing<BwdDotFull>;

// For 16-bit types and heads up to 256 whose features are contiguous. Head sizes, strides and
// addresses of o and d_o are multiples of 8 elements. The block counts tiles of bwd_dot_rows() rows
// (src/plan/dot_tiles.h).
Kernel<BwdDotZeroParams> bwd_dot_fast_kernel(tandem_dtype dtype, int head_dim_v);

}  // namespace cuda
}  // namespace tandem
#endif
