# SPDX-License-Identifier: MIT OR Apache-2.0
"""The devices that the tests run on.

TANDEM_TEST_DEVICES: of host arrays, "cpu" by default, as "cpu,vulkan:0".
TANDEM_TEST_TORCH_DEVICE: of torch's tensors, "cpu" by default, as "cuda".
"""

from __future__ import annotations

import os

import pytest

DEVICES = os.environ.get("TANDEM_TEST_DEVICES", "cpu").split(",")
TORCH_DEVICE = os.environ.get("TANDEM_TEST_TORCH_DEVICE")
if TORCH_DEVICE:
    import torch

    torch.set_default_device(TORCH_DEVICE)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
