# SPDX-License-Identifier: MIT OR Apache-2.0
"""In place of ``torch.nn.attention.flex_attention.flex_attention``.

A BlockMask is read once, when it is first used: where each key is seen by one or two intervals of
rows it runs as spans, else as lists of blocks with the bits of partial ones, or, with blocks that
are no multiples of 64, as a mask of a byte for each pair. A score mod is traced at each call: one
that adds to the score, multiplies it by a number or caps it runs as bias, slopes, distance bias,
scale and softcap; all others are refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask, create_mask

from .._blocks import Blocks
from .._errors import InvalidArgumentError, UnsupportedError
from ..torch import attention
from ..torch._block_mask import Kept, blocks_of
from . import _score_mod
from ._visible import spans_of

__all__ = ["Visible", "flex_attention", "visible_of"]

#: Elements of a mask that are looked at together.
_AT_ONCE = 1 << 26


class Visible(NamedTuple):
    """What attention() takes for a BlockMask; one of the three.

    Attributes:
        spans: int32 [B, H, Sk, 2 or 4], of a mask of one or two intervals of rows a key.
        blocks: lists and bits, of all others with blocks of multiples of 64.
        keep: bool [B, H, Sq, Sk], of the rest.
    """

    spans: Tensor | None = None
    keep: Tensor | None = None
    blocks: Blocks | None = None


_known: Kept[Visible] = Kept()
_causal: Kept[bool] = Kept()


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
    """What attention() takes in the place of a BlockMask. It is made once and kept beside it, until
    it is made of other lists or another mask_mod.

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
    return _known.get(block_mask, _read)


def _read(block_mask: BlockMask) -> Visible:
    like = block_mask.kv_indices
    rows, keys = block_mask.seq_lengths
    step = max(1, _AT_ONCE // max(1, like.shape[0] * like.shape[1] * rows))
    if not keys:
        return Visible(spans=like.new_zeros((*like.shape[:2], 0, 2), dtype=torch.int32))
    spans = spans_of(lambda begin, end: _pairs(block_mask, begin, end), keys, step)
    if spans is not None:
        return Visible(spans=spans)
    if not any(size % 64 for size in block_mask.BLOCK_SIZE):
        return Visible(blocks=blocks_of(block_mask))
    pairs = [_pairs(block_mask, n, min(n + step, keys)) for n in range(0, keys, step)]
    return Visible(keep=torch.cat(pairs, -1))


def _read_is_causal(block_mask: BlockMask) -> bool:
    visible = visible_of(block_mask)
    if visible.spans is not None:
        begins, ends = visible.spans[..., 0::2], visible.spans[..., 1::2]
        place = torch.arange(begins.shape[2], device=begins.device)[:, None]
        return not bool(((begins < place) & (begins < ends)).any())
    like = block_mask.kv_indices
    rows, keys = block_mask.seq_lengths
    step = max(1, _AT_ONCE // max(1, like.shape[0] * like.shape[1] * rows))
    place = torch.arange(rows, device=like.device)[:, None]
    for begin in range(0, keys, step):
        end = min(begin + step, keys)
        behind = torch.arange(begin, end, device=like.device) > place
        if bool((_pairs(block_mask, begin, end) & behind).any()):
            return False
    return True


def _is_causal(block_mask: BlockMask | None) -> bool:
    """Whether no row sees a key behind it. Read once, as the mask is."""
    if block_mask is None:
        return False
    return _causal.get(block_mask, _read_is_causal)


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
    """softmax(score_mod(scale query key^T)) value under a BlockMask, as torch's function.

    Args:
        query: [B, Hq, L, E], f32, f16 or bf16, on the CPU or a CUDA device; f64 on the CPU.
        key: [B, Hkv, S, E], of query's type.
        value: [B, Hkv, S, Ev], of query's type.
        score_mod: of (score, b, h, q_idx, kv_idx), where it is a sum of the score, or of
            ``cap * tanh(score / cap)``, or of a number times the score, and of what the score is no
            part of: tensors read at the indices, functions of the distance, numbers, and minus
            infinity by a condition. Tensors that it reads get their gradients.
        block_mask: of the lengths L and S, for B or 1 entries and Hq or 1 heads. What it shows is
            read at its first call: a mask_mod that shows something else later is not seen.
        scale: 1 / sqrt(E) by default.
        enable_gqa: Hkv may be less than Hq, which it divides.
        return_lse: also return lse, f32 [B, Hq, L].
        kernel_options: without effect.
        return_aux: AuxRequest(lse=True), the newer way to ask for lse; max_scores is refused.

    Returns:
        [B, Hq, L, Ev], of query's type; a row that sees nothing is 0. With return_lse (o, lse),
        with return_aux (o, AuxOutput). lse is differentiable, too.

    Raises:
        InvalidArgumentError: sizes or types do not fit, or block_mask is of other lengths.
        UnsupportedError: a score_mod that is no such sum or beside float64, max_scores, float64 on
            CUDA.
    """
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
    inputs: dict[str, Any] = {"scale": scale}
    if score_mod is not None:
        if query.dtype == torch.float64:
            raise UnsupportedError("query is float64: what score_mod adds is formed in float32")
        inputs = _score_mod.lower(
            score_mod, query, key,
            query.shape[-1] ** -0.5 if scale is None and query.shape[-1] else scale or 0.0,
            lambda: _is_causal(block_mask),
        )  # fmt: skip
    o, lse = attention(
        query, key, value, spans=visible.spans, keep=visible.keep, block_mask=visible.blocks,
        return_lse=True, **inputs,
    )  # fmt: skip
    if return_aux is not None:
        return o, flex.AuxOutput(lse=lse if return_aux.lse else None)
    return (o, lse) if return_lse else o
