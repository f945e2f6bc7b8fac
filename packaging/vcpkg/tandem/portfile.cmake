# SPDX-License-Identifier: MIT OR Apache-2.0
# scripts/release writes the address and the hash of a release's archive.
vcpkg_download_distfile(ARCHIVE URLS "@URL@" FILENAME "tandem-@VERSION@.tar.xz" SHA512 @SHA512@)
vcpkg_extract_source_archive(SOURCE_PATH ARCHIVE "${ARCHIVE}")

string(COMPARE EQUAL "${VCPKG_LIBRARY_LINKAGE}" "dynamic" shared)
set(vulkan OFF)
if("vulkan" IN_LIST FEATURES)
  set(vulkan ON)
endif()
set(cuda OFF)
if("cuda" IN_LIST FEATURES) # wants nvcc on the machine
  set(cuda ON)
endif()

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DBUILD_SHARED_LIBS=${shared}
    -DTANDEM_VULKAN=${vulkan}
    -DTANDEM_CUDA=${cuda}
    -DTANDEM_PYTHON=OFF
    -DTANDEM_TOOLS=OFF
    -DTANDEM_TESTS=OFF
    -DTANDEM_EXAMPLES=OFF
    "-DTANDEM_GLSLANG=${CURRENT_HOST_INSTALLED_DIR}/tools/glslang/glslang${VCPKG_HOST_EXECUTABLE_SUFFIX}"
    "-DTANDEM_VULKAN_INCLUDE_DIR=${CURRENT_INSTALLED_DIR}/include"
    "-DTANDEM_VOLK_INCLUDE_DIR=${CURRENT_INSTALLED_DIR}/include"
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME tandem CONFIG_PATH lib/cmake/tandem)
vcpkg_fixup_pkgconfig()
vcpkg_copy_pdbs()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST
  "${SOURCE_PATH}/LICENSE-MIT" "${SOURCE_PATH}/LICENSE-APACHE"
  "${CURRENT_PACKAGES_DIR}/share/doc/tandem/LICENSE-THIRD-PARTY")
