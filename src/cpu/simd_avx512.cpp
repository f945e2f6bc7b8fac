// SPDX-License-Identifier: MIT OR Apache-2.0
// The simd kernels for AVX-512; sources.cmake sets the flags.
#define TANDEM_SIMD_TABLE kSimdAvx512
#define TANDEM_SIMD_ISA "avx512"
#include "simd_kernels.inl"
