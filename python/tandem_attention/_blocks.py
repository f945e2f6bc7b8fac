# SPDX-License-Identifier: MIT OR Apache-2.0
"""Block lists: what attention() takes as block_mask. For masks.py and the frameworks."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._errors import InvalidArgumentError

__all__ = ["Blocks", "parts_of"]


class Blocks(NamedTuple):
    """Lists of the blocks of a mask that are visible, as tandem_args.blocks and block_bits.

    Attributes:
        lists: int32 [batch, heads, rows of blocks, 2 + width]: of each row of blocks how many are
            partial and how many full, then the numbers of their columns, the partial ones first.
            batch divides B; heads is Hq, Hk or 1.
        bits: int32 [batch, heads, rows of blocks, blocks, block_q, block_kv / 32]: of the first
            ``blocks`` partial ones which pairs are visible, bit n of a word that of its key n. If
            ``blocks`` is 0 partial ones are visible whole; the last two sizes say how large blocks
            are. block_q and block_kv are multiples of 64.
    """

    lists: Any
    bits: Any


def parts_of(block_mask: Any) -> tuple[Any, Any]:
    """lists and bits of a block_mask; None and None of None."""
    if block_mask is None:
        return None, None
    if not isinstance(block_mask, Blocks):
        raise InvalidArgumentError(
            f"block_mask is a {type(block_mask).__name__}, not a tandem_attention.masks.Blocks"
        )
    return block_mask
