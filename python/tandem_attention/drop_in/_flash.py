# SPDX-License-Identifier: MIT OR Apache-2.0
"""FlashAttention-2's conventions on Tandem, for the drop-ins that follow them.

Tensors are [B, S, H, D] or packed [total, H, D]; masks and distances are aligned bottom right.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._errors import InvalidArgumentError
from .._options import number, whole_number
from ..torch import attention
from ..torch._kernels import Inputs, check_tensors, check_whole_numbers, side_type
from ..torch._ops import refuse_tangents

_INF = float("inf")


class Settings(NamedTuple):
    """The options of a call, in FlashAttention's words."""

    dropout_p: float = 0.0
    softmax_scale: float | None = None
    causal: bool = False
    window_size: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    deterministic: bool = False
    sink: Tensor | None = None

    def keywords(self, keys: int) -> dict[str, Any]:
        """The same for attention(); keys is the greatest number of keys in a row of the batch."""
        return {
            "layout": "bshd",
            "scale": self.softmax_scale,
            "causal": "bottom_right" if self.causal else False,
            "align": "bottom_right",
            "window": window(self.window_size, self.causal, keys),
            "softcap": max(number("softcap", self.softcap), 0.0),
            "dropout": self.dropout_p,
            "deterministic": True if self.deterministic else None,
            "sink": self.sink,
        }


class Result(NamedTuple):
    """What a call gives."""

    out: Tensor
    lse: Tensor
    dmask: Tensor | None


def window(size: tuple[int, int], causal: bool, keys: int) -> tuple[int, int] | None:
    """The window (left, right) that FlashAttention makes of its argument; None is unbounded.

    A side that is negative or reaches over all keys is unbounded. A right side beside a bounded
    left one then counts as the number of keys, which hides something where Sq is above 2 Sk.
    """
    try:
        count = len(size)
    except TypeError:
        raise InvalidArgumentError(f"window_size is {size!r}, not (left, right)") from None
    if count != 2:
        raise InvalidArgumentError(f"window_size has {count} numbers, not 2")
    whole = [whole_number(f"window_size[{n}]", size[n]) for n in (0, 1)]
    left, right = (-1 if n < 0 or n >= keys else n for n in whole)
    if causal:
        right = 0
    if left < 0 and (right < 0 or causal):
        return None
    return left, keys if right < 0 else right


def draw_seed() -> int:
    """A seed from torch's CPU generator, as attention() draws one."""
    return int(torch.randint(0, 2**62, (), dtype=torch.int64, device="cpu"))


def slopes_of(alibi: Tensor | None, batch: int, heads: int) -> Tensor | None:
    """alibi_slopes as [Hq], or as [B, Hq] where batch entries differ."""
    if alibi is None:
        return None
    if not isinstance(alibi, Tensor):
        raise InvalidArgumentError(f"alibi_slopes is a {type(alibi).__name__}, not a tensor")
    if alibi.dtype != torch.float32:
        raise InvalidArgumentError(f"alibi_slopes is {alibi.dtype}, not torch.float32")
    if alibi.shape not in ((heads,), (batch, heads)):
        raise InvalidArgumentError(
            f"alibi_slopes has the shape {list(alibi.shape)}, not [{heads}] or [{batch}, {heads}]"
        )
    refuse_tangents((("alibi_slopes", alibi),))
    alibi = alibi.detach()
    if alibi.dim() == 2 and batch == 0:  # no entry has slopes, and no row asks for them
        alibi = alibi.new_zeros(heads)
    elif alibi.dim() == 2 and (batch == 1 or alibi.stride(0) == 0):
        alibi = alibi[0]
    return alibi


def theirs(lse: Tensor) -> Tensor:
    """lse with plus infinity in rows that see no key, as FlashAttention-2 has it."""
    return lse.masked_fill(lse == -_INF, _INF)


def dense(
    q: Tensor, k: Tensor, v: Tensor, settings: Settings, alibi: Tensor | None,
    *, seed: int | None = None, want_dmask: bool = False, **more: Tensor,
) -> Result:  # fmt: skip
    """[B, S, H, D]. more: lengths_q, lengths_kv and keep of attention(), with batch first.

    Returns out, lse [B, Hq, Sq] with -inf in empty rows, S_dmask [B, Hq, Sq, Sk] if wanted.
    """
    check_tensors(Inputs(q, k, v))
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != 4:
            raise InvalidArgumentError(f"{name} has {t.dim()} dimensions; [B, S, H, D] has 4")
    slopes = slopes_of(alibi, q.shape[0], q.shape[2])
    keywords = settings.keywords(k.shape[1])
    if settings.dropout_p and seed is None and (want_dmask or _each(slopes)):
        seed = draw_seed()
    # The slopes of a call are one for each head: entries with their own get calls of their own.
    parts = [slice(b, b + 1) for b in range(q.shape[0])] if _each(slopes) else [slice(None)]
    calls: list[tuple[Tensor, Tensor, Tensor, dict[str, Any]]] = []
    for offset, part in enumerate(parts):
        own: dict[str, Any] = {name: t[part] for name, t in more.items()}
        own["slope"] = slopes[offset] if slopes is not None and _each(slopes) else slopes
        calls.append((q[part], k[part], v[part], {**own, "offset": offset}))
    made = [
        attention(a, b, c, **{**keywords, **own}, seed=seed, return_lse=True)
        for a, b, c, own in calls
    ]
    dmask = None
    if want_dmask:
        dmask = torch.cat([_dmask(a, b, keywords, own, seed) for a, b, _, own in calls])
    if len(made) == 1:
        out, lse = made[0]
        return Result(out, lse, dmask)
    outs, lses = zip(*made, strict=True)
    return Result(torch.cat(outs), torch.cat(lses), dmask)


def _each(slopes: Tensor | None) -> bool:
    return slopes is not None and slopes.dim() == 2


def check_offsets(name: str, cu: Any) -> None:
    if not isinstance(cu, Tensor):
        raise InvalidArgumentError(f"{name} is a {type(cu).__name__}, not a tensor")
    if cu.dim() != 1 or not cu.shape[0]:
        raise InvalidArgumentError(f"{name} is {list(cu.shape)}, not [B + 1]")
    check_whole_numbers(name, cu)


class Packed(NamedTuple):
    """Where the sequences of a packed batch lie."""

    cu_q: Tensor  # [B + 1]
    cu_k: Tensor | None  # [B + 1]; None: k and v are [B, S, H, D] with lengths
    max_q: int  # a longer sequence is cut; 0: none is
    max_k: int
    lengths_k: Tensor | None = None  # [B]


def packed(
    q: Tensor, k: Tensor, v: Tensor, where: Packed, settings: Settings, alibi: Tensor | None,
    *, want_dmask: bool = False,
) -> Result:  # fmt: skip
    """q [total_q, Hq, D] and k, v [total_k, Hk, D], or [B, S, Hk, D] with lengths.

    Returns out, lse [Hq, total_q] with -inf in empty rows, S_dmask [B, Hq, max_q, max_k] if wanted.
    """
    check_tensors(Inputs(q, k, v))
    if q.dim() != 3:
        raise InvalidArgumentError(f"q has {q.dim()} dimensions; [total, H, D] has 3")
    check_offsets("cu_seqlens_q", where.cu_q)
    if where.cu_k is not None:
        check_offsets("cu_seqlens_k", where.cu_k)
    batch, heads = where.cu_q.shape[0] - 1, q.shape[1]
    slopes = slopes_of(alibi, batch, heads)
    keywords = settings.keywords(where.max_k)
    max_q = min(where.max_q, q.shape[0])
    if where.lengths_k is not None and where.max_k:
        where = where._replace(lengths_k=where.lengths_k.clamp(max=where.max_k))
    sides: dict[str, Any] = {"max_seq_q": max_q}
    if where.cu_k is not None:
        sides |= {"offsets_kv": where.cu_k, "max_seq_kv": min(where.max_k, k.shape[0])}
    else:
        sides["lengths_kv"] = where.lengths_k
    seed = None
    if settings.dropout_p and (want_dmask or _each(slopes)):
        seed = draw_seed()
    made = _one_by_one(q, k, v, where, keywords, slopes, seed) if _each(slopes) else None
    if made is None:
        # Where no sequence has queries, nothing is computed by the slopes of the first one.
        slope = slopes[0] if slopes is not None and _each(slopes) else slopes
        out, lse = attention(
            q, k, v, **keywords, **sides, offsets_q=where.cu_q, slope=slope, seed=seed,
            return_lse=True,
        )  # fmt: skip
        made = out, _pack_lse(lse, where.cu_q, q.shape[0])
    out, lse = made
    dmask = None
    if want_dmask:
        dmask = _packed_dmask(q, k, where, keywords, slopes, seed, max_q)
    return Result(out, lse, dmask)


def _pack_lse(lse: Tensor, cu: Tensor, total: int) -> Tensor:
    """[B, H, S] as [H, total], without a look at the numbers; -inf for rows of no sequence."""
    if lse.shape[0] == 0 or lse.shape[2] == 0:
        return lse.new_full((lse.shape[1], total), -_INF)
    row = torch.arange(total, device=cu.device, dtype=cu.dtype)
    entry = torch.searchsorted(cu[1:].contiguous(), row, right=True).clamp_(max=lse.shape[0] - 1)
    place = row - cu[entry]
    inside = (place >= 0) & (place < lse.shape[2]) & (row < cu[-1])
    rows = lse[entry, :, place.clamp(0, lse.shape[2] - 1)]
    return rows.masked_fill(~inside[:, None], -_INF).t().contiguous()


def _starts(name: str, cu: Tensor, total: int) -> list[int]:
    """Offsets on the host, each the nearest number from 0 to total, as attention() reads them."""
    starts = [min(max(n, 0), total) for n in cu.tolist()]
    for first, last in itertools.pairwise(starts):
        if last < first:
            raise InvalidArgumentError(f"{name} goes down, from {first} to {last}")
    return starts


def _one_by_one(
    q: Tensor, k: Tensor, v: Tensor, where: Packed, keywords: dict[str, Any], slopes: Any,
    seed: int | None,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """Sequences with slopes of their own. Reads the offsets on the host. None: none has queries."""
    starts = _starts("cu_seqlens_q", where.cu_q, q.shape[0])
    starts_k = None
    if where.cu_k is not None:
        starts_k = _starts("cu_seqlens_k", where.cu_k, k.shape[0])
    lengths = None if where.lengths_k is None else where.lengths_k.tolist()
    longest_q, longest_k = where.max_q or q.shape[0], where.max_k or k.shape[0]
    outs: list[Tensor] = []
    lses: list[Tensor] = []

    def fill(rows: int) -> None:
        """Rows that nothing is computed for."""
        outs.append(q.new_zeros((rows, q.shape[1], v.shape[-1])))
        lses.append(q.new_full((q.shape[1], rows), -_INF, dtype=side_type(q)))

    if starts[0] == starts[-1]:
        return None
    if starts[0]:
        fill(starts[0])
    for b, (first, last) in enumerate(itertools.pairwise(starts)):
        if first == last:
            continue
        if starts_k is not None:
            rows = slice(starts_k[b], min(starts_k[b + 1], starts_k[b] + longest_k))
            key, value = k[rows], v[rows]
        else:
            assert lengths is not None
            key, value = k[b, : lengths[b]], v[b, : lengths[b]]
        end = min(last, first + longest_q)
        o, lse = attention(
            q[None, first:end], key[None], value[None], **keywords, slope=slopes[b], seed=seed,
            offset=b, return_lse=True,
        )  # fmt: skip
        outs.append(o[0])
        lses.append(lse[0])
        if end < last:
            fill(last - end)
    if q.shape[0] > starts[-1]:
        fill(q.shape[0] - starts[-1])
    return torch.cat(outs), torch.cat(lses, 1)


# ---- S_dmask -------------------------------------------------------------------------------------
# The weights that nothing keeps, read out of attention() itself: with rows of the unit matrix for v
# an output row holds weights. The library's tests compare dropout by them.

_COLUMNS = 576  # the widest head


@torch.no_grad()
def _weights(q: Tensor, k: Tensor, keywords: dict[str, Any]) -> Tensor:
    """y [B, Hq, Sq, Sk] of q, k [B, S, H, D]."""
    keys = k.shape[1]
    if not keys:
        return q.new_zeros((q.shape[0], q.shape[2], q.shape[1], 0))
    unit = torch.eye(keys, dtype=q.dtype, device=q.device)
    parts = []
    for first in range(0, keys, _COLUMNS):
        v = unit[:, first : first + _COLUMNS]
        v = v[None, :, None, :].expand(k.shape[0], keys, k.shape[2], v.shape[1])
        parts.append(attention(q, k, v, **keywords))
    return torch.cat(parts, -1).transpose(1, 2)


@torch.no_grad()
def _dmask(
    q: Tensor, k: Tensor, keywords: dict[str, Any], more: dict[str, Any], seed: int | None
) -> Tensor:
    weights = _weights(q, k, {**keywords, **more, "dropout": 0.0})
    # Equal weights are never 0, so what is 0 among them was dropped.
    kept = _weights(
        torch.zeros_like(q[..., :8]), torch.zeros_like(k[..., :8]),
        {"layout": "bshd", "dropout": keywords["dropout"], "seed": seed, "offset": more["offset"]},
    )  # fmt: skip
    return torch.where(kept > 0, weights, -weights)


def _unpack(t: Tensor, cu: Tensor, rows: int) -> Tensor:
    """[total, H, D] as [B, rows, H, D]; what lies behind a sequence is arbitrary."""
    if not t.shape[0]:
        return t.new_zeros((cu.shape[0] - 1, rows, *t.shape[1:]))
    index = cu[:-1, None] + torch.arange(rows, device=cu.device)
    return t[index.clamp(0, t.shape[0] - 1).long()]


def _packed_dmask(
    q: Tensor, k: Tensor, where: Packed, keywords: dict[str, Any], slopes: Tensor | None,
    seed: int | None, max_q: int,
) -> Tensor:  # fmt: skip
    max_q, max_k = max_q or q.shape[0], where.max_k or k.shape[int(where.cu_k is None)]
    q = _unpack(q.detach(), where.cu_q, max_q)
    lengths_k = where.lengths_k
    if where.cu_k is not None:
        lengths_k = where.cu_k.diff().clamp(max=max_k)
        k = _unpack(k.detach(), where.cu_k, max_k)
    else:
        k = k.detach()[:, :max_k]
    assert lengths_k is not None
    lengths = {"lengths_q": where.cu_q.diff().clamp(max=max_q), "lengths_kv": lengths_k}
    if not _each(slopes):
        return _dmask(q, k, keywords, {"slope": slopes, "offset": 0, **lengths}, seed)
    assert slopes is not None
    parts = []
    for b in range(q.shape[0]):
        own = {n: t[b : b + 1] for n, t in lengths.items()}
        own_slopes = {"slope": slopes[b], "offset": b}
        parts.append(_dmask(q[b : b + 1], k[b : b + 1], keywords, {**own, **own_slopes}, seed))
    return torch.cat(parts)
