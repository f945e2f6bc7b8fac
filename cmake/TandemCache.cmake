# SPDX-License-Identifier: MIT OR Apache-2.0
# Objects come from ccache where it is installed, unless you name a launcher: -DCMAKE_CXX_COMPILER_LAUNCHER= (empty) for none,
# and the same for C and CUDA. Checkouts at other places share objects: paths below this one count as relative. Kernels of
# CUDA whose compiler output is kept (cmake/keep-ptxas) go through both launchers: ccache repeats the output.
find_program(TANDEM_CCACHE ccache DOC "A cache of objects (optional)")
mark_as_advanced(TANDEM_CCACHE)
set(TANDEM_CACHES_HEADERS ON) # whether precompiled headers pay: an unknown launcher may not support them
set(launcher "")
if(TANDEM_CCACHE AND CMAKE_GENERATOR MATCHES "Ninja|Makefiles") # others know no launchers
  # Precompiled headers: ccache wants to be told that a macro may differ which no file of ours uses.
  set(launcher ${CMAKE_COMMAND} -E env)
  if(NOT DEFINED ENV{CCACHE_SLOPPINESS})
    list(APPEND launcher CCACHE_SLOPPINESS=pch_defines,time_macros)
  endif()
  if(NOT DEFINED ENV{CCACHE_BASEDIR})
    list(APPEND launcher CCACHE_BASEDIR=${PROJECT_SOURCE_DIR})
  endif()
  list(APPEND launcher ${TANDEM_CCACHE})
  message(STATUS "Tandem: objects go through ${TANDEM_CCACHE}")
endif()
foreach(language C CXX CUDA)
  if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${launcher})
  elseif(CMAKE_${language}_COMPILER_LAUNCHER)
    set(TANDEM_CACHES_HEADERS OFF)
  endif()
endforeach()
unset(launcher)
