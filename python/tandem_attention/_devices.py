# SPDX-License-Identifier: MIT OR Apache-2.0
"""The devices of this machine, each opened once a process."""

from __future__ import annotations

from dataclasses import dataclass

from . import _core
from ._errors import InvalidArgumentError
from ._options import whole_number


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


_open: dict[tuple[str, int], _core.Device] = {}
_threads = 0


def set_num_threads(threads: int) -> None:
    """Sets how many threads the CPU device computes with, from the next call on.

    Torch tensors follow ``torch.set_num_threads()`` instead. JAX arrays follow neither: they use
    the default.

    Args:
        threads: 1 or more; 0, the default, takes as many as the process's affinity and its
            container's quota allow.
    """
    global _threads
    count = whole_number("threads", threads)
    if not 0 <= count <= 4096:
        raise InvalidArgumentError(f"threads is {count}, must be 0 to 4096")
    _threads = count


def threads_of(name: str) -> int:
    """What set_num_threads() set, for the CPU device; 0 for the others."""
    return _threads if name.startswith("cpu") else 0


def get_device(name: str, threads: int | None = None) -> _core.Device:
    """The device of that name, opened at the first call of the process.

    Args:
        name: ``"cpu"``, ``"vulkan:N"`` or ``"cuda:N"``; ``"vulkan"`` and ``"cuda"`` are the first
            ones. ``"cpu/ref"`` is the device with its other paths switched off.
        threads: of the CPU device; by default what ``set_num_threads()`` set.

    Raises:
        DeviceError: there is no such device, or it cannot be used; the message says why.
    """
    if not isinstance(name, str):
        raise InvalidArgumentError(f"device is a name such as 'cpu' or 'cuda:0', not {name!r}")
    count = threads_of(name) if threads is None else threads
    device = _open.get((name, count))
    if device is None:
        made = _core.Device(name, threads=count) if count else _core.shared_device(name)
        device = _open[name, count] = made
    return device


def close() -> None:
    """Where the process ends: the devices that no plan has."""
    _open.clear()


_abandoned: list[object] = []  # of the parent process: their threads and queues are not ours


def abandon() -> None:
    """In the child of a fork: the parent's devices are neither used nor closed."""
    _abandoned.append(dict(_open))
    _open.clear()
