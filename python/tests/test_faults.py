# SPDX-License-Identifier: MIT OR Apache-2.0
"""Derivatives, options and outputs at the edges of a call: computed right or refused by a sentence.

test_torch_faults.py has the plain cases; here are the other ways that lead to the same faults.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch import Tensor  # noqa: E402

import tandem_attention as ta  # noqa: E402
from tandem_attention import UnsupportedError  # noqa: E402
from tandem_attention.drop_in.flash_attn import flash_attn_func  # noqa: E402
from tandem_attention.torch import attention  # noqa: E402


def qkv(*shape: int, grad: bool = False) -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.randn(*shape).requires_grad_(grad) for _ in "qkv"]


def dual(t: Tensor) -> Any:
    return forward_ad.make_dual(t, torch.ones_like(t))


@pytest.mark.parametrize("way", ["out", "device"])
def test_forward_mode_is_refused_where_memory_is_named(way: str) -> None:
    q, k, v = qkv(1, 2, 5, 8)
    named = {"out": torch.empty_like(q)} if way == "out" else {"device": "cpu"}
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="k has a tangent"):
        ta.attention(q, dual(k), v, **named)


def test_forward_mode_is_refused_in_the_backward() -> None:
    q, k, v = qkv(1, 2, 5, 8, grad=True)
    o = attention(q, k, v)
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="d_o has a tangent"):
        torch.autograd.grad(o, q, dual(torch.ones_like(o)))
    q, k, v = (t.detach() for t in (q, k, v))
    o, lse = ta.attention(q, k, v, return_lse=True)
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="d_o has a tangent"):
        ta.attention_backward(dual(torch.ones_like(o)), q, k, v, o, lse)


def test_forward_mode_of_options_is_refused() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    one = torch.tensor(1.0)
    with pytest.raises(UnsupportedError, match="scale has a tangent"):
        torch.func.jvp(lambda s: attention(q, k, v, scale=s), (one,), (one,))
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="alpha has a tangent"):
        attention(q, k, v, normalizer="entmax", alpha=dual(one + 0.5))
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="alibi_slopes has a tang"):
        flash_attn_func(*turned, alibi_slopes=dual(torch.ones(2)))


def test_forward_over_reverse_is_refused() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    with pytest.raises(UnsupportedError, match="forward-mode derivatives"):
        torch.func.hessian(lambda x: attention(x, k, v).sum())(q)
