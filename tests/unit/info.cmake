# SPDX-License-Identifier: MIT OR Apache-2.0
# `tandem info --json` is what docs/guide/bug-reports.md says of it. TANDEM_DISABLE=cpu.simd is set.
#   cmake -D TOOL=... -D VERSION=... -P unit/info.cmake
cmake_minimum_required(VERSION 3.22)
execute_process(COMMAND ${TOOL} info --json OUTPUT_VARIABLE info COMMAND_ERROR_IS_FATAL ANY)

function(expect value)
  string(JSON found GET "${info}" ${ARGN}) # an error where a member is missing
  if(NOT found MATCHES "${value}")
    message(SEND_ERROR "${ARGN} is '${found}', not '${value}'")
  endif()
endfunction()

expect("^1$" form)
expect("^${VERSION}$" version)
expect("." commit)
expect("[0-9]" build compiler)
expect("^cpu$" build backends 0)
expect("." system)
expect("^cpu.simd$" environment TANDEM_DISABLE)
expect("^cpu$" devices 0 name)
expect("^ON$" devices 0 usable)
expect("." devices 0 device)
expect("[0-9]" devices 0 capabilities threads)
expect("^(fwd|bwd) " devices 0 problems 0 problem)
string(JSON count LENGTH "${info}" devices 0 problems)
if(count LESS 8)
  message(SEND_ERROR "only ${count} usual problems")
endif()
# Why a path is not taken.
expect("cpu.simd" devices 0 problems 0 explain 0)
foreach(list paths tiles matrix_tiles kernels)
  string(JSON count LENGTH "${info}" ${list})
  if(count LESS 2)
    message(SEND_ERROR "only ${count} ${list}")
  endif()
endforeach()
expect("^fwd$" kernels 0 stem)
