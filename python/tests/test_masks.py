# SPDX-License-Identifier: MIT OR Apache-2.0
"""tandem_attention.masks against masks that are written down pair by pair."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tandem_attention as ta
from tandem_attention import masks

Mask = np.ndarray[Any, Any]
Pairs = list[tuple[int, int]]


def shown(spans: Mask, rows: int) -> Mask:
    """The mask of spans, pair by pair; spans are of the form that attention() takes."""
    assert spans.dtype == np.int32
    assert spans.flags.c_contiguous
    batch, heads, keys, width = spans.shape
    mask = np.zeros((batch, heads, rows, keys), bool)
    for b, h, i, j in np.ndindex(*mask.shape):
        of = spans[b, h, j].tolist()
        mask[b, h, i, j] = any(of[n] <= i < of[n + 1] for n in range(0, width, 2))
    return mask


def one(spans: Mask, width: int = 2) -> Mask:
    """The mask of one entry and one head, Sq = Sk."""
    assert spans.shape == (1, 1, spans.shape[2], width)
    return shown(spans, spans.shape[2])[0, 0]


def runs(column: Mask) -> int:
    return int(np.diff(column.astype(int), prepend=0).clip(0).sum())


def pairwise(size: int, rule: Any) -> Mask:
    return np.array([[bool(rule(i, j)) for j in range(size)] for i in range(size)], bool).reshape(
        size, size
    )


def compositions(total: int, most: int) -> Iterator[tuple[int, ...]]:
    """All lists of at most that many numbers from 0 that add up to total or less."""
    for count in range(most + 1):
        for of in itertools.product(range(total + 1), repeat=count):
            if sum(of) <= total:
                yield of


def ids_of(lengths: Any, size: int) -> list[int]:
    ids = [n for n, length in enumerate(lengths) for _ in range(length)]
    return ids + [-1] * (size - len(ids))


# ---- documents -----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_documents_of_every_small_row(causal: bool) -> None:
    for lengths in compositions(5, 3):
        ids = ids_of(lengths, 5)

        def rule(i: int, j: int, ids: list[int] = ids) -> bool:
            return ids[i] == ids[j] >= 0 and (not causal or j <= i)

        want = pairwise(5, rule)
        assert (one(masks.documents(lengths, 5, causal=causal)) == want).all()
        assert (one(masks.document_ids(ids, causal=causal)) == want).all()


def test_documents_of_a_batch_of_long_rows() -> None:
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 40, n) for n in (3, 11, 7)]
    spans = masks.documents(rows)
    size = max(int(row.sum()) for row in rows)
    assert spans.shape == (3, 1, size, 2)
    ids = np.array([ids_of(row, size) for row in rows])
    i, j = np.arange(size)[:, None], np.arange(size)
    want = (ids[:, :, None] == ids[:, None]) & (ids[:, None] >= 0) & (j <= i)
    assert (masks.to_mask(spans, size)[:, 0] == want).all()
    assert (masks.document_ids(ids) == masks.documents(rows)).all()
    assert (masks.documents(np.array([[3, 2], [1, 4]])) == masks.documents([[3, 2], [1, 4]])).all()


def test_documents_refuse() -> None:
    with pytest.raises(ValueError, match="lengths of entry 1 add up to 9, seq is 8"):
        masks.documents([[8], [4, 5]], 8)
    with pytest.raises(ta.InvalidArgumentError, match="lengths of entry 0 have -2, below 0"):
        masks.documents([3, -2])
    with pytest.raises(ValueError, match="lengths is float64, not of a type of whole numbers"):
        masks.documents([1.5])
    with pytest.raises(ValueError, match="lengths is bool, not of a type"):
        masks.documents(np.ones(3, bool))
    with pytest.raises(ValueError, match="lengths has 3 dimensions, not 1 or 2"):
        masks.documents(np.ones((1, 1, 1), int))
    with pytest.raises(ValueError, match="lengths has both numbers and rows of numbers"):
        masks.documents([3, [4]])
    with pytest.raises(ValueError, match=r"lengths\[1\] has 2 dimensions, not 1"):
        masks.documents([[3], [[4]]])
    with pytest.raises(ValueError, match=r"seq is 1\.5, which is no whole number"):
        masks.documents([1], 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seq is -1; it may be 0 to 2147483647"):
        masks.documents([], -1)
    with pytest.raises(ValueError, match="the sum of lengths is 2147483648; it may be 0 to"):
        masks.documents([2**31])
    with pytest.raises(ValueError, match="lengths is object, not of a type of whole numbers"):
        masks.documents({})
    with pytest.raises(ValueError, match="lengths is a _NoArray, no array"):
        masks.documents(_NoArray())


class _NoArray:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError


def test_document_ids_refuse() -> None:
    with pytest.raises(ValueError, match="document 4 of entry 1 begins at position 0 and goes on"):
        masks.document_ids([[1, 1, 2], [4, 5, 4]])
    with pytest.raises(ValueError, match=r"ids have rows of lengths \[2, 1\]"):
        masks.document_ids([[1, 1], [2]])
    # Padding may stand anywhere.
    assert one(masks.document_ids([-1, 0, -1])).sum() == 1


# ---- trees ---------------------------------------------------------------------------------------


def depth_first(size: int) -> Iterator[tuple[int, ...]]:
    """The parents of every forest of that many segments, depth first."""

    def more(parents: tuple[int, ...], path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(parents) == size:
            yield parents
            return
        for n in range(len(path) + 1):
            parent = path[n - 1] if n else -1
            yield from more((*parents, parent), (*path[:n], len(parents)))

    yield from more((), ())


def tree_mask(parents: Any, lengths: Any, size: int) -> Mask:
    ids = ids_of(lengths, size)

    def sees(i: int, j: int) -> bool:
        at = ids[i]
        while at >= 0 and at != ids[j]:
            at = parents[at]
        return at >= 0 and j <= i

    return pairwise(size, sees)


def test_every_small_tree() -> None:
    count = 0
    for size in range(6):
        for parents in depth_first(size):
            count += 1
            want = tree_mask(parents, [1] * size, size)
            assert (one(masks.tree(parents)) == want).all(), parents
            lengths = [(3 * n + len(parents)) % 3 for n in range(size)]
            total = sum(lengths) + 1
            want = tree_mask(parents, lengths, total)
            assert (one(masks.tree(parents, lengths, total)) == want).all(), (parents, lengths)
    assert count == 1 + 1 + 2 + 5 + 14 + 42  # Catalan's numbers


def test_all_that_is_no_tree_is_refused() -> None:
    trees = set(depth_first(4))
    for parents in itertools.product(range(-1, 4), repeat=4):
        if parents in trees:
            masks.tree(parents)
            continue
        with pytest.raises(ValueError, match=r"a segment before it|depth first"):
            masks.tree(parents)


def random_tree(rng: Any, size: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """parents, lengths, and tin and tout of segments."""
    parents: list[int] = []
    path: list[int] = []
    for n in range(size):
        path = path[: int(rng.integers(0, len(path) + 1))]
        parents.append(path[-1] if path else -1)
        path.append(n)
    lengths = rng.integers(0, 9, size).tolist()
    last = list(range(1, size + 1))
    for n in reversed(range(size)):
        if parents[n] >= 0:
            last[parents[n]] = max(last[parents[n]], last[n])
    return parents, lengths, list(range(size)), last


def test_random_trees_by_parents_and_by_times() -> None:
    rng = np.random.default_rng(2)
    for size in (1, 5, 17, 30):
        parents, lengths, tin, tout = random_tree(rng, size)
        total = sum(lengths)
        want = tree_mask(parents, lengths, total)
        spans = masks.tree(parents, lengths)
        assert (one(spans) == want).all()
        enter, leave = np.repeat(tin, lengths), np.repeat(tout, lengths)
        i, j = np.arange(total)[:, None], np.arange(total)
        by_times = (enter[None] <= enter[:, None]) & (enter[:, None] < leave[None]) & (j <= i)
        assert (by_times == want).all()
        assert (one(masks.tree_times(enter, leave)) == want).all()


def test_trees_of_a_batch_differ_in_segments() -> None:
    parents, lengths = [[-1, 0, 0], [-1, 0, -1, 2, 2]], [[3, 2, 2], [1, 1, 2, 1, 1]]
    spans = masks.tree(parents, lengths, 8)
    assert spans.shape == (2, 1, 8, 2)
    for n in range(2):
        assert (one(spans[n : n + 1]) == tree_mask(parents[n], lengths[n], 8)).all()
    times = masks.tree_times([[0, 0, 1], [0, 1, 2]], [[2, 2, 2], [3, 3, 1]])
    assert times.tolist()[0] == [[[0, 3], [1, 3], [2, 3]]]
    assert times.tolist()[1] == [[[0, 3], [1, 3], [1, 1]]]  # the last key is seen by none


def test_trees_refuse() -> None:
    with pytest.raises(ValueError, match="parent of segment 1 of entry 0 is 1; it is -1"):
        masks.tree([-1, 1])
    with pytest.raises(ValueError, match="segment 3 of entry 1 does not follow its parent 1 depth"):
        masks.tree([[-1], [-1, 0, 0, 1]])
    with pytest.raises(ValueError, match="entry 0 has 2 parents and 1 lengths"):
        masks.tree([-1, 0], [3])
    with pytest.raises(ValueError, match="parents have 2 rows, lengths 1"):
        masks.tree([[-1], [-1]], [3])
    with pytest.raises(ValueError, match="lengths of entry 0 have -1, below 0"):
        masks.tree([-1, 0], [3, -1])
    with pytest.raises(ValueError, match="lengths of entry 0 add up to 5, seq is 4"):
        masks.tree([-1, 0], [3, 2], 4)
    with pytest.raises(ValueError, match="tin of entry 0 falls from 2 to 1 at position 2"):
        masks.tree_times([0, 2, 1], [3, 3, 3])
    with pytest.raises(ValueError, match="tin and tout have different shapes"):
        masks.tree_times([0, 2], [3, 3, 3])
    with pytest.raises(ValueError, match=r"tin has rows of lengths \[1, 2\]"):
        masks.tree_times([[0], [0, 1]], [[1], [2, 2]])


# ---- prefixes, images, windows, global tokens ----------------------------------------------------


def test_prefix() -> None:
    for size in range(6):
        for length in range(size + 1):
            want = pairwise(size, lambda i, j, p=length: j <= i or j < p)
            assert (one(masks.prefix(length, size)) == want).all()
    spans = masks.prefix([2, 0], 4)
    assert (spans[:1] == masks.prefix(2, 4)).all()
    assert (spans[1:] == masks.prefix(0, 4)).all()
    with pytest.raises(ValueError, match="the prefix of entry 1 is 5 long; it may be 0 to 4"):
        masks.prefix([1, 5], 4)
    with pytest.raises(ValueError, match="the prefix of entry 0 is -1 long"):
        masks.prefix(-1, 4)
    with pytest.raises(ValueError, match="lengths has 2 dimensions, not 1"):
        masks.prefix([[1]], 4)


def test_every_pair_of_images() -> None:
    size = 5
    every = [(a, b) for a in range(size + 1) for b in range(a, size + 1)]
    for images in [(), *itertools.product(every, repeat=1), *itertools.product(every, repeat=2)]:

        def rule(i: int, j: int, images: Any = images) -> bool:
            return j <= i or any(a <= i < b and a <= j < b for a, b in images)

        assert (one(masks.image_spans(size, images)) == pairwise(size, rule)).all(), images


def test_images_of_a_batch() -> None:
    spans = masks.image_spans(6, [[], [(1, 3)], [(0, 2), (4, 6)]])
    assert spans.shape == (3, 1, 6, 2)
    for n, images in enumerate(([], [(1, 3)], [(0, 2), (4, 6)])):
        assert (spans[n : n + 1] == masks.image_spans(6, images)).all()
    assert (masks.image_spans(6, np.array([[[1, 3]]])) == spans[1:2]).all()
    assert (masks.image_spans(6, np.array([[1, 3]])) == spans[1:2]).all()


def test_images_refuse() -> None:
    with pytest.raises(ValueError, match=r"an image of entry 1 is \(2, 7\), which does not lie"):
        masks.image_spans(6, [[(0, 1)], [(2, 7)]])
    with pytest.raises(ValueError, match=r"an image of entry 0 is \(3, 2\)"):
        masks.image_spans(6, [(3, 2)])
    with pytest.raises(ValueError, match=r"images of entry 0 have the shape \[1, 3\]"):
        masks.image_spans(6, [[(0, 1, 2)]])
    with pytest.raises(ValueError, match="images has 1 dimensions, not 2 or 3"):
        masks.image_spans(6, np.array([1, 2]))


BANDS = [(None, None), (-1, 0), (0, 0), (2, 0), (1, 3), (None, 1), (9, 9), (2**40, 2**40)]


@pytest.mark.parametrize("window", BANDS)
def test_windows_in_documents(window: Any) -> None:
    left, right = (10**9 if w is None or w < 0 else w for w in window)
    for lengths in compositions(6, 3):
        ids = ids_of(lengths, 6)

        def rule(i: int, j: int, ids: list[int] = ids) -> bool:
            return ids[i] == ids[j] >= 0 and i - left <= j <= i + right

        assert (one(masks.windows(window, lengths, 6)) == pairwise(6, rule)).all(), lengths


def test_windows_refuse() -> None:
    with pytest.raises(ValueError, match=r"window is \(left, right\) or None, not 4"):
        masks.windows(4, [3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"window\[1\] is 0.5, which is no whole number"):
        masks.windows((3, 0.5), [3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"window\[0\] is -2; it may be -1"):
        masks.windows((-2, 0), [3])
    assert (masks.windows(None, [2, 3]) == masks.documents([2, 3], causal=False)).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", BANDS)
def test_global_tokens(window: Any, causal: bool) -> None:
    left, right = (10**9 if w is None or w < 0 else w for w in window)
    size, refused = 6, 0
    for tokens in itertools.chain.from_iterable(
        itertools.combinations(range(size), n) for n in range(4)
    ):
        for rows in (False, True):

            def rule(i: int, j: int, tokens: Any = tokens, rows: bool = rows) -> bool:
                near = i - left <= j <= i + right
                wide = j in tokens or (rows and i in tokens)
                return (near or wide) and (not causal or j <= i)

            want = pairwise(size, rule)
            if max(runs(column) for column in want.T) > 2:
                with pytest.raises(ValueError, match=r"in [34] intervals"):
                    masks.global_tokens(size, tokens, window, causal=causal, rows=rows)
                refused += 1
                continue
            spans = masks.global_tokens(size, tokens, window, causal=causal, rows=rows)
            assert (one(spans, 4 if rows else 2) == want).all(), (tokens, rows)
    if window == (0, 0):
        assert refused
    if min(left, right) >= size:
        assert not refused


def test_global_tokens_of_a_batch_and_refusals() -> None:
    spans = masks.global_tokens(7, [[0], [], [3, 4]], (1, 1), causal=False, rows=True)
    assert spans.shape == (3, 1, 7, 4)
    for n, tokens in enumerate(([0], [], [3, 4])):
        alone = masks.global_tokens(7, tokens, (1, 1), causal=False, rows=True)
        assert (alone == spans[n : n + 1]).all()
    with pytest.raises(ValueError, match="tokens of entry 1 have 7, which does not lie in 0 to 7"):
        masks.global_tokens(7, [[0], [7]])
    with pytest.raises(ValueError, match="key 4 of entry 1, head 0, is seen by rows 0 to 0, 2 to 2,"
                       " 4 to 4, in 3 intervals"):  # fmt: skip
        masks.global_tokens(5, [[0], [0, 2]], (0, 0), causal=False, rows=True)


# ---- masks and spans -----------------------------------------------------------------------------


def test_from_mask_of_every_column() -> None:
    for rows in range(1, 8):
        columns = np.array(list(itertools.product([False, True], repeat=rows)), bool)
        for column in columns:
            mask = column[:, None]
            count = runs(column)
            if count > 2:
                with pytest.raises(ValueError, match=f"in {count} intervals"):
                    masks.from_mask(mask)
                continue
            spans = masks.from_mask(mask)
            assert spans.shape == (1, 1, 1, 4 if count > 1 else 2)
            assert (shown(spans, rows)[0, 0] == mask).all()


def test_from_mask_and_back_at_random() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        batch, heads, rows, keys = rng.integers(1, 9, 4).tolist()
        edges = np.sort(rng.integers(0, rows + 1, (batch, heads, keys, 4)), -1)
        i = np.arange(rows)[:, None]
        a, b, c, d = (edges[:, :, None, :, n] for n in range(4))
        mask = ((a <= i) & (i < b)) | ((c <= i) & (i < d))
        spans = masks.from_mask(mask)
        assert (shown(spans, rows) == mask).all()
        assert (masks.to_mask(spans, rows) == mask).all()
        assert (masks.from_mask(mask[0]) == masks.from_mask(mask[0][:, None])).all()


def test_from_mask_refuses() -> None:
    mask = np.ones((2, 3, 9, 20), bool)
    mask[1, 2, 4:8:2, 17] = False
    said = "this mask is none of one or two intervals a key: key 17 of entry 1, head 2, is seen by"
    with pytest.raises(ValueError, match=f"^{said} rows 0 to 3, 5 to 5, 7 to 8, in 3 intervals$"):
        masks.from_mask(mask)
    with pytest.raises(ValueError, match=r"0 to 0, 2 to 2, 4 to 4, 6 to 6, \.\.\., in 5 intervals"):
        masks.from_mask((np.arange(9) % 2 == 0)[:, None])
    with pytest.raises(ValueError, match="mask is int64, not bool"):
        masks.from_mask(np.ones((2, 2), np.int64))
    with pytest.raises(ValueError, match="mask has 1 dimensions, not 2, 3 or 4"):
        masks.from_mask(np.ones(2, bool))


def test_to_mask_clamps_and_refuses() -> None:
    low, high = -(2**31), 2**31 - 1
    spans = np.array([[low, high], [3, 1], [high, low], [-5, 2], [2, high]], np.int32)[None, None]
    assert (masks.to_mask(spans, 4) == shown(spans, 4)).all()
    assert masks.to_mask(spans, 4)[0, 0].sum(0).tolist() == [4, 0, 0, 2, 2]
    with pytest.raises(ValueError, match=r"spans has the shape \[1, 5, 2\], not \[batch, heads"):
        masks.to_mask(spans[0], 4)
    with pytest.raises(ValueError, match=r"spans has the shape \[1, 1, 5, 1\]"):
        masks.to_mask(spans[..., :1], 4)
    with pytest.raises(ValueError, match="seq_q is -1"):
        masks.to_mask(spans, -1)


@pytest.mark.parametrize("name", ["intersect", "union"])
def test_both_of_two_at_random(name: str) -> None:
    rng = np.random.default_rng(4)
    refused = 0
    for _ in range(400):
        rows, keys = rng.integers(1, 9, 2).tolist()
        size_a, size_b = (int(rng.choice([2, 4])) for _ in "ab")
        low, high = -2, rows + 3
        a = rng.integers(low, high, (2, 1, keys, size_a)).astype(np.int32)
        b = rng.integers(low, high, (4, 3, keys, size_b)).astype(np.int32)
        if rng.random() < 0.5:
            a, b = b, a
        far = 20  # rows behind the last one count as intervals, too: masks knows no Sq
        x, y = (shown(s, far).repeat(4 // s.shape[0], 0).repeat(3 // s.shape[1], 1) for s in (a, b))
        want = x & y if name == "intersect" else x | y
        if max(runs(want[n, h, :, j]) for n, h, j in np.ndindex(4, 3, keys)) > 2:
            with pytest.raises(ValueError, match=r"in [34] intervals"):
                getattr(masks, name)(a, b)
            refused += 1
            continue
        both = getattr(masks, name)(a, b)
        assert (shown(both, far) == want).all()
        assert both.shape == (4, 3, keys, both.shape[3])
    assert 0 < refused < 350


def test_intersect_as_models_have_it() -> None:
    tree = masks.tree([-1, 0, 0], [4, 3, 3])
    window = masks.windows((2, 0), [10])
    both = masks.intersect(tree, window)
    want = masks.to_mask(tree, 10) & masks.to_mask(window, 10)
    assert both.shape == (1, 1, 10, 2)
    assert (masks.to_mask(both, 10) == want).all()


def test_numbers_beyond_int32_are_clamped() -> None:
    every = np.array([[[[0, 2**40]]]])
    assert masks.union(every, np.array([[[[3, 5]]]])).tolist() == [[[[0, 2**31 - 1]]]]
    assert masks.intersect(every, every).tolist() == [[[[0, 2**31 - 1]]]]
    huge = np.array([[[[1, 2**64 - 1]]]], np.uint64)
    assert masks.intersect(every, huge).tolist() == [[[[1, 2**31 - 1]]]]


def test_intersect_refuses() -> None:
    a, b = masks.documents([3]), masks.documents([4])
    with pytest.raises(ValueError, match="a has 3 keys, b 4"):
        masks.intersect(a, b)
    with pytest.raises(ValueError, match="a has 2 batch entries, b 3: none is a multiple"):
        masks.intersect(a.repeat(2, 0), a.repeat(3, 0))
    with pytest.raises(ValueError, match="a has 2 heads, b 3: none is a multiple"):
        masks.union(a.repeat(2, 1), a.repeat(3, 1))
    with pytest.raises(ValueError, match=r"b has the shape \[3, 2\]"):
        masks.intersect(a, a[0, 0])
    three = np.array([[0, 2, 4, 9]], np.int32)[None, None]
    gaps = np.array([[1, 6, 7, 8]], np.int32)[None, None]
    with pytest.raises(ValueError, match="key 0 of entry 0, head 0, is seen by rows 1 to 1, 4 to 5,"
                       " 7 to 7, in 3 intervals"):  # fmt: skip
        masks.intersect(three, gaps)


# ---- FlashMask -----------------------------------------------------------------------------------


def hidden(rows: Mask, causal: bool) -> Mask:
    """What FlashMask's indices show, as Paddle's documentation says it, column by column."""
    batch, heads, size, numbers = rows.shape
    mask = np.ones((batch, heads, size, size), bool)
    for b, h, j in np.ndindex(batch, heads, size):
        of = rows[b, h, j].tolist()
        if causal:
            mask[b, h, :j, j] = False
            mask[b, h, of[0] : (of[1] if numbers == 2 else size), j] = False
        elif numbers == 2:
            mask[b, h, of[0] :, j] = False
            mask[b, h, : of[1], j] = False
        else:
            mask[b, h, of[0] : of[1], j] = False
            mask[b, h, of[2] : of[3], j] = False
    return mask


@pytest.mark.parametrize(("causal", "numbers"), [(True, 1), (True, 2), (False, 2), (False, 4)])
def test_flashmask_at_random(causal: bool, numbers: int) -> None:
    rng = np.random.default_rng(numbers + causal)
    refused = 0
    for _ in range(300):
        size = int(rng.integers(1, 9))
        rows = rng.integers(0, size + 1, (2, 2, size, numbers)).astype(np.int32)
        want = hidden(rows, causal)
        if max(runs(want[b, h, :, j]) for b, h, j in np.ndindex(2, 2, size)) > 2:
            with pytest.raises(ValueError, match="in 3 intervals"):
                masks.flashmask(rows, causal=causal)
            refused += 1
            continue
        spans = masks.flashmask(rows, causal=causal)
        assert (shown(spans, size) == want).all()
    assert bool(refused) == (numbers == 4)


def test_flashmask_of_windows() -> None:
    """As Paddle itself makes indices of window_size."""
    j = np.arange(9)
    for left, right in ((0, 0), (2, 0), (3, 1), (20, 20)):
        rows = np.stack([j + left + 1, j - right], -1).clip(0, 9)[None, None]
        want = masks.to_mask(masks.windows((left, right), [9]), 9)
        assert (masks.to_mask(masks.flashmask(rows, causal=False), 9) == want).all()
        want = masks.to_mask(masks.windows((left, 0), [9]), 9)
        assert (masks.to_mask(masks.flashmask(rows[..., :1], causal=True), 9) == want).all()


def test_flashmask_refuses() -> None:
    rows = np.zeros((1, 1, 5, 4), np.int32)
    with pytest.raises(ValueError, match=r"the shape \[1, 1, 5, 4\]; with causal=True it is"):
        masks.flashmask(rows, causal=True)
    with pytest.raises(ValueError, match=r"with causal=False it is \[batch, heads, S, 2 or 4\]"):
        masks.flashmask(rows[..., :1], causal=False)
    with pytest.raises(ValueError, match="startend_row_indices is float64, not of a type"):
        masks.flashmask(rows.astype(float), causal=False)


# ---- arrays of others ----------------------------------------------------------------------------


class _DLPack:
    """An array of which __dlpack__ alone is known."""

    def __init__(self, array: Mask) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_arrays_of_any_whole_numbers(dtype: Any) -> None:
    lengths = np.array([3, 2], dtype)
    want = masks.documents([3, 2])
    assert (masks.documents(lengths) == want).all()
    assert (masks.documents(_DLPack(lengths)) == want).all()
    assert (masks.documents([lengths, lengths])[1:] == want).all()


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    cpu = torch.device("cpu")
    lengths = torch.tensor([3, 2], device=cpu)
    assert (masks.documents(lengths) == masks.documents([3, 2])).all()
    assert (masks.tree([lengths * 0 - 1], [lengths]) == masks.tree([-1, -1], [3, 2])).all()
    mask = torch.ones(3, 3, dtype=torch.bool, device=cpu).tril()
    assert (masks.from_mask(mask) == masks.documents([3])).all()
    assert torch.from_numpy(masks.documents(lengths)).is_contiguous()


def test_empty() -> None:
    assert masks.documents([]).shape == (1, 1, 0, 2)
    assert masks.tree([]).shape == (1, 1, 0, 2)
    assert masks.global_tokens(0, []).shape == (1, 1, 0, 2)
    assert masks.image_spans(0, []).shape == (1, 1, 0, 2)
    assert masks.from_mask(np.ones((0, 3), bool)).tolist() == [[[[0, 0]] * 3]]
    assert masks.from_mask(np.ones((2, 0), bool)).shape == (1, 1, 0, 2)
    assert masks.to_mask(masks.documents([]), 0).shape == (1, 1, 0, 0)
    none = np.zeros((0, 1, 5, 2), np.int32)
    assert masks.intersect(none, none).shape == (0, 1, 5, 2)
