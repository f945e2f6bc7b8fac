# SPDX-License-Identifier: MIT OR Apache-2.0
"""check_licences.py refuses a wheel that has a library inside without its licence."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "check_licences.py"
# As it comes: the text has lines that look like a heading.
LLVM = """libunwind
=========
==============================================================================
The LLVM Project is under the Apache License v2.0 with LLVM Exceptions:
==============================================================================
---- LLVM Exceptions to the Apache 2.0 License ----


"""
VOLK = "volk\n====\nCopyright (c) 2018-2026 Arseny Kapoulkine\n"
UNWIND = b"\x7fELF\0libunwind: unsupported\0"


@pytest.mark.parametrize(
    ("content", "texts", "said"),
    [
        (UNWIND, LLVM + VOLK, ""),
        (UNWIND, VOLK, "tandem_attention/libtandem.so.0: no licence of libunwind"),
        (UNWIND, LLVM.replace("Exceptions", "") + VOLK, "no licence of libunwind"),
        (UNWIND + b"Mingw-w64 runtime failure", LLVM, "no licence of mingw-w64"),
        (b"\x7fELF", "", ""),
        (b"", None, "0 files LICENSE-THIRD-PARTY"),
    ],
)
def test_licences(tmp_path: Path, content: bytes, texts: str | None, said: str) -> None:
    wheel = tmp_path / "tandem_attention-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("tandem_attention/libtandem.so.0", content)
        if texts is not None:
            licenses = "tandem_attention-0.1.0.dist-info/licenses/"
            files.writestr(licenses + "LICENSE-THIRD-PARTY", texts)
    ran = subprocess.run([sys.executable, TOOL, wheel], capture_output=True, text=True)
    assert said in ran.stderr
    assert (ran.returncode != 0) == bool(said)
