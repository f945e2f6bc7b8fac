# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tells whether a wheel has the licences of what others wrote in it: check_licences.py WHEEL.

What its libraries and its module have inside is read off their bytes, however they were built. Each
part must have a section in LICENSE-THIRD-PARTY, with words of its licence.
"""

from __future__ import annotations

import re
import sys
import zipfile

# Bytes that only a file with it has; the section's heading; words of the licence.
KNOWN = (
    (b"libunwind: ", "libunwind", "LLVM Exceptions to the Apache 2.0 License"),
    (b"libc++abi: ", "libc++abi", "LLVM Exceptions to the Apache 2.0 License"),
    (b"NSt3__1", "libc++", "LLVM Exceptions to the Apache 2.0 License"),
    # Zig's functions leave no words; the C++ library is inside where Zig linked the file.
    (b"libc++abi: ", "zig-compiler-rt", "Copyright (c) Zig contributors"),
    (b"libc++abi: ", "zig-compiler-rt", "Copyright © 2005-2020 Rich Felker"),
    (b"Mingw-w64 runtime", "mingw-w64", "by the mingw-w64 project"),
    (b"nanobind", "nanobind", "Wenzel Jakob"),
    (b"nanobind", "robin-map", "Thibaut Goetghebuer-Planchon"),
    (b"XLA_FFI_", "XLA's headers", "The OpenXLA Authors"),
    (b"cudaGetDeviceCount", "cudart", "NVIDIA Corporation"),
    (b"vkGetInstanceProcAddr", "volk", "Arseny Kapoulkine"),
    (b"vkGetInstanceProcAddr", "Vulkan-Headers", "The Khronos Group"),
)
BINARY = re.compile(r"\.(so(\.\d+)*|pyd|dll|dylib)$")
HEADING = re.compile(r"^(\S.*)\n(=+)$", re.MULTILINE)
LICENCES = re.compile(r"\.dist-info/licenses/LICENSE-THIRD-PARTY$")


def sections(text: str) -> dict[str, str]:
    """The licences by their headings, which have lines of their own length below them."""
    found = [m for m in HEADING.finditer(text) if len(m[1]) == len(m[2])]
    starts = [*(m.start() for m in found), len(text)]
    return {m[1]: text[m.end() : end] for m, end in zip(found, starts[1:], strict=True)}


def missing(wheel: str) -> list[str]:
    """Sentences on what the wheel has without its licence; none: all is there."""
    with zipfile.ZipFile(wheel) as files:
        binaries = {name: files.read(name) for name in files.namelist() if BINARY.search(name)}
        texts = [files.read(name).decode() for name in files.namelist() if LICENCES.search(name)]
    if not binaries or len(texts) != 1:
        return [f"{len(binaries)} libraries and {len(texts)} files LICENSE-THIRD-PARTY"]
    given, made = sections(texts[0]), []
    for words, heading, licence in KNOWN:
        inside = [name for name, content in binaries.items() if words in content]
        if inside and licence not in given.get(heading, ""):
            made.append(f"{' and '.join(inside)}: no licence of {heading} with '{licence}'")
    return made


if __name__ == "__main__":
    for found in sys.argv[1:]:
        if lacks := missing(found):
            sys.exit(f"{found} lacks licences\n  " + "\n  ".join(lacks))
        print(f"{found} has the licences of all that is in it")
