# SPDX-License-Identifier: MIT OR Apache-2.0
"""xformers.ops.memory_efficient_attention and the attn_bias classes that go with it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import attention_backward
from .._errors import InvalidArgumentError, UnsupportedError
from ..torch import attention
from . import xformers_attn_bias as attn_bias
from ._packed import pack_lse, pad_lse
from .xformers_attn_bias import (
    AttentionBias,
    BlockDiagonalCausalFromBottomRightMask,
    BlockDiagonalCausalLocalAttentionFromBottomRightMask,
    BlockDiagonalCausalLocalAttentionMask,
    BlockDiagonalCausalLocalAttentionPaddedKeysMask,
    BlockDiagonalCausalMask,
    BlockDiagonalCausalWithOffsetPaddedKeysMask,
    BlockDiagonalLocalAttentionPaddedKeysMask,
    BlockDiagonalMask,
    BlockDiagonalPaddedKeysMask,
    LocalAttentionFromBottomRightMask,
    LowerTriangularFromBottomRightLocalAttentionMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMask,
    LowerTriangularMaskWithTensorBias,
)

#: ``from tandem_attention.drop_in.xformers import fmha`` in the place of ``xformers.ops.fmha``.
fmha = sys.modules[__name__]

# Where the diagonal of a class lies, and whether the mask is causal. A window is an attribute.
_NONE, _TOP, _BOTTOM, _AROUND = "", "top_left", "bottom_right", "around"
_RULES = {
    "LowerTriangularMask": _TOP,
    "LowerTriangularMaskWithTensorBias": _TOP,
    "LowerTriangularFromBottomRightMask": _BOTTOM,
    "LowerTriangularFromBottomRightLocalAttentionMask": _BOTTOM,
    "LocalAttentionFromBottomRightMask": _AROUND,
    "BlockDiagonalMask": _NONE,
    "BlockDiagonalCausalMask": _TOP,
    "BlockDiagonalCausalFromBottomRightMask": _BOTTOM,
    "BlockDiagonalCausalLocalAttentionMask": _TOP,
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": _BOTTOM,
    "BlockDiagonalPaddedKeysMask": _NONE,
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": _BOTTOM,
    "BlockDiagonalLocalAttentionPaddedKeysMask": _AROUND,
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask": _BOTTOM,
}


class _Call(NamedTuple):
    """A call in Tandem's terms.

    Attributes:
        q, k, v: [B, M, H, K], or packed [total, H, K].
        options: arguments of attention().
        shape: of the output.
        offsets: of packed queries, with longest; None for others.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]
    shape: tuple[int, ...]
    offsets: Tensor | None
    longest: int


def _is_repeated(t: Tensor, dim: int) -> bool:
    """Whether one slice of dim stands for all of them, for the gradient too.

    A leaf wants a gradient for each of its elements. A view of autograd hands its gradient on to
    what it repeats, where all that counts is the sum.
    """
    if t.stride(dim) or t.shape[dim] < 2:
        return False
    if not (t.requires_grad and torch.is_grad_enabled()):
        return True
    if torch.compiler.is_compiling():  # it cannot trace the other two questions
        return not t.is_leaf
    return t._is_view() and not t.is_leaf and not t.retains_grad


def _unrepeated(t: Tensor, dims: tuple[int, ...]) -> Tensor:
    for dim in dims:
        if _is_repeated(t, dim):
            t = t.narrow(dim, 0, 1)
    return t


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    dims = query.dim()
    if dims not in (3, 4, 5) or key.dim() != dims or value.dim() != dims:
        raise InvalidArgumentError(
            f"query, key and value have {dims}, {key.dim()} and {value.dim()} dimensions; all have"
            " 3 [B, M, K], 4 [B, M, H, K] or 5 [B, M, G, H, K]"
        )
    if key.dtype == torch.int32:
        raise UnsupportedError("key is int32: quantised keys and values are not read")
    heads = query.shape[2:-1]
    expected = (query.shape[0], key.shape[1], *heads)
    if tuple(key.shape) != (*expected, query.shape[-1]) or tuple(value.shape[:-1]) != expected:
        raise InvalidArgumentError(
            f"key is {list(key.shape)} and value {list(value.shape)} where query is"
            f" {list(query.shape)}; heads are not broadcast, expand() them"
        )


def _four(t: Tensor, shared: bool = False) -> Tensor:
    """[B, M, H, K] of any of the three forms. Of shared heads, one for each group."""
    if t.dim() == 3:
        return t.unsqueeze(2)
    if shared:
        t = t.narrow(-2, 0, 1)
    return t.flatten(2, 3) if t.dim() == 5 else t


def _tensor_bias(bias: Tensor, query: Tensor, keys: int) -> Tensor:
    """[B or 1, heads or 1, Mq or 1, Mk]."""
    heads = tuple(query.shape[2:-1])
    want = (query.shape[0], *heads, query.shape[1], keys)
    if bias.dim() != len(want) or any(
        got not in (1, size) for got, size in zip(bias.shape, want, strict=True)
    ):
        raise InvalidArgumentError(f"attn_bias is {list(bias.shape)}, not {list(want)}")
    bias = _unrepeated(bias, tuple(range(bias.dim() - 1)))
    if bias.dim() == 3:
        return bias.unsqueeze(1)
    if bias.dim() == 5:
        if bias.shape[1:3] != (1, 1):
            bias = bias.expand(-1, *heads, -1, -1)
        return bias.flatten(1, 2)
    return bias


def _sequences(bias: Any, q: Tensor, k: Tensor, v: Tensor, padded: bool) -> tuple[Any, ...]:
    """q, k and v of block diagonal masks, and the options that say where sequences lie."""
    q_info, k_info = bias.q_seqinfo, bias.k_seqinfo
    for name, t, info in (("query", q, q_info), ("key", k, k_info)):
        if t.shape[0] != 1 or t.shape[1] != info.seqstart_py[-1]:
            raise InvalidArgumentError(
                f"{name} has a batch of {t.shape[0]} and {t.shape[1]} rows where attn_bias wants"
                f" 1 and {info.seqstart_py[-1]}"
            )
        if info.seqstart.device != t.device:
            raise InvalidArgumentError(
                f"attn_bias lies on {info.seqstart.device}, {name} on {t.device}"
            )
    options = {"offsets_q": q_info.seqstart, "max_seq_q": max(q_info.max_seqlen, 0)}
    q, k, v = q[0], k[0], v[0]
    if padded:
        stretches = (len(k_info.seqlen_py), k_info.padding)
        k, v = (t.reshape(*stretches, *t.shape[1:]) for t in (k, v))
        options["lengths_kv"] = k_info.seqlen
    else:
        options["offsets_kv"] = k_info.seqstart
        options["max_seq_kv"] = max(k_info.max_seqlen, 0)
    return q, k, v, options


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Any,
    scale: float | None,
    share: bool = True,
) -> _Call:
    """The call; share: keys and values that repeat along H are read once for each group."""
    _check(query, key, value)
    shared = share and query.dim() > 3 and _is_repeated(key, -2) and _is_repeated(value, -2)
    q, k, v = _four(query), _four(key, shared), _four(value, shared)
    options: dict[str, Any] = {"layout": "bshd", "scale": scale}
    shape = (*query.shape[:-1], value.shape[-1])
    offsets, longest = None, 0
    if isinstance(bias, Tensor):
        options["bias"] = _tensor_bias(bias, query, key.shape[1])
    elif bias is not None:
        name = type(bias).__name__
        rule = _RULES.get(name)
        if rule is None:
            raise UnsupportedError(f"attn_bias is a {name}, which is none of {', '.join(_RULES)}")
        if query.dim() == 3 and name != "LowerTriangularMask":
            raise InvalidArgumentError(f"a {name} goes with inputs [B, M, H, K], not [B, M, K]")
        if rule in (_TOP, _BOTTOM):
            options["causal"] = rule
        if rule == _AROUND:
            options["align"] = "bottom_right"
            options["window"] = (bias.window_left, bias.window_right)
        elif "Local" in name:
            options["window"] = (int(bias._window_size) - 1, None)
        if name == "LowerTriangularMaskWithTensorBias":
            options["bias"] = _tensor_bias(bias._bias, query, key.shape[1])
        if name.startswith("BlockDiagonal"):
            q, k, v, more = _sequences(bias, q, k, v, "PaddedKeys" in name)
            options.update(more)
            offsets, longest = more["offsets_q"], more["max_seq_q"]
    return _Call(q, k, v, options, shape, offsets, longest)


def _check_options(query: Tensor, op: Any, output_dtype: torch.dtype | None, p: float) -> None:
    if op is not None and not (isinstance(op, tuple) and all(o is None for o in op)):
        raise UnsupportedError("op names a kernel of xformers; Tandem's planner chooses its own")
    if output_dtype is not None and output_dtype != query.dtype:
        raise UnsupportedError(f"output_dtype is {output_dtype} where query is {query.dtype}")
    if not 0.0 <= p < 1.0:
        raise InvalidArgumentError(f"p is {p}; it is at least 0 and below 1")


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | Any | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """``softmax(scale q k^T + attn_bias) v`` with dropout, differentiable.

    Args:
        query: [B, Mq, H, K], [B, Mq, K] (one head) or [B, Mq, G, H, K]; f32, f16 or bf16.
        key: [B, Mk, H, K] and so on, of query's type. Keys and values that are both expanded
            along H are read once for all of its heads.
        value: [B, Mk, H, Kv] and so on.
        attn_bias: a tensor [B, H, Mq, Mk] ([B, Mq, Mk]; [B, G, H, Mq, Mk]), added to the scaled
            scores, differentiable, sizes of 1 too; or a class of this module or of xformers.
        p: dropout, 0 <= p < 1, always applied.
        scale: 1 / sqrt(K) by default.
        op: None.
        output_dtype: None or query's type.

    Returns:
        [B, Mq, H, Kv] and so on, in query's type. A row that sees no key is 0.

    Raises:
        InvalidArgumentError: shapes, types or devices do not fit each other.
        UnsupportedError: a mask with gaps or pages, an op or another output_dtype is given.
    """
    _check_options(query, op, output_dtype, p)
    call = _call(query, key, value, attn_bias, scale)
    o: Tensor = attention(call.q, call.k, call.v, dropout=p, **call.options)
    return o.reshape(call.shape)


@torch.no_grad()
def memory_efficient_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | Any | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """memory_efficient_attention() without a gradient.

    Args, returns and errors: those of memory_efficient_attention().
    """
    return memory_efficient_attention(
        query, key, value, attn_bias, p, scale, op=op, output_dtype=output_dtype
    )


def _no_dropout(p: float) -> None:
    if p != 0.0:
        raise UnsupportedError("p: dropout goes with memory_efficient_attention() alone")


@torch.no_grad()
def memory_efficient_attention_forward_requires_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | Any | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """memory_efficient_attention() and what memory_efficient_attention_backward() needs of it.

    Args and errors: those of memory_efficient_attention(); p is 0.

    Returns:
        (output, lse): lse is f32 [B, H, Mq] ([B, 1, Mq]; [B, G, H, Mq]), packed [1, H, total] with
        block diagonal masks; natural logarithm, minus infinity in a row that sees no key.
    """
    _no_dropout(p)
    _check_options(query, op, output_dtype, p)
    call = _call(query, key, value, attn_bias, scale)
    o, lse = attention(call.q, call.k, call.v, return_lse=True, **call.options)
    if call.offsets is not None:
        lse = pack_lse(lse, call.offsets, call.q.shape[0]).unsqueeze(0)
    if query.dim() == 5:
        lse = lse.reshape(lse.shape[0], *query.shape[2:4], lse.shape[2])
    return o.reshape(call.shape), lse


@torch.no_grad()
def memory_efficient_attention_backward(
    grad: Tensor,
    output: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | Any | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value.

    Args:
        grad: of a loss with respect to output, in its shape.
        output, lse: what memory_efficient_attention_forward_requires_grad() returned.
        query, key, value, attn_bias, scale: what it was given. p is 0, op None.

    Returns:
        (dq, dk, dv) in the shapes of query, key and value.

    Raises:
        InvalidArgumentError: shapes, types or devices do not fit each other.
    """
    _no_dropout(p)
    _check_options(query, op, None, p)
    call = _call(query, key, value, attn_bias, scale, share=False)
    if tuple(output.shape) != call.shape or tuple(grad.shape) != call.shape:
        raise InvalidArgumentError(
            f"grad is {list(grad.shape)} and output {list(output.shape)}, not {list(call.shape)}"
        )
    heads = tuple(query.shape[2:-1]) or (1,)
    if tuple(lse.shape) != (query.shape[0], *heads, query.shape[1]):
        raise InvalidArgumentError(
            f"lse is {list(lse.shape)}, not {[query.shape[0], *heads, query.shape[1]]}"
        )
    grad, output = _four(grad), _four(output)
    lse = lse.flatten(1, 2) if lse.dim() == 4 else lse
    if call.offsets is not None:
        grad, output = grad[0], output[0]
        lse = pad_lse(lse[0], call.offsets, call.longest or call.q.shape[0])
    # An expanded gradient, as that of a sum, has no rows of its own in memory.
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    options = {**call.options, "deterministic": torch.are_deterministic_algorithms_enabled()}
    made = attention_backward(
        grad, call.q, call.k, call.v, output, lse.contiguous(), gradients=("q", "k", "v"), **options
    )
    return made.q.reshape(query.shape), made.k.reshape(key.shape), made.v.reshape(value.shape)


def memory_efficient_attention_partial(*args: Any, **kwargs: Any) -> Any:
    """Refused. Raises UnsupportedError."""
    raise UnsupportedError(
        "memory_efficient_attention_partial: parts in f32 to merge are not made; give all keys in"
        " one call"
    )


__all__ = [
    "AttentionBias",
    "BlockDiagonalCausalFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionMask",
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask",
    "BlockDiagonalCausalMask",
    "BlockDiagonalCausalWithOffsetPaddedKeysMask",
    "BlockDiagonalLocalAttentionPaddedKeysMask",
    "BlockDiagonalMask",
    "BlockDiagonalPaddedKeysMask",
    "LocalAttentionFromBottomRightMask",
    "LowerTriangularFromBottomRightLocalAttentionMask",
    "LowerTriangularFromBottomRightMask",
    "LowerTriangularMask",
    "LowerTriangularMaskWithTensorBias",
    "attn_bias",
    "fmha",
    "memory_efficient_attention",
    "memory_efficient_attention_backward",
    "memory_efficient_attention_forward",
    "memory_efficient_attention_forward_requires_grad",
    "memory_efficient_attention_partial",
]
