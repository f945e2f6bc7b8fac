# SPDX-License-Identifier: MIT OR Apache-2.0
# Everything that runs on the Vulkan drivers that scripts/toolchain has.
# The names of the rows of src/plan/coopmat/tiles.inc, list MATRIX or DOUBLED.
function(tandem_matrix_rows out list)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/plan/coopmat/tiles.inc)
  file(READ ${PROJECT_SOURCE_DIR}/src/plan/coopmat/tiles.inc rows)
  string(REGEX MATCHALL "TANDEM_${list}_TILE\\([a-z0-9]+" rows "${rows}")
  string(REPLACE "TANDEM_${list}_TILE(" "" rows "${rows}")
  set(${out} ${rows} PARENT_SCOPE)
endfunction()

if(TANDEM_WITH_VULKAN AND UNIX)
  # The CPU's simd path comes along on one driver, for the tests of backend against backend. And so does the layer, here
  # and with matrices below: sync is all of core and barriers beside it, and results are judged as without; without it run
  # lavapipe25, swiftshader and parity.lavapipe26.<path>.
  # A quarter of the kernels, one that has every row, as compiling all takes 15 minutes of a core; a GPU has all.
  tandem_driver_test(parity.lavapipe26 lavapipe26+sync tandem_parity ${TANDEM_NO_MAGNITUDES})
  set_tests_properties(parity.lavapipe26 PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/scalar,cpu/simd;TANDEM_ALL_ROWS=rows;TANDEM_SHARD=3/4")
  # On the matrix paths, what takes time is lavapipe's compiler, which goes by the products of matrices that stand in a
  # kernel (docs/kernels/coopmat.md, "Drivers"). So the smoke tier runs with the tiles for little shared memory, and
  # with those that a plan prefers the exact suite; validation.sync.<path> has the optional inputs and splits with these.
  tandem_matrix_rows(rows MATRIX)
  set(wide "")
  foreach(row IN LISTS rows)
    if("${row}n" IN_LIST rows)
      list(APPEND wide ${row})
    endif()
  endforeach()
  list(JOIN wide "," wide)
  set(small "-tc=*every fill*")
  foreach(path coopmat2 coopmat)
    # Minutes each, so an eighth of the kernels on coopmat2 and a twelfth on coopmat (a GPU has all);
    # and without cases that other tests judge on both paths (validation.sync.<path>,
    # validation.gpuav.*.<path>) or on this one (parity.lavapipe26.entries).
    set(others "features: a few*" "features: biases*" "splits: a few*" "regression: sums*" "regression: rows and*"
      "regression: biases*")
    if(path STREQUAL "coopmat2")
      list(APPEND others "regression: entries*")
    endif()
    list(JOIN others "," others)
    tandem_driver_test(parity.lavapipe26.${path} lavapipe26 tandem_parity "${TANDEM_NO_MAGNITUDES},${others}")
    set(part_coopmat2 0/8)
    set(part_coopmat 1/12)
    set_tests_properties(parity.lavapipe26.${path} PROPERTIES
      ENVIRONMENT "TANDEM_DEVICE=vulkan:0/${path};TANDEM_DISABLE=${wide};TANDEM_SHARD=${part_${path}}")
    tandem_driver_test(parity.lavapipe26.${path}.wide lavapipe26 tandem_parity ${small})
    set_tests_properties(parity.lavapipe26.${path}.wide PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0/${path}")
  endforeach()
  # These two take minutes of processor time for a part of the smoke tier: the exact suite, every
  # optional input, and the rows with the most awkward masks. Of their kernels each has a sixth.
  set(few "-tc=*every fill*,features: a few*,splits: a few*,regression: lse*,regression: sums*,rows that see no key*")
  tandem_driver_test(parity.lavapipe25 lavapipe25 tandem_parity "${few}")
  set_tests_properties(parity.lavapipe25 PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0;TANDEM_SHARD=0/6")
  tandem_driver_test(parity.swiftshader swiftshader tandem_parity ${few})
  set_tests_properties(parity.swiftshader PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0,cpu/simd;TANDEM_SHARD=1/6")
  # The lean tiles (src/plan/tiles.inc), each with a part of the same. t64l is t64k16l with deeper
  # steps, for which no CPU driver has the shared memory.
  set(others t64k32,t64k16,t32k16)
  set(shard_of_t64k16l 0/2)
  set(shard_of_t64r4l 1/3)
  set(shard_of_t32l 2/3)
  set(lean_rows t64r4l t64k16l t32l)
  foreach(row IN LISTS lean_rows)
    tandem_driver_test(parity.lavapipe26.${row} lavapipe26 tandem_parity ${few})
    set_tests_properties(parity.lavapipe26.${row} PROPERTIES
      ENVIRONMENT "TANDEM_DEVICE=vulkan:0/scalar;TANDEM_DISABLE=${others};TANDEM_SHARD=${shard_of_${row}}")
    string(APPEND others ",${row}")
  endforeach()
  # The tiles of pairs come behind those on these drivers. They know no optional inputs, nor does the exact suite.
  tandem_driver_test(parity.lavapipe26.pairs lavapipe26 tandem_parity ${small})
  set_tests_properties(parity.lavapipe26.pairs PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/scalar;TANDEM_DISABLE=${others};TANDEM_SHARD=0/4")
  # Instrumented shaders take a CPU driver minutes to compile: every kernel, but fewer kinds of it.
  tandem_driver_test(validation.gpuav lavapipe26+gpuav tandem_parity
    "-tc=features: a few*,splits: a few*,regression: sums*,rows that see no key*")
  set_tests_properties(validation.gpuav PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0/scalar;TANDEM_ALL_ROWS=stems")
  # What barriers order is the plan's, the same on both paths: coopmat2 has half of the kernels, coopmat a quarter.
  foreach(path coopmat2 coopmat)
    tandem_driver_test(validation.sync.${path} lavapipe26+sync tandem_parity
      "-tc=features: a few*,features: biases*,splits: a few*,regression: sums*")
  endforeach()
  set_tests_properties(validation.sync.coopmat2 PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat2;TANDEM_SHARD=0/2")
  set_tests_properties(validation.sync.coopmat PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat;TANDEM_SHARD=1/4")
  # Compilers of CPU drivers take longer than these cases: here those that share kernels.
  set(magnitudes "-tc=magnitudes: few*,regression: magnitudes: one*,regression: magnitudes: a sink*")
  tandem_driver_test(parity.magnitudes.lavapipe26 lavapipe26 tandem_parity ${magnitudes})
  set_tests_properties(parity.magnitudes.lavapipe26 PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0/scalar")
  # SwiftShader takes minutes for each kernel. The matrix paths have these cases on a GPU alone.
  set(magnitudes "-tc=regression: magnitudes: a sink*")
  tandem_driver_test(parity.magnitudes.swiftshader swiftshader tandem_parity ${magnitudes})
  set_tests_properties(parity.magnitudes.swiftshader PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0")
  # Shapes that lavapipe does not list (vulkan/shapes/shapes.cmake). Products of elements are slow to compile: a sixteenth of
  # the kernels of the shape that NVIDIA's GPUs list, and a forward of Intel's, whose backward the lean tiles have below.
  tandem_driver_test(parity.lavapipe26.16x8x16 lavapipe26 tandem_shapes "-tc=splits: a few*,exact: backward*")
  set_tests_properties(parity.lavapipe26.16x8x16 PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat;TANDEM_DISABLE=8x16x16;TANDEM_SHARD=1/16")
  tandem_driver_test(parity.lavapipe26.8x16x16 lavapipe26 tandem_shapes "-tc=splits: a few*")
  set_tests_properties(parity.lavapipe26.8x16x16 PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat;TANDEM_DISABLE=16x8x16")
  # Tensor addressing, emulated as the shapes are.
  tandem_driver_test(parity.lavapipe26.tensors lavapipe26 tandem_shapes "-tc=regression: rows by tensor*")
  set_tests_properties(parity.lavapipe26.tensors PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat2;TANDEM_DISABLE=16x8x16,fwd64,fwd64n,fwd128,fwd128n,fwd16,fwd16w")
  # Two batch entries at once, which tiles of wider heads take.
  set(entries "TANDEM_DEVICE=vulkan:0/coopmat2;TANDEM_DISABLE=${wide},dq64,dq64n,shared_ds")
  tandem_driver_test(parity.lavapipe26.entries lavapipe26 tandem_parity "-tc=regression: entries*")
  set_tests_properties(parity.lavapipe26.entries PROPERTIES ENVIRONMENT "${entries}")
  # The matrix kernels in the form that the layer's check for races in shared memory can follow (mutation/races.cmake), and with
  # defects.
  foreach(kind tiles scratch)
    tandem_driver_test(validation.gpuav.${kind}.entries lavapipe26+gpuav tandem_races_${kind} "-tc=regression: entries*")
    set_tests_properties(validation.gpuav.${kind}.entries PROPERTIES ENVIRONMENT "${entries}")
  endforeach()
  # Minutes each, so the cases are shared out between the paths and the two kinds of shared memory.
  tandem_driver_test(validation.gpuav.tiles.coopmat2 lavapipe26+gpuav tandem_races_tiles
    "-tc=regression: tiles in turns*,regression: biases in turns*")
  set_tests_properties(validation.gpuav.tiles.coopmat2 PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat2;TANDEM_DISABLE=shared_ds")
  tandem_driver_test(validation.gpuav.scratch.coopmat2 lavapipe26+gpuav tandem_races_scratch "-tc=regression: rows and sums*")
  tandem_driver_test(validation.gpuav.scratch.coopmat lavapipe26+gpuav tandem_races_scratch
    "-tc=regression: dropped tiles*,regression: biases in turns*")
  # What barriers of the workgroup order is the same text on both paths. These programs have no modules of shared dS.
  tandem_driver_test(broken.races.tiles lavapipe26+gpuav tandem_races_tiles_broken "-tc=regression: rows and sums*")
  set_tests_properties(broken.races.tiles PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat2;TANDEM_DISABLE=shared_ds")
  set(defects broken.races.tiles)
  foreach(path coopmat2 coopmat)
    tandem_driver_test(broken.races.scratch.${path} lavapipe26+gpuav tandem_races_scratch_broken "-tc=regression: rows and sums*")
    list(APPEND defects broken.races.scratch.${path})
    set_tests_properties(validation.gpuav.scratch.${path} PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0/${path};TANDEM_DISABLE=shared_ds")
    # bwd_dkv with a tile by which a bias goes through the scratch ahead of its block.
    set_tests_properties(broken.races.scratch.${path} PROPERTIES ENVIRONMENT "TANDEM_DEVICE=vulkan:0/${path};TANDEM_DISABLE=dkv64,shared_ds")
  endforeach()
  # Five kernels (where dS is shared bwd_dbias has no products), each dispatched twice, of which the layer takes six messages each.
  set_tests_properties(${defects} PROPERTIES PASS_REGULAR_EXPRESSION "with-driver: 60 validation messages")
  foreach(stem IN LISTS TANDEM_BROKEN)
    foreach(path coopmat2 coopmat)
      if(DEFINED ${path}_${stem}_from)
        tandem_driver_test(broken.${stem}.lavapipe26.${path} lavapipe26 tandem_broken_${stem}
                           "-tc=${TANDEM_BROKEN_MATRIX}")
        set_tests_properties(broken.${stem}.lavapipe26.${path} PROPERTIES
          ENVIRONMENT "TANDEM_DEVICE=vulkan:0/${path};TANDEM_DISABLE=${wide};TANDEM_EXPECT_BROKEN=${stem}")
      endif()
    endforeach()
  endforeach()
  # Parts of the tier ci in which both suites notice all that the stem writes; a GPU has all parts.
  set(broken_part_bwd_row_sums ";TANDEM_SHARD=2/3")
  set(broken_part_bwd_dbias ";TANDEM_SHARD=2/3")
  set(broken_part_bwd_sum_splits ";TANDEM_SHARD=0/3")
  set(broken_part_bwd_head_sums ";TANDEM_SHARD=1/2")
  foreach(stem IN LISTS TANDEM_BROKEN)
    tandem_driver_test(broken.${stem}.lavapipe26 lavapipe26 tandem_broken_${stem}
                       "-tc=${TANDEM_BROKEN_${stem}}")
    set_tests_properties(broken.${stem}.lavapipe26 PROPERTIES
      ENVIRONMENT "TANDEM_DEVICE=vulkan:0/scalar;${broken_environment_${stem}}${broken_part_${stem}}")
  endforeach()
  # AMD's compiler, without an AMD GPU: registers, spills, matrix instructions.
  set_source_files_properties(vulkan/compiled/compiler.cpp PROPERTIES
    INCLUDE_DIRECTORIES ${PROJECT_BINARY_DIR}) # shaders/spec_ids.h
  add_executable(tandem_rdna3 vulkan/compiled/rdna3.cpp vulkan/compiled/compiler.cpp)
  tandem_test_target(tandem_rdna3)
  target_include_directories(tandem_rdna3 SYSTEM PRIVATE ${TANDEM_VOLK_INCLUDE_DIR})
  tandem_driver_test(compiled.rdna3 radv25-navi31 tandem_rdna3
                     ${CMAKE_CURRENT_SOURCE_DIR}/vulkan/compiled/rdna3.txt)
  # Compilers of other GPUs that are not there: a part of the kernels, and plans. scripts/gates has all kernels.
  add_executable(tandem_gates vulkan/compiled/gates.cpp vulkan/compiled/gate_jobs.cpp vulkan/compiled/compiler.cpp)
  tandem_test_target(tandem_gates)
  target_include_directories(tandem_gates SYSTEM PRIVATE ${TANDEM_VOLK_INCLUDE_DIR})
  target_include_directories(tandem_gates PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
  tandem_shader(tandem_gates matrix_in_struct ../tests/vulkan/compiled/matrix_in_struct.comp vulkan1.3)
  # Whether it sees a crash: one that is planted, and the one that all matrix kernels had on Intel's driver once.
  tandem_driver_test(compiled.crash radv-gfx1201 tandem_gates --crash signal)
  tandem_driver_test(compiled.crash.intel intel-bmg tandem_gates --crash matrix_in_struct)
  # What is handed to the driver of a recorded device, as files.
  add_executable(tandem_modules vulkan/compiled/modules.cpp vulkan/compiled/gate_jobs.cpp)
  tandem_test_target(tandem_modules)
  target_include_directories(tandem_modules SYSTEM PRIVATE ${TANDEM_VOLK_INCLUDE_DIR})
  # In Metal's language. With matrices, spirv-cross 1.4.357 stops where elements are computed with, and must not stop at
  # anything before that: scopes, sizes and loads of matrices.
  set(refused "Unsupported (operation on|extraction from) cooperative matrix in MSL backend")
  foreach(name msl=scalar msl.matrices=coopmat)
    string(REGEX MATCH "(.*)=(.*)" name ${name})
    set(path ${CMAKE_MATCH_2})
    set(name translated.${CMAKE_MATCH_1})
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -D MODULES=$<TARGET_FILE:tandem_modules> -D DEVICE=apple_moltenvk
      -D PATH_NAME=${path} -D FOLDER=${CMAKE_CURRENT_BINARY_DIR}/${name} -D TRANSLATOR=${TANDEM_SPIRV_CROSS}
      -D "REFUSED=$<$<STREQUAL:${path},coopmat>:${refused}>" -P ${CMAKE_CURRENT_SOURCE_DIR}/vulkan/compiled/translate.cmake)
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED")
  endforeach()
  # A compiler of each vendor, and coopmat2 where a vendor's driver has it.
  set(compiled_here intel-bmg nvk-ampere radv-gfx1201 radv-gfx1201-coopmat2 turnip-a740)
  foreach(kind gates plans)
    file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/vulkan/compiled/${kind}/*.txt)
    foreach(file IN LISTS files)
      get_filename_component(device ${file} NAME_WE)
      if(device MATCHES "^panvk" OR (kind STREQUAL "gates" AND NOT device IN_LIST compiled_here))
        continue() # scripts/gates has it
      elseif(kind STREQUAL "gates")
        tandem_driver_test(compiled.${device} ${device} tandem_gates --part ${file})
      else()
        tandem_driver_test(plans.${device} ${device} tandem_gates --plans ${file})
      endif()
    endforeach()
  endforeach()
  # And the rows of the tiles that are for it, run where they are the last resort: all others are switched off.
  list(JOIN rows "," rows)
  tandem_driver_test(parity.lavapipe26.doubled lavapipe26 tandem_parity
                     "-tc=ratio: two shapes*,rows that see no key*")
  set_tests_properties(parity.lavapipe26.doubled PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat;TANDEM_DISABLE=${rows}")
  if(TARGET tandem_tool)
    tandem_driver_test(check.lavapipe26.doubled lavapipe26 tandem_tool check --device vulkan:0/coopmat --repro
                       "bwd f16 hq4 hk2 sq70 sk90 d128 dv72 causal_bottom_right")
    tandem_driver_test(check.lavapipe26.doubled.rows lavapipe26 tandem_tool check --device vulkan:0/coopmat --repro
                       "bwd f16 hq2 hk1 sq70 sk90 d72 elastic bias:f16:1x1x70 grads=qbt d_bias:f32")
    tandem_driver_test(check.lavapipe26.doubled.few lavapipe26 tandem_tool check --device vulkan:0/coopmat --repro
                       "fwd f16 hq2 hk1 sq3 sk90 d72 splits=2")
    set_tests_properties(check.lavapipe26.doubled check.lavapipe26.doubled.rows check.lavapipe26.doubled.few PROPERTIES
      ENVIRONMENT "TANDEM_DISABLE=${rows}")
  endif()
  # The lean rows, behind these: every optional input, splits, exact results and the most awkward masks.
  tandem_matrix_rows(others MATRIX)
  tandem_matrix_rows(doubled DOUBLED)
  list(APPEND others ${doubled})
  list(JOIN others "," others)
  tandem_driver_test(parity.lavapipe26.lean lavapipe26 tandem_parity
    "-tc=*every fill*,features: a few*,features: biases*,splits: a few*,ratio: two shapes*,regression: sums*,regression: lse*,regression: far*,rows that see no key*"
    "-tce=*far smaller*") # heads beyond 128
  set_tests_properties(parity.lavapipe26.lean PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat;TANDEM_DISABLE=${others};TANDEM_SHARD=2/4")
  tandem_driver_test(parity.magnitudes.lavapipe26.lean lavapipe26 tandem_parity "-tc=magnitudes: few*")
  set_tests_properties(parity.magnitudes.lavapipe26.lean PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat;TANDEM_DISABLE=${others}")
  tandem_driver_test(parity.lavapipe26.lean.8x16x16 lavapipe26 tandem_shapes "-tc=splits: a few*,exact: backward*")
  set_tests_properties(parity.lavapipe26.lean.8x16x16 PROPERTIES
    ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat;TANDEM_DISABLE=16x8x16,${others};TANDEM_SHARD=3/4")
  if(TARGET tandem_tool)
    tandem_driver_test(check.lavapipe26.lean lavapipe26 tandem_tool check --device vulkan:0/coopmat --repro
                       "bwd f16 hq2 hk1 sq40 sk50 d72 dv24 causal_bottom_right q_padded kv_padded")
    set_tests_properties(check.lavapipe26.lean PROPERTIES ENVIRONMENT "TANDEM_DISABLE=${others}")
  endif()
  set(case_of_tiles "rows and sums")
  set(case_of_scratch "biases in turns")
  foreach(kind tiles scratch)
    tandem_driver_test(validation.gpuav.${kind}.lean lavapipe26+gpuav tandem_races_${kind} "-tc=regression: ${case_of_${kind}}*")
    set_tests_properties(validation.gpuav.${kind}.lean PROPERTIES
      ENVIRONMENT "TANDEM_DEVICE=vulkan:0/coopmat;TANDEM_DISABLE=${others}")
  endforeach()
  # Where tests compile the same kernels, one goes first and the others find them in Mesa's cache.
  # And the longest begin first, in seconds on a fresh clone, so that none of them runs alone at the end.
  set_property(TEST parity.lavapipe26 PROPERTY COST 500)
  set_property(TEST parity.lavapipe26.coopmat2 PROPERTY COST 250)
  set_property(TEST parity.lavapipe26.coopmat PROPERTY COST 400)
  set_property(TEST parity.lavapipe25 PROPERTY COST 70)
  set_property(TEST validation.sync.coopmat2 PROPERTY COST 350)
  foreach(stem IN LISTS TANDEM_BROKEN)
    set_tests_properties(broken.${stem}.lavapipe26 PROPERTIES DEPENDS parity.lavapipe26)
    foreach(path coopmat2 coopmat)
      if(DEFINED ${path}_${stem}_from)
        set_tests_properties(broken.${stem}.lavapipe26.${path} PROPERTIES DEPENDS parity.lavapipe26.${path})
      endif()
    endforeach()
  endforeach()
  if(TARGET c_engine)
    tandem_driver_test(example.c_engine.lavapipe26 lavapipe26+sync c_engine vulkan)
  endif()
  if(TARGET test_char_lm)
    tandem_driver_test(char_lm.lavapipe26 lavapipe26 test_char_lm "-tc=*every device*")
  endif()
  # An application's own Vulkan: right, and with each mistake that the layer has to report.
  tandem_driver_test(engine.vulkan.sync lavapipe26+sync tandem_vulkan_engine)
  tandem_driver_test(engine.vulkan.lavapipe25 lavapipe25 tandem_vulkan_engine
                     "-tc=*allocator*,*labels*,*timestamps*")
  set(mistake_before "written by vkCmdCopyBuffer")
  set(mistake_two "written by another vkCmdDispatch.tandem fwd [^\n]*::fwd")
  set(mistake_between "written by another vkCmdDispatch.tandem bwd [^\n]*::bwd_dot")
  set(mistake_after "vkCmdCopyBuffer reads [^\n]* written by vkCmdDispatch.tandem fwd")
  set(mistake_frame "WRITE_AFTER_WRITE")
  set(mistake_early "objects bound to the command buffer were invalidated")
  foreach(mistake before two between after frame early)
    set(name broken.engine.vulkan.${mistake})
    tandem_driver_test(${name} lavapipe26+sync tandem_vulkan_engine "-tc=*passes of*,*while the GPU*")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "TANDEM_TEST_MISTAKE=${mistake}"
                         PASS_REGULAR_EXPRESSION "${mistake_${mistake}}" DEPENDS engine.vulkan.sync)
  endforeach()
  if(TARGET vulkan_app)
    tandem_driver_test(example.vulkan_app lavapipe26+sync vulkan_app)
    tandem_driver_test(example.vulkan_app.lavapipe25 lavapipe25 vulkan_app)
  endif()
  tandem_driver_test(faults.vulkan lavapipe26+core tandem_vulkan_faults)
  # The first writes a blob, which a second process of the same build takes and another build does not.
  tandem_driver_test(cache.vulkan lavapipe26 tandem_vulkan_cache)
  tandem_driver_test(cache.vulkan.same lavapipe26 tandem_vulkan_cache "-tc=*another process*")
  tandem_driver_test(cache.vulkan.changed lavapipe26 tandem_vulkan_cache_changed "-tc=*another process*")
  foreach(role cache.vulkan=write cache.vulkan.same=same cache.vulkan.changed=changed)
    string(REPLACE "=" ";" role ${role})
    list(POP_FRONT role name)
    set_property(TEST ${name} PROPERTY ENVIRONMENT
      "TANDEM_TEST_CACHE=${role};TANDEM_TEST_BLOB=${CMAKE_CURRENT_BINARY_DIR}/blob.bin")
    if(NOT role STREQUAL "write")
      set_property(TEST ${name} PROPERTY DEPENDS cache.vulkan)
    endif()
  endforeach()
  if(TARGET tandem_tool)
    tandem_driver_test(doctor.lavapipe26 lavapipe26 tandem_tool doctor --device vulkan:0/scalar --seconds 1
                       --bench-seconds 0 --out ${CMAKE_CURRENT_BINARY_DIR}/doctor.lavapipe26.md)
    set_tests_properties(doctor.lavapipe26 PROPERTIES PASS_REGULAR_EXPRESSION
      "Parity: OK: [0-9]+ runs.*vit-b16-224.*OK, [0-9]+ s")
    tandem_driver_test(plan.time lavapipe26 tandem_tool plan --time --device vulkan:0/scalar
                       "bwd f32 b1 hq2 hk1 sq20 sk30 d8")
    set_tests_properties(plan.time PROPERTIES PASS_REGULAR_EXPRESSION
      "fwd [^\n]* wide .*bwd_dkv [^\n]* any .*all plans: [0-9.]+ ms on a new device, [^\n]* blob of [0-9]+ bytes")
    add_test(NAME cache.tools COMMAND ${CMAKE_COMMAND} -D RUN=${CMAKE_CURRENT_SOURCE_DIR}/on-driver -D DRIVER=lavapipe26
      -D TOOL=$<TARGET_FILE:tandem_tool> -D FOLDER=${CMAKE_CURRENT_BINARY_DIR}/tool_cache
      -P ${CMAKE_CURRENT_SOURCE_DIR}/vulkan/tool_cache.cmake)
    set_tests_properties(cache.tools PROPERTIES SKIP_REGULAR_EXPRESSION "SKIPPED")
  endif()
  # What the driver gets; the first leaves it as files for the validator.
  tandem_driver_test(specialise.vulkan lavapipe26 tandem_vulkan_specialise)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/specialised)
  file(MAKE_DIRECTORY ${folder})
  set_tests_properties(specialise.vulkan PROPERTIES ENVIRONMENT "TANDEM_TEST_SPIRV=${folder}")
  if(TANDEM_SPIRV_VAL)
    add_test(NAME specialise.valid COMMAND ${CMAKE_COMMAND} -D FOLDER=${folder} -D VALIDATOR=${TANDEM_SPIRV_VAL}
                                           -P ${CMAKE_CURRENT_SOURCE_DIR}/vulkan/validate.cmake)
    set_tests_properties(specialise.valid PROPERTIES DEPENDS specialise.vulkan SKIP_RETURN_CODE 77)
  endif()
  tandem_driver_test(host_memory.vulkan lavapipe26 tandem_vulkan_memory)
  tandem_driver_test(faults.vulkan.swiftshader swiftshader tandem_vulkan_faults)
  tandem_driver_test(unit.vulkan lavapipe26 tandem_tests -tc=*Vulkan*)
  set_tests_properties(unit.vulkan PROPERTIES ENVIRONMENT "TANDEM_NEED_VULKAN=1")
endif()
