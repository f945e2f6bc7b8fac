# SPDX-License-Identifier: MIT OR Apache-2.0
"""drop_in.flex_attention against torch's own function in float64."""

from __future__ import annotations

import gc
import inspect
import warnings
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import flex_attention as flex  # noqa: E402

from tandem_attention import InvalidArgumentError, UnsupportedError, masks  # noqa: E402
from tandem_attention.drop_in import _visible  # noqa: E402
from tandem_attention.drop_in import flex_attention as drop_in  # noqa: E402
from tandem_attention.torch import attention  # noqa: E402

S = 300  # more than two blocks of 128, and the last one is not full
DEVICE = str(torch.get_default_device())
IDS = torch.tensor([0] * 70 + [1] * 130 + [2] * 100)
EDGES = torch.tensor([0, 40, 60, 200])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def documents(b, h, i, j):
    return (IDS[i] == IDS[j]) & (j <= i)


def window(b, h, i, j):
    return (i - j <= 37) & (j <= i)


def of_heads(b, h, i, j):
    return (i - j <= 20 * (h + 1) + 50 * b) & (j <= i)


def sinks(b, h, i, j):
    return (j < 5) | ((i - j).abs() < 40)


def two_intervals(b, h, i, j):
    return (i < 30) | ((i - j).abs() < 40)


def stripes(b, h, i, j):
    return ((i // 50) % 2 == (j // 30) % 2) | (i == j)


def no_rows(b, h, i, j):
    return (j > 150) & (i > 200)


MODS = {
    "documents": (documents, 1, 1, "spans", 2),
    "window": (window, 1, 1, "spans", 2),
    "of heads": (of_heads, 2, 4, "spans", 2),
    "sinks": (sinks, 1, 1, "spans", 2),
    "two intervals": (two_intervals, 1, 4, "spans", 4),
    "stripes": (stripes, 2, 1, "blocks", S),
    "rows without keys": (no_rows, 1, 1, "spans", 2),
}


def rand(*shape: int) -> Any:
    return torch.randn(*shape)


def with_gradients(function: Any, tensors: Any, dtype: Any, **options: Any) -> list[Any]:
    inputs = [t.detach().to(dtype).requires_grad_() for t in tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        o = function(*inputs, **options)
    weight = torch.linspace(-1, 1, o.numel(), dtype=torch.float64).reshape(o.shape)
    return [o.detach(), *torch.autograd.grad((o * weight.to(dtype)).sum(), inputs)]


def exact(q: Any, k: Any, v: Any, block_mask: Any, dense: Any) -> Any:
    """In double, of the pairs that torch itself lists."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    alive = dense.any(-1, keepdim=True)
    p = torch.where(alive, s.masked_fill(~dense, -torch.inf), 0).softmax(-1)
    return torch.where(dense, p, 0) @ v


@pytest.mark.parametrize("size", [128, 64])
@pytest.mark.parametrize("name", MODS)
def test_block_masks(name: str, size: int) -> None:
    mod, batch, heads, kind, width = MODS[name]
    block_mask = flex.create_block_mask(mod, batch, heads, S, S, DEVICE, BLOCK_SIZE=size)
    visible = drop_in.visible_of(block_mask)
    given = {n: t for n, t in visible._asdict().items() if t is not None}
    if kind == "blocks":
        assert list(given) == ["blocks"]
        assert given["blocks"].lists.shape[:2] == (batch, heads)
    else:
        assert {n: t.shape for n, t in given.items()} == {kind: (batch, heads, S, width)}
    dense = flex.create_mask(mod, batch, heads, S, S, device=DEVICE)
    if kind == "spans":
        assert (torch.from_numpy(masks.to_mask(visible.spans, S)).to(DEVICE) == dense).all()
    tensors = rand(2, 4, S, 16), rand(2, 2, S, 16), rand(2, 2, S, 8)
    got = with_gradients(
        drop_in.flex_attention, tensors, torch.float32, block_mask=block_mask, enable_gqa=True
    )
    want = with_gradients(exact, tensors, torch.float64, block_mask=block_mask, dense=dense)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x.double(), y, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", ["documents", "stripes"])
def test_torchs_own_function_agrees(name: str) -> None:
    mod, batch, heads, *_ = MODS[name]
    block_mask = flex.create_block_mask(mod, batch, heads, S, S, DEVICE)
    q, k, v = rand(2, 4, S, 16), rand(2, 4, S, 16), rand(2, 4, S, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = flex.flex_attention(q, k, v, block_mask=block_mask, scale=0.3, return_lse=True)
    got = drop_in.flex_attention(q, k, v, block_mask=block_mask, scale=0.3, return_lse=True)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, atol=2e-5, rtol=2e-5)
    o, aux = drop_in.flex_attention(
        q, k, v, block_mask=block_mask, scale=0.3, return_aux=flex.AuxRequest(lse=True)
    )
    assert torch.equal(o, got[0])
    assert torch.equal(aux.lse, got[1])
    assert aux.max_scores is None
    o, aux = drop_in.flex_attention(q, k, v, return_aux=flex.AuxRequest())
    assert aux.lse is None
    torch.testing.assert_close(
        o, torch.nn.functional.scaled_dot_product_attention(q, k, v), atol=2e-5, rtol=2e-5
    )


def test_lists_without_a_mask_mod() -> None:
    """Blocks that are listed as full show all, those listed as partial what mask_mod shows."""
    counts, indices = (
        torch.tensor([[[1, 0, 2]]]),
        torch.tensor([[[[0, 1, 2], [0, 1, 2], [2, 1, 0]]]]),
    )
    full = torch.tensor([[[0, 1, 0]]]), torch.tensor([[[[0, 1, 2], [1, 0, 2], [0, 1, 2]]]])
    block_mask = flex.BlockMask.from_kv_blocks(
        counts.int(), indices.int(), full[0].int(), full[1].int(), BLOCK_SIZE=128,
        mask_mod=lambda b, h, i, j: j % 2 == 0, seq_lengths=(S, S),
    )  # fmt: skip
    dense = torch.zeros(S, S, dtype=torch.bool)
    even = torch.arange(S) % 2 == 0
    dense[:128, :128] = even[:128]
    dense[128:256, 128:256] = True
    dense[256:, 128:] = even[128:]
    visible = drop_in.visible_of(block_mask)
    assert (torch.from_numpy(masks.to_mask(visible.spans, S)).to(DEVICE) == dense).all()


def test_intervals_are_those_of_masks() -> None:
    """At random; a key has one, two or more intervals, or none."""
    kinds = set()
    for seed in range(300):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        rows, keys = (int(torch.randint(1, 8, (), generator=generator)) for _ in "qk")
        dense = torch.rand(2, 1, rows, keys, generator=generator) < 0.6
        made = _visible.intervals(dense)
        try:
            want = masks.from_mask(dense)
        except ValueError:
            kinds.add("none of these")
            assert made is None
            continue
        kinds.add(want.shape[3])
        assert made.dtype == torch.int32
        assert (torch.from_numpy(masks.to_mask(made, rows)).to(DEVICE) == dense).all()
    assert kinds == {2, 4, "none of these"}
    assert _visible.intervals(torch.ones(1, 1, 4, 0, dtype=torch.bool)).shape == (1, 1, 0, 4)
    assert (_visible.intervals(torch.ones(1, 1, 0, 4, dtype=torch.bool)) == 0).all()


def test_keys_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for mod, batch, heads, kind, _ in MODS.values():
        block_mask = flex.create_block_mask(mod, batch, heads, S, S, DEVICE)
        whole = getattr(drop_in._read(block_mask), kind)
        with monkeypatch.context() as patch:
            patch.setattr(drop_in, "_AT_ONCE", 70 * S * batch * heads)
            parts = getattr(drop_in._read(block_mask), kind)
        if kind == "blocks":
            assert all(map(torch.equal, parts, whole))
        else:
            assert torch.equal(parts, whole)


def test_a_mask_is_read_once_and_goes_with_its_owner() -> None:
    calls = []

    def mod(b, h, i, j):
        calls.append(1)
        return j <= i

    block_mask = flex.create_block_mask(mod, 1, 1, S, S, DEVICE)
    first = drop_in.visible_of(block_mask)
    before = len(calls)
    assert drop_in.visible_of(block_mask) is first
    assert len(calls) == before
    known, alive = len(drop_in._known._made), weakref.ref(block_mask)
    del block_mask, first
    gc.collect()
    assert alive() is None
    assert len(drop_in._known._made) == known - 1


@pytest.mark.parametrize("take", ["drop-in", "attention"])
def test_a_mask_that_is_changed_is_read_again(take: str) -> None:
    def call(block_mask):
        if take == "attention":
            return attention(q, q, q, block_mask=block_mask)
        return drop_in.flex_attention(q, q, q, block_mask=block_mask)

    q = torch.randn(1, 1, S, 8)
    block_mask = flex.create_block_mask(stripes, 1, 1, S, S, DEVICE)
    assert torch.equal(call(block_mask), call(block_mask))
    block_mask.mask_mod = lambda b, h, i, j: stripes(b, h, i, j) & (j % 2 == 0)
    want = flex.create_block_mask(block_mask.mask_mod, 1, 1, S, S, DEVICE)
    torch.testing.assert_close(call(block_mask), call(want))
    block_mask.kv_num_blocks.zero_()
    if block_mask.full_kv_num_blocks is not None:
        block_mask.full_kv_num_blocks = torch.zeros_like(block_mask.full_kv_num_blocks)
    assert (call(block_mask) == 0).all()


@pytest.mark.parametrize("mod", [documents, stripes])
def test_a_mask_first_seen_in_inference_mode_trains(mod) -> None:
    q = torch.randn(1, 1, S, 8, requires_grad=True)
    block_mask = flex.create_block_mask(mod, 1, 1, S, S, DEVICE)
    with torch.inference_mode():
        o = drop_in.flex_attention(q, q, q, block_mask=block_mask)
        attention(q, q, q, block_mask=block_mask)
    for again in (
        drop_in.flex_attention(q, q, q, block_mask=block_mask),
        attention(q, q, q, block_mask=block_mask),
    ):
        torch.testing.assert_close(again, o)
        again.sum().backward()


def test_signature() -> None:
    ours, theirs = (
        inspect.signature(f.flex_attention).parameters for f in (drop_in, flex)
    )  # fmt: skip
    if "return_aux" in theirs:
        assert list(ours) == list(theirs)
    assert all(ours[n].default == p.default for n, p in theirs.items())


def test_refusals() -> None:
    q, k = rand(2, 4, S, 16), rand(2, 2, S, 16)
    causal = flex.create_block_mask(lambda b, h, i, j: j <= i, None, None, S, S, DEVICE)
    of_three = flex.create_block_mask(lambda b, h, i, j: j <= i, 3, None, S, S, DEVICE)

    def squared(score, b, h, i, j):
        return score * score

    call = drop_in.flex_attention
    bad, absent = InvalidArgumentError, UnsupportedError
    for kind, sentence, run in (
        (absent, "score_mod squared hands the score to", lambda: call(q, q, q, squared)),
        (bad, "query has 4 heads where key has 2; enable_gqa=True", lambda: call(q, k, k)),
        (bad, "block_mask is of 300 queries and 300 keys; query has 299 and key 300",
         lambda: call(q[:, :, 1:], q, q, block_mask=causal)),
        (bad, "block_mask is of 3 entries and 1 heads; query has 2 and 4",
         lambda: call(q, q, q, block_mask=of_three)),
        (bad, "block_mask is a Tensor, not a BlockMask", lambda: call(q, q, q, block_mask=q)),
        (bad, "query has 3 dimensions, not 4", lambda: call(q[0], q[0], q[0])),
        (bad, "exclude each other",
         lambda: call(q, q, q, return_lse=True, return_aux=flex.AuxRequest(lse=True))),
        (absent, "asks for max_scores", lambda: call(q, q, q,
                                                     return_aux=flex.AuxRequest(max_scores=True))),
        (absent, "query is float64: what score_mod adds is formed in float32",
         lambda: call(*[q.double()] * 3, lambda score, b, h, i, j: score + i - j)),
        (TypeError, "key is a list, not a tensor", lambda: call(q, [1], q)),
    ):  # fmt: skip
        with pytest.raises(kind, match=sentence):
            run()
