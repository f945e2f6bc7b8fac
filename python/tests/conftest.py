# SPDX-License-Identifier: MIT OR Apache-2.0
"""The devices that the tests run on: TANDEM_TEST_DEVICES, "cpu" by default, as "cpu,vulkan:0"."""

from __future__ import annotations

import os

import pytest

DEVICES = os.environ.get("TANDEM_TEST_DEVICES", "cpu").split(",")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
