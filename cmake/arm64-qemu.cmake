# SPDX-License-Identifier: MIT OR Apache-2.0
# A toolchain for Linux on arm64 (Debian: g++-aarch64-linux-gnu). Programs run under QEMU (Debian: qemu-user); they are static, so
# no system for arm64 is to be found. cmake/arm64.cmake is for Mali's driver, which is a shared library.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
find_program(CMAKE_CROSSCOMPILING_EMULATOR NAMES qemu-aarch64 qemu-aarch64-static)
include(${CMAKE_CURRENT_LIST_DIR}/HostHeaders.cmake)
