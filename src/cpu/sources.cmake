# SPDX-License-Identifier: MIT OR Apache-2.0
set(TANDEM_CPU_SOURCES
  src/cpu/bwd_dkv_ref.cpp src/cpu/bwd_dot_ref.cpp src/cpu/bwd_dq_ref.cpp src/cpu/device.cpp
  src/cpu/fwd_ref.cpp src/cpu/pool.cpp src/cpu/ref_program.cpp src/cpu/reference.cpp
  src/cpu/simd_program.cpp)
# The loops of the reference vectorise at O3, and tests run them a lot, in debug builds too.
if(NOT MSVC)
  set_source_files_properties(src/cpu/bwd_dkv_ref.cpp src/cpu/bwd_dot_ref.cpp
    src/cpu/bwd_dq_ref.cpp src/cpu/fwd_ref.cpp PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off")
endif()
