# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gapped rows in JAX: offsets and lengths apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tandem_attention as ta

jax = pytest.importorskip("jax")
jnp = jax.numpy

from tandem_attention.jax import attention  # noqa: E402

OFFSETS, LENGTHS, TOTAL = [9, 2, 20], [5, 6, 0], 23  # in no order of memory, with gaps
ROWS = [n for at, count in zip(OFFSETS, LENGTHS, strict=True) for n in range(at, at + count)]
ENDS = np.cumsum([0, *LENGTHS])


def loss(q: Any, k: Any, v: Any, rows: list[int], **words: Any) -> Any:
    o = attention(q, k, v, causal=True, max_seq_q=6, max_seq_kv=6, deterministic=True, **words)
    return jnp.cos(o[:, jnp.array(rows)]).sum()


def test_gaps_give_the_bits_of_packed_rows() -> None:
    packed = [np.random.default_rng(n).normal(size=(2, len(ROWS), 8)) for n in range(3)]
    packed = [x.astype(np.float32) for x in packed]
    gapped = [np.full((2, TOTAL, 8), np.nan, np.float32) for _ in packed]
    for x, y in zip(gapped, packed, strict=True):
        x[:, ROWS] = y
    places = {
        f"{word}_{side}": jnp.array(numbers)
        for word, numbers in (("offsets", OFFSETS), ("lengths", LENGTHS))
        for side in ("q", "kv")
    }
    ends = {f"offsets_{side}": jnp.array(ENDS) for side in ("q", "kv")}
    made = jax.jit(jax.grad(lambda *x: loss(*x, ROWS, **places), argnums=(0, 1, 2)))(*gapped)
    want = jax.grad(lambda *x: loss(*x, list(range(len(ROWS))), **ends), argnums=(0, 1, 2))(*packed)
    for x, y in zip(made, want, strict=True):
        assert np.array_equal(np.asarray(x)[:, ROWS], np.asarray(y))


def test_errors_name_the_array() -> None:
    x = jnp.ones((2, TOTAL, 8))
    with pytest.raises(ta.InvalidArgumentError, match="lengths_q"):
        attention(x, x, x, offsets_q=jnp.array(OFFSETS), lengths_q=jnp.array(LENGTHS[:2]),
                  offsets_kv=jnp.array(ENDS))  # fmt: skip
