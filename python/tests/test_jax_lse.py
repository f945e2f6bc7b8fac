# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gradient through lse in JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tandem_attention as ta

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402

from tandem_attention.jax import attention  # noqa: E402


def qkv() -> list[Any]:
    """q, k and v of 2 heads, of 8 features."""
    random = np.random.default_rng(3)
    return [random.standard_normal((2, 2, n, 8), np.float32) for n in (9, 11, 11)]


def plain(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """o and lse by JAX's own operations."""
    s = jnp.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    lse = jax.nn.logsumexp(s, -1)
    return jnp.exp(s - lse[..., None]) @ v, lse


def ours(q: Any, k: Any, v: Any) -> Any:
    """Tandem's o and lse."""
    return attention(q, k, v, return_lse=True)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("jit", [False, True])
def test_gradient(alone: bool, jit: bool) -> None:
    def gradient(f: Any) -> Any:
        def loss(*arrays: Any) -> Any:
            o, lse = f(*arrays)
            return jnp.sin(lse).sum() + (0 if alone else (o**2).sum())

        g = jax.grad(loss, (0, 1, 2))
        return (jax.jit(g) if jit else g)(*qkv())

    for got, want in zip(gradient(ours), gradient(plain), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-5)


def test_vmap() -> None:
    def loss(*arrays: Any) -> Any:
        o, lse = ours(*arrays)
        return (o**2).sum() + jnp.cos(lse).sum()

    stacked = [np.stack([t, 2 * t]) for t in qkv()]
    mapped = jax.vmap(jax.grad(loss, (0, 1, 2)))(*stacked)
    for n in range(2):
        one = jax.grad(loss, (0, 1, 2))(*(t[n] for t in stacked))
        for got, want in zip(mapped, one, strict=True):
            np.testing.assert_allclose(got[n], want, atol=1e-6)


def test_another_normalizer_is_refused() -> None:
    def loss(q: Any) -> Any:
        _, *kv = qkv()
        return attention(q, *kv, normalizer="entmax", alpha=1.5, return_lse=True)[1].sum()

    with pytest.raises(ta.UnsupportedError, match="entmax has a threshold"):
        jax.grad(loss)(qkv()[0])
