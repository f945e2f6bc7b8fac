// SPDX-License-Identifier: MIT OR Apache-2.0
// What fwd does about weights that matrix hardware takes rounded to 16 bits, while their sum is
// not. Common subset of C++, GLSL and CUDA.
#ifndef TANDEM_SRC_PROBLEM_ROUNDED_WEIGHTS_H
#define TANDEM_SRC_PROBLEM_ROUNDED_WEIGHTS_H
#include "tile_range.h"

// The origin of a row's weights follows its maximum only when that has grown by more than this, in
// powers of two, so that most tiles rescale nothing. The largest key's weight is then up to 2^8 in
// place of 1, which has no rounding. A key with nearly all of a row's weight has that rounding in o
// as a whole: f16, S 512, v of 3 N(0, 1), up to 0.0084 where exact maxima give 0.0049. With 2
// instead, an H100 takes 6 to 14 % longer (cuda.sm90, D 64 and 128, S 1024 to 16384).
#define TANDEM_ORIGIN_SLACK 8.0f

// An element of o as it is stored in f16. It is an average of finite values, and none is beyond
// 65504; but roundings of weights, each of up to 2^-11, may bring it beyond. Then it counts as
// 65504. Infinity and NaN remain.
TANDEM_FN float tandem_f16_average(float x) {
  return x > 65504.0f && x < 65568.0f ? 65504.0f : x < -65504.0f && x > -65568.0f ? -65504.0f : x;
}

#endif
