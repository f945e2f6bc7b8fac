# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention as a differentiable torch operation.

``attention()`` works in eager mode, under ``torch.compile(fullgraph=True)``, ``torch.export``,
``torch.func`` transforms, autocast and activation checkpointing, on CPU and CUDA tensors.
"""

from ._attention import attention

__all__ = ["attention"]
