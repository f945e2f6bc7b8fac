// SPDX-License-Identifier: MIT OR Apache-2.0
// Options of the kernels by pairs of subgroups (pair.glsl).
#define SUBGROUP_PAIRS 1
#define KEEP_BY_ELEMENT 1
#define ROUNDS_FAST true
