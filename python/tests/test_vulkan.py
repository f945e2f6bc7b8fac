# SPDX-License-Identifier: MIT OR Apache-2.0
"""numpy arrays on a Vulkan device, beside the CPU device.

Few kernels serve all tests: compilers of Vulkan drivers without a GPU take seconds for each.
TANDEM_TEST_DEVICES=vulkan:0 runs test_arrays.py, and so all options, on the device.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tandem_attention as ta

DEVICES = [device.name for device in ta.devices() if device.name.startswith("vulkan:")]
if not DEVICES:
    pytest.skip(next(d.reason for d in ta.devices() if d.name == "vulkan"), allow_module_level=True)
VULKAN = DEVICES[0]


def arrays(seed: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"q": (2, 4, 9, 8), "k": (2, 2, 11, 8), "v": (2, 2, 11, 8), "bias": (1, 4, 9, 11)}
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def run(given: dict[str, Any], device: str) -> dict[str, Any]:
    """o, lse and all gradients of the sum of o^2 / 2, by name."""
    o, lse = ta.attention(**given, causal="bottom_right", return_lse=True, device=device)
    made = ta.attention_backward(
        o, o=o, lse=lse, **given, causal="bottom_right", device=device
    )._asdict()
    return {"o": o, "lse": lse} | {f"d_{name}": made[name] for name in given}


def compare(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], atol=5e-6, err_msg=name)


def test_forward_and_gradients() -> None:
    compare(run(arrays(), VULKAN), run(arrays(), "cpu"))


def test_views() -> None:
    """Transposed and sliced arrays, and an output with gaps, give what dense ones give.

    Forward alone: strides choose other kernels, and those of the backward take longest to compile.
    """
    given, views = arrays(), {}
    for name, x in given.items():
        wide = np.full((*x.shape[:-1], x.shape[-1] + 3), np.nan, np.float32)
        wide[..., : x.shape[-1]] = x
        views[name] = np.ascontiguousarray(wide.swapaxes(1, 2)).swapaxes(1, 2)[..., : x.shape[-1]]
    want = ta.attention(**given, causal="bottom_right", device="cpu")
    room = np.full((2, 4, 9, 12), 7, np.float32)
    ta.attention(**views, causal="bottom_right", device=VULKAN, out=room[..., :8])
    np.testing.assert_allclose(room[..., :8], want, atol=5e-6)
    assert (room[..., 8:] == 7).all()


def test_threads() -> None:
    """Calls from several threads share the device's buffers one after the other."""
    want = {seed: run(arrays(seed), VULKAN) for seed in range(4)}
    failed: list[int] = []

    def work(seed: int) -> None:
        for _ in range(3):
            got = run(arrays(seed), VULKAN)
            if not all(np.array_equal(got[name], want[seed][name]) for name in got):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in want]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_plan_says_where() -> None:
    given = arrays()
    made = ta.plan(given["q"], given["k"], given["v"], device=VULKAN)
    assert made.path.startswith("vulkan.")
    assert made.kernels


def test_no_such_device() -> None:
    with pytest.raises(ta.DeviceError, match="99"):
        ta.attention(**arrays(), device="vulkan:99")


def test_merge_in_place_and_its_backward() -> None:
    """o and lse go to the device and come back; what lies between rows of o keeps its bytes."""
    rng = np.random.default_rng(5)
    part_o = rng.standard_normal((3, 2, 4, 9, 8), np.float32)
    part_lse = rng.standard_normal((3, 2, 4, 9), np.float32)
    part_lse[1, :, 2] = -np.inf
    room = np.full((2, 4, 9, 12), 7, np.float32)
    into = room[..., :8], part_lse[0].copy()
    into[0][...] = part_o[0]
    ta.merge(part_o[1:], part_lse[1:], into=into, device=VULKAN)
    want = ta.merge(part_o, part_lse)
    compare(dict(zip("ol", into, strict=True)), dict(zip("ol", want, strict=True)))
    assert (room[..., 8:] == 7).all()
    d_o, d_lse = part_o[2] + 1, part_lse[2] + 1
    got = ta.merge_backward(d_o, part_o, part_lse, d_lse=d_lse, device=VULKAN)
    want = ta.merge_backward(d_o, part_o, part_lse, d_lse=d_lse)
    compare(dict(zip("ol", got, strict=True)), dict(zip("ol", want, strict=True)))
