# SPDX-License-Identifier: MIT OR Apache-2.0
"""bias_table= and bias_index= of torch's attention: values, gradients, what is refused.

TANDEM_TEST_TORCH_DEVICE=cuda runs the same on a GPU.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import reference  # noqa: E402
from torch import Tensor  # noqa: E402

import tandem_attention as ta  # noqa: E402
from tandem_attention.torch import attention  # noqa: E402

DEVICE = os.environ.get("TANDEM_TEST_TORCH_DEVICE", "cpu")
B, HQ, HK, SQ, SK, D, N = 4, 4, 2, 13, 11, 8, 9


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and a table, all with a gradient."""
    shapes = ((B, HQ, SQ, D), (B, HK, SK, D), (B, HK, SK, D), (HQ, N))
    q, k, v, table = (torch.randn(*s, device=DEVICE, requires_grad=True) for s in shapes)
    return q, k, v, table


def some(*batch: int, dtype: Any = torch.int32) -> Tensor:
    """Indices of which some are no entry."""
    index = torch.randint(0, N + 2, (*batch, SQ, SK))
    return index.to(dtype).to(DEVICE)


def dense(table: Tensor, index: Tensor) -> Tensor:
    """The bias of each pair, [batch, Hq, Sq, Sk]; autograd goes through it."""
    index = index.to(torch.int64).reshape(-1, SQ, SK)
    entry = (index >= 0) & (index < table.shape[1])
    bias = table[:, torch.where(entry, index, 0)] * entry
    return bias.transpose(0, 1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.int64])
@pytest.mark.parametrize("batch", [(), (1,), (B,)])
def test_values_and_gradients(dtype: Any, batch: tuple[int, ...]) -> None:
    q, k, v, table = inputs()
    index = some(*batch, dtype=dtype)
    o = attention(q, k, v, bias_table=table, bias_index=index)
    d_o = torch.randn_like(o)
    got = torch.autograd.grad(o, (q, k, v, table), d_o)
    want_o = attention(q, k, v, bias=dense(table, index))
    want = torch.autograd.grad(want_o, (q, k, v, table), d_o)
    torch.testing.assert_close(o, want_o, atol=1e-5, rtol=1e-5)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    numbers = {n: x.detach().cpu().numpy() for n, x in (("q", q), ("k", k), ("v", v))}
    truth, _ = reference.attention(
        **numbers, bias_table=table.detach().cpu().numpy(), bias_index=index.cpu().numpy()
    )
    np.testing.assert_allclose(o.detach().cpu().numpy(), truth, atol=1e-5)


def test_numbers_beyond_32_bits_are_no_entries() -> None:
    q, k, v, table = inputs()
    index = some(dtype=torch.int64)
    far = index.clone()
    far[0, :4] = torch.tensor([2**32, -(2**32) + 1, 2**40 + 3, -1])
    index[0, :4] = N
    a = attention(q, k, v, bias_table=table, bias_index=far)
    assert torch.equal(a, attention(q, k, v, bias_table=table, bias_index=index))


def test_the_gradient_alone_and_twice() -> None:
    q, k, v, table = inputs()
    index = some(1, dtype=torch.uint8)
    q, k, v = q.detach(), k.detach(), v.detach()
    d_o = torch.randn(B, HQ, SQ, D, device=DEVICE)
    a, b = (
        torch.autograd.grad(
            attention(q, k, v, bias_table=table, bias_index=index, causal=True), table, d_o
        )[0]
        for _ in range(2)
    )
    assert torch.equal(a, b)
    assert a.abs().sum() > 0


def test_a_table_of_another_type_has_its_gradient() -> None:
    q, k, v, table = inputs()
    half = table.detach().to(torch.bfloat16).requires_grad_()
    o = attention(q, k, v, bias_table=half, bias_index=some())
    (gradient,) = torch.autograd.grad(o.sum(), half)
    assert gradient.dtype == torch.bfloat16


def test_vmap_and_compile() -> None:
    q, k, v, table = (x.detach() for x in inputs())
    index = some(1)
    each = torch.stack([index, (index + 1) % N])

    def f(i: Tensor) -> Any:
        return attention(q, k, v, bias_table=table, bias_index=i)

    torch.testing.assert_close(torch.func.vmap(f)(each), torch.stack([f(i) for i in each]))
    tables = torch.stack([table, 2 * table])

    def g(t: Tensor) -> Any:
        return attention(q, k, v, bias_table=t, bias_index=index)

    torch.testing.assert_close(torch.func.vmap(g)(tables), torch.stack([g(t) for t in tables]))


def test_numpy_gives_the_same() -> None:
    q, k, v, table = (x.detach().cpu() for x in inputs())
    index = some(1, dtype=torch.uint8).cpu()
    arrays = [x.numpy() for x in (q, k, v)]
    words = {"bias_table": table.numpy(), "bias_index": index.numpy()}
    o, lse = ta.attention(*arrays, return_lse=True, **words)
    want = attention(q, k, v, bias_table=table, bias_index=index)
    np.testing.assert_array_equal(o, want.numpy())
    d_o = np.ones_like(o)
    made = ta.attention_backward(d_o, *arrays, o, lse, **words)
    assert made.bias_table.shape == (HQ, N)
    own = table.clone().requires_grad_()
    attention(q, k, v, bias_table=own, bias_index=index).sum().backward()
    assert own.grad is not None
    np.testing.assert_allclose(made.bias_table, own.grad.numpy(), atol=1e-6)
    one = ta.attention(*arrays, bias_table=words["bias_table"], bias_index=words["bias_index"][0])
    np.testing.assert_array_equal(one, o)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"bias_table": (HQ, N)}, "bias_table and bias_index go together"),
        ({"bias_index": (SQ, SK)}, "bias_table and bias_index go together"),
        ({"bias_table": (HQ + 1, N), "bias_index": (SQ, SK)}, "bias_table is float32"),
        ({"bias_table": (N,), "bias_index": (SQ, SK)}, r"bias_table is \[9\], not \[Hq, N\]"),
        ({"bias_table": (HQ, N), "bias_index": (SK, SQ)}, "bias_index is"),
        ({"bias_table": (HQ, N), "bias_index": (3, SQ, SK)}, "do not divide"),
    ],
)
def test_what_does_not_fit(words: dict[str, tuple[int, ...]], sentence: str) -> None:
    q, k, v, _ = (x.detach() for x in inputs())
    given: dict[str, Any] = {
        name: torch.zeros(shape, device=DEVICE)
        if name == "bias_table"
        else torch.zeros(shape, dtype=torch.int32, device=DEVICE)
        for name, shape in words.items()
    }
    with pytest.raises(ta.InvalidArgumentError, match=sentence):
        attention(q, k, v, **given)


def test_indices_that_are_no_whole_numbers() -> None:
    q, k, v, table = (x.detach() for x in inputs())
    with pytest.raises(ta.InvalidArgumentError, match="bias_index is float32"):
        attention(q, k, v, bias_table=table, bias_index=torch.zeros(SQ, SK, device=DEVICE))


def test_a_bias_beside_a_table_is_refused() -> None:
    q, k, v, table = (x.detach() for x in inputs())
    bias = torch.zeros(1, 1, SQ, SK, device=DEVICE)
    with pytest.raises(ta.UnsupportedError, match="bias and bias_table are both given"):
        attention(q, k, v, bias=bias, bias_table=table, bias_index=some())
