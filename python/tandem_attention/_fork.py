# SPDX-License-Identifier: MIT OR Apache-2.0
"""What happens to devices and plans in the child of a fork, and where the process ends.

In the child those of the parent are left alone.
"""

from __future__ import annotations

import atexit
import os

# Modules, not their functions: what the hook refers to, Python clears when it ends. Plans that live
# longer than that leave their devices open.
from . import _core, _devices, _plans


def _in_child() -> None:
    _devices.abandon()
    _plans.abandon()
    _core.abandon_devices()
    _core.torch_abandon()


def _at_exit() -> None:
    _plans.clear()
    _devices.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
else:
    # On Windows no hook refers to the modules, so Python drops them without clearing them, and
    # nanobind would report the devices in them as leaked.
    atexit.register(_at_exit)
