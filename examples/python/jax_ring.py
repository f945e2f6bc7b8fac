# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ring attention in JAX: a causal sequence split over devices by shard_map.

Keys and values travel around the devices by ppermute. A step attends to the keys at hand, and parts
are merged by their lse. JAX differentiates all of it, as lse has a gradient like o. Without GPUs,
JAX takes the CPU for as many devices as are asked for.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from tandem_attention.jax import attention

AXIS = "sequence"


def merge(o: Any, lse: Any, part: Any, part_lse: Any) -> tuple[Any, Any]:
    """o, f32, and lse of some keys become those of these and the part's. In each row one of both
    has seen a key."""
    both = jnp.logaddexp(lse, part_lse)
    return (
        o * jnp.exp(lse - both)[..., None] + part * jnp.exp(part_lse - both)[..., None],
        both,
    )


def ring_attention(q: Any, k: Any, v: Any, size: int) -> Any:
    """Causal attention of a device's rows, [B, Hq, S / size, D], within shard_map."""
    rank = lax.axis_index(AXIS)
    o, lse = attention(q, k, v, causal=True, return_lse=True)
    o = o.astype(jnp.float32)

    def earlier(q: Any, k: Any, v: Any, o: Any, lse: Any) -> tuple[Any, Any]:
        part, part_lse = attention(q, k, v, return_lse=True)
        return merge(o, lse, part, part_lse)

    def later(q: Any, k: Any, v: Any, o: Any, lse: Any) -> tuple[Any, Any]:
        return o, lse

    to_next = [(n, (n + 1) % size) for n in range(size)]
    for step in range(1, size):
        k, v = (lax.ppermute(x, AXIS, to_next) for x in (k, v))
        # They come from `step` devices before this one, or from the end of the sequence.
        o, lse = lax.cond(rank >= step, earlier, later, q, k, v, o, lse)
    return o.astype(q.dtype)


def compare(devices: int, rows: int) -> dict[str, float]:
    """The largest difference of o and of each gradient from those of one device, over the largest
    number there."""
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,))
    spec = PartitionSpec(None, None, AXIS, None)
    split = jax.shard_map(
        partial(ring_attention, size=devices),
        mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec,
    )  # fmt: skip
    keys = jax.random.split(jax.random.key(1), 4)
    q, d_o = (jax.random.normal(key, (2, 4, rows, 32)) for key in keys[:2])
    k, v = (jax.random.normal(key, (2, 2, rows, 32)) for key in keys[2:])
    found, way = jax.vjp(jax.jit(split), q, k, v)
    right, back = jax.vjp(lambda *x: attention(*x, causal=True), q, k, v)
    pairs = zip(
        ("o", "d_q", "d_k", "d_v"), (found, *way(d_o)), (right, *back(d_o)), strict=True
    )  # fmt: skip
    return {n: float(jnp.abs(a - b).max() / jnp.abs(b).max()) for n, a, b in pairs}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Prints the differences from one device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rows", type=int, default=256, help="of the whole sequence")
    options = parser.parse_args(arguments)
    if jax.config.jax_num_cpu_devices < options.devices:
        jax.config.update("jax_num_cpu_devices", options.devices)
    differences = compare(options.devices, options.rows)
    for name, difference in differences.items():
        print(f"{name:4} {difference:.1e}")
    return differences


if __name__ == "__main__":
    main()
