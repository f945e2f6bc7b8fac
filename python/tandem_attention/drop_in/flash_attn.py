# SPDX-License-Identifier: MIT OR Apache-2.0
"""In place of the package ``flash_attn``: the functions of its version 2 interface.

Layouts, alignment (bottom right) and names are FlashAttention-2's. Beyond it, f32 tensors, any head
size up to 576, another head size of v, and softcap with dropout work.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._errors import InvalidArgumentError
from .._options import whole_number
from ..torch._kernels import Inputs, check_tensors
from ._flash import Packed, Result, Settings, check_offsets, dense, packed, theirs
from ._kvcache import flash_attn_with_kvcache, gather_pages

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def _answer(made: Result, like: Tensor, return_attn_probs: bool) -> Any:
    if not return_attn_probs:
        return made.out
    dmask = made.dmask if made.dmask is not None else like.new_empty(0)
    return made.out, theirs(made.lse), dmask


def _split(name: str, t: Tensor, dims: int, count: int) -> tuple[Tensor, ...]:
    """The parts of a packed qkv or kv, as views."""
    if t.dim() != dims or t.shape[-3] != count:
        raise InvalidArgumentError(
            f"{name} has the shape {list(t.shape)}; of {dims} dimensions the third from the right"
            f" is {count}"
        )
    return t.unbind(-3)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention on [B, S, H, D].

    Args:
        q: [B, Sq, Hq, D], f16, bf16 or f32.
        k, v: [B, Sk, Hk, D], of q's type; Hk divides Hq.
        dropout_p: 0 <= p < 1; the seed is drawn from torch's CPU generator.
        softmax_scale: 1 / sqrt(D) by default.
        causal: key j takes part for j <= i + Sk - Sq.
        window_size: (left, right), keys on both sides of i + Sk - Sq; a negative number, and one of
            Sk or more, is unbounded.
        softcap: c > 0: c tanh(s / c) in place of the scaled product.
        alibi_slopes: f32 [Hq] or [B, Hq]; slope |i + Sk - Sq - j| is subtracted. Entries of [B, Hq]
            run one call each.
        deterministic: gradients have the same bits run after run.
        return_attn_probs: also return lse and S_dmask.

    Returns:
        out [B, Sq, Hq, D]. With return_attn_probs (out, softmax_lse, S_dmask): f32 [B, Hq, Sq],
        plus infinity in rows with no key; and [B, Hq, Sq, Sk], the weights before dropout, negative
        where dropped, or an empty tensor without dropout.

    Raises:
        InvalidArgumentError, UnsupportedError: with the sentence that says why.
    """
    settings = Settings(dropout_p, softmax_scale, causal, window_size, softcap, deterministic)
    made = dense(q, k, v, settings, alibi_slopes, want_dmask=return_attn_probs and dropout_p > 0)
    return _answer(made, q, return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func() with k and v in one tensor, kv [B, Sk, 2, Hk, D], read without a copy."""
    k, v = _split("kv", kv, 5, 2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func() with q, k and v in one tensor, qkv [B, S, 3, H, D], read without a copy."""
    q, k, v = _split("qkv", qkv, 5, 3)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attention on sequences that lie one behind the other.

    Args:
        q: [total_q, Hq, D]. Rows that belong to no sequence hold arbitrary numbers in out.
        k, v: [total_k, Hk, D]; with block_table [blocks, page size, Hk, D].
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1], cumulative from 0.
        max_seqlen_q, max_seqlen_k: the longest sequence. A longer one is cut; 0 cuts none.
        block_table: int32 [B, pages of a sequence]; the pages are copied side by side first.
        alibi_slopes: f32 [Hq] or [B, Hq]; with [B, Hq] the offsets are read on the host, and
            sequences run one call each.
        Others: those of flash_attn_func().

    Returns:
        out [total_q, Hq, D]. With return_attn_probs (out, softmax_lse, S_dmask): f32 [Hq, total_q],
        and [B, Hq, max_seqlen_q, max_seqlen_k] or an empty tensor without dropout.
    """
    settings = Settings(dropout_p, softmax_scale, causal, window_size, softcap, deterministic)
    max_q = whole_number("max_seqlen_q", max_seqlen_q)
    max_k = whole_number("max_seqlen_k", max_seqlen_k)
    where = Packed(cu_seqlens_q, cu_seqlens_k, max_q, max_k)
    check_tensors(Inputs(q, k, v))
    if block_table is not None:
        check_offsets("cu_seqlens_k", cu_seqlens_k)
        lengths = cu_seqlens_k.diff()
        k, v = (gather_pages(t, block_table, lengths, max_k) for t in (k, v))
        where = Packed(cu_seqlens_q, None, max_q, max_k, lengths)
    want = return_attn_probs and dropout_p > 0
    made = packed(q, k, v, where, settings, alibi_slopes, want_dmask=want)
    return _answer(made, q, return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func() with k and v in one tensor, kv [total_k, 2, Hk, D]."""
    k, v = _split("kv", kv, 4, 2)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func() with q, k and v in one tensor, qkv [total, 3, H, D]."""
    q, k, v = _split("qkv", qkv, 4, 3)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip
