# SPDX-License-Identifier: MIT OR Apache-2.0
"""Exceptions: one class for each kind of status of the C API."""

from __future__ import annotations


class TandemError(RuntimeError):
    """A call failed. The message is the library's sentence.

    Attributes:
        status: the name of the ``tandem_status``, such as ``"TANDEM_ERROR_BACKEND"``.
    """

    status = "TANDEM_ERROR_BACKEND"


class InvalidArgumentError(TandemError, ValueError):
    """An argument does not meet what the documentation asks for."""

    status = "TANDEM_ERROR_INVALID_ARGUMENT"


class UnsupportedError(TandemError, NotImplementedError):
    """The problem is legal, but this device has no kernel for it. ``explain()`` says why."""

    status = "TANDEM_ERROR_UNSUPPORTED"


class DeviceError(TandemError):
    """There is no such device, or it cannot be used."""

    status = "TANDEM_ERROR_NO_DEVICE"


class OutOfMemoryError(TandemError, MemoryError):
    """The host or the device has no memory left for the call."""

    status = "TANDEM_ERROR_OUT_OF_MEMORY"


_KINDS: dict[int, tuple[type[TandemError], str]] = {
    -1: (InvalidArgumentError, "TANDEM_ERROR_INVALID_ARGUMENT"),
    -2: (UnsupportedError, "TANDEM_ERROR_UNSUPPORTED"),
    -3: (OutOfMemoryError, "TANDEM_ERROR_OUT_OF_MEMORY"),
    -4: (InvalidArgumentError, "TANDEM_ERROR_INVALID_STRUCT"),
    -5: (InvalidArgumentError, "TANDEM_ERROR_INVALID_LAYOUT"),
    -6: (DeviceError, "TANDEM_ERROR_NO_BACKEND"),
    -7: (DeviceError, "TANDEM_ERROR_NO_DEVICE"),
    -8: (DeviceError, "TANDEM_ERROR_MISSING_FEATURE"),
    -22: (OutOfMemoryError, "TANDEM_ERROR_DEVICE_OUT_OF_MEMORY"),
    -21: (DeviceError, "TANDEM_ERROR_DEVICE_LOST"),
}


def from_status(code: int, message: str) -> TandemError:
    """The exception for a status, for the extension module."""
    kind, name = _KINDS.get(code, (TandemError, f"status {code}"))
    error = kind(message)
    error.status = name
    return error
