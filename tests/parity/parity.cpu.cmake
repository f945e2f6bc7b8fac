# SPDX-License-Identifier: MIT OR Apache-2.0
# The suite on the CPU device, and what tests on drivers share.
# Scores, masks and values of any size (parity/magnitudes.cpp) have tests of their own, on every
# path: each of them must reach every kernel of its path.
set(TANDEM_MAGNITUDES "-tc=magnitudes:*,regression: magnitudes:*")
set(TANDEM_NO_MAGNITUDES "-tce=magnitudes:*,regression: magnitudes:*")
# Half of the problems, without the sizes at which a GPU's tiles meet its multiprocessors: over half
# of the time, and no other code here.
set(of_gpus "*of many heads,regression: many tiles*,regression: d_bias over clusters*")
string(APPEND of_gpus ",regression: workgroups that share*,regression: lse tail*,regression: wide heads*")
string(APPEND of_gpus ",regression: a bias of the whole batch*,regression: whole heads on*,regression: with a bias*")
string(APPEND of_gpus ",regression: d_bias over slices*,regression: some tiles*")
add_test(NAME parity.cpu COMMAND tandem_parity "${TANDEM_NO_MAGNITUDES},${of_gpus}")
set_tests_properties(parity.cpu PROPERTIES
  ENVIRONMENT "TANDEM_DEVICE=cpu;TANDEM_TIER=ci;TANDEM_ALL_ROWS=rows;TANDEM_SHARD=0/2")
add_test(NAME parity.magnitudes.cpu COMMAND tandem_parity ${TANDEM_MAGNITUDES})
set_tests_properties(parity.magnitudes.cpu PROPERTIES ENVIRONMENT "TANDEM_DEVICE=cpu;TANDEM_TIER=ci;TANDEM_ALL_ROWS=rows")
# The tier smoke, on GPUs that are not there: nothing is computed, and each kernel that the device can
# run must be reached by some case.
set(recorded "")
foreach(path sm90 sm80 simt)
  list(APPEND recorded recorded:h100_cuda/${path})
endforeach()
foreach(path coopmat2 coopmat scalar)
  list(APPEND recorded recorded:h100_vulkan/${path})
endforeach()
list(JOIN recorded "," recorded)
add_test(NAME parity.recorded COMMAND tandem_parity)
set_tests_properties(parity.recorded PROPERTIES ENVIRONMENT "TANDEM_DEVICE=${recorded};TANDEM_TIER=smoke;TANDEM_ALL_ROWS=rows")
# The same on the GPU with the least room: the scalar path takes every problem, and its modules keep to the limits.
add_test(NAME parity.recorded.limits COMMAND tandem_parity)
set_tests_properties(parity.recorded.limits PROPERTIES
  ENVIRONMENT "TANDEM_DEVICE=recorded:mali_g52/scalar;TANDEM_TIER=smoke;TANDEM_ALL_ROWS=rows")
