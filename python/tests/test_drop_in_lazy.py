# SPDX-License-Identifier: MIT OR Apache-2.0
"""The drop-in for Lazy Attention against its mathematics in float64."""

from __future__ import annotations

import inspect

import pytest
import torch
from drop_in_reference import attend, banded, compare, doubles, leaves

import tandem_attention as ta
from tandem_attention.drop_in.lazy_attention_triton import LazyAttention, lazy_attention_triton


def distance_bias(bias, length, window):
    t = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    inside = (t >= 0) & (t < window)
    return torch.where(inside, bias[:, t.clamp(0, window - 1)], 0.0)


def seen_of(batch, length, varlen):
    seen = banded(length, length, None, 0).expand(batch, 1, length, length)
    if varlen is None:
        return seen
    at = torch.arange(length)
    inside = at < torch.tensor(varlen)[:, None]
    return seen & inside[:, None, None, :] & inside[:, None, :, None]


def reference(x, varlen=None, window=None):
    batch, _, length, _ = x["q"].shape
    bias = distance_bias(x["bias"], length, window or x["bias"].shape[1])
    return attend(
        x["q"], x["k"], x["v"], seen=seen_of(batch, length, varlen), bias=bias,
        normalizer="elastic", tau=x["tau"],
    )[0]  # fmt: skip


@pytest.mark.parametrize("tau", [-0.4, 0.0, 0.3])
@pytest.mark.parametrize(("window", "given"), [(5, None), (40, None), (9, 5)])
def test_values_and_gradients(tau, window, given):
    x = leaves(0, q=(2, 3, 17, 16), k=(2, 3, 17, 16), v=(2, 3, 17, 16), bias=(3, window), tau=(3,))
    with torch.no_grad():
        x["tau"].mul_(0.1).add_(tau)
    y = doubles(x)
    o = lazy_attention_triton(x["q"], x["k"], x["v"], x["bias"], x["tau"], given)
    compare(o, x, reference(y, window=given), y)


def test_distances_behind_the_window_have_no_gradient():
    x = leaves(1, q=(1, 2, 12, 8), k=(1, 2, 12, 8), v=(1, 2, 12, 8), bias=(2, 9), tau=(2,))
    o = lazy_attention_triton(*x.values(), window_size=4)
    (d_bias,) = torch.autograd.grad(o.sum(), x["bias"])
    assert d_bias[:, :4].abs().min() > 0
    assert not d_bias[:, 4:].any()


def test_every_head_has_gradients_under_a_sum():
    # A sum's d_o has the stride 0: the repository's kernel once read it with q's strides.
    x = leaves(2, q=(1, 4, 8, 16), k=(1, 4, 8, 16), v=(1, 4, 8, 16), bias=(4, 16), tau=(4,))
    with torch.no_grad():
        x["tau"].fill_(-0.3)
    y = doubles(x)
    lazy_attention_triton(*x.values()).sum().backward()
    reference(y).sum().backward()
    for name in x:
        torch.testing.assert_close(x[name].grad.double(), y[name].grad, rtol=1e-5, atol=1e-5)
    assert all(x["q"].grad[0, h].any() for h in range(4))


def test_varlen_and_padding():
    varlen = [9, 4]
    x = leaves(3, q=(2, 2, 11, 16), k=(2, 2, 11, 16), v=(2, 2, 11, 16), bias=(2, 6), tau=(2,))
    with torch.no_grad():
        x["tau"].mul_(0.2)
        for name in "qkv":
            x[name][1, :, 4:] = float("nan")  # padding is not read
    y = doubles({n: t.detach().nan_to_num(0.0) for n, t in x.items()})
    o = lazy_attention_triton(*x.values(), varlen=torch.tensor(varlen))
    assert not o[0, :, 9:].any()
    assert not o[1, :, 4:].any()
    compare(o, x, reference(y, varlen), y)


def test_the_kink_of_the_first_row():
    # tau = -1: row 0 has p = 1 and n = 1, so its weight is exactly 0, and so is its gradient.
    x = leaves(4, q=(1, 1, 5, 16), k=(1, 1, 5, 16), v=(1, 1, 5, 16), bias=(1, 3), tau=(1,))
    with torch.no_grad():
        x["tau"].fill_(-1.0)
    o = lazy_attention_triton(*x.values())
    (d_v,) = torch.autograd.grad(o[:, :, 0].sum(), x["v"])
    assert not o[:, :, 0].any()
    assert not d_v.any()


def test_half_parameters_and_grouped_heads():
    x = leaves(5, q=(1, 4, 10, 16), k=(1, 2, 10, 16), v=(1, 2, 10, 16), bias=(4, 4), tau=(4,))
    h = {n: t.detach().bfloat16().requires_grad_() for n, t in x.items()}
    y = doubles(h)
    o = lazy_attention_triton(*h.values())
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o.double(), reference(y), rtol=2e-2, atol=2e-2)
    o.float().sum().backward()
    assert h["bias"].grad.dtype == h["tau"].grad.dtype == torch.bfloat16
    assert h["bias"].grad.shape == (4, 4)


def test_refusals():
    x = leaves(6, q=(1, 2, 6, 8), k=(1, 2, 6, 8), v=(1, 2, 6, 8), bias=(2, 3), tau=(2,))
    q, k, v, bias, tau = x.values()
    for args in [
        (q[0], k, v, bias, tau),
        (q, k[:, :, :4], v[:, :, :4], bias, tau),
        (q, k, v, bias[:1], tau),
        (q, k, v, bias, tau[:1]),
        (q, k, v, bias, tau, 4),
        (q, k, v, bias, tau, -1),
        (q, k, v, bias, tau, None, torch.tensor([1, 2, 3])),
    ]:
        with pytest.raises(ta.InvalidArgumentError):
            lazy_attention_triton(*args)


def test_signature():
    names = list(inspect.signature(lazy_attention_triton).parameters)
    assert names == ["q", "k", "v", "bias", "tau", "window_size", "varlen"]


# ---- the module ----------------------------------------------------------------------------------


def module_reference(module, x, mask=None):
    """The module in float64: projections, rotation, distance bias, elastic softmax."""
    w = {n: p.detach().double() for n, p in module.named_parameters()}
    batch, length, dim = x.shape
    heads, size = module.num_heads, module.head_dim

    def project(name):
        t = x.double() @ w[name + ".weight"].T
        return t.view(batch, length, heads, size).transpose(1, 2)

    half = torch.arange(0, size, 2, dtype=torch.float64) / size
    angle = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0**-half

    def rotate(t):
        a, b = t[..., : size // 2], t[..., size // 2 :]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    seen = banded(length, length, None, 0)
    if mask is not None:
        seen = seen & mask
    o, _ = attend(
        rotate(project("q_proj")), rotate(project("k_proj")), project("v_proj"), seen=seen,
        bias=distance_bias(w["attention_biases"], length, module.window_size + 1),
        normalizer="elastic", tau=w["tau"],
    )  # fmt: skip
    return o.transpose(1, 2).reshape(batch, length, dim) @ w["o_proj.weight"].T


def lazy_module():
    torch.manual_seed(0)
    module = LazyAttention(dim=24, num_heads=3, window_size=4)
    with torch.no_grad():
        module.attention_biases.normal_()
        module.tau.uniform_(-0.6, 0.2)
    return module


@pytest.mark.parametrize("dims", [0, 2, 3, 4])
def test_module(dims):
    module, x = lazy_module(), torch.randn(2, 9, 24)
    if not dims:
        got, want = module(x), module_reference(module, x)
    else:
        shape = {2: (9, 9), 3: (2, 9, 9), 4: (2, 3, 9, 9)}[dims]
        mask = torch.rand(shape) < 0.7
        got = module(x, mask)
        want = module_reference(module, x, mask[:, None] if dims == 3 else mask)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_module_trains_and_loads():
    module = lazy_module()
    names = set(module.state_dict())
    assert names == {
        "attention_biases", "tau", "rope.inv_freq", "q_proj.weight", "k_proj.weight",
        "v_proj.weight", "o_proj.weight",
    }  # fmt: skip
    assert module.attention_biases.shape == (3, 5)
    module(torch.randn(1, 7, 24)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())
    other = LazyAttention(24, 3, 4)
    other.load_state_dict(module.state_dict())
    x = torch.randn(1, 6, 24)
    assert torch.equal(other(x), module(x))


def test_module_drops_everything_where_tau_is_very_negative():
    module = lazy_module()
    with torch.no_grad():
        module.tau.fill_(-100.0)
    assert not module(torch.randn(2, 8, 24)).any()


def test_module_refusals():
    with pytest.raises(ta.InvalidArgumentError, match="no multiple"):
        LazyAttention(10, 3)
    with pytest.raises(ta.InvalidArgumentError, match="even"):
        LazyAttention(9, 3)
    with pytest.raises(ta.InvalidArgumentError, match="mask has 1"):
        lazy_module()(torch.randn(1, 4, 24), torch.ones(4))
