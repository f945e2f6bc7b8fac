# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gapped rows: offsets and lengths apart, in torch and numpy."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import tandem_attention as ta

torch = pytest.importorskip("torch")

from tandem_attention.torch import attention  # noqa: E402

DEVICE = os.environ.get("TANDEM_TEST_TORCH_DEVICE", "cpu")
HEADS, D = 4, 8
#: In no order of memory, with gaps.
OFFSETS = {"q": [9, 2, 20], "kv": [0, 30, 12]}
LENGTHS = {"q": [5, 6, 0], "kv": [10, 7, 9]}
TOTAL = {"q": 23, "kv": 40}


def places(dtype: Any = torch.int64) -> dict[str, Any]:
    made = {}
    for side in ("q", "kv"):
        made[f"offsets_{side}"] = torch.tensor(OFFSETS[side], dtype=dtype, device=DEVICE)
        made[f"lengths_{side}"] = torch.tensor(LENGTHS[side], dtype=dtype, device=DEVICE)
    return {**made, "max_seq_q": 6, "max_seq_kv": 10}


def rows_of(side: str) -> Any:
    """The rows of all entries, one entry behind the other."""
    pairs = zip(OFFSETS[side], LENGTHS[side], strict=True)
    return torch.tensor([n for at, count in pairs for n in range(at, at + count)], device=DEVICE)


def tensors() -> list[Any]:
    """q, k, v and d_o, with NaN in the gaps."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for side in ("q", "kv", "kv", "q"):
        t = torch.full((HEADS, TOTAL[side], D), float("nan"), device="cpu")
        rows = rows_of(side).cpu()
        t[:, rows] = torch.randn(HEADS, len(rows), D, generator=generator, device="cpu")
        made.append(t.to(DEVICE))
    return made


def packed() -> dict[str, Any]:
    made: dict[str, Any] = {"max_seq_q": 6, "max_seq_kv": 10}
    for side in ("q", "kv"):
        ends = np.cumsum([0, *LENGTHS[side]])
        made[f"offsets_{side}"] = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    return made


@pytest.mark.parametrize("compiled", [False, True])
def test_gaps_give_the_bits_of_packed_rows(compiled: bool) -> None:
    q, k, v, d_o = tensors()
    call = torch.compile(attention, backend="aot_eager") if compiled else attention
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    words = {"causal": "bottom_right", "deterministic": True}
    o, lse = call(*leaves, **places(), **words, return_lse=True)
    assert lse.shape == (3, HEADS, 6)
    rows = {side: rows_of(side) for side in ("q", "kv")}
    o[:, rows["q"]].backward(d_o[:, rows["q"]])
    sides = ("q", "kv", "kv")
    dense = [t[:, rows[side]].clone() for t, side in zip((q, k, v), sides, strict=True)]
    for t in dense:
        t.requires_grad_()
    want, want_lse = attention(*dense, **packed(), **words, return_lse=True)
    want.backward(d_o[:, rows["q"]])
    assert torch.equal(o[:, rows["q"]], want)
    assert torch.equal(lse, want_lse)
    for leaf, like, side in zip(leaves, dense, sides, strict=True):
        assert torch.equal(leaf.grad[:, rows[side]], like.grad)


def test_gaps_keep_their_bytes_in_numpy() -> None:
    q, k, v, d_o = (t.cpu().numpy() for t in tensors())
    words = {
        n: x.cpu().numpy() if hasattr(x, "numpy") else x for n, x in places(torch.int32).items()
    }
    out = np.full_like(q, 7)
    o, lse = ta.attention(q, k, v, **words, out=out, return_lse=True)
    gap = np.setdiff1d(np.arange(TOTAL["q"]), rows_of("q").cpu().numpy())
    assert (o[:, gap] == 7).all()
    assert np.isfinite(np.delete(o, gap, axis=1)).all()
    made = ta.attention_backward(d_o, q, k, v, o, lse, **words)
    assert np.isfinite(made.q[:, rows_of("q").cpu().numpy()]).all()
    assert np.isfinite(made.k[:, rows_of("kv").cpu().numpy()]).all()


def test_one_side_alone_has_gaps() -> None:
    _q, k, v, _ = tensors()
    words = places()
    own = torch.randn(3, HEADS, 6, D, device=DEVICE)
    kv = {n: words[n] for n in ("offsets_kv", "lengths_kv", "max_seq_kv")}
    o = attention(own, k, v, **kv)
    for b, (at, count) in enumerate(zip(OFFSETS["kv"], LENGTHS["kv"], strict=True)):
        part = slice(at, at + count)
        want = attention(own[b : b + 1], k[None, :, part], v[None, :, part])
        torch.testing.assert_close(o[b], want[0], atol=1e-6, rtol=1e-6)


def test_errors_name_the_array() -> None:
    q, k, v, _ = tensors()
    words = places()
    for name in ("offsets_q", "lengths_q", "offsets_kv", "lengths_kv"):
        sentence = name if name.startswith("lengths") else "batch entries where q has"
        with pytest.raises(ta.InvalidArgumentError, match=sentence):
            attention(q, k, v, **{**words, name: words[name][:2]})
        with pytest.raises(ta.InvalidArgumentError, match=f"{name} is float32"):
            attention(q, k, v, **{**words, name: words[name].float()})
    with pytest.raises(ta.InvalidArgumentError, match=r"offsets_q has one dimension, \[B\]"):
        attention(q, k, v, **{**words, "offsets_q": words["offsets_q"][None]})
