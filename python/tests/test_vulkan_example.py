# SPDX-License-Identifier: MIT OR Apache-2.0
"""examples/python/vulkan_numpy.py: the Vulkan device descends as the CPU does."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import tandem_attention as ta

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


def test_vulkan_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [device.name for device in ta.devices() if device.name.startswith("vulkan:")]
    if not found:
        pytest.skip(next(d.reason for d in ta.devices() if d.name == "vulkan"))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("vulkan_numpy")
    curves = example.main(["--steps", "10", "--device", found[0]])
    apart = importlib.import_module("common").difference
    assert apart(curves[found[0]], curves["cpu"]) < 1e-5
    assert curves["cpu"][-1] < 0.3 * curves["cpu"][0]
