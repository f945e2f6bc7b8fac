# SPDX-License-Identifier: MIT OR Apache-2.0
"""GRPO on prefix trees: a prompt and its responses share one row, and the prompt is computed once.

Of each prompt there are several responses of unequal length, with a reward each. They can be
trained as sequences of their own, each with its copy of the prompt; or as one row, prompt first, in
which a response sees the prompt and itself, and no other response. The mask of this row is one
interval a key, ``masks.tree``. Losses and gradients are the same, from a third of the tokens.

The task: repeat the last token of the prompt. Responses are drawn beforehand, as from an engine
that samples; each group is trained on twice, with the clipped ratio of GRPO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from common import Curves, parser, report
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tandem_attention import masks
from tandem_attention.torch import attention

SYMBOLS, LONGEST = 12, 32
GROUPS, RESPONSES, UPDATES, CLIP = 8, 6, 2, 0.2


@dataclass
class Group:
    """A prompt and its responses.

    prompt: [P]. responses: each [A], of its own A. old: as responses, the logarithm of the
    probability with which each token was drawn. advantages: [RESPONSES].
    """

    prompt: Tensor
    responses: list[Tensor]
    old: list[Tensor]
    advantages: Tensor


@dataclass
class Rows:
    """Groups as the model sees them.

    tokens, places: [B, S]; what a token is, and which place it has in its own sequence.
    spans: int32 [B, 1, S, 2], or None where each row is one sequence.
    scored, before: [N]; the tokens of all responses in the flat [B * S], and those before them.
    """

    tokens: Tensor
    places: Tensor
    spans: Tensor | None
    scored: Tensor
    before: Tensor


def draw(device: str) -> list[Group]:
    """Prompts with responses of which some tokens are right; the reward is their share."""
    groups = []
    for _ in range(GROUPS):
        prompt = torch.randint(SYMBOLS, (int(torch.randint(12, 20, ())),))
        responses, old, rewards = [], [], []
        for n in range(RESPONSES):
            size = int(torch.randint(3, 9, ()))
            share = n / (RESPONSES - 1)
            tokens = torch.randint(SYMBOLS, (size,))
            tokens[torch.rand(size) < share] = prompt[-1]
            right = (tokens == prompt[-1]).float()
            responses.append(tokens)
            old.append((share * right + (1 - share) / SYMBOLS).log())
            rewards.append(right.mean())
        reward = torch.stack(rewards)
        advantages = (reward - reward.mean()) / (reward.std() + 1e-4)
        made = ([t.to(device) for t in of] for of in (responses, old))
        groups.append(Group(prompt.to(device), *made, advantages.to(device)))
    return groups


def padded(rows: list[list[Tensor]]) -> Tensor:
    return pad_sequence([torch.cat(parts) for parts in rows], batch_first=True)


def as_trees(groups: list[Group]) -> Rows:
    """A row for each group: the prompt and, behind each other, its responses."""
    device = groups[0].prompt.device
    lengths = [[len(g.prompt), *map(len, g.responses)] for g in groups]
    spans = masks.tree([[-1] + [0] * RESPONSES] * len(groups), lengths)
    tokens = padded([[g.prompt, *g.responses] for g in groups])
    places, scored, before = [], [], []
    for n, (prompt, *responses) in enumerate(lengths):
        at = n * tokens.shape[1] + prompt
        places.append([torch.arange(prompt), *(torch.arange(r) + prompt for r in responses)])
        root = torch.tensor([at - 1])  # the first token of each response follows the prompt
        for size in responses:
            own = torch.arange(at, at + size)
            scored.append(own)
            before.append(torch.cat([root, own[:-1]]))
            at += size
    return Rows(
        tokens, padded(places).to(device), torch.from_numpy(spans).to(device),
        torch.cat(scored).to(device), torch.cat(before).to(device),
    )  # fmt: skip


def as_sequences(groups: list[Group]) -> Rows:
    """A row for each response, behind a copy of its prompt."""
    device = groups[0].prompt.device
    tokens = padded([[g.prompt, r] for g in groups for r in g.responses])
    sizes = [(len(g.prompt), len(r)) for g in groups for r in g.responses]
    scored = torch.cat([
        torch.arange(prompt, prompt + size) + n * tokens.shape[1]
        for n, (prompt, size) in enumerate(sizes)
    ]).to(device)  # fmt: skip
    places = torch.arange(tokens.shape[1], device=device).expand(tokens.shape)
    return Rows(tokens, places, None, scored, scored - 1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.sizes = (heads, kv_heads, kv_heads)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, sum(self.sizes) * (width // heads), bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, spans: Tensor | None) -> Tensor:
        head = x.shape[-1] // self.sizes[0]
        qkv = self.qkv(self.before(x)).unflatten(-1, (-1, head))
        q, k, v = qkv.split(self.sizes, 2)  # [B, S, H, D]
        o = attention(q, k, v, spans=spans, causal=True, layout="bshd")  # a tree is causal as well
        x = x + self.out(o.flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = 48
        self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width, 4, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS)

    def forward(self, rows: Rows) -> Tensor:
        """Logarithms of the probabilities of the tokens of all responses, [N]."""
        x = self.symbols(rows.tokens) + self.places(rows.places)
        for block in self.blocks:
            x = block(x, rows.spans)
        chosen = rows.tokens.flatten()[rows.scored]
        logits = self.head(self.norm(x).flatten(0, 1)[rows.before])
        return logits.log_softmax(-1).gather(-1, chosen[:, None]).squeeze(-1)


def grpo(groups: list[Group], new: Tensor) -> Tensor:
    """The clipped loss; a response counts as one, whatever its length. new: [N]."""
    sizes = torch.tensor([len(r) for g in groups for r in g.responses], device=new.device)
    advantages = torch.cat([g.advantages for g in groups]).repeat_interleave(sizes)
    weights = (1 / (len(sizes) * sizes)).repeat_interleave(sizes)
    ratio = (new - torch.cat([old for g in groups for old in g.old])).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(weights * gain).sum()


def surprise(groups: list[Group], new: Tensor) -> float:
    """Nats that a right token costs, which training lowers."""
    right = torch.cat([r == g.prompt[-1] for g in groups for r in g.responses])
    return -new[right].mean().item()


def compare(device: str, seed: int) -> tuple[float, float]:
    """How far both ways are apart, relative: the loss, and the worst gradient of a parameter."""
    torch.manual_seed(seed)
    policy, groups = Policy().to(device), draw(device)
    losses, gradients = [], []
    for pack in (as_trees, as_sequences):
        losses.append(grpo(groups, policy(pack(groups))))
        gradients.append(torch.autograd.grad(losses[-1], list(policy.parameters())))
    apart = abs(losses[0] - losses[1]) / abs(losses[1])
    worst = max((a - b).norm() / b.norm() for a, b in zip(*gradients, strict=True))
    return apart.item(), worst.item()


def train(pack: Callable[[list[Group]], Rows], steps: int, device: str, seed: int) -> list[float]:
    torch.manual_seed(seed)
    policy = Policy().to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    surprises = []
    for _ in range(steps):
        groups = draw(device)
        rows = pack(groups)
        for update in range(UPDATES):
            new = policy(rows)
            if update == 0:
                surprises.append(surprise(groups, new.detach()))
            optimizer.zero_grad()
            grpo(groups, new).backward()
            optimizer.step()
    return surprises


def main(arguments: Sequence[str] | None = None) -> Curves:
    args = parser("GRPO on prefix trees and on sequences", steps=100).parse_args(arguments)
    torch.manual_seed(args.seed)
    groups = draw(args.device)
    tree, sequences = (pack(groups).tokens.numel() for pack in (as_trees, as_sequences))
    print(f"{tree} tokens as trees, {sequences} as sequences")
    loss, gradient = compare(args.device, args.seed)
    print(f"the loss is {loss:.1e} apart, the worst gradient {gradient:.1e}, relative")
    curves = {
        name: train(pack, args.steps, args.device, args.seed)
        for name, pack in (("trees", as_trees), ("sequences", as_sequences))
    }
    report(curves, args)
    return curves


if __name__ == "__main__":
    main()
