// SPDX-License-Identifier: MIT OR Apache-2.0
// From the raw product to the score s. precise: contracted into the difference that exp is taken of, the
// product would not be rounded, and s would differ from the s that row maximum and lse were made of.

void score_tile(inout vec4 s[RM]) {
  [[unroll]] for (int i = 0; i < RM; i++) {
    precise vec4 scaled = s[i] * block.scale;
    s[i] = scaled;
  }
}
