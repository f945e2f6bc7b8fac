# SPDX-License-Identifier: MIT OR Apache-2.0
"""What happens in the child of a fork: devices and plans of the parent are left alone."""

from __future__ import annotations

import os

# Modules, not their functions: what the hook refers to, Python clears when it ends. Plans that live
# longer than that leave their devices open.
from . import _core, _devices, _plans


def _in_child() -> None:
    _devices.abandon()
    _plans.abandon()
    _core.abandon_devices()
    _core.torch_abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
