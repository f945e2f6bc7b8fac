# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Python code in the documents runs, block after block of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/guide/python.md", "docs/guide/features/merge.md", "python/README.md", "README.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_run(name: str) -> None:
    for framework in ("torch", "jax"):
        pytest.importorskip(framework)
    text = (ROOT / name).read_text()
    blocks = list(BLOCK.finditer(text))
    assert blocks, f"{name} has no code in Python"
    names: dict[str, Any] = {}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], name, "exec"), names)
    assert {"q", "k", "v", "o"} <= names.keys()
    assert names["o"].shape[-1] == names["v"].shape[-1]


def test_a_wrong_block_fails() -> None:
    """A refusal in a document would be seen."""
    found = BLOCK.findall("a\n```python\nx = 1 +\n```\n")
    assert found == ["x = 1 +\n"]
    with pytest.raises(SyntaxError):
        compile(found[0], "a document", "exec")
