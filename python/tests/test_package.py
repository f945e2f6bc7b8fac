# SPDX-License-Identifier: MIT OR Apache-2.0
"""What holds for the package as a whole: its modules, and the order of a call's buffers."""

from __future__ import annotations

import ast
import graphlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tandem_attention as ta
from tandem_attention import _attention, _core
from tandem_attention._problem import BUFFERS, GRADIENTS, INPUTS

PACKAGE = Path(ta.__file__).parent


def imports_of(file: Path, modules: set[str]) -> set[str]:
    """The package's modules that a file imports anywhere, inside functions too."""
    package = ("tandem_attention", *file.relative_to(PACKAGE).parent.parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1]]
            base += node.module.split(".") if node.module else []
            name = ".".join(base)
            members = {f"{name}.{alias.name}" for alias in node.names} & modules
            found |= members or ({name} if node.module else set())
        elif isinstance(node, ast.Constant) and node.value in modules - {"tandem_attention"}:
            found.add(str(node.value))  # of importlib.import_module()
    return found


def test_modules_import_each_other_in_no_circle() -> None:
    found = (  # a build folder has links to the package's folders
        Path(folder, name)
        for folder, _, names in os.walk(PACKAGE, followlinks=True)
        for name in names
        if name.endswith(".py")
    )
    files = {
        ".".join(("tandem_attention", *f.relative_to(PACKAGE).with_suffix("").parts)): f
        for f in found
    }
    assert "tandem_attention.torch" in {name.removesuffix(".__init__") for name in files}
    files = {name.removesuffix(".__init__"): f for name, f in files.items()}
    graph = {name: imports_of(f, set(files)) - {name} for name, f in files.items()}
    assert "tandem_attention._devices" in graph["tandem_attention._plans"]
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_buffers_are_those_of_the_c_api() -> None:
    """Names that Python speaks of are buffers; the order is tandem_args' own."""
    gradients = {f"d_{name}" for name in GRADIENTS}
    parts = {"part_o", "part_lse", "d_part_o", "d_part_lse"}
    others = {"o", "lse", "max_logit", "d_o", "d_lse", "workspace"}
    assert {*INPUTS, *gradients, *parts, *others} == set(BUFFERS)
    assert len(set(BUFFERS)) == len(BUFFERS)


@pytest.mark.skipif(sys.platform != "linux", reason="symbols as ELF has them")
def test_the_module_exports_its_entry_point_alone() -> None:
    """Other symbols would serve libraries that are loaded later, such as torch's."""
    names = subprocess.run(
        ["nm", "-D", "--defined-only", str(_core.__file__)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()[2::3]
    assert names == ["PyInit__core"]


def test_another_number_of_buffers_is_refused() -> None:
    plan = _core.Plan(ta.get_device("cpu"), _core.Problem.parse("fwd f32 b1 hq1 hk1 sq1 sk1 d8"))
    with pytest.raises(ta.InvalidArgumentError, match=f"a call has {len(BUFFERS)} buffers"):
        plan.execute(0, (0,) * (len(BUFFERS) - 1), 0, 0, 0)
    with pytest.raises(ta.InvalidArgumentError, match=f"a call has {len(BUFFERS)} buffers"):
        plan.execute_staged((None,) * (len(BUFFERS) + 1), 0, 0)


def test_staged_buffers_arrive_by_name() -> None:
    """As for a GPU, on the CPU device: each buffer, and a workspace of the device's own."""
    numbers = np.random.default_rng(5)
    q, k, v, d_o = (numbers.standard_normal((2, 2, 70, 8), np.float32) for _ in range(4))
    sink = np.ones(2, np.float32)
    o, lse = ta.attention(q, k, v, sink=sink, return_lse=True)
    want = ta.attention_backward(d_o, q, k, v, o, lse, sink=sink)
    staged = _attention._Arrays("vulkan:0", _attention.framework_of(q))
    given = {"q": q, "k": k, "v": v, "sink": sink, "o": o, "lse": lse, "d_o": d_o}
    made = {n: np.empty_like(given[n]) for n in ("q", "k", "v", "sink")}
    for name, array in (*given.items(), *((f"d_{n}", array) for n, array in made.items())):
        staged.add(name, array)
    options = _attention.make_options()
    bits = sum(GRADIENTS[name] for name in made)
    plan = _attention._plans.get("cpu", staged.layouts(), options, _attention.BACKWARD, bits)
    assert plan.workspace_size > 0
    staged.run(plan, 0, 0, None)
    for name, array in made.items():
        np.testing.assert_array_equal(array, getattr(want, name), err_msg=name)


@pytest.mark.parametrize("gives_out", [False, True])
def test_an_array_is_asked_for_its_framework_once(
    monkeypatch: pytest.MonkeyPatch, gives_out: bool
) -> None:
    asked: list[int] = []
    real = _attention.framework_of

    def framework_of(array: Any) -> Any:
        asked.append(id(array))
        return real(array)

    monkeypatch.setattr(_attention, "framework_of", framework_of)
    q, k, v, out = (np.ones((1, 1, 2, 4), np.float32) for _ in range(4))
    if gives_out:
        ta.attention(q, k, v, out=out)
        assert asked.count(id(out)) == 1
    else:
        o, lse = ta.attention(q, k, v, return_lse=True)
        asked.clear()
        ta.attention_backward(o, q, k, v, o, lse)
    assert [asked.count(id(array)) for array in (q, k, v)] == [1, 1, 1]


@pytest.mark.parametrize("forks", [True, False])
def test_a_process_that_called_ends_in_silence(forks: bool) -> None:
    """Plans and devices go in time: nanobind would say what is left when the interpreter ends."""
    program = (
        f"import os; {forks} or vars(os).pop('register_at_fork', None);"  # Windows has none
        "import numpy as np, tandem_attention as ta; ta.set_num_threads(2);"
        "x = np.ones((1, 1, 2, 4), np.float32); ta.attention(x, x, x)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
