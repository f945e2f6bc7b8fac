# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lazy Attention: elastic softmax with a learned bias for each distance.

``lazy_attention_triton()`` and the module ``LazyAttention`` with the arguments, layouts and
parameter names of the repository flash-lazy-attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._errors import InvalidArgumentError
from ..torch import attention
from ..torch._kernels import side_type


def lazy_attention_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    tau: Tensor,
    window_size: int | None = None,
    varlen: Tensor | None = None,
) -> Tensor:
    """Causal attention with weights ``max(softmax(s) + tau[h] / n, 0)``.

    ``s_ij = <q_i, k_j> / sqrt(D) + bias[h, i - j]``, and n is the number of keys up to row i. Keys
    farther than the window stay visible and get no bias. The weights are not normalised again.

    Args:
        q: [B, H, L, D], f32, f16 or bf16, any strides.
        k, v: [B, Hk, L, D], of q's type; H is a multiple of Hk.
        bias: [H, W], of any floating type. Differentiable.
        tau: [H], of any floating type. Differentiable.
        window_size: how many distances of bias are read, from 0; by default all W.
        varlen: [B], integers, rows of each batch entry that are there (padding is on the right).

    Returns:
        [B, H, L, D] in q's type and order of dimensions; 0 in rows at and behind varlen.

    Raises:
        InvalidArgumentError: sizes do not fit each other, or window_size exceeds W.
    """
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise InvalidArgumentError("q, k and v have four dimensions, [B, H, L, D]")
    if k.shape[2] != q.shape[2]:
        raise InvalidArgumentError(
            f"k has {k.shape[2]} rows where q has {q.shape[2]}; Lazy Attention is self-attention"
        )
    heads = q.shape[1]
    if bias.dim() != 2 or bias.shape[0] != heads:
        raise InvalidArgumentError(f"bias is {list(bias.shape)}, not [{heads}, W]")
    if tuple(tau.shape) != (heads,):
        raise InvalidArgumentError(f"tau is {list(tau.shape)}, not [{heads}]")
    if window_size is None:
        window_size = bias.shape[1]
    if not 0 <= window_size <= bias.shape[1]:
        raise InvalidArgumentError(
            f"window_size is {window_size}, and bias has {bias.shape[1]} distances"
        )
    # A window of 0 distances adds nothing; Tandem has no distance bias of width 0.
    distances = bias[:, :window_size] if window_size else None
    o: Tensor = attention(
        q, k, v, dist_bias=distances, tau=tau, normalizer="elastic", causal=True,
        lengths_q=varlen, lengths_kv=varlen,
    )  # fmt: skip
    return o


class RotaryEmbedding(nn.Module):
    """Rotary position embedding of the two halves of a head, angles in f32.

    Args:
        dim: the size of a head, even.
        base: the longest wavelength, in units of 2 pi positions.
    """

    inv_freq: Tensor

    def __init__(self, dim: int, base: float = 10000) -> None:
        super().__init__()
        if dim % 2:
            raise InvalidArgumentError(
                f"the head size is {dim}; rotary embedding needs an even one"
            )
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        self.register_buffer("inv_freq", float(base) ** -exponents)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, H, L, D] rotated by its positions along L; x's type."""
        positions = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
        angles = torch.outer(positions, self.inv_freq.to(x.device, torch.float32))
        cos, sin = angles.cos(), angles.sin()
        first, second = x.to(side_type(x)).chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return rotated.to(x.dtype)


class LazyAttention(nn.Module):
    """Causal self-attention with rotary embedding, distance bias and elastic softmax.

    Parameters have the names of the repository's module, so its state dict loads: ``q_proj``,
    ``k_proj``, ``v_proj``, ``o_proj`` (without bias), ``attention_biases`` [H, window_size + 1],
    ``tau`` [H], and the buffer ``rope.inv_freq``.

    Args:
        dim: features of input and output; a multiple of num_heads.
        num_heads: H.
        window_size: the largest distance that has a bias of its own; farther keys get 0.
        rope_base: of the rotary embedding.
    """

    def __init__(
        self, dim: int, num_heads: int, window_size: int = 512, rope_base: float = 10000
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise InvalidArgumentError(f"dim {dim} is no multiple of num_heads {num_heads}")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window_size = window_size
        self.rope = RotaryEmbedding(self.head_dim, base=rope_base)
        self.attention_biases = nn.Parameter(torch.zeros(num_heads, window_size + 1))
        # tau = -1 drops every key of less than the mean weight: the repository's starting point.
        self.tau = nn.Parameter(torch.full((num_heads,), -1.0))
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attends.

        Args:
            x: [B, L, dim].
            mask: keys that a row keeps beside causality, nonzero keeps: [L, L], [B, L, L] or
                [B or 1, H or 1, L or 1, L]. It does not change n.

        Returns:
            [B, L, dim]. A row that keeps no key has the weights 0.
        """
        batch, length, _ = x.shape

        def heads(t: Tensor) -> Tensor:
            return t.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)

        q = self.rope(heads(self.q_proj(x)))
        k = self.rope(heads(self.k_proj(x)))
        keep = None
        if mask is not None:
            if mask.dim() not in (2, 3, 4):
                raise InvalidArgumentError(f"mask has {mask.dim()} dimensions, not 2, 3 or 4")
            keep = mask != 0
            keep = keep.unsqueeze(1) if keep.dim() == 3 else keep
        o = attention(
            q, k, heads(self.v_proj(x)), dist_bias=self.attention_biases, tau=self.tau,
            keep=keep, normalizer="elastic", causal=True,
        )  # fmt: skip
        projected: Tensor = self.o_proj(o.transpose(1, 2).reshape(batch, length, self.dim))
        return projected


__all__ = ["LazyAttention", "RotaryEmbedding", "lazy_attention_triton"]
