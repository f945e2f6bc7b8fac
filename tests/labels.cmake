# SPDX-License-Identifier: MIT OR Apache-2.0
# Labels of tests, by their names: ctest -L LABEL, -LE LABEL. CONTRIBUTING.md says which to run after a change; the test
# `labels` sees that every test has one, and that the page names them all.
set(TANDEM_LABELS
  # label  names
  "unit       ^(unit|unit[.]vulkan|handles|threads|lengths|fork|host_memory|host_memory[.]vulkan|labels|scripts[.].*)$"
  "plan       ^(plans?[.]|parity[.]recorded)"
  "parity     ^parity[.]"
  "driver     (lavapipe|swiftshader|vulkan|gpuav|[.]sync|^broken[.]races|^plan[.]time$|^cache[.]tools$|^specialise)"
  "emulated   (emulated|^cuda_(fixed|devices)$|^cuda_plugin[.])"
  "mutation   ^(broken|mutation)[.]"
  "sanitized  [.]sanitized$"
  "fuzz       ^fuzz[.]"
  "compiled   ^(compiled|translated)[.]"
  "tools      ^(info|doctor|verbose|check|bench|wrong|plan[.]time|cache[.]tools)"
  "python     ^python[.]"
  "docs       ^docs[.]"
  "install    ^(abi|headers|consumers[.].*)$"
  "examples   ^(example[.]|char_lm)"
  "gpu        ^(sm90_instructions|cuda_graph|cuda_context.*|interop|example[.]cuda_graph)$" # skipped where there is none
  # Two minutes after a build (scripts/test quick).
  "quick      ^(unit|labels|handles|info|wrong[.].*|plan[.](cost_fit|cuda_includes)|parity[.]quick[.].*|hopper_emulated|cuda_fixed|python[.](numpy|lint)|docs[.](pages|report|kernels))$")

# At the end of every folder that adds tests.
function(tandem_label_tests)
  get_property(names DIRECTORY PROPERTY TESTS)
  foreach(name IN LISTS names)
    foreach(row IN LISTS TANDEM_LABELS)
      string(REGEX MATCH "^([a-z]+) +(.*)$" row "${row}")
      set(label ${CMAKE_MATCH_1})
      if(name MATCHES "${CMAKE_MATCH_2}")
        set_property(TEST ${name} APPEND PROPERTY LABELS ${label})
      endif()
    endforeach()
  endforeach()
endfunction()
