# SPDX-License-Identifier: MIT OR Apache-2.0
"""Merges of parts of the keys: arrays, torch in all its ways, and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tandem_attention as ta

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from tandem_attention.torch import attention, merge  # noqa: E402
from tandem_attention.torch._merge import merge_into  # noqa: E402

CUTS = (0, 4, 4, 11)  # the part in the middle has no keys


def qkv(dtype: Any = torch.float32) -> list[Any]:
    """q, k and v of 4 and 2 heads, of 8 features."""
    make = torch.Generator().manual_seed(3)
    shapes = (2, 4, 9, 8), (2, 2, 11, 8), (2, 2, 11, 8)
    return [torch.randn(s, generator=make).to(dtype).requires_grad_() for s in shapes]


def in_parts(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, Any]:
    """o and lse of each part, stacked."""
    made = []
    for begin, end in itertools.pairwise(CUTS):
        keys, values = k[:, :, begin:end], v[:, :, begin:end]
        made.append(attention(q, keys, values, return_lse=True, **options))
    o, lse = (torch.stack(x) for x in zip(*made, strict=True))
    return o, lse


def loss(o: Any, lse: Any) -> Any:
    """Depends on both."""
    return (o.float() * o.detach().float().cos()).sum() + (lse * lse).sum() / 3


def parts(n: int = 3, dtype: Any = torch.float32) -> tuple[Any, Any]:
    """Parts of which some saw no key in some rows."""
    make = torch.Generator().manual_seed(7)
    o = torch.randn((n, 2, 3, 5, 4), generator=make).to(dtype)
    lse = torch.randn((n, 2, 3, 5), generator=make) * 2
    lse[0, :, 1], lse[:, 1, 2, 3] = -torch.inf, -torch.inf
    return o, lse.double() if dtype == torch.float64 else lse


def plain(o: Any, lse: Any) -> tuple[Any, Any]:
    """By torch's own operations."""
    both = lse.logsumexp(0)
    weights = torch.exp(lse - both.masked_fill(both == -torch.inf, 0))
    return (weights[..., None] * o).sum(0), both


def test_parts_are_attention_over_all_keys() -> None:
    tensors = qkv()
    made = merge(*in_parts(*tensors))
    want = attention(*tensors, return_lse=True)
    for a, b in zip(made, want, strict=True):
        torch.testing.assert_close(a, b)
    got = torch.autograd.grad(loss(*made), tensors)
    for a, b in zip(got, torch.autograd.grad(loss(*want), tensors), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_merge_of_every_type(dtype: str) -> None:
    o, lse = parts(dtype=getattr(torch, dtype))
    got, got_lse = merge(o, lse)
    assert (got.dtype, got_lse.dtype) == (o.dtype, lse.dtype)
    want, want_lse = plain(o.double(), lse.double())
    exact = dtype == "float64"
    torch.testing.assert_close(got_lse.double(), want_lse, rtol=1e-14 if exact else 1e-6, atol=1e-6)
    tolerance = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


def test_a_row_of_one_part_has_its_bits_whatever_others_hold() -> None:
    o, lse = parts()
    lse[1:] = -torch.inf
    o[1:] = torch.nan
    got, got_lse = merge(o, lse)
    seen = lse[0] > -torch.inf
    assert torch.equal(got[seen], o[0][seen])
    assert torch.equal(got_lse, lse[0])
    assert (got[~seen] == 0).all()


def test_gradcheck() -> None:
    o, lse = parts(dtype=torch.float64)
    o.requires_grad_()
    finite = lse.masked_fill(lse == -torch.inf, 0.0).requires_grad_()
    hidden = lse == -torch.inf
    rows = (~hidden).any(0)

    def f(o: Any, finite: Any) -> Any:
        made, both = merge(o, finite.masked_fill(hidden, -torch.inf))
        return made, both[rows]

    assert torch.autograd.gradcheck(f, (o, finite))


def test_bshd_strides_and_lse_that_is_not_contiguous() -> None:
    o, lse = parts()
    want, want_lse = merge(o, lse)
    turned = o.transpose(2, 3).contiguous()
    far = lse.transpose(0, 1).contiguous().transpose(0, 1)
    got, got_lse = merge(turned, far, layout="bshd")
    assert torch.equal(got.transpose(1, 2), want)
    assert torch.equal(got_lse, want_lse)
    wide = torch.zeros(3, 2, 3, 5, 9)
    wide[..., ::2][..., :4] = o
    assert torch.equal(merge(wide[..., ::2][..., :4], lse)[0], want)
    one = o[:1].expand(3, -1, -1, -1, -1).detach().requires_grad_()
    made, _ = merge(one, lse)
    (d_o,) = torch.autograd.grad(made.sum(), one)
    assert d_o.shape == one.shape


def test_parts_that_lie_between_batch_entries_are_differentiable() -> None:
    o, lse = parts()
    between = o.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    apart = o.clone().requires_grad_()
    for x in (between, apart):
        loss(*merge(x, lse)).backward()
    assert torch.equal(between.grad, apart.grad)


@pytest.mark.filterwarnings("ignore")
def test_compile_and_meta() -> None:
    o, lse = (t.requires_grad_() for t in parts())
    want = torch.autograd.grad(loss(*merge(o, lse)), (o, lse))
    compiled = torch.compile(lambda a, b: loss(*merge(a, b)), fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(compiled(o, lse), (o, lse)), want, strict=True):
        torch.testing.assert_close(a, b)
    made, both = merge(o.to("meta"), lse.to("meta"))
    assert (made.shape, both.shape) == (o.shape[1:], lse.shape[1:])


def test_opcheck() -> None:
    o, lse = (t.requires_grad_() for t in parts())
    torch.library.opcheck(torch.ops.tandem.merge, (o, lse, False))
    d_o, d_lse = torch.ones(2, 3, 5, 4), torch.ones(2, 3, 5)
    detached = (d_o, d_lse, o.detach(), lse.detach(), False)
    torch.library.opcheck(torch.ops.tandem.merge_backward, detached)


def test_torch_func() -> None:
    o, lse = parts()
    want = torch.autograd.grad(
        loss(*merge(o.requires_grad_(), lse.requires_grad_())), (o, lse)
    )  # fmt: skip
    got = torch.func.grad(lambda a, b: loss(*merge(a, b)), argnums=(0, 1))(o.detach(), lse.detach())
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    many = torch.stack([o.detach(), 2 * o.detach()])
    made, both = torch.func.vmap(merge, in_dims=(0, None))(many, lse.detach())
    for n in range(2):
        single, single_lse = merge(many[n], lse.detach())
        assert torch.equal(made[n], single)
        assert torch.equal(both[n], single_lse)


def test_torch_refuses_what_it_has_not() -> None:
    o, lse = parts()
    make_dual: Any = forward_ad.make_dual
    with forward_ad.dual_level(), pytest.raises(ta.UnsupportedError, match="part_o has a tangent"):
        merge(make_dual(o, torch.ones_like(o)), lse)
    o.requires_grad_()
    (d_o,) = torch.autograd.grad(loss(*merge(o, lse)), o, create_graph=True)
    with pytest.raises(ta.UnsupportedError, match="merge has no second derivatives"):
        torch.autograd.grad(d_o.sum(), o)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merge_into_has_the_bits_of_one_call(dtype: str) -> None:
    o, lse = parts(2, getattr(torch, dtype))
    want, want_lse = merge(o.float(), lse)
    running, running_lse = o[0].clone().float(), lse[0].clone()
    merge_into(running, running_lse, o[1], lse[1])
    assert torch.equal(running, want)
    assert torch.equal(running_lse, want_lse)
    rows = slice(2, 4)
    wide, wide_lse = o[0].clone().float(), lse[0].clone()
    merge_into(wide[:, :, rows], wide_lse[:, :, rows], o[1][:, :, rows], lse[1][:, :, rows])
    assert torch.equal(wide[:, :, rows], want[:, :, rows])
    assert torch.equal(wide_lse[:, :, rows], want_lse[:, :, rows])
    assert torch.equal(wide[:, :, :2], o[0].float()[:, :, :2])


def test_arrays() -> None:
    o, lse = (t.numpy() for t in parts())
    want, want_lse = (t.numpy() for t in merge(*parts()))
    got, got_lse = ta.merge(o, lse)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got_lse, want_lse)
    into, into_lse = o[0].copy(), lse[0].copy()
    same, same_lse = ta.merge(o[1:], lse[1:], into=(into, into_lse))
    assert same is into
    assert same_lse is into_lse
    np.testing.assert_array_equal(into, want)
    np.testing.assert_array_equal(into_lse, want_lse)


def test_arrays_backward() -> None:
    o, lse = (t.requires_grad_() for t in parts())
    made, both = merge(o, lse)
    d_o, d_lse = torch.randn(made.shape), torch.randn(both.shape)
    want = torch.autograd.grad((made, both), (o, lse), (d_o, d_lse))
    plain_o, plain_lse = o.detach().numpy(), lse.detach().numpy()
    got = ta.merge_backward(d_o.numpy(), plain_o, plain_lse, d_lse=d_lse.numpy())
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b.numpy())


def test_torch_tensors_into() -> None:
    o, lse = parts()
    want, _ = merge(o, lse)
    into = o[0].clone(), lse[0].clone()
    version = into[0]._version
    made, _ = ta.merge(o[1:], lse[1:], into=into)
    assert made is into[0]
    assert torch.equal(made, want)
    assert into[0]._version > version
    assert ta.merge(o.requires_grad_(), lse)[0].requires_grad
    with pytest.raises(ta.UnsupportedError, match="part_o requires a gradient"):
        ta.merge(o[1:], lse[1:], into=into)


def test_jax_arrays() -> None:
    jax = pytest.importorskip("jax")
    o, lse = (jax.numpy.asarray(t.numpy()) for t in parts())
    got, _ = ta.merge(o, lse)
    assert isinstance(got, jax.Array)
    np.testing.assert_array_equal(np.asarray(got), merge(*parts())[0].numpy())
    with pytest.raises(ta.UnsupportedError, match="merge is not there for JAX arrays"):
        jax.jit(lambda a: ta.merge(a, lse))(o)


def test_what_does_not_fit_is_named_and_into_keeps_its_bytes() -> None:
    o, lse = parts()
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (o[0], lse[0], {}, r"part_o has 4 dimensions where \[parts, B, H, S, D\] has 5"),
        (o[:0], lse[:0], {}, "part_o of shape .* has no part"),
        (o, lse[:2], {}, r"part_lse is float32 \[2, 2, 3, 5\], not float32 \[3, 2, 3, 5\]"),
        (o, lse.double(), {}, "part_lse is float64"),
        (o.double(), lse, {}, "part_lse is float32 .* not float64"),
        (o, lse, {"layout": "sbhd"}, "layout is 'bhsd' or 'bshd', not 'sbhd'"),
        (o, lse, {"layout": "bshd"}, "part_lse is"),
        (o.int(), lse, {}, "part_o is int32; it may be float32"),
    ]
    for part_o, part_lse, more, sentence in cases:
        for function in (merge, ta.merge):
            with pytest.raises(ta.TandemError, match=sentence):
                function(part_o, part_lse, **more)
    some: Any = [lse]
    with pytest.raises(ta.InvalidArgumentError, match="part_lse is a list, not a tensor"):
        merge(o, some)
    arrays = o.numpy(), lse.numpy()
    kept = np.ones((2, 3, 5, 4), np.float32), np.ones((2, 3, 5), np.float32)
    frozen = kept[0].copy()
    frozen.flags.writeable = False
    wrong: list[tuple[Any, str]] = [
        (kept[0], r"into is a pair \(o, lse\), not a ndarray"),
        ((kept[0][:, :2], kept[1]), r"o is \[2, 2, 5, 4\], not \[2, 3, 5, 4\]"),
        ((kept[0], kept[1][:, :, :2]), r"lse is float32 \[2, 3, 2\]"),
        ((frozen, kept[1]), "o of into is read-only"),
        ((arrays[0][0], kept[1]), "args.o, at .*, shares memory with args.part_o"),
        ((kept[0].astype(np.float64), kept[1]), "a merge has f64 in all tensors or in none"),
    ]
    before = arrays[0].copy()
    for into, sentence in wrong:
        with pytest.raises(ta.TandemError, match=sentence):
            ta.merge(*arrays, into=into)
    assert (kept[0] == 1).all()
    assert (kept[1] == 1).all()
    np.testing.assert_array_equal(arrays[0], before)
