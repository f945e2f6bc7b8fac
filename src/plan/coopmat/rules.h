// SPDX-License-Identifier: MIT OR Apache-2.0
// Rules of speed of the matrix paths of Vulkan. Their predicates are in heuristics.h. Notebook:
// bench/lab/2026-11.md.
#ifndef TANDEM_SRC_PLAN_COOPMAT_RULES_H
#define TANDEM_SRC_PLAN_COOPMAT_RULES_H
#include "plan/rules.h"

namespace tandem {
namespace coopmat_rule {

// Off: the first tile of the width.
inline constexpr SpeedRule narrow_tiles{
    "vulkan.coopmat.rule.narrow_tiles",
    "coopmat2, time with the wide tile over time with fewer rows: fwd up to D 64 0.86 where the "
    "work is the same (1.02 with a dense bias), 1.24 to 1.42 where it is 1.33 to 1.6 times less (S "
    "77 and 144); D 80 1.02 at 1.33; Sq 4096, Sk 77 0.91; bwd_dkv 0.88 and 1.3; bwd_dq 1.00 to "
    "1.02, and 1.1 to 1.2 with S 197 or 144; 80 workgroups of bwd_dq 0.91"};
// Off: a tile that the rows fill by half or less, too.
inline constexpr SpeedRule filled_tiles{"vulkan.coopmat.rule.filled_tiles", "not measured"};
// Off: fwd has its general loop.
inline constexpr SpeedRule plain_loop{
    "vulkan.coopmat.rule.plain_loop",
    "D 256, 580.159.04: 1.69 ms in place of 1.26 without a mask, 0.80 in place of 1.00 with the "
    "causal one"};
// Off: dS is shared however few workgroups a chunk has.
inline constexpr SpeedRule chunks_of_ds{
    "vulkan.coopmat.rule.chunks_of_ds",
    "a band, heads of 96, chunks of 1.9 times the device: 3.63 ms in place of 2.94; heads of 80, "
    "3.9 times: 1.78 and 2.15"};
// Off: the batch's sums of d_bias are bwd_dbias's.
inline constexpr SpeedRule sums_in_dq{"vulkan.coopmat.rule.sums_in_dq", "not measured"};

constexpr const SpeedRule* kAll[] = {&narrow_tiles, &filled_tiles, &plain_loop, &chunks_of_ds,
                                     &sums_in_dq};

}  // namespace coopmat_rule
}  // namespace tandem
#endif
