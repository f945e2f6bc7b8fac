# SPDX-License-Identifier: MIT OR Apache-2.0
# What `cmake --install` puts where, and the files by which CMake and pkg-config find it. docs/guide/consuming.md is the
# user's side of it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The components of the installation, for cmake --install --component and for packages:
#   runtime  the shared library
#   cuda     its CUDA backend, where that is a library of its own
#   dev      headers, a static library, what links the shared one, files for CMake and pkg-config
#   doc      licences, also those of others, and the bill of materials
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tandem)
set(places
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(TARGETS tandem EXPORT tandemTargets ${places})
if(TARGET tandem_static)
  install(TARGETS tandem_static EXPORT tandemStaticTargets ${places})
  install(EXPORT tandemStaticTargets NAMESPACE tandem:: DESTINATION ${package_dir} COMPONENT dev)
endif()
# A Debian package of a library has no file whose name is the same in the next major version: CMake's go into that for
# developers, and tandemConfig.cmake looks whether the backend is there.
set(cuda_files_in cuda)
if(TANDEM_DEBIAN)
  set(cuda_files_in dev)
endif()
if(TARGET tandem_cuda) # opened by the library beside it, so it goes where that goes
  set_target_properties(tandem_cuda PROPERTIES EXPORT_NAME cuda)
  install(TARGETS tandem_cuda EXPORT tandemCudaTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda NAMELINK_SKIP
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cuda)
  install(EXPORT tandemCudaTargets NAMESPACE tandem:: DESTINATION ${package_dir} COMPONENT ${cuda_files_in})
endif()
install(DIRECTORY include/tandem DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
tandem_third_party_licences(licences)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/LICENSE-THIRD-PARTY @ONLY CONTENT "${licences}")
tandem_bill(${PROJECT_BINARY_DIR}/tandem.spdx.json)
install(FILES LICENSE-MIT LICENSE-APACHE ${PROJECT_BINARY_DIR}/LICENSE-THIRD-PARTY ${PROJECT_BINARY_DIR}/tandem.spdx.json
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)

# An application in C links a static library of C++ objects with the C compiler, so the file names the C++ runtime.
set(TANDEM_CXX_LIBS ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(REMOVE_ITEM TANDEM_CXX_LIBS ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})

# ---- find_package(tandem) ----
install(EXPORT tandemTargets NAMESPACE tandem:: DESTINATION ${package_dir} COMPONENT dev)
set(has_static ${TANDEM_STATIC_TOO})
if(NOT BUILD_SHARED_LIBS)
  set(has_static ON)
endif()
set(cuda_file ${CMAKE_INSTALL_LIBDIR}/${TANDEM_CUDA_FILE})
if(WIN32)
  set(cuda_file ${CMAKE_INSTALL_BINDIR}/${TANDEM_CUDA_FILE})
endif()
configure_package_config_file(cmake/tandemConfig.cmake.in ${PROJECT_BINARY_DIR}/tandemConfig.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS cuda_file)
# Before 1.0 a minor version may break the API.
set(compatible SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatible SameMinorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tandemConfigVersion.cmake COMPATIBILITY ${compatible})
install(FILES ${PROJECT_BINARY_DIR}/tandemConfig.cmake ${PROJECT_BINARY_DIR}/tandemConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT dev)

# ---- pkg-config tandem ----
list(TRANSFORM TANDEM_CXX_LIBS PREPEND -l OUTPUT_VARIABLE private_libs)
list(APPEND private_libs ${CMAKE_THREAD_LIBS_INIT})
if(TANDEM_WITH_CUDA AND NOT TANDEM_CUDA_PLUGIN)
  get_filename_component(cudart ${CUDA_cudart_static_LIBRARY} DIRECTORY)
  list(PREPEND private_libs "-L\"${cudart}\"" -lcudart_static)
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    list(APPEND private_libs -lrt -lpthread)
  endif()
endif()
list(TRANSFORM CMAKE_DL_LIBS PREPEND -l OUTPUT_VARIABLE dl)
list(APPEND private_libs ${dl})
if(TANDEM_SANITIZE)
  get_target_property(sanitizers tandem INTERFACE_LINK_OPTIONS)
  list(PREPEND private_libs ${sanitizers})
endif()
list(REMOVE_DUPLICATES private_libs)
list(JOIN private_libs " " private_libs)
# A shared library has these itself. Where only the static one is there, --static should not be needed.
set(TANDEM_PC_LIBS "")
set(TANDEM_PC_PRIVATE_LIBS ${private_libs})
if(NOT BUILD_SHARED_LIBS)
  set(TANDEM_PC_LIBS " ${private_libs}")
  set(TANDEM_PC_PRIVATE_LIBS "")
endif()
# From the file's own place, so that the installed tree can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(TANDEM_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" up "${up}")
  set(TANDEM_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(dir LIBDIR INCLUDEDIR)
  set(TANDEM_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(TANDEM_PC_${dir} ${CMAKE_INSTALL_${dir}})
  endif()
endforeach()
configure_file(cmake/tandem.pc.in ${PROJECT_BINARY_DIR}/tandem.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tandem.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
