# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention, forward and backward, on CUDA, Vulkan and the CPU.

``attention()`` takes arrays of numpy, torch, jax or cupy. ``tandem_attention.torch`` has the same
as differentiable torch operations.
"""

from . import _fork as _fork
from . import masks as masks
from ._attention import Gradients, PlanInfo, attention, attention_backward, explain, plan
from ._core import VERSION as __version__  # noqa: N811
from ._devices import DeviceInfo, devices, get_device, set_num_threads
from ._errors import (
    DeviceError,
    InvalidArgumentError,
    OutOfMemoryError,
    TandemError,
    UnsupportedError,
)
from ._merge import merge, merge_backward
from ._options import AttentionOptions

__all__ = [
    "AttentionOptions",
    "DeviceError",
    "DeviceInfo",
    "Gradients",
    "InvalidArgumentError",
    "OutOfMemoryError",
    "PlanInfo",
    "TandemError",
    "UnsupportedError",
    "__version__",
    "attention",
    "attention_backward",
    "devices",
    "explain",
    "get_device",
    "merge",
    "merge_backward",
    "plan",
    "set_num_threads",
]
