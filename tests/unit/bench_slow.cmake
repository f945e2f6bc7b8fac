# SPDX-License-Identifier: MIT OR Apache-2.0
# `tandem bench` names a case that took more than twice its plan's estimate, and no other.
#   cmake -D TOOL=... -D FOLDER=... -P unit/bench_slow.cmake
cmake_minimum_required(VERSION 3.22)
file(MAKE_DIRECTORY ${FOLDER})
file(WRITE ${FOLDER}/slow.json [[{
  "header": {"device": "a GPU"},
  "rows": [
    {"case": "slow", "op": "fwd", "impl": "tandem", "backend": "vulkan", "path": "scalar", "ms": 3.0, "estimated_ms": 1.0},
    {"case": "usual", "op": "fwd", "impl": "tandem", "backend": "vulkan", "path": "scalar", "ms": 1.9, "estimated_ms": 1.0},
    {"case": "unknown", "op": "fwd", "impl": "tandem", "backend": "vulkan", "path": "scalar", "ms": 9.0},
    {"case": "refused", "op": "fwd", "impl": "other", "ms": null, "estimated_ms": 1.0}
  ]
}]])
execute_process(COMMAND ${TOOL} bench --merge ${FOLDER}/slow.json OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[a-z]+ fwd: [^\n]* its estimate of [^\n]*" said "${table}")
if(NOT said STREQUAL "slow fwd: vulkan.scalar took 3.0 times its estimate of 1 ms")
  message(FATAL_ERROR "said '${said}' of\n${table}")
endif()
