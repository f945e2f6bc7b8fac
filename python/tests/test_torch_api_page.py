# SPDX-License-Identifier: MIT OR Apache-2.0
"""A page can be made of the docstrings, and these leave no argument out."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"


@pytest.fixture
def api_page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("torch", "jax"):  # the page has the modules for both
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("api_page")


def functions(api_page: ModuleType) -> Iterator[tuple[str, Any]]:
    """All but those of the drop-ins, whose arguments are those of what they stand in for."""
    for module in api_page.public_modules():
        if module.__name__.startswith("tandem_attention.drop_in"):
            continue
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                yield f"{module.__name__}.{name}", getattr(module, name)


def test_page_has_every_name_and_links_that_lead_somewhere(
    api_page: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "page.md"
    assert api_page.main(str(file)) == 0
    lines = file.read_text().splitlines()
    for module in api_page.public_modules():
        begin = lines.index(f"## {module.__name__}") + 1
        end = next((n for n in range(begin, len(lines)) if lines[n].startswith("## ")), len(lines))
        headed = {line[4:].split("(")[0] for line in lines[begin:end] if line.startswith("### ")}
        assert headed == {
            name for name in module.__all__ if not inspect.ismodule(getattr(module, name))
        }
    links = re.findall(r"\]\((?!https?:)([^)#]+)", "\n".join(lines))
    assert links
    for link in links:
        assert (api_page.PAGE.parent / link).exists(), link


def test_every_argument_is_described(api_page: ModuleType) -> None:
    seen = 0
    for name, function in functions(api_page):
        parts = api_page.sections(inspect.cleandoc(function.__doc__ or ""))
        assert "".join(parts[""]).strip(), f"{name} has no docstring"
        items = api_page.entries(parts.get("Args", []))
        if len(items) == 1 and not items[0][0]:
            continue  # "Args: those of ..."
        described = {n.strip("*") for entry, _ in items for n in entry.split(", ")}
        parameters = set(inspect.signature(function).parameters)
        # Those of **options: test_types.py.
        assert parameters - {"options"} <= described, f"{name}: {parameters - described}"
        seen += bool(parameters)
    assert seen >= 3


def test_sections_are_read(api_page: ModuleType) -> None:
    text = "One.\n\nArgs:\n    a, b: [N], f32.\n        More.\n    c: bool.\n\nReturns:\n    d."
    parts = api_page.sections(text)
    assert api_page.entries(parts["Args"]) == [("a, b", "[N], f32. More."), ("c", "bool.")]
    assert api_page.described(text) == [
        "One.",
        "**Args**\n- `a, b`: [N], f32. More.\n- `c`: bool.",
        "**Returns**: d.",
    ]
