// SPDX-License-Identifier: MIT OR Apache-2.0
// The pass of an application that stands before and behind attention in the tests.
#version 460
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer In { float data[]; }
source;
layout(set = 0, binding = 1) writeonly buffer Out { float data[]; }
target;
layout(push_constant) uniform Push {
  uint count;
  float factor;
};
void main() {
  const uint i = gl_GlobalInvocationID.x;
  if (i < count) target.data[i] = source.data[i] * factor;
}
