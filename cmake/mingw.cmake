# SPDX-License-Identifier: MIT OR Apache-2.0
# A toolchain for Windows on x86-64: MinGW-w64 with its threads (Debian: g++-mingw-w64-x86-64-posix). Programs run under Wine
# (Debian: wine64). They hold the compiler's libraries, and so does a shared libtandem: no other DLL is to be found.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -static)
find_program(CMAKE_CROSSCOMPILING_EMULATOR NAMES wine64 wine wine64-stable PATHS /usr/lib/wine)
include(${CMAKE_CURRENT_LIST_DIR}/HostHeaders.cmake)
