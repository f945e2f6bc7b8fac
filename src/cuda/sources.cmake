# SPDX-License-Identifier: MIT OR Apache-2.0
# Where the CUDA backend is: the target TANDEM_CUDA_TARGET, which cuda/sources.cmake gives its sources. Built in, it is the
# library itself. As a plug-in it is tandem_cuda, which src/cuda/plugin/find.cpp opens; that looks for it also where this build makes
# none, as the two need not come from one package.
set(TANDEM_CUDA_TARGET tandem)
if(TANDEM_CUDA_PLUGIN)
  set(TANDEM_CUDA_TARGET tandem_cuda)
  set(TANDEM_CUDA_FILE ${CMAKE_SHARED_LIBRARY_PREFIX}tandem_cuda${CMAKE_SHARED_LIBRARY_SUFFIX})
  if(UNIX AND NOT APPLE)
    string(APPEND TANDEM_CUDA_FILE .${PROJECT_VERSION_MAJOR})
  endif()
  target_sources(tandem PRIVATE src/base/shared_library.cpp src/cuda/api.cpp src/cuda/plugin/find.cpp)
  set_property(SOURCE src/cuda/plugin/find.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    TANDEM_CUDA_FILE="${TANDEM_CUDA_FILE}" TANDEM_CUDA_MADE=$<BOOL:${TANDEM_WITH_CUDA}>)
elseif(TANDEM_WITH_CUDA)
  target_sources(tandem PRIVATE src/cuda/api.cpp src/cuda/builtin.cpp)
endif()

# tandem_cuda_library(target): a library that find.cpp can open. What it has of the library are its objects once more,
# without host memory, which the library lends, and what calls the C API.
function(tandem_cuda_library target)
  set(core "$<FILTER:$<TARGET_OBJECTS:tandem>,INCLUDE,/src/((base|kernels|plan|problem)/|api/explain[.])>")
  add_library(${target} SHARED "$<FILTER:${core},EXCLUDE,/(host_memory|shared_library|problem_line)[.]>"
    ${PROJECT_SOURCE_DIR}/src/cuda/plugin/plugin.cpp)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  tandem_shared_library(${target} cmake/plugin.map)
  if(UNIX AND NOT APPLE) # a program that links it refers to nothing of it, and its linker would leave it out
    target_link_options(${target} INTERFACE LINKER:--no-as-needed)
  endif()
  tandem_options(${target})
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT TANDEM_SANITIZE) # what it lacks shows here, and not when it is opened
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()
endfunction()
