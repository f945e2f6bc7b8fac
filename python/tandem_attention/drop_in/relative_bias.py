# SPDX-License-Identifier: MIT OR Apache-2.0
"""Modules with a learned bias of relative positions: T5's buckets and Swin's windows.

The bias goes to the kernels as it is shared, one for all of the batch. Its gradient is summed there
and flows on to the table.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import InvalidArgumentError, UnsupportedError
from ..torch import attention


def relative_position_bucket(
    relative_position: Tensor,
    bidirectional: bool = True,
    num_buckets: int = 32,
    max_distance: int = 128,
) -> Tensor:
    """T5's bucket of each relative position.

    Half of a direction's buckets hold one distance each. The others grow logarithmically up to
    max_distance, and the last one holds all that is farther.

    Args:
        relative_position: integers, key position minus query position, any shape.
        bidirectional: each direction has half of the buckets; else keys ahead count as distance 0.
        num_buckets: of both directions together.
        max_distance: from here on, all distances share a bucket.

    Returns:
        int64 of the same shape, in [0, num_buckets).
    """
    if bidirectional:
        count = num_buckets // 2
        ahead = (relative_position > 0).long() * count
        distance = relative_position.abs()
    else:
        count = num_buckets
        ahead = torch.zeros_like(relative_position, dtype=torch.long)
        distance = (-relative_position).clamp(min=0)
    exact = count // 2
    if exact < 1 or max_distance <= exact:
        raise InvalidArgumentError(
            f"{num_buckets} buckets and a max_distance of {max_distance} leave no room for growth"
        )
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
    return ahead + torch.where(distance < exact, distance.long(), far)


class T5RelativeAttention(nn.Module):
    """T5's attention: no scale, and a bias for each head and bucket of relative positions.

    Parameters have the names of Hugging Face's T5Attention, so its state dict loads: ``q``, ``k``,
    ``v``, ``o`` (without bias) and ``relative_attention_bias.weight`` [num_buckets, H].

    A bidirectional layer has a bias [1, H, Sq, Sk]. A causal one needs none: behind max_distance
    all keys share a bucket, and softmax does not change when every score of a row is moved by the
    same number. So the last bucket's number is taken off, and what is left is a distance bias
    [H, max_distance] without a matrix.

    Args:
        d_model: features of input and output.
        d_kv: size of a head.
        num_heads: H.
        relative_attention_num_buckets, relative_attention_max_distance: of
            relative_position_bucket().
        has_relative_attention_bias: whether the layer has the table; in T5 the first one alone,
            whose position_bias the others take.
        is_decoder: keys ahead are hidden, buckets are of one direction.
        dropout: of the weights, while training.
    """

    def __init__(
        self,
        d_model: int,
        d_kv: int,
        num_heads: int,
        relative_attention_num_buckets: int = 32,
        relative_attention_max_distance: int = 128,
        has_relative_attention_bias: bool = False,
        is_decoder: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_heads = num_heads
        self.key_value_proj_dim = d_kv
        self.relative_attention_num_buckets = relative_attention_num_buckets
        self.relative_attention_max_distance = relative_attention_max_distance
        self.has_relative_attention_bias = has_relative_attention_bias
        self.is_decoder = is_decoder
        self.dropout = dropout
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        if has_relative_attention_bias:
            self.relative_attention_bias = nn.Embedding(relative_attention_num_buckets, num_heads)

    def _buckets(self, relative_position: Tensor) -> Tensor:
        return relative_position_bucket(
            relative_position,
            not self.is_decoder,
            self.relative_attention_num_buckets,
            self.relative_attention_max_distance,
        )

    def compute_bias(self, query_length: int, key_length: int) -> Tensor:
        """The bias of both directions or one, [1, H, query_length, key_length].

        Queries are the last ones of a decoder's keys, and start with them in an encoder.
        """
        device = self.relative_attention_bias.weight.device
        first = key_length - query_length if self.is_decoder else 0
        queries = torch.arange(query_length, device=device)[:, None] + first
        keys = torch.arange(key_length, device=device)[None, :]
        values: Tensor = self.relative_attention_bias(self._buckets(keys - queries))
        return values.permute(2, 0, 1).contiguous().unsqueeze(0)

    def compute_distance_bias(self) -> Tensor:
        """A decoder's bias [H, max_distance], less the number that all farther keys share."""
        table = self.relative_attention_bias.weight
        distances = torch.arange(self.relative_attention_max_distance, device=table.device)
        last = self.relative_attention_num_buckets - 1
        values: Tensor = table[self._buckets(-distances)] - table[last]
        return values.T

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends.

        Args:
            hidden_states: [B, Sq, d_model].
            mask: bool [B or 1, H or 1, Sq or 1, Sk]; True keeps a key. An additive mask is refused.
            key_value_states: [B, Sk, d_model]; by default hidden_states. With them, nothing is
                causal.
            position_bias: what an earlier layer returned: [1, H, Sq, Sk], or a distance bias
                [H, W].

        Returns:
            (out, position_bias): out is [B, Sq, d_model], position_bias what it was computed with,
            None without a table.

        Raises:
            UnsupportedError: mask is not bool.
        """
        if mask is not None and mask.dtype != torch.bool:
            raise UnsupportedError(
                f"mask is {mask.dtype}: an additive one would have to join the bias of every batch"
                " entry, [B, H, Sq, Sk]; give it as bool, mask == 0, where True keeps a key"
            )
        source = hidden_states if key_value_states is None else key_value_states
        causal = self.is_decoder and key_value_states is None

        def heads(t: Tensor) -> Tensor:
            return t.reshape(*t.shape[:-1], self.n_heads, self.key_value_proj_dim)

        q, k, v = heads(self.q(hidden_states)), heads(self.k(source)), heads(self.v(source))
        if position_bias is None and self.has_relative_attention_bias:
            position_bias = (
                self.compute_distance_bias() if causal
                else self.compute_bias(q.shape[1], k.shape[1])
            )  # fmt: skip
        flat = position_bias is not None and position_bias.dim() == 2
        if flat and not causal:
            raise InvalidArgumentError("a distance bias is for keys up to the query: a decoder's")
        o = attention(
            q, k, v, layout="bshd", scale=1.0, keep=mask,
            bias=None if flat else position_bias, dist_bias=position_bias if flat else None,
            causal="bottom_right" if causal else False,
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return self.o(o.flatten(2)), position_bias


def window_position_index(height: int, width: int) -> Tensor:
    """For each pair of positions in a window, the row of Swin's table, int64 [N, N], N = h w."""
    rows = torch.arange(height).repeat_interleave(width)
    cols = torch.arange(width).repeat(height)
    down = rows[:, None] - rows[None, :] + height - 1
    right = cols[:, None] - cols[None, :] + width - 1
    return down * (2 * width - 1) + right


def shifted_window_keep(
    height: int, width: int, window: tuple[int, int], shift: tuple[int, int]
) -> Tensor:
    """Which keys a query of a shifted window keeps: those of its own part of the image.

    Args:
        height, width: of the image, multiples of the window's.
        window: (height, width) of a window.
        shift: how far the image was rolled up and left.

    Returns:
        bool [nW, N, N], windows in rows from the top left; True keeps.
    """
    if height % window[0] or width % window[1]:
        raise InvalidArgumentError(
            f"an image of {height} x {width} has no whole number of windows of {list(window)}"
        )

    def part(size: int, block: int, step: int) -> Tensor:
        at = torch.arange(size)
        return (at >= size - block).long() + (at >= size - step).long() * (step > 0)

    parts = part(height, window[0], shift[0])[:, None] * 3 + part(width, window[1], shift[1])
    tiles = parts.view(height // window[0], window[0], width // window[1], window[1])
    label = tiles.permute(0, 2, 1, 3).reshape(-1, window[0] * window[1])
    return label[:, :, None] == label[:, None, :]


class SwinWindowAttention(nn.Module):
    """Swin's attention within windows, with a learned bias for each relative position.

    Parameters have the names of timm's and torchvision's modules, so their state dicts load:
    ``relative_position_bias_table`` [(2 h - 1) (2 w - 1), H], ``qkv``, ``proj``. The buffer
    ``relative_position_index`` is not in the state dict; one that is loaded must hold the same.

    Args:
        dim: features of input and output.
        num_heads: H.
        head_dim: dim / num_heads by default.
        window_size: side of a window, or (height, width).
        qkv_bias: whether q, k and v have a bias.
        attn_drop: dropout of the weights, while training.
        proj_drop: dropout of the output, while training.
    """

    relative_position_index: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int | None = None,
        window_size: int | tuple[int, int] = 7,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if isinstance(window_size, int):
            window_size = (window_size, window_size)
        height, width = self.window_size = (int(window_size[0]), int(window_size[1]))
        self.window_area = height * width
        self.num_heads = num_heads
        self.head_dim = head_dim or dim // num_heads
        self.attn_drop = attn_drop
        inner = self.head_dim * num_heads
        self.relative_position_bias_table = nn.Parameter(
            torch.empty((2 * height - 1) * (2 * width - 1), num_heads)
        )
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.register_buffer(
            "relative_position_index", window_position_index(height, width), persistent=False
        )
        self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias)
        self.proj = nn.Linear(inner, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self._seen: tuple[weakref.ref[Tensor], int, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A weak reference can be neither copied nor pickled.
        return {**self.__dict__, "_seen": None}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        index = state_dict.pop(prefix + "relative_position_index", None)
        if index is not None and not torch.equal(
            index.flatten().cpu(), self.relative_position_index.flatten().cpu()
        ):
            args[-1].append(f"{prefix}relative_position_index is that of another window")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _keep(self, mask: Tensor, windows: int) -> Tensor:
        """[nW, N, N] as bool [windows, 1, N, N], a copy for each image: windows N N bytes."""
        n = self.window_area
        if mask.dim() != 3 or tuple(mask.shape[1:]) != (n, n) or not mask.shape[0]:
            raise InvalidArgumentError(f"mask is {list(mask.shape)}, not [nW, {n}, {n}]")
        count = mask.shape[0]
        if windows % count:
            raise InvalidArgumentError(
                f"{windows} windows are no whole number of images of {count}"
            )
        if mask.dtype != torch.bool:
            mask = self._hides(mask)
        # The window is the fast part of the batch, and keep has one stride for all of it: there is
        # no view that repeats nW entries.
        return mask.expand(windows // count, *mask.shape).reshape(windows, 1, n, n)

    def _hides(self, mask: Tensor) -> Tensor:
        """An additive mask of 0 and at most -100 as bool; looked at once for each mask."""
        if self._seen is not None:
            seen, version, keep = self._seen
            if seen() is mask and version == mask._version:
                return keep
        with torch.inference_mode(False):  # a later call may be one of training
            keep = mask == 0
        if mask.requires_grad or not bool((keep | (mask <= -100)).all()):
            raise UnsupportedError(
                "mask is neither bool nor made of 0 and numbers up to -100: added to the bias it"
                " would need a bias for every window"
            )
        if not mask.is_inference():  # these tensors do not say that they were written into
            self._seen = (weakref.ref(mask), mask._version, keep)
        return keep

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attends within windows.

        Args:
            x: [images nW, N, dim], windows of an image side by side.
            mask: [nW, N, N]: bool, True keeps; or additive, of 0 and numbers up to -100, which
                hide. shifted_window_keep() makes it.

        Returns:
            [images nW, N, dim].

        Raises:
            UnsupportedError: mask holds other numbers, or wants a gradient.
        """
        windows, n, _ = x.shape
        if n != self.window_area:
            raise InvalidArgumentError(f"x has {n} positions where a window has {self.window_area}")
        qkv: Tensor = self.qkv(x).view(windows, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.unbind(2)
        bias = self.relative_position_bias_table[self.relative_position_index]
        o = attention(
            q, k, v, layout="bshd", bias=bias.permute(2, 0, 1).contiguous().unsqueeze(0),
            keep=None if mask is None else self._keep(mask, windows),
            dropout=self.attn_drop if self.training else 0.0,
        )  # fmt: skip
        projected: Tensor = self.proj_drop(self.proj(o.flatten(2)))
        return projected


__all__ = [
    "SwinWindowAttention",
    "T5RelativeAttention",
    "relative_position_bucket",
    "shifted_window_keep",
    "window_position_index",
]
