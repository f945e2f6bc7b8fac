# SPDX-License-Identifier: MIT OR Apache-2.0
# What of others is in the library's files, in one list (TANDEM_THIRD_PARTIES): the licences that go along with binaries, and
# the bill of materials (SPDX 2.3). Both are written when the build is configured, with what this build has.

# tandem_licence_in(header result): the licence in the comment of a header that begins at "Copyright".
function(tandem_licence_in header result)
  file(READ ${header} text)
  string(FIND "${text}" "Copyright " from)
  if(from EQUAL -1)
    message(FATAL_ERROR "${header} has no copyright line, which binaries need")
  endif()
  string(SUBSTRING "${text}" ${from} -1 text)
  string(FIND "${text}" "*/" to)
  string(SUBSTRING "${text}" 0 ${to} text)
  string(REGEX REPLACE "\n ?\\* ?" "\n" text "${text}")
  string(REGEX REPLACE "=+$" "" text "${text}")
  string(STRIP "${text}" text)
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# The number that a header defines as name.
function(tandem_number_in header name result)
  file(STRINGS ${header} line REGEX "^# *define ${name} +[0-9]+" LIMIT_COUNT 1)
  string(REGEX REPLACE ".* ([0-9]+).*" "\\1" number "${line}")
  set(${result} "${number}" PARENT_SCOPE)
endfunction()

# A macro, so that its caller has the list: TANDEM_THIRD_PARTIES, and of each name TANDEM_PARTY_<name>_ VERSION, LICENCE (SPDX),
# FROM (who supplies it), PURL, IN (the libraries that have it), TEXT (its licence).
macro(tandem_third_party name version licence from purl in text)
  list(APPEND TANDEM_THIRD_PARTIES ${name})
  set(TANDEM_PARTY_${name}_VERSION "${version}")
  set(TANDEM_PARTY_${name}_LICENCE "${licence}")
  set(TANDEM_PARTY_${name}_FROM "${from}")
  set(TANDEM_PARTY_${name}_PURL "${purl}")
  set(TANDEM_PARTY_${name}_IN "${in}")
  set(TANDEM_PARTY_${name}_TEXT "${text}")
endmacro()
set(TANDEM_THIRD_PARTIES "")
if(TANDEM_WITH_VULKAN)
  tandem_licence_in(${TANDEM_VOLK_INCLUDE_DIR}/volk.h text)
  tandem_number_in(${TANDEM_VOLK_INCLUDE_DIR}/volk.h VOLK_HEADER_VERSION version)
  tandem_third_party(volk "${version}" MIT "Arseny Kapoulkine" "pkg:github/zeux/volk@${version}" tandem "${text}")
  set(header ${TANDEM_VULKAN_INCLUDE_DIR}/vulkan/vulkan_core.h)
  tandem_number_in(${header} VK_HEADER_VERSION version)
  file(STRINGS ${header} line REGEX "^#define VK_HEADER_VERSION_COMPLETE ")
  string(REGEX REPLACE ".*\\(0, ([0-9]+), ([0-9]+),.*" "\\1.\\2.${version}" version "${line}")
  tandem_third_party(Vulkan-Headers "${version}" "Apache-2.0 OR MIT" "The Khronos Group Inc."
    "pkg:github/KhronosGroup/Vulkan-Headers@v${version}" tandem
    "Copyright 2015-2026 The Khronos Group Inc.\nDeclarations of its headers are compiled in. SPDX-License-Identifier: Apache-2.0 OR MIT\n")
endif()
if(TANDEM_WITH_CUDA)
  tandem_third_party(cudart "${CUDAToolkit_VERSION}" LicenseRef-NVIDIA-CUDA-EULA "NVIDIA Corporation"
    "pkg:generic/nvidia/cuda-cudart@${CUDAToolkit_VERSION}" ${TANDEM_CUDA_TARGET}
    "The static CUDA runtime, Copyright (c) NVIDIA Corporation. It is redistributed under the NVIDIA CUDA Toolkit End User\nLicense Agreement, attachment A: https://docs.nvidia.com/cuda/eula/\n")
endif()
# Zig's Clang links its C++ library and its own functions into every file that it makes. The package ziglang brings their licences.
# Of the GNU C library it links what that library's licence lets anyone distribute without conditions.
set(TANDEM_ZIG "" CACHE PATH "The folder of Python's package ziglang, where the compiler is its Clang (scripts/wheel)")
mark_as_advanced(TANDEM_ZIG)
if(TANDEM_ZIG)
  set(in tandem)
  if(TANDEM_WITH_CUDA AND TANDEM_CUDA_PLUGIN)
    list(APPEND in tandem_cuda)
  endif()
  tandem_number_in(${TANDEM_ZIG}/lib/libcxx/include/__config _LIBCPP_VERSION version) # 220108 is 22.1.8
  math(EXPR major "${version} / 10000")
  math(EXPR minor "${version} / 100 % 100")
  math(EXPR patch "${version} % 100")
  set(version ${major}.${minor}.${patch})
  foreach(part libcxx libcxxabi libunwind)
    string(REPLACE "cxx" "c++" name ${part})
    file(READ ${TANDEM_ZIG}/lib/${part}/LICENSE.TXT text)
    tandem_third_party(${name} "${version}" "Apache-2.0 WITH LLVM-exception" "The LLVM Project"
      "pkg:github/llvm/llvm-project@llvmorg-${version}#${part}" "${in}" "${text}")
  endforeach()
  execute_process(COMMAND ${TANDEM_ZIG}/zig version OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${TANDEM_ZIG}/LICENSE text)
  file(READ ${TANDEM_ZIG}/lib/libc/musl/COPYRIGHT musl)
  string(APPEND text "\n\nSome of its functions are those of musl:\n\n${musl}")
  tandem_third_party(zig-compiler-rt "${version}" MIT "Zig contributors" "pkg:pypi/ziglang@${version}" "${in}" "${text}")
  if(MINGW)
    set(header ${TANDEM_ZIG}/lib/libc/include/any-windows-any/_mingw_mac.h)
    foreach(part MAJOR MINOR BUGFIX)
      tandem_number_in(${header} __MINGW64_VERSION_${part} mingw_${part})
    endforeach()
    set(version ${mingw_MAJOR}.${mingw_MINOR}.${mingw_BUGFIX})
    file(READ ${TANDEM_ZIG}/lib/libc/mingw/COPYING text)
    tandem_third_party(mingw-w64 "${version}" ZPL-2.1 "mingw-w64 project" "pkg:generic/mingw-w64@${version}" "${in}" "${text}")
  endif()
endif()

# tandem_third_party_licences(result): the licences of all of them.
function(tandem_third_party_licences result)
  set(all "")
  foreach(name IN LISTS TANDEM_THIRD_PARTIES)
    string(REGEX REPLACE "." "=" line "${name}")
    string(STRIP "${TANDEM_PARTY_${name}_TEXT}" text)
    string(APPEND all "${name}\n${line}\n${text}\n\n\n")
  endforeach()
  string(STRIP "${all}" all)
  set(${result} "${all}\n" PARENT_SCOPE)
endfunction()

# tandem_bill(file): the bill of materials. SOURCE_DATE_EPOCH is its date, where that is set.
function(tandem_bill file)
  string(TIMESTAMP now "%Y-%m-%dT%H:%M:%SZ" UTC)
  string(TIMESTAMP seconds "%s" UTC)
  set(names tandem)
  if(TANDEM_WITH_CUDA AND TANDEM_CUDA_PLUGIN)
    list(APPEND names tandem_cuda)
  endif()
  set(packages "")
  set(relations "")
  foreach(name IN LISTS names)
    string(REPLACE "_" "-" id ${name})
    list(APPEND packages "    {\"SPDXID\": \"SPDXRef-${id}\", \"name\": \"${name}\", \"versionInfo\": \"${PROJECT_VERSION}\",
     \"supplier\": \"NOASSERTION\", \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false,
     \"licenseConcluded\": \"MIT OR Apache-2.0\", \"licenseDeclared\": \"MIT OR Apache-2.0\", \"copyrightText\": \"NOASSERTION\"}")
    list(APPEND relations "    {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\", \"relatedSpdxElement\": \"SPDXRef-${id}\"}")
  endforeach()
  foreach(name IN LISTS TANDEM_THIRD_PARTIES)
    set(party TANDEM_PARTY_${name}_)
    string(REPLACE "+" "-" id ${name}) # of its characters SPDX allows letters, numbers, "." and "-"
    list(APPEND packages "    {\"SPDXID\": \"SPDXRef-${id}\", \"name\": \"${name}\", \"versionInfo\": \"${${party}VERSION}\",
     \"supplier\": \"Organization: ${${party}FROM}\", \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false,
     \"licenseConcluded\": \"${${party}LICENCE}\", \"licenseDeclared\": \"${${party}LICENCE}\", \"copyrightText\": \"NOASSERTION\",
     \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\", \"referenceLocator\": \"${${party}PURL}\"}]}")
    foreach(library IN LISTS ${party}IN)
      string(REPLACE "_" "-" library ${library})
      list(APPEND relations "    {\"spdxElementId\": \"SPDXRef-${library}\", \"relationshipType\": \"STATIC_LINK\", \"relatedSpdxElement\": \"SPDXRef-${id}\"}")
    endforeach()
  endforeach()
  list(JOIN packages ",\n" packages)
  list(JOIN relations ",\n" relations)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "{
  \"spdxVersion\": \"SPDX-2.3\", \"dataLicense\": \"CC0-1.0\", \"SPDXID\": \"SPDXRef-DOCUMENT\",
  \"name\": \"tandem-${PROJECT_VERSION}\",
  \"documentNamespace\": \"https://spdx.org/spdxdocs/tandem-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}-${seconds}\",
  \"creationInfo\": {\"created\": \"${now}\", \"creators\": [\"Tool: cmake/TandemThirdParty.cmake\"]},
  \"packages\": [\n${packages}\n  ],
  \"hasExtractedLicensingInfos\": [
    {\"licenseId\": \"LicenseRef-NVIDIA-CUDA-EULA\", \"name\": \"NVIDIA CUDA Toolkit End User License Agreement\",
     \"extractedText\": \"https://docs.nvidia.com/cuda/eula/\", \"seeAlsos\": [\"https://docs.nvidia.com/cuda/eula/\"]}
  ],
  \"relationships\": [\n${relations}\n  ]
}
")
endfunction()
