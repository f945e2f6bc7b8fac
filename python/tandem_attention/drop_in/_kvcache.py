# SPDX-License-Identifier: MIT OR Apache-2.0
"""flash_attn_with_kvcache(): append to a cache of keys, then attend to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidArgumentError, UnsupportedError
from .._options import whole_number
from ..torch._kernels import check_whole_numbers, side_type
from ._flash import Settings, dense, theirs


def gather_pages(cache: Tensor, table: Tensor, lengths: Tensor, keys: int) -> Tensor:
    """The pages of each sequence side by side: a copy, [B, pages x page size, Hk, D].

    Args:
        cache: [blocks, page size, Hk, D].
        table: int [B, pages of a sequence]. Entries behind a sequence's end are not read.
        lengths: int [B], keys of each sequence.
        keys: the most keys that a sequence may have.
    """
    if cache.dim() != 4 or table.dim() != 2:
        raise InvalidArgumentError(
            "block_table is [B, pages]; with it k and v are [blocks, page size, H, D]"
        )
    page = cache.shape[1]
    used = min(table.shape[1], -(-keys // page))
    first = torch.arange(0, used * page, page, device=table.device)
    index = table[:, :used].masked_fill(first >= lengths[:, None], 0)
    return cache[index.long()].flatten(1, 2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, at: Tensor, interleaved: bool) -> Tensor:
    """x [B, S, H, D] turned by the rows at [B, S] of cos and sin [positions, R / 2]."""
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise InvalidArgumentError(f"rotary_cos turns {2 * half} features; D is {x.shape[-1]}")
    wide = side_type(x)
    c, s = (t[at][:, :, None].to(wide) for t in (cos, sin))
    turned, rest = x[..., : 2 * half].to(wide), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _ends(t: Tensor) -> tuple[int, int] | None:
    """The least and the largest number of t, read on the host. None where there is none, or while
    a CUDA graph is captured, where nothing can be read: the caller answers for them then."""
    if not t.numel() or (t.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    least, most = torch.stack(t.aminmax()).tolist()
    return least, most


def _check_room(lengths: Tensor, new: int, room: int, holder: str) -> None:
    """That every sequence fits; lengths count the new rows."""
    ends = _ends(lengths)
    if ends and ends[0] < new:
        raise InvalidArgumentError(f"a sequence has {ends[0] - new} keys in {holder}")
    if ends and ends[1] > room:
        raise InvalidArgumentError(f"a sequence has {ends[1]} keys; {holder} has room for {room}")


def _check_entries(what: str, entries: Tensor, count: int) -> None:
    """That new rows go into the cache, which has so many entries or pages."""
    for number in _ends(entries) or ():
        if not 0 <= number < count:
            raise InvalidArgumentError(f"{what} {number}; the cache has {count} of them")


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention to cached keys, without gradients. k and v are appended to the cache in place.

    Args:
        q: [B, Sq, Hq, D].
        k_cache, v_cache: [Bc, Sc, Hk, D], or with block_table [blocks, page size, Hk, D].
        k, v: [B, Sn, Hk, D], written behind cache_seqlens keys. The cache must have room.
        rotary_cos, rotary_sin: [positions, R / 2]: q and k are turned by their position first, in
            operations of their own. Without causal and window all of q is at cache_seqlens.
        cache_seqlens: int or int32 [B], keys in the cache before k; all of them by default.
        cache_batch_idx: int32 [B], the entry of the cache for each of q's. Those entries are
            copied.
        cache_leftpad: int32 [B], keys before that index are hidden.
        block_table: int32 [B, pages of a sequence]. The pages are copied side by side, and the
            lengths are read on the host.
        softmax_scale, causal, window_size, softcap, alibi_slopes: as in flash_attn_func(), with the
            diagonal at the sequence's last key.
        rotary_interleaved: pairs are features 2 i and 2 i + 1, else i and i + R / 2.
        num_splits: not read; the planner splits keys by itself.
        return_softmax_lse: also return lse, f32 [B, Hq, Sq], plus infinity where a row has no key.

    Returns:
        out [B, Sq, Hq, D]; with return_softmax_lse (out, softmax_lse).
    """
    with torch.no_grad():
        return _with_kvcache(
            q, k_cache, v_cache, k, v, (rotary_cos, rotary_sin), cache_seqlens, cache_batch_idx,
            cache_leftpad, block_table, rotary_interleaved, alibi_slopes, return_softmax_lse,
            Settings(0.0, softmax_scale, causal, window_size, softcap),
        )  # fmt: skip


def _with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None,
    rotary: tuple[Tensor | None, Tensor | None], cache_seqlens: int | Tensor | None,
    batch_idx: Tensor | None, leftpad: Tensor | None, table: Tensor | None, interleaved: bool,
    alibi: Tensor | None, return_lse: bool, settings: Settings,
) -> Any:  # fmt: skip
    batch, rows = q.shape[:2]
    if (k is None) != (v is None):
        raise InvalidArgumentError("k and v go together")
    if k is not None and cache_seqlens is None:
        raise InvalidArgumentError("k and v need cache_seqlens, which says where they go")
    if (rotary[0] is None) != (rotary[1] is None):
        raise InvalidArgumentError("rotary_cos and rotary_sin go together")
    if rotary[0] is not None and k is None:
        raise InvalidArgumentError("rotary_cos and rotary_sin need k and v")
    if table is not None and batch_idx is not None:
        raise UnsupportedError("block_table excludes cache_batch_idx")
    if table is not None and leftpad is not None:
        raise UnsupportedError("block_table excludes cache_leftpad")
    if batch_idx is None and table is None and k_cache.shape[0] < batch:
        raise InvalidArgumentError(
            f"k_cache has {k_cache.shape[0]} batch entries where q has {batch}"
        )
    page = k_cache.shape[1]
    room = page if table is None else table.shape[1] * page
    lengths = cache_seqlens
    if lengths is None:
        lengths = room
    if not isinstance(lengths, Tensor):
        lengths = whole_number("cache_seqlens", lengths)
        lengths = torch.full((batch,), lengths, dtype=torch.int32, device=q.device)
    for name, t in (
        ("cache_seqlens", lengths), ("cache_batch_idx", batch_idx), ("block_table", table),
    ):  # fmt: skip
        if t is not None:
            check_whole_numbers(name, t)
    if lengths.shape != (batch,):
        raise InvalidArgumentError(f"cache_seqlens is {list(lengths.shape)}, not [{batch}]")
    entry = torch.arange(batch, device=q.device) if batch_idx is None else batch_idx.long()

    new_rows = 0 if k is None else k.shape[1]
    if new_rows or table is not None:
        holder = "the cache" if table is None else "block_table"
        _check_room(lengths + new_rows, new_rows, room, holder)
    if k is not None:
        assert v is not None
        for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
            shape = (*k.shape[:2], *cache.shape[2:])
            if new.dtype != cache.dtype or new.shape != shape:
                raise InvalidArgumentError(
                    f"{name} is {new.dtype} {list(new.shape)}; its cache takes {cache.dtype}"
                    f" {list(shape)}"
                )
        at = lengths.long()[:, None] + torch.arange(k.shape[1], device=q.device)
        cos, sin = rotary
        if cos is not None and sin is not None:
            bounded = settings.causal or any(n >= 0 for n in settings.window_size)
            steps = torch.arange(rows, device=q.device) * int(bounded)
            q = _rotate(q, cos, sin, lengths.long()[:, None] + steps, interleaved)
            k = _rotate(k, cos, sin, at, interleaved)
        lengths = lengths + new_rows
        if table is None:
            if batch_idx is not None:
                _check_entries("cache_batch_idx has the entry", entry, k_cache.shape[0])
            slot = (entry[:, None], at)
        else:
            pages = table.long().gather(1, at // page)
            _check_entries("block_table has the page", pages, k_cache.shape[0])
            slot = (pages, at % page)
        before = k_cache[slot], v_cache[slot]
        k_cache[slot], v_cache[slot] = k, v

    at_hand = entry if batch_idx is not None else None
    try:
        return _attend(
            q, k_cache, v_cache, at_hand, leftpad, table, lengths, room, alibi, return_lse, settings
        )
    except Exception:
        if k is not None:  # what attention refuses leaves the cache as it was
            k_cache[slot], v_cache[slot] = before
        raise


def _attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, entry: Tensor | None, leftpad: Tensor | None,
    table: Tensor | None, lengths: Tensor, room: int, alibi: Tensor | None, return_lse: bool,
    settings: Settings,
) -> Any:  # fmt: skip
    """Attention to a cache that has the new rows."""
    if table is not None:
        k_cache, v_cache = (gather_pages(t, table, lengths, room) for t in (k_cache, v_cache))
    elif entry is not None:
        k_cache, v_cache = (t.index_select(0, entry) for t in (k_cache, v_cache))
    else:
        k_cache, v_cache = k_cache[: q.shape[0]], v_cache[: q.shape[0]]
    more: dict[str, Any] = {"lengths_kv": lengths}
    if leftpad is not None:
        keys = torch.arange(k_cache.shape[1], device=q.device)
        more["keep"] = (keys >= leftpad[:, None])[:, None, None]
    made = dense(q, k_cache, v_cache, settings, alibi, **more)
    return (made.out, theirs(made.lse)) if return_lse else made.out
