# SPDX-License-Identifier: MIT OR Apache-2.0
# Debian packages of an installation, by `cpack -G DEB` in the build folder: libtandem0, libtandem-cuda0 where the CUDA
# backend is a library of its own, libtandem-dev. For a build that installs to /usr (scripts/release deb), as the folder of
# libraries is Debian's then.
set(major ${PROJECT_VERSION_MAJOR})
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_VENDOR "The Tandem authors")
set(TANDEM_MAINTAINER "The Tandem authors <tandem@example.invalid>" CACHE STRING "Maintainer of the Debian packages")
mark_as_advanced(TANDEM_MAINTAINER)
set(CPACK_PACKAGE_CONTACT "${TANDEM_MAINTAINER}")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL runtime dev)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY "=") # before 1.0 a minor version may break the API

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libtandem${major})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS "libvulkan1")
if(TANDEM_CUDA_PLUGIN) # also where this build makes none: another one of the same sources may
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "libtandem-cuda${major} (= ${PROJECT_VERSION})")
endif()
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "The library: attention on the CPU and, where a driver is there, by Vulkan.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libtandem-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libtandem${major} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS "libvulkan-dev")
set(CPACK_DEBIAN_DEV_DESCRIPTION "Headers, a static library, files for CMake and pkg-config.")
set(packages runtime dev)
if(TARGET tandem_cuda)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  list(APPEND packages cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME libtandem-cuda${major})
  set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION non-free/libs) # NVIDIA's runtime is inside
  # Exactly this version: the library refuses a backend whose layout is not its own (src/cuda/plugin/plugin.h). No package of a
  # driver: Debian's main has none, and NVIDIA's own packages of it have names that change with each series.
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "libtandem${major} (= ${PROJECT_VERSION})")
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " architectures)
  set(CPACK_DEBIAN_CUDA_DESCRIPTION
"The CUDA backend, which libtandem${major} opens for a CUDA device.
It needs an NVIDIA GPU and NVIDIA's driver for CUDA ${CUDAToolkit_VERSION_MAJOR}
(libcuda.so.1), which no package that this one asks for brings. Without them
a CUDA device is refused with a sentence, and all others work.

Its kernels are for the architectures ${architectures}.")
endif()

# Each package has licences by Debian's name, for its own folder.
option(TANDEM_DEBIAN "Files that only Debian packages have" OFF)
if(TANDEM_DEBIAN)
  file(READ LICENSE-MIT mit)
  string(REGEX REPLACE "\n\n" "\n.\n" mit "${mit}")
  string(REGEX REPLACE "\n([^\n])" "\n \\1" mit "${mit}")
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/copyright @ONLY CONTENT
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: tandem
Comment: What of others is compiled in stands in LICENSE-THIRD-PARTY beside this file.

Files: *
Copyright: 2026 The Tandem authors
License: Expat or Apache-2.0

License: Expat
 ${mit}
License: Apache-2.0
 /usr/share/common-licenses/Apache-2.0
")
  foreach(component IN LISTS packages)
    string(TOUPPER ${component} name)
    install(FILES ${PROJECT_BINARY_DIR}/copyright ${PROJECT_BINARY_DIR}/LICENSE-THIRD-PARTY
      ${PROJECT_BINARY_DIR}/tandem.spdx.json
      DESTINATION share/doc/${CPACK_DEBIAN_${name}_PACKAGE_NAME} COMPONENT ${component})
  endforeach()
endif()
include(CPack)
