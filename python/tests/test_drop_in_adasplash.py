# SPDX-License-Identifier: MIT OR Apache-2.0
"""The drop-in for AdaSplash against entmax in float64."""

from __future__ import annotations

import inspect

import pytest
import torch
from drop_in_reference import attend, banded, compare, doubles, leaves

import tandem_attention as ta
from tandem_attention.drop_in import adasplash as drop_in

QKV = {"q": (2, 4, 19, 16), "k": (2, 2, 19, 16), "v": (2, 2, 19, 16)}


def seen_of(shape, causal, varlen):
    batch, _, length, _ = shape
    seen = banded(length, length, None, 0 if causal else None).expand(batch, 1, length, length)
    if varlen is None:
        return seen
    inside = torch.arange(length) < torch.tensor(varlen)[:, None]
    return seen & inside[:, None, None, :] & inside[:, None, :, None]


def reference(x, alpha, causal, varlen=None):
    seen = seen_of(x["q"].shape, causal, varlen)
    return attend(x["q"], x["k"], x["v"], seen=seen, normalizer="entmax", alpha=alpha)[0]


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("varlen", [None, [19, 7]])
def test_values_and_gradients(alpha, causal, varlen):
    x = leaves(0, **QKV)
    with torch.no_grad():
        x["q"].mul_(3)  # scores far enough apart for weights of 0
    y = doubles(x)
    lengths = None if varlen is None else torch.tensor(varlen, dtype=torch.int32)
    o = drop_in.adasplash(*x.values(), alpha=alpha, is_causal=causal, varlen=lengths)
    want = reference(y, alpha, causal, varlen)
    if varlen:
        assert not o[1, :, 7:].any()
    compare(o, x, want, y, limit=1e-4)


def test_all_names_are_one_function():
    x = [t.detach() for t in leaves(1, **QKV).values()]
    full = drop_in.adasplash(*x, 1.5, False)
    assert torch.equal(drop_in.adasplash_v1(*x), full)
    assert torch.equal(drop_in.adasplash_no_block_mask(*x), full)
    causal = drop_in.adasplash(*x)
    assert not torch.equal(causal, full)
    assert torch.equal(drop_in.adasplash_v2(*x), causal)
    assert torch.equal(drop_in.adasplash2(*x), causal)


def test_niter_has_no_effect():
    x = [t.detach() for t in leaves(2, **QKV).values()]
    assert torch.equal(drop_in.adasplash(*x, niter=1), drop_in.adasplash(*x, niter=50))


def test_equal_scores_give_the_mean():
    q = torch.zeros(1, 1, 33, 64)
    v = torch.randn(1, 1, 33, 64)
    o = drop_in.adasplash_v1(q, q, v)
    torch.testing.assert_close(o, v.mean(2, keepdim=True).expand_as(v), rtol=1e-5, atol=1e-5)


def test_large_scores_pick_the_top():
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 2, 24, 16, dtype=torch.float16) for _ in range(3))
    o = drop_in.adasplash_v1(q * 100, k * 100, v)
    top = (q.double() @ k.double().transpose(-1, -2)).argmax(-1)
    assert torch.equal(o, torch.gather(v, 2, top[..., None].expand_as(v)))


def test_an_empty_sequence_is_zero():
    x = leaves(4, **QKV)
    o = drop_in.adasplash(*x.values(), varlen=torch.tensor([0, 19]))
    assert not o[0].any()
    o.sum().backward()
    assert not x["k"].grad[0].any()
    assert x["v"].grad[1].any()


def test_refusals():
    q, k, v = leaves(5, **QKV).values()
    for alpha in (1.0, 0.5, 2.5, float("nan")):
        with pytest.raises(ta.InvalidArgumentError, match="alpha"):
            drop_in.adasplash(q, k, v, alpha=alpha)
    with pytest.raises(ta.InvalidArgumentError, match="self-attention"):
        drop_in.adasplash(q, k[:, :, :5], v[:, :, :5])
    with pytest.raises(ta.InvalidArgumentError, match="k is"):
        drop_in.adasplash(q, k, v[..., :8])
    with pytest.raises(ta.InvalidArgumentError, match="four dimensions"):
        drop_in.adasplash(q[0], k[0], v[0])
    with pytest.raises(ta.InvalidArgumentError, match="varlen"):
        drop_in.adasplash(q, k, v, varlen=torch.tensor([3]))
    with pytest.raises(ta.InvalidArgumentError, match="integers"):
        drop_in.adasplash(q, k, v, varlen=torch.tensor([3.0, 4.0]))
    with pytest.raises(ta.InvalidArgumentError):
        drop_in.adasplash(q[:, :3], k, v)
    with pytest.raises(ta.UnsupportedError, match="triton_entmax"):
        drop_in.triton_entmax(torch.randn(3))


V1 = {"alpha": 1.5, "is_causal": False, "varlen": None, "niter": 10}


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("adasplash", {"alpha": 1.5, "is_causal": True, "varlen": None, "niter": None}),
        ("adasplash_v1", {"alpha": 1.5, "is_causal": False, "varlen": None, "niter": 10}),
        (
            "adasplash_no_block_mask",
            {"alpha": 1.5, "is_causal": False, "varlen": None, "niter": 10},
        ),
        ("adasplash_v2", {"niter": 1, "varlen": None}),
    ],
)
def test_signatures(name, want):
    parameters = inspect.signature(getattr(drop_in, name)).parameters
    assert list(parameters) == ["q", "k", "v", *want]
    assert {n: p.default for n, p in list(parameters.items())[3:]} == want
