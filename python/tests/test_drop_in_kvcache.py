# SPDX-License-Identifier: MIT OR Apache-2.0
"""What flash_attn_with_kvcache() and pages refuse, and that nothing is written or read then."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tandem_attention import InvalidArgumentError  # noqa: E402
from tandem_attention.drop_in.flash_attn import (  # noqa: E402
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)

ON_CPU = torch.get_default_device().type == "cpu"


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator(torch.get_default_device()))


def whole(numbers: Any, dtype: Any = torch.int32) -> Any:
    return torch.tensor(numbers, dtype=dtype)


def dense() -> dict[str, Any]:
    k, v = rand(2, 3, 2, 8), rand(2, 3, 2, 8)
    return {
        "q": rand(2, 3, 4, 8), "k_cache": rand(2, 16, 2, 8), "v_cache": rand(2, 16, 2, 8), "k": k,
        "v": v, "cache_seqlens": whole([4, 7]),
    }  # fmt: skip


def paged() -> dict[str, Any]:
    pages = {"k_cache": rand(9, 4, 2, 8), "v_cache": rand(9, 4, 2, 8)}
    return {**dense(), **pages, "block_table": whole([[0, 1, 2, 3], [4, 5, 6, 7]])}


def none() -> dict[str, Any]:
    return {"k": None, "v": None}


TURNS = torch.ones(40, 4)
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (dense, {"v_cache": rand(2, 8, 2, 8)}, r"v_cache is \[2, 8, 2, 8\] where k_cache"),
    (paged, {"v_cache": rand(5, 4, 2, 8)}, r"v_cache is \[5, 4, 2, 8\] where k_cache"),
    (dense, {"k_cache": rand(2, 16, 8)}, "k_cache has 3 dimensions"),
    (dense, {"k_cache": rand(1, 16, 2, 8).expand(2, -1, -1, -1)}, "k_cache is expanded"),
    (dense, {"v": torch.zeros(2, 3, 2, 8, device="meta")}, "v lies on meta"),
    (dense, {"q": None}, "q is a NoneType"),
    (dense, {"q": rand(2)}, "q has 1 dimensions"),
    (dense, {"k": rand(1, 3, 2, 8), "v": rand(1, 3, 2, 8)}, r"its cache takes .* \[2, 3, 2, 8\]"),
    (dense, {"cache_batch_idx": whole([1])}, r"cache_batch_idx is \[1\], not \[2\]"),
    (dense, {"cache_batch_idx": whole([-1, 0]), **none()}, "cache_batch_idx has the entry -1"),
    (dense, {"cache_batch_idx": whole([2, 0]), **none()}, "cache_batch_idx has the entry 2"),
    (dense, {"cache_leftpad": whole([1])}, r"cache_leftpad is \[1\], not \[2\]"),
    (dense, {"cache_leftpad": torch.ones(2)}, "cache_leftpad is float32"),
    (dense, {"cache_leftpad": [1, 2]}, "cache_leftpad is a list"),
    (dense, {"cache_seqlens": whole([4, 2**32 + 4], torch.int64)}, "4294967303 keys"),
    (dense, {"cache_seqlens": whole([4, 127], torch.int8)}, "130 keys; the cache has room for 16"),
    (paged, {"block_table": whole([[-1, 1, 2], [4, 5, 6]]), **none()}, "the page -1"),
    (paged, {"block_table": whole([[0, 1, 2], [99, 5, 6]]), **none()}, "the page 99"),
    (paged, {"block_table": whole([[-1, 1, 2], [4, 5, 6]])}, "the page -1"),
    (paged, {"block_table": whole([[0, 1, 2]]), **none()}, r"\[1, 3\]; there are 2 sequences"),
    (paged, {"block_table": whole([0, 1, 2])}, r"block_table is \[B, pages\]"),
    (paged, {"block_table": torch.ones(2, 4)}, "block_table is float32"),
    (paged, {"k_cache": rand(9, 0, 2, 8), "v_cache": rand(9, 0, 2, 8)}, "no keys in a page"),
    (dense, {"rotary_cos": TURNS[:9], "rotary_sin": TURNS[:9]}, "position 9; .* 9 positions"),
    (dense, {"rotary_cos": TURNS, "rotary_sin": TURNS[:6]}, r"rotary_sin \[6, 4\]"),
    (dense, {"rotary_cos": TURNS.int(), "rotary_sin": TURNS.int()}, "torch.int32"),
    (dense, {"rotary_cos": TURNS.tile(1, 2), "rotary_sin": TURNS.tile(1, 2)}, "turns 16 features"),
]


@pytest.mark.parametrize(("base", "change", "sentence"), REFUSED)
def test_refused(base: Any, change: dict[str, Any], sentence: str) -> None:
    given = {**base(), **change}
    caches = [given[n] for n in ("k_cache", "v_cache")]
    before = [t.clone() for t in caches]
    with pytest.raises(InvalidArgumentError, match=sentence):
        flash_attn_with_kvcache(**given)
    assert all(torch.equal(a, b) for a, b in zip(caches, before, strict=True))


@pytest.mark.skipif(not ON_CPU, reason="lengths on a GPU are not read for this")
def test_sequences_that_the_cache_has_no_room_for() -> None:
    """Tensors on the CPU are looked at where nothing is written, too."""
    given = {**dense(), **none()}
    for lengths in ([4, 17], [4, -1]):
        with pytest.raises(InvalidArgumentError, match="keys"):
            flash_attn_with_kvcache(**{**given, "cache_seqlens": whole(lengths)})


def test_a_cache_of_inference_mode() -> None:
    """torch would refuse after it had written."""
    given = dense()
    with torch.inference_mode():
        cache = rand(2, 16, 2, 8)
    before = cache.clone()
    with pytest.raises(InvalidArgumentError, match="made in inference mode"):
        flash_attn_with_kvcache(**{**given, "v_cache": cache})
    assert torch.equal(cache, before)
    with torch.inference_mode():
        flash_attn_with_kvcache(**{**given, "v_cache": cache})
    assert not torch.equal(cache, before)


def test_lengths_of_small_types_count_the_new_rows() -> None:
    wide, narrow = dense(), dense()
    want = flash_attn_with_kvcache(**wide)
    narrow = {n: t.clone() for n, t in wide.items()}
    narrow["cache_seqlens"] = wide["cache_seqlens"].to(torch.uint8)
    assert torch.equal(flash_attn_with_kvcache(**narrow), want)


def test_pages_of_packed_sequences() -> None:
    q, given = rand(6, 4, 8), paged()
    at = whole([0, 3, 6])
    k, v = given["k_cache"], given["v_cache"]

    def call(table: Any, keys: Any = (0, 5, 14), most: int = 9) -> Any:
        return flash_attn_varlen_func(q, k, v, at, whole(keys), 3, most, block_table=table)

    table = given["block_table"]
    if ON_CPU:  # a GPU says that an index is out of bounds, and does nothing more
        with pytest.raises(InvalidArgumentError, match="the page -1; the cache has 9"):
            call(whole([[-1, 1, 2, 3], [4, 5, 6, 7]]))
    with pytest.raises(InvalidArgumentError, match="there are 2 sequences"):
        call(table[:1])
    unused = table.clone()
    unused[0, 2:] = -1
    assert torch.equal(call(unused), call(table))
    # Keys behind the longest are cut, as of keys without pages.
    flat = [torch.cat((t[:2].flatten(0, 1)[:5], t[4:7].flatten(0, 1)[:9])) for t in (k, v)]
    for most in (4, 6):
        want = flash_attn_varlen_func(q, *flat, at, whole([0, 5, 14]), 3, most, causal=False)
        torch.testing.assert_close(call(table, most=most), want)
