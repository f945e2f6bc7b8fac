# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small GPT over characters, trained twice: with torch's SDPA and with tandem_attention.

Same seed, same batches: the losses lie on each other but for rounding, which training makes larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Curves, parser, report
from torch import Tensor, nn

from tandem_attention.torch import attention

TEXT = Path(__file__).parents[1] / "char_lm" / "input.txt"

# q, k and v are [B, S, H, D], views of one product.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def with_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def with_tandem(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal=True, layout="bshd")


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, width = x.shape
        qkv = self.qkv(self.before(x)).view(b, s, 3, self.heads, width // self.heads)
        x = x + self.out(self.attend(*qkv.unbind(2)).reshape(b, s, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    def __init__(self, symbols: int, context: int, attend: Attend) -> None:
        super().__init__()
        width, heads, layers = 64, 4, 2
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, attend) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        x = self.symbols(x) + self.places[: x.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def train(attend: Attend, text: Tensor, steps: int, device: str, seed: int) -> list[float]:
    """Losses in nats a character, step by step."""
    context, batch = 64, 8
    torch.manual_seed(seed)
    model = GPT(int(text.max()) + 1, context, attend).to(device)
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
    return losses


def main(arguments: Sequence[str] | None = None) -> Curves:
    options = parser("A small GPT with torch's SDPA and with Tandem", steps=300)
    options.add_argument("--text", type=Path, default=TEXT, help="what to learn")
    args = options.parse_args(arguments)
    characters = args.text.read_text()
    alphabet = {c: n for n, c in enumerate(sorted(set(characters)))}
    text = torch.tensor([alphabet[c] for c in characters])
    curves = {
        name: train(attend, text, args.steps, args.device, args.seed)
        for name, attend in (("tandem", with_tandem), ("sdpa", with_sdpa))
    }
    report(curves, args)
    return curves


if __name__ == "__main__":
    main()
