# SPDX-License-Identifier: MIT OR Apache-2.0
"""In place of FlagGems' attention (``flag_gems.ops.attention``), with gradients.

``scaled_dot_product_attention*`` are [B, H, S, D] and aligned top left; ``flash_attention_*`` are
[B, S, H, D] and, as ``flash_attn_varlen_func``, aligned bottom right.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._attention import attention_backward
from .._errors import InvalidArgumentError, UnsupportedError
from .._options import whole_number
from ..torch import attention
from ._flash import Packed, Settings, dense, draw_seed, packed, slopes_of, theirs
from ._kvcache import gather_pages

__all__ = [
    "ScaleDotProductAttention",
    "flash_attention_backward",
    "flash_attention_forward",
    "flash_attn_varlen_func",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_backward",
    "scaled_dot_product_attention_forward",
]

_LN2 = math.log(2.0)


def _options(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> dict[str, Any]:  # fmt: skip
    """What the three forms of scaled_dot_product_attention have in common, for attention()."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        raise UnsupportedError(
            "attn_mask is bool: FlagGems hides where it is True, torch where it is False. Give a"
            " float mask of 0 and minus infinity, or use tandem_attention.drop_in.sdpa"
        )
    for name, t in (("query", query), ("key", key)):
        if t.dim() != 4:
            raise InvalidArgumentError(f"{name} has {t.dim()} dimensions; [B, H, S, D] has 4")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise InvalidArgumentError(
            f"query has {query.shape[1]} heads and key {key.shape[1]}; that needs enable_gqa"
        )
    return {"bias": attn_mask, "causal": "top_left" if is_causal else False, "scale": scale}


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale query key^T + attn_mask) value, with gradients, those of attn_mask included.

    Args:
        query: [B, H, Sq, D]; f32, f16 or bf16.
        key, value: [B, Hk, Sk, D] and [B, Hk, Sk, Dv]; Hk differs from H with enable_gqa alone.
        attn_mask: float, added to the scaled product; [B or 1, H or 1, Sq or 1, Sk]. It may come
            with is_causal.
        dropout_p: 0 <= p < 1. FlagGems takes 0 alone.
        is_causal: key j takes part for j <= i, aligned top left.
        scale: 1 / sqrt(D) by default.
        enable_gqa: Hk may differ from H, which it divides.

    Returns:
        [B, H, Sq, Dv].

    Raises:
        UnsupportedError: attn_mask is bool, which FlagGems and torch read in opposite ways.
    """
    options = _options(query, key, attn_mask, is_causal, scale, enable_gqa)
    o: Tensor = attention(query, key, value, dropout=dropout_p, **options)
    return o


class ScaleDotProductAttention:
    """FlagGems' autograd function: ``apply`` is scaled_dot_product_attention()."""

    apply = staticmethod(scaled_dot_product_attention)


def _no_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise UnsupportedError(
            f"dropout_p is {dropout_p}: this pair of functions has nowhere to keep the seed. Use"
            " scaled_dot_product_attention or flash_attention_forward"
        )


def scaled_dot_product_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """(o, M): what the backward needs, M being lse in base 2, f32 [B, H, Sq]. dropout_p is 0.

    Args: those of scaled_dot_product_attention().
    """
    _no_dropout(dropout_p)
    options = _options(query, key, attn_mask, is_causal, scale, enable_gqa)
    with torch.no_grad():
        o, lse = attention(query, key, value, return_lse=True, **options)
        return o, lse / _LN2


def scaled_dot_product_attention_backward(
    do: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    o: Tensor,
    M: Tensor,  # noqa: N803
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of the forward with the same arguments, whose o and M are given.

    Strides may be any. A mask takes part; FlagGems leaves it out of its backward.
    """
    _no_dropout(dropout_p)
    options = _options(query, key, attn_mask, is_causal, scale, enable_gqa)
    d = attention_backward(
        _rows(do), query, key, value, o, M * _LN2, gradients=("q", "k", "v"), **options
    )
    return d.q, d.k, d.v


def _rows(t: Tensor) -> Tensor:
    """A gradient that was expanded from a number would leave the fast kernels."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


# ---- FlashAttention's conventions ----------------------------------------------------------------


def _no_varlen(first: Tensor | None, second: Tensor | None) -> None:
    if first is not None or second is not None:
        raise UnsupportedError(
            "cumulative sequence lengths are for flash_attn_varlen_func, not for this function"
        )


def _settings(
    dropout_p: float, scale: float | None, is_causal: bool, left: int | None, right: int | None,
    softcap: float = 0.0,
) -> Settings:  # fmt: skip
    size = (-1 if left is None else left, -1 if right is None else right)
    # FlagGems reads a scale of 0 as the default one.
    return Settings(dropout_p, scale or None, is_causal, size, softcap)


def flash_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cumulative_sequence_length_q: Tensor | None,
    cumulative_sequence_length_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    disable_splitkv: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(out, lse, seed, offset, debug mask), without gradients: flash_attention_backward() has them.

    Args:
        query: [B, Sq, H, D]; f32, f16 or bf16.
        key, value: [B, Sk, Hk, D].
        cumulative_sequence_length_q, cumulative_sequence_length_k: None, as in FlagGems.
        max_q, max_k: not read; the sizes say them.
        dropout_p: 0 <= p < 1; the seed is drawn from torch's CPU generator.
        is_causal, window_size_left, window_size_right: aligned bottom right.
        return_debug_mask: also the weights [B, H, Sq, Sk], negative where dropped, if there is
            dropout.
        scale: 1 / sqrt(D) by default.
        softcap: c > 0: c tanh(s / c).
        seqused_k: int32 [B], keys of each batch entry that are there.
        alibi_slopes: f32 [H] or [B, H]; with [B, H] a call for each batch entry.
        disable_splitkv: not read; the planner splits keys by itself.

    Returns:
        out [B, Sq, H, D]; lse f32 [B, H, Sq], plus infinity in rows with no key; seed and offset,
        int64, of the dropout; the debug mask, or an empty tensor.
    """
    _no_varlen(cumulative_sequence_length_q, cumulative_sequence_length_k)
    settings = _settings(dropout_p, scale, is_causal, window_size_left, window_size_right, softcap)
    if settings.dropout_p and alibi_slopes is not None:
        slopes = slopes_of(alibi_slopes, query.shape[0], query.shape[2])
        if slopes is not None and slopes.dim() == 2:
            raise UnsupportedError(
                "alibi_slopes of [B, H] with dropout: a seed and an offset cannot say its mask"
            )
    more = {} if seqused_k is None else {"lengths_kv": seqused_k}
    seed = 0
    if dropout_p:
        seed = draw_seed()
    want = return_debug_mask and dropout_p > 0
    with torch.no_grad():
        made = dense(query, key, value, settings, alibi_slopes, seed=seed, want_dmask=want, **more)
        state = torch.tensor([seed, 0], dtype=torch.int64, device="cpu")
        dmask = made.dmask if made.dmask is not None else query.new_empty(0)
        return made.out, theirs(made.lse), state[0], state[1], dmask


def flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor | None,
    unused: Any = None,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of flash_attention_forward() with the same arguments.

    As in FlagGems, there is no gradient of a forward with softcap, seqused_k or alibi_slopes here.

    Args:
        grad_out, out: [B, Sq, H, D]. logsumexp: f32 [B, H, Sq], natural.
        cum_seq_q, cum_seq_k: None: flash_attn_varlen_func has gradients of its own.
        rng_state: seed and offset, read if dropout_p is above 0: the third and fourth result of the
            forward, stacked, or the third with the fourth as ``unused``.
        Others: the forward's.
    """
    _no_varlen(cum_seq_q, cum_seq_k)
    settings = _settings(dropout_p, scale, is_causal, window_size_left, window_size_right)
    keywords = settings.keywords(key.shape[1])
    keywords["deterministic"] = torch.are_deterministic_algorithms_enabled()
    seed = offset = 0
    if dropout_p:
        if rng_state is None:
            raise InvalidArgumentError("dropout needs rng_state, the forward's seed and offset")
        numbers = [*rng_state.reshape(-1).tolist()]
        if len(numbers) == 1 and isinstance(unused, Tensor):
            numbers += unused.reshape(-1).tolist()
        if len(numbers) != 2:
            raise InvalidArgumentError(f"rng_state has {len(numbers)} numbers, not 2")
        seed, offset = (int(n) for n in numbers)
    d = attention_backward(
        _rows(grad_out), query, key, value, out, logsumexp, gradients=("q", "k", "v"),
        seed=seed, offset=offset, **keywords,
    )  # fmt: skip
    return d.q, d.k, d.v


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int | Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int | Tensor,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    q_v: Tensor | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] | list[int] | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
    scheduler_metadata: Any = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    s_aux: Tensor | None = None,
    num_splits: int = 0,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_tot_seqused_k: Tensor | None = None,
    fa_version: int = 2,
) -> Any:
    """Attention on sequences that lie one behind the other, with gradients.

    Args:
        q: [total_q, Hq, D]; f32, f16 or bf16.
        k, v: [total_k, Hk, D]; with block_table [blocks, page size, Hk, D].
        max_seqlen_q, max_seqlen_k: the longest sequence. A longer one is cut; 0 cuts none.
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1], cumulative from 0.
        seqused_k: int32 [B], the keys of each sequence, in place of cu_seqlens_k with block_table.
        block_table: int32 [B, pages of a sequence]; the pages are copied side by side first.
        dropout_p, softmax_scale, causal, softcap, alibi_slopes, deterministic: as in
            drop_in.flash_attn.flash_attn_varlen_func().
        window_size: (left, right); None is unbounded.
        return_softmax_lse: also return lse, f32 [Hq, total_q].
        out: a tensor for the result, which then has no gradients.
        s_aux: [Hq], one more score in each row's sum. FlagGems does not read it.
        scheduler_metadata, return_attn_probs, cp_rank: not read, as in FlagGems.
        q_v, q_descale, k_descale, v_descale, cp_tot_seqused_k, num_splits above 0, cp_world_size
            above 1 and fa_version beside 2: refused.

    Returns:
        out [total_q, Hq, D]; with return_softmax_lse (out, lse).
    """
    refused = {
        "q_v": q_v, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale,
        "cp_tot_seqused_k": cp_tot_seqused_k,
    }  # fmt: skip
    for name, given in refused.items():
        if given is not None:
            raise UnsupportedError(f"{name} is not supported")
    if fa_version != 2 or num_splits > 0 or cp_world_size != 1:
        raise UnsupportedError("fa_version is 2, num_splits 0 and cp_world_size 1 here")
    if (cu_seqlens_k is None) == (seqused_k is None):
        raise InvalidArgumentError("one of cu_seqlens_k and seqused_k is needed")
    if (block_table is None) != (seqused_k is None):
        raise InvalidArgumentError("seqused_k and block_table go together")
    if out is not None and torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        raise UnsupportedError("out has no gradients; leave it out, or call under no_grad()")
    size = (-1, -1) if window_size is None else (window_size[0], window_size[1])
    settings = Settings(dropout_p, softmax_scale, causal, size, softcap, deterministic, s_aux)
    max_q = whole_number("max_seqlen_q", max_seqlen_q)
    max_k = whole_number("max_seqlen_k", max_seqlen_k)
    where = Packed(cu_seqlens_q, cu_seqlens_k, max_q, max_k)
    if block_table is not None:
        assert seqused_k is not None
        k, v = (gather_pages(t, block_table, seqused_k, max_k) for t in (k, v))
        where = Packed(cu_seqlens_q, None, max_q, max_k, seqused_k)
    made = packed(q, k, v, where, settings, alibi_slopes)
    result = made.out if out is None else out.copy_(made.out)
    return (result, theirs(made.lse)) if return_softmax_lse else result
