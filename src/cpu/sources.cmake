# SPDX-License-Identifier: MIT OR Apache-2.0
set(TANDEM_CPU_REF_SOURCES
  src/cpu/bwd_dbias_ref.cpp src/cpu/bwd_dist_bias_ref.cpp src/cpu/bwd_dkv_ref.cpp src/cpu/bwd_dot_ref.cpp
  src/cpu/bwd_dq_ref.cpp src/cpu/bwd_head_sums_ref.cpp src/cpu/bwd_row_sums_ref.cpp src/cpu/fwd_ref.cpp
  src/cpu/bwd_merge_ref.cpp src/cpu/merge_ref.cpp src/cpu/reduce_table_ref.cpp src/cpu/ref_entmax.cpp src/cpu/ref_gradient.cpp src/cpu/ref_row.cpp)
set(TANDEM_CPU_SOURCES
  ${TANDEM_CPU_REF_SOURCES} src/cpu/device.cpp src/cpu/pool.cpp src/cpu/ref_program.cpp
  src/cpu/reference.cpp src/cpu/simd_baseline.cpp src/cpu/simd_program.cpp
  src/cpu/simd_merge.cpp src/cpu/simd_sums.cpp src/cpu/simd_terms.cpp)

if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  # O3 in every build type: tests run the loops of the reference a lot, and the kernels are nothing
  # without it. No contraction: a score must have the same bits wherever it is formed.
  set(numeric -O3 -ffp-contract=off -fno-math-errno)
  if(TANDEM_SANITIZE) # with O3 their checks take three times as long to compile
    list(TRANSFORM numeric REPLACE -O3 -O1)
  endif()
  set_source_files_properties(
    ${TANDEM_CPU_REF_SOURCES} src/cpu/simd_baseline.cpp PROPERTIES COMPILE_OPTIONS "${numeric}")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    list(APPEND TANDEM_CPU_SOURCES src/cpu/simd_avx2.cpp src/cpu/simd_avx512.cpp)
    set(levels TANDEM_CPU_X86=1)
    include(CheckCXXCompilerFlag)
    check_cxx_compiler_flag(-mavx512bf16 TANDEM_HAS_AVX512_BF16) # since GCC 10 and Clang 9
    if(TANDEM_HAS_AVX512_BF16)
      list(APPEND TANDEM_CPU_SOURCES src/cpu/simd_avx512_bf16.cpp)
      list(APPEND levels TANDEM_CPU_AVX512_BF16=1)
    endif()
    # GCC takes Windows' stacks for aligned to 32 and 64 bytes (its bug 54412): the assembler asks for no alignment.
    if(MINGW AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      list(APPEND numeric -Wa,-muse-unaligned-vector-move)
    endif()
    set_source_files_properties(src/cpu/device.cpp PROPERTIES COMPILE_DEFINITIONS "${levels}")
    set_source_files_properties(src/cpu/simd_avx2.cpp PROPERTIES
      COMPILE_OPTIONS "${numeric};-mavx2;-mfma;-mf16c")
    set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      list(APPEND avx512 -Wno-maybe-uninitialized) # a false one, in GCC 12's own header
    endif()
    set_source_files_properties(src/cpu/simd_avx512.cpp PROPERTIES
      COMPILE_OPTIONS "${numeric};${avx512}")
    set_source_files_properties(src/cpu/simd_avx512_bf16.cpp PROPERTIES
      COMPILE_OPTIONS "${numeric};${avx512};-mavx512bf16")
  endif()
endif()
