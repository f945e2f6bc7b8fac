# SPDX-License-Identifier: MIT OR Apache-2.0
"""What ranks send each other for context_parallel, all of it by torch.distributed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._errors import InvalidArgumentError
from . import _ops

HEADER = 4096


class _Last(torch.autograd.Function):
    """A gradient, whose own derivatives are refused."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        _ops.refuse_second_derivatives()


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward whose results have no derivatives. Those that exist depend on all that it reads:
    torch's once_differentiable() asks the gradients that come in alone, and loses the others."""

    @functools.wraps(backward)
    def once(ctx: Any, *gradients: Tensor | None) -> Any:
        with torch.no_grad():
            made = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return made
        read = [t for t in (*gradients, *ctx.saved_tensors) if t is not None and t.requires_grad]
        return tuple(_Last.apply(t, *read) if isinstance(t, Tensor) and read else t for t in made)

    return once


def agree(groups: list[Any], description: dict[str, str], error: Exception | None) -> None:
    """Holds a call's description against those of all ranks. Every rank raises, or none does.

    Args:
        groups: process groups on the CPU whose product is all ranks, the fastest one first.
        description: what has to be the same on all ranks, in the same order.
        error: what this rank refuses its own arguments with.

    Raises:
        Exception: error, as it is.
        InvalidArgumentError: another rank refuses its arguments, or describes the call otherwise.
    """
    lines = (
        [f"!{error}".replace("\n", " ")] if error else [f"{n}={v}" for n, v in description.items()]
    )
    text = "\n".join(lines).encode()[:HEADER].ljust(HEADER, b"\0")
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    for group in groups:
        size = dist.get_world_size(group)
        rows = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(rows, mine, group=group)
        mine = torch.cat(rows)
    if error:
        raise error
    texts = [bytes(row.tolist()) for row in mine.reshape(-1, HEADER)]
    if all(text == texts[0] for text in texts):
        if texts[0][:1] == b"!":
            raise InvalidArgumentError(texts[0].rstrip(b"\0").decode(errors="replace")[1:])
        return
    said = [text.rstrip(b"\0").decode(errors="replace") for text in texts]
    for rank, words in enumerate(said):
        if words.startswith("!"):
            raise InvalidArgumentError(f"rank {rank} refuses its arguments: {words[1:]}")
    first = said[0].split("\n")
    for rank, words in enumerate(said):
        for a, b in zip(first, words.split("\n"), strict=False):
            if a != b:
                name = a.split("=")[0]
                one, other = a.partition("=")[2], b.partition("=")[2]
                raise InvalidArgumentError(
                    f"ranks disagree: {name} is {one} on rank 0 and {other} on rank {rank}"
                )
    raise InvalidArgumentError("ranks disagree on the number of arguments")


def shift(group: Any, send: Tensor, receive: Tensor) -> list[Any]:
    """Sends to the next rank and receives from the one before; returns what to wait for."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    after = dist.get_global_rank(group, (rank + 1) % size)
    before = dist.get_global_rank(group, (rank - 1) % size)
    return list(
        dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, send, after, group),
                dist.P2POp(dist.irecv, receive, before, group),
            ]
        )
    )


def wait(works: list[Any]) -> None:
    """On CUDA the current stream waits, not the host."""
    for work in works:
        work.wait()


def _all_to_all(parts: Tensor, group: Any) -> Tensor:
    """[n, ...]: part m goes to rank m, and what came from rank m is part m."""
    parts = parts.contiguous()
    made = torch.empty_like(parts)
    dist.all_to_all_single(made, parts, group=group)
    return made


def _to_rows(x: Tensor, group: Any, halves: int) -> Tensor:
    n = dist.get_world_size(group)
    b, heads, rows, width = x.shape
    if halves == 1:  # rows first in what is sent: what comes is read where it lies
        parts = x.reshape(b, n, heads // n, rows, width).permute(1, 3, 0, 2, 4)
        return _all_to_all(parts, group).flatten(0, 1).permute(1, 2, 0, 3)
    parts = x.reshape(b, n, heads // n, halves, rows // halves, width).movedim(1, 0)
    made = _all_to_all(parts, group).permute(1, 2, 3, 0, 4, 5)  # b, h, halves, n, rows, width
    # The second halves lie in the reverse order of ranks.
    made = torch.stack((made[:, :, 0], made[:, :, 1].flip(2)), 2)
    return made.reshape(b, heads // n, n * rows, width)


def _to_heads(x: Tensor, group: Any, halves: int) -> Tensor:
    n = dist.get_world_size(group)
    b, heads, rows, width = x.shape
    if halves == 1:
        parts = x.reshape(b, heads, n, rows // n, width).permute(2, 3, 0, 1, 4)
        made = _all_to_all(parts, group)  # n, rows, b, h, width
        return made.permute(2, 0, 3, 1, 4).reshape(b, n * heads, rows // n, width)
    parts = x.reshape(b, heads, halves, n, rows // (halves * n), width)
    parts = torch.stack((parts[:, :, 0], parts[:, :, 1].flip(2)), 2)
    made = _all_to_all(parts.permute(3, 0, 1, 2, 4, 5), group)
    return made.movedim(0, 1).reshape(b, n * heads, rows // n, width)


class _Exchange(torch.autograd.Function):
    """Linear, so that it saves nothing; the attention behind it has no second derivatives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, halves: int, to_rows: bool) -> Tensor:
        ctx.call = (group, halves, to_rows)
        return (_to_rows if to_rows else _to_heads)(x, group, halves)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, d: Tensor) -> Any:
        group, halves, to_rows = ctx.call
        return (_to_heads if to_rows else _to_rows)(d, group, halves), None, None, None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        _ops.refuse_forward_mode()


def to_rows(x: Tensor, group: Any, halves: int) -> Tensor:
    """[B, H, S, D] of all heads and the rank's rows as [B, H / n, n S, D], rows in their order."""
    made: Tensor = _Exchange.apply(x, group, halves, True)
    return made


def to_heads(x: Tensor, group: Any, halves: int) -> Tensor:
    """The way back of to_rows()."""
    made: Tensor = _Exchange.apply(x, group, halves, False)
    return made


def gathered(x: Tensor, group: Any) -> list[Tensor]:
    """x of every rank. No gradient."""
    x = x.contiguous()
    made = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(made, x, group=group)
    return made
