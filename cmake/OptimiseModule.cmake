# SPDX-License-Identifier: MIT OR Apache-2.0
# A module of SPIR-V, optimised in its place, so that drivers compile it in less time:
#   cmake -D OPTIMISER=spirv-opt -D MODULE=NAME.spv -P OptimiseModule.cmake
# Specialisation constants stay, and so do the sums and products that the shader wrote, in their order. Functions with one return
# are inlined. Others stay: the pass that would give them one return more than doubles the module. What is inlined becomes
# half as long with values in place of variables, whole arrays and structures too.
cmake_minimum_required(VERSION 3.22)
set(passes
  --inline-entry-points-exhaustive --eliminate-dead-functions
  --scalar-replacement=0 --convert-local-access-chains --eliminate-local-single-block --eliminate-local-single-store --ssa-rewrite
  --redundancy-elimination --simplify-instructions --eliminate-dead-code-aggressive --merge-blocks)
# The optimiser warns of each call that it leaves.
execute_process(COMMAND ${OPTIMISER} ${passes} ${MODULE} -o ${MODULE}
                RESULT_VARIABLE status OUTPUT_VARIABLE messages ERROR_VARIABLE messages)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${OPTIMISER} failed for ${MODULE} (${status}):\n${messages}")
endif()
