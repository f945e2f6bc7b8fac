# SPDX-License-Identifier: MIT OR Apache-2.0
# A toolchain for arm64: the compiler that scripts/toolchain --mali unpacks. What it builds runs
# under scripts/with-driver panvk-g610.
execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/../scripts/toolchain --where OUTPUT_VARIABLE where
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER ${where}/bin/aarch64-gcc)
set(CMAKE_CXX_COMPILER ${where}/bin/aarch64-g++)
