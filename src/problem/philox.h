// SPDX-License-Identifier: MIT OR Apache-2.0
// Which weights dropout keeps. Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011) makes four words of a counter and a key, so that tiles in any order
// on any backend draw the same words. Common subset of C++, CUDA and GLSL, as
// src/problem/tile_range.h.
//
// Weight (b, h, i, j) belongs to word j mod 4 of counter (j div 4, i, b Hq + h, offset) under the
// key (low, high word of the seed), and is kept if the word is not below round(p 2^32).
#ifndef TANDEM_SRC_PROBLEM_PHILOX_H
#define TANDEM_SRC_PROBLEM_PHILOX_H

#if defined(__cplusplus)
#include <stdint.h>
#if defined(__CUDACC__)
#define TANDEM_PHILOX_FN __host__ __device__ inline
#else
#define TANDEM_PHILOX_FN inline
#endif
typedef uint32_t TandemWord;
#else
#define TANDEM_PHILOX_FN
#define TandemWord uint
#endif

struct TandemPhilox {
  TandemWord x, y, z, w;
};

// One round: two 32 x 32 to 64 bit products.
TANDEM_PHILOX_FN TandemPhilox tandem_philox_round(TandemPhilox c, TandemWord key0,
                                                  TandemWord key1) {
  TandemPhilox r;
#if defined(__cplusplus)
  const uint64_t a = uint64_t(0xD2511F53u) * c.x, b = uint64_t(0xCD9E8D57u) * c.z;
  const TandemWord a_high = TandemWord(a >> 32), b_high = TandemWord(b >> 32);
  const TandemWord a_low = TandemWord(a), b_low = TandemWord(b);
#else
  TandemWord a_high, a_low, b_high, b_low;
  umulExtended(0xD2511F53u, c.x, a_high, a_low);
  umulExtended(0xCD9E8D57u, c.z, b_high, b_low);
#endif
  r.x = b_high ^ c.y ^ key0;
  r.y = b_low;
  r.z = a_high ^ c.w ^ key1;
  r.w = a_low;
  return r;
}

TANDEM_PHILOX_FN TandemPhilox tandem_philox(TandemPhilox c, TandemWord key0, TandemWord key1) {
  for (int round = 0; round < 10; ++round) {
    c = tandem_philox_round(c, key0, key1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The words of the weights (b, h, i, 4 quad) to (b, h, i, 4 quad + 3). head counts over batch and
// heads.
TANDEM_PHILOX_FN TandemPhilox tandem_dropout_words(int head, int i, int quad, TandemWord seed_low,
                                                   TandemWord seed_high, TandemWord offset) {
  TandemPhilox c;
  c.x = TandemWord(quad);
  c.y = TandemWord(i);
  c.z = TandemWord(head);
  c.w = offset;
  return tandem_philox(c, seed_low, seed_high);
}

#endif
