// SPDX-License-Identifier: MIT OR Apache-2.0
// What the prototypes share: see README.md.
#extension GL_KHR_cooperative_matrix : require
#extension GL_NV_cooperative_matrix2 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
layout(constant_id = 0) const int WG = 128;
layout(constant_id = 1) const int D = 128;
layout(constant_id = 2) const int BC = 64;   // streamed tile
layout(constant_id = 3) const int RB = 1;    // row blocks of M per subgroup
layout(constant_id = 4) const int CAUSAL = 0;
layout(constant_id = 5) const int M = 16;
layout(constant_id = 6) const int SG = 32;
layout(constant_id = 7) const int QREG = 1;
layout(constant_id = 8) const int STAGE = 1;
layout(constant_id = 9) const int VAR = 0;
layout(local_size_x_id = 0) in;
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Load4 { uvec4 w[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Half { float16_t h[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Flt { float f[]; };
layout(push_constant) uniform Push { uvec2 q, k, v, o, lse, d_o, delta, d_q, d_k, d_v; int S, tiles, heads; float scale; } push;
const int BR = WG / SG * M * RB;
const int NB = BC / M, DB = D / M;
const int PITCH = D / 8 + 1;
const int TILE = BC * PITCH;
const int VEC = BC * D / 8 / WG;
#define ACC coopmat<float, gl_ScopeSubgroup, M, M, gl_MatrixUseAccumulator>
#define ACCH coopmat<float16_t, gl_ScopeSubgroup, M, M, gl_MatrixUseAccumulator>
#define MA coopmat<float16_t, gl_ScopeSubgroup, M, M, gl_MatrixUseA>
#define MB coopmat<float16_t, gl_ScopeSubgroup, M, M, gl_MatrixUseB>
#define ROWS gl_CooperativeMatrixLayoutRowMajor
#define COLS gl_CooperativeMatrixLayoutColumnMajor
float maxop(const in float a, const in float b) { return max(a, b); }
float addop(const in float a, const in float b) { return a + b; }
// rows queries, columns keys
float maskop(const in uint r, const in uint c, const in float x, const in int row0, const in int col0) {
  return int(c) + col0 > int(r) + row0 ? -1e30 : x;
}
// rows keys, columns queries
float maskopt(const in uint r, const in uint c, const in float x, const in int key0, const in int row0) {
  return int(r) + key0 > int(c) + row0 ? -1e30 : x;
}
const float LOG2E = 1.4426950408889634;
