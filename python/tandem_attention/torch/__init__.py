# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention as a differentiable torch operation, and the merge of its parts.

Both work in eager mode, under ``torch.compile(fullgraph=True)``, ``torch.export``,
``torch.func`` transforms, autocast and activation checkpointing, on CPU and CUDA tensors.
"""

from ._attention import attention
from ._eager import EagerInfo, eager_info
from ._merge import merge

__all__ = ["EagerInfo", "attention", "eager_info", "merge"]
