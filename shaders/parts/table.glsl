// SPDX-License-Identifier: MIT OR Apache-2.0
// Indices of a table of biases, for kernels with the members seq_q and seq_kv in their block.
#include "address.glsl"
#include "problem/table.h"

#define TID int(gl_LocalInvocationIndex)

uvec2 shift64(uvec2 a, int n) { // 0 <= n < 32
  return n == 0 ? a : uvec2(a.x << n, a.y << n | a.x >> (32 - n));
}
// The pairs of an entry of the index, and those of them in chunk n.
uvec2 all_pairs() { return mul64(uvec2(block.seq_q, 0), block.seq_kv); }
int pairs_of(int chunk) {
  const uvec2 first = mul64(uvec2(TANDEM_TABLE_PAIRS, 0), chunk), all = all_pairs();
  uint borrow;
  const uint low = usubBorrow(all.x, first.x, borrow), high = all.y - first.y - borrow;
  return high != 0 || low > TANDEM_TABLE_PAIRS ? TANDEM_TABLE_PAIRS : int(low);
}

// The address of the indices of chunk n of an entry. INDEX is their size.
uvec2 indices_of(uvec2 indices, int entry, int chunk) {
  const uvec2 first = add64(mul64(all_pairs(), entry), mul64(uvec2(TANDEM_TABLE_PAIRS, 0), chunk));
  return add64(indices, shift64(first, INDEX / 2));
}
// Index n from an address. What is negative is no entry, as a large number is none. Short ones are
// extracted from words, so that no 8-bit or 16-bit storage is needed.
uint load_index(uvec2 indices, int n) {
  const uvec2 at = add64(indices, n * INDEX);
  const uint word = Load1(uvec2(at.x & ~3u, at.y)).w;
  return INDEX == 4   ? word
         : INDEX == 2 ? word >> 8u * (at.x & 2u) & 0xffffu
                      : word >> 8u * (at.x & 3u) & 0xffu;
}
