# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tries an installed wheel: forward and gradient against attention written from its definition.

The argument, "cuda" or "no-cuda", says whether the wheel has the CUDA backend.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import tandem_attention as ta


def choose_instructions() -> str:
    """Has the CPU device take the best that Linux says the processor has: without, it fails."""
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.exists() else set()
    for name, flags in (
        ("avx512_bf16", "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_bf16"),
        ("avx512", "avx2 fma f16c avx512f avx512bw avx512vl avx512dq"),
        ("avx2", "avx2 fma f16c"),
    ):
        if words.issuperset(flags.split()):
            os.environ["TANDEM_CPU_ISA"] = name
            return name
    return "baseline"


def main(backend: str) -> None:
    instructions = choose_instructions()
    rng = np.random.default_rng(1)
    q, k, v, d_o = (rng.standard_normal((2, 3, 9, 8), np.float32) for _ in range(4))
    o, lse = ta.attention(q, k, v, causal=True, return_lse=True)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(8)
    scores[..., np.triu_indices(9, 1)[0], np.triu_indices(9, 1)[1]] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    np.testing.assert_allclose(o, p @ v, rtol=1e-5, atol=1e-5)
    gradients = ta.attention_backward(d_o, q, k, v, o, lse, causal=True)
    np.testing.assert_allclose(gradients.v, p.swapaxes(-1, -2) @ d_o, rtol=1e-5, atol=1e-5)

    found = {device.name: device for device in ta.devices()}
    for device in found.values():
        print(f"{device.name}: {device.human if device.usable else device.reason}")
    for name in ("vulkan", "cuda"):
        absent = name in found and "this build has no" in found[name].reason
        if absent != (name == "cuda" and backend == "no-cuda"):
            sys.exit(f"{name} is {'absent from' if absent else 'in'} the wheel")
    python = sys.version.split()[0]
    print(f"tandem-attention {ta.__version__}, Python {python}: right on the CPU ({instructions})")


if __name__ == "__main__":
    main(sys.argv[1])
