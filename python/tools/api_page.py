# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes a page of every function from the docstrings of the package's public modules.

api_page.py [FILE]     build/python-api.md by default
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "build" / "python-api.md"
WIDTH = 100
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields): ?(.*)$")
ENTRY = re.compile(r"^([*\w]+(?:, [*\w]+)*): (.*)$")

HEAD = """\
<!-- Written by scripts/python-api from the docstrings. -->
# Python: every function
[The guide](../docs/guide/python.md) says how things go together; what is computed stands in
[semantics](../docs/guide/semantics.md). Shapes are in brackets: B batch entries, Hq heads of
queries, Hk of keys and values, Sq queries, Sk keys, D the size of a head of q and k, Dv that of v.
f32, f16 and bf16 are the element types float32, float16 and bfloat16.
"""


def public_modules() -> list[ModuleType]:
    """The package and its submodules without an underscore, those that say what is public."""
    package = importlib.import_module("tandem_attention")
    names = [package.__name__]
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not any(part.startswith("_") for part in found.name.split(".")[1:]):
            names.append(found.name)
    return [m for m in map(importlib.import_module, sorted(names)) if hasattr(m, "__all__")]


def annotation(of: Any) -> str:
    """As it stands in the source, which every module keeps as a string."""
    return (
        of if isinstance(of, str) else getattr(of, "__forward_arg__", inspect.formatannotation(of))
    )


def written(parameter: inspect.Parameter) -> str:
    """A parameter as in a definition. str(parameter) differs between versions of Python."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name
    typed = parameter.annotation is not parameter.empty
    if typed:
        text += f": {annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {parameter.default!r}" if typed else f"={parameter.default!r}"
    return text


def signature(name: str, thing: Any) -> str:
    """The call as it is written, a parameter a line where one line is too long."""
    made = inspect.signature(thing)
    parts, star = [], False
    for parameter in made.parameters.values():
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        parts.append(written(parameter))
    result = made.return_annotation
    arrow = "" if result is made.empty else f" -> {annotation(result)}"
    text = f"{name}({', '.join(parts)}){arrow}"
    if len(text) <= WIDTH:
        return text
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){arrow}"])


def sections(text: str) -> dict[str, list[str]]:
    """Lines of a docstring by section; what stands before them is under the empty name."""
    made: dict[str, list[str]] = {"": []}
    lines = made[""]
    for line in text.splitlines():
        if match := SECTION.match(line):
            lines = made.setdefault(match[1], [match[2]] if match[2] else [])
        else:
            lines.append(line)
    return made


def entries(lines: list[str]) -> list[tuple[str, str]]:
    """Names and what is said of them; an entry without a name is prose."""
    made: list[tuple[str, str]] = []
    for line in lines:
        match = ENTRY.match(line[4:]) if line.startswith("    ") else None
        if match:
            made.append((match[1], match[2]))
        elif line.strip():
            name, said = made.pop() if made else ("", "")
            made.append((name, f"{said} {line.strip()}".strip()))
    return made


def prose(lines: list[str]) -> str:
    """Paragraphs in Markdown; indented blocks behind two colons become code."""
    text = "\n".join(lines).strip().replace("``", "`")
    return re.sub(r"::\n", ":\n", text)


def described(text: str | None) -> list[str]:
    """A docstring in Markdown."""
    parts = sections(inspect.cleandoc(text or ""))
    made = [prose(parts.pop(""))]
    for name, lines in parts.items():
        if name in ("Args", "Attributes", "Raises"):
            items = entries(lines)
            if len(items) == 1 and not items[0][0]:
                made.append(f"{name}: {prose([items[0][1]])}")
                continue
            rows = [
                f"- `{item}`: {prose([said])}" if item else prose([said]) for item, said in items
            ]
            made.append(f"**{name}**\n" + "\n".join(rows))
        else:
            made.append(f"**{name}**: " + prose([line.strip() for line in lines]))
    return [part for part in made if part]


def of_class(name: str, thing: type) -> list[str]:
    bases = [base.__name__ for base in thing.__bases__ if base is not object]
    made = [
        f"### {name}({', '.join(bases)})" if bases else f"### {name}",
        *described(thing.__doc__),
    ]
    is_dict = typing.is_typeddict(thing)
    if dataclasses.is_dataclass(thing) or hasattr(thing, "_fields") or is_dict:
        fields = thing.__annotations__ if is_dict else inspect.get_annotations(thing)
        made.append(
            "```python\n" + "\n".join(f"{n}: {annotation(t)}" for n, t in fields.items()) + "\n```"
        )
    for member, method in vars(thing).items():
        if inspect.isfunction(method) and not member.startswith("_") and method.__doc__:
            made += ["```python\n" + signature(f"{name}.{member}", method) + "\n```"]
            made += described(method.__doc__)
    return made


def of_module(module: ModuleType) -> list[str]:
    made = [f"## {module.__name__}", *described(module.__doc__)]
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            made += of_class(name, thing)
        elif callable(thing):
            made += [f"### {name}()", "```python\n" + signature(name, thing) + "\n```"]
            made += described(thing.__doc__)
        elif isinstance(thing, ModuleType):
            continue  # it has a part of its own
        else:
            made += [f"### {name}", f"A constant of type `{type(thing).__name__}`."]
    return made


def page() -> str:
    """The whole page."""
    parts = [HEAD.strip()]
    for module in public_modules():
        parts += of_module(module)
    return "\n\n".join(parts) + "\n"


def main(file: str = str(PAGE)) -> int:
    """Writes the page to a file; returns the exit status."""
    out = Path(file)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page())
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
