// SPDX-License-Identifier: MIT OR Apache-2.0
// All simd kernels for the instruction set of the including file. Everything but the table is in an
// anonymous namespace: nothing compiled here may be shared with code for smaller machines.
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__GNUC__)
#include <arm_neon.h>
#endif

#include "element.h"
#include "simd.h"

namespace tandem {
namespace {
// clang-format off
#include "simd_vector.inl"  // in this order; those of problem/ have functions here that are this file's alone
#include "simd_tile.inl"
#include "pairs_simd.inl"
#include "problem/far_row.h"
#include "shown_simd.inl"
#include "dropout_simd.inl"
#include "terms_simd.inl"
#include "weights_simd.inl"
#include "fwd_simd.inl"
#include "entmax_simd.inl"
#include "fwd_twice_simd.inl"
#include "bwd_dot_simd.inl"
#include "bwd_origin_simd.inl"
#include "bwd_dkv_simd.inl"
#include "ds_sums_simd.inl"
#include "bwd_dq_simd.inl"
#include "bwd_row_sums_simd.inl"
#include "merge_simd.inl"
// clang-format on
}  // namespace

extern const SimdKernels TANDEM_SIMD_TABLE = {TANDEM_SIMD_ISA, kHasPairs, fwd_kernel, fwd_twice_kernel, bwd_dot_kernel, bwd_origin_kernel,
                                              bwd_row_sums_kernel, bwd_dkv_kernel, bwd_dq_kernel, merge_kernel, bwd_merge_kernel};

}  // namespace tandem
