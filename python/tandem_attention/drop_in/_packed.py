# SPDX-License-Identifier: MIT OR Apache-2.0
"""lse of packed sequences: Tandem pads it, [n, H, longest]; other libraries pack it, [H, total]."""

from __future__ import annotations

import torch
from torch import Tensor


def _place(offsets: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """For each packed row, its sequence and its number within it. No look at the host."""
    rows = torch.arange(total, device=offsets.device, dtype=offsets.dtype)
    entry = torch.searchsorted(offsets[1:].contiguous(), rows, right=True)
    # Rows behind the last sequence belong to none; they read and write as if to the last one.
    entry = entry.clamp(max=max(offsets.shape[0] - 2, 0))
    return entry, rows - offsets[entry]


def pack_lse(lse: Tensor, offsets: Tensor, total: int) -> Tensor:
    """[n, H, longest] as [H, total]; minus infinity in rows of no sequence or behind longest."""
    longest = lse.shape[2]
    if not total or not lse.shape[0] or not longest:
        return lse.new_full((lse.shape[1], total), float("-inf"))
    entry, row = _place(offsets, total)
    inside = (row < offsets[1:][entry] - offsets[entry]) & (row < longest)
    packed = lse[entry, :, row.clamp(max=longest - 1)]
    return packed.masked_fill(~inside[:, None], float("-inf")).T


def pad_lse(lse: Tensor, offsets: Tensor, longest: int) -> Tensor:
    """[H, total] as [n, H, longest]; minus infinity behind each sequence."""
    count = offsets.shape[0] - 1
    padded = lse.new_full((count, lse.shape[0], longest), float("-inf"))
    if not lse.shape[1] or not count:
        return padded
    entry, row = _place(offsets, lse.shape[1])
    inside = (row < offsets[1:][entry] - offsets[entry]) & (row < longest)
    entry, row = entry[inside], row[inside]
    padded[entry, :, row] = lse.T[inside]
    return padded
