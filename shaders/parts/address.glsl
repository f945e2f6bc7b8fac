// SPDX-License-Identifier: MIT OR Apache-2.0
// Words of memory by address, and 64-bit sums and products of addresses.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Load4 { uvec4 w; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Load2 { uvec2 w; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Load1 { uint w; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Store4 { uvec4 w; };
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer Store2 { uvec2 w; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Store1 { uint w; };

uvec2 add64(uvec2 a, uvec2 b) {
  uint carry;
  uint low = uaddCarry(a.x, b.x, carry);
  return uvec2(low, a.y + b.y + carry);
}
uvec2 add64(uvec2 a, int n) { return add64(a, uvec2(n, 0)); } // n >= 0
uvec2 mul64(uvec2 a, int n) {                                 // n >= 0
  uint high, low;
  umulExtended(a.x, uint(n), high, low);
  return uvec2(low, high + a.y * uint(n));
}
