# SPDX-License-Identifier: MIT OR Apache-2.0
# Programs of their own on the Vulkan drivers that scripts/toolchain has, and compilers of GPUs that are not there. What the
# parity suite runs on them is the table runs.cmake.
if(TANDEM_WITH_VULKAN AND UNIX)
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
  if(TARGET tandem_tool) # tiles that are the last resort here (runs.cmake)
    list(JOIN matrix "," rows)
    tandem_driver_test(check.lavapipe26.doubled lavapipe26 tandem_tool check --device vulkan:0/coopmat --repro
                       "bwd f16 hq4 hk2 sq70 sk90 d128 dv72 causal_bottom_right")
    tandem_driver_test(check.lavapipe26.doubled.rows lavapipe26 tandem_tool check --device vulkan:0/coopmat --repro
                       "bwd f16 hq2 hk1 sq70 sk90 d72 elastic bias:f16:1x1x70 grads=qbt d_bias:f32")
    tandem_driver_test(check.lavapipe26.doubled.few lavapipe26 tandem_tool check --device vulkan:0/coopmat --repro
                       "fwd f16 hq2 hk1 sq3 sk90 d72 splits=2")
    set_tests_properties(check.lavapipe26.doubled check.lavapipe26.doubled.rows check.lavapipe26.doubled.few PROPERTIES
      ENVIRONMENT "TANDEM_DISABLE=${rows}")
    list(JOIN to_lean "," rows)
    tandem_driver_test(check.lavapipe26.lean lavapipe26 tandem_tool check --device vulkan:0/coopmat --repro
                       "bwd f16 hq2 hk1 sq40 sk50 d72 dv24 causal_bottom_right q_padded kv_padded")
    set_tests_properties(check.lavapipe26.lean PROPERTIES ENVIRONMENT "TANDEM_DISABLE=${rows}")
  endif()
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
      "Parity: OK: [0-9]+ runs.*vit-b16-224.*WARNING: vulkan:0/scalar: long prompt: one execute takes about [0-9.]+ s.*OK, [0-9]+ s")
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
