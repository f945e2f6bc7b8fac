# SPDX-License-Identifier: MIT OR Apache-2.0
"""cuEquivariance's triangle attention: a pair bias that all N rows of a batch entry share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidArgumentError
from ..torch import attention
from ..torch._kernels import side_type


def _five(name: str, t: Tensor) -> Tensor:
    if t.dim() > 5:
        raise InvalidArgumentError(f"{name} has {t.dim()} dimensions; at most 5 are possible")
    while t.dim() < 5:
        t = t.unsqueeze(0)
    return t


def _expect(name: str, t: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(t.shape) != shape:
        raise InvalidArgumentError(f"{name} is {list(t.shape)}, not {list(shape)}")


def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    return_aux: bool = False,
) -> Any:
    """``softmax_k(scale <q, k> + bias) v`` over the keys that mask keeps.

    Args:
        q: [B, N, H, Q, D], or [N, H, Q, D] for B = 1; f32, f16 or bf16, D up to 576.
        k, v: [B, N, H, K, D], of q's type.
        bias: [B, 1, H, Q, K], f32, f16 or bf16. Differentiable; its gradient is summed over N
            inside the kernel.
        mask: [B, N, 1, 1, K]; nonzero keeps a key.
        scale: 1 / sqrt(D) by default.
        return_aux: also return lse and, in the place of the rows' maxima, None.

    Returns:
        o, [B, N, H, Q, D] in q's type; 0 in rows without a key, which cuEquivariance gives the
        mean of v. With return_aux, (o, lse, None): lse is f32 [B, N, H, Q], natural logarithm,
        minus infinity in rows without a key. No kernel of Tandem stores the maximum; the weights
        are exp(s - lse) without it.

    Raises:
        InvalidArgumentError: shapes or types do not fit each other.
    """
    q, k, v, bias = (_five(n, t) for n, t in (("q", q), ("k", k), ("v", v), ("bias", bias)))
    batch, rows, heads, queries, width = q.shape
    keys = k.shape[3]
    _expect("k", k, (batch, rows, heads, keys, width))
    _expect("v", v, (batch, rows, heads, keys, width))
    _expect("bias", bias, (batch, 1, heads, queries, keys))
    keep = None
    if mask is not None:
        keep = _five("mask", mask) != 0
        _expect("mask", keep, (batch, rows, 1, 1, keys))
    # One call for each B. Folded into a batch of B N entries, the bias would differ in steps of N,
    # and the C API's bias has an entry for each of the batch or one for all of it.
    parts = [
        attention(
            q[b], k[b], v[b], bias=bias[b], keep=None if keep is None else keep[b], scale=scale,
            return_lse=True,
        )
        for b in range(batch)
    ]  # fmt: skip
    if batch == 1:
        o, lse = (t.unsqueeze(0) for t in parts[0])
    elif batch == 0:
        o, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=side_type(q))
    else:
        o, lse = (torch.stack(column) for column in zip(*parts, strict=True))
    return (o, lse, None) if return_aux else o


__all__ = ["triangle_attention"]
