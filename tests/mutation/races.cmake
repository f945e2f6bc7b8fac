# The parity suite for the validation layer's check for races in shared memory, with matrix kernels in which that check
# can follow everything. It knows barriers of a workgroup and no others (docs/kernels/coopmat.md, "Races"), and those of a
# subgroup order nothing but scratch, of which each subgroup has a part of its own. So there are two programs:
#   tandem_races_tiles    for all arrays but scratch, which is hidden from the layer (hide.cpp), and with it own_numbers of lean
#     tiles, which subgroups have parts of, too. The kernels are as they are.
#   tandem_races_scratch  for scratch. Barriers of a subgroup are barriers of the workgroup here, which on lavapipe they are
#     anyway. That alone would hide what two subgroups do to each other where only a barrier of the subgroup stands between:
#     so parts are twice as long, and at every barrier a subgroup stores to the second half of its own: an access of
#     another is reported. Of other arrays it sees less than the first program: what a barrier of the subgroup does not order.
# Both must run without a message. <program>_broken is the same with defects on both paths, each of which must be reported.
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
    set(patches "")
    if(kind STREQUAL "scratch")
      list(APPEND patches ${CMAKE_CURRENT_SOURCE_DIR}/mutation/races/guard.patch)
    endif()
    if(broken)
      list(APPEND patches ${CMAKE_CURRENT_SOURCE_DIR}/mutation/races/${kind}/${stem}.patch)
    endif()
    foreach(path coopmat2 coopmat)
      set(TANDEM_PATCHED "")
      if(patches)
        tandem_patched(TANDEM_PATCHED ${dir}/${stem}/${path} "${patches}" "")
      endif()
      tandem_own_matrix_module(${name} ${dir}/${stem} ${stem} ${path} ${options})
    endforeach()
    if(NOT broken) # of lean tiles the main loops are other files
      tandem_own_matrix_module(${name} ${dir}/${stem} ${stem} coopmat_lean ${options})
    endif()
  endforeach()
endfunction()
foreach(kind tiles scratch)
  tandem_races(${kind} "")
  tandem_races(${kind} _broken)
endforeach()
