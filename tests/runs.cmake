# SPDX-License-Identifier: MIT OR Apache-2.0
# One table: which suite runs where, how much of it, and why. On CPUs it is the compilers of drivers and the emulator that take
# the time, so that most rows have a share; a GPU has all of every suite (scripts/gpu-suite).
#
# tandem_run(name driver program device share off cases why [COST seconds] [VARIABLE=VALUE...])
#   name     of the test
#   driver   what tests/on-driver knows, +core, +sync or +gpuav: watched by the validation layer; -: none
#   program  the parity suite, or a program made of it
#   device   TANDEM_DEVICE: device and paths
#   share    TANDEM_SHARD: this one of so many parts of the problems; -: all, as all rows with -DTANDEM_WHOLE_SUITES=ON
#   off      TANDEM_DISABLE: a list below; -: nothing
#   cases    doctest's arguments; "": all cases
#   why      ... this share, or these cases
#   COST     about how long it takes on a fresh clone: long ones begin first, so that none runs alone at the end
function(tandem_run name driver program device share off cases why)
  cmake_parse_arguments(own "" COST "" ${ARGN})
  if(why STREQUAL "")
    message(FATAL_ERROR "tests/runs.cmake: ${name} has no reason")
  endif()
  if(driver STREQUAL "-")
    add_test(NAME ${name} COMMAND ${program} ${cases})
  elseif(NOT TANDEM_WITH_VULKAN OR NOT UNIX)
    return()
  else()
    tandem_driver_test(${name} ${driver} ${program} ${cases})
  endif()
  set(environment "TANDEM_DEVICE=${device}" ${own_UNPARSED_ARGUMENTS})
  if(NOT share STREQUAL "-" AND NOT TANDEM_WHOLE_SUITES)
    list(APPEND environment "TANDEM_SHARD=${share}")
  endif()
  if(NOT off STREQUAL "-")
    list(JOIN ${off} "," names)
    list(APPEND environment "TANDEM_DISABLE=${names}")
  endif()
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment}")
  if(own_COST)
    set_tests_properties(${name} PROPERTIES COST ${own_COST})
  endif()
  if(TANDEM_WHOLE_SUITES)
    set_tests_properties(${name} PROPERTIES TIMEOUT 14400) # a twelfth takes up to 400 s
  endif()
endfunction()

# ---- cases ----
# Patterns end at commas, which some names have: these are named by their beginnings.
set(magnitudes magnitudes:* "regression: magnitudes:*") # scores, masks and values of any size: every path has them apart
set(exact "*every fill*")
set(inputs "features: a few*")
set(splits "splits: a few*")
set(sums "regression: sums*")
set(blind "rows that see no key*") # the most awkward masks
set(few ${exact} ${inputs} ${splits} "regression: lse*" ${sums} ${blind})
# tandem_cases(out pattern...): arguments that run these; tandem_cases_but: all others.
function(tandem_cases out)
  list(JOIN ARGN "," patterns)
  set(${out} "-tc=${patterns}" PARENT_SCOPE)
endfunction()
function(tandem_cases_but out)
  list(JOIN ARGN "," patterns)
  set(${out} "-tce=${patterns}" PARENT_SCOPE)
endfunction()

# ---- tiles to switch off ----
# The names of the rows of src/plan/coopmat/tiles.inc, list MATRIX or DOUBLED.
function(tandem_matrix_rows out list)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/plan/coopmat/tiles.inc)
  file(READ ${PROJECT_SOURCE_DIR}/src/plan/coopmat/tiles.inc rows)
  string(REGEX MATCHALL "TANDEM_${list}_TILE\\([a-z0-9]+" rows "${rows}")
  string(REPLACE "TANDEM_${list}_TILE(" "" rows "${rows}")
  set(${out} ${rows} PARENT_SCOPE)
endfunction()
tandem_matrix_rows(matrix MATRIX) # leaves the doubled tiles
foreach(list PAIR STRIPS)
  tandem_matrix_rows(rows ${list})
  list(APPEND matrix ${rows})
endforeach()
tandem_matrix_rows(doubled DOUBLED)
set(to_lean ${matrix} ${doubled}) # leaves the lean tiles
set(wide "") # leaves the tiles for little shared memory
foreach(row IN LISTS matrix)
  if("${row}n" IN_LIST matrix)
    list(APPEND wide ${row})
  endif()
endforeach()
set(pair_of_entries ${wide} dq64 dq64n shared_ds)
# Of the scalar path, all rows of src/plan/tiles.inc before the one that is to run.
set(to_t64r4l t64k32 t64k16 t32k16)
set(to_t64k16l ${to_t64r4l} t64r4l) # t64l is t64k16l with deeper steps, for which no CPU driver has the shared memory
set(to_t32l ${to_t64k16l} t64k16l)
set(to_pairs ${to_t32l} t32l)

# ---- the CPU, and GPUs that are not there ----
set(of_gpus "*of many heads" "regression: many tiles*" "regression: d_bias over clusters*" "regression: workgroups that share*"
  "regression: lse tail*" "regression: wide heads*" "regression: a bias of the whole batch*" "regression: whole heads on*"
  "regression: with a bias*" "regression: d_bias over slices*" "regression: some tiles*")
tandem_cases_but(cases ${magnitudes} ${of_gpus})
tandem_run(parity.cpu - tandem_parity cpu 0/2 - ${cases}
  "without the sizes at which a GPU's tiles meet its SMs: over half of the time, and no other code here"
  TANDEM_TIER=ci TANDEM_ALL_ROWS=rows)
tandem_cases(cases ${magnitudes} "merge: a few*")
tandem_run(parity.magnitudes.cpu - tandem_parity cpu - - ${cases} "all" TANDEM_TIER=ci TANDEM_ALL_ROWS=rows)
set(recorded recorded:h100_cuda/sm90 recorded:h100_cuda/sm80 recorded:h100_cuda/simt
  recorded:h100_vulkan/coopmat2 recorded:h100_vulkan/coopmat recorded:h100_vulkan/scalar)
list(JOIN recorded "," recorded)
tandem_run(parity.recorded - tandem_parity ${recorded} - - ""
  "nothing is computed: each kernel that the device can run must be reached by some case of the tier"
  TANDEM_TIER=smoke TANDEM_ALL_ROWS=rows)
tandem_run(parity.recorded.limits - tandem_parity recorded:mali_g52/scalar - - ""
  "the GPU with the least room: scalar takes every problem, and its modules keep to the limits"
  TANDEM_TIER=smoke TANDEM_ALL_ROWS=rows)

# ---- CUDA, emulated ----
# parity.recorded sees that the cases reach every kernel.
if(TARGET tandem_parity_emulated)
  tandem_cases_but(cases ${magnitudes})
  tandem_run(parity.cuda_emulated - tandem_parity_emulated cuda:0 1/3 - ${cases} "the emulator is slow" COST 80)
  tandem_cases(cases ${magnitudes})
  tandem_run(parity.magnitudes.simt_emulated - tandem_parity_emulated cuda:0/simt 1/2 - ${cases}
    "the emulator is slow" COST 50)
  tandem_run(parity.magnitudes.sm80_emulated - tandem_parity_emulated cuda:0/sm80 1/2 - ${cases}
    "the emulator is slow" COST 50)
  tandem_cases(cases ${magnitudes} "regression: sm90 forward* large sinks*" "regression: sm90 forward* elastic softmax*")
  tandem_run(parity.magnitudes.sm90_emulated - tandem_parity_emulated cuda:0/sm90 1/2 - ${cases}
    "with the quick ones of sm90's own" COST 50 "TANDEM_EMULATED=sm90x7#1")
  # On an emulated Hopper of 7 SMs, threads, copies and products go on in an order of the seed.
  tandem_cases_but(cases ${magnitudes} "*of many heads" "regression: many tiles*" "regression: *: rest"
    "regression: d_bias over clusters*" "regression: with a bias* three*" "regression: wide heads*" "regression: *whole heads*" "regression: sm90 forward*")
  tandem_run(parity.sm90_emulated - tandem_parity_emulated cuda:0/sm90 0/3 - ${cases}
    "without cases that take as long as all others, one of sm80's tiles, and forwards of large scores: minutes each"
    COST 80 "TANDEM_EMULATED=sm90x7#1" TANDEM_TIER=ci)
  # Between pages that nothing may touch (harness/guard_pages.h). check.guard.* are of unit/border.cmake.
  tandem_cases(cases ${exact} ${inputs} ${blind} "merge: a few*")
  tandem_run(parity.guard.cuda_emulated.last - tandem_parity_emulated cuda:0 - - ${cases}
    "accesses outside of a tensor; a case of each kind" "TANDEM_EMULATED=sm90x7#1" TANDEM_GUARD_PAGES=last)
  tandem_run(parity.guard.cuda_emulated.first - tandem_parity_emulated cuda:0 0/2 - ${cases}
    "the same before a tensor, where fewer mistakes are made" "TANDEM_EMULATED=sm90x7#1" TANDEM_GUARD_PAGES=first)
endif()

# ---- a part of each in seconds, for scripts/test quick ----
tandem_cases(cases ${exact} ${inputs} ${blind})
tandem_run(parity.quick.cpu - tandem_parity cpu - - ${cases} "quick")
if(TARGET tandem_parity_emulated)
  tandem_run(parity.quick.sm90_emulated - tandem_parity_emulated cuda:0/sm90 - - ${cases} "quick" "TANDEM_EMULATED=sm90x7#1")
endif()
tandem_cases(cases ${exact} ${blind})
tandem_run(parity.quick.lavapipe26 lavapipe26 tandem_parity vulkan:0/scalar - - ${cases} "quick")
if(NOT TANDEM_WITH_VULKAN OR NOT UNIX)
  return()
endif()

# ---- Vulkan, tiles without matrices ----
# The layer watches here, and with matrices below: sync is all of core and barriers beside it, and results are judged as
# without; without it run lavapipe25, swiftshader and parity.lavapipe26.<path>.
tandem_cases_but(cases ${magnitudes})
tandem_run(parity.lavapipe26 lavapipe26+sync tandem_parity vulkan:0/scalar,cpu/simd 3/4 - ${cases}
  "a share that has every row; all kernels compile in 15 minutes. The CPU's vectors come along for backend against backend"
  COST 500 TANDEM_ALL_ROWS=rows)
tandem_cases(cases ${few})
tandem_run(parity.lavapipe25 lavapipe25 tandem_parity vulkan:0 0/6 - ${cases}
  "the same kernels by an older compiler" COST 70)
tandem_run(parity.swiftshader swiftshader tandem_parity vulkan:0,cpu/simd 1/6 - ${cases}
  "the slowest compiler; no f16, the smallest limits")
tandem_cases(guarded ${inputs} "merge: a few*")
tandem_run(parity.guard.lavapipe26 lavapipe26 tandem_parity vulkan:0/scalar - - ${guarded}
  "accesses outside of a tensor (harness/guard_pages.h), by an application's addresses; a case of each kind"
  TANDEM_GUARD_PAGES=last)
tandem_run(parity.lavapipe26.t64r4l lavapipe26 tandem_parity vulkan:0/scalar 1/3 to_t64r4l ${cases}
  "a lean tile, with a part of the same")
tandem_run(parity.lavapipe26.t64k16l lavapipe26 tandem_parity vulkan:0/scalar 0/2 to_t64k16l ${cases}
  "a lean tile, with a part of the same")
tandem_run(parity.lavapipe26.t32l lavapipe26 tandem_parity vulkan:0/scalar 2/3 to_t32l ${cases}
  "a lean tile, with a part of the same")
tandem_cases(cases ${exact})
tandem_run(parity.lavapipe26.pairs lavapipe26 tandem_parity vulkan:0/scalar 0/4 to_pairs ${cases}
  "tiles of pairs come behind those on this driver; they know no optional inputs")
tandem_cases(cases "magnitudes: few*" "regression: magnitudes: one*" "regression: magnitudes: a sink*")
tandem_run(parity.magnitudes.lavapipe26 lavapipe26 tandem_parity vulkan:0/scalar - - ${cases} "those that share kernels")
tandem_cases(cases "regression: magnitudes: a sink*")
tandem_run(parity.magnitudes.swiftshader swiftshader tandem_parity vulkan:0 - - ${cases} "minutes for each kernel")
tandem_cases(cases ${inputs} ${splits} ${sums} ${blind} "merge: a few*")
tandem_run(validation.gpuav lavapipe26+gpuav tandem_parity vulkan:0/scalar - - ${cases}
  "instrumented shaders take minutes to compile: every kernel, but fewer kinds of it" TANDEM_ALL_ROWS=stems)

# ---- Vulkan, matrices ----
# What takes time is lavapipe's compiler, which goes by the products of matrices that stand in a kernel
# (docs/kernels/coopmat.md, "Drivers"). So the smoke tier runs with the tiles for little shared memory, without cases that
# other rows judge on both paths (validation.sync, validation.gpuav) or on this one (entries); the exact suite with those that a
# plan prefers; and validation.sync has optional inputs and splits with these.
set(judged ${inputs} "features: biases*" ${splits} ${sums} "regression: rows and*" "regression: biases*")
tandem_cases_but(cases ${magnitudes} ${judged} "regression: entries*")
tandem_run(parity.lavapipe26.coopmat2 lavapipe26 tandem_parity vulkan:0/coopmat2 0/8 wide ${cases}
  "minutes of compiler" COST 250)
tandem_cases_but(cases ${magnitudes} ${judged})
set(wide_moves ${wide} matrix_copies) # operands pass through the scratch, as on most devices; this one has copies
tandem_run(parity.lavapipe26.coopmat lavapipe26 tandem_parity vulkan:0/coopmat 1/12 wide_moves ${cases}
  "minutes of compiler" COST 400)
tandem_cases(cases ${exact})
tandem_run(parity.lavapipe26.coopmat2.wide lavapipe26 tandem_parity vulkan:0/coopmat2 - - ${cases}
  "the tiles that a plan prefers")
tandem_run(parity.lavapipe26.coopmat.wide lavapipe26 tandem_parity vulkan:0/coopmat - - ${cases}
  "the tiles that a plan prefers")
tandem_cases(cases ${inputs} "features: biases*" ${splits} ${sums})
tandem_run(validation.sync.coopmat2 lavapipe26+sync tandem_parity vulkan:0/coopmat2 0/2 - ${cases}
  "what barriers order is the plan's, the same on both paths" COST 350)
tandem_run(validation.sync.coopmat lavapipe26+sync tandem_parity vulkan:0/coopmat 1/4 - ${cases}
  "as coopmat2, which has more")
tandem_cases(cases "regression: entries*")
tandem_run(parity.lavapipe26.entries lavapipe26 tandem_parity vulkan:0/coopmat2 - pair_of_entries ${cases}
  "two batch entries at once, which tiles of wider heads take")
# Shapes that lavapipe does not list, and tensor addressing, both emulated (vulkan/shapes/shapes.cmake).
set(to_16x8x16 8x16x16)
set(to_8x16x16 16x8x16)
set(to_tensors 16x8x16 fwd64 fwd64n fwd128 fwd128n fwd16 fwd16w)
set(to_lean_8x16x16 16x8x16 ${to_lean})
tandem_cases(cases ${splits} "exact: backward*")
tandem_run(parity.lavapipe26.16x8x16 lavapipe26 tandem_shapes vulkan:0/coopmat 1/16 to_16x8x16 ${cases}
  "the shape of NVIDIA's GPUs; products of elements are slow to compile")
tandem_cases(cases ${splits})
tandem_run(parity.lavapipe26.8x16x16 lavapipe26 tandem_shapes vulkan:0/coopmat - to_8x16x16 ${cases}
  "a forward of Intel's shape; its backward have the lean tiles below")
tandem_cases(cases "regression: rows by tensor*")
tandem_run(parity.lavapipe26.tensors lavapipe26 tandem_shapes vulkan:0/coopmat2 - to_tensors ${cases} "tensor addressing")
# The tiles that are the last resort here, with all before them switched off: for operands of twice the registers, and lean ones.
tandem_cases(cases "ratio: two shapes*" ${blind})
tandem_run(parity.lavapipe26.doubled lavapipe26 tandem_parity vulkan:0/coopmat - matrix ${cases}
  "minutes of compiler; check.lavapipe26.doubled.* has more")
tandem_cases(cases ${exact} ${inputs} "features: biases*" ${splits} "ratio: two shapes*" ${sums} "regression: lse*"
  "regression: far*" ${blind})
list(APPEND cases "-tce=*far smaller*") # heads beyond 128
tandem_run(parity.lavapipe26.lean lavapipe26 tandem_parity vulkan:0/coopmat 2/4 to_lean "${cases}"
  "every optional input, splits, exact results, awkward masks")
tandem_cases(cases "magnitudes: few*")
tandem_run(parity.magnitudes.lavapipe26.lean lavapipe26 tandem_parity vulkan:0/coopmat - to_lean ${cases}
  "the other matrix tiles have these on a GPU alone")
tandem_cases(cases ${splits} "exact: backward*")
tandem_run(parity.lavapipe26.lean.8x16x16 lavapipe26 tandem_shapes vulkan:0/coopmat 3/4 to_lean_8x16x16 ${cases}
  "Intel's shape, backward")

# ---- Vulkan, races in shared memory ----
# The matrix kernels in the form that the layer's check can follow (mutation/races.cmake). Minutes each, so the cases are
# shared out between the paths and the two kinds of shared memory.
set(no_shared_ds shared_ds)
set(no_shared_ds_moves shared_ds matrix_copies)
set(no_shared_ds_dkv64_moves dkv64 shared_ds matrix_copies)
set(no_shared_ds_dkv64 dkv64 shared_ds) # bwd_dkv with a tile by which a bias goes through the scratch ahead of its block
tandem_cases(cases "regression: entries*")
tandem_run(validation.gpuav.tiles.entries lavapipe26+gpuav tandem_races_tiles vulkan:0/coopmat2 - pair_of_entries ${cases}
  "two batch entries at once")
tandem_run(validation.gpuav.scratch.entries lavapipe26+gpuav tandem_races_scratch vulkan:0/coopmat2 - pair_of_entries ${cases}
  "two batch entries at once")
tandem_cases(cases "regression: tiles in turns*" "regression: biases in turns*")
tandem_run(validation.gpuav.tiles.coopmat2 lavapipe26+gpuav tandem_races_tiles vulkan:0/coopmat2 - no_shared_ds ${cases}
  "barriers of the workgroup are the same text on both paths")
tandem_cases(cases "regression: rows and sums*")
tandem_run(validation.gpuav.scratch.coopmat2 lavapipe26+gpuav tandem_races_scratch vulkan:0/coopmat2 - no_shared_ds ${cases}
  "shared with coopmat")
tandem_run(validation.gpuav.tiles.lean lavapipe26+gpuav tandem_races_tiles vulkan:0/coopmat - to_lean ${cases}
  "shared with scratch")
tandem_cases(cases "regression: dropped tiles*" "regression: biases in turns*")
tandem_run(validation.gpuav.scratch.coopmat lavapipe26+gpuav tandem_races_scratch vulkan:0/coopmat - no_shared_ds_moves ${cases}
  "shared with coopmat2")
tandem_cases(cases "regression: biases in turns*")
tandem_run(validation.gpuav.scratch.lean lavapipe26+gpuav tandem_races_scratch vulkan:0/coopmat - to_lean ${cases}
  "shared with tiles")

# ---- and kernels with defects ----
# These programs have no modules of shared dS. Five kernels (where dS is shared bwd_dbias has no products), each dispatched
# twice, of which the layer takes six messages each.
tandem_cases(cases "regression: rows and sums*")
tandem_run(broken.races.tiles lavapipe26+gpuav tandem_races_tiles_broken vulkan:0/coopmat2 - no_shared_ds ${cases}
  "barriers of the workgroup are the same text on both paths")
tandem_run(broken.races.scratch.coopmat2 lavapipe26+gpuav tandem_races_scratch_broken vulkan:0/coopmat2 - no_shared_ds_dkv64 ${cases}
  "five defects")
tandem_run(broken.races.scratch.coopmat lavapipe26+gpuav tandem_races_scratch_broken vulkan:0/coopmat - no_shared_ds_dkv64_moves ${cases}
  "five defects")
set_tests_properties(broken.races.tiles broken.races.scratch.coopmat2 broken.races.scratch.coopmat PROPERTIES
  PASS_REGULAR_EXPRESSION "with-driver: 60 validation messages")
# Kernels that are wrong on purpose: their patches say which cases have to fail. Where tests compile the same kernels, one
# goes first and the others find them in Mesa's cache.
set(share_of_broken_bwd_row_sums 2/3) # parts of the tier ci in which both suites notice all that the stem writes
set(share_of_broken_bwd_dbias 2/3)
set(share_of_broken_bwd_sum_splits 0/3)
set(share_of_broken_bwd_head_sums 1/2)
foreach(stem IN LISTS TANDEM_BROKEN)
  foreach(path coopmat2 coopmat)
    if(DEFINED ${path}_${stem}_from)
      tandem_run(broken.${stem}.lavapipe26.${path} lavapipe26 tandem_broken_${stem} vulkan:0/${path} - wide
        "-tc=${TANDEM_BROKEN_MATRIX}"
        "one wrong kernel" TANDEM_EXPECT_BROKEN=${stem})
      set_tests_properties(broken.${stem}.lavapipe26.${path} PROPERTIES DEPENDS parity.lavapipe26.${path})
    endif()
  endforeach()
  set(share -)
  if(DEFINED share_of_broken_${stem})
    set(share ${share_of_broken_${stem}})
  endif()
  tandem_run(broken.${stem}.lavapipe26 lavapipe26 tandem_broken_${stem} vulkan:0/scalar ${share} - "-tc=${TANDEM_BROKEN_${stem}}"
    "one wrong kernel" ${broken_environment_${stem}})
  set_tests_properties(broken.${stem}.lavapipe26 PROPERTIES DEPENDS parity.lavapipe26)
endforeach()
