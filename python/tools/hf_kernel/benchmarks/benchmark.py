# SPDX-License-Identifier: MIT OR Apache-2.0
"""For `kernels benchmark`: forwards beside torch's SDPA in f32."""

import torch
from kernels.benchmark import Benchmark


class AttentionBenchmark(Benchmark):
    seed = 1

    def _setup(self, *shape: int) -> None:
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        self.q, self.k, self.v = (
            torch.randn(*shape, device=self.device, dtype=dtype) for _ in range(3)
        )
        self.out = torch.empty_like(self.q)

    def _verify(self) -> torch.Tensor:
        q, k, v = (t.float().transpose(1, 2) for t in (self.q, self.k, self.v))
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return o.transpose(1, 2).to(self.q.dtype)

    def setup_small(self) -> None:
        self._setup(2, 256, 8, 64)

    def benchmark_small(self) -> None:
        self.out = self.kernel.flash_attn_func(self.q, self.k, self.v, causal=True)

    def verify_small(self) -> torch.Tensor:
        return self._verify()

    def setup_large(self) -> None:
        self._setup(4, 2048, 16, 128)

    def benchmark_large(self) -> None:
        self.out = self.kernel.flash_attn_func(self.q, self.k, self.v, causal=True)

    def verify_large(self) -> torch.Tensor:
        return self._verify()
