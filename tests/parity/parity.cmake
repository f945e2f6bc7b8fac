# SPDX-License-Identifier: MIT OR Apache-2.0
# The parity suite (tandem_parity).
set(TANDEM_PARITY_SOURCES
  parity/exact_inputs.cpp parity/parity.cpp parity/batch_invariant.cpp parity/biases.cpp parity/biases_f32.cpp parity/big.cpp parity/dbias.cpp parity/exact.cpp
  parity/exact_features.cpp parity/f64.cpp
  parity/f32_inputs.cpp parity/features.cpp parity/gaps.cpp parity/groups.cpp parity/lse_gradient.cpp parity/magnitudes.cpp parity/max_logit.cpp parity/main.cpp parity/merge.cpp parity/pairs.cpp parity/parts.cpp parity/ratio.cpp parity/reuse.cpp parity/spans.cpp parity/tables.cpp parity/wide_heads.cpp
  parity/regressions.cpp parity/regressions_bias_keep.cpp parity/regressions_bias_lengths.cpp parity/regressions_far.cpp parity/regressions_far_sm90.cpp parity/whole_heads.cpp parity/slices.cpp parity/workspace.cpp
  parity/regressions_features.cpp parity/regressions_magnitudes.cpp parity/regressions_sm90_fwd.cpp
  parity/rows.cpp parity/seeds.cpp parity/splits.cpp parity/tf32.cpp parity/recorded_session.cpp)
add_library(tandem_parity_objects OBJECT ${TANDEM_PARITY_SOURCES})
tandem_test_target(tandem_parity_objects)
add_executable(tandem_parity $<TARGET_OBJECTS:tandem_parity_objects>)
tandem_test_target(tandem_parity)
if(TANDEM_WITH_VULKAN)
  target_sources(tandem_parity PRIVATE parity/recorded_limits.cpp)
  target_include_directories(tandem_parity SYSTEM PRIVATE ${TANDEM_VOLK_INCLUDE_DIR})
endif()
