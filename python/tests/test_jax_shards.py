# SPDX-License-Identifier: MIT OR Apache-2.0
"""tandem_attention.jax.attention under shard_map(), and on arrays of several devices."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax.sharding import Mesh, PartitionSpec  # noqa: E402

import tandem_attention as ta  # noqa: E402
from tandem_attention import _arrays, _attention  # noqa: E402

if not hasattr(ta._core, "jax_handlers"):
    pytest.skip("this build has no JAX", allow_module_level=True)
if not hasattr(jax, "shard_map"):
    pytest.skip("this JAX does not say which values differ by device", allow_module_level=True)

from tandem_attention.jax import _varying, attention  # noqa: E402

SPLIT, SAME = PartitionSpec("x"), PartitionSpec()


def test_gradients_of_what_all_devices_have_are_summed() -> None:
    """As JAX sums them: the program has the sum, though one device has all of it here."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    q, bias = np.ones((2, 2, 3, 8), np.float32), np.ones((2, 3, 3), np.float32)
    varying = []

    def call(q: Any, k: Any, bias: Any) -> Any:
        o = attention(q, k, k, bias=bias, causal=True)
        varying.append(set(_varying(o)))
        return o

    split = jax.shard_map(call, mesh=mesh, in_specs=(SPLIT, SPLIT, SAME), out_specs=SPLIT)

    def gradients(*of: int) -> str:
        def loss(*given: Any) -> Any:
            return split(*given).sum()

        return str(jax.make_jaxpr(jax.grad(loss, of))(q, q, bias))

    assert "psum" in gradients(2)
    assert "psum" not in gradients(0, 1)
    assert varying == [{"x"}, {"x"}]


def test_arrays_of_several_devices_go_through_xla() -> None:
    class Device(NamedTuple):
        platform: str
        number: int = 0

    class Array(NamedTuple):
        places: tuple[Device, ...]

        def devices(self) -> set[Device]:
            return set(self.places)

    framework = _arrays.framework_of(jax.numpy.ones(1))
    for places, goes in (
        ((Device("cpu"),), False), ((Device("cpu"), Device("cpu", 1)), True),
        ((Device("cuda"),), True),
    ):  # fmt: skip
        assert _attention._is_foreign_jax(framework, Array(places)) == goes
