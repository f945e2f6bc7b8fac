# SPDX-License-Identifier: MIT OR Apache-2.0
"""python/requirements.txt: every package has hashes, and a set has what it needs and no more."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"


@pytest.fixture
def requirements(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("requirements")


def names_of(requirements: ModuleType, *sets: str) -> set[str]:
    return {pin.split("==")[0] for pin in requirements.pins(requirements.of_sets(list(sets)))}


@pytest.mark.parametrize("sets", [("test",), ("torch",), ("wheel",), ("test", "torch")])
def test_lines_are_whole(requirements: ModuleType, sets: tuple[str, ...]) -> None:
    text = requirements.of_sets(list(sets))
    blocks = re.findall(r"^(\S+==.*?[^\\])$", text, re.M | re.S)
    assert "\n".join(blocks) + "\n" == text
    for block in blocks:
        assert re.search(r" \\\n    --hash=sha256:[0-9a-f]{64}(?:$| \\\n)", block), block
    assert len(blocks) == len({block.split(" \\")[0] for block in blocks})
    wanted = {re.split("[<>=]", name)[0] for s in sets for name in requirements.SETS[s].split()}
    assert wanted <= names_of(requirements, *sets)


def test_torch_and_wheel_stay_apart(requirements: ModuleType) -> None:
    assert not {"torch", "transformers"} & names_of(requirements, "test")
    assert "pytest" not in names_of(requirements, "wheel")
    assert "auditwheel" not in names_of(requirements, "test", "torch")
    assert not set(requirements.LEFT_OUT.split()) & names_of(requirements, "torch")


def test_unknown_set_is_named(requirements: ModuleType) -> None:
    with pytest.raises(SystemExit, match="'wheels'"):
        requirements.of_sets(["wheels"])
