# SPDX-License-Identifier: MIT OR Apache-2.0
"""In place of ``torch.nn.functional.scaled_dot_product_attention``."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .._errors import InvalidArgumentError
from .._options import Diagonal
from ..torch import attention
from ..torch._kernels import autocast
from ._jagged import jagged_attention

__all__ = ["replace_sdpa", "scaled_dot_product_attention"]


def _causal_variant(attn_mask: Any, query: Tensor, key: Tensor) -> Diagonal | None:
    """The alignment that a ``torch.nn.attention.bias.CausalBias`` stands for, else None."""
    # Its module costs seconds to import, and no object of the class exists before that.
    module = sys.modules.get("torch.nn.attention.bias")
    if module is None or not isinstance(attn_mask, module.CausalBias):
        return None
    sizes = (attn_mask.seq_len_q, attn_mask.seq_len_kv)
    if sizes != (query.shape[-2], key.shape[-2]):
        raise InvalidArgumentError(
            f"attn_mask is causal for {sizes[0]} queries and {sizes[1]} keys;"
            f" query and key have {query.shape[-2]} and {key.shape[-2]}"
        )
    lower = attn_mask.variant == module.CausalVariant.LOWER_RIGHT
    return "bottom_right" if lower else "top_left"


def _check(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dim() < 2:
            raise InvalidArgumentError(f"{name} has {t.dim()} dimensions; at least 2 are needed")
        if t.dtype != query.dtype:
            raise InvalidArgumentError(f"{name} is {t.dtype} where query is {query.dtype}")
    if attn_mask is None or attn_mask.dtype in (torch.bool, torch.float32, query.dtype):
        return
    raise InvalidArgumentError(
        f"attn_mask is {attn_mask.dtype}; it may be bool, float32 or query's {query.dtype}"
    )


def _broadcast(what: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    if all(s == shapes[0] for s in shapes):
        return tuple(shapes[0])
    try:
        return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    except RuntimeError:
        given = " and ".join(str(list(s)) for s in shapes)
        raise InvalidArgumentError(f"{what} {given} do not broadcast to each other") from None


class _Folded(NamedTuple):
    """q, k, v and the mask with one batch dimension, and what undoes that."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    batch: tuple[int, ...]
    heads: int


def _group(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """key and value with one number of heads that divides query's, for enable_gqa."""
    if min(query.dim(), key.dim(), value.dim()) < 3:
        raise InvalidArgumentError("enable_gqa needs a dimension of heads in query, key and value")
    heads, heads_k, heads_v = query.shape[-3], key.shape[-3], value.shape[-3]
    if 0 in (heads_k, heads_v) or heads % heads_k or heads % heads_v:
        raise InvalidArgumentError(
            f"key has {heads_k} heads and value {heads_v}; each must divide the {heads} of query"
        )
    both = math.lcm(heads_k, heads_v)
    if both != heads_k:
        key = key.repeat_interleave(both // heads_k, -3)
    if both != heads_v:
        value = value.repeat_interleave(both // heads_v, -3)
    return key, value


def _fold(t: Tensor, batch: tuple[int, ...], heads: int) -> Tensor:
    if t.shape[:-2] != (*batch, heads):
        t = t.expand(*batch, heads, *t.shape[-2:])
    return t.unsqueeze(0) if not batch else t if len(batch) == 1 else t.flatten(0, len(batch) - 1)


def _fold_mask(mask: Tensor, shape: tuple[int, ...], rank: int) -> Tensor:
    """The mask as [B or 1, H or 1, L or 1, S or 1], expanded no further than its memory asks."""
    given = tuple(mask.shape)
    fits = len(given) <= rank and all(
        m in (1, n) for m, n in zip(reversed(given), reversed(shape), strict=False)
    )
    if not fits:
        raise InvalidArgumentError(
            f"attn_mask of shape {list(given)} does not broadcast to {list(shape[-rank:])}"
        )
    mask = mask[(None,) * (len(shape) - len(given))]
    batch = shape[:-3]
    if math.prod(mask.shape[: len(batch)]) == 1:
        return mask.reshape(1, *mask.shape[-3:])
    if len(batch) > 1:
        mask = mask.expand(*batch, *mask.shape[-3:]).flatten(0, len(batch) - 1)
    return mask


def _flatten(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool
) -> _Folded:
    """Any number of leading dimensions as [B, H, L, E], heads being the third from the right."""
    rank = max(query.dim(), key.dim(), value.dim())
    if enable_gqa:
        key, value = _group(query, key, value)
    query, key, value = (t.unsqueeze(0) if t.dim() == 2 else t for t in (query, key, value))
    batch = _broadcast("the batch dimensions", query.shape[:-3], key.shape[:-3], value.shape[:-3])
    heads, heads_k, heads_v = query.shape[-3], key.shape[-3], value.shape[-3]
    if not enable_gqa:
        (heads,) = _broadcast("the heads", (heads,), (heads_k,), (heads_v,))
        # One head of keys for all queries is read as it lies; otherwise key and value agree.
        if heads_k != heads_v:
            heads_k = heads_v = heads
    if mask is not None:
        mask = _fold_mask(mask, (*batch, heads, query.shape[-2], key.shape[-2]), max(rank, 2))
    return _Folded(
        _fold(query, batch, heads), _fold(key, batch, heads_k), _fold(value, batch, heads_v),
        mask, batch, heads,
    )  # fmt: skip


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale query key^T + attn_mask) value, as torch's function of that name.

    Args:
        query: [..., H, L, E] or [L, E]; f32, f16 or bf16, on the CPU or a CUDA device; f64 on the
            CPU.
        key: [..., H, S, E], of query's type. Batch dimensions and H broadcast.
        value: [..., H, S, Ev], of query's type.
        attn_mask: bool (True takes part), or f32 or query's type, added to the scaled product.
            It broadcasts to [..., H, L, S]. A ``CausalBias`` of torch.nn.attention.bias runs as a
            causal mask. A float mask is differentiable.
        dropout_p: 0 <= p < 1, applied in evaluation too; the seed is drawn from torch's CPU
            generator.
        is_causal: key j takes part for j <= i, aligned top left. It excludes attn_mask.
        scale: 1 / sqrt(E) by default.
        enable_gqa: the heads of key and value may be fewer than query's, which they divide.

    Nested tensors of layout torch.jagged run as packed sequences: query [B, H, L, E], of which L
    differs between the B sequences, or [B, L, E]; key and value alike, with lengths of their own.

    Returns:
        [..., H, L, Ev], of query's type; nested as query is. A row with no key is 0.

    Raises:
        TypeError: query, key or value is no tensor.
        InvalidArgumentError: sizes or types do not fit; attn_mask and is_causal are both given;
            dropout_p is 1.
        UnsupportedError: float64 on CUDA, other types, E or Ev beyond 576, nested tensors of
            another layout than torch.jagged or with attn_mask.
    """
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor) and not hasattr(type(t), "__torch_function__"):
            raise TypeError(f"{name} is a {type(t).__name__}, not a tensor")
    if attn_mask is not None and not hasattr(type(attn_mask), "__torch_function__"):
        raise TypeError(f"attn_mask is a {type(attn_mask).__name__}, not a tensor")
    if any(isinstance(t, Tensor) and t.is_nested for t in (query, key, value)):
        return jagged_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    variant = _causal_variant(attn_mask, query, key)
    if variant is not None:
        if is_causal:
            raise InvalidArgumentError("attn_mask is causal already; leave is_causal out")
        return _attend(query, key, value, None, dropout_p, variant, scale, enable_gqa)
    args = (query, key, value, attn_mask)
    if has_torch_function(args):
        made: Tensor = handle_torch_function(
            scaled_dot_product_attention, args, *args, dropout_p=dropout_p, is_causal=is_causal,
            scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
        return made
    if attn_mask is not None and is_causal:
        raise InvalidArgumentError("attn_mask and is_causal exclude each other")
    causal: Diagonal | None = "top_left" if is_causal else None
    return _attend(query, key, value, attn_mask, dropout_p, causal, scale, enable_gqa)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    causal: Diagonal | None,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    kind = query.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        # attention() would do so too, but after the types were held against each other.
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = (autocast(t, dtype) for t in (query, key, value))
        attn_mask = None if attn_mask is None else autocast(attn_mask, dtype)
    _check(query, key, value, attn_mask)
    rank = max(query.dim(), key.dim(), value.dim())
    folded = _flatten(query, key, value, attn_mask, enable_gqa)
    boolean = folded.mask is not None and folded.mask.dtype == torch.bool
    o: Tensor = attention(
        folded.query, folded.key, folded.value,
        bias=None if boolean else folded.mask, keep=folded.mask if boolean else None,
        causal=causal or False, scale=scale, dropout=dropout_p,
    )  # fmt: skip
    if len(folded.batch) != 1:
        o = o.reshape(*folded.batch, *o.shape[1:])
    return o.squeeze(-3) if rank == 2 else o


# ---- in torch's place ------------------------------------------------------------------------

_PLACES = (torch.nn.functional, torch._C._nn)
_NAME = "scaled_dot_product_attention"
_lock = threading.Lock()
_depth = 0
_originals: tuple[Any, ...] = tuple(getattr(place, _NAME) for place in _PLACES)


def _replacement(*args: Any, **kwargs: Any) -> Tensor:
    # Code that took the function out of torch inside a block may call it after the block.
    if _depth == 0:
        return _originals[0](*args, **kwargs)  # type: ignore[no-any-return]
    return scaled_dot_product_attention(*args, **kwargs)


@contextlib.contextmanager
def replace_sdpa() -> Iterator[None]:
    """Puts scaled_dot_product_attention() in the place of torch's.

    A context manager, or with parentheses a decorator. Inside, everything that looks the function
    up in ``torch.nn.functional`` or ``torch._C._nn`` gets Tandem's, in all threads of the process.
    Blocks may nest and may overlap between threads: the last one to end puts torch's back.

    Not reached are ``torch.ops.aten.scaled_dot_product_attention``, C++ callers, the fast path of
    ``torch.nn.MultiheadAttention`` and ``TransformerEncoderLayer`` in evaluation without gradients,
    and modules that imported the function by name before.
    """
    global _depth, _originals
    with _lock:
        if _depth == 0:
            found = tuple(getattr(place, _NAME) for place in _PLACES)
            # One that was put over ours and back is ours still.
            _originals = tuple(
                old if new is _replacement else new
                for new, old in zip(found, _originals, strict=True)
            )
            for place in _PLACES:
                setattr(place, _NAME, _replacement)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                for place, original in zip(_PLACES, _originals, strict=True):
                    # What replaced it inside the block stays.
                    if getattr(place, _NAME) is _replacement:
                        setattr(place, _NAME, original)
