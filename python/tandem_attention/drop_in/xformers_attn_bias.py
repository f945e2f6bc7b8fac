# SPDX-License-Identifier: MIT OR Apache-2.0
"""The attn_bias classes of xformers that memory_efficient_attention() of Tandem takes.

They have the names, constructors and attributes of xformers', whose own objects are taken as well.
They say which keys a query sees, and hold no matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._errors import InvalidArgumentError

Device = torch.device | str | None
_Self = TypeVar("_Self", bound="BlockDiagonalMask")


def _default(device: Device) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def _banded(
    rows: int, keys: int, left: int | None, right: int | None, bottom_right: bool, device: Device
) -> Tensor:
    """Which keys are visible: -left <= j - i - off <= right, bool [rows, keys]."""
    off = keys - rows if bottom_right else 0
    ahead = torch.arange(keys, device=device)[None, :] - torch.arange(rows, device=device)[:, None]
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if left is not None:
        seen &= ahead - off >= -left
    if right is not None:
        seen &= ahead - off <= right
    return seen


def _additive(seen: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill(~seen, float("-inf")).expand(*shape)


class AttentionBias:
    """What all classes of this module are."""

    def _seen(self, rows: int, keys: int, device: Device) -> Tensor:
        raise NotImplementedError

    def materialize(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """A tensor [..., queries, keys] of 0 and minus infinity, for tests and looking at."""
        return _additive(self._seen(shape[-2], shape[-1], device), shape, dtype)

    def to(self, device: Any) -> Any:
        """The same on another device; itself where it holds no tensor."""
        return self


class LowerTriangularMask(AttentionBias):
    """Key j is visible to query i where j <= i."""

    def __init__(self, device: Device = None) -> None:
        del device

    def _seen(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, None, 0, False, device)

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        """This mask with a tensor that is added to the scores."""
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """Key j is visible to query i where j <= i, and bias is added to the scores.

    Args:
        bias: [B or 1, H or 1, Mq or 1, Mk] (xformers: all sizes in full). Differentiable.
    """

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self._bias = bias

    def materialize(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """The mask of LowerTriangularMask plus the bias."""
        return super().materialize(shape, dtype, device) + self._bias

    def to(self, device: Any) -> LowerTriangularMaskWithTensorBias:
        """With the bias on another device."""
        return LowerTriangularMaskWithTensorBias(self._bias.to(device))


class LowerTriangularFromBottomRightMask(AttentionBias):
    """Key j is visible to query i where j <= i + Mk - Mq."""

    def _seen(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, None, 0, True, device)

    def make_local_attention(
        self, window_size: int
    ) -> LowerTriangularFromBottomRightLocalAttentionMask:
        """The same, of the last window_size keys alone."""
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)


def _positive(window_size: int) -> None:
    if window_size <= 0:
        raise InvalidArgumentError(f"window_size is {window_size}; it is at least 1")


@dataclass
class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    """The last _window_size keys up to i + Mk - Mq are visible."""

    _window_size: int

    def __post_init__(self) -> None:
        _positive(self._window_size)

    def _seen(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, self._window_size - 1, 0, True, device)


@dataclass
class LocalAttentionFromBottomRightMask(AttentionBias):
    """window_left keys before and window_right keys behind i + Mk - Mq are visible."""

    window_left: int
    window_right: int

    def __post_init__(self) -> None:
        for name in ("window_left", "window_right"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)}; it is at least 0")

    def _seen(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, self.window_left, self.window_right, True, device)


@dataclass
class _SeqLenInfo:
    """A dimension cut into sequences that lie one behind the other.

    Attributes:
        seqstart: int32 [n + 1], where each begins; the last number is the total.
        max_seqlen, min_seqlen: of the lengths.
        seqstart_py: seqstart on the host.
    """

    seqstart: Tensor
    max_seqlen: int
    min_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def from_seqlens(cls, seqlens: Sequence[int], *, device: Device = None) -> _SeqLenInfo:
        """From the lengths."""
        lengths = list(seqlens)
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        return _SeqLenInfo(
            seqstart=torch.tensor(starts, dtype=torch.int32, device=_default(device)),
            max_seqlen=max(lengths, default=-1),
            min_seqlen=min(lengths, default=-1),
            seqstart_py=starts,
        )

    def to(self, device: Any) -> _SeqLenInfo:
        """The same with seqstart on another device."""
        return _SeqLenInfo(
            self.seqstart.to(device), self.max_seqlen, self.min_seqlen, self.seqstart_py
        )

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Where each sequence begins and ends."""
        yield from zip(self.seqstart_py[:-1], self.seqstart_py[1:], strict=True)

    def split(self, x: Tensor, batch_sizes: Sequence[int] | None = None) -> list[Tensor]:
        """x [1, total, ...] cut into tensors of batch_sizes sequences each, all of one length."""
        if x.shape[0] != 1 or x.shape[1] != self.seqstart_py[-1]:
            raise InvalidArgumentError(
                f"x is {list(x.shape)}, not [1, {self.seqstart_py[-1]}, ...]"
            )
        sizes = [1] * (len(self.seqstart_py) - 1) if batch_sizes is None else list(batch_sizes)
        pieces, first = [], 0
        for size in sizes:
            piece = x[:, self.seqstart_py[first] : self.seqstart_py[first + size]]
            pieces.append(piece.reshape(size, -1, *x.shape[2:]))
            first += size
        return pieces


@dataclass
class _PaddedSeqLenInfo(_SeqLenInfo):
    """A dimension cut into stretches of equal size, the first rows of each in use.

    Attributes:
        seqlen: int32 [n], rows in use; seqlen_py on the host.
        padding: rows of a stretch.
    """

    seqlen: Tensor
    seqlen_py: list[int]
    padding: int

    @classmethod
    def from_seqlens_padded(
        cls, seqlens: Sequence[int], padding: int, *, device: Device = None
    ) -> _PaddedSeqLenInfo:
        """From the rows in use and the size of a stretch."""
        lengths = list(seqlens)
        if any(not 0 <= length <= padding for length in lengths):
            raise InvalidArgumentError(f"lengths {lengths} exceed a padding of {padding}")
        starts = [n * padding for n in range(len(lengths) + 1)]
        where = _default(device)
        return cls(
            seqstart=torch.tensor(starts, dtype=torch.int32, device=where),
            max_seqlen=max(lengths, default=-1),
            min_seqlen=min(lengths, default=-1),
            seqstart_py=starts,
            seqlen=torch.tensor(lengths, dtype=torch.int32, device=where),
            seqlen_py=lengths,
            padding=padding,
        )

    def to(self, device: Any) -> _PaddedSeqLenInfo:
        """The same with its tensors on another device."""
        return _PaddedSeqLenInfo(
            self.seqstart.to(device), self.max_seqlen, self.min_seqlen, self.seqstart_py,
            self.seqlen.to(device), self.seqlen_py, self.padding,
        )  # fmt: skip

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Where the rows in use begin and end."""
        for start, length in zip(self.seqstart_py[:-1], self.seqlen_py, strict=True):
            yield start, start + length


class _Blocks(AttentionBias):
    """Queries of a sequence see keys of that sequence alone."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _SeqLenInfo

    def _block(self, rows: int, keys: int, device: Device) -> Tensor:
        """Which keys of a sequence its queries see."""
        return _banded(rows, keys, None, None, False, device)

    def _seen(self, rows: int, keys: int, device: Device) -> Tensor:
        want = (self.q_seqinfo.seqstart_py[-1], self.k_seqinfo.seqstart_py[-1])
        if (rows, keys) != want:
            raise InvalidArgumentError(f"the mask is of {want} queries and keys, not {rows, keys}")
        seen = torch.zeros(rows, keys, dtype=torch.bool, device=device)
        for (q0, q1), (k0, k1) in zip(
            self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True
        ):
            seen[q0:q1, k0:k1] = self._block(q1 - q0, k1 - k0, device)
        return seen


@dataclass
class BlockDiagonalMask(_Blocks):
    """Packed sequences: queries [1, total, H, K] of one see the keys of that one."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _SeqLenInfo
    _batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(
        cls: type[_Self],
        q_seqlen: Sequence[int],
        kv_seqlen: Sequence[int] | None = None,
        *,
        device: Device = None,
    ) -> _Self:
        """From the lengths of the queries' and the keys' sequences; by default they are equal."""
        q = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        if kv_seqlen is None:
            return cls(q_seqinfo=q, k_seqinfo=q)
        if len(kv_seqlen) != len(q_seqlen):
            raise InvalidArgumentError(
                f"{len(kv_seqlen)} sequences of keys where there are {len(q_seqlen)} of queries"
            )
        return cls(q_seqinfo=q, k_seqinfo=_SeqLenInfo.from_seqlens(kv_seqlen, device=device))

    @classmethod
    def from_tensor_list(cls: type[_Self], tensors: Sequence[Tensor]) -> tuple[_Self, Tensor]:
        """The mask of tensors [B_i, M_i, ...], and all of them in one [1, total, ...]."""
        mask = cls.from_seqlens(
            [t.shape[1] for t in tensors for _ in range(t.shape[0])], device=tensors[0].device
        )
        mask._batch_sizes = [t.shape[0] for t in tensors]
        return mask, torch.cat([t.reshape(1, -1, *t.shape[2:]) for t in tensors], dim=1)

    @classmethod
    def from_tensor_lists_qkv(
        cls: type[_Self],
        tensors_q: Sequence[Tensor],
        tensors_k: Sequence[Tensor],
        tensors_v: Sequence[Tensor] | None = None,
    ) -> tuple[_Self, Tensor, Tensor, Tensor | None]:
        """The mask of queries and keys of different lengths, and q, k and v in one tensor each."""
        if len(tensors_q) != len(tensors_k) or (
            tensors_v is not None and len(tensors_v) != len(tensors_k)
        ):
            raise InvalidArgumentError("q, k and v are lists of different lengths")
        mask = cls.from_seqlens(
            [t.shape[1] for t in tensors_q for _ in range(t.shape[0])],
            [t.shape[1] for t in tensors_k for _ in range(t.shape[0])],
            device=tensors_q[0].device,
        )
        mask._batch_sizes = [t.shape[0] for t in tensors_q]

        def joined(tensors: Sequence[Tensor]) -> Tensor:
            return torch.cat([t.reshape(1, -1, *t.shape[2:]) for t in tensors], dim=1)

        values = None if tensors_v is None else joined(tensors_v)
        return mask, joined(tensors_q), joined(tensors_k), values

    def split_queries(self, tensor: Tensor) -> list[Tensor]:
        """Queries or outputs [1, total, ...] as the list that they came from."""
        return self.q_seqinfo.split(tensor, self._batch_sizes)

    def split_kv(self, tensor: Tensor) -> list[Tensor]:
        """Keys or values [1, total, ...] as the list that they came from."""
        return self.k_seqinfo.split(tensor, self._batch_sizes)

    def split(self, tensor: Tensor) -> list[Tensor]:
        """split_queries() where the keys have the queries' lengths."""
        if self.q_seqinfo.seqstart_py != self.k_seqinfo.seqstart_py:
            raise InvalidArgumentError(
                "queries and keys differ in length: use split_queries() or split_kv()"
            )
        return self.split_queries(tensor)

    def to(self, device: Any) -> Any:
        """The same with its tensors on another device."""
        fields = {**self.__dict__}
        fields["q_seqinfo"] = self.q_seqinfo.to(device)
        fields["k_seqinfo"] = self.k_seqinfo.to(device)
        return type(self)(**fields)

    def make_causal(self) -> BlockDiagonalCausalMask:
        """Causal within each sequence, from its first query and key."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        """Causal within each sequence, from its last query and key."""
        return BlockDiagonalCausalFromBottomRightMask(
            self.q_seqinfo, self.k_seqinfo, self._batch_sizes
        )

    def make_local_attention(self, window_size: int) -> BlockDiagonalCausalLocalAttentionMask:
        """make_causal() of the last window_size keys alone."""
        return BlockDiagonalCausalLocalAttentionMask(
            self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size
        )

    def make_local_attention_from_bottomright(
        self, window_size: int
    ) -> BlockDiagonalCausalLocalAttentionFromBottomRightMask:
        """make_causal_from_bottomright() of the last window_size keys alone."""
        return BlockDiagonalCausalLocalAttentionFromBottomRightMask(
            self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size
        )


@dataclass
class BlockDiagonalCausalMask(BlockDiagonalMask):
    """BlockDiagonalMask, causal from each sequence's first query and key."""

    def _block(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, None, 0, False, device)


@dataclass
class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """BlockDiagonalMask, causal from each sequence's last query and key."""

    def __post_init__(self) -> None:
        pairs = zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True)
        for n, ((q0, q1), (k0, k1)) in enumerate(pairs):
            if k1 - k0 < q1 - q0:
                raise InvalidArgumentError(
                    f"sequence {n} has {q1 - q0} queries and {k1 - k0} keys; keys may not be fewer"
                )

    def _block(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, None, 0, True, device)


@dataclass
class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    """BlockDiagonalCausalMask of the last _window_size keys."""

    _window_size: int = 0

    def __post_init__(self) -> None:
        _positive(self._window_size)
        pairs = zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True)
        for n, ((q0, q1), (k0, k1)) in enumerate(pairs):
            if q1 - q0 - self._window_size >= k1 - k0:
                raise InvalidArgumentError(f"the last query of sequence {n} sees no key")

    def _block(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, self._window_size - 1, 0, False, device)


@dataclass
class BlockDiagonalCausalLocalAttentionFromBottomRightMask(BlockDiagonalCausalFromBottomRightMask):
    """BlockDiagonalCausalFromBottomRightMask of the last _window_size keys."""

    _window_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self._window_size)

    def _block(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, self._window_size - 1, 0, True, device)


def _padded(
    q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], device: Device
) -> tuple[_SeqLenInfo, _PaddedSeqLenInfo]:
    if len(q_seqlen) != len(kv_seqlen):
        raise InvalidArgumentError(
            f"{len(kv_seqlen)} sequences of keys where there are {len(q_seqlen)} of queries"
        )
    return (
        _SeqLenInfo.from_seqlens(q_seqlen, device=device),
        _PaddedSeqLenInfo.from_seqlens_padded(kv_seqlen, kv_padding, device=device),
    )


@dataclass
class BlockDiagonalPaddedKeysMask(_Blocks):
    """Packed queries and padded keys [1, n padding, H, K]: a cache of keys for each sequence."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _PaddedSeqLenInfo

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_padding: int,
        kv_seqlen: Sequence[int],
        causal_diagonal: Any = None,
        *,
        device: Device = None,
    ) -> BlockDiagonalPaddedKeysMask:
        """From the queries' lengths, the rows of a cache and its keys in use."""
        del causal_diagonal
        return cls(*_padded(q_seqlen, kv_padding, kv_seqlen, device))

    def to(self, device: Any) -> Any:
        """The same with its tensors on another device."""
        fields = {**self.__dict__}
        fields["q_seqinfo"] = self.q_seqinfo.to(device)
        fields["k_seqinfo"] = self.k_seqinfo.to(device)
        return type(self)(**fields)

    def make_local_attention(
        self, window_left: int, window_right: int
    ) -> BlockDiagonalLocalAttentionPaddedKeysMask:
        """Of window_left keys before and window_right keys behind the diagonal alone."""
        return BlockDiagonalLocalAttentionPaddedKeysMask(
            self.q_seqinfo, self.k_seqinfo, window_left, window_right
        )


@dataclass
class BlockDiagonalCausalWithOffsetPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """BlockDiagonalPaddedKeysMask, causal from each sequence's last query and key in use."""

    causal_diagonal: Any = None

    def _block(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, None, 0, True, device)


@dataclass
class BlockDiagonalLocalAttentionPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """BlockDiagonalPaddedKeysMask with a window around the diagonal of the last key in use."""

    window_left: int
    window_right: int

    @classmethod
    def from_seqlens_local(
        cls,
        q_seqlen: Sequence[int],
        kv_padding: int,
        kv_seqlen: Sequence[int],
        window_left: int,
        window_right: int,
    ) -> BlockDiagonalLocalAttentionPaddedKeysMask:
        """from_seqlens() with a window."""
        return cls(*_padded(q_seqlen, kv_padding, kv_seqlen, None), window_left, window_right)

    def _block(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, self.window_left, self.window_right, True, device)


@dataclass
class BlockDiagonalCausalLocalAttentionPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """BlockDiagonalCausalWithOffsetPaddedKeysMask of the last _window_size keys."""

    _window_size: int

    @classmethod
    def from_seqlens_local(
        cls,
        q_seqlen: Sequence[int],
        kv_padding: int,
        kv_seqlen: Sequence[int],
        window_size: int,
    ) -> BlockDiagonalCausalLocalAttentionPaddedKeysMask:
        """from_seqlens() with a window."""
        return cls(*_padded(q_seqlen, kv_padding, kv_seqlen, None), window_size)

    def _block(self, rows: int, keys: int, device: Device) -> Tensor:
        return _banded(rows, keys, self._window_size - 1, 0, True, device)
