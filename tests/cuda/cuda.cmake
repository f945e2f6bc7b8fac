# SPDX-License-Identifier: MIT OR Apache-2.0
# The CUDA backend: on the emulator, on a GPU, and what its compiler says.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT TANDEM_SANITIZE) # its fibers are unknown to sanitizers
  add_subdirectory(cuda/emulated)
  add_subdirectory(cuda/plugin)
endif()

if(TANDEM_WITH_CUDA)
  add_executable(tandem_cuda_graph cuda/test_graph.cpp)
  target_link_libraries(tandem_cuda_graph PRIVATE tandem::tandem CUDA::cudart_static)
  tandem_options(tandem_cuda_graph)
  add_test(NAME cuda_graph COMMAND tandem_cuda_graph)
  set_tests_properties(cuda_graph PROPERTIES SKIP_RETURN_CODE 77)
  if(UNIX) # these open the driver by dlopen
    add_executable(tandem_cuda_context cuda/test_context.cpp)
    target_include_directories(tandem_cuda_context PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(tandem_cuda_context PRIVATE tandem::tandem Threads::Threads ${CMAKE_DL_LIBS})
    tandem_options(tandem_cuda_context)
    add_test(NAME cuda_context COMMAND tandem_cuda_context)
    add_test(NAME cuda_context.several COMMAND tandem_cuda_context several)
    if(TANDEM_WITH_VULKAN)
      add_executable(tandem_interop interop/test_interop.cpp interop/shared_memory.cpp)
      tandem_test_target(tandem_interop)
      target_include_directories(tandem_interop PRIVATE ${PROJECT_SOURCE_DIR}/harness ${CUDAToolkit_INCLUDE_DIRS})
      target_link_libraries(tandem_interop PRIVATE ${CMAKE_DL_LIBS})
      add_test(NAME interop COMMAND tandem_interop)
      set_tests_properties(interop PROPERTIES SKIP_RETURN_CODE 77)
    endif()
    set_tests_properties(cuda_context cuda_context.several PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  if(TANDEM_WITH_SM90)
    add_subdirectory(cuda/sm90)
  endif()
  # What the compiler says of the tensor cores' kernels, machine code for each architecture that has some.
  if(UNIX AND TARGET tandem_sm80)
    get_target_property(architectures tandem_sm80 CUDA_ARCHITECTURES)
    if(architectures MATCHES "[89]0(-real|;|$)")
      add_test(NAME compiled.sm80 COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/sm90/check_ptxas
        $<$<NOT:$<BOOL:${TANDEM_CUDA_SAMPLE}>>:--all=sm80>
        "$<JOIN:$<TARGET_OBJECTS:tandem_sm80>,.ptxas;>.ptxas" COMMAND_EXPAND_LISTS)
    endif()
  endif()
endif()
