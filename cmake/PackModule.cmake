# SPDX-License-Identifier: MIT OR Apache-2.0
# A module of SPIR-V as a source that has it packed (src/vulkan/unpack.h), a fifth of its bytes:
#   cmake -D NAME=... -D MODULE=NAME.spv -D SOURCE=NAME.spv.cpp -P PackModule.cmake
# CMake packs it itself, so a build needs no other program, and a cross-build no program of its own.
cmake_minimum_required(VERSION 3.22)
file(ARCHIVE_CREATE OUTPUT ${MODULE}.xz PATHS ${MODULE} FORMAT raw COMPRESSION XZ)
file(READ ${MODULE}.xz packed HEX)
file(SIZE ${MODULE} bytes)
file(REMOVE ${MODULE}.xz)
string(REGEX REPLACE "(................................................)" "\\1\n" packed "${packed}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," packed "${packed}")
file(WRITE ${SOURCE} "#include \"vulkan/modules.h\"
static const uint8_t packed[] = {
${packed}
};
const tandem::SpirvModule tandem::module_${NAME} = {\"${NAME}\", ${bytes}, nullptr, packed, sizeof packed};
")
