# SPDX-License-Identifier: MIT OR Apache-2.0
"""The devices of this machine, each opened once a process."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import _core, _plans
from ._errors import InvalidArgumentError


@dataclass(frozen=True)
class DeviceInfo:
    """One device of the machine.

    Attributes:
        name: ``"cpu"``, ``"vulkan:0"``, ``"cuda:0"``; what every ``device=`` takes.
        human: the name that the driver gives.
        usable: whether it can be opened.
        reason: why it cannot; empty where it can.
        on_cpu: the CPU device, or a Vulkan driver that runs on the CPU.
    """

    name: str
    human: str
    usable: bool
    reason: str
    on_cpu: bool


def devices() -> list[DeviceInfo]:
    """All devices of this machine.

    A backend without a device is one entry, ``"vulkan"`` or ``"cuda"``, with the reason.
    """
    return [
        DeviceInfo(name, human, not reason, reason, on_cpu)
        for name, human, reason, on_cpu in _core.list_devices()
    ]


_open: dict[str, _core.Device] = {}


def get_device(name: str) -> _core.Device:
    """The device of that name, opened at the first call of the process.

    Args:
        name: ``"cpu"``, ``"vulkan:N"`` or ``"cuda:N"``; ``"vulkan"`` and ``"cuda"`` are the first
            ones. ``"cpu/ref"`` is the device with its other paths switched off.

    Raises:
        DeviceError: there is no such device, or it cannot be used; the message says why.
    """
    device = _open.get(name)
    if device is None:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"device is a name such as 'cpu' or 'cuda:0', not {name!r}")
        device = _open[name] = _core.shared_device(name)
    return device


_abandoned: list[object] = []  # of the parent process: their threads and queues are not ours


def _after_fork() -> None:
    _abandoned.append(dict(_open))
    _open.clear()
    _plans.abandon()
    _core.abandon_devices()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
