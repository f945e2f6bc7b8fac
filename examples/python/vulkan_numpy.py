# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention and its gradients on a Vulkan device, from numpy arrays; torch is not needed.

Gradient descent on q, k, v and a bias until the output is that of other, unknown ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from common import Curves, parser, report

import tandem_attention as ta


def descend(device: str, steps: int, seed: int) -> list[float]:
    """Losses, step by step."""
    rng = np.random.default_rng(seed)

    def draw() -> dict[str, np.ndarray]:
        shapes = {name: (1, 2, 16, 8) for name in "qkv"} | {"bias": (1, 2, 16, 16)}
        return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}

    target = ta.attention(**draw(), causal=True, device=device)
    given = draw()
    losses = []
    for _ in range(steps):
        o, lse = ta.attention(**given, causal=True, return_lse=True, device=device)
        losses.append(float(np.mean((o - target) ** 2)))
        d_o = 2 * (o - target) / o.size
        gradients = ta.attention_backward(
            d_o, o=o, lse=lse, **given, causal=True, device=device
        )._asdict()
        for name in given:
            given[name] -= 20 * gradients[name]
    return losses


def main(arguments: Sequence[str] | None = None) -> Curves:
    options = parser("Gradient descent on a Vulkan device from numpy", 100, device="vulkan:0")
    args = options.parse_args(arguments)
    print(next((d.human for d in ta.devices() if d.name == args.device), args.device))
    curves = {args.device: descend(args.device, args.steps, args.seed)}
    if args.device != "cpu":
        curves["cpu"] = descend("cpu", args.steps, args.seed)
    report(curves, args)
    return curves


if __name__ == "__main__":
    main()
