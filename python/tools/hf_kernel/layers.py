# SPDX-License-Identifier: MIT OR Apache-2.0
"""Layers that the package kernels can put in the place of a model's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .tandem_attention.drop_in.sdpa import scaled_dot_product_attention


class ScaledDotProductAttention(nn.Module):
    """torch.nn.functional.scaled_dot_product_attention as a layer without parameters."""

    has_backward = True
    can_torch_compile = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Attention on [B, H, S, D]; options are those of torch's function."""
        return scaled_dot_product_attention(query, key, value, **options)
