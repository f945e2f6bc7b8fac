# SPDX-License-Identifier: MIT OR Apache-2.0
# A toolchain for macOS 11 on arm64 without Apple's SDK, by the Clang of ziglang (PyPI), whose linker and stubs of the system's
# libraries it brings. TANDEM_ZIG_TOOLS, a variable of the environment, is a folder with cc, c++, ar and ranlib that call it
# (scripts/platforms macos makes one). No emulator runs the programs.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_C_COMPILER $ENV{TANDEM_ZIG_TOOLS}/cc)
set(CMAKE_CXX_COMPILER $ENV{TANDEM_ZIG_TOOLS}/c++)
set(CMAKE_AR $ENV{TANDEM_ZIG_TOOLS}/ar CACHE FILEPATH "archiver")
set(CMAKE_RANLIB $ENV{TANDEM_ZIG_TOOLS}/ranlib CACHE FILEPATH "indexer of archives")
set(CMAKE_INSTALL_NAME_TOOL true) # nothing is installed
set(CMAKE_FIND_ROOT_PATH ${CMAKE_CURRENT_LIST_DIR})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
include(${CMAKE_CURRENT_LIST_DIR}/HostHeaders.cmake)
