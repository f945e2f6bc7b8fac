# SPDX-License-Identifier: MIT OR Apache-2.0
"""The drop-in for xformers' memory_efficient_attention against its mathematics in float64."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest
import torch
from drop_in_reference import attend, banded, compare, doubles, leaves

import tandem_attention as ta
from tandem_attention.drop_in import xformers as xops
from tandem_attention.drop_in.xformers import attn_bias

B, MQ, MK, H, K, KV = 2, 9, 13, 3, 16, 24
QKV = {"query": (B, MQ, H, K), "key": (B, MK, H, K), "value": (B, MK, H, KV)}


def reference(x, seen=None, bias=0.0, scale=None):
    """[B, M, H, K] in, o in the same order and lse [B, H, M]."""
    q, k, v = (x[n].transpose(1, 2) for n in ("query", "key", "value"))
    o, lse = attend(q, k, v, seen=seen, bias=bias, scale=scale)
    return o.transpose(1, 2), lse


PLAIN = [
    (None, (None, None, False)),
    (attn_bias.LowerTriangularMask(), (None, 0, False)),
    (attn_bias.LowerTriangularFromBottomRightMask(), (None, 0, True)),
    (attn_bias.LowerTriangularFromBottomRightMask().make_local_attention(4), (3, 0, True)),
    (attn_bias.LocalAttentionFromBottomRightMask(2, 3), (2, 3, True)),
]


@pytest.mark.parametrize(("bias", "band"), PLAIN)
@pytest.mark.parametrize(("rows", "keys"), [(9, 13), (13, 9), (7, 7)])
def test_masks(bias, band, rows, keys):
    x = leaves(0, query=(B, rows, H, K), key=(B, keys, H, K), value=(B, keys, H, KV))
    y = doubles(x)
    seen = banded(rows, keys, *band)
    o = xops.memory_efficient_attention(**x, attn_bias=bias)
    compare(o, x, reference(y, seen)[0], y)
    if bias is not None:
        shape = (B, H, rows, keys)
        assert torch.equal(bias.materialize(shape, device=seen.device) == 0, seen.expand(shape))
        assert torch.isneginf(
            bias.materialize(shape, device=seen.device)[~seen.expand(shape)]
        ).all()


@pytest.mark.parametrize("shape", [(B, H, MQ, MK), (1, H, MQ, MK), (B, 1, 1, MK), (1, 1, MQ, MK)])
@pytest.mark.parametrize("causal", [False, True])
def test_tensor_bias(shape, causal):
    x = leaves(1, **QKV)
    x["bias"] = torch.randn(shape).requires_grad_()
    y = doubles(x)
    given = attn_bias.LowerTriangularMask().add_bias(x["bias"]) if causal else x["bias"]
    qkv = {n: x[n] for n in QKV}
    o = xops.memory_efficient_attention(**qkv, attn_bias=given)
    seen = banded(MQ, MK, None, 0) if causal else None
    compare(o, x, reference(y, seen, y["bias"])[0], y)


def test_an_expanded_bias_has_its_gradient():
    x = leaves(2, **QKV)
    x["bias"] = torch.randn(1, H, 1, MK).requires_grad_()
    y = doubles(x)
    qkv = {n: x[n] for n in QKV}
    o = xops.memory_efficient_attention(**qkv, attn_bias=x["bias"].expand(B, H, MQ, MK))
    compare(o, x, reference(y, None, y["bias"])[0], y)


def test_a_leaf_that_repeats_has_a_gradient_of_each_element():
    x = leaves(3, **QKV)
    y = doubles(x)
    leaf = torch.randn(1, H, 1, MK).expand(B, H, MQ, MK).detach().requires_grad_()
    exact = leaf.detach().double().contiguous().requires_grad_()
    o = xops.memory_efficient_attention(**x, attn_bias=leaf)
    (got,) = torch.autograd.grad(o.square().sum(), leaf)
    (want,) = torch.autograd.grad(reference(y, None, exact)[0].square().sum(), exact)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_three_dimensions():
    x = leaves(4, query=(B, MQ, K), key=(B, MK, K), value=(B, MK, KV), bias=(B, MQ, MK))
    y = doubles(x)
    qkv = {n: x[n] for n in QKV}
    wide = {n: y[n].unsqueeze(2) for n in QKV}
    o = xops.memory_efficient_attention(**qkv, attn_bias=x["bias"])
    want = reference(wide, None, y["bias"].unsqueeze(1))[0].squeeze(2)
    compare(o, x, want, y)
    o = xops.memory_efficient_attention(**qkv, attn_bias=attn_bias.LowerTriangularMask(), scale=0.2)
    want = reference(wide, banded(MQ, MK, None, 0), scale=0.2)[0].squeeze(2)
    compare(o, qkv, want, {n: y[n] for n in QKV})
    out, lse = xops.memory_efficient_attention_forward_requires_grad(**qkv)
    assert out.shape == (B, MQ, KV)
    assert lse.shape == (B, 1, MQ)


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_five_dimensions(expanded, masked):
    groups, per = 2, 3
    inner = 1 if expanded else per
    x = leaves(
        5, query=(B, MQ, groups, per, K), key=(B, MK, groups, inner, K),
        value=(B, MK, groups, inner, KV),
    )  # fmt: skip
    y = doubles(x)

    def full(t):
        return {n: v.expand(-1, -1, -1, per, -1) for n, v in t.items()}

    bias = attn_bias.LowerTriangularMask() if masked else None
    seen = banded(MQ, MK, None, 0) if masked else None
    flat = {n: v.flatten(2, 3) for n, v in full(y).items()}
    want, want_lse = reference(flat, seen)
    o = xops.memory_efficient_attention(**full(x), attn_bias=bias)
    compare(o, x, want.unflatten(2, (groups, per)), y)
    _, lse = xops.memory_efficient_attention_forward_requires_grad(**full(x), attn_bias=bias)
    torch.testing.assert_close(
        lse.double(), want_lse.unflatten(1, (groups, per)), rtol=1e-5, atol=1e-5
    )


def test_expanded_heads():
    x = leaves(17, query=(B, MQ, H, K), key=(B, MK, 1, K), value=(B, MK, 1, KV))
    y = doubles(x)
    wide = {n: x[n].expand(-1, -1, H, -1) for n in QKV}
    o = xops.memory_efficient_attention(**wide)
    compare(o, x, reference({n: y[n].expand(-1, -1, H, -1) for n in QKV})[0], y)
    # A leaf that repeats has a gradient for each of its heads.
    key = wide["key"].detach().requires_grad_()
    o = xops.memory_efficient_attention(wide["query"], key, wide["value"].detach())
    (got,) = torch.autograd.grad(o.square().sum(), key)
    full = {n: t.detach().contiguous() for n, t in wide.items()}
    full["key"].requires_grad_()
    (want,) = torch.autograd.grad(
        xops.memory_efficient_attention(**full).square().sum(), full["key"]
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_compiled():
    x = leaves(18, query=(B, MQ, H, K), key=(B, MK, 1, K), value=(B, MK, 1, KV))

    def call(query, key, value):
        key, value = (t.expand(-1, -1, H, -1) for t in (key, value))
        return xops.memory_efficient_attention(query, key, value, attn_bias.LowerTriangularMask())

    plain = call(**x)
    compiled = torch.compile(call, backend="eager", fullgraph=True)(**x)
    assert torch.equal(compiled, plain)
    for a, b in zip(
        torch.autograd.grad(compiled.sum(), list(x.values())),
        torch.autograd.grad(plain.sum(), list(x.values())),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(B, 2, 3), (1, 1, 1), (1, 2, 1), (B, 1, 3)])
def test_five_dimensions_with_a_bias(shape):
    x = leaves(6, query=(B, MQ, 2, 3, K), key=(B, MK, 2, 1, K), value=(B, MK, 2, 1, KV))
    x["bias"] = torch.randn(*shape, MQ, MK).requires_grad_()
    y = doubles(x)
    wide = {n: x[n].expand(-1, -1, -1, 3, -1) for n in QKV}
    flat = {n: y[n].expand(-1, -1, -1, 3, -1).flatten(2, 3) for n in QKV}
    bias = y["bias"].expand(B, 2, 3, MQ, MK).flatten(1, 2)
    o = xops.memory_efficient_attention(
        wide["query"], wide["key"], wide["value"], x["bias"].expand(B, 2, 3, MQ, MK)
    )
    compare(o, x, reference(flat, None, bias)[0].unflatten(2, (2, 3)), y)


# ---- sequences -----------------------------------------------------------------------------------

QS, KS, PAD = [3, 1, 5], [4, 6, 5], 8
AROUND = (2, 1)


def diagonal_masks():
    cls = attn_bias.BlockDiagonalMask.from_seqlens(QS, KS)
    causal = attn_bias.BlockDiagonalCausalMask.from_seqlens(QS, KS)
    padded = attn_bias.BlockDiagonalPaddedKeysMask.from_seqlens(QS, PAD, KS)
    return [
        (cls, (None, None, False)),
        (causal, (None, 0, False)),
        (cls.make_causal(), (None, 0, False)),
        (cls.make_causal_from_bottomright(), (None, 0, True)),
        (cls.make_local_attention(2), (1, 0, False)),
        (cls.make_local_attention_from_bottomright(2), (1, 0, True)),
        (padded, (None, None, False)),
        (padded.make_local_attention(*AROUND), (*AROUND, True)),
        (
            attn_bias.BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(QS, PAD, KS),
            (None, 0, True),
        ),
        (
            attn_bias.BlockDiagonalCausalLocalAttentionPaddedKeysMask.from_seqlens_local(
                QS, PAD, KS, 2
            ),
            (1, 0, True),
        ),
        (
            attn_bias.BlockDiagonalLocalAttentionPaddedKeysMask.from_seqlens_local(
                QS, PAD, KS, *AROUND
            ),
            (*AROUND, True),
        ),
    ]


def blocks(padded, band):
    """Which keys each packed query sees, written out."""
    step = [PAD] * 3 if padded else KS
    seen = torch.zeros(sum(QS), sum(step), dtype=torch.bool)
    row = col = 0
    for rows, keys, far in zip(QS, KS, step, strict=True):
        seen[row : row + rows, col : col + keys] = banded(rows, keys, *band)
        row, col = row + rows, col + far
    return seen


@pytest.mark.parametrize(
    ("bias", "band"), diagonal_masks(), ids=lambda b: type(b).__name__ if b is not tuple else ""
)
@pytest.mark.parametrize("five", [False, True])
def test_block_diagonal(bias, band, five):
    padded = "Padded" in type(bias).__name__
    keys = 3 * PAD if padded else sum(KS)
    heads = (1, H) if five else (H,)
    x = leaves(
        7, query=(1, sum(QS), *heads, K), key=(1, keys, *heads, K), value=(1, keys, *heads, KV)
    )
    y = doubles(x)
    seen = blocks(padded, band)
    assert torch.equal(bias.materialize((1, *seen.shape), device=seen.device)[0] == 0, seen)
    flat = {n: t.reshape(1, t.shape[1], H, -1) for n, t in y.items()}
    want, want_lse = reference(flat, seen)
    o = xops.memory_efficient_attention(**x, attn_bias=bias)
    compare(o, x, want.reshape(o.shape), y)
    out, lse = xops.memory_efficient_attention_forward_requires_grad(**x, attn_bias=bias)
    assert torch.equal(out, o)
    torch.testing.assert_close(lse.double().reshape(want_lse.shape), want_lse, rtol=1e-5, atol=1e-5)


def test_padding_of_keys_is_not_read():
    bias = attn_bias.BlockDiagonalPaddedKeysMask.from_seqlens(QS, PAD, KS)
    x = leaves(8, query=(1, sum(QS), H, K), key=(1, 24, H, K), value=(1, 24, H, K))
    o = xops.memory_efficient_attention(**x, attn_bias=bias)
    with torch.no_grad():
        for n, keys in enumerate(KS):
            x["key"][:, n * PAD + keys : (n + 1) * PAD] = float("nan")
            x["value"][:, n * PAD + keys : (n + 1) * PAD] = float("nan")
    assert torch.equal(xops.memory_efficient_attention(**x, attn_bias=bias), o)


def test_lists_of_tensors():
    torch.manual_seed(9)
    parts = [torch.randn(1, 3, 2, 8), torch.randn(2, 5, 2, 8)]
    bias, x = attn_bias.BlockDiagonalMask.from_tensor_list(parts)
    assert x.shape == (1, 13, 2, 8)
    o = xops.memory_efficient_attention(x, x, x, attn_bias=bias)
    for part, got in zip(parts, bias.split(o), strict=True):
        torch.testing.assert_close(got, xops.memory_efficient_attention(part, part, part))
    keys = [torch.randn(1, 4, 2, 8), torch.randn(2, 1, 2, 8)]
    bias, q, k, v = attn_bias.BlockDiagonalMask.from_tensor_lists_qkv(parts, keys, keys)
    o = xops.memory_efficient_attention(q, k, v, attn_bias=bias)
    for part, key, got in zip(parts, keys, bias.split_queries(o), strict=True):
        torch.testing.assert_close(got, xops.memory_efficient_attention(part, key, key))
    assert [t.shape for t in bias.split_kv(k)] == [t.shape for t in keys]
    with pytest.raises(ta.InvalidArgumentError, match="split_queries"):
        bias.split(o)
    with pytest.raises(ta.InvalidArgumentError, match="x is"):
        bias.split_queries(o[:, :2])


# ---- the functions without autograd --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["four", "three", "five", "packed", "padded"])
def test_backward(kind):
    bias, heads, rows, keys = None, (H,), MQ, MK
    if kind == "three":
        heads = ()
    elif kind == "five":
        heads = (2, 3)
    elif kind == "packed":
        bias = attn_bias.BlockDiagonalCausalMask.from_seqlens(QS, KS)
        rows, keys = sum(QS), sum(KS)
    elif kind == "padded":
        bias = attn_bias.BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(QS, PAD, KS)
        rows, keys = sum(QS), 3 * PAD
    batch = 1 if bias is not None else B
    x = leaves(
        10, query=(batch, rows, *heads, K), key=(batch, keys, *heads, K),
        value=(batch, keys, *heads, KV),
    )  # fmt: skip
    o = xops.memory_efficient_attention(**x, attn_bias=bias)
    d_o = torch.randn_like(o)
    want = torch.autograd.grad(o, list(x.values()), d_o)
    out, lse = xops.memory_efficient_attention_forward_requires_grad(**x, attn_bias=bias)
    assert not out.requires_grad
    got = xops.memory_efficient_attention_backward(d_o, out, lse, **x, attn_bias=bias)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_backward_of_an_expanded_gradient_and_shared_heads():
    x = leaves(11, query=(B, MQ, 2, 3, K), key=(B, MK, 2, 1, K), value=(B, MK, 2, 1, K))
    wide = {n: t.detach().expand(-1, -1, -1, 3, -1) for n, t in x.items()}
    out, lse = xops.memory_efficient_attention_forward_requires_grad(**wide)
    d_o = torch.ones(1).expand(out.shape)
    dq, dk, dv = xops.memory_efficient_attention_backward(d_o, out, lse, **wide)
    full = {n: t.contiguous().requires_grad_() for n, t in wide.items()}
    want = torch.autograd.grad(xops.memory_efficient_attention(**full).sum(), list(full.values()))
    for a, b in zip((dq, dk, dv), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_forward_has_no_gradient():
    x = leaves(12, **QKV)
    o = xops.memory_efficient_attention_forward(**x)
    assert not o.requires_grad
    assert torch.equal(o, xops.memory_efficient_attention(**x).detach())


def test_dropout():
    x = leaves(13, query=(1, 64, 1, 16), key=(1, 64, 1, 16), value=(1, 64, 1, 16))
    with torch.no_grad():
        x["value"].fill_(1.0)
    torch.manual_seed(0)
    a = xops.memory_efficient_attention(**x, p=0.5)
    torch.manual_seed(0)
    assert torch.equal(a, xops.memory_efficient_attention(**x, p=0.5))
    assert not torch.equal(a, xops.memory_efficient_attention(**x, p=0.5))
    assert abs(a.mean().item() - 1) < 0.1
    assert a.std().item() > 0.01
    with pytest.raises(NotImplementedError):
        xops.memory_efficient_attention_forward_requires_grad(**x, p=0.5)


# ---- other libraries' objects, and what is refused -----------------------------------------------


def test_objects_are_known_by_the_name_of_their_class():
    theirs = type("LowerTriangularMask", (), {})()
    x = leaves(14, **QKV)
    assert torch.equal(
        xops.memory_efficient_attention(**x, attn_bias=theirs),
        xops.memory_efficient_attention(**x, attn_bias=attn_bias.LowerTriangularMask()),
    )


@dataclass
class PagedBlockDiagonalPaddedKeysMask:
    page_size: int = 16


def test_refusals():
    x = {n: t.detach() for n, t in leaves(15, **QKV).items()}
    f = xops.memory_efficient_attention
    with pytest.raises(ta.UnsupportedError, match="PagedBlockDiagonalPaddedKeysMask"):
        f(**x, attn_bias=PagedBlockDiagonalPaddedKeysMask())
    mine = type("MyMask", (attn_bias.LowerTriangularMask,), {})()
    with pytest.raises(ta.UnsupportedError, match="MyMask"):
        f(**x, attn_bias=mine)
    with pytest.raises(ta.UnsupportedError, match="op names"):
        f(**x, op=("fw", "bw"))
    assert f(**x, op=(None, None)).shape == (B, MQ, H, KV)
    with pytest.raises(ta.UnsupportedError, match="output_dtype"):
        f(**x, output_dtype=torch.float16)
    for p in (-0.1, 1.0, 1.5):
        with pytest.raises(ta.InvalidArgumentError, match="p is"):
            f(**x, p=p)
    with pytest.raises(ta.UnsupportedError, match="quantised"):
        f(x["query"], x["key"].int(), x["value"].int())
    with pytest.raises(ta.UnsupportedError, match="parts"):
        xops.memory_efficient_attention_partial(**x)
    for bad in [
        {"key": x["key"][:, :, :1]},
        {"value": x["value"][:, :4]},
        {"key": x["key"][:1]},
        {"key": x["key"][0]},
        {"query": x["query"][0, 0]},
        {"attn_bias": torch.zeros(B, H, MQ, MK + 8)},
        {"attn_bias": torch.zeros(MQ, MK)},
        {"attn_bias": attn_bias.BlockDiagonalMask.from_seqlens([MQ], [MK])},
        {"key": x["key"].half()},
    ]:
        with pytest.raises(ta.InvalidArgumentError):
            f(**{**x, **bad})
    flat = {n: t[:, :, 0] for n, t in x.items()}
    with pytest.raises(ta.InvalidArgumentError, match="goes with"):
        f(**flat, attn_bias=attn_bias.LowerTriangularFromBottomRightMask())
    with pytest.raises(ta.InvalidArgumentError, match="lse is"):
        xops.memory_efficient_attention_backward(
            torch.zeros(B, MQ, H, KV), torch.zeros(B, MQ, H, KV), torch.zeros(B, MQ, H), **x
        )


def test_constructors_refuse():
    masks = attn_bias
    for make in [
        lambda: masks.LocalAttentionFromBottomRightMask(-1, 0),
        lambda: masks.LowerTriangularFromBottomRightMask().make_local_attention(0),
        lambda: masks.BlockDiagonalMask.from_seqlens([1, 2], [3]),
        lambda: masks.BlockDiagonalPaddedKeysMask.from_seqlens([1], 4, [5]),
        lambda: masks.BlockDiagonalPaddedKeysMask.from_seqlens([1, 1], 4, [3]),
        lambda: masks.BlockDiagonalCausalFromBottomRightMask.from_seqlens([3], [2]),
        lambda: masks.BlockDiagonalMask.from_seqlens([9], [2]).make_local_attention(3),
        lambda: masks.BlockDiagonalMask.from_seqlens([2]).materialize((3, 2)),
    ]:
        with pytest.raises(ValueError):  # noqa: PT011 - each has a sentence of its own
            make()


def test_empty_tensors():
    x = {n: t.detach() for n, t in leaves(16, **QKV).items()}
    f = xops.memory_efficient_attention
    o = f(x["query"], x["key"][:, :0], x["value"][:, :0])
    assert o.shape == (B, MQ, H, KV)
    assert not o.any()
    assert f(x["query"][:0], x["key"][:0], x["value"][:0]).shape == (0, MQ, H, KV)


def test_names():
    assert xops.fmha.attn_bias.BlockDiagonalMask is xops.BlockDiagonalMask
    for name in (
        "memory_efficient_attention",
        "memory_efficient_attention_forward",
        "memory_efficient_attention_forward_requires_grad",
    ):
        parameters = inspect.signature(getattr(xops, name)).parameters
        assert list(parameters) == [
            "query", "key", "value", "attn_bias", "p", "scale", "op", "output_dtype"
        ]  # fmt: skip
        assert parameters["op"].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters["p"].default == 0.0
