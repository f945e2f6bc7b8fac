# SPDX-License-Identifier: MIT OR Apache-2.0
"""torch's BlockMask as block lists with the bits of its partial blocks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from .._blocks import Blocks
from .._errors import InvalidArgumentError, UnsupportedError

__all__ = ["BlockMask", "Kept", "blocks_of"]

_T = TypeVar("_T")

#: Pairs whose mask_mod is evaluated together.
_AT_ONCE = 1 << 24


class Kept(Generic[_T]):
    """What was made of BlockMasks, kept beside each of them.

    A mask whose lists, lengths or mask_mod are others than then, or whose lists were written into,
    is read again. What tensors hold that a mask_mod reads is not looked at.
    """

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[BlockMask, tuple[list[Any], _T]] = (
            weakref.WeakKeyDictionary()
        )

    def get(self, block_mask: BlockMask, make: Callable[[BlockMask], _T]) -> _T:
        of = _parts(block_mask)
        known = self._made.get(block_mask)
        if known is not None:
            then, made = known
            if all(a is b or (type(a) is int and a == b) for a, b in zip(then, of, strict=True)):
                return made
        # A later call may be one of training, whose backward takes no tensors of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            made = make(block_mask)
        self._made[block_mask] = of, made
        return made


def _parts(block_mask: BlockMask) -> list[Any]:
    """The objects and numbers that a mask consists of. Numbers count by value."""
    try:  # a mod may hold its mask, which would then never go
        mod: Any = weakref.ref(block_mask.mask_mod)
    except TypeError:
        mod = block_mask.mask_mod
    lists = (
        block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks,
        block_mask.full_kv_indices,
    )  # fmt: skip
    versions = [0 if t is None or t.is_inference() else t._version for t in lists]
    return [mod, *lists, *versions, *block_mask.seq_lengths, *block_mask.BLOCK_SIZE]


_known: Kept[Blocks] = Kept()


def blocks_of(block_mask: BlockMask) -> Blocks:
    """The lists of a BlockMask, and the bits of its partial blocks by its mask_mod. They are made
    once and kept beside it, until it is made of other lists or another mask_mod.

    Args:
        block_mask: of ``create_block_mask()`` or ``BlockMask.from_kv_blocks()``, with blocks of a
            multiple of 64 rows and of 64 keys.

    Returns:
        Blocks on the mask's device; batch and heads are those of the mask.

    Raises:
        InvalidArgumentError: block_mask is neither a BlockMask nor Blocks.
        UnsupportedError: its blocks are of another size.
    """
    if not isinstance(block_mask, BlockMask):
        raise InvalidArgumentError(
            f"block_mask is a {type(block_mask).__name__}, neither a BlockMask nor Blocks"
        )
    return _known.get(block_mask, _read)


def _clamped(counts: Tensor | None, like: Tensor) -> Tensor:
    if counts is None:
        return torch.zeros_like(like)
    return counts.to(torch.int64).clamp(min=0)


def _read(block_mask: BlockMask) -> Blocks:
    height, width = block_mask.BLOCK_SIZE
    if height % 64 or width % 64:
        raise UnsupportedError(
            f"block_mask has blocks of {height} rows and {width} keys; both have to be"
            f" multiples of 64"
        )
    indices = block_mask.kv_indices
    room = indices.shape[3]
    counts = block_mask.kv_num_blocks.to(torch.int64)
    partial = _clamped(counts, counts).clamp(max=room)
    full = _clamped(block_mask.full_kv_num_blocks, counts)
    of_full = block_mask.full_kv_indices
    full = full.clamp(max=0 if of_full is None else of_full.shape[3])
    most = int((partial + full).max()) if counts.numel() else 0
    # The full ones come behind the partial ones.
    place = torch.arange(most, device=indices.device).expand(*indices.shape[:3], most)
    columns = torch.zeros_like(place)
    if room:
        columns = indices.to(torch.int64).gather(-1, place.clamp(max=room - 1))
    if of_full is not None and of_full.shape[3]:
        behind = (place - partial[..., None]).clamp(0, of_full.shape[3] - 1)
        columns = torch.where(
            place < partial[..., None], columns, of_full.to(torch.int64).gather(-1, behind)
        )
    lists = torch.cat([partial[..., None], full[..., None], columns], -1).to(torch.int32)
    slots = int(partial.max()) if counts.numel() else 0
    bits = torch.zeros(
        (*counts.shape, slots, height, width // 32), dtype=torch.int32, device=indices.device
    )
    live = torch.arange(slots, device=indices.device) < partial[..., None]
    at = live.nonzero()  # batch, head, row of blocks, slot
    step = max(1, _AT_ONCE // (height * width))
    for first in range(0, at.shape[0], step):
        own = at[first : first + step]
        bits[tuple(own.T)] = _words(block_mask, own, columns[tuple(own.T)], height, width)
    return Blocks(lists.contiguous(), bits)


def _words(block_mask: BlockMask, at: Tensor, columns: Tensor, height: int, width: int) -> Tensor:
    """int32 [blocks, height, width / 32]: what mask_mod shows of some blocks."""
    rows, keys = block_mask.seq_lengths
    device = at.device
    i = (at[:, 2, None] * height + torch.arange(height, device=device)).clamp(max=max(rows - 1, 0))
    j = (columns[:, None] * width + torch.arange(width, device=device)).clamp(0, max(keys - 1, 0))
    mod: Any = block_mask.mask_mod
    for dims in ((None, None, None, 0), (None, None, 0, None), (0, 0, 0, 0)):
        mod = torch.vmap(mod, in_dims=dims)
    shown = mod(at[:, 0], at[:, 1], i, j).to(torch.int64)
    powers = torch.ones((), dtype=torch.int64, device=device) << torch.arange(32, device=device)
    words = (shown.reshape(at.shape[0], height, width // 32, 32) * powers).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
