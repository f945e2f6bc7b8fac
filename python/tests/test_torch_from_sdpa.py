# SPDX-License-Identifier: MIT OR Apache-2.0
"""docs/guide/from-sdpa.md: its table has torch's arguments, all of them, and says what is true."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

from tandem_attention import InvalidArgumentError, UnsupportedError  # noqa: E402
from tandem_attention.torch import attention  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "from-sdpa.md"
ROW = re.compile(r"^\| `(\w+)`(?:, (\w+))? \| (?:`(\w+)`|-) \| (.+) \|$", re.MULTILINE)
#: (torch's argument, its kind or "") and ours, or "".
TABLE = {(m[1], m[2] or ""): m[3] or "" for m in ROW.finditer(PAGE.read_text())}


def values() -> dict[tuple[str, str], Any]:
    torch.manual_seed(5)
    return {
        ("query", ""): torch.randn(2, 4, 5, 8),
        ("key", ""): torch.randn(2, 2, 7, 8),
        ("value", ""): torch.randn(2, 2, 7, 6),
        ("attn_mask", "bool"): torch.arange(35).view(5, 7) % 3 > 0,
        ("attn_mask", "float"): torch.randn(4, 5, 7),
        ("is_causal", ""): True,
        ("scale", ""): 0.3,
    }


def test_arguments_are_those_of_torch() -> None:
    schema = torch.ops.aten.scaled_dot_product_attention.default._schema
    assert {name for name, _ in TABLE} == {argument.name for argument in schema.arguments}
    assert {ours for ours in TABLE.values() if ours} <= inspect.signature(
        attention
    ).parameters.keys()
    assert set(TABLE) == {*values(), ("dropout_p", ""), ("enable_gqa", "")}


@pytest.mark.parametrize(
    "row", [row for row in values() if row[0] not in ("query", "key", "value")]
)
def test_rows_give_torchs_values(row: tuple[str, str]) -> None:
    given = values()
    arrays = [(name, "") for name in ("query", "key", "value")]
    taken = {TABLE[r]: given[r] for r in (*arrays, row)}
    want = F.scaled_dot_product_attention(
        **{r[0]: given[r] for r in (*arrays, row)}, enable_gqa=True
    )
    assert TABLE["enable_gqa", ""] == ""  # our call has fewer heads of keys, and says nothing
    torch.testing.assert_close(attention(**taken), want)


def test_dropout_has_torchs_odds_and_no_certainty() -> None:
    q = torch.zeros(1, 1, 8, 1024)[..., :8].contiguous()
    k, v = torch.zeros(1, 1, 1024, 8), torch.eye(1024)[None, None, :, :8].contiguous()
    name = TABLE["dropout_p", ""]
    torch.manual_seed(5)
    kept = attention(q, k, torch.ones_like(v), **{name: 0.25})[..., 0] * 0.75
    assert (kept - 0.75).abs().max() < 0.08
    with pytest.raises(InvalidArgumentError, match="dropout"):
        attention(q, k, v, **{name: 1.0})


def test_what_is_said_to_be_absent_is_refused() -> None:
    given = values()
    q, k, v = (given[name, ""] for name in ("query", "key", "value"))
    with pytest.raises(UnsupportedError, match="q is int32"):
        attention(q.int(), k.int(), v.int())
    with pytest.raises(InvalidArgumentError, match="q has 3 dimensions"):
        attention(q[0], k[0], v[0])
    with pytest.raises(InvalidArgumentError, match="batch entries"):
        attention(q, k[:1], v[:1])
    with pytest.raises((InvalidArgumentError, UnsupportedError), match="576"):
        attention(*(torch.zeros(1, 1, 2, 577) for _ in "qkv"))


def test_a_causal_mask_stands_beside_another() -> None:
    given = values()
    q, k, v = (given[name, ""] for name in ("query", "key", "value"))
    keep = given["attn_mask", "bool"]
    both = keep & torch.ones(5, 7, dtype=torch.bool).tril(2)
    torch.testing.assert_close(
        attention(q, k, v, keep=keep, causal="bottom_right"), attention(q, k, v, keep=both)
    )


def test_the_page_is_one_screen() -> None:
    assert len(PAGE.read_text().splitlines()) <= 40
