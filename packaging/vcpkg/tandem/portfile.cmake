# SPDX-License-Identifier: MIT OR Apache-2.0
# scripts/release writes the address and the hash of a release's archive.
vcpkg_download_distfile(ARCHIVE URLS "@URL@" FILENAME "tandem-${VERSION}.tar.xz" SHA512 @SHA512@)
vcpkg_extract_source_archive(SOURCE_PATH ARCHIVE "${ARCHIVE}")

vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS
  FEATURES
    vulkan TANDEM_VULKAN
    cuda TANDEM_CUDA
)
set(licences "${SOURCE_PATH}/LICENSE-MIT" "${SOURCE_PATH}/LICENSE-APACHE")
if("vulkan" IN_LIST FEATURES)
  list(APPEND FEATURE_OPTIONS
    "-DTANDEM_GLSLANG=${CURRENT_HOST_INSTALLED_DIR}/tools/glslang/glslang${VCPKG_HOST_EXECUTABLE_SUFFIX}"
    "-DTANDEM_VULKAN_INCLUDE_DIR=${CURRENT_INSTALLED_DIR}/include"
    "-DTANDEM_VOLK_INCLUDE_DIR=${CURRENT_INSTALLED_DIR}/include"
    "-DTANDEM_SPIRV_OPT=${CURRENT_HOST_INSTALLED_DIR}/tools/spirv-tools/spirv-opt${VCPKG_HOST_EXECUTABLE_SUFFIX}"
    -DTANDEM_SPIRV_VAL= # no validator that the machine may have
  )
endif()
if("cuda" IN_LIST FEATURES)
  vcpkg_find_cuda(OUT_CUDA_TOOLKIT_ROOT cuda_root)
  list(APPEND FEATURE_OPTIONS "-DCMAKE_CUDA_COMPILER=${NVCC}" "-DCUDAToolkit_ROOT=${cuda_root}")
endif()
if("vulkan" IN_LIST FEATURES OR "cuda" IN_LIST FEATURES) # otherwise nothing of others is in the library
  list(APPEND licences "${CURRENT_PACKAGES_DIR}/share/doc/tandem/LICENSE-THIRD-PARTY")
endif()

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    ${FEATURE_OPTIONS}
    -DTANDEM_PYTHON=OFF
    -DTANDEM_TOOLS=OFF
    -DTANDEM_TESTS=OFF
    -DTANDEM_EXAMPLES=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/tandem)
vcpkg_fixup_pkgconfig()
vcpkg_copy_pdbs()
vcpkg_install_copyright(FILE_LIST ${licences})
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
