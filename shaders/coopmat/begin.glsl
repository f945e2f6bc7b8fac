// SPDX-License-Identifier: MIT OR Apache-2.0
// Included before everything else: extensions, and definitions that leave out the parts of
// shaders/parts/*.glsl that loop over an invocation's tile.
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
#if !TANDEM_BF16 || TANDEM_CM2
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
// Modules whose rows are loaded and stored by tensor addressing (rows.glsl).
#ifndef TANDEM_TENSOR
#define TANDEM_TENSOR 0
#endif
// Modules of bwd_dkv and bwd_dq that exchange dS through the workspace (ds.glsl).
#ifndef TANDEM_DS
#define TANDEM_DS 0
#endif
// Modules for lean tiles (lean.glsl).
#ifndef TANDEM_LEAN
#define TANDEM_LEAN 0
#endif
#if TANDEM_LEAN // WIDE tensors have no features beside whole words (row_score.glsl)
#define ROW_WORDS(t, row, col) (WIDE != 0 ? load_wide(row, col) : load_words(t, row, col))
#endif
#define BY_ELEMENT
#define ANYWHERE false
// Modules whose rows belong to pairs of subgroups (pair.glsl).
#ifndef TANDEM_PAIR
#define TANDEM_PAIR 0
#endif
// Modules that look keep up element by element (skip.glsl).
#if TANDEM_LEAN || TANDEM_PAIR
#define KEEP_BY_ELEMENT
#endif
// Modules of bwd_dkv that leave partial sums (parts.glsl).
#ifndef TANDEM_PARTS
#define TANDEM_PARTS 0
#endif
#include "parts/interface.glsl"
