# SPDX-License-Identifier: MIT OR Apache-2.0
"""The functions of FlashAttention-4 (``flash_attn.cute.interface``) on our drop-in's parts.

For its tests alone: the drop-in offers version 2's functions. Head dimensions, sinks, windows,
pages and packed batches are the same mathematics; what version 4 adds beyond is refused by name.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from tandem_attention import UnsupportedError, attention_backward
from tandem_attention.drop_in import _flash
from tandem_attention.drop_in._flash import Packed, Settings
from tandem_attention.drop_in._kvcache import gather_pages

# Hints for its kernels, which change no result.
_HINTS = frozenset((
    "num_splits", "pack_gqa", "scheduler_metadata", "seqlen_k_per_split", "min_seqlen_k",
    "disable_scheduler_metadata", "return_lse", "tile_mn", "num_threads", "aux_scalars",
    "m_block_size", "n_block_size",
))  # fmt: skip


def _only_hints(more: dict[str, Any]) -> None:
    for name, value in more.items():
        if name not in _HINTS and value is not None:
            raise UnsupportedError(f"{name} is not offered")


def _window(size: tuple[int | None, int | None]) -> tuple[int, int]:
    for n in size:
        if n is not None and n < 0:
            raise UnsupportedError(f"the window {size} does not hold the diagonal")
    left, right = (-1 if n is None else int(n) for n in size)
    return left, right


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    """[B, S, H, D]: out and lse, minus infinity in rows with no key."""
    _only_hints({**more, "qv": qv, "gather_kv_indices": gather_kv_indices})
    settings = Settings(
        0.0, softmax_scale, causal, _window(window_size), softcap, deterministic, learnable_sink
    )
    made = _flash.dense(q, k, v, settings, None)
    return made.out, made.lse


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    """q and k, v each packed by cu_seqlens or [B, S, H, D] with seqused; pages of k and v."""
    _only_hints({**more, "qv": qv, "gather_kv_indices": gather_kv_indices})
    settings = Settings(
        0.0, softmax_scale, causal, _window(window_size), softcap, deterministic, learnable_sink
    )
    lengths_k = seqused_k
    if page_table is not None:
        assert seqused_k is not None
        most = page_table.shape[1] * k.shape[1]
        k, v = (gather_pages(t, page_table, seqused_k, most) for t in (k, v))
        cu_seqlens_k = None
    if cu_seqlens_q is not None:
        max_q = q.shape[0] if max_seqlen_q is None else int(max_seqlen_q)
        if cu_seqlens_k is not None and seqused_k is None:
            max_k = k.shape[0] if max_seqlen_k is None else int(max_seqlen_k)
            where = Packed(cu_seqlens_q, cu_seqlens_k, max_q, max_k)
        else:
            if cu_seqlens_k is not None:
                raise UnsupportedError("cu_seqlens_k together with seqused_k")
            if lengths_k is None:
                lengths_k = torch.full_like(cu_seqlens_q[1:], k.shape[1])
            where = Packed(cu_seqlens_q, None, max_q, k.shape[1], lengths_k)
        if seqused_q is not None:
            raise UnsupportedError("cu_seqlens_q together with seqused_q")
        made = _flash.packed(q, k, v, where, settings, None)
        return made.out, made.lse
    if cu_seqlens_k is not None:
        longest = k.shape[0] if max_seqlen_k is None else int(max_seqlen_k)
        k, v = (_flash._unpack(t, cu_seqlens_k, longest) for t in (k, v))
        lengths_k = cu_seqlens_k.diff()
    lengths = {"lengths_q": seqused_q, "lengths_kv": lengths_k}
    given: dict[str, Any] = {name: t for name, t in lengths.items() if t is not None}
    made = _flash.dense(q, k, v, settings, None, **given)
    return made.out, made.lse


def _flash_attn_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *args: Any,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    softcap: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor, None, None]:
    if args:
        raise UnsupportedError("positional arguments behind v")
    more["window_size"] = (window_size_left, window_size_right)
    more["softcap"] = softcap or 0.0
    packed = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "page_table")
    varlen = any(more.get(name) is not None for name in packed)
    function = flash_attn_varlen_func if varlen else flash_attn_func
    if not varlen:
        for name in (*packed, "max_seqlen_q", "max_seqlen_k"):
            more.pop(name, None)
    with torch.no_grad():
        made, made_lse = function(q, k, v, **more)
    if out is not None:
        made = out.copy_(made)
    if lse is not None:
        made_lse = lse.copy_(made_lse)
    return made, made_lse, None, None


def _flash_attn_bwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    deterministic: bool = False,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    dlse: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by attention_backward(), as a caller without autograd gets them."""
    _only_hints({**more, "the gradient of lse": dlse, "learnable_sink": learnable_sink})
    size = _window((window_size_left, window_size_right))
    settings = Settings(0.0, softmax_scale, causal, size, softcap)
    sides: dict[str, Any] = {}
    keys = k.shape[1]
    if cu_seqlens_q is not None:
        assert cu_seqlens_k is not None
        max_q = min(int(max_seqlen_q or q.shape[0]), max(q.shape[0], 1))
        keys = int(max_seqlen_k or k.shape[0])
        sides = {
            "offsets_q": cu_seqlens_q, "offsets_kv": cu_seqlens_k,
            "max_seq_q": max_q, "max_seq_kv": min(keys, k.shape[0]),
        }  # fmt: skip
        # Tandem's lse is [B, H, S] for packed sequences, too.
        rows = _flash._unpack(lse.t().unsqueeze(-1), cu_seqlens_q, max_q)
        lse = rows.squeeze(-1).transpose(1, 2).contiguous()
    words = settings.keywords(keys)
    del words["sink"]
    words["deterministic"] = deterministic
    words.update(sides)
    made = attention_backward(
        dout.detach(), q.detach(), k.detach(), v.detach(), out.detach(), lse.detach(), **words
    )
    results = []
    for given, gradient in ((dq, made.q), (dk, made.k), (dv, made.v)):
        results.append(gradient if given is None else given.copy_(gradient))
    return results[0], results[1], results[2]


def get_scheduler_metadata(*_: Any, **__: Any) -> None:
    """Hints for its kernels: there are none here."""


def flash_attn_combine(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError("flash_attn_combine is not offered")


def _flash_attn_bwd_sparse_mla(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError("_flash_attn_bwd_sparse_mla is not offered")


class JITCache(dict[Any, Any]):
    """What its tests clear between cases."""
