# SPDX-License-Identifier: MIT OR Apache-2.0
"""The examples of examples/python: each learns, and its two curves agree."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"

DEVICE = os.environ.get("TANDEM_TEST_TORCH_DEVICE", "cpu")

# Steps, the largest relative difference of two curves, and what is left of the first losses.
CASES = {
    "gpt": (20, 1e-5, 0.8),
    "swin": (40, 1e-5, 0.6),
    "triangle": (30, 1e-5, 0.5),
    "lazy_lm": (20, 1e-5, 0.8),
    "grpo_tree": (40, 1e-5, 0.75),
    "context_parallel": (20, 1e-5, 0.8),
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports an example by name, as its own folder sees it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.mark.parametrize("name", CASES)
def test_curves(name: str, example: Callable[[str], Any], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    steps, apart, left = CASES[name]
    module = example(name)
    file = tmp_path / "losses.csv"
    with torch.device("cpu"):  # examples say themselves where their tensors are
        curves = module.main(["--steps", str(steps), "--csv", str(file), "--device", DEVICE])
    tandem, other = curves.values()
    assert len(tandem) == len(other) == steps
    assert example("common").difference(tandem, other) < apart
    assert sum(tandem[-3:]) < left * sum(tandem[:3])
    with file.open() as lines:
        rows = list(csv.reader(lines))
    assert rows[0] == ["step", *curves]
    assert [float(row[1]) for row in rows[1:]] == tandem


def test_a_tree_has_the_gradients_of_its_sequences(example: Callable[[str], Any]) -> None:
    torch = pytest.importorskip("torch")
    module = example("grpo_tree")
    with torch.device("cpu"):
        for seed in (1, 2, 3):
            loss, gradient = module.compare(DEVICE, seed)
            assert loss < 1e-5
            assert gradient < 1e-5


def test_a_response_sees_no_other_one(example: Callable[[str], Any]) -> None:
    """What is compared would not differ if the mask hid too much or if all were one response."""
    torch = pytest.importorskip("torch")
    module = example("grpo_tree")
    with torch.device("cpu"):
        torch.manual_seed(1)
        policy, groups = module.Policy().to(DEVICE), module.draw(DEVICE)
        rows = module.as_trees(groups)
        right = policy(rows)
        groups[0].responses[2] = (groups[0].responses[2] + 1) % module.SYMBOLS
        other = policy(module.as_trees(groups))
        own = [n for g in range(module.GROUPS) for n, r in enumerate(groups[g].responses)
               for _ in r]  # fmt: skip
        first = len(torch.cat(groups[0].responses))
        moved = (right != other).nonzero().flatten().tolist()
        assert moved
        assert {own[n] for n in moved if n < first} == {2}
        assert all(n < first for n in moved)
        rows.spans = None
        assert not torch.allclose(policy(rows), other, atol=1e-3)


def test_difference_sees_one_step(example: Callable[[str], Any]) -> None:
    assert example("common").difference([1.0, 2.0, 4.0], [1.0, 2.5, 4.0]) == pytest.approx(0.2)


def test_every_example_is_here() -> None:
    """A new example belongs into a test."""
    names = {path.stem for path in EXAMPLES.glob("*.py")} - {"common"}
    assert names == {*CASES, "vulkan_numpy", "jax_ring"}


def test_a_ring_in_jax_is_one_device() -> None:
    """In a process of its own: JAX's CPU has as many devices as its first use asks for."""
    pytest.importorskip("jax")
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "jax_ring.py"), "--devices", "4", "--rows", "128"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    found = dict(line.split() for line in run.stdout.splitlines())
    assert set(found) == {"o", "d_q", "d_k", "d_v"}
    assert all(float(difference) < 2e-6 for difference in found.values()), found
