# The parity suite for the validation layer's check for races in shared memory, with matrix kernels in which that check
# can follow everything. It knows barriers of a workgroup and no others (docs/kernels-matrix.md, "Races"). So:
#   - Barriers of a subgroup are barriers of the workgroup here, which on lavapipe they are anyway.
#   - That alone would hide what two subgroups do to each other where only a barrier of the subgroup stands between.
#     Those order nothing but scratch, of which each subgroup has a part of its own. Here parts are twice as long, and
#     at every barrier a subgroup stores to the second half of its own: whoever else comes there is reported.
#   - A bias by chunks, through scratch, makes the layer say nothing at all, of kernels with defects either (1.4.363, lavapipe
#     26.1.6): here it comes by whole blocks on coopmat2, too, as on coopmat.
#   tandem_races         must run without a message
#   tandem_races_broken  the same with a defect in some: each must be reported
set(race_part_from "const int SCRATCH = (MM * MN + 4 * (MM > MN ? MM : MN)) / 4;")
set(race_part_to "const int SCRATCH = 2 * ((MM * MN + 4 * (MM > MN ? MM : MN)) / 4);")
set(race_guard_from "const int SCRATCH_PITCH = (MN + 4) / 4;")
set(race_guard_to "${race_guard_from}
void guarded_barrier() {
  controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
  for (int n = SCRATCH / 2 + LANE; n < SCRATCH; n += SUBGROUP) scratch[MY_SCRATCH + n] = vec4(0);
}")

# The defects, all on coopmat2: in fwd, bwd_row and bwd_dbias a barrier of the workgroup less, in bwd_dkv a subgroup that
# stores behind its part of scratch, and in bwd_dq a barrier of the subgroup less.
set(race_fwd_part fwd.comp)
set(race_fwd_from "put_tile(SECOND, stage_1, v, col0, DV_CHUNKS);
    barrier();")
set(race_fwd_to "put_tile(SECOND, stage_1, v, col0, DV_CHUNKS);")
set(race_bwd_dkv_part bwd_dkv.comp)
set(race_bwd_dkv_from "    EACH(d, DV_OUT) acc_v[r][d] = ACC(0.0);")
set(race_bwd_dkv_to "    if (LANE == 1) scratch[MY_SCRATCH + SCRATCH / 2] = vec4(1);")
set(race_bwd_dq_part matrix.glsl)
set(race_bwd_dq_from "SCRATCH_FLOAT(row) = value;               \\
    subgroupBarrier(); ")
set(race_bwd_dq_to "SCRATCH_FLOAT(row) = value; ")
set(race_bwd_row_part bwd_row.comp)
set(race_bwd_row_from "    barrier(); // the readers of the tile before are done")
set(race_bwd_row_to "")
set(race_bwd_dbias_part bwd_dbias.comp)
set(race_bwd_dbias_from "  barrier(); // the readers of the step before are done")
set(race_bwd_dbias_to "")

function(tandem_races name broken)
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/broken/races${broken})
  add_executable(${name} $<TARGET_OBJECTS:tandem_parity_objects>)
  target_link_libraries(${name} PRIVATE tandem_support tandem::tandem Threads::Threads)
  tandem_options(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/broken)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  foreach(stem fwd bwd_row bwd_dkv bwd_dq bwd_dbias)
    foreach(path coopmat2 coopmat)
      set(own ${dir}/${stem})
      set(matrix shaders/coopmat/matrix.glsl ${own}/${path}/coopmat/matrix.glsl)
      set(part ${race_${stem}_part})
      if(broken AND path STREQUAL coopmat2 AND part STREQUAL matrix.glsl)
        tandem_mutate(${matrix} "${race_part_from}" "${race_part_to}" "${race_guard_from}" "${race_guard_to}"
                      "${race_${stem}_from}" "${race_${stem}_to}")
      else()
        tandem_mutate(${matrix} "${race_part_from}" "${race_part_to}" "${race_guard_from}" "${race_guard_to}")
        if(broken AND path STREQUAL coopmat2)
          tandem_mutate(shaders/coopmat/${part} ${own}/${path}/coopmat/${part}
                        "${race_${stem}_from}" "${race_${stem}_to}")
        endif()
      endif()
      tandem_own_matrix_module(${name} ${own} ${stem} ${path} -Dbarrier=guarded_barrier
                               -DsubgroupBarrier=guarded_barrier -DTANDEM_BIAS_BLOCKS)
    endforeach()
    target_include_directories(${name} BEFORE PRIVATE ${dir}/${stem})
  endforeach()
  tandem_own_pipelines(${name} ${dir})
endfunction()
tandem_races(tandem_races "")
tandem_races(tandem_races_broken _broken)
