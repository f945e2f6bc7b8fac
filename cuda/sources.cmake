# The CUDA backend, as sources of TANDEM_CUDA_TARGET (src/cuda/sources.cmake). Included by the root CMakeLists.txt when
# TANDEM_WITH_CUDA is on.
# CMAKE_CUDA_ARCHITECTURES is yours to set. Unset: machine code for sm_80, which sm_86, sm_87 and sm_89 run too, and for sm_90;
# and PTX for every other GPU, which its driver compiles once. Toolkit 13 no longer compiles for sm_70.
set(default_architectures OFF)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
  set(default_architectures ON)
  # Before the language is enabled, which else puts the compiler's own default into the cache, where the
  # next configuration would take it for yours.
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real")
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(default_architectures AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  list(PREPEND CMAKE_CUDA_ARCHITECTURES 75-virtual)
elseif(default_architectures)
  list(PREPEND CMAKE_CUDA_ARCHITECTURES 70-virtual)
endif()

function(tandem_cuda_options target architectures)
  set_target_properties(${target} PROPERTIES
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF CUDA_RUNTIME_LIBRARY Static
    CUDA_VISIBILITY_PRESET hidden CUDA_ARCHITECTURES "${architectures}")
endfunction()

if(TANDEM_CUDA_PLUGIN)
  tandem_cuda_library(tandem_cuda)
  add_library(tandem::cuda ALIAS tandem_cuda)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/rows.cmake)
file(GLOB simt_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/simt/*.cu)
target_sources(${TANDEM_CUDA_TARGET} PRIVATE ${simt_sources} src/cuda/device.cpp src/cuda/runtime.cpp src/cuda/sm80.cpp)
# These kernels have no word that 9.0 knows and 8.0 does not: both get machine code of one and the same PTX, which spares
# one of the compiler's longest passes.
set(simt_architectures ${CMAKE_CUDA_ARCHITECTURES})
# For builds whose kernels run nowhere, as CI's: machine code of the samples alone. All other kernels become PTX that is not
# optimised, in a twentieth of the time. A whole build shows what the compiler makes of them (compiled.sm80, compiled.sm90).
option(TANDEM_CUDA_SAMPLE "machine code for a few kernels of cuda.sm80 and cuda.sm90 alone; the others run slowly" OFF)
mark_as_advanced(TANDEM_CUDA_SAMPLE)
set(sm80_sample fwd bwd_dkv_dq)
set(sm90_sample bwd_dkv_dq fwd pack_bias)
set(fast_options "")
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  set(fast_options $<$<COMPILE_LANGUAGE:CUDA>:-Ofc=max>)
endif()
if(TANDEM_CUDA_SAMPLE)
  set(simt_architectures 75-virtual)
  target_compile_options(${TANDEM_CUDA_TARGET} PRIVATE ${fast_options})
endif()
if("80-real" IN_LIST simt_architectures AND "90-real" IN_LIST simt_architectures)
  list(REMOVE_ITEM simt_architectures 90-real)
  target_compile_options(${TANDEM_CUDA_TARGET} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--generate-code=arch=compute_80,code=[sm_90]>")
endif()
tandem_cuda_options(${TANDEM_CUDA_TARGET} "${simt_architectures}")
# Registers and spills of every kernel, in the build log: scripts and people look for "spill".
target_compile_options(${TANDEM_CUDA_TARGET} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
# The runtime is in that library itself; the driver is found at run time, so nothing needs libcuda.
target_link_libraries(${TANDEM_CUDA_TARGET} PRIVATE CUDA::cudart_static)

# tandem_object_kernels(target architectures source...): kernels with architectures of their own, as objects of the backend's target;
# TANDEM_CUDA_OBJECTS lists the targets.
macro(tandem_object_kernels target architectures)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE include src cuda)
  tandem_cuda_options(${target} "${architectures}")
  target_sources(${TANDEM_CUDA_TARGET} PRIVATE $<TARGET_OBJECTS:${target}>)
  list(APPEND TANDEM_CUDA_OBJECTS ${target})
endmacro()

# tandem_row_kernels(folder architectures ptx header...): the kernels of headers that rows name (rows.cmake), as the target
# tandem_<folder>. In a sample all but those of <folder>_sample are tandem_<folder>_fast, PTX of the architecture ptx.
macro(tandem_row_kernels folder architectures ptx)
  set(sources "")
  set(rest "")
  foreach(header ${ARGN})
    tandem_cuda_source(${folder} ${header} ${PROJECT_BINARY_DIR}/${folder}/${header}.cu)
    if(TANDEM_CUDA_SAMPLE AND NOT header IN_LIST ${folder}_sample)
      list(APPEND rest ${PROJECT_BINARY_DIR}/${folder}/${header}.cu)
    else()
      list(APPEND sources ${PROJECT_BINARY_DIR}/${folder}/${header}.cu)
    endif()
  endforeach()
  if(rest)
    tandem_object_kernels(tandem_${folder}_fast ${ptx} ${rest})
    target_compile_options(tandem_${folder}_fast PRIVATE ${fast_options})
  endif()
  tandem_object_kernels(tandem_${folder} "${architectures}" ${sources})
  tandem_keep_ptxas(tandem_${folder})
endmacro()

# What the CUDA compiler says of the kernels of a target goes to <object>.ptxas, for tests/cuda/sm90/check_ptxas.
function(tandem_keep_ptxas target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
  if(UNIX)
    set_target_properties(${target} PROPERTIES
      CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/keep-ptxas")
    set_property(TARGET ${target} APPEND PROPERTY CUDA_COMPILER_LAUNCHER ${CMAKE_CUDA_COMPILER_LAUNCHER})
  endif()
endfunction()

# The kernels of cuda/sm80, whose instructions need compute capability 8.0: machine code as for the others, and PTX for
# GPUs that come later. Left out where the architectures that you set are all older.
set(sm80_architectures "")
if(TANDEM_CUDA_SAMPLE)
  set(sm80_architectures 80-real)
elseif(default_architectures)
  set(sm80_architectures 80-virtual 80-real 90-real)
else()
  foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
    string(REGEX MATCH "^[0-9]+" number "${architecture}")
    if(NOT number OR number GREATER_EQUAL 80) # "all", "native"
      list(APPEND sm80_architectures ${architecture})
    endif()
  endforeach()
endif()
set(TANDEM_CUDA_OBJECTS "")
if(sm80_architectures)
  tandem_row_kernels(sm80 "${sm80_architectures}" 80-virtual ${TANDEM_SM80_SOURCES})
else()
  tandem_absent_sm80(${PROJECT_BINARY_DIR}/sm80/absent.cpp)
  target_sources(${TANDEM_CUDA_TARGET} PRIVATE ${PROJECT_BINARY_DIR}/sm80/absent.cpp)
  message(STATUS "Tandem: cuda.sm80 left out: CMAKE_CUDA_ARCHITECTURES has none from 80 on")
endif()
unset(default_architectures)

# The kernels for Hopper, whose instructions no other machine code or PTX has. Left out where the architectures that
# you set have none of compute capability 9.0, or the compiler does not know sm_90a.
set(TANDEM_WITH_SM90 ON)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
  set(TANDEM_WITH_SM90 OFF)
  message(STATUS "Tandem: cuda.sm90 left out: CUDA ${CMAKE_CUDA_COMPILER_VERSION} is older than 12")
elseif(NOT CMAKE_CUDA_ARCHITECTURES MATCHES "90|all|native")
  set(TANDEM_WITH_SM90 OFF)
  message(STATUS "Tandem: cuda.sm90 left out: CMAKE_CUDA_ARCHITECTURES has no 90")
endif()
if(TANDEM_WITH_SM90)
  tandem_row_kernels(sm90 90a-real 90a-virtual ${TANDEM_SM90_SOURCES})
  target_sources(${TANDEM_CUDA_TARGET} PRIVATE src/cuda/sm90.cpp src/cuda/sm90_bwd.cpp src/cuda/sm90_fwd.cpp
    src/cuda/sm90_tensor_maps.cpp)
  set_property(SOURCE src/api/absent.cpp APPEND PROPERTY COMPILE_DEFINITIONS TANDEM_WITH_SM90=1)
else()
  target_sources(${TANDEM_CUDA_TARGET} PRIVATE src/cuda/sm90_absent.cpp)
endif()
