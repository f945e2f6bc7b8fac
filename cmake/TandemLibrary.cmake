# SPDX-License-Identifier: MIT OR Apache-2.0
# tandem_library(target): what a build of the library shows of itself. A function, because the tests link the
# library's objects into a shared library once more, to look at it.
function(tandem_library target)
  if(WIN32)
    set_target_properties(${target} PROPERTIES DEFINE_SYMBOL TANDEM_BUILD_SHARED)
    if(BUILD_SHARED_LIBS)
      target_compile_definitions(${target} INTERFACE TANDEM_SHARED)
    endif()
  else()
    # No other definition for a shared library: the same objects serve both kinds.
    set_target_properties(${target} PROPERTIES DEFINE_SYMBOL "")
  endif()
  tandem_shared_library(${target} cmake/exports.map)
endfunction()

# tandem_shared_library(target map): the name of a library's file, and the symbols that it exports where it is a shared one.
function(tandem_shared_library target map)
  set_target_properties(${target} PROPERTIES
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "SHARED_LIBRARY")
    return()
  endif()
  if(APPLE)
    target_link_options(${target} PRIVATE "LINKER:-exported_symbol,_tandem_*")
  elseif(UNIX)
    set(map ${PROJECT_SOURCE_DIR}/${map})
    target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${map})
  endif()
endfunction()
