# SPDX-License-Identifier: MIT OR Apache-2.0
"""spans= of torch's attention: values and gradients with every other input, and what models do.

TANDEM_TEST_TORCH_DEVICE=cuda runs the same on a GPU.
"""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import reference  # noqa: E402
from torch import Tensor  # noqa: E402

import tandem_attention as ta  # noqa: E402
from tandem_attention import masks  # noqa: E402
from tandem_attention.torch import attention  # noqa: E402

DEVICE = os.environ.get("TANDEM_TEST_TORCH_DEVICE", "cpu")
GRADIENTS = ("q", "k", "v", "bias", "dist_bias", "slope", "tau", "sink")
B, HQ, HK, SQ, SK = 4, 4, 2, 13, 11


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def some(batch: int, heads: int, numbers: int, keys: int = SK, rows: int = SQ) -> Tensor:
    """Any numbers: intervals that are empty, that overlap, that reach beyond the rows."""
    spans = torch.randint(-3, rows + 4, (batch, heads, keys, numbers), dtype=torch.int32)
    spans[:, :, ::5, 0::2] = -(2**31)
    spans[:, :, ::5, 1::2] = 2**31 - 1
    spans[:, :, 3] = torch.tensor([9, 2] * (numbers // 2))  # a key that no row sees
    return spans.to(DEVICE)


def to_keep(spans: Tensor, rows: int = SQ, batch: int = B, heads: int = HQ) -> Tensor:
    """The mask of a call, [batch, heads, Sq, Sk]."""
    seen = torch.from_numpy(masks.to_mask(spans, rows)).to(DEVICE)
    seen = seen.repeat_interleave(batch // seen.shape[0], 0)
    return seen.repeat_interleave(heads // seen.shape[1], 1)


def in_double(q: Tensor, k: Tensor, v: Tensor, *, spans: Tensor, keep: Tensor | None = None,
              bias: Tensor | None = None, dist_bias: Tensor | None = None,
              slope: Tensor | None = None, tau: Tensor | None = None, sink: Tensor | None = None,
              lengths_q: Tensor | None = None, lengths_kv: Tensor | None = None,
              causal: bool | str = False, window: Any = (-1, -1), align: str = "top_left",
              softcap: float = 0.0, normalizer: str = "softmax") -> Tensor:  # fmt: skip
    """The formulas with torch's operations, for autograd."""
    k, v = (x.repeat_interleave(HQ // HK, 1) for x in (k, v))
    if isinstance(causal, str):
        causal, align = True, causal
    i, j = torch.arange(SQ, device=DEVICE)[:, None], torch.arange(SK, device=DEVICE)
    n_q = torch.full((B,), SQ, device=DEVICE) if lengths_q is None else lengths_q
    n_k = torch.full((B,), SK, device=DEVICE) if lengths_kv is None else lengths_kv
    n_q, n_k = n_q[:, None, None, None], n_k[:, None, None, None]
    t = i - j + (n_k - n_q if align == "bottom_right" else 0 * n_k)
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    if dist_bias is not None:
        near = ((t >= 0) & (t < dist_bias.shape[1])).expand(s.shape)
        head = torch.arange(HQ, device=DEVICE)[:, None, None].expand(s.shape)
        s = s + torch.where(near, dist_bias[head, t.expand(s.shape).where(near, 0)], 0)
    if slope is not None:
        s = s - slope[:, None, None] * t.abs()
    seen = ((i < n_q) & (j < n_k)).expand(s.shape)
    if causal:
        seen = seen & (t >= 0)
    if window[0] >= 0:
        seen = seen & (t <= window[0])
    if window[1] >= 0:
        seen = seen & (-t <= window[1])
    count = seen.sum(-1, keepdim=True)
    seen = seen & to_keep(spans)
    if keep is not None:
        seen = seen & keep
    s = s.masked_fill(~seen, -torch.inf)
    # Of a row that sees nothing softmax is nan, and so would be its gradients.
    alive = seen.any(-1, keepdim=True)
    s = torch.where(alive, s, 0)
    if sink is not None:
        column = sink.reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)
        p = torch.softmax(torch.cat([s, column], -1), -1)[..., :-1]
    else:
        p = torch.softmax(s, -1)
    if normalizer == "elastic":
        assert tau is not None
        p = torch.relu(p + tau.reshape(1, -1, 1, 1) / count.clamp(min=1))
    return torch.where(seen, p, 0) @ v


def case(**more: Any) -> dict[str, Any]:
    return {"q": normal(B, HQ, SQ, 8), "k": normal(B, HK, SK, 8), "v": normal(B, HK, SK, 6), **more}


def whole(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


# What stands beside spans.
CASES: dict[str, Any] = {
    "nothing": case,
    "causal": lambda: case(causal=True),
    "bottom right": lambda: case(causal="bottom_right"),
    "window": lambda: case(window=(4, 2), align="bottom_right"),
    "mask": lambda: case(keep=torch.rand(B, 1, SQ, SK, device=DEVICE) < 0.7),
    "mask of keys": lambda: case(keep=torch.rand(B, 1, 1, SK, device=DEVICE) < 0.7),
    "bias": lambda: case(bias=normal(B, HQ, SQ, SK)),
    "bias of all": lambda: case(bias=normal(1, HQ, SQ, SK)),
    "bias of keys": lambda: case(bias=normal(B, 1, 1, SK), causal=True),
    "lengths": lambda: case(lengths_q=whole(13, 4, 0, 9), lengths_kv=whole(5, 11, 7, 0)),
    "lengths at the end": lambda: case(
        lengths_q=whole(13, 4, 8, 9), lengths_kv=whole(5, 11, 7, 10), causal="bottom_right"
    ),
    "sink": lambda: case(sink=normal(HQ)),
    "softcap": lambda: case(softcap=1.25),
    "distance": lambda: case(dist_bias=normal(HQ, 6), causal=True),
    "alibi": lambda: case(slope=normal(HQ).abs()),
    "elastic": lambda: case(normalizer="elastic", tau=-0.3 * torch.ones(HQ, device=DEVICE)),
    "all together": lambda: case(
        bias=normal(1, HQ, SQ, SK), keep=torch.rand(B, 1, SQ, SK, device=DEVICE) < 0.8,
        sink=normal(HQ), softcap=2.0, dist_bias=normal(HQ, 5), slope=normal(HQ).abs(),
        lengths_q=whole(13, 4, 8, 9), lengths_kv=whole(5, 11, 7, 10), window=(7, 3),
    ),
}  # fmt: skip


def with_gradients(function: Any, arguments: dict[str, Any], dtype: Any) -> dict[str, Tensor]:
    inputs = {
        n: x.detach().to(dtype).requires_grad_() if n in GRADIENTS else x
        for n, x in arguments.items()
    }
    o = function(**inputs)
    weight = torch.linspace(-1, 1, o.numel(), dtype=torch.float64, device=DEVICE).reshape(o.shape)
    (o * weight.to(o.dtype)).sum().backward()
    return {"o": o.detach(), **{n: inputs[n].grad for n in GRADIENTS if n in inputs}}


def close(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert got.keys() == want.keys()
    for name, x in got.items():
        assert x.shape == want[name].shape, name
        torch.testing.assert_close(
            x.double(), want[name].double(), atol=tolerance, rtol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


SHAPES = list(itertools.product((1, 2, 4), (1, HK, HQ), (2, 4)))


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    for batch, heads, numbers in SHAPES:
        arguments = CASES[name]() | {"spans": some(batch, heads, numbers)}
        got = with_gradients(attention, arguments, torch.float32)
        close(got, with_gradients(in_double, arguments, torch.float64))


@pytest.mark.parametrize("name", ["nothing", "lengths", "all together", "window"])
def test_lse_is_the_reference(name: str) -> None:
    for batch, heads, numbers in SHAPES:
        arguments = CASES[name]() | {"spans": some(batch, heads, numbers)}
        o, lse = attention(**arguments, return_lse=True)
        host = {n: x.cpu().numpy() if isinstance(x, Tensor) else x for n, x in arguments.items()}
        o_ref, lse_ref = reference.attention(**host)
        np.testing.assert_allclose(o.cpu(), o_ref, atol=3e-6)
        np.testing.assert_array_equal(np.isfinite(lse.cpu().numpy()), np.isfinite(lse_ref))
        rows = np.isfinite(lse_ref)
        np.testing.assert_allclose(lse.cpu().numpy()[rows], lse_ref[rows], atol=4e-6)


@pytest.mark.parametrize("more", [
    {"dropout": 0.4, "seed": 3, "offset": 5}, {"normalizer": "entmax", "alpha": 1.5},
    {"normalizer": "entmax", "alpha": 2.0}, {"deterministic": True},
], ids=["dropout", "entmax", "sparsemax", "deterministic"])  # fmt: skip
def test_spans_are_the_mask_that_they_say(more: dict[str, Any]) -> None:
    for batch, heads, numbers in SHAPES:
        arguments = case(bias=normal(1, HQ, SQ, SK), **more)
        spans = some(batch, heads, numbers)
        got = with_gradients(attention, arguments | {"spans": spans}, torch.float32)
        want = with_gradients(attention, arguments | {"keep": to_keep(spans)}, torch.float32)
        close(got, want, 2e-6)


def test_rows_of_packed_sequences_are_counted_within_each() -> None:
    lengths, keys = (3, 0, 9, 5), (7, 4, 0, 11)
    offsets_q, offsets_kv = (whole(0, *itertools.accumulate(n)) for n in (lengths, keys))
    for batch, heads, numbers in SHAPES:
        spans = some(batch, heads, numbers)
        q, k, v = normal(HQ, 17, 8), normal(HK, 22, 8), normal(HK, 22, 8)
        packed = {
            "q": q, "k": k, "v": v, "spans": spans, "offsets_q": offsets_q,
            "offsets_kv": offsets_kv, "max_seq_q": SQ, "max_seq_kv": SK, "causal": "bottom_right",
        }  # fmt: skip
        o = attention(**packed)
        for n in range(B):
            rows = slice(*offsets_q[n : n + 2].tolist())
            columns = slice(*offsets_kv[n : n + 2].tolist())
            own = spans[n // (B // batch)][None, :, : keys[n]]
            want = attention(
                q[None, :, rows], k[None, :, columns], v[None, :, columns],
                spans=own, causal="bottom_right",
            )  # fmt: skip
            torch.testing.assert_close(o[:, rows], want[0], atol=2e-6, rtol=1e-5)


# ---- what models do ------------------------------------------------------------------------------


def test_documents_are_sequences_alone() -> None:
    lengths = (5, 1, 9, 3)
    spans = torch.from_numpy(masks.documents(lengths, 20)).to(DEVICE)
    q, k, v = normal(1, 4, 20, 8), normal(1, 2, 20, 8), normal(1, 2, 20, 8)
    o = attention(q, k, v, spans=spans)
    begin = 0
    for length in lengths:
        part = slice(begin, begin + length)
        want = attention(q[:, :, part], k[:, :, part], v[:, :, part], causal=True)
        torch.testing.assert_close(o[:, :, part], want, atol=2e-6, rtol=1e-5)
        begin += length
    assert (o[:, :, begin:] == 0).all()


def test_a_tree_is_its_paths() -> None:
    """Each path from the root to a leaf as a sequence of its own has the tree's rows."""
    parents, lengths = [-1, 0, 1, 1, 0, -1, 5], [4, 3, 5, 2, 6, 3, 4]
    ends = np.cumsum(lengths)
    spans = torch.from_numpy(masks.tree(parents, lengths)).to(DEVICE)
    total = int(ends[-1])
    q, k, v = normal(1, 4, total, 8), normal(1, 2, total, 8), normal(1, 2, total, 8)
    o = attention(q, k, v, spans=spans)
    for leaf in (2, 3, 4, 6):
        path, at = [], leaf
        while at >= 0:
            path = [*range(ends[at] - lengths[at], ends[at]), *path]
            at = parents[at]
        rows = torch.tensor(path, device=DEVICE)
        want = attention(q[:, :, rows], k[:, :, rows], v[:, :, rows], causal=True)
        torch.testing.assert_close(o[:, :, rows], want, atol=2e-6, rtol=1e-5)


def long_spans() -> dict[str, Any]:
    """Of 333 rows: tiles that no row sees, that all see, and that are cut."""
    rng = np.random.default_rng(5)
    lengths = [40, *rng.integers(20, 50, 7)]
    return {
        "tree": masks.tree([-1, 0, 1, 1, 0, 4, 4, 0], lengths, 333),
        "documents": masks.documents([[100, 7, 226], [1, 300, 20]]),
        "both ways": masks.documents([64, 64, 128, 77], causal=False),
        "global": masks.global_tokens(333, range(9), (31, 31), causal=False, rows=True),
        "images": masks.image_spans(333, [(10, 80), (150, 290)]),
        "two intervals": masks.union(
            masks.documents([111, 222], causal=False), masks.windows((40, 5), [333])
        ).repeat(2, 1),
        "nothing": np.zeros((1, 1, 333, 2), np.int32),
    }


@pytest.mark.parametrize("name", long_spans())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_rows(name: str, dtype: Any) -> None:
    spans = torch.from_numpy(long_spans()[name]).to(DEVICE)
    size = spans.shape[2]
    arguments = {"q": normal(2, 4, size, 64), "k": normal(2, 2, size, 64),
                 "v": normal(2, 2, size, 64)}  # fmt: skip
    arguments = {n: x.to(dtype) for n, x in arguments.items()}
    got = with_gradients(attention, arguments | {"spans": spans}, dtype)
    keep = to_keep(spans, size, 2, 4)
    want = with_gradients(attention, arguments | {"keep": keep}, dtype)
    close(got, want, 1e-5 if dtype == torch.float32 else 2e-2)
    if name == "nothing":
        assert all((x == 0).all() for x in got.values())


# ---- types, transforms, compilers ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.uint32, torch.int8])
def test_other_whole_numbers_and_strides(dtype: Any) -> None:
    arguments = case()
    spans = torch.randint(0, SQ + 4, (2, HK, 4, SK), dtype=torch.int32).to(DEVICE)
    want = attention(**arguments, spans=spans.transpose(2, 3).contiguous())
    assert torch.equal(attention(**arguments, spans=spans.to(dtype).transpose(2, 3)), want)
    assert torch.equal(
        attention(**arguments, spans=spans[0, 0].T.to(dtype)),
        attention(**arguments, spans=spans[:1, :1].transpose(2, 3).contiguous()),
    )


def test_numbers_beyond_int32_are_not_cut() -> None:
    arguments = case()
    far = torch.tensor([-(2**40), 2**40], device=DEVICE).expand(SK, 2)
    close({"o": attention(**arguments, spans=far)}, {"o": attention(**arguments)}, 1e-6)
    none = torch.tensor([2**32, 2**33], device=DEVICE).expand(SK, 2)
    assert (attention(**arguments, spans=none) == 0).all()
    wide = torch.tensor([0, 2**32 - 1], dtype=torch.uint32, device=DEVICE).expand(SK, 2)
    close({"o": attention(**arguments, spans=wide)}, {"o": attention(**arguments)}, 1e-6)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("mapped", [0, 3, None])
def test_vmap(mapped: int | None, batch: int) -> None:
    q, k, v = normal(3, B, HQ, SQ, 8), normal(3, B, HK, SK, 8), normal(3, B, HK, SK, 8)
    each = [some(batch, HK, 2) for _ in range(3)]
    spans = each[0] if mapped is None else torch.stack(each, mapped)

    def loss(*tensors: Tensor) -> Any:
        o = attention(*tensors[:3], spans=tensors[3])
        return o.sin().sum(), o

    gradient = torch.func.grad(loss, argnums=(0, 1, 2), has_aux=True)
    got, o = torch.vmap(gradient, in_dims=(0, 0, 0, mapped))(q, k, v, spans)
    for n in range(3):
        own = each[0] if mapped is None else each[n]
        want, alone = gradient(q[n], k[n], v[n], own)
        torch.testing.assert_close(o[n], alone, atol=1e-6, rtol=1e-5)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x[n], y, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("mapped", [0, 3])
def test_vmap_one_by_one(mapped: int) -> None:
    """Dropout keeps entries apart; a mapped tensor's parts are not contiguous."""
    arguments = case(dropout=0.5, seed=3)
    each = [some(2, HK, 4) for _ in range(3)]
    got = torch.vmap(
        lambda s: attention(**arguments, spans=s), in_dims=mapped, randomness="same"
    )(torch.stack(each, mapped))  # fmt: skip
    for n in range(3):
        assert torch.equal(got[n], attention(**arguments, spans=each[n]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_compile_without_graph_breaks(dtype: Any) -> None:
    arguments = case(spans=some(2, HK, 4).to(dtype), causal=True)
    eager = with_gradients(attention, arguments, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    close(with_gradients(compiled, arguments, torch.float32), eager, 1e-6)


def test_export() -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, spans: Tensor) -> Any:
            return attention(q, k, v, spans=spans)

    tensors = (*case().values(), some(1, 1, 2))
    program = torch.export.export(Module(), tensors)
    assert torch.equal(program.module()(*tensors), attention(*tensors[:3], spans=tensors[3]))


def test_arrays_api_and_plans() -> None:
    arguments = case(spans=some(2, HK, 4))
    o, lse = ta.attention(**arguments, return_lse=True)
    assert torch.equal(o, attention(**arguments))
    got = ta.attention_backward(torch.ones_like(o), **arguments, o=o, lse=lse)
    arguments["q"].requires_grad_()
    attention(**arguments).sum().backward()
    torch.testing.assert_close(got.q, arguments["q"].grad)
    q, k, v, spans = arguments.values()
    line = ta.plan(q.detach(), k, v, spans=spans, backward=True).line
    assert "spans=2:2x2" in line.split()
    assert ta.plan(line).line == line


def test_a_gradient_of_spans_is_none() -> None:
    arguments = case(spans=some(1, 1, 2))
    o, lse = ta.attention(**arguments, return_lse=True)
    with pytest.raises(ta.InvalidArgumentError, match="'spans' has no gradient"):
        ta.attention_backward(o, **arguments, o=o, lse=lse, gradients=("spans",))


def test_refusals() -> None:
    arguments = case()
    spans = some(1, 1, 2)
    bad = ta.InvalidArgumentError
    for kind, sentence, given in (
        (bad, "spans is float32, not of a type of whole numbers", spans.float()),
        (bad, "spans is bool, not of a type of whole numbers", spans > 0),
        (ta.UnsupportedError, "spans is uint64; it may be int32 or int64", spans.to(torch.uint64)),
        (bad, "spans has 5 dimensions; at most 4", spans[None]),
        (bad, "has 1 numbers a key; there are 2 for one", spans[..., :1]),
        (bad, "has 6 numbers a key", spans.repeat(1, 1, 1, 3)),
        (bad, "spans has keys 10 where k has 11", spans[:, :, :10]),
        (bad, "has 3 heads; it may have 1, 2 or 4", spans.expand(1, 3, SK, 2)),
        (bad, "has 3 batch entries, which do not divide the 4 of q", spans.expand(3, 1, SK, 2)),
        (bad, "has 8 batch entries, which do not divide the 4 of q", spans.expand(8, 1, SK, 2)),
        (bad, "has 0 batch entries", spans[:0]),
        (bad, "spans is a ndarray, not a tensor", spans.cpu().numpy()),
        (bad, "spans lies on meta", spans.to("meta")),
    ):
        with pytest.raises(kind, match=sentence):
            attention(**arguments, spans=given)
        if isinstance(given, Tensor) and given.device.type != "meta":
            meta = {n: x.to("meta") for n, x in arguments.items()}
            with pytest.raises(kind, match=sentence):
                attention(**meta, spans=given.to("meta"))
