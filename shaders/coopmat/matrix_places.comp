// SPDX-License-Identifier: MIT OR Apache-2.0
// No kernel of the registry: shows whether the i-th element that an invocation has of an
// accumulator is the i-th one that it has of a left operand (src/vulkan/probe.h).
// VK_KHR_cooperative_matrix leaves that to the driver. One subgroup makes an operand of an
// accumulator's elements, and looks where they are stored. result: 1, and 2 where one is in another
// place.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#if TANDEM_BF16
#extension GL_EXT_bfloat16 : require
#define HALF bfloat16_t
#else
#define HALF float16_t
#endif

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const int SUBGROUP = 32;
layout(constant_id = 1) const int MM = 16;
layout(constant_id = 2) const int MN = 16;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Word { uint w; };
layout(push_constant) uniform Push { uvec2 result; }
push;

shared vec4 numbers[MM * MN / 4];
shared uvec4 halves[MM * MN / 8];

// Numbers up to 256 are exact in both types.
uint bits_of(int n) {
#if TANDEM_BF16
  return floatBitsToUint(float(n)) >> 16;
#else
  return packHalf2x16(vec2(float(n), 0.0));
#endif
}

void main() {
  const int own = int(gl_LocalInvocationIndex);
  for (int n = own; n < MM * MN; n += SUBGROUP) numbers[n / 4][n % 4] = float(n);
  for (int n = own; n < MM * MN / 8; n += SUBGROUP) halves[n] = uvec4(~0u);
  barrier();
  coopmat<float, gl_ScopeSubgroup, MM, MN, gl_MatrixUseAccumulator> x;
  coopmat<HALF, gl_ScopeSubgroup, MM, MN, gl_MatrixUseA> a;
  coopMatLoad(x, numbers, 0, MN / 4, gl_CooperativeMatrixLayoutRowMajor);
  bool same = a.length() == x.length();
  [[unroll]] for (int k = 0; k < x.length(); k++) a[k] = HALF(x[k]);
  coopMatStore(a, halves, 0, MN / 8, gl_CooperativeMatrixLayoutRowMajor);
  barrier();
  for (int n = own; n < MM * MN / 2; n += SUBGROUP)
    same = same && halves[n / 4][n % 4] == (bits_of(2 * n) | bits_of(2 * n + 1) << 16);
  atomicOr(Word(push.result).w, same ? 1u : 3u);
}
