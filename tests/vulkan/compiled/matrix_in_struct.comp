// SPDX-License-Identifier: MIT OR Apache-2.0
// A matrix as member of a struct: Intel's Linux driver (Mesa 25.0 to 26.2) crashes while it
// compiles this.
#version 460
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_buffer_reference2 : require
layout(local_size_x = 32) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float data[]; };
layout(push_constant) uniform Push { Floats o; };
shared float16_t operands[256];
shared float results[128];

struct Held {
  coopmat<float, gl_ScopeSubgroup, 8, 16, gl_MatrixUseAccumulator> sum;
};

void main() {
  coopmat<float16_t, gl_ScopeSubgroup, 8, 16, gl_MatrixUseA> a;
  coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
  coopMatLoad(a, operands, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
  coopMatLoad(b, operands, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
  Held held;
  held.sum = coopmat<float, gl_ScopeSubgroup, 8, 16, gl_MatrixUseAccumulator>(0);
  for (int n = 0; n < 4; ++n) held.sum = coopMatMulAdd(a, b, held.sum);
  coopMatStore(held.sum, results, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
  barrier();
  o.data[gl_LocalInvocationIndex] = results[gl_LocalInvocationIndex];
}
