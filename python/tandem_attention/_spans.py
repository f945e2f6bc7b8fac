# SPDX-License-Identifier: MIT OR Apache-2.0
"""Spans as such: to and from masks of a byte a pair, and one made of two. For masks.py."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._errors import InvalidArgumentError

Integers = NDArray[np.int64]
Spans = NDArray[np.int32]

LONGEST = 2**31 - 1


def to_numpy(name: str, value: Any) -> NDArray[Any]:
    """value as a numpy array, from any framework and device."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch, perhaps on a GPU
        value = value.detach().cpu()
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgumentError(f"{name} is a {type(value).__name__}, no array") from error


def integers(name: str, value: Any) -> Integers:
    array = to_numpy(name, value)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{name} is {array.dtype}, not of a type of whole numbers")
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(2**63 - 1))
    return array.astype(np.int64)


def size_of(name: str, value: Any) -> int:
    try:
        size = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} is {value!r}, which is no whole number") from None
    if not 0 <= size <= LONGEST:
        raise InvalidArgumentError(f"{name} is {size}; it may be 0 to {LONGEST}")
    return size


def _intervals(pairs: list[tuple[int, int]]) -> str:
    said = [f"{begin} to {end - 1}" for begin, end in pairs[:4]]
    return ", ".join(said) + (", ..." if len(pairs) > 4 else "")


def _refuse(key: tuple[int, int, int], pairs: list[tuple[int, int]]) -> None:
    entry, head, at = key
    raise InvalidArgumentError(
        f"this mask is none of one or two intervals a key: key {at} of entry {entry}, head {head},"
        f" is seen by rows {_intervals(pairs)}, in {len(pairs)} intervals"
    )


def merged(bounds: Integers, width: int | None = None, entry: int = 0) -> Integers:
    """The union of any number of intervals a key, [batch, heads, Sk, 2 N], as disjoint ones, the
    first ones first, in the fewest numbers or in 2 width of them. entry: of the first row."""
    begins, ends = np.maximum(bounds[..., 0::2], 0), np.minimum(bounds[..., 1::2], LONGEST)
    empty = begins >= ends
    begins, ends = np.where(empty, LONGEST, begins), np.where(empty, LONGEST, ends)
    order = np.argsort(begins, -1, kind="stable")
    begins, ends = np.take_along_axis(begins, order, -1), np.take_along_axis(ends, order, -1)
    count = begins.shape[-1]
    reach = np.maximum.accumulate(ends, -1)
    fresh = np.ones(begins.shape, bool)
    fresh[..., 1:] = begins[..., 1:] > reach[..., :-1]
    fresh &= begins < LONGEST
    number = fresh.sum(-1)
    if number.size and number.max() > 2:
        key = tuple(np.argwhere(number > 2)[0].tolist())
        of = [n for n in range(count) if fresh[key][n]]
        live = int((begins[key] < LONGEST).sum())
        stops = [n - 1 for n in of[1:]] + [live - 1]
        pairs = [(int(begins[key][a]), int(reach[key][z])) for a, z in zip(of, stops, strict=True)]
        _refuse((key[0] + entry, key[1], key[2]), pairs)
    width = width or max(1, int(number.max(initial=0)))
    made = np.zeros((*number.shape, 2 * width), np.int64)
    place = fresh.cumsum(-1) - 1
    for n in range(width):
        mine = (place == n) & (begins < LONGEST)
        some = mine.any(-1)
        first = np.where(mine, begins, LONGEST).min(-1, initial=LONGEST)
        last = np.where(mine, reach, 0).max(-1, initial=0)
        made[..., 2 * n] = np.where(some, first, 0)
        made[..., 2 * n + 1] = np.where(some, last, 0)
    return made


def from_mask(mask: Any) -> Spans:
    """Spans of a mask, where it is one of one or two intervals a key.

    Args:
        mask: bool [Sq, Sk], [batch, Sq, Sk] or [batch, heads, Sq, Sk]; True where a row sees a key.

    Returns:
        int32 [batch, heads, Sk, 2], or [batch, heads, Sk, 4] where a key has two intervals.

    Raises:
        InvalidArgumentError: the rows that see a key have three or more intervals; the sentence
            names the first of these keys.
    """
    array = to_numpy("mask", mask)
    if array.dtype != np.bool_:
        raise InvalidArgumentError(f"mask is {array.dtype}, not bool")
    if not 2 <= array.ndim <= 4:
        raise InvalidArgumentError(f"mask has {array.ndim} dimensions, not 2, 3 or 4")
    if array.ndim == 2:
        array = array[None]
    if array.ndim == 3:
        array = array[:, None]
    batch, heads, _, keys = array.shape
    counts = np.zeros((batch, heads, keys), np.int64)
    made = np.zeros((batch, heads, keys, 4), np.int64)
    for b in range(batch):
        for h in range(heads):
            edge = np.zeros((1, keys), bool)
            shown = np.concatenate([edge, array[b, h], edge])
            # Of each key in turn: where intervals begin and end, one after the other.
            at, rows = np.nonzero((shown[1:] != shown[:-1]).T)
            edges = np.bincount(at, minlength=keys)
            counts[b, h] = edges // 2
            if keys and edges.max() > 4:
                key = int(np.argmax(edges > 4))
                own = rows[at == key].tolist()
                _refuse((b, h, key), list(zip(own[0::2], own[1::2], strict=True)))
            made[b, h, at, np.arange(at.size) - (edges.cumsum() - edges)[at]] = rows
    width = 4 if counts.max(initial=0) > 1 else 2
    return np.ascontiguousarray(made[..., :width], np.int32)


def _spans(name: str, value: Any) -> Integers:
    array = integers(name, value)
    if array.ndim != 4 or array.shape[3] not in (2, 4):
        raise InvalidArgumentError(
            f"{name} has the shape {list(array.shape)}, not [batch, heads, Sk, 2 or 4]"
        )
    return array


def to_mask(spans: Any, seq_q: int) -> NDArray[np.bool_]:
    """The mask that spans say, to look at or to test with: it has a byte for each pair.

    Args:
        spans: int [batch, heads, Sk, 2 or 4].
        seq_q: rows, Sq.

    Returns:
        bool [batch, heads, Sq, Sk].

    Raises:
        InvalidArgumentError: spans have another shape or are no whole numbers.
    """
    bounds = _spans("spans", spans)
    rows = np.arange(size_of("seq_q", seq_q))[:, None]
    shown = np.zeros((*bounds.shape[:2], rows.size, bounds.shape[2]), bool)
    for n in range(0, bounds.shape[3], 2):
        begins, ends = bounds[:, :, None, :, n], bounds[:, :, None, :, n + 1]
        shown |= (begins <= rows) & (rows < ends)
    return shown


def _alike(a: Any, b: Any) -> tuple[Integers, Integers]:
    """Both with the larger one's batch and heads, in groups as attention() reads them."""
    x, y = _spans("a", a), _spans("b", b)
    if x.shape[2] != y.shape[2]:
        raise InvalidArgumentError(f"a has {x.shape[2]} keys, b {y.shape[2]}")
    for axis, what in ((0, "batch entries"), (1, "heads")):
        one, other = x.shape[axis], y.shape[axis]
        low, high = sorted((one, other))
        if low != high and (low == 0 or high % low):
            raise InvalidArgumentError(
                f"a has {one} {what}, b {other}: none is a multiple of the other"
            )
        if one < high:
            x = x.repeat(high // one, axis)
        if other < high:
            y = y.repeat(high // other, axis)
    return x, y


def intersect(a: Any, b: Any) -> Spans:
    """Spans that show what both show, as a tree beside windows.

    Args:
        a: int [batch, heads, Sk, 2 or 4].
        b: as a, of as many keys; batch and heads may be a multiple or a divisor of a's.

    Returns:
        int32 [batch, heads, Sk, 2], or [..., 4] where a key has two intervals; batch and heads are
        the larger ones.

    Raises:
        InvalidArgumentError: shapes do not fit, or a key has three or more intervals.
    """
    x, y = _alike(a, b)
    parts = []
    for n in range(0, x.shape[3], 2):
        for m in range(0, y.shape[3], 2):
            parts.append(np.maximum(x[..., n], y[..., m]))
            parts.append(np.minimum(x[..., n + 1], y[..., m + 1]))
    return np.ascontiguousarray(merged(np.stack(parts, -1)), np.int32)


def union(a: Any, b: Any) -> Spans:
    """Spans that show what one of both shows, as documents beside a prefix that all see.

    Args: those of intersect().

    Returns:
        int32 [batch, heads, Sk, 2], or [..., 4] where a key has two intervals.

    Raises:
        InvalidArgumentError: shapes do not fit, or a key has three or more intervals.
    """
    return np.ascontiguousarray(merged(np.concatenate(_alike(a, b), -1)), np.int32)
