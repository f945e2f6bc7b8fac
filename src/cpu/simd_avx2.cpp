// SPDX-License-Identifier: MIT OR Apache-2.0
// The simd kernels for AVX2 and FMA; sources.cmake sets the flags.
#define TANDEM_SIMD_TABLE kSimdAvx2
#define TANDEM_SIMD_ISA "avx2"
#include "simd_kernels.inl"
