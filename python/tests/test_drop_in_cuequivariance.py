# SPDX-License-Identifier: MIT OR Apache-2.0
"""The drop-in for cuEquivariance's triangle attention against its mathematics in float64."""

from __future__ import annotations

import inspect

import pytest
import torch
from drop_in_reference import attend, compare, doubles, leaves

import tandem_attention as ta
from tandem_attention.drop_in.cuequivariance import triangle_attention

N, H, Q, K, D = 5, 2, 7, 9, 16


def inputs(seed, batch):
    return leaves(
        seed, q=(batch, N, H, Q, D), k=(batch, N, H, K, D), v=(batch, N, H, K, D),
        bias=(batch, 1, H, Q, K),
    )  # fmt: skip


def reference(x, mask=None, scale=None):
    batch = x["q"].shape[0]
    q, k, v = (x[n].flatten(0, 1) for n in "qkv")
    bias = x["bias"].expand(-1, N, -1, -1, -1).flatten(0, 1)
    seen = None if mask is None else mask.flatten(0, 1)
    o, lse = attend(q, k, v, bias=bias, seen=seen, scale=scale)
    return o.unflatten(0, (batch, N)), lse.unflatten(0, (batch, N))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients(batch, masked):
    x = inputs(0, batch)
    y = doubles(x)
    mask = torch.rand(batch, N, 1, 1, K) < 0.6 if masked else None
    o, lse, largest = triangle_attention(**x, mask=mask, return_aux=True)
    want, want_lse = reference(y, mask)
    assert largest is None
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-5)
    compare(o, x, want, y)


def test_a_row_without_keys_is_zero():
    x = inputs(1, 2)
    y = doubles(x)
    mask = torch.ones(2, N, 1, 1, K, dtype=torch.bool)
    mask[1, 2] = False
    o, lse, _ = triangle_attention(**x, mask=mask, return_aux=True)
    assert not o[1, 2].any()
    assert torch.isneginf(lse[1, 2]).all()
    compare(o, x, reference(y, mask)[0], y)
    (d_v,) = torch.autograd.grad(triangle_attention(**x, mask=mask).sum(), x["v"])
    assert not d_v[1, 2].any()


def test_scale_and_masks_of_numbers():
    x = inputs(2, 1)
    y = doubles(x)
    mask = (torch.rand(1, N, 1, 1, K) < 0.6).float()
    compare(triangle_attention(**x, mask=mask, scale=0.3), x,
            reference(y, mask != 0, 0.3)[0], y)  # fmt: skip


def test_inputs_without_a_batch():
    x = inputs(3, 1)
    flat = {n: t[0] for n, t in x.items()}
    mask = torch.rand(N, 1, 1, K) < 0.6
    o = triangle_attention(**flat, mask=mask)
    assert o.shape == (1, N, H, Q, D)
    assert torch.equal(o, triangle_attention(**x, mask=mask[None]))


def test_half_with_a_bias_of_f32():
    x = inputs(4, 2)
    h = {n: (t if n == "bias" else t.detach().half().requires_grad_()) for n, t in x.items()}
    o = triangle_attention(**h)
    assert o.dtype == torch.float16
    torch.testing.assert_close(o.double(), reference(doubles(h))[0], rtol=4e-3, atol=4e-3)
    o.sum().backward()
    assert h["bias"].grad.dtype == torch.float32
    assert h["bias"].grad.shape == (2, 1, H, Q, K)


def test_strided_inputs():
    x = leaves(5, q=(1, Q, N, D, H), k=(1, Q, N, D, H), v=(1, Q, N, D, H), bias=(1, 1, H, Q, Q))
    t = {n: (v if n == "bias" else v.permute(0, 2, 4, 1, 3)) for n, v in x.items()}
    y = doubles(x)
    u = {n: (v if n == "bias" else v.permute(0, 2, 4, 1, 3)) for n, v in y.items()}
    compare(triangle_attention(**t), x, reference(u)[0], y)


def test_no_batch_entries():
    x = {n: t.detach()[:0] for n, t in inputs(6, 1).items()}
    o, lse, _ = triangle_attention(**x, return_aux=True)
    assert o.shape == (0, N, H, Q, D)
    assert lse.shape == (0, N, H, Q)


def test_refusals():
    x = {n: t.detach() for n, t in inputs(7, 2).items()}
    for name, bad in [
        ("k", x["k"][:, :, :1]),
        ("v", x["v"][:, :3]),
        ("bias", x["bias"].expand(-1, N, -1, -1, -1)),
        ("bias", x["bias"][:1]),
        ("mask", torch.ones(2, N, 1, Q, K, dtype=torch.bool)),
        ("mask", torch.ones(2, 1, 1, 1, K, dtype=torch.bool)),
        ("q", x["q"][None]),
    ]:
        with pytest.raises(ta.InvalidArgumentError):
            triangle_attention(**{**x, name: bad})
    with pytest.raises(ta.InvalidArgumentError):
        triangle_attention(**{**x, "k": x["k"].half()})


def test_signature():
    parameters = inspect.signature(triangle_attention).parameters
    assert list(parameters) == ["q", "k", "v", "bias", "mask", "scale", "return_aux"]
    assert [p.default for p in list(parameters.values())[4:]] == [None, None, False]
