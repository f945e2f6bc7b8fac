# SPDX-License-Identifier: MIT OR Apache-2.0
"""gpt.py's model trained with each sequence split over several processes, and in one process.

Same seed, same batches: the losses lie on each other but for rounding. On the CPU the processes
talk by gloo, on CUDA by NCCL with a GPU for each.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Curves, parser, report
from gpt import GPT, TEXT, with_tandem
from torch import Tensor

from tandem_attention.torch.context_parallel import ContextParallel

CONTEXT, BATCH = 64, 8


class SplitGPT(GPT):
    """Reads rows of the sequence that lie at any positions."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = self.symbols(x) + self.places[positions]
        return self.head(self.norm(self.blocks(x)))


def letters(file: Path) -> Tensor:
    characters = file.read_text()
    alphabet = {c: n for n, c in enumerate(sorted(set(characters)))}
    return torch.tensor([alphabet[c] for c in characters])


def train(cp: ContextParallel | None, args: argparse.Namespace, device: str) -> list[float]:
    """Losses in nats a character, step by step; cp: None for one process."""
    text = letters(args.text)
    torch.manual_seed(args.seed)
    attend = functools.partial(cp.attention, causal=True, layout="bshd") if cp else with_tandem
    model = SplitGPT(int(text.max()) + 1, CONTEXT, attend).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Everything but attention looks at one row at a time: a rank has its own rows of it all.
    positions = cp.positions(CONTEXT) if cp else torch.arange(CONTEXT)
    losses = []
    for _ in range(args.steps):
        starts = torch.randint(len(text) - CONTEXT, (BATCH,))
        rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        own, target = rows[:, positions].to(device), rows[:, positions + 1].to(device)
        logits = model(own, positions.to(device))
        # The rank's share of the mean over the sequence; gradients are sums over ranks.
        share = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        loss = share / (BATCH * CONTEXT)
        optimizer.zero_grad()
        loss.backward()
        whole = loss.detach()
        if cp:
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
            dist.all_reduce(whole)
        optimizer.step()
        losses.append(whole.item())
    return losses


def work(rank: int, ranks: int, folder: str, args: argparse.Namespace) -> None:
    """What each process does."""
    cuda = args.device == "cuda"
    device = f"cuda:{rank}" if cuda else args.device
    if cuda:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{folder}/meet", rank=rank,
        world_size=ranks, timeout=timedelta(minutes=5),
    )  # fmt: skip
    losses = train(ContextParallel(ulysses=args.ulysses), args, device)
    if rank == 0:
        torch.save(losses, f"{folder}/losses")
    dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> Curves:
    options = parser("A small GPT whose sequence is split over processes", steps=300)
    options.add_argument("--text", type=Path, default=TEXT, help="what to learn")
    options.add_argument("--ranks", type=int, default=4, help="processes; on CUDA at most its GPUs")
    options.add_argument("--ulysses", type=int, help="how many processes exchange heads")
    args = options.parse_args(arguments)
    ranks = min(args.ranks, torch.cuda.device_count()) if args.device == "cuda" else args.ranks
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (ranks, folder, args), nprocs=ranks)
        split = torch.load(f"{folder}/losses")
    curves = {"split": split, "one process": train(None, args, args.device)}
    report(curves, args)
    return curves


if __name__ == "__main__":
    main()
