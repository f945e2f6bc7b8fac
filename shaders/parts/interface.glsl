// SPDX-License-Identifier: MIT OR Apache-2.0
// The meaning of the interface files (src/kernels/abi/*.inc) in GLSL. A kernel defines each TANDEM_
// macro as the GLSL_ macro of the same name right before it includes its file: specialisation
// constants and shared arrays at file scope, strides and parameters inside the uniform block,
// addresses inside the push block.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require
#include "shaders/spec_ids.h"

// Four 64-bit strides, low word first: b, h in bh and s, d in sd. This way no int64 is needed.
struct Strides {
  uvec4 bh, sd;
};

#define GLSL_SPEC(name, fallback) layout(constant_id = TANDEM_ID_##name) const int name = fallback;
#define GLSL_SHARED(type, name, count) shared type name[count];
#define GLSL_STRIDES(name) Strides name;
#define GLSL_PARAM(type, name) type name;
#define GLSL_ADDRESS(name) uvec2 name;
#define GLSL_ADDRESSES(name, count) uvec2 name[count];
#define GLSL_PUSH(type, name) type name;

layout(local_size_x_id = TANDEM_ID_WG) in;

const int F32 = 1, F16 = 2, BF16 = 3;           // tandem_dtype
const int SOFTMAX = 0, ELASTIC = 1, ENTMAX = 2; // tandem_normalizer
const int PADDED = 1, PACKED = 2, GAPPED = 3;   // tandem_lengths

const uint LSE_NONE = 0xff800000u; // -inf, the lse of a row that sees no key
