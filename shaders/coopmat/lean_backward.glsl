// SPDX-License-Identifier: MIT OR Apache-2.0
// What the backward's kernels of lean tiles with a loop over tiles have in common, behind
// lean_products.glsl.

// The scores s[1], and softcap's slope[1], of the block whose streamed rows lie at `at`: with query
// rows from i0 + i and keys from j0 + j, of which i0 and j0 are the workgroup's.
#define FORM_STEP(s, slope, left, at, i0, i, j0, j, flip, partial, hides)                 \
  ACC s[1], slope[1];                                                                     \
  s[0] = ACC(0.0);                                                                        \
  if (MASKS_FIRST && NEEDS_MASK(partial)) mask_block(s[0], (i0) + (i), (j0) + (j), flip); \
  MULTIPLY_ROWS(s[0], left, at, D_BLOCKS)                                                 \
  END_BLOCK(s[0])                                                                         \
  BIAS_ARRAY(bias, [1])                                                                   \
  fetch_bias(BIAS_OF(bias, [0]), i0, i, j0, j);                                           \
  FINISH_STEP(s, slope, bias, 0, (i0) + (i), (j0) + (j), flip, partial, hides)
// Turns scores into the bases of weights, relative to the origins that `origins` declares. live:
// some weight is not 0; without one, nothing follows.
#define FORM_BASES(x, live, origins)           \
  bool live;                                   \
  {                                            \
    origins;                                   \
    bool any = false;                          \
    ELEMENTS(k, origin) {                      \
      any = any || x[k] > origin[k];           \
      x[k] = base_at(x[k], origin[k]);         \
    }                                          \
    live = !LEAVES_BLOCKS || subgroupAny(any); \
  }
// Forms dP while x waits in the scratch, and comes back as y.
#define PASS_BY_SCRATCH(y, x, dp, left, at)                       \
  coopMatStore(x, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR); \
  dp = ACC(0.0);                                                  \
  MULTIPLY_ROWS(dp, left, at, DV_BLOCKS)                          \
  subgroupBarrier();                                              \
  coopMatLoad(y, scratch, MY_SCRATCH, SCRATCH_PITCH, ROW_MAJOR);  \
  subgroupBarrier();
