# SPDX-License-Identifier: MIT OR Apache-2.0
"""The options of a call: their names, types, defaults and checks. Knows no arrays.

What attention() takes is said here once: the signatures that write it out (those of torch and JAX)
and the docstrings are compared with it by python/tests/test_types.py.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, get_args

from ._blocks import Blocks
from ._errors import InvalidArgumentError, UnsupportedError

if sys.version_info >= (3, 11):
    from typing import Unpack as Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
else:
    Unpack = None  # annotations are not evaluated

DETERMINISTIC, TF32, PART_OF_KEYS, BATCH_INVARIANT = 1, 4, 8, 16
UNBOUNDED = -1

Diagonal = Literal["top_left", "bottom_right"]
Normalizer = Literal["softmax", "elastic", "entmax"]
Order = Literal["bhsd", "bshd"]
Window = tuple[int | None, int | None]


def _numbered(words: Any) -> dict[str, int]:
    return {word: n for n, word in enumerate(get_args(words))}


# As the C API counts them.
DIAGONALS, NORMALIZERS, ORDERS = _numbered(Diagonal), _numbered(Normalizer), _numbered(Order)


class StaticOptions(TypedDict, total=False):
    """What a call says beside its arrays, where dropout is not there: JAX's options."""

    scale: float | None
    causal: bool | Diagonal
    align: Diagonal
    window: Window | None
    softcap: float
    normalizer: Normalizer
    alpha: float
    layout: Order
    max_seq_q: int
    max_seq_kv: int
    deterministic: bool
    batch_invariant: bool
    allow_tf32: bool
    workspace_limit: int


class OptionalArrays(TypedDict, total=False):
    """The arrays that a call may have beside q, k and v."""

    bias: Any
    keep: Any
    spans: Any
    block_mask: Blocks | None
    bias_table: Any
    bias_index: Any
    dist_bias: Any
    slope: Any
    tau: Any
    sink: Any
    lengths_q: Any
    lengths_kv: Any
    offsets_q: Any
    offsets_kv: Any


class AttentionOptions(StaticOptions, OptionalArrays, total=False):
    """What attention(), attention_backward(), plan() and explain() take by name."""

    dropout: float


def refuse_unknown(words: Iterable[str]) -> None:
    """Raises the TypeError that Python raises for a name that no argument has."""
    for name in words:
        if name not in AttentionOptions.__optional_keys__:
            raise TypeError(f"attention() got an unexpected keyword argument {name!r}")


class Options(NamedTuple):
    """What a call says beside its arrays. Hashable: part of the key of a plan."""

    scale: float | None = None
    causal: bool = False
    align: int = 0  # 0: top left, 1: bottom right
    window_left: int = UNBOUNDED
    window_right: int = UNBOUNDED
    softcap: float = 0.0
    dropout: float = 0.0
    normalizer: int = 0
    alpha: float = 0.0
    flags: int = 0
    packed_q: bool = False
    packed_kv: bool = False
    seq_q: int = 0  # the longest sequence, of packed tensors
    seq_kv: int = 0
    bshd: bool = False  # the order of dimensions in memory: B S H D; else B H S D
    workspace_limit: int = 0  # bytes


def whole_number(name: str, value: Any) -> int:
    """value as an int; an integer array of one element is one, a float is none."""
    if type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} is {value!r}, which is no whole number") from None


def _signed(name: str, value: Any) -> int:
    """value as a whole number of 64 bits, as the C API's sizes are."""
    size = whole_number(name, value)
    if not -(1 << 63) <= size < 1 << 63:
        raise InvalidArgumentError(f"{name} is {size}, which does not fit into 64 bits")
    return size


def _length(name: str, value: Any) -> int:
    """value as the length of a sequence; arrays of longer ones cannot be made."""
    size = whole_number(name, value)
    if not 0 <= size < 1 << 29:
        raise InvalidArgumentError(f"{name} is {size}, must be 0 to 2^29 - 1")
    return size


def truth(name: str, value: Any) -> bool:
    """value as True or False; an array of more than one element, or of none, is neither."""
    if value is True or value is False:
        return value
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgumentError(
            f"{name} is a {type(value).__name__} that is neither true nor false"
        ) from None


def number(name: str, value: Any) -> float:
    """value as a float; an array of one element without a gradient is one."""
    if type(value) is float:
        return value
    if getattr(value, "requires_grad", False):
        raise UnsupportedError(f"{name} requires a gradient, and attention has none for it")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{name} is {value!r}, which is no number") from None


def _window(window: Any) -> tuple[int, int]:
    if window is None:
        return UNBOUNDED, UNBOUNDED
    try:
        left, right = window
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"window is (left, right) or None, not {window!r}") from None
    return (
        UNBOUNDED if left is None else _signed("window[0]", left),
        UNBOUNDED if right is None else _signed("window[1]", right),
    )


def _scale(value: float) -> float:
    as_float = number("scale", value)
    if as_float != as_float:  # torch.compile does not trace isnan() of a number that shapes give
        raise InvalidArgumentError("scale is nan; None stands for 1 / sqrt(D)")
    return as_float


def _bytes(name: str, value: Any) -> int:
    size = whole_number(name, value)
    if not 0 <= size < 1 << 64:
        raise InvalidArgumentError(f"{name} is {size}, must be 0 to 2^64 - 1 bytes")
    return min(size, (1 << 63) - 1)  # torch's operations take no larger numbers


def _choice(name: str, words: dict[str, int], value: Any) -> int:
    """The number of a word."""
    try:
        return words[value]
    except (KeyError, TypeError):
        *others, last = map(repr, words)
        raise InvalidArgumentError(
            f"{name} is {', '.join(others)} or {last}, not {value!r}"
        ) from None


def is_bshd(layout: Any) -> bool:
    """What the word of a layout says."""
    return bool(_choice("layout", ORDERS, layout))


def make_options(
    *,
    scale: float | None = None,
    causal: bool | Diagonal = False,
    window: Window | None = None,
    align: Diagonal = "top_left",
    softcap: float = 0.0,
    dropout: float = 0.0,
    normalizer: Normalizer = "softmax",
    alpha: float = 1.5,
    deterministic: bool = False,
    batch_invariant: bool = False,
    allow_tf32: bool = False,
    workspace_limit: int = 0,
    layout: Order = "bhsd",
    packed_q: bool = False,
    packed_kv: bool = False,
    max_seq_q: int = 0,
    max_seq_kv: int = 0,
) -> Options:
    """Checks what the words of a call mean and makes Options of them."""
    if isinstance(causal, str):
        align, causal = causal, True
    diagonal = _choice("the diagonal", DIAGONALS, align)
    weights = _choice("normalizer", NORMALIZERS, normalizer)
    left, right = _window(window)
    return Options(
        scale=None if scale is None else _scale(scale),
        causal=truth("causal", causal),
        align=diagonal,
        window_left=left,
        window_right=right,
        softcap=number("softcap", softcap),
        dropout=number("dropout", dropout),
        normalizer=weights,
        alpha=number("alpha", alpha) if normalizer == "entmax" else 0.0,
        flags=DETERMINISTIC * truth("deterministic", deterministic)
        | TF32 * truth("allow_tf32", allow_tf32)
        | BATCH_INVARIANT * truth("batch_invariant", batch_invariant),
        packed_q=packed_q,
        packed_kv=packed_kv,
        seq_q=_length("max_seq_q", max_seq_q),
        seq_kv=_length("max_seq_kv", max_seq_kv),
        bshd=is_bshd(layout),
        workspace_limit=_bytes("workspace_limit", workspace_limit),
    )


def in_parts(options: Options, part_of_keys: bool) -> Options:
    """Those of a backward over a part of the keys, where part_of_keys says so."""
    return options._replace(flags=options.flags | PART_OF_KEYS) if part_of_keys else options
