# SPDX-License-Identifier: MIT OR Apache-2.0
"""drop_in.flex_attention under score mods, against a dense reference in double.

torch's own function has no gradients on the CPU; its result is compared where there are none.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import flex_attention as flex  # noqa: E402

from tandem_attention import InvalidArgumentError, UnsupportedError  # noqa: E402
from tandem_attention.drop_in import flex_attention as drop_in  # noqa: E402

B, H, L, S = 2, 4, 130, 140
DEVICE = str(torch.get_default_device())


class Captured:
    """Tensors that mods read, in double for the reference."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.bias = torch.randn(B, H, L, S)
        self.shared = torch.randn(H, L, S)
        self.heads = torch.rand(H) * 0.1
        self.keys = torch.randn(S)
        self.table = torch.randn(H, L + S)
        self.line = torch.randn(L + S)
        self.buckets = torch.randn(32, H)
        self.entries = torch.randn(B)

    def all(self) -> dict[str, Any]:
        return dict(vars(self))


def dense(c):
    return lambda s, b, h, i, j: s + c.bias[b, h, i, j]


def chained(c):
    def mod(s, b, h, i, j):
        # The reference hands over all indices at once, which cannot be chained.
        return (c.bias[b][h][i][j] if s.dim() == 0 else c.bias[b, h, i, j]) + s

    return mod


def of_heads(c):
    return lambda s, b, h, i, j: s - c.shared[h, i, j]


def of_one_column(c):
    return lambda s, b, h, i, j: s + c.shared[h, i, 3] * c.keys[j]


def of_keys(c):
    return lambda s, b, h, i, j: s + c.keys[j] * 2 + c.entries[b]


def table(c):
    return lambda s, b, h, i, j: s + c.table[h, i - j + S - 1]


def line(c):
    return lambda s, b, h, i, j: s + c.line[(i - j).abs()]


def buckets(c):
    def mod(s, b, h, i, j):
        t = torch.clamp((i - j).abs(), max=31)
        return s + c.buckets[t, h]

    return mod


def alibi(c):
    return lambda s, b, h, i, j: s + c.heads[h] * (j - i)


def alibi_abs(c):
    return lambda s, b, h, i, j: s - (i - j).abs() * c.heads[h] / 2


def distance(c):
    return lambda s, b, h, i, j: s + 0.1 * (i - j)


def computed_slopes(c):
    return lambda s, b, h, i, j: s + torch.exp2(-((h + 1) * 8.0 / H)) * (j - i)


def softcap(c):
    return lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0)


def softcap_and_bias(c):
    return lambda s, b, h, i, j: torch.tanh(s * 0.5) * 3 + c.shared[h, i, j]


def negative_softcap(c):
    return lambda s, b, h, i, j: -2.0 * torch.tanh(-s / 2.0)


def times(c):
    return lambda s, b, h, i, j: (c.keys[j] - s) * -2 + 1


def hidden(c):
    return lambda s, b, h, i, j: torch.where(i - j < 50, s + c.keys[j], -float("inf"))


def filled(c):
    return lambda s, b, h, i, j: s.masked_fill(j > i + 9, -float("inf"))


def chosen(c):
    return lambda s, b, h, i, j: torch.where(i % 2 == 0, s + c.keys[j], s - c.line[i - j + S])


# A mod, what it reads, the inputs of attention() without a mask, and under a causal one.
MODS = {
    dense: ("bias", {"bias"}, {"bias"}),
    chained: ("bias", {"bias"}, {"bias"}),
    of_heads: ("shared", {"bias"}, {"bias"}),
    of_one_column: ("shared keys", {"bias"}, {"bias"}),
    of_keys: ("keys", {"bias"}, {"bias"}),
    table: ("table", {"bias"}, {"dist_bias"}),
    line: ("line", {"bias"}, {"dist_bias"}),
    buckets: ("buckets", {"bias"}, {"dist_bias"}),
    alibi: ("heads", {"bias"}, {"slope"}),
    alibi_abs: ("heads", {"slope"}, {"slope"}),
    distance: ("", {"bias"}, {"slope"}),
    computed_slopes: ("", {"bias"}, {"slope"}),
    softcap: ("", {"softcap"}, {"softcap"}),
    softcap_and_bias: ("shared", {"softcap", "bias"}, {"softcap", "bias"}),
    negative_softcap: ("", {"softcap"}, {"softcap"}),
    times: ("keys", {"bias"}, {"bias"}),
    hidden: ("keys", {"bias"}, {"bias"}),
    filled: ("", {"bias"}, {"bias"}),
    chosen: ("keys line", {"bias"}, {"bias"}),
}


def causal(b, h, i, j):
    return j <= i


def stripes(b, h, i, j):
    return ((i // 20) % 2 == (j // 15) % 2) | (i == j)


MASKS = {"none": None, "causal": causal, "stripes": stripes}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The keywords of each call of attention()."""
    seen: list[dict[str, Any]] = []
    attention = drop_in.attention

    def record(*args: Any, **kwargs: Any) -> Any:
        seen.append({n: t for n, t in kwargs.items() if t is not None})
        return attention(*args, **kwargs)

    monkeypatch.setattr(drop_in, "attention", record)
    return seen


def reference(q, k, v, score_mod, block_mask, return_lse, mask):
    """Scores, the mod on all of them at once, a mask, softmax."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    index = [torch.arange(n) for n in s.shape]
    places = [n.reshape([-1] + [1] * (3 - at)) for at, n in enumerate(index)]
    s = score_mod(s, *places)
    if mask is not None:
        shown = flex.create_mask(mask, None, None, L, S, DEVICE)
        s = s.masked_fill(~shown, -torch.inf)
    empty = (s == -torch.inf).all(-1, keepdim=True)
    p = s.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
    return p @ v, s.logsumexp(-1)


def run(function: Any, make: Any, dtype: Any, read: str, block_mask: Any) -> list[Any]:
    """o, lse and the gradients of q, k, v and of what the mod reads."""
    captured = Captured()
    for name, t in captured.all().items():
        setattr(captured, name, t.to(dtype).requires_grad_(name in read.split()))
    torch.manual_seed(2)
    tensors = [torch.randn(B, H, n, 16).to(dtype).requires_grad_() for n in (L, S, S)]
    o, lse = function(*tensors, score_mod=make(captured), block_mask=block_mask, return_lse=True)
    weight = torch.linspace(-1, 1, o.numel(), dtype=torch.float64).reshape(o.shape).to(dtype)
    learned = [captured.all()[name] for name in read.split()]
    return [o.detach(), lse.detach(), *torch.autograd.grad((o * weight).sum(), tensors + learned)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("make", MODS, ids=lambda m: m.__name__)
def test_mods(make: Any, mask: str, calls: list[dict[str, Any]]) -> None:
    read, plain, under_causal = MODS[make]
    block_mask = None
    if MASKS[mask] is not None:
        block_mask = flex.create_block_mask(MASKS[mask], None, None, L, S, DEVICE)
    got = run(drop_in.flex_attention, make, torch.float32, read, block_mask)
    exact = functools.partial(reference, mask=MASKS[mask])
    want = run(exact, make, torch.float64, read, block_mask)
    for x, y in zip(got, want, strict=True):
        assert y.abs().max() > 1e-3
        torch.testing.assert_close(x.double(), y.double(), atol=5e-5, rtol=5e-5)
    (call,) = calls
    assert call.keys() & {"spans", "keep", "block_mask"} == {
        "none": set(), "causal": {"spans"}, "stripes": {"block_mask"}
    }[mask]  # fmt: skip
    inputs = call.keys() & {"bias", "dist_bias", "slope", "softcap"}
    assert inputs == (under_causal if mask == "causal" else plain)


def test_a_bias_is_as_small_as_what_it_depends_on(calls: list[dict[str, Any]]) -> None:
    q, k = torch.randn(B, H, L, 16), torch.randn(B, H, S, 16)
    c = Captured()
    for make, shape in (
        (dense, (B, H, L, S)), (of_heads, (1, H, L, S)), (of_keys, (B, 1, 1, S)),
        (line, (1, 1, L, S)), (filled, (1, 1, L, S)),
    ):  # fmt: skip
        drop_in.flex_attention(q, k, k, make(c))
        assert calls[-1]["bias"].shape == shape
    drop_in.flex_attention(q, k, k, lambda s, b, h, i, j: s)
    assert not calls[-1].keys() & {"bias", "slope", "dist_bias", "softcap"}
    drop_in.flex_attention(q, k, k, softcap(c), scale=0.5)
    assert (calls[-1]["softcap"], calls[-1]["scale"]) == (2.0, 0.5)
    cap = torch.tensor(4.0)
    drop_in.flex_attention(q, k, k, lambda s, b, h, i, j: cap * torch.tanh(s / cap))
    assert (calls[-1]["softcap"], calls[-1]["scale"]) == (4.0, 0.25)


def test_a_mod_is_traced_at_each_call(calls: list[dict[str, Any]]) -> None:
    """Numbers and tensors that a mod reads may change between calls."""
    q = torch.randn(1, 2, 8, 16)
    numbers = {"cap": 2.0}

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return numbers["cap"] * torch.tanh(s / numbers["cap"])

    drop_in.flex_attention(q, q, q, mod)
    numbers["cap"] = 5.0
    drop_in.flex_attention(q, q, q, mod)
    assert [c["softcap"] for c in calls] == [2.0, 5.0]


def test_one_row_and_no_rows() -> None:
    """A slope cannot be read at a distance of 1 where there is one row."""
    c = Captured()
    for rows in (1, 0):
        q, k = torch.randn(B, H, rows, 16), torch.randn(B, H, S, 16)
        for make in (alibi_abs, table):
            got = drop_in.flex_attention(q, k, k, make(c))
            assert got.shape == (B, H, rows, 16)
            if rows:
                with warnings.catch_warnings(), torch.no_grad():
                    warnings.simplefilter("ignore")
                    want = flex.flex_attention(q, k, k, make(c))
                torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def test_half_precision() -> None:
    """A bias of bf16 beside q of bf16; the gradient has the bias's type."""
    torch.manual_seed(0)
    q = torch.randn(1, H, L, 32, dtype=torch.bfloat16)
    bias = torch.randn(H, L, L, dtype=torch.bfloat16, requires_grad=True)
    o = drop_in.flex_attention(q, q, q, lambda s, b, h, i, j: s + bias[h, i, j])
    (got,) = torch.autograd.grad(o.float().sum(), bias)
    exact = bias.detach().double().requires_grad_()
    wide = q.double()
    p = (wide @ wide.mT / 32**0.5 + exact).softmax(-1) @ wide
    (want,) = torch.autograd.grad(p.sum(), exact)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, atol=5e-2, rtol=2e-2)  # fmt: skip


def test_gradients_of_16_bits_are_summed_in_f32() -> None:
    """Of a number that thousands of pairs read; summed in bf16 it would stand still."""
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, 1, 256, 16, dtype=torch.bfloat16) for _ in range(3))
    buckets = torch.zeros(4, dtype=torch.bfloat16, requires_grad=True)
    o = drop_in.flex_attention(q, k, v, lambda s, b, h, i, j: s + buckets[j // 64])
    (got,) = torch.autograd.grad(o.float().sum(), buckets)
    exact = buckets.detach().double().requires_grad_()
    bias = exact[torch.arange(256) // 64]
    p = (q.double() @ k.double().mT / 4 + bias).softmax(-1) @ v.double()
    (want,) = torch.autograd.grad(p.sum(), exact)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, atol=0.05, rtol=1e-2)


def test_refusals() -> None:
    q = torch.randn(1, H, L, 16)
    c = Captured()
    learned = torch.ones((), requires_grad=True)

    def branch(s, b, h, i, j):
        return s + 1 if i > j else s

    for mod, sentence in (
        (lambda s, b, h, i, j: s * s, "<lambda> hands the score to aten.mul.Tensor"),
        (lambda s, b, h, i, j: s**2, "hands the score to aten.pow"),
        (lambda s, b, h, i, j: s.relu(), "hands the score to aten.relu"),
        (lambda s, b, h, i, j: s * c.heads[h], "multiplies the score by what is no number"),
        (lambda s, b, h, i, j: s / c.heads[h], "divides the score by what is no number"),
        (lambda s, b, h, i, j: s * learned, "multiplies the score by what is no number"),
        (lambda s, b, h, i, j: s / 0.0, "divides the score by what is no number"),
        (lambda s, b, h, i, j: torch.tanh(s + i), "tanh of the score together with something"),
        (lambda s, b, h, i, j: 2 * torch.tanh(torch.tanh(s)), "tanh of the score together"),
        (lambda s, b, h, i, j: torch.where(s > 0, s, -1.0), "hands the score to aten.gt"),
        (lambda s, b, h, i, j: torch.where(i > j, s, 0.0), "in the place of the score than minus"),
        (lambda s, b, h, i, j: torch.where(i > j, s, s * 2), "different multiples of the score"),
        (lambda s, b, h, i, j: c.keys[j], "returns what the score is no part of"),
        (lambda s, b, h, i, j: s + torch.rand(()), "draws random numbers by aten.rand"),
        (lambda s, b, h, i, j: s.add_(1), "writes in place by aten.add_"),
        (lambda s, b, h, i, j: s.half(), "hands the score to aten._to_copy"),
        (lambda s, b, h, i, j: s + c.keys[s.long()], "hands the score to aten._to_copy"),
        (lambda s, b, h, i, j: (s, s), "returns 2 values, not one"),
        (branch, "score_mod branch cannot be traced"),
        (lambda s: s, "cannot be traced"),
        (7, "score_mod int cannot be traced"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=sentence):
            drop_in.flex_attention(q, q, q, mod)
    with pytest.raises(InvalidArgumentError, match="scale is nan"):
        drop_in.flex_attention(q, q, q, alibi(c), scale=float("nan"))


def test_the_score_is_float32_whatever_the_default_is() -> None:
    q = torch.randn(1, 1, 8, 8, dtype=torch.float32)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with pytest.raises(UnsupportedError, match=r"hands the score to aten\._to_copy"):
            drop_in.flex_attention(q, q, q, lambda s, b, h, i, j: s.bfloat16())
    finally:
        torch.set_default_dtype(default)
