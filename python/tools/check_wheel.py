# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tries an installed wheel: forward and gradient against attention written from its definition.

It runs on the CPU and on each Vulkan device that is there, and so does the example for numpy of the
package's own page. The argument, "cuda" or "no-cuda", says whether the wheel has the CUDA backend.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import numpy as np

import tandem_attention as ta


def choose_instructions() -> str:
    """Has the CPU device take the best that Linux says the processor has: without, it fails."""
    info = Path("/proc/cpuinfo")
    known = info.exists() and platform.machine() == "x86_64"  # an emulator may show its host's
    words = set(info.read_text().split()) if known else set()
    for name, flags in (
        ("avx512_bf16", "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_bf16"),
        ("avx512", "avx2 fma f16c avx512f avx512bw avx512vl avx512dq"),
        ("avx2", "avx2 fma f16c"),
    ):
        if words.issuperset(flags.split()):
            os.environ["TANDEM_CPU_ISA"] = name
            return name
    return "instructions of its choice"


def compare(**options: Any) -> None:
    """Forward and gradient on a device."""
    rng = np.random.default_rng(1)
    q, k, v, d_o = (rng.standard_normal((2, 3, 9, 8), np.float32) for _ in range(4))
    o, lse = ta.attention(q, k, v, causal=True, return_lse=True, **options)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(8)
    scores[..., np.triu_indices(9, 1)[0], np.triu_indices(9, 1)[1]] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    np.testing.assert_allclose(o, p @ v, rtol=1e-5, atol=1e-5)
    gradients = ta.attention_backward(d_o, q, k, v, o, lse, causal=True, **options)
    np.testing.assert_allclose(gradients.v, p.swapaxes(-1, -2) @ d_o, rtol=1e-5, atol=1e-5)


def main(backend: str) -> None:
    instructions = choose_instructions()
    compare()
    page = metadata("tandem-attention").json["description"]
    examples = re.findall(r"^```python\n(.*?)^```$", str(page), re.M | re.S)
    examples = [example for example in examples if "import numpy" in example]
    if not examples:
        sys.exit("the package's page has no example for numpy")
    for example in examples:
        exec(compile(example, "python/README.md", "exec"), {})

    tried = [f"the CPU ({instructions})"]
    found = {device.name: device for device in ta.devices()}
    for device in found.values():
        print(f"{device.name}: {device.human if device.usable else device.reason}")
        if device.usable and device.name.startswith("vulkan"):
            compare(device=device.name)
            tried.append(device.name)
    for name in ("vulkan", "cuda"):
        absent = name in found and "this build has no" in found[name].reason
        if absent != (name == "cuda" and backend == "no-cuda"):
            sys.exit(f"{name} is {'absent from' if absent else 'in'} the wheel")
    version = f"tandem-attention {ta.__version__}, Python {sys.version.split()[0]}"
    print(f"{version}: right on {' and '.join(tried)}")


if __name__ == "__main__":
    main(sys.argv[1])
