// SPDX-License-Identifier: MIT OR Apache-2.0
// The simd kernels for any machine that this build runs on; sources.cmake sets the flags.
#define TANDEM_SIMD_TABLE kSimdBaseline
#define TANDEM_SIMD_ISA "baseline"
#include "simd_kernels.inl"
