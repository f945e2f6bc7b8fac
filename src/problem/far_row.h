// SPDX-License-Identifier: MIT OR Apache-2.0
// Far rows: query rows whose lse, an f32, is too coarse to normalise the row's weights. Common
// subset of C++, GLSL and CUDA.
//
// exp(s - lse) is off by a factor of exp(|lse| 2^-24): nothing for a small lse, 6 % at 10^6, and at
// 10^10 ln(sum) is lost as a whole. So the backward takes a row beyond TANDEM_FAR_LSE relative to
// an origin of its own, near its largest score. bwd_origin stores, for far rows alone, the origin,
// and lse relative to it (for entmax the threshold, in z = (alpha - 1) s). Weights are then
// exp(min(s - origin, 0) - relative).
//
// A part of a row's keys (TANDEM_FLAG_PART_OF_KEYS) comes with the lse of them all. Its relative
// lse is then lse less the part's own origin, where that tells: where it is more than
// tandem_part_slack() |lse| above what the part's keys sum up to. Else the others have no weight
// that lse, an f32, could show, and the part is the row.
//
// Both are f32 and lie in front of delta in the workspace, indexed downwards, so that no kernel
// needs another address: of row r of [B, Hq, Sq] the origin lies 8 (r + 1) bytes before delta, and
// the relative lse 4 bytes behind the origin.
#ifndef TANDEM_SRC_PROBLEM_FAR_ROW_H
#define TANDEM_SRC_PROBLEM_FAR_ROW_H
#include "tile_range.h"

// 4096 2^-24 is half an ulp of f16.
#define TANDEM_FAR_LSE 4096.0f
// Matrix hardware truncates what does not fit an f32 at each of its steps, of 16 features, or of 8
// of f32: up to 2 units of 2^-24, always towards 0. CUDA's bwd_origin sums in double, and keys so
// near to the largest one count as equal to it: at most 2^-17 of the magnitudes that the score is
// made of, in 16 bits. Vulkan's kernels form all scores of far rows by the same f32 operations.
#define TANDEM_FAR_STEP 16
TANDEM_FN float tandem_far_slack(int head_dim, bool f32) {
  return float(4 * ((head_dim + 7) / (f32 ? 8 : TANDEM_FAR_STEP)) + 8) * 5.9604644775390625e-8f;
}

// Of lse: its rounding, and that of the largest score, which matrix hardware forms in another way.
TANDEM_FN float tandem_part_slack(int head_dim, bool f32) {
  return 2.384185791015625e-7f + (f32 ? 0.0f : tandem_far_slack(head_dim, false));
}

// NaN and minus infinity are not far.
TANDEM_FN bool tandem_is_far(float lse) {
  return (lse > TANDEM_FAR_LSE || lse < -TANDEM_FAR_LSE) && lse >= -3.4028234664e38f &&
         lse <= 3.4028234664e38f;
}

#endif
