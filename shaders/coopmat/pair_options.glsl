// SPDX-License-Identifier: MIT OR Apache-2.0
// Options of the kernels by pairs of subgroups (pair.glsl).
#define SUBGROUP_PAIRS 1
#define LEAVES_HALF true // backwards of D 192 take 6 to 19 % less time (H200, 580.159.04)
#define KEEP_BY_ELEMENT 1
#define ROUNDS_FAST true
