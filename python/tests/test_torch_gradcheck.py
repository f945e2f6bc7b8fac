# SPDX-License-Identifier: MIT OR Apache-2.0
"""torch.autograd.gradcheck through Tandem: tensors of float64, on the CPU alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tandem_attention as ta

torch = pytest.importorskip("torch")

from tandem_attention.drop_in.flash_attn import flash_attn_with_kvcache  # noqa: E402
from tandem_attention.drop_in.lazy_attention_triton import LazyAttention  # noqa: E402
from tandem_attention.drop_in.sdpa import scaled_dot_product_attention  # noqa: E402
from tandem_attention.masks import Blocks  # noqa: E402
from tandem_attention.torch import attention  # noqa: E402

CPU = torch.device("cpu")


def normal(*shape: int, seed: int) -> Any:
    """Of float64, with a gradient."""
    make = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=make, dtype=torch.float64, device=CPU).requires_grad_()


def qkv(rows: int = 4, keys: int = 5) -> list[Any]:
    """q, k and v of 2 entries, 4 and 2 heads, 3 features and 2."""
    return [normal(2, 4, rows, 3, seed=1), normal(2, 2, keys, 3, seed=2),
            normal(2, 2, keys, 2, seed=3)]  # fmt: skip


def whole(*numbers: Any) -> Any:
    return torch.tensor(numbers, dtype=torch.int32, device=CPU)


def table() -> dict[str, Any]:
    index = torch.arange(20, device=CPU).reshape(1, 4, 5) % 8  # 7 is no entry
    return {"bias_table": normal(4, 7, seed=8), "bias_index": index.to(torch.uint8)}


def kept() -> Any:
    keep = torch.rand(2, 1, 4, 5, generator=torch.Generator("cpu").manual_seed(9), device=CPU) < 0.7
    keep[1, :, 2] = False  # a row that sees nothing
    return keep


def spans() -> Any:
    first = torch.arange(5, device=CPU) % 3
    return torch.stack([first, first + 2], -1).view(1, 1, 5, 2).to(torch.int32)


# name: options, of which those that require a gradient are checked beside q, k and v
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "scale": lambda: {"scale": 0.3},
    "causal": lambda: {"causal": True, "align": "bottom_right"},
    "window": lambda: {"window": (1, 2)},
    "lengths": lambda: {"lengths_q": whole(3, 4), "lengths_kv": whole(5, 2)},
    "keep": lambda: {"keep": kept(), "sink": normal(4, seed=7)},
    "spans": lambda: {"spans": spans()},
    "dropout": lambda: {"dropout": 0.25, "seed": 5},
    "softcap": lambda: {"softcap": 1.5},
    "bias": lambda: {"bias": normal(2, 4, 4, 5, seed=4)},
    "bias, repeated": lambda: {"bias": normal(1, 2, 4, 1, seed=4), "softcap": 1.5},
    "table": table,
    "dist_bias": lambda: {"dist_bias": normal(4, 3, seed=5)},
    "slope": lambda: {"slope": normal(4, seed=6)},
    "slopes and sinks of entries": lambda: {
        "slope": normal(2, 4, seed=6), "sink": normal(2, 4, seed=7)
    },
    "sink": lambda: {"sink": normal(4, seed=7), "causal": True},
    "many": lambda: {
        "bias": normal(2, 1, 4, 5, seed=4), "dist_bias": normal(4, 3, seed=5), "causal": True,
        "slope": normal(4, seed=6), "sink": normal(4, seed=7), "keep": kept(), "dropout": 0.25,
        "seed": 5, "softcap": 1.5, "lengths_kv": whole(5, 3),
    },
}  # fmt: skip
OTHER_NORMALIZERS: dict[str, Callable[[], dict[str, Any]]] = {
    "elastic": lambda: {"normalizer": "elastic", "tau": normal(4, seed=10)},
    "elastic with the rest": lambda: {
        "normalizer": "elastic", "tau": normal(4, seed=10), "sink": normal(4, seed=7),
        "dist_bias": normal(4, 3, seed=5), "slope": normal(4, seed=6),
    },
    "entmax": lambda: {"normalizer": "entmax", "alpha": 1.5, "bias": normal(2, 4, 4, 5, seed=4)},
    "entmax 1.25": lambda: {"normalizer": "entmax", "alpha": 1.25, "slope": normal(4, seed=6)},
}  # fmt: skip


def check(
    tensors: list[Any], options: dict[str, Any], *, with_lse: bool = True, fast: bool = False
) -> None:
    """gradcheck of o, and of lse, for all that requires a gradient."""
    wanted = {n: t for n, t in options.items() if getattr(t, "requires_grad", False)}
    rest = {n: t for n, t in options.items() if n not in wanted}

    def run(q: Any, k: Any, v: Any, *more: Any) -> Any:
        o, lse = attention(q, k, v, **rest, **dict(zip(wanted, more, strict=True)), return_lse=True)
        assert o.dtype == lse.dtype == torch.float64
        # Minus infinity, of a row that sees no key, has no difference quotient.
        return (o, torch.where(lse.isinf(), 0, lse)) if with_lse else o

    inputs = (*tensors, *wanted.values())
    assert torch.autograd.gradcheck(
        run, inputs, eps=1e-6, atol=1e-8, rtol=1e-6, fast_mode=fast, nondet_tol=0.0
    )


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str) -> None:
    check(qkv(), CASES[name]())


@pytest.mark.parametrize("name", OTHER_NORMALIZERS)
def test_gradcheck_of_other_normalizers(name: str) -> None:
    check(qkv(), OTHER_NORMALIZERS[name](), with_lse=False)


def test_gradcheck_packed() -> None:
    tensors = [normal(4, 7, 3, seed=1), normal(2, 9, 3, seed=2), normal(2, 9, 2, seed=3)]
    options = {
        "offsets_q": whole(0, 3, 7), "offsets_kv": whole(0, 5, 9), "max_seq_q": 4, "max_seq_kv": 5,
        "slope": normal(4, seed=6), "causal": True,
    }  # fmt: skip
    # Rows of lse behind a sequence hold what they held.
    check(tensors, options, with_lse=False)


def test_gradcheck_block_lists() -> None:
    tensors = [normal(1, 2, 70, 2, seed=1), *(normal(1, 1, 130, 2, seed=n) for n in (2, 3))]
    lists = whole([[[1, 1, 2, 0], [0, 1, 1, 0]]])  # of rows of 64 queries, by blocks of 64 keys
    bits = torch.arange(2 * 64 * 2, device=CPU).view(1, 1, 2, 1, 64, 2).to(torch.int32) * 7919
    check(tensors, {"block_mask": Blocks(lists, bits)}, fast=True)


def test_lse_keeps_the_bits_of_float64() -> None:
    q, k, v = (t.detach() for t in qkv())
    _, lse = attention(q, k, v, return_lse=True)
    s = q @ k.repeat_interleave(2, 1).mT / 3**0.5
    torch.testing.assert_close(lse, s.logsumexp(-1), atol=1e-14, rtol=1e-14)
    assert (lse.float().double() != lse).any()


def test_gradients_have_the_types_of_their_inputs() -> None:
    q, k, v = qkv()
    bias = normal(4, 5, seed=4).detach().float().requires_grad_()
    slope = normal(4, seed=6).detach().float().requires_grad_()
    attention(q, k, v, bias=bias, slope=slope).sum().backward()
    for t in (q, k, v, bias, slope):
        assert t.grad is not None
        assert t.grad.dtype == t.dtype
    with pytest.raises(ta.InvalidArgumentError, match=r"bias\.dtype is f64, which is for"):
        attention(q.float(), k.float(), v.float(), bias=bias.double())


def test_sdpa_of_float64_is_torchs() -> None:
    q, k, v = (normal(2, 4, n, 8, seed=n) for n in (5, 7, 7))
    mask = normal(5, 7, seed=4)
    ours, torchs = (
        f(q, k, v, mask)
        for f in (scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention)
    )
    torch.testing.assert_close(ours, torchs, atol=1e-13, rtol=1e-13)
    got, want = (torch.autograd.grad(o.sin().sum(), (q, k, v, mask)) for o in (ours, torchs))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-13, rtol=1e-13)


def test_drop_ins_lose_no_bits_of_float64() -> None:
    module = LazyAttention(dim=8, num_heads=2, window_size=3).double()
    torch.autograd.gradcheck(module, normal(1, 4, 8, seed=1), eps=1e-6, atol=1e-8, rtol=1e-6)

    q, k, v = (normal(1, 4, 2, 6, seed=n).detach() for n in (1, 2, 3))
    angles = torch.arange(12, dtype=torch.float64, device=CPU).view(4, 3) / 7
    cos, sin = angles.cos(), angles.sin()

    def turned(t: Any) -> Any:
        a, b = t.chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat((a * c - b * s, a * s + b * c), -1)

    caches = torch.zeros_like(k), torch.zeros_like(v)
    got = flash_attn_with_kvcache(
        q, *caches, k=k, v=v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=0, causal=True,
        rotary_interleaved=False,
    )  # fmt: skip
    want = attention(turned(q), turned(k), v, causal=True, layout="bshd")
    torch.testing.assert_close(got, want, atol=1e-14, rtol=1e-14)


def test_second_derivatives_stay_refused() -> None:
    q, k, v = qkv()
    with pytest.raises(ta.UnsupportedError, match="no second derivatives"):
        torch.autograd.gradgradcheck(attention, (q, k, v))


def test_compiled_shapes_know_the_type_of_lse() -> None:
    q, k, v = (t.detach().to("meta") for t in qkv())
    o, lse = attention(q, k, v, return_lse=True)
    assert o.dtype == lse.dtype == torch.float64
