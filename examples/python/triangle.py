# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triangle attention over pairs, as structure prediction has it: a bias of the third side.

For pairs z[i, j]: row i attends from j over k, and the pair (j, k) closes the triangle, as a bias
that all rows i share. Its gradient is the sum over rows, which the kernel forms; expanding the bias
to every row would cost N times the memory. The task: from some distances between points of a plane,
and these with noise, tell all distances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from common import Curves, parser, report
from torch import Tensor, nn

from tandem_attention.torch import attention

# (q, k, v [N, H, N, D], bias [1, H, N, N])
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def with_sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def with_tandem(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attention(q, k, v, bias=bias)


class Triangle(nn.Module):
    """Around the starting node; with ``ending``, around the ending one."""

    def __init__(self, width: int, heads: int, ending: bool, attend: Attend) -> None:
        super().__init__()
        self.heads, self.ending, self.attend = heads, ending, attend
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.bias = nn.Linear(width, heads, bias=False)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, z: Tensor) -> Tensor:
        x = self.norm(z.transpose(0, 1) if self.ending else z)
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        o = self.attend(q, k, v, self.bias(x).permute(2, 0, 1)[None])
        change = self.out(torch.sigmoid(self.gate(x)) * o.transpose(1, 2).flatten(2))
        return z + (change.transpose(0, 1) if self.ending else change)


class Pairs(nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        width, heads = 32, 4
        self.enter = nn.Linear(2, width)
        ends = (False, True)
        self.blocks = nn.Sequential(*(Triangle(width, heads, ending, attend) for ending in ends))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, z: Tensor) -> Tensor:
        z = self.leave(self.blocks(self.enter(z))).squeeze(-1)
        return z + z.T


def distances(points: int) -> tuple[Tensor, Tensor]:
    """What is known, [N, N, 2]: a noisy distance, and whether there is one; all of them, [N, N]."""
    at = torch.randn(points, 2)
    true = torch.cdist(at, at)
    known = (torch.rand(points, points) < 0.4).triu(1)
    known = known | known.T
    noise = 0.05 * torch.randn(points, points).triu(1)
    seen = (true + noise + noise.T) * known
    return torch.stack([seen, known.float()], -1), true


def train(attend: Attend, steps: int, device: str, seed: int) -> list[float]:
    torch.manual_seed(seed)
    model = Pairs(attend).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        pairs, true = (t.to(device) for t in distances(24))
        loss = F.mse_loss(model(pairs), true)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> Curves:
    options = parser("Triangle attention with torch's SDPA and with Tandem", steps=200)
    args = options.parse_args(arguments)
    curves = {
        name: train(attend, args.steps, args.device, args.seed)
        for name, attend in (("tandem", with_tandem), ("sdpa", with_sdpa))
    }
    report(curves, args)
    return curves


if __name__ == "__main__":
    main()
