// SPDX-License-Identifier: MIT OR Apache-2.0
// The simd kernels for AVX-512 with its products of bf16; sources.cmake sets the flags.
#define TANDEM_SIMD_TABLE kSimdAvx512Bf16
#define TANDEM_SIMD_ISA "avx512_bf16"
#include "simd_kernels.inl"
