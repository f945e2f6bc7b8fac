# SPDX-License-Identifier: MIT OR Apache-2.0
"""Nested tensors of layout torch.jagged as packed sequences."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._errors import InvalidArgumentError, UnsupportedError
from ..torch import attention


class _Packed(NamedTuple):
    """Rows of all sequences one behind the other."""

    rows: Tensor  # [total, H, E]
    offsets: Tensor  # [B + 1]
    longest: int


def _packed(name: str, t: Tensor) -> _Packed:
    nested: Any = t
    if not t.is_nested:
        raise InvalidArgumentError(f"{name} is dense where others are nested tensors")
    if t.layout != torch.jagged:
        raise UnsupportedError(
            f"{name} is a nested tensor of layout {t.layout}; torch.jagged alone is possible"
        )
    if t.dim() not in (3, 4):
        raise InvalidArgumentError(
            f"{name} has {t.dim()} dimensions; a nested tensor has 3, [B, L, E], or 4, [B, H, L, E]"
        )
    if nested._ragged_idx != t.dim() - 2:
        raise InvalidArgumentError(
            f"{name} is ragged in dimension {nested._ragged_idx}, not {t.dim() - 2}"
        )
    if nested._lengths is not None:
        raise UnsupportedError(
            f"{name} has rows between its sequences, as torch.nested.narrow() leaves them;"
            " contiguous() takes them out, before a transpose()"
        )
    rows: Tensor = nested.values().unsqueeze(1) if t.dim() == 3 else nested.transpose(1, 2).values()
    return _Packed(rows, nested.offsets(), int(nested._get_max_seqlen()))


def jagged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """scaled_dot_product_attention() of nested tensors, in their order of dimensions.

    Args:
        query: [B, H, L of each sequence, E] or [B, L, E]. key and value: of one structure.
    """
    if attn_mask is not None:
        raise UnsupportedError("attn_mask with nested tensors: is_causal alone is possible")
    q, k, v = (_packed(n, t) for n, t in (("query", query), ("key", key), ("value", value)))
    if not query.dim() == key.dim() == value.dim():
        raise InvalidArgumentError(
            f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions"
        )
    counts = [p.offsets.shape[0] - 1 for p in (q, k, v)]
    if len(set(counts)) > 1:
        raise InvalidArgumentError(
            f"query, key and value have {counts[0]}, {counts[1]} and {counts[2]} sequences"
        )
    if k.offsets is not v.offsets and not torch.equal(k.offsets, v.offsets):
        raise InvalidArgumentError("the sequences of key and value differ in length")
    heads = [p.rows.shape[1] for p in (q, k, v)]
    if heads[1] != heads[2] or (not enable_gqa and heads[0] != heads[1]):
        raise InvalidArgumentError(
            f"query, key and value have {heads[0]}, {heads[1]} and {heads[2]} heads"
            + ("" if enable_gqa else "; enable_gqa=True lets key and value have fewer")
        )
    o = attention(
        q.rows, k.rows, v.rows, offsets_q=q.offsets, offsets_kv=k.offsets, max_seq_q=q.longest,
        max_seq_kv=k.longest, causal="top_left" if is_causal else False, scale=scale,
        dropout=dropout_p, layout="bshd",
    )  # fmt: skip
    if query.dim() == 3:
        o = o.squeeze(1)
    made: Any = torch.nested.nested_tensor_from_jagged(o, offsets=q.offsets)
    result: Tensor = made if query.dim() == 3 else made.transpose(1, 2)
    return result
