# SPDX-License-Identifier: MIT OR Apache-2.0
"""Block lists in PyTorch: torch's BlockMask, Blocks of one's own, and lists that lie."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import (  # noqa: E402 after importorskip()
    BlockMask,
    create_block_mask,
    create_mask,
)

import tandem_attention as ta  # noqa: E402
from tandem_attention.masks import Blocks  # noqa: E402
from tandem_attention.torch import attention  # noqa: E402

B, H, S, D = 2, 4, 200, 16


def striped(b: Any, h: Any, i: Any, j: Any) -> Any:
    """A mask that no two intervals a key make, other for each entry and head."""
    return ((i // 16 + j // 32 + b + h) % 3 != 0) & (i >= j - 60)


def draw(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def inputs(heads_kv: int = H) -> list[Any]:
    tensors = [draw(B, H, S, D), draw(B, heads_kv, S, D), draw(B, heads_kv, S, D)]
    return [t.requires_grad_() for t in tensors]


def by_mask(q: Any, k: Any, v: Any, shown: Any) -> Any:
    """softmax in double, 0 for a row that sees nothing."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = (q.double() @ k.double().mT / D**0.5).masked_fill(~shown, float("-inf"))
    p = torch.softmax(s, -1).masked_fill(~shown.any(-1, keepdim=True), 0.0)
    return p @ v.double()


def check(got: Any, of: list[Any], shown: Any) -> None:
    want = by_mask(*of, shown)
    assert torch.allclose(got.double(), want, atol=2e-5, rtol=1e-4)
    d_o = draw(*want.shape)
    ours = torch.autograd.grad(got, of, d_o)
    theirs = torch.autograd.grad(want, of, d_o.double())
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one.double(), other.double(), atol=5e-5, rtol=1e-3)


@pytest.mark.parametrize("size", [64, 128, (64, 192)])
@pytest.mark.parametrize("heads_kv", [H, 2])
def test_a_block_mask_shows_what_its_mod_shows(size: Any, heads_kv: int) -> None:
    mask = create_block_mask(striped, B, H, S, S, device="cpu", BLOCK_SIZE=size)
    of = inputs(heads_kv)
    check(attention(*of, block_mask=mask), of, create_mask(striped, B, H, S, S, device="cpu"))


def test_a_block_mask_of_one_entry_and_head_beside_causal_and_a_bias() -> None:
    def mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i // 64 + j // 64) % 2 == 0

    mask = create_block_mask(mod, None, None, S, S, device="cpu", BLOCK_SIZE=64)
    of = inputs()
    bias = draw(1, H, S, S).requires_grad_()
    got = attention(*of, block_mask=mask, causal=True, bias=bias)
    shown = create_mask(mod, 1, 1, S, S, device="cpu") & torch.ones(S, S, dtype=torch.bool).tril()
    s = (of[0].double() @ of[1].double().mT / D**0.5 + bias).masked_fill(~shown, float("-inf"))
    rows = shown.any(-1, keepdim=True)
    want = torch.softmax(s, -1).masked_fill(~rows, 0.0) @ of[2].double()
    assert torch.allclose(got.double(), want, atol=2e-5, rtol=1e-4)
    ours = torch.autograd.grad(got.sum(), bias)[0]
    theirs = torch.autograd.grad(want.sum(), bias)[0]
    assert torch.allclose(ours, theirs.float(), atol=5e-5, rtol=1e-3)


def test_the_mod_is_asked_for_partial_blocks_alone_and_once() -> None:
    calls = []

    def mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        calls.append(1)
        return i >= j

    mask = create_block_mask(mod, None, None, 256, 256, device="cpu", BLOCK_SIZE=64)
    of = [draw(1, 1, 256, D) for _ in range(3)]
    before = len(calls)
    first = attention(*of, block_mask=mask)
    once = len(calls)
    assert once > before
    assert torch.equal(first, attention(*of, block_mask=mask))
    assert len(calls) == once
    assert torch.allclose(first, attention(*of, causal=True), atol=1e-5)


def test_full_blocks_without_bits_and_a_row_without_a_block() -> None:
    lists = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 1, 2], [1, 0, 1]], dtype=torch.int32)
    blocks = Blocks(lists[None, None], torch.zeros(1, 1, 4, 0, 64, 2, dtype=torch.int32))
    of = inputs()
    shown = torch.zeros(S, S, dtype=torch.bool)
    shown[:64, :64] = shown[128:192, 128:192] = shown[192:, 64:128] = True
    got = attention(*of, block_mask=blocks)
    assert not got[:, :, 64:128].any()
    check(got, of, shown)


def test_lists_that_lie_read_nothing_outside() -> None:
    lists = torch.tensor(
        [[2**31 - 1, 5, 0, 99], [-3, 2, 1, -1], [1, 1, 0, 2**31 - 1], [0, -9, 2, 2]],
        dtype=torch.int32,
    )
    bits = torch.full((1, 1, 4, 1, 64, 2), -1, dtype=torch.int32)
    of = inputs()
    shown = torch.zeros(S, S, dtype=torch.bool)
    shown[:64, :64] = shown[64:128, 64:128] = shown[128:192, :64] = True
    check(attention(*of, block_mask=Blocks(lists[None, None], bits)), of, shown)


def test_arrays_of_numpy_give_the_same() -> None:
    mask = create_block_mask(striped, B, H, S, S, device="cpu", BLOCK_SIZE=64)
    from tandem_attention.torch._block_mask import blocks_of

    blocks = blocks_of(mask)
    of = inputs()
    want = attention(*of, block_mask=blocks)
    got = ta.attention(
        *(t.detach().numpy() for t in of), block_mask=Blocks(*(t.numpy() for t in blocks))
    )
    assert torch.allclose(torch.from_numpy(got), want, atol=1e-5)


def test_what_is_no_block_list_is_refused() -> None:
    of = inputs()
    lists = torch.zeros(1, 1, 4, 3, dtype=torch.int32)
    bits = torch.zeros(1, 1, 4, 0, 64, 2, dtype=torch.int32)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (7, ta.InvalidArgumentError, "is a int"),
        (Blocks(lists.long(), bits), ta.InvalidArgumentError, "torch.int64, not torch.int32"),
        (Blocks(lists[:, :, :3], bits), ta.InvalidArgumentError, "differ"),
        (Blocks(lists[0], bits), ta.InvalidArgumentError, "not \\[batch"),
        (Blocks(lists, bits[:, :, :, :, :32]), ta.InvalidArgumentError, "rows of blocks of 32"),
        (
            create_block_mask(striped, B, H, S, S, device="cpu", BLOCK_SIZE=32),
            ta.UnsupportedError,
            "blocks of 32 rows",
        ),
    ]
    for block_mask, kind, said in wrong:
        with pytest.raises(kind, match=said):
            attention(*of, block_mask=block_mask)
    with pytest.raises(ta.UnsupportedError, match="keep and block lists"):
        attention(*of, block_mask=Blocks(lists, bits), keep=torch.ones(S, S, dtype=torch.bool))


def test_vmap_maps_the_batch() -> None:
    mask = create_block_mask(striped, B, H, S, S, device="cpu", BLOCK_SIZE=64)
    assert isinstance(mask, BlockMask)
    from tandem_attention.torch._block_mask import blocks_of

    blocks = blocks_of(mask)
    of = [t.detach() for t in inputs()]
    want = torch.stack([attention(*of, block_mask=blocks), attention(*of, block_mask=blocks)])
    got = torch.vmap(lambda q: attention(q, of[1], of[2], block_mask=blocks), in_dims=0)(
        torch.stack([of[0], of[0]])
    )
    assert torch.allclose(got, want, atol=1e-5)
