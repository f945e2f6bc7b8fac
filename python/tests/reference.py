# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention in double, by the formulas of docs/guide/semantics.md, one row after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _entmax(z: Array, alpha: float) -> tuple[Array, float]:
    """Weights and threshold of one row of (alpha - 1) s, by bisection."""
    low, high = z.max() - 1.0, z.max()
    for _ in range(200):
        mid = 0.5 * (low + high)
        if (np.maximum(z - mid, 0) ** (1 / (alpha - 1))).sum() >= 1:
            low = mid
        else:
            high = mid
    y = np.maximum(z - low, 0) ** (1 / (alpha - 1))
    return y, low


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    bias: Array | None = None,
    keep: Array | None = None,
    spans: Array | None = None,
    bias_table: Array | None = None,
    bias_index: Array | None = None,
    dist_bias: Array | None = None,
    slope: Array | None = None,
    tau: Array | None = None,
    sink: Array | None = None,
    lengths_q: Array | None = None,
    lengths_kv: Array | None = None,
    scale: float | None = None,
    causal: bool | str = False,
    align: str = "top_left",
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    normalizer: str = "softmax",
    alpha: float = 1.5,
) -> tuple[Array, Array]:
    """o and lse of [B, H, S, D] arrays, in double."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (batch, heads, rows, width), keys = q.shape, k.shape[2]
    group = heads // k.shape[1]
    if isinstance(causal, str):
        align, causal = causal, True
    scale = width**-0.5 if scale is None else scale
    o = np.zeros((batch, heads, rows, v.shape[3]))
    lse = np.full((batch, heads, rows), -np.inf)
    full = (batch, heads, rows, keys)

    def whole(x: Array) -> Array:
        x = np.asarray(x).reshape((1,) * (4 - np.ndim(x)) + np.shape(x))
        if x.shape[1] not in (1, heads):
            x = x.repeat(group, 1)
        return np.broadcast_to(x, full)

    spans = (
        None if spans is None else np.asarray(spans).reshape((1,) * (4 - spans.ndim) + spans.shape)
    )
    bias = None if bias is None else whole(np.asarray(bias, np.float64))
    keep = None if keep is None else whole(keep)
    for b in range(batch):
        n_q = rows if lengths_q is None else int(lengths_q[b])
        n_k = keys if lengths_kv is None else int(lengths_kv[b])
        off = n_k - n_q if align == "bottom_right" else 0
        for h in range(heads):
            for i in range(n_q):
                j = np.arange(n_k)
                t = i + off - j
                seen = np.ones(n_k, bool)
                if causal:
                    seen &= t >= 0
                if window[0] >= 0:
                    seen &= t <= window[0]
                if window[1] >= 0:
                    seen &= -t <= window[1]
                count = seen.sum()
                if spans is not None:
                    entry = spans[b // (batch // spans.shape[0])]
                    of = entry[h // (heads // spans.shape[1]), :n_k]
                    seen &= ((of[:, 0::2] <= i) & (i < of[:, 1::2])).any(1)
                if keep is not None:
                    seen &= keep[b, h, i, :n_k].astype(bool)
                s = k[b, h // group, :n_k] @ q[b, h, i] * scale
                if softcap:
                    s = softcap * np.tanh(s / softcap)
                if bias is not None:
                    s = s + bias[b, h, i, :n_k]
                if bias_table is not None and bias_index is not None:
                    index = np.asarray(bias_index).astype(np.int64).reshape(-1, rows, keys)
                    of = index[b // (batch // len(index)), i, :n_k]
                    entry = (of >= 0) & (of < bias_table.shape[1])
                    s = s + np.where(entry, bias_table[h, np.where(entry, of, 0)], 0)
                if dist_bias is not None:
                    near = (t >= 0) & (t < dist_bias.shape[1])
                    s = s + np.where(near, dist_bias[h, np.where(near, t, 0)], 0)
                if slope is not None:
                    s = s - slope[h] * np.abs(t)
                seen &= s > -np.inf
                if not seen.any():
                    continue
                s = s[seen]
                if normalizer == "entmax":
                    y, lse[b, h, i] = _entmax((alpha - 1) * s, alpha)
                else:
                    top = s.max() if sink is None else max(s.max(), sink[h])
                    total = np.exp(s - top).sum()
                    if sink is not None:
                        total += np.exp(sink[h] - top)
                    lse[b, h, i] = top + np.log(total)
                    y = np.exp(s - lse[b, h, i])
                    if normalizer == "elastic":
                        assert tau is not None
                        y = np.maximum(y + tau[h] / count, 0)
                o[b, h, i] = y @ v[b, h // group, :n_k][seen]
    return o, lse
