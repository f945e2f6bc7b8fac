# SPDX-License-Identifier: MIT OR Apache-2.0
"""Arrays of any framework: where they lie, and new ones of the same kind."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._errors import InvalidArgumentError, OutOfMemoryError, UnsupportedError
from ._problem import Layout

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType


class View(NamedTuple):
    """An array's memory. ``owner`` keeps it alive."""

    address: int
    layout: Layout
    device: str  # "cpu" or "cuda:N"
    owner: object


def _numpy_dtype(dtype: str) -> Any:
    if dtype == "bfloat16":
        try:
            return importlib.import_module("ml_dtypes").bfloat16
        except ImportError as error:
            raise UnsupportedError(
                "bfloat16 in numpy arrays needs the package ml_dtypes"
            ) from error
    try:
        return np.dtype(dtype)
    except TypeError:
        raise UnsupportedError(f"{dtype} is a type that no array of a call may have") from None


def _view_numpy(name: str, array: np.ndarray[Any, Any]) -> View:
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise UnsupportedError(f"{name} is a masked array, whose mask is not read; keep hides keys")
    item = array.itemsize
    if any(s % item for s in array.strides):
        raise InvalidArgumentError(f"{name} has strides that are no multiples of its elements")
    if array.size and not array.dtype.isnative:
        raise InvalidArgumentError(f"{name} is not of the machine's byte order")
    strides = tuple(s // item for s in array.strides)
    address = int(array.__array_interface__["data"][0])
    return View(address, Layout(array.shape, strides, array.dtype.name), "cpu", array)


def _view_dlpack(name: str, array: object) -> View:
    try:
        view = _core.View(array)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{name} is a {type(array).__name__}, which has neither __dlpack__ nor a buffer"
        ) from error
    if not view.dtype:
        raise UnsupportedError(f"{name} has elements of a type that no input has")
    if view.device_type in (_CPU, _CUDA_HOST):
        device = "cpu"
    elif view.device_type in (_CUDA, _CUDA_MANAGED):
        device = f"cuda:{view.device_id}"
    else:
        raise UnsupportedError(f"{name} lies on a device of DLPack type {view.device_type}")
    return View(view.address, Layout(view.shape, view.strides, view.dtype), device, view)


class Framework:
    """How arrays of one framework are looked at and made. This one is numpy's."""

    name = "numpy"

    def view(self, name: str, array: Any) -> View:
        """Where array lies. Name is for messages."""
        return _view_numpy(name, array)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new, contiguous array that the library may write to."""
        try:
            return np.empty(shape, _numpy_dtype(dtype))
        except (MemoryError, ValueError):
            raise OutOfMemoryError(f"there is no room for {dtype} {list(shape)}") from None

    def finish(self, array: Any) -> Any:
        """What the caller gets of an array that empty() made."""
        return array

    def stream(self, device: str) -> int:
        """The stream on which the caller works, as a number."""
        return 0


class _Jax(Framework):
    name = "jax"

    def view(self, name: str, array: Any) -> View:
        if isinstance(array, importlib.import_module("jax").core.Tracer):
            raise InvalidArgumentError(
                f"{name} is traced by JAX, and q is no array of JAX: jnp.asarray(q) is one"
            )
        view = _view_dlpack(name, array)
        if view.device != "cpu":
            raise UnsupportedError(
                f"{name} is a jax array on {view.device}, and others lie on the CPU; "
                "jax arrays on a GPU need q to be one"
            )
        return view

    def finish(self, array: Any) -> Any:
        return importlib.import_module("jax.numpy").asarray(array)


class _Cupy(Framework):
    name = "cupy"

    def view(self, name: str, array: Any) -> View:
        strides = tuple(s // array.itemsize for s in array.strides)
        layout = Layout(tuple(array.shape), strides, array.dtype.name)
        return View(int(array.data.ptr), layout, f"cuda:{array.device.id}", array)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        cupy = importlib.import_module("cupy")
        with cupy.cuda.Device(int(device.partition(":")[2])):
            return cupy.empty(shape, _numpy_dtype(dtype))

    def stream(self, device: str) -> int:
        return int(importlib.import_module("cupy").cuda.get_current_stream().ptr)


class _Torch(Framework):
    name = "torch"

    def view(self, name: str, array: Any) -> View:
        if array.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(
                f"{name} is a tensor on '{array.device}'; this version takes "
                "those on the CPU and on CUDA devices"
            )
        if array.layout is not importlib.import_module("torch").strided:
            raise UnsupportedError(f"{name} is a tensor of layout {array.layout}, not strided")
        if array.is_neg():
            raise UnsupportedError(f"{name} is a negative view; {name}.resolve_neg() is none")
        if array._is_zerotensor():
            raise UnsupportedError(f"{name} is zeros without memory; {name}.clone() has some")
        torch_ops = importlib.import_module(".torch._ops", __package__)
        torch_ops.refuse_tangents(((name, array),))
        device = "cpu" if array.device.type == "cpu" else f"cuda:{array.device.index}"
        layout = Layout(tuple(array.shape), tuple(array.stride()), str(array.dtype)[6:])
        return View(array.data_ptr(), layout, device, array)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        torch = importlib.import_module("torch")
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

    def stream(self, device: str) -> int:
        if device == "cpu":
            return 0
        return int(importlib.import_module("torch").cuda.current_stream(device).cuda_stream)


class _Other(Framework):
    """Anything with __dlpack__: results on the CPU are numpy arrays."""

    name = "other"

    def view(self, name: str, array: Any) -> View:
        return _view_dlpack(name, array)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        if device != "cpu":
            raise UnsupportedError(
                f"results on {device} can be made for torch and cupy alone: "
                "give arrays for them, as out="
            )
        return super().empty(shape, dtype, device)


_FRAMEWORKS = {f.name: f for f in (Framework(), _Jax(), _Cupy(), _Torch(), _Other())}
_MODULES = {"numpy": "numpy", "jax": "jax", "jaxlib": "jax", "cupy": "cupy", "torch": "torch"}


def framework_of(array: object) -> Framework:
    """The framework that an array belongs to."""
    for kind in type(array).__mro__:
        name = _MODULES.get(kind.__module__.partition(".")[0])
        if name is not None:
            return _FRAMEWORKS[name]
    return _FRAMEWORKS["other"]
