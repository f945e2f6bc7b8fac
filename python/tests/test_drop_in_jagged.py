# SPDX-License-Identifier: MIT OR Apache-2.0
"""drop_in.sdpa on jagged nested tensors, against torch on each sequence."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tandem_attention import InvalidArgumentError, UnsupportedError  # noqa: E402
from tandem_attention.drop_in.sdpa import (  # noqa: E402
    replace_sdpa,
    scaled_dot_product_attention,
)

LENGTHS = (5, 33, 1, 0, 12)
KEYS = (9, 20, 4, 3, 0)
full = torch.nn.functional.scaled_dot_product_attention


def sequences(lengths: Any, heads: int, size: int) -> list[Any]:
    return [torch.randn(n, heads, size) for n in lengths]


def nested(parts: list[Any]) -> tuple[Any, Any]:
    """The leaf [B, L, H, E] and what attention takes of it, [B, H, L, E]."""
    leaf = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    return leaf, leaf.transpose(1, 2)


def one_by_one(q: list[Any], k: list[Any], v: list[Any], **options: Any) -> list[Any]:
    return [
        full(*(t.transpose(0, 1) for t in three), **options).transpose(0, 1)
        for three in zip(q, k, v, strict=True)
    ]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("keys", [LENGTHS, KEYS])
def test_jagged(keys: Any, heads: int, is_causal: bool) -> None:
    torch.manual_seed(0)
    parts = sequences(LENGTHS, 4, 16), sequences(keys, heads, 16), sequences(keys, heads, 8)
    options = {"is_causal": is_causal, "scale": 0.3, "enable_gqa": heads != 4}
    leaves, (q, k, v) = zip(*map(nested, parts), strict=True)
    got = scaled_dot_product_attention(q, k, v, **options)
    assert got.is_nested
    assert got.layout == torch.jagged
    assert got.shape[:3] == q.shape[:3]
    wide = [[t.double().requires_grad_() for t in part] for part in parts]
    want = torch.cat(one_by_one(*wide, **options))
    rows = got.transpose(1, 2).values()
    torch.testing.assert_close(rows.double(), want, atol=2e-5, rtol=2e-5)
    weight = torch.linspace(-1, 1, rows.numel()).reshape(rows.shape)
    made = torch.autograd.grad((rows * weight).sum(), leaves)
    (want * weight).sum().backward()
    for d, part in zip(made, wide, strict=True):
        assert d.is_nested
        exact = torch.cat([torch.zeros_like(t) if t.grad is None else t.grad for t in part])
        assert exact.abs().max() > 1e-3
        torch.testing.assert_close(d.values().double(), exact, atol=5e-5, rtol=5e-5)


def test_one_head_without_a_dimension() -> None:
    parts = [torch.randn(n, 16) for n in LENGTHS]
    leaf = torch.nested.nested_tensor(parts, layout=torch.jagged)
    got = scaled_dot_product_attention(leaf, leaf, leaf)
    assert got.shape == leaf.shape
    want = [full(t[None], t[None], t[None])[0] for t in parts]
    torch.testing.assert_close(got.values(), torch.cat(want), atol=2e-5, rtol=2e-5)


def test_a_model_of_torch() -> None:
    """A layer that projects, splits into heads and calls torch's function, with gradients."""
    torch.manual_seed(1)
    project = torch.nn.Linear(32, 96)
    parts = [torch.randn(n, 32) for n in (7, 3)]

    def layer(x: Any) -> Any:
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(-3, -2) for t in project(x).chunk(3, -1))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    with replace_sdpa():
        got = layer(torch.nested.nested_tensor(parts, layout=torch.jagged))
        got.values().square().sum().backward()
    got_d = project.weight.grad.clone()
    project.weight.grad = None
    want = [layer(t) for t in parts]
    sum(t.square().sum() for t in want).backward()
    for x, y in zip(got.unbind(), want, strict=True):
        torch.testing.assert_close(x, y, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(got_d, project.weight.grad, atol=2e-5, rtol=2e-4)


def test_refusals() -> None:
    parts = sequences((5, 3), 2, 8)
    q = nested(parts)[1]
    dense = torch.randn(2, 2, 5, 8)
    strided = torch.nested.nested_tensor([t.transpose(0, 1) for t in parts])
    holes = torch.nested.narrow(
        torch.randn(2, 9, 2, 8), 1, torch.tensor([0, 2]), torch.tensor([4, 3]), layout=torch.jagged
    )
    packed = holes.contiguous().transpose(1, 2)
    holes = holes.transpose(1, 2)
    bad, absent = InvalidArgumentError, UnsupportedError
    call = scaled_dot_product_attention
    for kind, sentence, run in (
        (absent, "query is a nested tensor of layout torch.strided",
         lambda: call(strided, strided, strided)),
        (bad, "key is dense where others are nested", lambda: call(q, dense, dense)),
        (bad, "query is dense where others are nested", lambda: call(dense, q, q)),
        (absent, "attn_mask with nested tensors", lambda: call(q, q, q, dense > 0)),
        (absent, "query has rows between its sequences", lambda: call(holes, holes, holes)),
        (bad, "query is ragged in dimension 1, not 2",
         lambda: call(nested(parts)[0], nested(parts)[0], nested(parts)[0])),
        (bad, "query, key and value have 2, 3 and 3 sequences",
         lambda: call(q, *[nested(sequences((5, 3, 1), 2, 8))[1]] * 2)),
        (bad, "key and value differ in length",
         lambda: call(q, q, nested(sequences((3, 5), 2, 8))[1])),
        (bad, "have 2, 1 and 1 heads; enable_gqa=True",
         lambda: call(q, *[nested(sequences((5, 3), 1, 8))[1]] * 2)),
        (bad, "have 4, 3 and 2 dimensions|have 4, 3 and 3 dimensions",
         lambda: call(q, *[torch.nested.nested_tensor([t[:, 0] for t in parts],
                                                      layout=torch.jagged)] * 2)),
    ):  # fmt: skip
        with pytest.raises(kind, match=sentence):
            run()
    torch.testing.assert_close(
        call(packed, packed, packed).unbind()[1],
        full(*[packed.unbind()[1][None]] * 3)[0],
    )
