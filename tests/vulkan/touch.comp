// SPDX-License-Identifier: MIT OR Apache-2.0
// Has an access to a buffer, for a validation layer to see; changes nothing.
#version 460
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) buffer Data { float data[]; }
target;
layout(push_constant) uniform Push { uint zero; };
shared float sink;
void main() {
#if TANDEM_WRITES
  if (zero != 0) target.data[0] = 0;
#else
  sink = target.data[zero];
#endif
}
