# SPDX-License-Identifier: MIT OR Apache-2.0
"""flash-dmattn (later flash-sparse-attention): attention with a boolean mask and a learned bias.

The functions of the package under both of its names, with its arguments, layouts and defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .._errors import InvalidArgumentError, UnsupportedError
from ..torch import attention
from ._packed import pack_lse

#: The package's flags for which of its backends import; all names work here.
CUDA_AVAILABLE = TRITON_AVAILABLE = FLEX_AVAILABLE = True


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dim() != 4:
            raise InvalidArgumentError(f"{name} has {t.dim()} dimensions, not four: [B, S, H, D]")


def _four(name: str, t: Tensor | None, keys: int) -> Tensor | None:
    """A mask or bias with the keys that are there; the package pads them to multiples of 128."""
    if t is None:
        return None
    if t.dim() != 4:
        raise InvalidArgumentError(f"{name} has {t.dim()} dimensions, not four: [B, H, Sq, Sk]")
    if t.shape[-1] == -(-keys // 128) * 128:
        return t[..., :keys]
    return t


def _mask(t: Tensor | None, keys: int) -> Tensor | None:
    if t is not None and t.dtype != torch.bool:
        raise InvalidArgumentError(f"attn_mask is {t.dtype}, not torch.bool; True keeps a key")
    return _four("attn_mask", t, keys)


def flash_dmattn_func(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    softmax_scale: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    deterministic: bool | None = None,
    return_attn_probs: bool | None = None,
) -> Any:
    """Attention over the keys that attn_mask keeps, with attn_bias added to the scaled scores.

    Args:
        query: [B, Sq, H, D], f32, f16 or bf16.
        key, value: [B, Sk, Hk, D], of query's type; H is a multiple of Hk.
        attn_mask: bool [B or 1, H, Hk or 1, Sq or 1, Sk or 1]; True keeps a key.
        attn_bias: of the same shapes, floating. Differentiable, alone too. Its gradient is summed
            inside the kernel over what it repeats.
        softmax_scale: 1 / sqrt(D) by default.
        is_causal: causal, aligned to the bottom right corner. False by default.
        softcap: c > 0: c tanh(s / c) in place of the scaled product, before the bias.
        deterministic: the same bits run after run; by default what torch is set to.
        return_attn_probs: also return lse.

    Returns:
        [B, Sq, H, D]; with return_attn_probs, (that, lse, None): lse is f32 [B, H, Sq], minus
        infinity in rows without a key. No kernel of Tandem forms the probabilities.

    Raises:
        InvalidArgumentError: shapes or types do not fit each other.
    """
    _check(query, key, value)
    o, lse = attention(
        query, key, value, layout="bshd",
        keep=_mask(attn_mask, key.shape[1]), bias=_four("attn_bias", attn_bias, key.shape[1]),
        scale=softmax_scale, causal="bottom_right" if is_causal else False,
        softcap=softcap or 0.0, deterministic=deterministic, return_lse=True,
    )  # fmt: skip
    return (o, lse, None) if return_attn_probs else o


def flash_dmattn_varlen_func(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    deterministic: bool | None = None,
    return_attn_probs: bool | None = None,
    block_table: Tensor | None = None,
) -> Any:
    """flash_dmattn_func() on packed sequences, without mask and bias.

    Args:
        query: [total_q, H, D], f32, f16 or bf16.
        key, value: [total_k, Hk, D], of query's type.
        cu_seqlens_q, cu_seqlens_k: [B + 1], integers, where each sequence starts, from 0. They
            cover the totals: rows behind the last one are not written.
        max_seqlen_q, max_seqlen_k: the longest sequence.
        softmax_scale, is_causal, softcap, deterministic: as in flash_dmattn_func().
        return_attn_probs: also return lse.
        block_table: None; pages of keys are refused.

    Returns:
        [total_q, H, D]; with return_attn_probs, (that, lse, None), lse f32 [H, total_q].

    Raises:
        UnsupportedError: block_table is given.
        InvalidArgumentError: shapes or types do not fit each other.
    """
    if block_table is not None:
        raise UnsupportedError("block_table: Tandem reads no pages of keys; pack the keys")
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dim() != 3:
            raise InvalidArgumentError(f"{name} has {t.dim()} dimensions, not three: [total, H, D]")
    o, lse = attention(
        query, key, value, layout="bshd", offsets_q=cu_seqlens_q, offsets_kv=cu_seqlens_k,
        max_seq_q=max_seqlen_q, max_seq_kv=max_seqlen_k, scale=softmax_scale,
        causal="bottom_right" if is_causal else False, softcap=softcap or 0.0,
        deterministic=deterministic, return_lse=True,
    )  # fmt: skip
    if not return_attn_probs:
        return o
    return o, pack_lse(lse, cu_seqlens_q, query.shape[0]), None


def triton_dmattn_func(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    is_causal: bool = False,
    softmax_scale: float | None = None,
) -> Tensor:
    """flash_dmattn_func() with the causal mask aligned to the top left corner.

    Args, returns and errors: those of flash_dmattn_func().
    """
    _check(query, key, value)
    o: Tensor = attention(
        query, key, value, layout="bshd", keep=_mask(attn_mask, key.shape[1]),
        bias=_four("attn_bias", attn_bias, key.shape[1]), scale=softmax_scale,
        causal="top_left" if is_causal else False,
    )  # fmt: skip
    return o


def flex_dmattn_func(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    is_causal: bool | None = None,
    softmax_scale: float | None = None,
    **kwargs: NoReturn,
) -> Tensor:
    """triton_dmattn_func(), causal unless is_causal is False.

    attn_mask hides keys here; the package's function reads it and does not apply it.

    Args, returns and errors: those of flash_dmattn_func().
    """
    if kwargs:
        raise UnsupportedError(f"flex_dmattn_func does not know {', '.join(sorted(kwargs))}")
    return triton_dmattn_func(
        query, key, value, attn_mask, attn_bias, is_causal is None or is_causal, softmax_scale
    )


def get_available_backends() -> list[str]:
    """The names that flash_dmattn_func_auto() takes."""
    return ["cuda", "triton", "flex"]


def flash_dmattn_func_auto(backend: str | None = None, **kwargs: Any) -> Callable[..., Any]:
    """The function that bears a backend's name; "cuda"'s by default.

    All compute with Tandem on the device of their tensors: the name decides how a causal mask is
    aligned, and what the defaults are.

    Raises:
        InvalidArgumentError: there is no such name.
    """
    functions: dict[str, Callable[..., Any]] = {
        "cuda": flash_dmattn_func,
        "triton": triton_dmattn_func,
        "flex": flex_dmattn_func,
    }
    chosen = functions.get("cuda" if backend is None else backend)
    if chosen is None:
        raise InvalidArgumentError(f"backend is {backend!r}, not one of {list(functions)}")
    return chosen


flash_sparse_attn_func = flash_dmattn_func
flash_sparse_attn_varlen_func = flash_dmattn_varlen_func
triton_sparse_attn_func = triton_dmattn_func
flex_sparse_attn_func = flex_dmattn_func
flash_sparse_attn_func_auto = flash_dmattn_func_auto

__all__ = [
    "CUDA_AVAILABLE",
    "FLEX_AVAILABLE",
    "TRITON_AVAILABLE",
    "flash_dmattn_func",
    "flash_dmattn_func_auto",
    "flash_dmattn_varlen_func",
    "flash_sparse_attn_func",
    "flash_sparse_attn_func_auto",
    "flash_sparse_attn_varlen_func",
    "flex_dmattn_func",
    "flex_sparse_attn_func",
    "get_available_backends",
    "triton_dmattn_func",
    "triton_sparse_attn_func",
]
