# SPDX-License-Identifier: MIT OR Apache-2.0
"""In place of ``torch.nn.attention.flex_attention.flex_attention``: its block masks.

A BlockMask is read once, when it is first used: where each key is seen by one or two intervals of
rows it runs as spans, else as a mask of a byte for each pair. Score mods are refused in this
version.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, create_mask

from .._errors import InvalidArgumentError, UnsupportedError
from ..torch import attention

__all__ = ["Visible", "flex_attention", "visible_of"]

#: Elements of a mask that are looked at together.
_AT_ONCE = 1 << 26


class Visible(NamedTuple):
    """What attention() takes for a BlockMask; one of the two.

    Attributes:
        spans: int32 [B, H, Sk, 2 or 4], of a mask of one or two intervals of rows a key.
        keep: bool [B, H, Sq, Sk], of all others.
    """

    spans: Tensor | None = None
    keep: Tensor | None = None


_known: weakref.WeakKeyDictionary[BlockMask, Visible] = weakref.WeakKeyDictionary()


def _listed(counts: Tensor | None, indices: Tensor | None, like: Tensor) -> Tensor:
    """Which blocks lists name, bool [B, H, blocks of rows, blocks of keys]."""
    columns = like.shape[3]
    if counts is None or indices is None:
        return torch.zeros(like.shape, dtype=torch.bool, device=like.device)
    place = torch.arange(columns, device=like.device)
    wanted = torch.where(place < counts[..., None], indices.to(torch.int64), columns)
    shown = torch.zeros((*like.shape[:3], columns + 1), dtype=torch.bool, device=like.device)
    return shown.scatter(-1, wanted, True)[..., :columns]


def _pairs(block_mask: BlockMask, begin: int, end: int) -> Tensor:
    """What the mask shows of the keys from begin to end, bool [B, H, Sq, end - begin]."""
    like = block_mask.kv_indices
    rows, _ = block_mask.seq_lengths
    height, width = block_mask.BLOCK_SIZE
    device = like.device
    at = torch.arange(rows, device=device) // height
    columns = torch.arange(begin, end, device=device) // width

    def spread(blocks: Tensor) -> Tensor:
        return blocks[:, :, at][..., columns]

    def mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        shown: Tensor = block_mask.mask_mod(b, h, i, j + begin)
        return shown

    partial = _listed(block_mask.kv_num_blocks, like, like)
    full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, like)
    shown = create_mask(mod, like.shape[0], like.shape[1], rows, end - begin, device=device)
    return (spread(partial) & shown) | spread(full)


def visible_of(block_mask: BlockMask) -> Visible:
    """What attention() takes in the place of a BlockMask. It is made once and kept beside it.

    ``torch.compile(fullgraph=True)`` cannot look into a BlockMask: call this before.

    Args:
        block_mask: of ``create_block_mask()`` or ``BlockMask.from_kv_blocks()``. Its lists say
            which blocks are shown, and its ``mask_mod`` which pairs of a partial block.

    Returns:
        Visible, on the mask's device. B and H are those of the mask.

    Raises:
        InvalidArgumentError: block_mask is no BlockMask.
    """
    if not isinstance(block_mask, BlockMask):
        raise InvalidArgumentError(f"block_mask is a {type(block_mask).__name__}, not a BlockMask")
    made = _known.get(block_mask)
    if made is None:
        with torch.no_grad():
            made = _read(block_mask)
        _known[block_mask] = made
    return made


def _intervals(shown: Tensor) -> Tensor | None:
    """int32 [B, H, keys, 4] of a mask [B, H, Sq, keys]: the first and the last interval of rows of
    each key, the same where there is one. None where a key has more than two. As masks.from_mask(),
    but where the mask lies."""
    edge = shown.new_zeros((*shown.shape[:2], 1, shown.shape[3]))
    before, here = torch.cat([edge, shown], 2), torch.cat([shown, edge], 2)
    begins, ends = here & ~before, before & ~here
    if shown.shape[3] and int(begins.sum(2).max()) > 2:
        return None
    some = begins.any(2)
    bounds = []
    for of in (begins, ends):
        marks = of.to(torch.uint8)
        bounds.append((marks.argmax(2), some * (shown.shape[2] - marks.flip(2).argmax(2))))
    (first, last), (first_end, last_end) = bounds
    return torch.stack([first, first_end, last, last_end], -1).to(torch.int32)


def _read(block_mask: BlockMask) -> Visible:
    like = block_mask.kv_indices
    rows, keys = block_mask.seq_lengths
    step = max(1, _AT_ONCE // max(1, like.shape[0] * like.shape[1] * rows))
    starts = range(0, keys, step)
    parts = [] if keys else [like.new_zeros((*like.shape[:2], 0, 4), dtype=torch.int32)]
    for begin in starts:
        part = _intervals(_pairs(block_mask, begin, min(begin + step, keys)))
        if part is None:
            pairs = [_pairs(block_mask, n, min(n + step, keys)) for n in starts]
            return Visible(keep=torch.cat(pairs, -1))
        parts.append(part)
    spans = torch.cat(parts, 2)
    one = bool((spans[..., :2] == spans[..., 2:]).all())
    return Visible(spans=spans[..., :2].contiguous() if one else spans)


def _check(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}, not a tensor")
        if t.is_nested:
            raise UnsupportedError(f"{name} is a nested tensor")
        if t.dim() != 4:
            raise InvalidArgumentError(f"{name} has {t.dim()} dimensions, not 4")
    heads, of_keys = query.shape[1], key.shape[1]
    if not enable_gqa and heads != of_keys:
        raise InvalidArgumentError(
            f"query has {heads} heads where key has {of_keys}; enable_gqa=True lets key have fewer"
        )


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: flex.AuxRequest | None = None,
) -> Any:
    """softmax(scale query key^T) value under a BlockMask, as torch's function of that name.

    Args:
        query: [B, Hq, L, E], f32, f16 or bf16, on the CPU or a CUDA device.
        key: [B, Hkv, S, E], of query's type.
        value: [B, Hkv, S, Ev], of query's type.
        score_mod: None; all others are refused in this version.
        block_mask: of the lengths L and S, for B or 1 entries and Hq or 1 heads. What it shows is
            read at its first call: a mask_mod that shows something else later is not seen.
        scale: 1 / sqrt(E) by default.
        enable_gqa: Hkv may be less than Hq, which it divides.
        return_lse: also return lse, f32 [B, Hq, L].
        kernel_options: without effect.
        return_aux: AuxRequest(lse=True), the newer way to ask for lse; max_scores is refused.

    Returns:
        [B, Hq, L, Ev], of query's type; a row that sees nothing is 0. With return_lse (o, lse),
        with return_aux (o, AuxOutput). Unlike torch's, lse is not differentiable.

    Raises:
        InvalidArgumentError: sizes or types do not fit, or block_mask is of other lengths.
        UnsupportedError: a score_mod, max_scores, float64.
    """
    if score_mod is not None:
        name = getattr(score_mod, "__name__", type(score_mod).__name__)
        raise UnsupportedError(
            f"score_mod is {name}; this version takes none: attention() of tandem_attention.torch"
            f" has biases, slopes and softcap as arguments"
        )
    if return_aux is not None:
        if return_lse:
            raise InvalidArgumentError("return_lse and return_aux exclude each other")
        if return_aux.max_scores:
            raise UnsupportedError("return_aux asks for max_scores, which this version has not")
    _check(query, key, value, enable_gqa)
    if query.shape[0] != key.shape[0] == 1:
        key, value = (t.expand(query.shape[0], *t.shape[1:]) for t in (key, value))
    visible = Visible()
    if block_mask is not None:
        visible = visible_of(block_mask)
        lengths = tuple(block_mask.seq_lengths)
        if lengths != (query.shape[2], key.shape[2]):
            raise InvalidArgumentError(
                f"block_mask is of {lengths[0]} queries and {lengths[1]} keys; query has"
                f" {query.shape[2]} and key {key.shape[2]}"
            )
        batch, heads = block_mask.kv_indices.shape[:2]
        if batch not in (1, query.shape[0]) or heads not in (1, query.shape[1]):
            raise InvalidArgumentError(
                f"block_mask is of {batch} entries and {heads} heads; query has {query.shape[0]}"
                f" and {query.shape[1]}"
            )
    o, lse = attention(
        query, key, value, spans=visible.spans, keep=visible.keep, scale=scale, return_lse=True
    )
    if return_aux is not None:
        return o, flex.AuxOutput(lse=lse if return_aux.lse else None)
    return (o, lse) if return_lse else o
