// SPDX-License-Identifier: MIT OR Apache-2.0
// The largest logit of a head, raised in place. Twin of cuda/parts/max_logit.cuh.

layout(buffer_reference, std430, buffer_reference_align = 4) buffer MaxLogit { int bits; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer MaxLogitBelow0 { uint bits; };

// Raises the largest logit of head h of batch entry b to x, the largest score of this invocation's
// rows. max_logit only rises, so an old number that is read first costs an atomic at most.
void raise_max_logit(int b, int h, float x) {
  const uvec2 at = word_address(push.max_logit, b / block.max_logit_entries * block.heads_q + h);
  if (!(x > intBitsToFloat(MaxLogit(at).bits))) return;
  // Integers are ordered as the numbers of their bits are, and negative ones the other way round.
  if (x < 0)
    atomicMin(MaxLogitBelow0(at).bits, floatBitsToUint(x));
  else
    atomicMax(MaxLogit(at).bits, max(floatBitsToInt(x), 0)); // minus 0 as 0
}
