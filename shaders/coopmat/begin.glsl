// SPDX-License-Identifier: MIT OR Apache-2.0
// Included before everything else but the options (options.glsl): extensions, and definitions that
// leave out the parts of shaders/parts/*.glsl that loop over an invocation's tile.
//
// A module is compiled with three switches, which its row of src/kernels/kernels.inc tells
// (cmake/TandemShaders.cmake). TANDEM_CM2: 1: with VK_NV_cooperative_matrix2; TANDEM_BF16: 1:
// operands are bf16, else f16; TANDEM_KN: how many accumulators wide an operand is deep, 1 or 2.
// Everything else is in the sources. What lies in main/ is included by main() and not called, as
// NVIDIA's and RADV's compilers copy arrays of matrices through functions.
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#if TANDEM_CM2
#extension GL_NV_cooperative_matrix2 : require
#endif
#if TANDEM_BF16
#extension GL_EXT_bfloat16 : require
#endif
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define BY_ELEMENT
#define ANYWHERE false
#include "coopmat/options.glsl"
#include "parts/interface.glsl"
