# SPDX-License-Identifier: MIT OR Apache-2.0
"""Spans of the masks that models train with: documents, prefix trees, prefixes, images, windows.

A span is an interval of query rows that see a key. Spans are what ``attention(..., spans=)`` takes:
int32 [batch, heads, Sk, 2] or [batch, heads, Sk, 4], for each key begin and end of one interval or
of two. Row i, counted within its sequence, sees key j where begin <= i < end in one of them;
begin >= end is an empty interval, and what lies outside of the sequence has no effect. The other
arguments of a call hide keys as well: a row sees what ``spans``, ``causal``, ``window``, lengths
and ``keep`` all show. All functions here say what a row sees by themselves, with ``causal=False``.

Arguments come as numbers, lists, numpy arrays, torch tensors, or anything that numpy can read.
Results are numpy arrays, [batch, 1, Sk, 2] where nothing else is said: torch takes them by
``torch.from_numpy(spans)``. Where an argument has a row for each batch entry, it may be a list of
rows of different lengths.

Every error is an ``InvalidArgumentError``, which is a ``ValueError``.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ._blocks import Blocks
from ._errors import InvalidArgumentError
from ._options import Window, truth
from ._spans import (
    LONGEST,
    Integers,
    Spans,
    from_mask,
    integers,
    intersect,
    merged,
    size_of,
    to_mask,
    to_numpy,
    union,
)

__all__ = [
    "Blocks",
    "document_ids",
    "documents",
    "flashmask",
    "from_mask",
    "global_tokens",
    "image_spans",
    "intersect",
    "prefix",
    "to_mask",
    "tree",
    "tree_times",
    "union",
    "windows",
]


def _row(name: str, value: Any) -> Integers:
    row = integers(name, value)
    if row.ndim != 1:
        raise InvalidArgumentError(f"{name} has {row.ndim} dimensions, not 1")
    return row


def _rows(name: str, value: Any) -> list[Integers]:
    """One row of whole numbers for each batch entry; one row alone is a batch of 1."""
    if isinstance(value, (list, tuple)):
        nested = [isinstance(x, (list, tuple)) or np.ndim(x) > 0 for x in value]
        if value and all(nested):
            return [_row(f"{name}[{n}]", x) for n, x in enumerate(value)]
        if any(nested):
            raise InvalidArgumentError(f"{name} has both numbers and rows of numbers")
    array = integers(name, value)
    if array.ndim not in (1, 2):
        raise InvalidArgumentError(f"{name} has {array.ndim} dimensions, not 1 or 2")
    return list(array) if array.ndim == 2 else [array]


def _longest(totals: list[int], seq: Any) -> int:
    """seq, or the longest of all entries; holds both against each other."""
    longest = max(totals, default=0)
    if seq is None:
        return size_of("the sum of lengths", longest)
    size = size_of("seq", seq)
    if longest > size:
        entry = totals.index(longest)
        raise InvalidArgumentError(f"lengths of entry {entry} add up to {longest}, seq is {size}")
    return size


def _check_lengths(rows: list[Integers]) -> None:
    for entry, row in enumerate(rows):
        if (row < 0).any():
            raise InvalidArgumentError(f"lengths of entry {entry} have {row.min()}, below 0")


def _bounds(lengths: Any, seq: Any) -> tuple[Integers, Integers]:
    """Begin and end of the document of each position, [batch, seq]; 0 and 0 behind the last."""
    rows = _rows("lengths", lengths)
    _check_lengths(rows)
    size = _longest([sum(row.tolist()) for row in rows], seq)  # may be beyond 64 bits
    begins, ends = np.zeros((2, len(rows), size), np.int64)
    for n, row in enumerate(rows):
        stops = row.cumsum()
        total = int(row.sum())
        begins[n, :total] = np.repeat(stops - row, row)
        ends[n, :total] = np.repeat(stops, row)
    return begins, ends


def _made(*bounds: Integers) -> Spans:
    """[batch, 1, Sk, 2 or 4] of begins and ends [batch, Sk]."""
    return np.ascontiguousarray(np.stack(bounds, -1)[:, None], np.int32)


def _band(window: Any) -> tuple[int, int]:
    """(left, right), of which unbounded sides reach over any sequence."""
    if window is None:
        window = (None, None)
    try:
        left, right = window
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"window is (left, right) or None, not {window!r}") from None
    sides = []
    for name, value in (("window[0]", left), ("window[1]", right)):
        try:
            size = -1 if value is None else operator.index(value)
        except TypeError:
            raise InvalidArgumentError(f"{name} is {value!r}, which is no whole number") from None
        if size < -1:
            raise InvalidArgumentError(f"{name} is {size}; it may be -1, which is unbounded, or up")
        sides.append(min(size, LONGEST) if size >= 0 else LONGEST)
    return sides[0], sides[1]


def documents(lengths: Any, seq: int | None = None, *, causal: bool = True) -> Spans:
    """Documents one behind the other in a row: each position sees its own document alone.

    Pretraining and fine-tuning pack documents so. Packed tensors with offsets do the same; spans
    keep the batch as it is.

    Args:
        lengths: [N] or [batch, N], whole numbers from 0: the length of each document. Rows may
            differ in N.
        seq: positions of a row; those behind the last document see nothing and are seen by none.
            By default the largest sum of lengths.
        causal: a position sees those before it and itself; else its whole document.

    Returns:
        int32 [batch, 1, seq, 2].

    Raises:
        InvalidArgumentError: lengths are no whole numbers from 0, or add up to more than seq.
    """
    begins, ends = _bounds(lengths, seq)
    if truth("causal", causal):
        begins = np.minimum(np.arange(ends.shape[1]), ends)
    return _made(begins, ends)


def document_ids(ids: Any, *, causal: bool = True) -> Spans:
    """documents(), of the document's number at each position.

    Args:
        ids: [seq] or [batch, seq], whole numbers. Positions with the same number, one behind the
            other, are a document; a number below 0 is padding, which sees nothing.
        causal: as in documents().

    Returns:
        int32 [batch, 1, seq, 2].

    Raises:
        InvalidArgumentError: a document goes on behind another one, or rows differ in length.
    """
    rows = _rows("ids", ids)
    if len({row.size for row in rows}) > 1:
        raise InvalidArgumentError(f"ids have rows of lengths {[row.size for row in rows]}")
    begins, ends = np.zeros((2, len(rows), rows[0].size if rows else 0), np.int64)
    for n, row in enumerate(rows):
        starts = np.flatnonzero(np.diff(row, prepend=row[:1] - 1))
        stops = np.append(starts[1:], row.size)
        seen: dict[int, int] = {}
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=False):
            number = int(row[start])
            if number < 0:
                continue
            if number in seen:
                raise InvalidArgumentError(
                    f"document {number} of entry {n} begins at position {seen[number]} and goes on"
                    f" at {start}, behind another one"
                )
            seen[number] = start
            begins[n, start:stop], ends[n, start:stop] = start, stop
    if truth("causal", causal):
        begins = np.minimum(np.arange(ends.shape[1]), ends)
    return _made(begins, ends)


def _ends_of_subtrees(parents: Integers, lengths: Integers, entry: int) -> tuple[Any, Any]:
    """Where each segment begins, and where the last one of its subtree ends."""
    if parents.size != lengths.size:
        raise InvalidArgumentError(
            f"entry {entry} has {parents.size} parents and {lengths.size} lengths"
        )
    stops = lengths.cumsum()
    ends = stops.copy()
    path: list[int] = []  # from the root to the segment before
    for n, parent in enumerate(parents.tolist()):
        if not -1 <= parent < n:
            raise InvalidArgumentError(
                f"the parent of segment {n} of entry {entry} is {parent}; it is -1, of a root, or"
                f" a segment before it"
            )
        while path and path[-1] != parent:
            path.pop()
        if parent >= 0 and not path:
            raise InvalidArgumentError(
                f"segment {n} of entry {entry} does not follow its parent {parent} depth first:"
                f" other segments lie between that one's subtree and it"
            )
        path.append(n)
    for n in range(parents.size - 1, -1, -1):
        if parents[n] >= 0:
            ends[parents[n]] = max(ends[parents[n]], ends[n])
    return stops - lengths, ends


def tree(parents: Any, lengths: Any = None, seq: int | None = None) -> Spans:
    """A prefix tree: a position sees itself and those before it of its segment and its ancestors.

    So a prompt and its R responses share one row (GRPO and other RL), and so do the turns of
    conversations that branch. Segments lie depth first: each segment is followed by its subtree. A
    key is seen by the rows from itself to the end of its subtree, which is one interval.

    Args:
        parents: [N] or [batch, N], whole numbers: the parent of each segment, an index that is
            smaller than its own, or -1 of a root. There may be several roots, which do not see
            each other. Rows may differ in N. A prompt with R responses is [-1, 0, 0, ...].
        lengths: as parents, whole numbers from 0: positions of each segment; by default 1.
        seq: positions of a row; those behind the last segment see nothing and are seen by none. By
            default the largest sum of lengths.

    Returns:
        int32 [batch, 1, seq, 2].

    Raises:
        InvalidArgumentError: segments do not lie depth first, parents and lengths do not fit each
            other, or lengths add up to more than seq.
    """
    of = _rows("parents", parents)
    rows = [np.ones_like(p) for p in of] if lengths is None else _rows("lengths", lengths)
    if len(of) != len(rows):
        raise InvalidArgumentError(f"parents have {len(of)} rows, lengths {len(rows)}")
    _check_lengths(rows)
    size = _longest([sum(row.tolist()) for row in rows], seq)  # may be beyond 64 bits
    begins, ends = np.zeros((2, len(rows), size), np.int64)
    for n, (p, row) in enumerate(zip(of, rows, strict=True)):
        _, stops = _ends_of_subtrees(p, row, n)
        total = int(row.sum())
        begins[n, :total] = np.arange(total)
        ends[n, :total] = np.repeat(stops, row)
    return _made(begins, ends)


def tree_times(tin: Any, tout: Any) -> Spans:
    """tree(), of the times at which a tour enters and leaves: tin[j] <= tin[i] < tout[j], j <= i.

    Tree packers for RL give the mask in this form. Times may be of positions or of their segments.

    Args:
        tin: [seq] or [batch, seq], whole numbers that do not fall along a row: positions lie depth
            first.
        tout: as tin. A key with tout <= tin is seen by none.

    Returns:
        int32 [batch, 1, seq, 2].

    Raises:
        InvalidArgumentError: tin falls somewhere, or the shapes differ.
    """
    first, last = _rows("tin", tin), _rows("tout", tout)
    if [row.size for row in first] != [row.size for row in last]:
        raise InvalidArgumentError("tin and tout have different shapes")
    if len({row.size for row in first}) > 1:
        raise InvalidArgumentError(f"tin has rows of lengths {[row.size for row in first]}")
    begins, ends = np.zeros((2, len(first), first[0].size if first else 0), np.int64)
    for n, (enter, leave) in enumerate(zip(first, last, strict=True)):
        falls = np.flatnonzero(enter[1:] < enter[:-1])
        if falls.size:
            at = int(falls[0])
            raise InvalidArgumentError(
                f"tin of entry {n} falls from {enter[at]} to {enter[at + 1]} at position {at + 1}:"
                f" positions do not lie depth first"
            )
        ends[n] = np.searchsorted(enter, leave)
        begins[n] = np.minimum(np.arange(enter.size), ends[n])
    return _made(begins, ends)


def prefix(lengths: Any, seq: int) -> Spans:
    """Prefix LM: all see the prefix, which sees itself both ways; what follows is causal.

    T5 and UL2 as prefix models, PaliGemma and other models of images and text use it.

    Args:
        lengths: a whole number or [batch], 0 to seq: the prefix of each entry.
        seq: positions of a row.

    Returns:
        int32 [batch, 1, seq, 2].

    Raises:
        InvalidArgumentError: a prefix is longer than seq or below 0.
    """
    size = size_of("seq", seq)
    own = np.atleast_1d(integers("lengths", lengths))
    if own.ndim != 1:
        raise InvalidArgumentError(f"lengths has {own.ndim} dimensions, not 1")
    for n, length in enumerate(own.tolist()):
        if not 0 <= length <= size:
            raise InvalidArgumentError(
                f"the prefix of entry {n} is {length} long; it may be 0 to {size}"
            )
    at = np.arange(size)
    begins = np.where(at < own[:, None], 0, at)
    return _made(begins, np.full_like(begins, size))


def image_spans(seq: int, images: Any) -> Spans:
    """Causal, and both ways within each image: a key of an image is seen from its first row on.

    Gemma 3 and 4 and other models whose text has images within it use it.

    Args:
        seq: positions of a row.
        images: (begin, end) of each image, [N, 2], or a list of these arrays, one for each entry.

    Returns:
        int32 [batch, 1, seq, 2].

    Raises:
        InvalidArgumentError: an image does not lie within the row.
    """
    size = size_of("seq", seq)
    if not isinstance(images, (list, tuple)):
        images = integers("images", images)
        if images.ndim not in (2, 3):
            raise InvalidArgumentError(f"images has {images.ndim} dimensions, not 2 or 3")
        entries = list(images) if images.ndim == 3 else [images]
    else:
        shapes = [to_numpy("images", entry).shape for entry in images]
        batched = any(len(shape) == 2 or shape == (0,) for shape in shapes)
        entries = list(images) if batched else [images]
    begins = np.tile(np.arange(size), (len(entries), 1))
    for n, entry in enumerate(entries):
        pairs = integers(f"the images of entry {n}", entry)
        if pairs.size and (pairs.ndim != 2 or pairs.shape[1] != 2):
            raise InvalidArgumentError(
                f"the images of entry {n} have the shape {list(pairs.shape)}, not [N, 2]"
            )
        for begin, end in pairs.reshape(-1, 2).tolist():
            if not 0 <= begin <= end <= size:
                raise InvalidArgumentError(
                    f"an image of entry {n} is ({begin}, {end}), which does not lie in 0 to {size}"
                )
            begins[n, begin:end] = np.minimum(begins[n, begin:end], begin)
    return _made(begins, np.full_like(begins, size))


def windows(window: Window | None, lengths: Any, seq: int | None = None) -> Spans:
    """A sliding window within documents: keys from i - left to i + right, of i's document.

    Layers with windows (Mistral, Gemma, gpt-oss) on packed documents use it. ``window=`` of
    attention() beside documents() shows the same keys; this gives each head or entry its own.

    Args:
        window: (left, right) as in attention(): keys on both sides of a row; -1 or None is
            unbounded. (left, 0) is causal.
        lengths: of documents, as in documents().
        seq: as in documents().

    Returns:
        int32 [batch, 1, seq, 2].

    Raises:
        InvalidArgumentError: as documents(); window is no pair of whole numbers from -1.
    """
    left, right = _band(window)
    begins, ends = _bounds(lengths, seq)
    at = np.arange(begins.shape[1])
    inside = at < ends  # no key behind the last document
    return _made(
        np.where(inside, np.maximum(begins, at - right), 0),
        np.where(inside, np.minimum(ends, at + left + 1), 0),
    )


def global_tokens(
    seq: int,
    tokens: Any,
    window: Window | None = (None, 0),
    *,
    causal: bool = True,
    rows: bool = False,
) -> Spans:
    """A window, and keys that are seen from everywhere.

    StreamingLLM has attention sinks at the start of a row beside a window; Longformer and BigBird
    have global tokens.

    Args:
        seq: positions of a row.
        tokens: [N] or [batch, N], positions that are global. Rows may differ in N.
        window: (left, right) of all other keys; -1 or None is unbounded.
        causal: no row sees a key behind it, whatever window and tokens say.
        rows: the rows of global tokens see every key, too.

    Returns:
        int32 [batch, 1, seq, 2]; with rows, [batch, 1, seq, 4].

    Raises:
        InvalidArgumentError: a token lies outside of the row; or the rows that see a key have three
            or more intervals, which happens where global tokens lie in several places.
    """
    size = size_of("seq", seq)
    left, right = _band(window)
    entries = _rows("tokens", tokens)
    at = np.arange(size)
    lowest = at if truth("causal", causal) else np.zeros_like(at)
    made = []
    for n, entry in enumerate(entries):
        for token in entry.tolist():
            if not 0 <= token < size:
                raise InvalidArgumentError(
                    f"tokens of entry {n} have {token}, which does not lie in 0 to {size}"
                )
        wide = np.zeros(size, bool)
        wide[entry] = True
        begins = np.where(wide, lowest, np.maximum(at - right, lowest))
        ends = np.where(wide, size, np.minimum(at + left + 1, size))
        bounds = np.stack([begins, ends], -1)[None, None]
        if rows:
            edges = np.flatnonzero(np.diff(wide, prepend=False, append=False))
            blocks = np.tile(edges, (size, 1))
            blocks[:, 0::2] = np.maximum(blocks[:, 0::2], lowest[:, None])
            bounds = merged(np.concatenate([bounds, blocks[None, None]], -1), 2, n)
        made.append(bounds)
    width = 4 if rows else 2
    empty = np.zeros((0, 1, size, width), np.int64)
    return np.ascontiguousarray(np.concatenate([empty, *made]), np.int32)


def flashmask(startend_row_indices: Any, *, causal: bool) -> Spans:
    """Spans of the indices that PaddlePaddle's FlashMask takes, which say what rows are hidden.

    Args:
        startend_row_indices: int [batch, heads, S, 1, 2 or 4], as of paddle's flashmask_attention.
            causal: of each key the first hidden row, or begin and end of the hidden rows. Else the
            first hidden row and the end of the hidden rows above, or begin and end of both.
        causal: as of flashmask_attention: rows before a key do not see it.

    Returns:
        int32 [batch, heads, S, 2], or [batch, heads, S, 4] where a key has two intervals.

    Raises:
        InvalidArgumentError: the shape is another one, or does not go with causal; or the rows that
            see a key have three intervals.
    """
    rows = integers("startend_row_indices", startend_row_indices)
    causal = truth("causal", causal)
    numbers = (1, 2) if causal else (2, 4)
    if rows.ndim != 4 or rows.shape[3] not in numbers:
        raise InvalidArgumentError(
            f"startend_row_indices has the shape {list(rows.shape)}; with causal={causal} it is"
            f" [batch, heads, S, {numbers[0]} or {numbers[1]}]"
        )
    size, wide = rows.shape[2], rows.shape[3] == numbers[1]
    first = np.broadcast_to(np.arange(size) if causal else 0, rows.shape[:3])
    last = np.full_like(first, size)
    # The rows below the hidden ones and those above, of the first pair and of the second.
    low = rows[..., 0], rows[..., 1] if wide else last
    shown = np.stack([first, low[0], np.maximum(low[1], first), last], -1)
    if causal:
        return intersect(shown, shown)
    up = (rows[..., 2], rows[..., 3]) if wide else (first, rows[..., 1])
    return intersect(shown, np.stack([first, up[0], up[1], last], -1))
