# SPDX-License-Identifier: MIT OR Apache-2.0
"""Arguments of any kind: each call returns, or raises a TandemError with a sentence.

TANDEM_FUZZ_SECONDS: how long each function gets calls, 2 by default. TANDEM_FUZZ_SEED: of the first
call; a failure names the seed that repeats it.
"""

from __future__ import annotations

import importlib
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tandem_attention as ta
from tandem_attention import masks

SECONDS = float(os.environ.get("TANDEM_FUZZ_SECONDS", "2"))
SEED = int(os.environ.get("TANDEM_FUZZ_SEED", "1"))

NUMBERS: list[Any] = [
    0,
    1,
    2,
    3,
    -1,
    -2,
    7,
    64,
    255,
    2**29,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**30,
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    -0.5,
    1e-45,
    1e30,
    float("nan"),
    float("inf"),
    True,
    False,
]
WORDS = [
    "",
    "softmax",
    "elastic",
    "entmax",
    "top_left",
    "bottom_right",
    "bshd",
    "bhsd",
    "cpu",
    "cpu/ref",
    "cpu/simd",
    "cpu/none",
    "cuda:-1",
    "vulkan:99",
    "none",
    "\0",
    "ä",
    "x" * 5000,
]
DTYPES = [
    "float32",
    "float16",
    "float64",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "bool",
    "complex64",
    "object",
    "S4",
    ">f4",
    ">i4",
    "datetime64[s]",
]
# Large sizes have no bytes behind them.
ODD = [
    None,
    (),
    [],
    {},
    set(),
    object(),
    b"",
    range(3),
    lambda: 0,
    Ellipsis,
    NotImplemented,
    int,
    1j,
    slice(0),
]


class Draw:
    """Arguments that fit together, with a few that do not."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.oddness = self.r.choice([0.0, 0.02, 0.1, 0.4])
        self.b, self.hk, self.group = (
            self.r.randrange(4),
            self.r.randrange(1, 3),
            self.r.randrange(1, 3),
        )
        self.hq = self.hk * self.group
        self.sq, self.sk = self.r.randrange(20), self.r.randrange(20)
        self.d, self.dv = self.r.randrange(1, 20), self.r.randrange(1, 20)
        self.dtype = self.r.choice(["float32", "float32", "float16", "float64"])
        self.bshd = self.r.random() < 0.3
        self.short = False
        self.packed_q, self.packed_kv = self.r.random() < 0.2, self.r.random() < 0.2

    def odd(self) -> Any:
        kind = self.r.randrange(5)
        if kind == 0:
            number = self.r.choice(NUMBERS)
            # A mask of 2^31 - 1 keys is legal, and has no room here.
            return 77 if self.short and 77 < number < 2**31 else number
        if kind == 1:
            return self.r.choice(WORDS)
        if kind == 2:
            return self.r.choice(ODD)
        if kind == 3:
            return tuple(self.odd() for _ in range(self.r.randrange(4)))
        shape = tuple(self.r.choice([0, 1, 2, 3, 5, 8]) for _ in range(self.r.randrange(6)))
        return np.zeros(shape, self.r.choice(DTYPES))

    def or_odd(self, value: Any) -> Any:
        return self.odd() if self.r.random() < self.oddness else value

    def layout(self, array: Any) -> Any:
        """The same array, now and then with other strides, read-only, reversed or unaligned."""
        kind = self.r.randrange(12)
        if array.ndim == 0:
            return array
        if kind == 0:
            return array[..., ::-1]
        if kind == 1:
            return np.repeat(array, 2, -1)[..., ::2]
        if kind == 2:
            return np.broadcast_to(array[:1], array.shape) if array.shape[0] else array
        if kind == 3:
            array = array.copy()
            array.flags.writeable = False
        if kind == 4 and array.size and array.dtype != object:
            raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
            return raw.view(array.dtype).reshape(array.shape)
        if kind == 5:
            return array.swapaxes(-1, -2).copy().swapaxes(-1, -2) if array.ndim > 1 else array
        if kind == 6:
            return array.tolist()
        return array

    def array(self, shape: tuple[int, ...], dtype: str = "", high: int = 0) -> Any:
        r = np.random.default_rng(self.r.randrange(2**32))
        if self.r.random() < self.oddness:
            shape = tuple(self.r.choice([n, n + 1, 1, 0]) for n in shape)
        if self.r.random() < self.oddness:
            dtype = self.r.choice(DTYPES)
        dtype = dtype or self.dtype
        if high:
            values = r.integers(-3 if self.r.random() < 0.2 else 0, high, shape)
            if self.r.random() < 0.1 and values.size and not self.short:
                values.flat[0] = self.r.choice([2**31 - 1, -(2**31), 2**40])
            made = (
                values.astype(dtype, copy=True)
                if dtype not in ("object", "S4")
                else np.zeros(shape, dtype)
            )
        else:
            made = np.zeros(shape, dtype)
            if dtype[0] == "f":
                made = r.standard_normal(shape).astype(dtype)
        return self.or_odd(self.layout(made))

    def rows(self, heads: int, seq: int, dim: int, packed: bool) -> Any:
        shape = (heads, seq, dim) if packed else (self.b, heads, seq, dim)
        if self.bshd:
            shape = (*shape[:-3], seq, heads, dim)
        return self.array(shape)

    def qkv(self) -> tuple[Any, Any, Any]:
        return (
            self.rows(self.hq, self.sq, self.d, self.packed_q),
            self.rows(self.hk, self.sk, self.d, self.packed_kv),
            self.rows(self.hk, self.sk, self.dv, self.packed_kv),
        )

    def entries(self) -> int:
        return self.r.choice([1, self.b])

    def heads(self) -> int:
        return self.r.choice([1, self.hk, self.hq])

    def side(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"

    def words(self) -> dict[str, Any]:
        r, n = self.r, NUMBERS
        choices: dict[str, Callable[[], Any]] = {
            "scale": lambda: r.choice([None, 0.1, *n]),
            "causal": lambda: r.choice([True, False, "top_left", "bottom_right"]),
            "align": lambda: r.choice(["top_left", "bottom_right"]),
            "window": lambda: r.choice(
                [None, (3, 2), (None, 0), (0, None), (r.choice(n), r.choice(n))]
            ),
            "softcap": lambda: r.choice([1.0, 30, *n]),
            "normalizer": lambda: r.choice(["softmax", "elastic", "entmax"]),
            "alpha": lambda: r.choice([1.5, 2, 1.25, *n]),
            "max_seq_q": lambda: r.choice([self.sq, self.sq, *n]),
            "max_seq_kv": lambda: r.choice([self.sk, self.sk, *n]),
            "deterministic": lambda: r.choice([True, False]),
            "batch_invariant": lambda: r.choice([True, False]),
            "allow_tf32": lambda: r.choice([True, False]),
            "workspace_limit": lambda: r.choice(n),
            "dropout": lambda: r.choice([0.1, 0.5, *n]),
            "bias": lambda: self.array(
                (self.entries(), self.heads(), r.choice([1, self.sq]), self.sk)
            ),
            "keep": lambda: self.array(
                (self.entries(), self.heads(), r.choice([1, self.sq]), self.sk), "bool"
            ),
            "spans": lambda: self.array(
                (self.entries(), self.heads(), self.sk, r.choice([2, 4])), "int32", 20
            ),
            "bias_table": lambda: self.array((self.hq, 5), self.side()),
            "bias_index": lambda: self.array(
                (self.entries(), self.sq, self.sk), r.choice(["uint8", "uint16", "int32"]), 7
            ),
            "dist_bias": lambda: self.array((self.hq, 4), self.side()),
            "slope": lambda: self.array((self.hq,), self.side()),
            "tau": lambda: self.array((self.hq,), self.side()),
            "sink": lambda: self.array((self.hq,), self.side()),
            "lengths_q": lambda: self.array((self.b,), "int32", 20),
            "lengths_kv": lambda: self.array((self.b,), "int32", 20),
            "offsets_q": lambda: self.array((self.b + 1,), "int32", 20),
            "offsets_kv": lambda: self.array((self.b + 1,), "int32", 20),
            "block_mask": lambda: masks.Blocks(
                self.array((self.entries(), self.heads(), 1, 4), "int32", 3),
                self.array((1, 1, 1, r.choice([0, 1]), 64, 2), "int32", 9),
            ),
        }
        said = {
            name: self.or_odd(choices[name]()) for name in r.sample(sorted(choices), r.randrange(5))
        }
        if self.bshd:
            said["layout"] = self.or_odd("bshd")
        for name, packed in (("q", self.packed_q), ("kv", self.packed_kv)):
            if packed:
                said[f"offsets_{name}"] = choices[f"offsets_{name}"]()
        if self.r.random() < 0.1:
            said["device"] = self.or_odd(r.choice(["cpu", "cpu/ref", "cpu/simd"]))
        return said


def forward(d: Draw) -> Any:
    more: dict[str, Any] = {}
    if d.r.random() < 0.2:
        more["seed"], more["offset"] = d.r.choice(NUMBERS), d.r.choice(NUMBERS)
    if d.r.random() < 0.2:
        more["return_lse"] = d.or_odd(True)
    return ta.attention(*d.qkv(), **d.words(), **more)


def backward(d: Draw) -> Any:
    q, k, v = d.qkv()
    o = d.rows(d.hq, d.sq, d.dv, d.packed_q)
    lse = d.array((d.b, d.hq, d.sq), d.side())
    more: dict[str, Any] = {}
    if d.r.random() < 0.3:
        more["gradients"] = d.or_odd(
            tuple(d.r.sample(["q", "k", "v", "bias", "tau", "sink", "slope"], 3))
        )
    d_o = d.rows(d.hq, d.sq, d.dv, d.packed_q)
    return ta.attention_backward(d_o, q, k, v, o, lse, **d.words(), **more)


def explains(d: Draw) -> Any:
    return ta.explain(*d.qkv(), **d.words())


def merges(d: Draw) -> Any:
    part_o = d.array((2, d.b, d.hq, d.sq, d.dv))
    part_lse = d.array((2, d.b, d.hq, d.sq), d.side())
    return ta.merge(part_o, part_lse, layout=d.or_odd("bhsd"))


def makes_masks(d: Draw) -> Any:
    d.short = True
    lengths, seq = d.or_odd([3, 4, 5]), d.or_odd(12)
    spans = d.array((1, 1, 12, d.r.choice([2, 4])), "int32", 14)
    calls: list[Callable[[], Any]] = [
        lambda: masks.documents(lengths, seq, causal=d.or_odd(True)),
        lambda: masks.document_ids(d.array((2, 12), "int32", 3)),
        lambda: masks.tree(d.array((12,), "int32", 12), d.or_odd(None), d.or_odd(None)),
        lambda: masks.tree_times(d.array((12,), "int32", 12), d.array((12,), "int32", 24)),
        lambda: masks.prefix(lengths, seq),
        lambda: masks.image_spans(seq, d.or_odd([(1, 3), (5, 9)])),
        lambda: masks.windows(d.or_odd((2, 0)), lengths, seq),
        lambda: masks.intersect(spans, d.array((1, 1, 12, 2), "int32", 14)),
        lambda: masks.union(spans, d.array((1, 1, 12, 2), "int32", 14)),
        lambda: masks.from_mask(d.array((1, 2, 6, 12), "bool")),
        lambda: masks.to_mask(spans, seq),
        lambda: masks.flashmask(
            d.array((1, 1, 12, d.r.choice([1, 2, 4])), "int32", 13), causal=d.or_odd(True)
        ),
    ]
    return d.r.choice(calls)()


def as_tensor(d: Draw, value: Any) -> Any:
    torch = pytest.importorskip("torch")
    if isinstance(value, masks.Blocks):
        return masks.Blocks(as_tensor(d, value.lists), as_tensor(d, value.bits))
    if isinstance(value, list) and d.r.random() < 0.1:
        return value
    try:
        return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray | list) else value
    except (TypeError, ValueError):  # torch has no such type
        return value


def on_torch(d: Draw) -> Any:
    torch = pytest.importorskip("torch")
    from tandem_attention.torch import attention

    q, k, v = (as_tensor(d, array) for array in d.qkv())
    words = {name: as_tensor(d, value) for name, value in d.words().items() if name != "device"}
    for name in ("return_lse", "return_max_logit"):
        words[name] = d.r.random() < 0.2
    if d.r.random() < 0.2:
        words["seed"], words["offset"] = d.r.choice(NUMBERS), d.r.choice(NUMBERS)
    for t in (q, k, v, *words.values()):
        if isinstance(t, torch.Tensor) and t.is_floating_point() and d.r.random() < 0.4:
            t.requires_grad_()
    for _ in range(2):  # the first call plans
        o = attention(q, k, v, **words)
        o = o[0] if isinstance(o, tuple) else o
        if o.requires_grad:
            o.sum().backward()
    return o


@pytest.mark.parametrize("call", [forward, backward, explains, merges, makes_masks, on_torch])
@pytest.mark.filterwarnings("ignore")
def test_arguments(call: Callable[[Draw], Any]) -> None:
    if call is on_torch:  # torch imports most of itself in the first calls
        torch = pytest.importorskip("torch")
        tandem_torch = importlib.import_module("tandem_attention.torch")
        tandem_torch.attention(*torch.zeros(3, 1, 1, 4, 8), return_max_logit=True)
    end, seed, returned = time.monotonic() + SECONDS, SEED, 0
    refusals: dict[str, int] = {}
    while time.monotonic() < end:
        try:
            call(Draw(seed))
            returned += 1
        except ta.TandemError as error:
            refusals[str(error)] = seed
        except Exception as error:
            raise AssertionError(
                f"TANDEM_FUZZ_SEED={seed}: {type(error).__name__}: {error}"
            ) from error
        seed += 1
    for sentence, seed in refusals.items():
        assert len(sentence) > 10, f"TANDEM_FUZZ_SEED={seed}: {sentence}"
        assert "unexpected" not in sentence, f"TANDEM_FUZZ_SEED={seed}: {sentence}"
    assert returned > 10
    assert len(refusals) > 10


# Each of these calls once raised another exception.
X = np.zeros((1, 1, 4, 8), np.float32)
LSE = np.zeros((1, 1, 4), np.float32)
MANY = np.zeros(3)


@pytest.mark.parametrize(
    "words",
    [
        {"causal": MANY},
        {"deterministic": MANY},
        {"allow_tf32": MANY},
        {"batch_invariant": MANY},
        {"return_lse": MANY},
        {"return_max_logit": MANY},
        {"window": (2**63, None)},
        {"window": (None, -(2**80))},
        {"max_seq_q": 2**63},
        {"max_seq_kv": 10**30},
    ],
)
def test_regression_options(words: dict[str, Any]) -> None:
    with pytest.raises(ta.InvalidArgumentError, match=next(iter(words))):
        ta.attention(X, X, X, **words)


def test_regression_names() -> None:
    for call in (ta.attention, ta.explain):
        with pytest.raises(TypeError, match=r"attention\(\) got .* 'is_causal'"):
            call(X, X, X, is_causal=True)


@pytest.mark.parametrize("gradients", [7, ("q", MANY), (["k"],)])
def test_regression_gradients(gradients: Any) -> None:
    with pytest.raises(ta.InvalidArgumentError, match="gradient"):
        ta.attention_backward(X, X, X, X, X, LSE, gradients=gradients)


def test_regression_arrays() -> None:
    with pytest.raises(ta.UnsupportedError, match="bytes32"):
        ta.attention(np.zeros((1, 1, 4, 8), "S4"), X, X)
    with pytest.raises(ta.InvalidArgumentError, match="device"):
        ta.explain(X, X, X, device=MANY)  # type: ignore[arg-type]
    packed, offsets = np.zeros((1, 4, 8), np.float32), np.array([0, 4], np.int32)
    with pytest.raises(ta.TandemError):  # lse would have 2^65 bytes
        ta.attention(
            packed,
            packed,
            packed,
            offsets_q=offsets,
            offsets_kv=offsets,
            max_seq_q=2**63 - 1,
            return_lse=True,
        )


def test_regression_torch() -> None:
    torch = pytest.importorskip("torch")
    from tandem_attention.torch import attention

    x, none = torch.zeros(1, 1, 4, 8), torch.zeros(())
    o = torch.zeros(2, dtype=torch.int32)
    for tensors, words, sentence in (
        ((x, none, x), {"bias": none}, "k has 0 dimensions"),
        ((none, x, x), {"return_max_logit": True}, "q has 0 dimensions"),
        ((x, x, x), {"block_mask": masks.Blocks(1, x)}, "block_mask.lists is a int"),
        ((x[0], x, x), {"offsets_q": o, "max_seq_q": -1}, "max_seq_q is -1"),
        ((x[0], x[0], x[0]), {"offsets_q": o, "offsets_kv": o, "max_seq_kv": 2**40}, "max_seq_kv"),
    ):
        with pytest.raises(ta.InvalidArgumentError, match=sentence):
            attention(*tensors, **words)
    for more in ({}, {"return_max_logit": True}):
        attention(
            x, x, x, dropout=0.5, seed=10**30, offset=2**63, workspace_limit=2**64 - 1, **more
        )


def test_regression_masks() -> None:
    for call in (
        lambda: masks.documents([3], causal=MANY),  # type: ignore[arg-type]
        lambda: masks.document_ids([[0, 0]], causal=MANY),  # type: ignore[arg-type]
        lambda: masks.flashmask(np.zeros((1, 1, 4, 1), np.int32), causal=MANY),  # type: ignore[arg-type]
        lambda: masks.image_spans(8, [[1, [2]]]),
        lambda: masks.documents([2**63 - 1, 2**63 - 1, 3], 12),
    ):
        with pytest.raises(ta.InvalidArgumentError):
            call()
