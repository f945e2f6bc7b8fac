# The parity suite against kernels that are wrong on purpose: one program for each operation, in which that
# operation's kernels are compiled from a copy of their source with one change. The production sources
# know nothing of it. A change whose place is not found exactly once stops the configuration: whoever
# rewrites a kernel moves its mutation along.
#   fwd      the mask is off by one
#   fwd_combine  all parts count the same
#   bwd_dot  the last features are left out
#   bwd_origin  weights of far rows sum to a half
#   bwd_dkv  d_k misses the scale
#   bwd_dq   delta is forgotten
#   bwd_row_sums  delta is half of what it is
#   bwd_dbias  the last member of each sum is left out
#   bwd_dist_bias  the last row of a tile is left out
#   bwd_sum_splits  the last part is left out
#   bwd_head_sums every other invocation's part is left out, on sm90 three of four lanes'
# fwd_combine and the last five have no kernels of the CPU's vectors. TANDEM_BROKEN lists the programs that this build has.
# With matrices, the two paths are wrong in different places, so that the parts that only one of them has, or that they
# share, are among them:
#   coopmat2  fwd: the mask is off by one; bwd_dkv: d_k misses the scale; bwd_dq: delta is forgotten
#   coopmat   fwd: sums and maxima of rows miss half of the columns; bwd_dkv: delta is that of the next matrix; bwd_dq: d_s is
#             transposed on its way to the next product
# On CUDA's tensor cores, sm80 and sm90, and in the fused operations that they and simt have:
#   fwd      the mask is off by one
#   bwd_dkv, bwd_dkv_dq, bwd_dkv_dist   d_k misses the scale
#   bwd_dq   delta is forgotten
#   bwd_row_sums  delta is half of what it is; bwd_row_sums_dq: what d_q takes off is half of what it is
#   bwd_dq_cast  d_q misses the scale
#   bwd_dbias  one of a lane's sums is lost
#   pack_bias  every other row is the row before it

# tandem_mutate(source out from to [from to]...): copies source with one change, or several, to out; configures anew when
# the source changes. With an empty out it only looks whether the changes fit.
function(tandem_mutate source out)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${source})
  file(READ ${PROJECT_SOURCE_DIR}/${source} text)
  foreach(n RANGE 2 ${ARGC} 2) # texts hold semicolons: no lists of them
    if(n EQUAL ARGC)
      break()
    endif()
    math(EXPR next "${n} + 1")
    set(from "${ARGV${n}}")
    string(FIND "${text}" "${from}" first)
    string(FIND "${text}" "${from}" last REVERSE)
    if(first EQUAL -1 OR NOT first EQUAL last)
      message(FATAL_ERROR "tests/mutation: ${source} must hold exactly once:\n${from}")
    endif()
    string(REPLACE "${from}" "${ARGV${next}}" text "${text}")
  endforeach()
  set(old "")
  if(out STREQUAL "")
    return()
  elseif(EXISTS ${out})
    file(READ ${out} old)
  endif()
  if(NOT old STREQUAL text) # untouched files are not compiled again
    file(WRITE ${out} "${text}")
  endif()
endfunction()

set(cpu_fwd_from "diagonal = int64_t(col0) + j - t.band.off - t.row0;")
set(cpu_fwd_to "diagonal = int64_t(col0) + j - t.band.off - t.row0 - 1;")
set(cpu_bwd_dot_from "for (int64_t c = first; c < t.head_dim_v && c < first + kChain; ++c)")
set(cpu_bwd_dot_to "for (int64_t c = first; c + 1 < t.head_dim_v && c < first + kChain; ++c)")
set(cpu_bwd_dkv_from "scale_lanes(t.d_kt, t.scale, D, lanes, t.pitch);")
set(cpu_bwd_dkv_to "")
set(cpu_bwd_dq_from "(load(t.dp + j * t.pitch + lane) - delta)")
set(cpu_bwd_dq_to "(load(t.dp + j * t.pitch + lane) - delta * splat(0))")

set(vulkan_fwd_from "mask_tile(s, row0, col0);")
set(vulkan_fwd_to "mask_tile(s, row0 + 1, col0);")
set(vulkan_fwd_combine_from "float y = weight(lse, origin);")
set(vulkan_fwd_combine_to "float y = 1.0;")
set(vulkan_bwd_dot_from "col < block.head_dim_v;")
set(vulkan_bwd_dot_to "col + 4 < block.head_dim_v;")
set(vulkan_bwd_origin_from "log(relative) : NO_LSE")
set(vulkan_bwd_origin_to "log(2.0 * relative) : NO_LSE")
set(vulkan_bwd_dkv_from "acc_k[n][i] *= block.scale;")
set(vulkan_bwd_dkv_to "acc_k[n][i] *= 1;")
set(vulkan_bwd_dq_from "#define ROW_DELTA true")
set(vulkan_bwd_dq_to "#define ROW_DELTA false")

set(vulkan_bwd_row_sums_from "float delta = exists ? dot[i] : 0.0;")
set(vulkan_bwd_row_sums_to "float delta = exists ? 0.5 * dot[i] : 0.0;")
set(vulkan_bwd_dbias_from "n < end; n++) {")
set(vulkan_bwd_dbias_to "n + 1 < end; n++) {")
set(vulkan_bwd_dist_bias_from "half_ == 0 ? d : ROWS - 1;")
set(vulkan_bwd_dist_bias_to "half_ == 0 ? d : ROWS - 2;")
set(vulkan_bwd_sum_splits_from "split < block.splits;")
set(vulkan_bwd_sum_splits_to "split + 1 < block.splits;")
set(vulkan_bwd_head_sums_part parts/head.glsl)
set(vulkan_bwd_head_sums_file bwd_head_sums bwd_sum_splits) # who has it: the last bwd_sum_splits may do the work of bwd_head_sums
set(vulkan_bwd_head_sums_from "n < WG; n++) own += partial[n];")
set(vulkan_bwd_head_sums_to "n < WG; n += 2) own += partial[n];")

set(coopmat2_fwd_part element.glsl)
set(coopmat2_fwd_from "hidden = hidden || j - i > high || j - i < low;")
set(coopmat2_fwd_to "hidden = hidden || j - i >= high || j - i < low;")
set(coopmat2_bwd_dkv_from "acc_k[r][d][k] *= block.scale;")
set(coopmat2_bwd_dkv_to "acc_k[r][d][k] *= 1;")
set(coopmat2_bwd_dq_from "dp[q][k], OF_ROW(delta, q)[k]);")
set(coopmat2_bwd_dq_to "dp[q][k], 0 * OF_ROW(delta, q)[k]);")
set(coopmat_fwd_part matrix.glsl)
set(coopmat_fwd_from "for (int c = 1; c < MN; c++) {")
set(coopmat_fwd_to "for (int c = 1; c < MN / 2; c++) {")
set(coopmat_bwd_dkv_from "STEP_STATS(delta, 1)")
set(coopmat_bwd_dkv_to "ACC delta; coopMatLoad(delta, stats, (COLS + (n + 1) % COL_STEPS * MK) / 4, 0, ROW_MAJOR);")
set(coopmat_bwd_dq_part matrix.glsl)
set(coopmat_bwd_dq_from "  coopMatStore(ACC_16(x), scratch, MY_SCRATCH, OPERAND_PITCH, ROW_MAJOR);")
set(coopmat_bwd_dq_to "  coopMatStore(ACC_16(x), scratch, MY_SCRATCH, OPERAND_PITCH, COL_MAJOR);")

set(cuda_fwd_from "mask_tile<S>(s, band, row0, col0, u.seq_q, u.seq_kv);")
set(cuda_fwd_to "mask_tile<S>(s, band, row0 + 1, col0, u.seq_q, u.seq_kv);")
set(cuda_fwd_combine_from "const float y = has_keys ? weight(lse) : 0.f;")
set(cuda_fwd_combine_to "const float y = has_keys ? 1.f : 0.f;")
set(cuda_bwd_dot_from "col < u.head_dim_v;")
set(cuda_bwd_dot_to "col + 4 < u.head_dim_v;")
set(cuda_bwd_origin_from "logf(sum) : INFINITY")
set(cuda_bwd_origin_to "logf(2.f * sum) : INFINITY")
set(cuda_bwd_dkv_from "d_k, u.scale);")
set(cuda_bwd_dkv_to "d_k, 1.f);")
set(cuda_bwd_dq_from "s[i][c] *= dp[i][c] - delta[i];")
set(cuda_bwd_dq_to "s[i][c] *= dp[i][c] - 0.f * delta[i];")

set(cuda_bwd_row_sums_from "float delta = row_sum<S>(gdp[r]);")
set(cuda_bwd_row_sums_to "float delta = 0.5f * row_sum<S>(gdp[r]);")
set(cuda_bwd_dbias_from "member < end; ++member) {")
set(cuda_bwd_dbias_to "member + 1 < end; ++member) {")
set(cuda_bwd_dist_bias_from "r < last; ++r) sum")
set(cuda_bwd_dist_bias_to "r + 1 < last; ++r) sum")
set(cuda_bwd_sum_splits_from "split < u.splits;")
set(cuda_bwd_sum_splits_to "split + 1 < u.splits;")
set(cuda_bwd_head_sums_part parts/bwd_head_sums.cuh)
set(cuda_bwd_head_sums_from "n < kLineGroup; ++n) sum += partial[n];")
set(cuda_bwd_head_sums_to "n < kLineGroup; n += 2) sum += partial[n];")

set(cuda_bwd_row_sums_dq_from "fmaf(-delta, p_k")
set(cuda_bwd_row_sums_dq_to "fmaf(-0.5f * delta, p_k")
set(cuda_bwd_dkv_dist_from "row0, d_k, u.scale);")
set(cuda_bwd_dkv_dist_to "row0, d_k, 1.f);")

# Of the tensor cores: the headers (or the file itself) that hold the text, each once, and the files to compile (of these names,
# or of the stem's, or <path>_<stem>_file).
set(sm80_fwd_part fwd.cuh)
set(sm80_fwd_from "tandem_min(i + band.off + band.right, in.seq_kv() - 1)")
set(sm80_fwd_to "tandem_min(i + band.off + band.right - 1, in.seq_kv() - 1)")
set(sm80_bwd_dkv_part bwd_dkv.cuh bwd_dkv_full.cuh)
set(sm80_bwd_dkv_from "d_k, [&](float x, int, int) { return x * u.scale; }, feature)")
set(sm80_bwd_dkv_to "d_k, [&](float x, int, int) { return x; }, feature)")
set(sm80_bwd_dq_part bwd_dq.cuh bwd_dq_full.cuh)
set(sm80_bwd_dq_from "x / 2]);")
set(sm80_bwd_dq_to "x / 2] * 0.f);")
set(sm80_bwd_dkv_dq_part bwd_dkv_dq.cuh)
set(sm80_bwd_dkv_dq_from "d_k, [&](float x, int, int) { return x * u.scale; }, feature)")
set(sm80_bwd_dkv_dq_to "d_k, [&](float x, int, int) { return x; }, feature)")
set(sm80_bwd_dbias_part bwd_dbias.cuh bwd_dbias_full.cuh)
set(sm80_bwd_dbias_from "store_sums<S>(params, sum);")
set(sm80_bwd_dbias_to "sum[0][0][0][0] = 0.f, store_sums<S>(params, sum);")
set(sm80_bwd_dq_cast_part bwd_dq_cast.cuh)
set(sm80_bwd_dq_cast_from "return sum * u.scale;")
set(sm80_bwd_dq_cast_to "return sum;")
set(sm80_bwd_row_sums_part bwd_row_sums.cuh)
set(sm80_bwd_row_sums_from "float delta = quad_sum(gdp[h]);")
set(sm80_bwd_row_sums_to "float delta = 0.5f * quad_sum(gdp[h]);")
set(sm90_fwd_part fwd/score_plain.cuh fwd/main_loop_decoupled.cuh)
# No source has their names; headers find those beside them first.
set(sm90_fwd_file fwd/fwd.cuh fwd/roles.cuh fwd/main_loop_wide_heads.cuh)
set(sm90_fwd_from "+ accumulator_row(),")
set(sm90_fwd_to "+ accumulator_row() + 1,")
set(sm90_bwd_dkv_part bwd/bwd_dkv.cuh)
set(sm90_bwd_dkv_from "is_k ? u.scale : 1.f")
set(sm90_bwd_dkv_to "1.f")
set(sm90_bwd_dq_part bwd/dq.cuh)
set(sm90_bwd_dq_file bwd/bwd_dkv.cuh)
set(sm90_bwd_dq_from "(dp[2 * i] - delta[i % 2])")
set(sm90_bwd_dq_to "(dp[2 * i] - 0.f * delta[i % 2])")
set(sm90_bwd_dkv_dq_part bwd/dkv_dq.cuh)
set(sm90_bwd_dkv_dq_file bwd/bwd_dkv_dq.cuh)
set(sm90_bwd_dkv_dq_from "kPanel, d_k, u.scale,")
set(sm90_bwd_dkv_dq_to "kPanel, d_k, 1.f,")
set(sm90_bwd_dkv_dist_part bwd/dkv_dq.cuh)
set(sm90_bwd_dkv_dist_file bwd/bwd_dkv_dist.cuh)
set(sm90_bwd_dkv_dist_from "kPanel, d_k, u.scale,")
set(sm90_bwd_dkv_dist_to "kPanel, d_k, 1.f,")
# What bwd_dkv_dist does of these two.
set(sm90_bwd_sum_splits_part bwd/variant_elastic.cuh)
set(sm90_bwd_sum_splits_file bwd/bwd_dkv_dist.cuh)
set(sm90_bwd_sum_splits_from "int64_t(u.heads_q) * window, parts);")
set(sm90_bwd_sum_splits_to "int64_t(u.heads_q) * window, parts - 1);")
set(sm90_bwd_head_sums_part bwd/variant_elastic.cuh bwd/dq_postprocess.cuh)
# dkv_dq.cuh is no source, but a header finds those beside it first.
set(sm90_bwd_head_sums_file bwd/bwd_dkv_dist.cuh bwd/bwd_dkv_dq.cuh bwd/bwd_dkv_dq_varlen.cuh bwd/dkv_dq.cuh)
set(sm90_bwd_head_sums_from "step = 16; step > 0; step /= 2) sum +=")
set(sm90_bwd_head_sums_to "step = 16; step > 2; step /= 2) sum +=")
set(sm90_bwd_row_sums_dq_part bwd/bwd_row_sums_dq.cuh)
set(sm90_bwd_row_sums_dq_from "fmaf(-delta[j % 2], p_k")
set(sm90_bwd_row_sums_dq_to "fmaf(-0.5f * delta[j % 2], p_k")
set(sm90_pack_bias_part pack_bias.cuh)
set(sm90_pack_bias_from "int64_t(row) * s.s +\n")
set(sm90_pack_bias_to "int64_t(row / 2) * s.s +\n")
set(sm90_bwd_dq_cast_part bwd/bwd_dq_cast.cuh)
set(sm90_bwd_dq_cast_from "T::pack(x[i].x * u.scale, x[i].y * u.scale);")
set(sm90_bwd_dq_cast_to "T::pack(x[i].x, x[i].y);")

# SPIR-V of a program's own for stem's kernels with matrices on path, f16: from sources that lie in dir/<path>, where
# there are any, and else from the project's; a path coopmat_k2 is coopmat's with operands twice as deep, coopmat_lean
# its lean tiles, coopmat2_tensor coopmat2's with rows by tensor addressing, coopmat2_ds those that share ds. What follows
# are options for glslang.
# TANDEM_HIDDEN, where it is set: the shared array to hide (hide.cpp).
function(tandem_own_matrix_module name dir stem path)
  set(nv 0)
  set(env vulkan1.2)
  set(deep 1)
  set(tensor 0)
  set(ds 0)
  set(module ${stem}_${path}_f16)
  set(lean 0)
  if(path MATCHES "^(coopmat2?)_(k2|lean|tensor|ds)$")
    set(path ${CMAKE_MATCH_1})
    set(module ${stem}_${path}_f16_${CMAKE_MATCH_2})
    if(CMAKE_MATCH_2 STREQUAL k2)
      set(deep 2)
    else()
      set(${CMAKE_MATCH_2} 1)
    endif()
  endif()
  if(path STREQUAL coopmat2)
    set(nv 1)
    set(env vulkan1.3)
  endif()
  set(source ${PROJECT_SOURCE_DIR}/shaders/coopmat/${stem}.comp)
  if(EXISTS ${dir}/${path}/coopmat/${stem}.comp)
    set(source ${dir}/${path}/coopmat/${stem}.comp)
  endif()
  set(glslang ${TANDEM_GLSLANG} --quiet --target-env ${env} -DTANDEM_CM2=${nv} -DTANDEM_BF16=0 -DTANDEM_KN=${deep} -DTANDEM_TENSOR=${tensor} -DTANDEM_DS=${ds} -DTANDEM_LEAN=${lean} ${ARGN}
      -I${dir}/${path} -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/shaders -I${PROJECT_BINARY_DIR} --depfile ${dir}/${module}.d)
  set(header ${dir}/shaders/${module}.spv.h)
  if(TANDEM_HIDDEN)
    set(compiled ${dir}/${module}.spv)
    add_custom_command(OUTPUT ${header} COMMAND tandem_hide ${compiled} ${TANDEM_HIDDEN} ${module} ${header}
                       DEPENDS ${compiled} tandem_hide VERBATIM)
  else()
    set(compiled ${header})
    list(APPEND glslang --vn ${module}_spirv)
  endif()
  add_custom_command(
    OUTPUT ${compiled}
    COMMAND ${glslang} -o ${compiled} ${source}
    DEPENDS ${source}
    DEPFILE ${dir}/${module}.d
    COMMENT "SPIR-V ${module}, for ${name}"
    VERBATIM)
  tandem_own_module(${name} ${dir} ${module})
endfunction()

# The module of dir/shaders/<module>.spv.h, in place of the library's.
function(tandem_own_module name dir module)
  target_sources(${name} PRIVATE ${dir}/shaders/${module}.spv.h)
  tandem_module_source(${name} ${dir}/shaders ${module})
  target_include_directories(${name} PRIVATE $<TARGET_PROPERTY:tandem,BINARY_DIR>) # shaders/modules.inc
endfunction()

# The kernels of stem on a path of the tensor cores, from changed copies: a folder whose headers come before the project's.
function(tandem_own_tensor_core_kernels name dir stem path)
  set(copies ${dir}/${path}/cuda/${path})
  set(sources "")
  set(written "")
  foreach(part IN LISTS ${path}_${stem}_part)
    tandem_mutate(cuda/${path}/${part} ${copies}/${part} "${${path}_${stem}_from}" "${${path}_${stem}_to}")
    string(REGEX REPLACE "cuh$" "cu" file ${part})
    list(APPEND sources ${file})
    string(REGEX REPLACE "[.]cuh?$" "" kernel ${part})
    if(path STREQUAL sm80 AND kernel IN_LIST TANDEM_SM80_KERNELS) # its source is written
      tandem_sm80_instance(${kernel} ${copies}/${file})
      list(APPEND written ${file})
    endif()
  endforeach()
  if(DEFINED ${path}_${stem}_file) # a header of another operation's file
    set(sources ${${path}_${stem}_file})
  elseif(NOT file IN_LIST written AND NOT EXISTS ${PROJECT_SOURCE_DIR}/cuda/${path}/${file}) # a header that is no kernel's own
    set(sources ${stem}.cu)
  endif()
  set(objects ${name}_${path})
  add_library(${objects} OBJECT)
  foreach(source IN LISTS sources)
    if(NOT source IN_LIST ${path}_${stem}_part AND NOT source IN_LIST written) # or it is there
      configure_file(${PROJECT_SOURCE_DIR}/cuda/${path}/${source} ${copies}/${source} COPYONLY)
    endif()
    target_sources(${objects} PRIVATE ${copies}/${source})
  endforeach()
  # "../shared.cuh", as the kernels say it, is sought from the folder of each of these.
  list(GET ${path}_${stem}_part 0 part)
  get_filename_component(folder "${part}" DIRECTORY)
  target_include_directories(${objects} PRIVATE ${copies}/${folder} ${PROJECT_SOURCE_DIR}/cuda/${path}/${folder}
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  set_target_properties(${objects} PROPERTIES CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Static)
  if(path STREQUAL sm80)
    set_target_properties(${objects} PROPERTIES CUDA_ARCHITECTURES 80-virtual)
  else()
    set_target_properties(${objects} PROPERTIES CUDA_ARCHITECTURES 90a-real)
  endif()
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()

# Explicit objects win over those of a static library, so each program is the suite, the library, and the
# few objects that hold the changed kernels.
function(tandem_broken stem)
  set(name tandem_broken_${stem})
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/mutation/${stem})
  add_executable(${name} $<TARGET_OBJECTS:tandem_parity_objects>)
  target_link_libraries(${name} PRIVATE tandem_harness tandem::tandem Threads::Threads)
  tandem_options(${name})
  set_target_properties(${name} PROPERTIES # apart: these are not for use
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/mutation)
  target_include_directories(${name} PRIVATE
    ${PROJECT_SOURCE_DIR}/src/cpu ${PROJECT_SOURCE_DIR}/src)

  if(DEFINED cpu_${stem}_from)
    tandem_mutate(src/cpu/${stem}_simd.inl ${dir}/cpu/${stem}_simd.inl
                  "${cpu_${stem}_from}" "${cpu_${stem}_to}")
    configure_file(${PROJECT_SOURCE_DIR}/src/cpu/simd_kernels.inl ${dir}/cpu/simd_kernels.inl COPYONLY)
    foreach(source IN LISTS TANDEM_CPU_SOURCES)
      get_filename_component(file ${source} NAME)
      if(NOT file MATCHES "^simd_(baseline|avx2|avx512).cpp$")
        continue()
      endif()
      configure_file(${PROJECT_SOURCE_DIR}/${source} ${dir}/cpu/${file} COPYONLY)
      get_source_file_property(options ${PROJECT_SOURCE_DIR}/${source} DIRECTORY ${PROJECT_SOURCE_DIR}
                               COMPILE_OPTIONS)
      set_source_files_properties(${dir}/cpu/${file} PROPERTIES
        COMPILE_OPTIONS "${options}" OBJECT_DEPENDS "${dir}/cpu/${stem}_simd.inl")
      target_sources(${name} PRIVATE ${dir}/cpu/${file})
    endforeach()
  endif()

  if(TANDEM_WITH_VULKAN AND DEFINED vulkan_${stem}_from)
    set(part scalar/${stem}.comp)
    if(DEFINED vulkan_${stem}_part)
      set(part ${vulkan_${stem}_part})
    endif()
    tandem_mutate(shaders/${part} ${dir}/shaders/${part}
                  "${vulkan_${stem}_from}" "${vulkan_${stem}_to}")
    set(kernels ${stem})
    if(DEFINED vulkan_${stem}_file) # that include the part
      set(kernels ${vulkan_${stem}_file})
    endif()
    foreach(kernel IN LISTS kernels)
      if(NOT part STREQUAL scalar/${kernel}.comp) # a copy, whose folders come before the project's
        configure_file(${PROJECT_SOURCE_DIR}/shaders/scalar/${kernel}.comp ${dir}/shaders/scalar/${kernel}.comp COPYONLY)
      endif()
      add_custom_command(
        OUTPUT ${dir}/shaders/${kernel}.spv.h
        COMMAND ${TANDEM_GLSLANG} --quiet --target-env vulkan1.2 -I${dir}/shaders -I${PROJECT_SOURCE_DIR}/src
                -I${PROJECT_SOURCE_DIR}/shaders -I${PROJECT_BINARY_DIR} --depfile ${dir}/${kernel}.d --vn ${kernel}_spirv
                -o ${dir}/shaders/${kernel}.spv.h ${dir}/shaders/scalar/${kernel}.comp
        DEPENDS ${dir}/shaders/scalar/${kernel}.comp ${dir}/shaders/${part}
        DEPFILE ${dir}/${kernel}.d
        COMMENT "SPIR-V ${kernel}, for tandem_broken_${stem}"
        VERBATIM)
      tandem_own_module(${name} ${dir} ${kernel})
    endforeach()
    foreach(path coopmat2 coopmat)
      if(NOT DEFINED ${path}_${stem}_from)
        continue()
      endif()
      set(part ${stem}.comp)
      if(DEFINED ${path}_${stem}_part)
        set(part ${${path}_${stem}_part})
      endif()
      tandem_mutate(shaders/coopmat/${part} ${dir}/${path}/coopmat/${part}
                    "${${path}_${stem}_from}" "${${path}_${stem}_to}")
      tandem_own_matrix_module(${name} ${dir} ${stem} ${path})
      if(path STREQUAL coopmat AND stem STREQUAL fwd) # what NVIDIA's GPUs take in the forward
        tandem_own_matrix_module(${name} ${dir} ${stem} coopmat_k2)
      endif()
    endforeach()
  endif()

  # Only a GPU runs these, and they take minutes to build: with the preset cuda, not by the way.
  if(NOT TANDEM_BROKEN_ON_CUDA)
    return()
  endif()
  if(DEFINED cuda_${stem}_from)
    set(part simt/${stem}.cu)
    if(DEFINED cuda_${stem}_part)
      set(part ${cuda_${stem}_part})
      configure_file(${PROJECT_SOURCE_DIR}/cuda/simt/${stem}.cu ${dir}/cuda/simt/${stem}.cu COPYONLY)
    endif()
    tandem_mutate(cuda/${part} ${dir}/cuda/${part} "${cuda_${stem}_from}" "${cuda_${stem}_to}")
    target_sources(${name} PRIVATE ${dir}/cuda/simt/${stem}.cu)
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cuda/simt ${PROJECT_SOURCE_DIR}/cuda/parts)
  set_target_properties(${name} PROPERTIES CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Static
                        CUDA_ARCHITECTURES 75-virtual)
  foreach(path IN LISTS TANDEM_TENSOR_CORE_PATHS)
    if(DEFINED ${path}_${stem}_from)
      tandem_own_tensor_core_kernels(${name} ${dir} ${stem} ${path})
    endif()
  endforeach()
endfunction()

# Every operation of the registry is wrong somewhere on each of its paths, but for these. Rows without
# tiles of the tensor cores run simt's kernel, those of the matrix paths without such tiles scalar's.
#
# There is a change for each stem and path, not for each variant: it shows that the suite judges what the stem
# writes, and it judges the outputs of all variants by the same rules, in the same code. That each variant runs
# is another check: the suite fails for a row of the registry that no case ran. A change for each variant would
# compile most kernels of CUDA twice. So it is in the variant that most problems take, or in what they share.
#
# Without a change:
#   bwd_row_sums, bwd_dbias of the matrix paths: the suite judges what they write (delta, by way of d_q and d_k;
#     d_bias) in the cases that see scalar's change, and lavapipe takes minutes to compile each of them
#   bwd_row_sums of sm90: it has entmax alone, and what it writes is judged as for sm80
set(TANDEM_NOT_BROKEN coopmat2.bwd_row_sums coopmat2.bwd_dbias coopmat.bwd_row_sums coopmat.bwd_dbias sm90.bwd_row_sums)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/kernels.inc)
file(STRINGS ${PROJECT_SOURCE_DIR}/src/kernels/kernels.inc rows REGEX "^TANDEM_KERNEL")
foreach(row IN LISTS rows)
  string(REGEX MATCH "\\(([a-z_]+), *([a-z]+), *([a-z0-9]+), *([a-z0-9_]+), *[a-z0-9]+, *([a-z0-9_]+)," all "${row}")
  set(stem ${CMAKE_MATCH_1})
  set(source ${CMAKE_MATCH_2}) # whose change it is: cpu_, vulkan_, cuda_, or the path's own
  set(path ${CMAKE_MATCH_3})
  if(CMAKE_MATCH_5 MATCHES "^(matrix|ampere|hopper)" OR DEFINED ${path}_${stem}_from)
    set(source ${path})
  endif()
  if(path STREQUAL "ref") # what the others are compared with
    continue()
  endif()
  if("${path}.${stem}" IN_LIST TANDEM_NOT_BROKEN)
    if(DEFINED ${source}_${stem}_from)
      message(FATAL_ERROR "tests/mutation: ${path}.${stem} has a change, and is listed as one without")
    endif()
  elseif(NOT DEFINED ${source}_${stem}_from)
    message(FATAL_ERROR "tests/mutation: no change breaks ${stem} of ${path}; set ${source}_${stem}_from and _to")
  endif()
endforeach()

set(TANDEM_BROKEN_ON_CUDA OFF)
set(TANDEM_TENSOR_CORE_PATHS "")
if(TANDEM_WITH_CUDA AND TANDEM_CUDA STREQUAL "ON")
  set(TANDEM_BROKEN_ON_CUDA ON)
  foreach(path sm80 sm90)
    if(TARGET tandem_${path})
      list(APPEND TANDEM_TENSOR_CORE_PATHS ${path})
    endif()
  endforeach()
endif()
# Operations that CUDA alone has.
set(TANDEM_FUSED_STEMS pack_bias bwd_row_sums_dq bwd_dkv_dist bwd_dkv_dq bwd_dq_cast)
# Changes of CUDA's kernels are compiled with the preset cuda alone. That each still fits its source is seen everywhere.
foreach(stem IN LISTS TANDEM_STEMS TANDEM_FUSED_STEMS)
  foreach(path cuda sm80 sm90)
    set(parts "${${path}_${stem}_part}")
    if(path STREQUAL cuda AND NOT parts)
      set(parts simt/${stem}.cu)
    endif()
    if(NOT DEFINED ${path}_${stem}_from)
      continue()
    endif()
    foreach(part IN LISTS parts)
      string(REPLACE "cuda/cuda/" "cuda/" source "cuda/${path}/${part}")
      tandem_mutate(${source} "" "${${path}_${stem}_from}" "${${path}_${stem}_to}")
    endforeach()
  endforeach()
endforeach()
set(TANDEM_BROKEN "")
foreach(stem IN LISTS TANDEM_STEMS)
  if(DEFINED cpu_${stem}_from OR TANDEM_WITH_VULKAN OR TANDEM_BROKEN_ON_CUDA)
    tandem_broken(${stem})
    list(APPEND TANDEM_BROKEN ${stem})
  endif()
endforeach()
set(TANDEM_BROKEN_FUSED "")
if(TANDEM_BROKEN_ON_CUDA)
  foreach(stem IN LISTS TANDEM_FUSED_STEMS)
    tandem_broken(${stem})
    list(APPEND TANDEM_BROKEN_FUSED ${stem})
  endforeach()
endif()
