# SPDX-License-Identifier: MIT OR Apache-2.0
"""A tiny Swin transformer: attention in windows, with a learned table of relative positions.

Tandem takes the table and the index of each pair, and gives the table's gradient; SDPA takes the
bias that they make.

Every second block shifts its windows by half a window. What then lies in one window without being
neighbours in the image is hidden by a mask. The images are stripes in noise; the classes are their
directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from common import Curves, parser, report
from torch import Tensor, nn

from tandem_attention.torch import attention

# (q, k, v [windows, H, T, D], table [H, N], index [T, T], keep [windows, 1, T, T] or None)
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]

SIDE, PATCH, WINDOW, CLASSES = 32, 4, 4, 4
GRID = SIDE // PATCH


def with_sdpa(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, index: Tensor, keep: Tensor | None
) -> Tensor:
    bias = table[:, index.to(torch.int64)][None]
    mask = bias if keep is None else bias.masked_fill(~keep, -math.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def with_tandem(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, index: Tensor, keep: Tensor | None
) -> Tensor:
    return attention(q, k, v, bias_table=table, bias_index=index, keep=keep)


def to_windows(x: Tensor) -> Tensor:
    """[B, GRID, GRID, ...] to [B * windows, WINDOW^2, ...]."""
    n = GRID // WINDOW
    x = x.reshape(x.shape[0], n, WINDOW, n, WINDOW, *x.shape[3:]).transpose(2, 3)
    return x.reshape(-1, WINDOW * WINDOW, *x.shape[5:])


def from_windows(x: Tensor) -> Tensor:
    """The inverse, for [B * windows, WINDOW^2, C]."""
    n = GRID // WINDOW
    x = x.reshape(-1, n, n, WINDOW, WINDOW, x.shape[-1]).transpose(2, 3)
    return x.reshape(-1, GRID, GRID, x.shape[-1])


def neighbours(shift: int) -> Tensor:
    """[windows, 1, T, T]: whether two places of a shifted window are neighbours in the image."""
    side = torch.zeros(GRID, dtype=torch.int64)
    side[-WINDOW:], side[-shift:] = 1, 2
    region = to_windows((3 * side[:, None] + side)[None, :, :, None]).squeeze(-1)
    return (region[:, :, None] == region[:, None, :])[:, None]


class Block(nn.Module):
    index: Tensor
    keep: Tensor | None

    def __init__(self, width: int, heads: int, shift: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.shift, self.attend = heads, shift, attend
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.table = nn.Parameter(torch.randn(heads, (2 * WINDOW - 1) ** 2) * 0.02)
        at = torch.cartesian_prod(torch.arange(WINDOW), torch.arange(WINDOW))
        apart = at[:, None] - at[None] + WINDOW - 1
        index = apart[..., 0] * (2 * WINDOW - 1) + apart[..., 1]
        self.register_buffer("index", index.to(torch.uint8))
        self.register_buffer("keep", neighbours(shift) if shift else None)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        here = torch.roll(self.before(x), (-self.shift, -self.shift), (1, 2))
        qkv = self.qkv(to_windows(here)).unflatten(-1, (3, self.heads, width // self.heads))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        keep = None if self.keep is None else self.keep.repeat(x.shape[0], 1, 1, 1)
        o = self.attend(q, k, v, self.table, self.index, keep).transpose(1, 2).flatten(2)
        x = x + torch.roll(from_windows(self.out(o)), (self.shift, self.shift), (1, 2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Swin(nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        width, heads = 48, 3
        self.patches = nn.Conv2d(1, width, PATCH, PATCH)
        shifts = (0, WINDOW // 2)
        self.blocks = nn.Sequential(*(Block(width, heads, shift, attend) for shift in shifts))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).permute(0, 2, 3, 1)
        return self.head(self.norm(self.blocks(x)).mean((1, 2)))


def stripes(count: int) -> tuple[Tensor, Tensor]:
    """Images [count, 1, SIDE, SIDE] and their classes."""
    labels = torch.randint(CLASSES, (count,))
    angle = (labels * math.pi / CLASSES)[:, None, None]
    at = torch.arange(SIDE)
    phase = torch.rand(count, 1, 1) * 2 * math.pi
    along = at[:, None] * angle.cos() + at * angle.sin()
    images = torch.sin(0.7 * along + phase) + 0.7 * torch.randn(count, SIDE, SIDE)
    return images[:, None], labels


def train(attend: Attend, steps: int, device: str, seed: int) -> list[float]:
    torch.manual_seed(seed)
    model = Swin(attend).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        images, labels = (t.to(device) for t in stripes(8))
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(arguments: Sequence[str] | None = None) -> Curves:
    args = parser("A tiny Swin with torch's SDPA and with Tandem", steps=200).parse_args(arguments)
    curves = {
        name: train(attend, args.steps, args.device, args.seed)
        for name, attend in (("tandem", with_tandem), ("sdpa", with_sdpa))
    }
    report(curves, args)
    return curves


if __name__ == "__main__":
    main()
