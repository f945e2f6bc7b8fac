// SPDX-License-Identifier: MIT OR Apache-2.0
// Rules of speed of cuda.sm80. Their predicates are in heuristics.h. Notebook:
// bench/lab/2026-11.md.
#ifndef TANDEM_SRC_PLAN_SM80_RULES_H
#define TANDEM_SRC_PLAN_SM80_RULES_H
#include "plan/rules.h"

namespace tandem {
namespace sm80_rule {

// Off: bwd_dq_cast stores d_q of small f32 problems.
inline constexpr SpeedRule dq_postprocess{
    "cuda.sm80.rule.dq_postprocess",
    "a launch of its own is faster, by 4 us for 256 KiB a head, but a small problem has fewer "
    "launches to record"};
// Off: the first tile that fits.
inline constexpr SpeedRule small_tiles{"cuda.sm80.rule.small_tiles",
                                       "fwd, D 256, S 512, 8 heads: 0.024 ms instead of 0.028"};
// Off: the first tile that fits.
inline constexpr SpeedRule dbias_tiles{
    "cuda.sm80.rule.dbias_tiles",
    "bytes: half the rows and keys read twice as many for an element (docs/kernels/sm80.md); not "
    "measured"};
// Off: the first tile that fits, and bwd_dq_cast.
inline constexpr SpeedRule all_keys{"cuda.sm80.rule.all_keys", "not measured"};
// Off: the first tile that fits.
inline constexpr SpeedRule deep_stages{
    "cuda.sm80.rule.deep_stages",
    "one query, 20 heads, 1500 keys, B 16: 0.048 ms in place of 0.051; 48 keys, 32,768 heads: "
    "0.203 in place of 0.158"};
// Off: as many splits of the keys as the device has room for.
inline constexpr SpeedRule few_splits{
    "cuda.sm80.rule.few_splits",
    "one query, 64 heads of 8 kv heads, D 128, Sk 32768: 99 splits 0.0687 ms, 49 0.0609, 33 "
    "0.0610, 24 0.0634"};
// Off: warps with few rows are workgroups of their own.
inline constexpr SpeedRule key_warps{
    "cuda.sm80.rule.key_warps",
    "H200, one query, D 128: 64 heads of 8, Sk 32768 0.0399 ms, workgroups of a warp 0.0414; 32 "
    "heads of 8, Sk 8192, B 8 0.0668, 0.0700; B 20, Sk 4096, which is two waves, 0.110, 0.087"};
// Off: few rows with lengths of keys have the kernel of all optional inputs.
inline constexpr SpeedRule few_lengths{
    "cuda.sm80.rule.few_lengths",
    "H200, one query, 8 heads of 1, D 128, Sk up to 8192, B 32: 0.036 ms in place of 0.054"};
// Off: a launch starts when the one before it has ended.
inline constexpr SpeedRule programmatic{
    "cuda.sm80.rule.programmatic",
    "H200, one query: 64 heads of 8, D 128, Sk 32768 0.0409 ms in place of 0.0424; 20 heads, D 64, "
    "Sk 1500, B 16 0.0335, 0.0346; key warps without parts, 32 heads of 8, Sk 8192, B 8 0.070, "
    "0.068"};
// Off: bwd_dq has a launch of its own.
inline constexpr SpeedRule joins_dq{"cuda.sm80.rule.joins_dq",
                                    "a launch takes the host three microseconds"};
// Off: whole heads for few rows without a bias, too.
inline constexpr SpeedRule whole_few_rows{
    "cuda.sm80.rule.whole_few_rows",
    "one query, 48 keys, D 64, 32,768 heads: 0.16 ms, whole heads 0.44"};
// Off: whole heads in every tile that holds them.
inline constexpr SpeedRule whole_few_heads{
    "cuda.sm80.rule.whole_few_heads",
    "in place of cuda.sm90, forward and backward: 32 x 128, D 32, 4,096 heads with a bias of each "
    "0.053 and 0.14 ms, 0.099 and 0.41; 77 x 77, D 64, 3,072 heads 0.062 and 0.14, 0.095 and 0.23; "
    "64 x 64, D 80, 2,048 heads 0.039 forward, 0.067; 128 x 128, D 8, 2,048 heads with a bias of "
    "each 0.135 backward, 0.231; 144 x 144, D 64, 4,800 heads with a mask 0.46 and 0.87, 0.63 and "
    "1.40; 128 x 128, D 32, 3,072 heads 0.056 forward, 0.074; 100 x 100, 4,096 heads 0.076, 0.103. "
    "Fewer heads not measured"};
// Off: the forward with a bias in tiles of 128 rows, too.
inline constexpr SpeedRule whole_forward_bias{
    "cuda.sm80.rule.whole_forward_bias",
    "2,048 heads of 128 x 128, D 8, with a bias: 0.056 ms on sm90, 0.072 here"};

constexpr const SpeedRule* kAll[] = {
    &dq_postprocess, &small_tiles,  &dbias_tiles,    &all_keys,        &deep_stages,
    &few_splits,     &joins_dq,     &whole_few_rows, &whole_few_heads, &whole_forward_bias,
    &key_warps,      &programmatic, &few_lengths};

}  // namespace sm80_rule
}  // namespace tandem
#endif
