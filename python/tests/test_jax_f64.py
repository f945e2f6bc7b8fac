# SPDX-License-Identifier: MIT OR Apache-2.0
"""JAX where x64 is on: arrays of float64, on the CPU alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax import test_util  # noqa: E402

from tandem_attention.jax import attention  # noqa: E402


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    if jax.default_backend() != "cpu":
        pytest.skip("tensors of f64 are for the CPU")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def normal(*shape: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def test_gradients_are_those_of_differences() -> None:
    inputs = {
        "q": normal(2, 4, 3, 5, seed=1), "k": normal(2, 2, 4, 5, seed=2),
        "v": normal(2, 2, 4, 3, seed=3), "bias": normal(1, 2, 3, 4, seed=4),
        "dist_bias": normal(4, 3, seed=5), "slope": normal(4, seed=6), "sink": normal(4, seed=7),
    }  # fmt: skip

    def run(*arrays: Any) -> Any:
        o, lse = attention(*arrays[:3], **dict(zip([*inputs][3:], arrays[3:], strict=True)),
                           causal=True, softcap=2.0, return_lse=True)  # fmt: skip
        assert o.dtype == lse.dtype == jnp.float64
        return o, lse

    arrays = tuple(inputs.values())
    test_util.check_grads(run, arrays, order=1, modes=["rev"], atol=1e-7, rtol=1e-7, eps=1e-5)
    for array, gradient in zip(
        arrays, jax.grad(lambda *a: jnp.sin(run(*a)[0]).sum(), range(7))(*arrays), strict=True
    ):
        assert gradient.dtype == array.dtype


def test_lse_keeps_the_bits_of_float64() -> None:
    q, k, v = (normal(1, 2, n, 8, seed=n) for n in (3, 5, 5))
    o, lse = jax.jit(lambda *a: attention(*a, return_lse=True))(q, k, v)
    s = jnp.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(8)
    want = jax.nn.logsumexp(s, -1)
    np.testing.assert_allclose(lse, want, atol=1e-14, rtol=1e-14)
    np.testing.assert_allclose(o, jnp.exp(s - want[..., None]) @ v, atol=1e-14, rtol=1e-14)
