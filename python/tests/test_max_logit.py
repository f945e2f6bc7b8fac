# SPDX-License-Identifier: MIT OR Apache-2.0
"""The largest logit of each head: arrays, torch and its compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tandem_attention as ta


def arrays(seed: int = 0) -> list[Any]:
    """q, k and v of 4 and 2 heads, of 8 features."""
    make = np.random.default_rng(seed)
    shapes = (2, 4, 9, 8), (2, 2, 11, 8), (2, 2, 11, 8)
    return [make.standard_normal(s, dtype=np.float32) for s in shapes]


def plain(q: Any, k: Any, bias: Any = 0) -> Any:
    """By numpy, of causal scores."""
    s = q @ k.repeat(2, 1).swapaxes(2, 3) / q.shape[-1] ** 0.5 + bias
    seen = np.tril(np.ones(s.shape[2:], bool))
    return np.where(seen, s, -np.inf).max((2, 3))


def test_arrays() -> None:
    q, k, v = arrays()
    sink = np.full(4, 50, np.float32)
    o, lse, largest = ta.attention(
        q, k, v, causal=True, sink=sink, return_lse=True, return_max_logit=True
    )
    np.testing.assert_allclose(largest, plain(q, k), rtol=1e-5)
    again, same = ta.attention(q, k, v, causal=True, sink=sink, return_max_logit=True)
    np.testing.assert_array_equal(o, again)
    np.testing.assert_array_equal(largest, same)
    assert lse.shape == (2, 4, 9)


def test_scores_below_0_and_no_keys() -> None:
    q, k, v = arrays(1)
    bias = np.full((1, 1, 9, 11), -30, np.float32)
    keep = np.ones((2, 1, 1, 11), bool)
    keep[1] = False
    _, largest = ta.attention(q, k, v, causal=True, bias=bias, keep=keep, return_max_logit=True)
    np.testing.assert_allclose(largest[0], plain(q, k, bias)[0], rtol=1e-5)
    assert np.isneginf(largest[1]).all()


def test_what_has_none_says_so() -> None:
    q, k, v = arrays()
    with pytest.raises(ta.UnsupportedError, match="TANDEM_SOFTMAX"):
        ta.attention(q, k, v, normalizer="entmax", return_max_logit=True)


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    from tandem_attention.torch import attention

    numbers = arrays(2)
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in numbers)

    def call(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, causal=True, return_lse=True, return_max_logit=True)

    o, lse, largest = call(q, k, v)
    np.testing.assert_allclose(largest.numpy(), plain(*numbers[:2]), rtol=1e-5)
    assert not largest.requires_grad
    got = torch.autograd.grad(o.sum() + lse.square().sum(), (q, k, v))
    o, lse = attention(q, k, v, causal=True, return_lse=True)
    want = torch.autograd.grad(o.sum() + lse.square().sum(), (q, k, v))
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ta.UnsupportedError, match=r"torch\.func"):
        torch.func.vmap(call)(q[None], k[None], v[None])


def test_compiled() -> None:
    torch = pytest.importorskip("torch")
    from tandem_attention.torch import attention

    q, k, v = (torch.from_numpy(x) for x in arrays(3))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, return_max_logit=True)

    for a, b in zip(call(q, k, v), attention(q, k, v, return_max_logit=True), strict=True):
        assert torch.equal(a, b)
