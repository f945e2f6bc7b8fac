# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention in float64, written out; the drop-in's tests compare with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Named = dict[str, Tensor]


def banded(
    rows: int, keys: int, left: int | None, right: int | None, bottom_right: bool = False
) -> Tensor:
    """Which keys are visible: -left <= j - i - off <= right."""
    off = keys - rows if bottom_right else 0
    ahead = torch.arange(keys)[None, :] - torch.arange(rows)[:, None] - off
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if left is not None:
        seen &= ahead >= -left
    if right is not None:
        seen &= ahead <= right
    return seen


def entmax(s: Tensor, seen: Tensor, alpha: float) -> Tensor:
    """By bisection, then one step of Newton that carries the gradient of the threshold."""
    z = ((alpha - 1) * s).masked_fill(~seen, float("-inf"))
    top = z.detach().amax(-1, keepdim=True)
    low, high = top - 1, top.clone()
    power = 1 / (alpha - 1)
    for _ in range(60):
        middle = (low + high) / 2
        above = (z.detach() - middle).clamp(min=0).pow(power).sum(-1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    support = (z.detach() > low) & seen
    room = torch.where(support, z - low, 1.0)
    excess = torch.where(support, room.pow(power), 0.0).sum(-1, keepdim=True) - 1
    slope = torch.where(support, power * room.detach().pow(power - 1), 0.0).sum(-1, keepdim=True)
    threshold = low + excess / slope
    room = torch.where(support, z - threshold, 1.0)
    return torch.where(support, room.pow(power), 0.0)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seen: Tensor | None = None,
    bias: Tensor | float = 0.0,
    scale: float | None = None,
    softcap: float = 0.0,
    normalizer: str = "softmax",
    tau: Tensor | None = None,
    alpha: float = 1.5,
) -> tuple[Tensor, Tensor]:
    """o and lse of [B, H, S, D] in float64; a row that sees nothing is 0 and minus infinity."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    s = s + bias
    mask = torch.ones_like(s, dtype=torch.bool) if seen is None else seen.expand(s.shape)
    some = mask.any(-1, keepdim=True)
    safe = mask | ~some
    masked = s.masked_fill(~safe, float("-inf"))
    lse = torch.logsumexp(masked, -1, keepdim=True)
    if normalizer == "entmax":
        weights = entmax(s, safe, alpha)
    else:
        weights = torch.exp(masked - lse)
        if normalizer == "elastic":
            assert tau is not None
            n = torch.arange(1, s.shape[-2] + 1, dtype=s.dtype)[:, None]
            weights = (weights + tau.view(-1, 1, 1) / n).clamp(min=0)
    weights = torch.where(mask, weights, 0.0)
    return weights @ v, torch.where(some, lse, float("-inf")).squeeze(-1)


def leaves(generator_seed: int, **shapes: Any) -> Named:
    """f32 tensors that want a gradient."""
    torch.manual_seed(generator_seed)
    return {name: torch.randn(shape).requires_grad_() for name, shape in shapes.items()}


def doubles(tensors: Named) -> Named:
    """Their values in float64, with gradients of their own."""
    return {name: t.detach().double().requires_grad_() for name, t in tensors.items()}


def compare(o: Tensor, tensors: Named, want: Tensor, exact: Named, limit: float = 1e-5) -> None:
    """Holds o and, for one random d_o, all gradients against those of the reference."""
    assert o.shape == want.shape
    torch.testing.assert_close(o.double(), want, rtol=limit, atol=limit)
    d_o = torch.randn(o.shape, generator=torch.Generator(torch.get_default_device()).manual_seed(7))
    names = list(tensors)
    got = torch.autograd.grad(o, [tensors[n] for n in names], d_o.to(o.dtype))
    ref = torch.autograd.grad(want, [exact[n] for n in names], d_o.double())
    for name, a, b in zip(names, got, ref, strict=True):
        scale = max(1.0, float(b.abs().max()))
        assert float(b.abs().max()) > 0, f"the reference's gradient of {name} is zero"
        torch.testing.assert_close(
            a.double(), b, rtol=limit, atol=limit * scale, msg=lambda m, n=name: f"d_{n}: {m}"
        )
