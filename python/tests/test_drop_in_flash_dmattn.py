# SPDX-License-Identifier: MIT OR Apache-2.0
"""The drop-in for flash-dmattn against masked softmax with a bias in float64."""

from __future__ import annotations

import inspect

import pytest
import torch
from drop_in_reference import attend, banded, compare, doubles, leaves

import tandem_attention as ta
from tandem_attention.drop_in import flash_dmattn as drop_in
from tandem_attention.drop_in._packed import pack_lse, pad_lse

B, H, HK, SQ, SK, D = 2, 4, 2, 13, 21, 16
QKV = {"query": (B, SQ, H, D), "key": (B, SK, HK, D), "value": (B, SK, HK, D)}


def reference(x, mask=None, causal=None, softcap=0.0, scale=None):
    """[B, S, H, D] in and out; mask and bias with B, H, Hk or 1 heads."""
    q, k, v = (x[n].transpose(1, 2) for n in ("query", "key", "value"))

    def heads(t):
        return t.repeat_interleave(H // HK, 1) if t.shape[1] == HK else t

    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        seen = banded(q.shape[2], k.shape[2], None, 0, causal == "bottom_right")
    if mask is not None:
        seen = seen & heads(mask)
    bias = heads(x["attn_bias"]) if "attn_bias" in x else 0.0
    o, lse = attend(q, k, v, seen=seen, bias=bias, softcap=softcap, scale=scale)
    return o.transpose(1, 2), lse


@pytest.mark.parametrize(
    ("bias", "mask"),
    [
        ((B, H, SQ, SK), (B, H, SQ, SK)),
        ((1, HK, 1, SK), (B, 1, 1, SK)),
        ((B, 1, SQ, 1), (1, HK, SQ, 1)),
        ((1, 1, 1, 1), (1, H, SQ, SK)),
        ((B, HK, SQ, SK), None),
        (None, (B, HK, 1, SK)),
        (None, None),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients(bias, mask, causal):
    # No gradient reaches a number that every score of a row gets.
    free = bias is not None and bias[-1] == 1
    x = leaves(0, **QKV, **({"attn_bias": bias} if bias else {}))
    keep = None if mask is None else torch.rand(mask) < 0.7
    y = doubles(x)
    o = drop_in.flash_dmattn_func(**x, attn_mask=keep, is_causal=causal)
    want, _ = reference(y, keep, "bottom_right" if causal else None)
    if free:
        (d_bias,) = torch.autograd.grad(o.sum(), x["attn_bias"], retain_graph=True)
        assert d_bias.shape == bias
        torch.testing.assert_close(d_bias, torch.zeros(bias), rtol=0, atol=1e-4)
        x.pop("attn_bias")
    compare(o, x, want, y)


def test_a_bias_alone_has_its_gradient():
    # The package looks at q, k and v to decide whether there is a backward.
    x = leaves(1, **QKV, attn_bias=(1, HK, 1, SK))
    y = doubles(x)
    fixed = {n: t.detach() for n, t in x.items() if n != "attn_bias"}
    o = drop_in.flash_dmattn_func(**fixed, attn_bias=x["attn_bias"])
    compare(o, {"attn_bias": x["attn_bias"]}, reference(y)[0], y)


def test_rows_without_a_key():
    x = leaves(2, **QKV, attn_bias=(B, H, SQ, SK))
    mask = torch.rand(B, 1, SQ, SK) < 0.5
    mask[1, 0, 3] = False
    y = doubles(x)
    o, lse, probabilities = drop_in.flash_dmattn_func(**x, attn_mask=mask, return_attn_probs=True)
    want, want_lse = reference(y, mask)
    assert probabilities is None
    assert not o[1, 3].any()
    assert torch.isneginf(lse[1, :, 3]).all()
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-5)
    compare(o, x, want, y)
    (d_bias,) = torch.autograd.grad(drop_in.flash_dmattn_func(**x, attn_mask=mask).sum(),
                                    x["attn_bias"])  # fmt: skip
    assert not d_bias.masked_select(~mask.expand_as(d_bias)).any()


def test_softcap_and_scale():
    x = leaves(3, **QKV, attn_bias=(1, H, SQ, SK))
    y = doubles(x)
    o = drop_in.flash_dmattn_func(**x, softcap=1.5, softmax_scale=0.7, deterministic=True)
    compare(o, x, reference(y, softcap=1.5, scale=0.7)[0], y)


def test_how_each_name_aligns_a_causal_mask():
    x = leaves(4, **QKV)
    y = doubles(x)
    mask = torch.rand(B, 1, SQ, SK) < 0.8
    for function, args, corner in [
        (drop_in.flash_dmattn_func, {"is_causal": True}, "bottom_right"),
        (drop_in.triton_dmattn_func, {"is_causal": True}, "top_left"),
        (drop_in.flex_dmattn_func, {}, "top_left"),
        (drop_in.flex_dmattn_func, {"is_causal": False}, None),
        (drop_in.triton_dmattn_func, {}, None),
    ]:
        o = function(**x, attn_mask=mask, **args)
        compare(o, x, reference(y, mask, corner)[0], y)


def test_keys_that_are_padded_to_128():
    x = leaves(5, **QKV, attn_bias=(1, HK, 1, 128))
    mask = torch.rand(B, 1, 1, 128) < 0.6
    y = doubles(x)
    o = drop_in.flash_dmattn_func(**x, attn_mask=mask)
    cut = {**y, "attn_bias": y["attn_bias"][..., :SK]}
    compare(o, x, reference(cut, mask[..., :SK])[0], y)


@pytest.mark.parametrize("causal", [False, True])
def test_varlen(causal):
    lengths_q, lengths_k = [3, 0, 6], [5, 2, 6]
    starts_q = torch.tensor([0, 3, 3, 9], dtype=torch.int32)
    starts_k = torch.tensor([0, 5, 7, 13], dtype=torch.int32)
    x = leaves(6, query=(9, H, D), key=(13, HK, D), value=(13, HK, D))
    y = doubles(x)
    o, lse, _ = drop_in.flash_dmattn_varlen_func(
        *x.values(), starts_q, starts_k, 6, 6, is_causal=causal, return_attn_probs=True
    )
    outs, lses = [], []
    for n, (rows, keys) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        part = {
            "query": y["query"][None, starts_q[n] : starts_q[n] + rows],
            "key": y["key"][None, starts_k[n] : starts_k[n] + keys],
            "value": y["value"][None, starts_k[n] : starts_k[n] + keys],
        }
        a, b = reference(part, causal="bottom_right" if causal else None)
        outs.append(a[0])
        lses.append(b[0])
    torch.testing.assert_close(lse.double(), torch.cat(lses, 1), rtol=1e-5, atol=1e-5)
    compare(o, x, torch.cat(outs), y)


def test_lse_of_packed_rows():
    none = float("-inf")
    offsets = torch.tensor([0, 2, 2, 5])
    padded = torch.arange(6.0).view(3, 1, 2)
    # Row 4 is behind the two that a sequence may have, rows 5 and 6 belong to no sequence.
    packed = torch.tensor([[0.0, 1.0, 4.0, 5.0, none, none, none]])
    assert torch.equal(pack_lse(padded, offsets, 7), packed)
    back = torch.tensor([[[0.0, 1.0]], [[none, none]], [[4.0, 5.0]]])
    assert torch.equal(pad_lse(packed, offsets, 2), back)
    nothing = torch.zeros(1, dtype=torch.int64)
    assert torch.equal(pack_lse(padded[:0], nothing, 3), torch.full((1, 3), none))
    assert torch.equal(pack_lse(padded[..., :0], offsets, 5), torch.full((1, 5), none))
    assert pad_lse(packed, nothing, 2).shape == (0, 1, 2)
    assert torch.equal(pad_lse(packed[:, :0], offsets[:2], 2), torch.full((1, 1, 2), none))


def test_half():
    x = leaves(7, **QKV, attn_bias=(1, HK, 1, SK))
    h = {n: t.detach().bfloat16().requires_grad_() for n, t in x.items()}
    o = drop_in.flash_dmattn_func(**h)
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o.double(), reference(doubles(h))[0], rtol=2e-2, atol=2e-2)
    o.sum().backward()
    assert h["attn_bias"].grad.dtype == torch.bfloat16


def test_refusals():
    x = {n: t.detach() for n, t in leaves(8, **QKV).items()}
    f = drop_in.flash_dmattn_func
    for more, match in [
        ({"attn_mask": torch.ones(B, 1, SQ, SK)}, "True keeps"),
        ({"attn_mask": torch.ones(SQ, SK, dtype=torch.bool)}, "four"),
        ({"attn_bias": torch.ones(SQ, SK)}, "four"),
        ({"attn_bias": torch.ones(1, 3, SQ, SK)}, "broadcast"),
        ({"attn_bias": torch.ones(1, 1, SQ, SK + 1)}, "broadcast"),
    ]:
        with pytest.raises(ta.InvalidArgumentError, match=match):
            f(**x, **more)
    with pytest.raises(ta.InvalidArgumentError, match="four"):
        f(x["query"][0], x["key"], x["value"])
    with pytest.raises(ta.InvalidArgumentError):
        f(x["query"][:, :, :3], x["key"], x["value"])
    with pytest.raises(ta.UnsupportedError, match="dropout_p"):
        drop_in.flex_dmattn_func(**x, dropout_p=0.1)
    packed = torch.randn(4, 2, D)
    starts = torch.tensor([0, 4])
    with pytest.raises(ta.UnsupportedError, match="block_table"):
        drop_in.flash_dmattn_varlen_func(
            packed, packed, packed, starts, starts, 4, 4, block_table=torch.zeros(1, 1)
        )
    with pytest.raises(ta.InvalidArgumentError, match="three"):
        drop_in.flash_dmattn_varlen_func(*x.values(), starts, starts, 4, 4)


def test_auto():
    auto = drop_in.flash_dmattn_func_auto
    assert auto() is auto("cuda") is drop_in.flash_dmattn_func
    assert [auto(n) for n in drop_in.get_available_backends()] == [
        drop_in.flash_dmattn_func, drop_in.triton_dmattn_func, drop_in.flex_dmattn_func
    ]  # fmt: skip
    with pytest.raises(ta.InvalidArgumentError, match="rocm"):
        auto("rocm")
    assert drop_in.flash_sparse_attn_func is drop_in.flash_dmattn_func


def test_signatures():
    parameters = inspect.signature(drop_in.flash_dmattn_func).parameters
    assert list(parameters) == [
        "query", "key", "value", "attn_mask", "attn_bias", "softmax_scale", "is_causal", "softcap",
        "deterministic", "return_attn_probs",
    ]  # fmt: skip
    assert all(p.default is None for p in list(parameters.values())[3:])
    assert list(inspect.signature(drop_in.triton_dmattn_func).parameters) == [
        "query", "key", "value", "attn_mask", "attn_bias", "is_causal", "softmax_scale"
    ]  # fmt: skip
