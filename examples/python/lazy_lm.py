# SPDX-License-Identifier: MIT OR Apache-2.0
"""A language model with elastic softmax and a distance bias, which no kernel of torch has.

Each head learns a threshold, in units of a row's mean weight: weights below it become 0. It also
learns a number for each distance. Beside it stands the same model with both written in torch from
their definition, by matrices of all scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from common import Curves, parser, report
from gpt import TEXT
from torch import Tensor, nn

from tandem_attention.torch import attention

# (q, k, v [B, S, H, D], dist_bias [H, W], tau [H])
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def with_tandem(q: Tensor, k: Tensor, v: Tensor, dist_bias: Tensor, tau: Tensor) -> Tensor:
    return attention(
        q, k, v, dist_bias=dist_bias, tau=tau, normalizer="elastic", causal=True, layout="bshd"
    )


def with_matrices(q: Tensor, k: Tensor, v: Tensor, dist_bias: Tensor, tau: Tensor) -> Tensor:
    rows = torch.arange(q.shape[1], device=q.device)
    distance = rows[:, None] - rows
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    near = (distance >= 0) & (distance < dist_bias.shape[1])
    scores = scores + torch.where(near, dist_bias[:, distance.clamp(0, dist_bias.shape[1] - 1)], 0)
    hidden = distance < 0
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    weights = (weights + tau[:, None, None] / (rows + 1)[:, None]).clamp(min=0)
    return torch.einsum("bhij,bjhd->bihd", weights.masked_fill(hidden, 0), v)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, reach: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dist_bias = nn.Parameter(torch.zeros(heads, reach))
        self.tau = nn.Parameter(torch.full((heads,), -0.5))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1))
        o = self.attend(*qkv.unbind(2), self.dist_bias, self.tau)
        x = x + self.out(o.flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class LazyLM(nn.Module):
    def __init__(self, symbols: int, attend: Attend) -> None:
        super().__init__()
        width, heads, reach, layers = 64, 4, 32, 2
        self.symbols = nn.Embedding(symbols, width)
        self.blocks = nn.Sequential(*(Block(width, heads, reach, attend) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.symbols(x))))


def train(
    attend: Attend, text: Tensor, steps: int, device: str, seed: int
) -> tuple[list[float], LazyLM]:
    """Losses in nats a character, and the model."""
    context, batch = 64, 8
    torch.manual_seed(seed)
    model = LazyLM(int(text.max()) + 1, attend).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - context, (batch,))
        rows = torch.stack([text[start : start + context + 1] for start in starts]).to(device)
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def main(arguments: Sequence[str] | None = None) -> Curves:
    args = parser("A language model with elastic softmax", steps=300).parse_args(arguments)
    characters = TEXT.read_text()
    alphabet = {c: n for n, c in enumerate(sorted(set(characters)))}
    text = torch.tensor([alphabet[c] for c in characters])
    curves = {}
    for name, attend in (("tandem", with_tandem), ("matrices", with_matrices)):
        curves[name], model = train(attend, text, args.steps, args.device, args.seed)
        for number, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            learned = ", ".join(f"{t:.3f}" for t in block.tau.tolist())
            print(f"{name}, block {number}: tau {learned}")
    report(curves, args)
    return curves


if __name__ == "__main__":
    main()
