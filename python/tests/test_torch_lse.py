# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gradient through lse: torch in all its ways, and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tandem_attention as ta

torch = pytest.importorskip("torch")

from tandem_attention.torch import attention  # noqa: E402


def qkv(seed: int = 0, *, rows: int = 9, keys: int = 11) -> list[Any]:
    """q, k and v of 4 and 2 heads, of 8 features."""
    make = torch.Generator().manual_seed(seed)
    shapes = (2, 4, rows, 8), (2, 2, keys, 8), (2, 2, keys, 8)
    return [torch.randn(s, generator=make).requires_grad_() for s in shapes]


def plain(q: Any, k: Any, v: Any, sink: Any = None, keep: Any = None) -> tuple[Any, Any]:
    """o and lse by torch's own operations."""
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    if keep is not None:
        s = s.masked_fill(~keep, float("-inf"))
    every = s if sink is None else torch.cat([s, sink.view(1, -1, 1, 1).expand(*s.shape[:3], 1)], 3)
    lse = every.logsumexp(-1)
    return (s - lse[..., None]).exp() @ v, lse


def loss(o: Any, lse: Any) -> Any:
    """Depends on both."""
    return (o * o.detach().cos()).sum() + (lse * lse).sum() / 3


def close(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    """Compares tensors or arrays one by one."""
    for a, b in zip(got, want, strict=True):
        a, b = (t.detach().numpy() if isinstance(t, torch.Tensor) else t for t in (a, b))
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


def gradients(f: Any, tensors: list[Any], of: Any = loss) -> list[Any]:
    """Of a loss of f's o and lse."""
    return list(torch.autograd.grad(of(*f(*tensors)), tensors))


def ours(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Tandem's o and lse."""
    return attention(q, k, v, return_lse=True, **options)


def test_torch() -> None:
    close(gradients(ours, qkv()), gradients(plain, qkv()))


def test_torch_lse_alone() -> None:
    def of(_: Any, lse: Any) -> Any:
        return lse.sin().sum()

    def without_v(f: Any) -> list[Any]:
        q, k, v = qkv(1)
        return list(torch.autograd.grad(of(*f(q, k, v.detach())), (q, k)))

    close(without_v(ours), without_v(plain))


def test_torch_o_alone_gives_no_d_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem_attention.torch import _kernels

    seen = []
    known = _kernels.backward

    def backward(*args: Any) -> Any:
        seen.append(args[4])
        return known(*args)

    monkeypatch.setattr(_kernels, "backward", backward)
    gradients(ours, qkv(), lambda o, _: o.sum())
    gradients(ours, qkv())
    assert seen[0] is None
    assert seen[1] is not None


def test_torch_sink_and_rows_without_keys() -> None:
    keep = torch.ones(2, 1, 9, 11, dtype=torch.bool)
    keep[0, 0, 3] = False  # sees nothing
    keep[1, 0, :, 5:] = False
    sink = torch.linspace(-1, 1, 4).requires_grad_()

    def of(o: Any, lse: Any) -> Any:
        seen = keep.any(-1).expand_as(lse)
        return o.sin().sum() + lse.masked_fill(~seen, 0).square().sum()

    def plain_of(q: Any, k: Any, v: Any, sink: Any) -> Any:
        return plain(q, k, v, sink, keep)

    want = gradients(plain_of, [*qkv(2), sink], of)
    got = gradients(lambda q, k, v, s: ours(q, k, v, sink=s, keep=keep), [*qkv(2), sink], of)
    assert all(t.isfinite().all() for t in got)
    # A row that sees the sink alone has a weight of 1 there in torch, and sees nothing in Tandem.
    close(got[:3], want[:3])
    # d_lse of the row without a key has no effect, even where it is NaN.
    q, k, v = qkv(2)
    o, lse = ours(q, k, v, keep=keep)
    d_lse = torch.ones_like(lse)
    clean = torch.autograd.grad((o, lse), (q, k), (o.detach(), d_lse), retain_graph=True)
    d_lse[0, :, 3] = float("nan")
    close(torch.autograd.grad((o, lse), (q, k), (o.detach(), d_lse)), clean, 0)


def test_torch_ways() -> None:
    want = gradients(plain, qkv(3))
    close(gradients(lambda *t: torch.utils.checkpoint.checkpoint(ours, *t, use_reentrant=False),
                    qkv(3)), want)  # fmt: skip

    def total(*tensors: Any) -> Any:
        return loss(*ours(*tensors))

    close(torch.func.grad(total, (0, 1, 2))(*qkv(3)), want)
    stacked = [torch.stack([t.detach(), 2 * t.detach()]) for t in qkv(3)]
    mapped = torch.vmap(torch.func.grad(total, (0, 1, 2)))(*stacked)
    close([t[0] for t in mapped], want)
    twice = gradients(plain, [(2 * t.detach()).requires_grad_() for t in qkv(3)])
    close([t[1] for t in mapped], twice, 1e-4)


def test_torch_batched_gradients() -> None:
    q, k, v = qkv(4)
    o, lse = ours(q, k, v)
    d_o, d_lse = torch.randn(3, *o.shape), torch.randn(3, *lse.shape)
    got = torch.autograd.grad(
        (o, lse), (q, k), (d_o, d_lse), retain_graph=True, is_grads_batched=True
    )
    for n in range(3):
        one = torch.autograd.grad((o, lse), (q, k), (d_o[n], d_lse[n]), retain_graph=True)
        close([t[n] for t in got], one, 1e-6)


def test_torch_compile() -> None:
    compiled = torch.compile(lambda *t: loss(*ours(*t)), fullgraph=True, backend="aot_eager")
    tensors = qkv(5)
    close(torch.autograd.grad(compiled(*tensors), tensors), gradients(plain, qkv(5)))


def test_torch_opcheck() -> None:
    from tandem_attention.torch import _ops

    q, k, v = qkv(6)
    o, lse = attention(q, k, v, return_lse=True)
    options = ta._options.make_options()
    absent = (None,) * (len(_ops.Inputs._fields) - 3)
    torch.library.opcheck(
        torch.ops.tandem.attention_backward.default,
        (torch.ones_like(o), o.detach(), lse.detach(), 7, torch.ones_like(lse), q.detach(),
         k.detach(), v.detach(), *absent, None, *options),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


def test_other_normalizers_are_refused() -> None:
    q, k, v = qkv(7)
    o, lse = attention(q, k, v, normalizer="entmax", alpha=1.5, return_lse=True)
    with pytest.raises(ta.UnsupportedError, match="entmax has a threshold"):
        loss(o, lse).backward()
    o, lse = attention(q, k, v, normalizer="elastic", tau=torch.zeros(4), return_lse=True)
    with pytest.raises(ta.UnsupportedError, match="TANDEM_ELASTIC"):
        loss(o, lse).backward()
    o, _ = attention(q, k, v, normalizer="elastic", tau=torch.zeros(4), return_lse=True)
    o.sum().backward()  # as before


def test_arrays() -> None:
    q, k, v = qkv(8)
    o, lse = plain(q, k, v)
    d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
    want = torch.autograd.grad((o, lse), (q, k, v), (d_o, d_lse))
    arrays = [t.detach().numpy() for t in (q, k, v)]
    o, lse = ta.attention(*arrays, return_lse=True)
    got = ta.attention_backward(d_o.numpy(), *arrays, o, lse, d_lse=d_lse.numpy())
    close((got.q, got.k, got.v), want)
    with pytest.raises(ta.InvalidArgumentError, match="d_lse is float32"):
        ta.attention_backward(d_o.numpy(), *arrays, o, lse, d_lse=d_lse.numpy()[:1])


def test_flex_attention() -> None:
    from tandem_attention.drop_in.flex_attention import flex_attention

    def flex(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, enable_gqa=True, return_lse=True)

    close(gradients(flex, qkv(9)), gradients(plain, qkv(9)))


@pytest.mark.parametrize("size", [1.0, 2000.0])
def test_parts_of_the_keys(size: float) -> None:
    q, k, v = (t.detach().numpy() for t in qkv(11, rows=24, keys=96))
    q = q * np.float32(size)
    d_o = np.random.default_rng(0).standard_normal(q.shape, np.float32)
    o, lse = ta.attention(q, k, v, return_lse=True)
    whole = ta.attention_backward(d_o, q, k, v, o, lse)
    parts = [
        ta.attention_backward(d_o, q, k[:, :, at], v[:, :, at], o, lse, part_of_keys=True)
        for at in (slice(0, 40), slice(40, 96))
    ]
    got = (
        parts[0].q + parts[1].q,
        *(np.concatenate([getattr(p, n) for p in parts], 2) for n in ("k", "v")),
    )
    # Scores of some thousands are off by as many units of 2^-24.
    for a, b in zip(got, (whole.q, whole.k, whole.v), strict=True):
        limit = (1e-5 if size == 1 else 1e-2) * np.abs(b).max()
        np.testing.assert_allclose(a, b, atol=limit)
    with pytest.raises(ta.UnsupportedError, match="TANDEM_FLAG_PART_OF_KEYS"):
        ta.attention_backward(
            d_o, q, k, v, o, lse, part_of_keys=True, normalizer="entmax", alpha=1.5
        )
