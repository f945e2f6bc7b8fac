// SPDX-License-Identifier: MIT OR Apache-2.0
// What a kernel asks of the parts. It defines these before it includes begin.glsl; here are those
// of the others, and what each one means. Values may use what the parts define.

// ---- the workgroup's rows ----
#ifndef FLIPS // the kernel owns keys: they are the rows of its blocks, and query rows the columns
#define FLIPS false
#endif
#ifndef HAS_ENTRIES // 1: the interface has ENTRIES, the batch entries of a workgroup at once
#define HAS_ENTRIES 0
#endif
#ifndef TEAMS // 1: each of these entries has a team of subgroups (matrix.glsl)
#define TEAMS 0
#endif
#ifndef SUBGROUP_PAIRS // 1: two subgroups own the same rows (pair.glsl)
#define SUBGROUP_PAIRS 0
#endif
#ifndef SPLIT_D // 1: several subgroups own the same rows, each a slice of features (split_d.glsl)
#define SPLIT_D 0
#endif
#ifndef VISITS_ALL // tiles without a key that spans and keep show are visited, too
#define VISITS_ALL false
#endif
#ifndef SKIPPED // what is done for tiles that are skipped, from t on, before end
#define SKIPPED(t, end, first)
#endif

// ---- shared memory ----
// STREAMED: length of the streamed tiles' array, where it is not that of two tiles (matrix.glsl)
#ifndef NO_SCRATCH // 1: nothing needs the scratch
#define NO_SCRATCH 0
#endif
#ifndef LEAVES_HALF // copies leave out half of the invocations where so many are beyond the tile
#define LEAVES_HALF false
#endif
#ifndef KEEP_BY_ELEMENT // 1: keep is looked up element by element, not by bits in the scratch
#define KEEP_BY_ELEMENT 0
#endif
#ifndef ROW_CHUNKS // from a row of a tensor to the next, in 16 bytes
#define ROW_CHUNKS(t, chunks) int(t.row.x >> 4)
#endif
#ifndef TILES_EXIST // all rows of streamed tiles do
#define TILES_EXIST (WHOLE != 0)
#endif

// ---- a dense bias (bias.glsl) ----
#ifndef BIAS_IN_BLOCKS // without coopmat2: there are registers for whole blocks of it
#define BIAS_IN_BLOCKS false
#endif
#ifndef BIAS_SPAN // adjacent blocks that become matrices at once, where NB is even
#define BIAS_SPAN 1
#endif
#ifndef PIPES_BIAS // a block passes through the scratch during the products before it
#define PIPES_BIAS false
#endif
#ifndef BIAS_BEGINS // products start from the bias, divided by the scale (element.glsl)
#define BIAS_BEGINS false
#endif

// ---- scores and operands ----
#ifndef MASKS_FIRST // products start from the mask, where that is exact (element.glsl)
#define MASKS_FIRST false
#endif
#ifndef WANTS_SLOPE // softcap's derivative is needed
#define WANTS_SLOPE false
#endif
#ifndef ROUNDS_FAST // to bf16 by a maximum of integers (matrix.glsl)
#define ROUNDS_FAST false
#endif
// 1: without NV_cooperative_matrix2, elements are rounded to bf16 in the scratch, as accumulators
// of f16 may have elements in other places than those of f32 (Mesa, Intel)
#ifndef ROUNDS_IN_SCRATCH
#define ROUNDS_IN_SCRATCH 0
#endif
