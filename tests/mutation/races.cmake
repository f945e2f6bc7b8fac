# The parity suite for the validation layer's check for races in shared memory, with matrix kernels in which that check
# can follow everything. It knows barriers of a workgroup and no others (docs/kernels/coopmat.md, "Races"), and those of a
# subgroup order nothing but scratch, of which each subgroup has a part of its own. So there are two programs:
#   tandem_races_tiles    for all arrays but scratch, which is hidden from the layer (hide.cpp), and with it own_numbers of lean
#     tiles, which subgroups have parts of, too. The kernels are as they are.
#   tandem_races_scratch  for scratch. Barriers of a subgroup are barriers of the workgroup here, which on lavapipe they are
#     anyway. That alone would hide what two subgroups do to each other where only a barrier of the subgroup stands between:
#     so parts are twice as long, and at every barrier a subgroup stores to the second half of its own: whoever else
#     comes there is reported. Of other arrays it sees less than the first program: what a barrier of the subgroup does not order.
# Both must run without a message. <program>_broken is the same with defects on both paths, each of which must be reported.
set(race_part_from "const int SCRATCH = PLAIN_SCRATCH + KEEP_ROOM;")
set(race_part_to "const int SCRATCH = 2 * (PLAIN_SCRATCH + KEEP_ROOM);")
set(race_guard_from "const int SCRATCH_PITCH = (MN + 4) / 4;")
set(race_guard_to "${race_guard_from}
void guarded_barrier() {
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
  for (int n = SCRATCH / 2 + LANE; n < SCRATCH; n += SUBGROUP) scratch[MY_SCRATCH + n] = vec4(0);
}")

# The defects. Of tiles: a barrier of the workgroup less.
set(race_tiles_fwd fwd.comp)
set(race_tiles_fwd_from "put_tile(SECOND, stage_1, v, col0, DV_CHUNKS);
      barrier();")
set(race_tiles_fwd_to "put_tile(SECOND, stage_1, v, col0, DV_CHUNKS);")
set(race_tiles_bwd_row_sums bwd_row_sums.comp)
set(race_tiles_bwd_row_sums_from "    barrier(); // the readers of the tile before are done")
set(race_tiles_bwd_row_sums_to "")
set(race_tiles_bwd_dkv bwd_dkv.comp)
set(race_tiles_bwd_dkv_from "      barrier(); // the readers of the tile before are done")
set(race_tiles_bwd_dkv_to "")
set(race_tiles_bwd_dq bwd_dq.comp)
set(race_tiles_bwd_dq_from "    if (ENTRIES == 1) barrier(); // the readers of the tile before are done")
set(race_tiles_bwd_dq_to "")
set(race_tiles_bwd_dbias bwd_dbias.comp)
set(race_tiles_bwd_dbias_from "  barrier(); // the readers of the step before are done")
set(race_tiles_bwd_dbias_to "")
# Of scratch: a barrier of the subgroup less, between a block of bias that comes and the matrix that it becomes (fwd,
# bwd_dkv), behind that matrix (bwd_dq), before numbers of rows become one (bwd_row_sums); and in bwd_dbias a subgroup that stores
# behind its own part.
set(race_scratch_fwd bias.glsl)
set(race_scratch_fwd_from "  put_bias(from);
  subgroupBarrier();")
set(race_scratch_fwd_to "  put_bias(from);")
set(race_scratch_bwd_dkv bwd_dkv.comp)
set(race_scratch_bwd_dkv_from "          put_bias(bias[0]);
          subgroupBarrier();")
set(race_scratch_bwd_dkv_to "          put_bias(bias[0]);")
set(race_scratch_bwd_dq bias.glsl) # twice: 16-bit matrices and others
set(race_scratch_bwd_dq_from "    subgroupBarrier();
    return bias;")
set(race_scratch_bwd_dq_to "    return bias;")
set(race_scratch_bwd_dq_from_2 "  subgroupBarrier();
  return bias;")
set(race_scratch_bwd_dq_to_2 "  return bias;")
set(race_scratch_bwd_row_sums matrix.glsl)
set(race_scratch_bwd_row_sums_from "SCRATCH_FLOAT(row) = value;               \\
    subgroupBarrier(); ")
set(race_scratch_bwd_row_sums_to "SCRATCH_FLOAT(row) = value; ")
set(race_scratch_bwd_dbias bwd_dbias.comp)
set(race_scratch_bwd_dbias_from "      put_step(m.q, m.row0, m.k, col0, step);")
set(race_scratch_bwd_dbias_to "${race_scratch_bwd_dbias_from}
      if (LANE == 1) scratch[MY_SCRATCH + SCRATCH / 2] = vec4(1);")

add_executable(tandem_hide mutation/hide.cpp)
tandem_options(tandem_hide)
set_target_properties(tandem_hide PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/mutation)

function(tandem_races kind broken)
  set(name tandem_races_${kind}${broken})
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/mutation/races_${kind}${broken})
  add_executable(${name} $<TARGET_OBJECTS:tandem_parity_objects>)
  target_link_libraries(${name} PRIVATE tandem_harness tandem::tandem Threads::Threads)
  tandem_options(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/mutation)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  set(options -g) # messages name lines
  if(kind STREQUAL "scratch")
    list(APPEND options -Dbarrier=guarded_barrier -DsubgroupBarrier=guarded_barrier)
  else()
    set(TANDEM_HIDDEN scratch,own_numbers)
  endif()
  foreach(stem fwd bwd_row_sums bwd_dkv bwd_dq bwd_dbias)
    set(own ${dir}/${stem})
    foreach(path coopmat2 coopmat)
      set(copies ${own}/${path}/coopmat)
      set(defect race_${kind}_${stem})
      set(part ${${defect}})
      if(kind STREQUAL "scratch" AND broken AND part STREQUAL "matrix.glsl")
        tandem_mutate(shaders/coopmat/matrix.glsl ${copies}/matrix.glsl "${race_part_from}" "${race_part_to}"
                      "${race_guard_from}" "${race_guard_to}" "${${defect}_from}" "${${defect}_to}")
      else()
        if(kind STREQUAL "scratch")
          tandem_mutate(shaders/coopmat/matrix.glsl ${copies}/matrix.glsl "${race_part_from}" "${race_part_to}"
                        "${race_guard_from}" "${race_guard_to}")
        endif()
        if(broken AND DEFINED ${defect}_from_2)
          tandem_mutate(shaders/coopmat/${part} ${copies}/${part} "${${defect}_from}" "${${defect}_to}"
                        "${${defect}_from_2}" "${${defect}_to_2}")
        elseif(broken)
          tandem_mutate(shaders/coopmat/${part} ${copies}/${part} "${${defect}_from}" "${${defect}_to}")
        endif()
      endif()
      tandem_own_matrix_module(${name} ${own} ${stem} ${path} ${options})
    endforeach()
    if(NOT broken) # of lean tiles the main loops are other files
      tandem_own_matrix_module(${name} ${own} ${stem} coopmat_lean ${options})
    endif()
  endforeach()
endfunction()
foreach(kind tiles scratch)
  tandem_races(${kind} "")
  tandem_races(${kind} _broken)
endforeach()
