# SPDX-License-Identifier: MIT OR Apache-2.0
"""flash_attn_with_kvcache(): append to a cache of keys, then attend to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidArgumentError, UnsupportedError
from .._options import whole_number
from ..torch._eager import is_watched
from ..torch._kernels import check_whole_numbers, side_type
from ._flash import Settings, dense, theirs


def gather_pages(cache: Tensor, table: Tensor, lengths: Tensor, keys: int) -> Tensor:
    """The pages of each sequence side by side: a copy, [B, pages x page size, Hk, D].

    Args:
        cache: [blocks, page size, Hk, D].
        table: int [B, pages of a sequence]. Entries behind a sequence's end are not read.
        lengths: int [B], keys of each sequence.
        keys: the most keys that a sequence may have; 0: as many as the table has room for.
    """
    _check_table(cache, table, lengths)
    index = _pages_in_use(table, lengths, cache.shape[1], keys)
    if _is_readable(index):
        _check_entries("block_table has the page", _ends(index)[0], cache.shape[0])
    else:  # a negative one would count from the last page
        index = index.masked_fill(index < 0, cache.shape[0])
    return cache[index].flatten(1, 2)


def _check_table(cache: Tensor, table: Tensor, lengths: Tensor) -> None:
    if cache.dim() != 4 or table.dim() != 2:
        raise InvalidArgumentError(
            "block_table is [B, pages]; with it k and v are [blocks, page size, H, D]"
        )
    check_whole_numbers("block_table", table)
    if not cache.shape[1]:
        raise InvalidArgumentError(f"a cache of {list(cache.shape)} has no keys in a page")
    if table.shape[0] != lengths.shape[0]:
        raise InvalidArgumentError(
            f"block_table is {list(table.shape)}; there are {lengths.shape[0]} sequences"
        )


def _pages_in_use(table: Tensor, lengths: Tensor, page: int, keys: int) -> Tensor:
    """int64 [B, pages], as gather_pages() reads them: 0 behind a sequence's end."""
    used = min(table.shape[1], -(-keys // page)) if keys else table.shape[1]
    first = torch.arange(0, used * page, page, device=table.device)
    return table[:, :used].masked_fill(first >= lengths[:, None], 0).long()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, at: Tensor, interleaved: bool) -> Tensor:
    """x [B, S, H, D] turned by the rows at [B, S] of cos and sin [positions, R / 2]."""
    half = cos.shape[-1]
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


def _is_readable(t: Tensor) -> bool:
    """Whether the host may look at numbers of t without waiting for a device."""
    return t.is_cpu and type(t) is Tensor and not (torch.compiler.is_compiling() or is_watched())


def _ends(*tensors: Tensor) -> list[tuple[int, int] | None]:
    """The least and the largest number of each tensor, all of them read on the host at once. None
    where there is none, or while a CUDA graph is captured, where nothing can be read: the caller
    answers for them then."""
    some = [t for t in tensors if t.numel() and not t.is_meta]
    if not some or (some[0].is_cuda and torch.cuda.is_current_stream_capturing()):
        return [None] * len(tensors)
    pairs = torch.stack([end.long() for t in some for end in t.aminmax()]).tolist()
    read = iter(zip(pairs[::2], pairs[1::2], strict=True))
    return [next(read) if t.numel() and not t.is_meta else None for t in tensors]


def _check_room(ends: tuple[int, int] | None, new: int, room: int, holder: str) -> None:
    """That every sequence fits; ends are of lengths that count the new rows."""
    if ends and ends[0] < new:
        raise InvalidArgumentError(f"a sequence has {ends[0] - new} keys in {holder}")
    if ends and ends[1] > room:
        raise InvalidArgumentError(f"a sequence has {ends[1]} keys; {holder} has room for {room}")


def _check_entries(what: str, ends: tuple[int, int] | None, count: int) -> None:
    """That a cache of so many entries or pages has those between ends."""
    for number in ends or ():
        if not 0 <= number < count:
            raise InvalidArgumentError(f"{what} {number}; the cache has {count} of them")


def _check_tensors(given: dict[str, Any], q: Any) -> None:
    """That all that is not None is a tensor on q's device."""
    for name, t in given.items():
        if t is None:
            continue
        if not isinstance(t, Tensor):
            raise InvalidArgumentError(f"{name} is a {type(t).__name__}, not a tensor")
        if t.device != q.device:
            raise InvalidArgumentError(f"{name} lies on {t.device}, q on {q.device}")


def _check_caches(k_cache: Tensor, v_cache: Tensor, new: bool) -> None:
    for name, t in (("k_cache", k_cache), ("v_cache", v_cache)):
        if t.dim() != 4:
            raise InvalidArgumentError(f"{name} has {t.dim()} dimensions, not 4")
        if not new:
            continue
        if t.is_inference() and not torch.is_inference_mode_enabled():
            raise InvalidArgumentError(
                f"{name} was made in inference mode, and can be written to there alone"
            )
        if any(size > 1 and not stride for size, stride in zip(t.shape, t.stride(), strict=True)):
            raise InvalidArgumentError(
                f"{name} is expanded: entries that share memory cannot be written to"
            )
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise InvalidArgumentError(
            f"v_cache is {list(v_cache.shape)} where k_cache is {list(k_cache.shape)}"
        )


def _check_rotary(cos: Tensor, sin: Tensor, width: int, last: int | None) -> None:
    """last: the largest position that a row is turned by; None where it is not known."""
    if cos.dim() != 2 or cos.shape != sin.shape:
        raise InvalidArgumentError(
            f"rotary_cos is {list(cos.shape)} and rotary_sin {list(sin.shape)}; both are"
            f" [positions, R / 2]"
        )
    if not (cos.is_floating_point() and sin.is_floating_point()):
        raise InvalidArgumentError(f"rotary_cos is {cos.dtype} and rotary_sin {sin.dtype}")
    if 2 * cos.shape[1] > width:
        raise InvalidArgumentError(f"rotary_cos turns {2 * cos.shape[1]} features; D is {width}")
    if last is not None and last >= cos.shape[0]:
        raise InvalidArgumentError(
            f"a row is at position {last}; rotary_cos has {cos.shape[0]} positions"
        )


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
            copied, and the numbers are read on the host.
        cache_leftpad: int32 [B], keys before that index are hidden.
        block_table: int32 [B, pages of a sequence]. The pages are copied side by side, and the
            numbers are read on the host.
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
    named = {
        "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v, "rotary_cos": rotary[0],
        "rotary_sin": rotary[1], "cache_batch_idx": batch_idx, "cache_leftpad": leftpad,
        "block_table": table, "alibi_slopes": alibi,
        "cache_seqlens": cache_seqlens if isinstance(cache_seqlens, Tensor) else None,
    }  # fmt: skip
    if not isinstance(q, Tensor):
        raise InvalidArgumentError(f"q is a {type(q).__name__}, not a tensor")
    _check_tensors(named, q)
    if q.dim() != 4:
        raise InvalidArgumentError(f"q has {q.dim()} dimensions; [B, S, H, D] has 4")
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
    _check_caches(k_cache, v_cache, k is not None)
    if batch_idx is None and table is None and k_cache.shape[0] < batch:
        raise InvalidArgumentError(
            f"k_cache has {k_cache.shape[0]} batch entries where q has {batch}"
        )
    page = k_cache.shape[1]
    room = page if table is None else table.shape[-1] * page
    lengths = cache_seqlens
    if lengths is None:
        lengths = room
    if not isinstance(lengths, Tensor):
        lengths = whole_number("cache_seqlens", lengths)
        lengths = torch.full((batch,), lengths, dtype=torch.int32, device=q.device)
    for name, t in (
        ("cache_seqlens", lengths), ("cache_batch_idx", batch_idx), ("cache_leftpad", leftpad),
    ):  # fmt: skip
        if t is None:
            continue
        check_whole_numbers(name, t)
        if t.shape != (batch,):
            raise InvalidArgumentError(f"{name} is {list(t.shape)}, not [{batch}]")
    if table is not None:
        _check_table(k_cache, table, lengths)
    entry = torch.arange(batch, device=q.device) if batch_idx is None else batch_idx.long()

    new_rows = 0
    if k is not None:
        assert v is not None
        new_rows = k.shape[1] if k.dim() > 1 else 0
        for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
            shape = (batch, new_rows, *cache.shape[2:])
            if new.dtype != cache.dtype or new.shape != shape:
                raise InvalidArgumentError(
                    f"{name} is {new.dtype} {list(new.shape)}; its cache takes {cache.dtype}"
                    f" {list(shape)}"
                )
    lengths = lengths.long() + new_rows
    holder = "the cache" if table is None else "block_table"
    ends: tuple[int, int] | None = None
    pages: Tensor | None = None
    if table is not None:
        pages = _pages_in_use(table, lengths, page, room)
        ends, of_pages = _ends(lengths, pages)
        _check_room(ends, new_rows, room, holder)
        _check_entries("block_table has the page", of_pages, k_cache.shape[0])
    elif new_rows or batch_idx is not None or _is_readable(lengths):
        ends, of_entries = _ends(lengths, entry)
        _check_room(ends, new_rows, room, holder)
        _check_entries("cache_batch_idx has the entry", of_entries, k_cache.shape[0])

    slot: Any = None
    if k is not None:
        at = lengths[:, None] - new_rows + torch.arange(new_rows, device=q.device)
        cos, sin = rotary
        if cos is not None and sin is not None:
            bounded = settings.causal or any(n >= 0 for n in settings.window_size)
            last = max(new_rows, rows if bounded else min(rows, 1)) - 1
            if ends is not None:
                last += ends[1] - new_rows
            _check_rotary(cos, sin, q.shape[3], last)
            steps = torch.arange(rows, device=q.device) * int(bounded)
            q = _rotate(q, cos, sin, lengths[:, None] - new_rows + steps, interleaved)
            k = _rotate(k, cos, sin, at, interleaved)
        slot = (entry[:, None], at) if pages is None else (pages.gather(1, at // page), at % page)
        before = k_cache[slot], v_cache[slot]

    at_hand = entry if batch_idx is not None else None
    try:
        if k is not None and v is not None:
            k_cache[slot] = k
            v_cache[slot] = v
        return _attend(
            q, k_cache, v_cache, at_hand, leftpad, pages, lengths, alibi, return_lse, settings
        )
    except Exception:
        if k is not None:  # what attention refuses leaves the cache as it was
            k_cache[slot], v_cache[slot] = before
        raise


def _attend(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, entry: Tensor | None, leftpad: Tensor | None,
    pages: Tensor | None, lengths: Tensor, alibi: Tensor | None, return_lse: bool,
    settings: Settings,
) -> Any:  # fmt: skip
    """Attention to a cache that has the new rows."""
    if pages is not None:
        k_cache, v_cache = (t[pages].flatten(1, 2) for t in (k_cache, v_cache))
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
