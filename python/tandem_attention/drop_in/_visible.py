# SPDX-License-Identifier: MIT OR Apache-2.0
"""Spans of masks of a byte for each pair, where the mask lies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def intervals(shown: Tensor) -> Tensor | None:
    """int32 [B, H, keys, 4] of a mask [B, H, Sq, keys]: the first and the last interval of rows of
    each key, the same where there is one. None where a key has more than two. As masks.from_mask(),
    but where the mask lies."""
    edge = shown.new_zeros((*shown.shape[:2], 1, shown.shape[3]))
    before, here = torch.cat([edge, shown], 2), torch.cat([shown, edge], 2)
    begins, ends = here & ~before, before & ~here
    if shown.shape[3] and int(begins.sum(2).max()) > 2:
        return None
    some = begins.any(2)
    bounds = []
    for of in (begins, ends):
        marks = of.to(torch.uint8)
        bounds.append((marks.argmax(2), some * (shown.shape[2] - marks.flip(2).argmax(2))))
    (first, last), (first_end, last_end) = bounds
    return torch.stack([first, first_end, last, last_end], -1).to(torch.int32)


def spans_of(pairs: Callable[[int, int], Tensor], keys: int, step: int) -> Tensor | None:
    """int32 [B, H, keys, 2 or 4]; None where a key has more than two intervals of rows.

    Args:
        pairs: the mask of the keys from begin to end, bool [B, H, Sq, end - begin].
        step: how many keys are looked at together.
    """
    parts = []
    for begin in range(0, keys, step):
        part = intervals(pairs(begin, min(begin + step, keys)))
        if part is None:
            return None
        parts.append(part)
    spans = torch.cat(parts, 2)
    one = bool((spans[..., :2] == spans[..., 2:]).all())
    return spans[..., :2].contiguous() if one else spans
