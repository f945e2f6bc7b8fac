# SPDX-License-Identifier: MIT OR Apache-2.0
"""Plans, kept for the next call of the same shapes and options."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from . import _core
from ._devices import get_device, threads_of
from ._options import Options
from ._problem import Layout, make_problem

LIMIT = 4096  # plans; beyond it all go at once, after the device is done

_plans: dict[object, Any] = {}
_captured: list[object] = []
_lock = threading.Lock()
#: Called before plans are destroyed: waits until no device uses them.
wait_for_devices: list[Callable[[], None]] = []
#: Called where plans go: what torch's operators know of them goes, too.
forget_in_torch: list[Callable[[], None]] = []


def get(
    device: str, layouts: dict[str, Layout], options: Options, direction: int, gradients: int
) -> _core.Plan:
    """The plan of a call; made at the first one."""
    key = (device, threads_of(device), direction, gradients, options, tuple(layouts.items()))
    made: _core.Plan | None = _plans.get(key)
    if made is None:
        problem, _ = make_problem(layouts, options, direction, gradients)
        made = add(key, _core.Plan(get_device(device), problem))
    return made


def add(key: object, made: Any) -> Any:
    """Keeps a plan, or what holds one, under a key of the caller's."""
    with _lock:
        if len(_plans) >= LIMIT:
            clear_locked()
        return _plans.setdefault(key, made)


def find(key: object) -> Any:
    """What add() got for this key, or None."""
    return _plans.get(key)


def keep_for_ever(made: _core.Plan) -> None:
    """A captured graph replays this plan, so that it may not be destroyed."""
    if not any(made is other for other in _captured):
        _captured.append(made)


def clear_locked() -> None:
    for wait in wait_for_devices:
        wait()
    for forget in forget_in_torch:
        forget()
    _plans.clear()


def clear() -> None:
    """Destroys all plans that no captured graph needs."""
    with _lock:
        clear_locked()


def abandon() -> None:
    """In the child of a fork: the parent's plans are neither used nor destroyed."""
    global _lock
    _lock = threading.Lock()
    _captured.extend(_plans.values())
    _plans.clear()
