# SPDX-License-Identifier: MIT OR Apache-2.0
"""drop_in.flash_attn against its definition in float64."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from tandem_attention import InvalidArgumentError, UnsupportedError  # noqa: E402
from tandem_attention.drop_in.flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

INF = float("inf")


def rand(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def reference(q, k, v, *, scale=None, causal=False, window=(-1, -1), softcap=0.0, slopes=None,
              keep=None, weights=None):  # fmt: skip
    """(o, lse, y) of [B, S, H, D]; weights in place of softmax's where given."""
    g = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(g, 2), v.repeat_interleave(g, 2)
    rows, keys = q.shape[1], k.shape[1]
    s = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    t = torch.arange(rows)[:, None] + keys - rows - torch.arange(keys)
    if slopes is not None:
        slopes = slopes.double()
        s = s - (slopes if slopes.dim() == 2 else slopes[None])[:, :, None, None] * t.abs()
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        seen &= t >= 0
    if window[0] >= 0:
        seen &= t <= window[0]
    if window[1] >= 0:
        seen &= t >= -window[1]
    if keep is not None:
        seen = seen & keep[:, None, None]
    s = s.masked_fill(~seen, -INF)
    lse = s.logsumexp(-1)
    lse = lse.masked_fill(lse == -INF, INF)
    y = (s - lse[..., None]).exp()
    o = torch.einsum("bhij,bjhd->bihd", y if weights is None else weights, v)
    return o, lse, y


def check(got, ours, want, exact, tolerance=3e-5):
    """Outputs and gradients of lists of tensors."""
    d_o = rand(*want.shape, seed=7)
    got_d = torch.autograd.grad(got, ours, d_o.to(got.dtype))
    want_d = torch.autograd.grad(want, exact, d_o.double())
    for g, w in zip((got, *got_d), (want, *want_d), strict=True):
        torch.testing.assert_close(g.double(), w, atol=tolerance, rtol=tolerance)


def inputs(*shapes, dtype=torch.float32):
    ours = [rand(*s, seed=n, dtype=dtype).requires_grad_() for n, s in enumerate(shapes)]
    return ours, [t.detach().double().requires_grad_() for t in ours]


OPTIONS = [
    {},
    {"causal": True},
    {"softmax_scale": 0.3},
    {"window_size": (4, 2)},
    {"window_size": (3, 0), "causal": True},
    # With causal, the right side of the window does not count.
    {"window_size": (3, 5), "causal": True},
    {"softcap": 1.5},
    {"alibi_slopes": torch.tensor([0.1, 0.5, 0.0, 1.0])},
    {"alibi_slopes": torch.tensor([0.1, 0.5, 0.0, 1.0]), "causal": True, "softcap": 2.0},
    {"alibi_slopes": rand(2, 4).abs(), "causal": True, "window_size": (6, -1)},
    {"alibi_slopes": rand(1, 4).abs().expand(2, 4)},
    {"deterministic": True},
]


def in_reference(options):
    names = {"softmax_scale": "scale", "window_size": "window", "alibi_slopes": "slopes"}
    made = {names.get(n, n): v for n, v in options.items() if n != "deterministic"}
    if made.get("causal") and "window" in made:
        made["window"] = (made["window"][0], -1)
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("sizes", [(9, 9), (5, 12), (12, 5)], ids=str)
def test_dense(options, sizes):
    rows, keys = sizes
    ours, exact = inputs((2, rows, 4, 8), (2, keys, 2, 8), (2, keys, 2, 8))
    if "window_size" in options:
        # Windows that reach over all keys have tests of their own.
        window = tuple(min(n, keys - 1) for n in options["window_size"])
        options = {**options, "window_size": window}
    got, lse, dmask = flash_attn_func(*ours, **options, return_attn_probs=True)
    want, want_lse, _ = reference(*exact, **in_reference(options))
    check(got, ours, want, exact)
    torch.testing.assert_close(lse.double(), want_lse, atol=2e-5, rtol=2e-5)
    assert dmask.numel() == 0
    assert torch.equal(got, flash_attn_func(*ours, **options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    ours, exact = inputs((2, 9, 4, 16), (2, 11, 2, 16), (2, 11, 2, 16), dtype=dtype)
    got = flash_attn_func(*ours, causal=True)
    assert got.dtype == dtype
    want, _, _ = reference(*exact, causal=True)
    check(got, ours, want, exact, 5e-3 if dtype == torch.float16 else 5e-2)


def test_windows_that_reach_over_all_keys():
    q, k, v = rand(1, 20, 2, 8), rand(1, 6, 2, 8), rand(1, 6, 2, 8)
    plain = flash_attn_func(q, k, v)
    # Both sides from Sk on are unbounded, though by definition row 0 would see no key up to 13.
    assert torch.equal(flash_attn_func(q, k, v, window_size=(6, 6)), plain)
    assert torch.equal(flash_attn_func(q, k, v, window_size=(100, -1)), plain)
    assert not torch.equal(flash_attn_func(q, k, v, window_size=(5, 5)), plain)
    # Beside a bounded left side, an unbounded right one counts as Sk: rows before 14 - 6 are empty.
    o, lse, _ = flash_attn_func(q, k, v, window_size=(5, -1), return_attn_probs=True)
    want, want_lse, _ = reference(q.double(), k.double(), v.double(), window=(5, 6))
    torch.testing.assert_close(o.double(), want, atol=1e-5, rtol=1e-5)
    assert torch.equal(lse.isinf(), want_lse.isinf())
    assert lse[0, 0, :8].isinf().all()


def test_rows_without_keys():
    ours, exact = inputs((1, 7, 2, 8), (1, 3, 2, 8), (1, 3, 2, 8))
    o, lse, _ = flash_attn_func(*ours, causal=True, return_attn_probs=True)
    assert torch.equal(o[:, :4], torch.zeros(1, 4, 2, 8))
    assert (lse[:, :, :4] == INF).all()
    assert lse[:, :, 4:].isfinite().all()
    want, _, _ = reference(*exact, causal=True)
    check(o, ours, want, exact)


def test_packed_inputs_give_the_gradient_of_the_whole():
    qkv = rand(2, 9, 3, 4, 8).requires_grad_()
    kv = rand(2, 9, 2, 2, 8).requires_grad_()
    q = rand(2, 5, 4, 8).requires_grad_()
    d_qkv = torch.autograd.grad(flash_attn_qkvpacked_func(qkv, causal=True).square().sum(), qkv)[0]
    parts = [t.detach().clone().requires_grad_() for t in qkv.unbind(2)]
    want = torch.autograd.grad(flash_attn_func(*parts, causal=True).square().sum(), parts)
    assert torch.equal(d_qkv, torch.stack(want, 2))
    got = flash_attn_kvpacked_func(q, kv, window_size=(2, 2))
    assert torch.equal(got, flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], window_size=(2, 2)))
    for bad in (kv, qkv[0]):
        with pytest.raises(InvalidArgumentError, match="third from the right"):
            flash_attn_qkvpacked_func(bad)


CU_Q = torch.tensor([0, 6, 6, 17, 20], dtype=torch.int32)
CU_K = torch.tensor([0, 9, 12, 19, 19], dtype=torch.int32)


def varlen_reference(q, k, v, **options):
    slopes = options.pop("slopes", None)
    outs, lses = [], []
    for b in range(4):
        i, j = slice(CU_Q[b], CU_Q[b + 1]), slice(CU_K[b], CU_K[b + 1])
        own = slopes if slopes is None or slopes.dim() == 1 else slopes[b]
        o, lse, _ = reference(q[None, i], k[None, j], v[None, j], slopes=own, **options)
        outs.append(o[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, 1)


@pytest.mark.parametrize("options", [
    {}, {"causal": True}, {"window_size": (4, 3)}, {"softcap": 1.5, "causal": True},
    {"alibi_slopes": torch.tensor([0.1, 0.5, 0.0, 1.0])}, {"alibi_slopes": rand(4, 4).abs()},
], ids=lambda o: "-".join(o) or "plain")  # fmt: skip
def test_varlen(options):
    """Among the sequences are one without queries and one without keys."""
    ours, exact = inputs((20, 4, 8), (19, 2, 8), (19, 2, 8))
    got, lse, _ = flash_attn_varlen_func(
        *ours, CU_Q, CU_K, 11, 9, **options, return_attn_probs=True
    )
    want, want_lse = varlen_reference(*exact, **in_reference(options))
    check(got, ours, want, exact)
    assert lse.shape == (4, 20)
    torch.testing.assert_close(lse.double(), want_lse, atol=2e-5, rtol=2e-5)


def test_varlen_packed_inputs():
    qkv, kv, q = rand(20, 3, 4, 8), rand(19, 2, 2, 8), rand(20, 4, 8)
    want = flash_attn_varlen_func(*qkv.unbind(1), CU_Q, CU_Q, 11, 11, causal=True)
    assert torch.equal(flash_attn_varlen_qkvpacked_func(qkv, CU_Q, 11, causal=True), want)
    want = flash_attn_varlen_func(q, *kv.unbind(1), CU_Q, CU_K, 11, 9, softmax_scale=0.2)
    got = flash_attn_varlen_kvpacked_func(q, kv, CU_Q, CU_K, 11, 9, softmax_scale=0.2)
    assert torch.equal(got, want)


def test_varlen_rows_behind_the_last_sequence():
    q, k, v = rand(25, 4, 8), rand(19, 2, 8), rand(19, 2, 8)
    for slopes in (None, rand(4, 4).abs()):
        o, lse, _ = flash_attn_varlen_func(
            q, k, v, CU_Q, CU_K, 11, 9, alibi_slopes=slopes, return_attn_probs=True
        )
        assert o.shape == (25, 4, 8)
        assert (lse[:, 20:] == INF).all()
        want, _ = varlen_reference(q.double(), k.double(), v.double(), slopes=slopes)
        torch.testing.assert_close(o[:20].double(), want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("rows", [(0, 0), (0, 5), (4, 0)])
def test_batches_without_rows(batch, rows):
    """Rows of no sequence are there, or none at all; the longest sequence is said to have 3."""
    offsets = torch.zeros(batch + 1, dtype=torch.int32)
    for slopes in (None, rand(4), rand(batch, 4)):
        q, k = (rand(n, 4, 8).requires_grad_() for n in rows)
        for dropout_p in (0.0, 0.5):
            o, lse, _ = flash_attn_varlen_func(
                q, k, k, offsets, offsets, 3, 3, dropout_p, alibi_slopes=slopes,
                return_attn_probs=True,
            )  # fmt: skip
            assert o.shape == q.shape
            assert lse.shape == (4, rows[0])
            assert (lse == INF).all()
            for t, d in zip(
                (q, k), torch.autograd.grad(o, (q, k), torch.zeros_like(o)), strict=False
            ):
                assert d.shape == t.shape
        q, k = (rand(batch, n, 4, 8).requires_grad_() for n in rows)
        for dropout_p in (0.0, 0.5):
            o, _, dmask = flash_attn_func(
                q, k, k, dropout_p, alibi_slopes=slopes, return_attn_probs=True
            )
            assert (o == 0).all()
            assert dmask.numel() == 0
            for d in torch.autograd.grad(o.sum(), (q, k)):
                assert (d == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_longer_sequences_are_cut(causal):
    """At max_seqlen, whether batch entries have slopes of their own or not. Keys are, too."""
    q, k, v = (rand(t, h, 8, seed=t).requires_grad_() for t, h in ((12, 4), (16, 2), (16, 2)))
    cu_q, cu_k = torch.tensor([0, 7, 10]), torch.tensor([0, 9, 15])  # and rows of none
    slopes = rand(2, 4).abs()
    got, lse, _ = flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, 4, 6, causal=causal, alibi_slopes=slopes, return_attn_probs=True
    )
    d_o = rand(12, 4, 8, seed=9)
    got_d = torch.autograd.grad(got, (q, k, v), d_o)
    for b, (q0, q1, k0, k1) in enumerate(((0, 4, 0, 6), (7, 10, 9, 15))):
        exact = [t.detach()[None, m:n].double().requires_grad_()
                 for t, m, n in ((q, q0, q1), (k, k0, k1), (v, k0, k1))]  # fmt: skip
        want, want_lse, _ = reference(*exact, causal=causal, slopes=slopes[b])
        torch.testing.assert_close(got[None, q0:q1].double(), want, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(lse[:, q0:q1].double(), want_lse[0], atol=2e-5, rtol=2e-5)
        want_d = torch.autograd.grad(want, exact, d_o[None, q0:q1].double())
        for g, w, m, n in zip(got_d, want_d, (q0, k0, k0), (q1, k1, k1), strict=True):
            torch.testing.assert_close(g[m:n].double(), w[0], atol=3e-5, rtol=3e-5)
    assert (lse[:, 4:7] == INF).all()
    assert (lse[:, 10:] == INF).all()
    _, _, dmask = flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, 4, 6, 0.5, causal=causal, alibi_slopes=slopes, return_attn_probs=True
    )
    assert dmask.shape == (2, 4, 4, 6)


def test_slopes_of_each_entry_read_offsets_as_all_slopes_do():
    """Those beside the total, and rows before the first sequence, too."""
    q, k = rand(7, 4, 8), rand(9, 2, 8)
    slopes = rand(4).abs()
    for cu_q, cu_k in (([0, 3, 7], [0, 4, 20]), ([2, 5, 7], [0, 4, 9]), ([0, 3, 7], [-2, 4, 9])):
        cu_q, cu_k = torch.tensor(cu_q), torch.tensor(cu_k)
        each, one = (
            flash_attn_varlen_func(
                q, k, k, cu_q, cu_k, 4, 9, causal=True, alibi_slopes=s, return_attn_probs=True
            )
            for s in (slopes.repeat(2, 1), slopes)
        )
        rows = slice(int(cu_q[0]), 7)
        torch.testing.assert_close(each[0][rows], one[0][rows])
        torch.testing.assert_close(each[1], one[1])
        assert each[0].shape == q.shape


def test_wrong_packed_arguments():
    q, k, at = rand(7, 4, 8), rand(9, 2, 8), torch.tensor([0, 3, 7])
    for change, sentence in (
        ({"q": None}, "q is a NoneType"),
        ({"cu_seqlens_q": [0, 3, 7]}, "cu_seqlens_q is a list"),
        ({"cu_seqlens_k": torch.tensor(3)}, r"cu_seqlens_k is \[\], not"),
        ({"cu_seqlens_k": at.float()}, "cu_seqlens_k is float32"),
        ({"cu_seqlens_q": torch.tensor([0, 5, 3]), "alibi_slopes": torch.ones(2, 4) * at[:2, None]},
         "cu_seqlens_q goes down, from 5 to 3"),
        ({"alibi_slopes": [1.0] * 4}, "alibi_slopes is a list"),
        ({"window_size": None}, r"window_size is None, not \(left, right\)"),
    ):  # fmt: skip
        given = {"q": q, "k": k, "v": k, "cu_seqlens_q": at, "cu_seqlens_k": at, **change}
        with pytest.raises(InvalidArgumentError, match=sentence):
            flash_attn_varlen_func(**given, max_seqlen_q=4, max_seqlen_k=4)


def paged(t, page, seed=0):
    """[B, S, H, D] as (pages in a random order, table), with unused entries out of range."""
    batch, keys = t.shape[:2]
    count = -(-keys // page)
    whole = torch.nn.functional.pad(t, (0, 0, 0, 0, 0, count * page - keys))
    blocks = whole.reshape(batch * count, page, *t.shape[2:])
    order = torch.randperm(
        batch * count, generator=torch.Generator(torch.get_default_device()).manual_seed(seed)
    )
    table = order.argsort().reshape(batch, count).to(torch.int32)
    unused = torch.full((batch, 2), -1, dtype=torch.int32)
    return blocks[order].clone(), torch.cat((table, unused), 1)


def test_varlen_with_pages():
    k, v = rand(4, 9, 2, 8), rand(4, 9, 2, 8, seed=1)
    lengths = CU_K.diff()
    flat = [torch.cat([t[b, : lengths[b]] for b in range(4)]) for t in (k, v)]
    q = rand(20, 4, 8)
    want = flash_attn_varlen_func(q, *flat, CU_Q, CU_K, 11, 9, causal=True)
    (pages_k, table), (pages_v, _) = paged(k, 4), paged(v, 4)
    got = flash_attn_varlen_func(
        q, pages_k, pages_v, CU_Q, CU_K, 11, 9, causal=True, block_table=table
    )
    torch.testing.assert_close(got, want)
    _, _, dmask = flash_attn_varlen_func(
        q, pages_k, pages_v, CU_Q, CU_K, 11, 9, 0.5, block_table=table, return_attn_probs=True
    )
    assert dmask.shape == (4, 4, 11, 9)


@pytest.mark.parametrize("slopes", [None, rand(2, 4).abs()], ids=["plain", "alibi"])
@pytest.mark.parametrize("layout", ["dense", "varlen"])
def test_dropout(slopes, layout):
    """S_dmask is the very mask of the forward and the backward."""
    p, keys = 0.3, 300
    options = {"causal": True, "alibi_slopes": slopes, "return_attn_probs": True}
    ours, exact = inputs((2, 40, 4, 8), (2, keys, 2, 8), (2, keys, 2, 8))
    torch.manual_seed(3)
    if layout == "dense":
        got, _, dmask = flash_attn_func(*ours, p, **options)
    else:
        cu_q, cu_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (40, keys))
        flat = [t.flatten(0, 1) for t in ours]
        got, _, dmask = flash_attn_varlen_func(*flat, cu_q, cu_k, 40, keys, p, **options)
        got = got.unflatten(0, (2, 40))
    assert dmask.shape == (2, 4, 40, keys)
    _, _, y = reference(*exact, causal=True, slopes=slopes)
    torch.testing.assert_close(dmask.abs().double(), y, atol=1e-5, rtol=1e-5)
    dropped = (dmask < 0).sum() / (dmask != 0).sum()
    assert abs(dropped.item() - p) < 0.02
    weights = torch.where(dmask < 0, 0.0, y / (1 - p))
    want, _, _ = reference(*exact, causal=True, slopes=slopes, weights=weights)
    check(got, ours, want, exact)
    again = flash_attn_func(*ours, p, causal=True)
    assert not torch.equal(again, flash_attn_func(*ours, p, causal=True))


# ---- the cache -----------------------------------------------------------------------------------


def cache_case(page=None):
    k, v = rand(3, 16, 2, 8), rand(3, 16, 2, 8, seed=1)
    return rand(3, 4, 4, 8, seed=2), k, v, torch.tensor([9, 0, 12], dtype=torch.int32)


def cache_reference(q, k, v, lengths, leftpad=None, **options):
    """Each batch entry with the keys that it has."""
    outs, lses = [], []
    for b, n in enumerate(lengths.tolist()):
        first = 0 if leftpad is None else int(leftpad[b])
        rows = slice(first, n)
        o, lse, _ = reference(
            q[b : b + 1].double(), k[b : b + 1, rows].double(), v[b : b + 1, rows].double(),
            **options,
        )  # fmt: skip
        outs.append(o)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (5, 1)}], ids=str)
@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("new", [0, 3, 4])
def test_cache(options, page, new):
    q, k_cache, v_cache, lengths = cache_case()
    k, v = (rand(3, new, 2, 8, seed=n) for n in (5, 6))
    want_k, want_v = k_cache.clone(), v_cache.clone()
    for b in range(3):
        rows = slice(int(lengths[b]), int(lengths[b]) + new)
        want_k[b, rows], want_v[b, rows] = k[b], v[b]
    table = None
    if page:
        (k_cache, table), (v_cache, _) = paged(k_cache, page), paged(v_cache, page)
    got, lse = flash_attn_with_kvcache(
        q, k_cache, v_cache, k if new else None, v if new else None, cache_seqlens=lengths,
        causal=options.get("causal", False), window_size=options.get("window", (-1, -1)),
        block_table=table, return_softmax_lse=True,
    )  # fmt: skip
    if page:
        k_cache, v_cache = (t[table[:, :4].long()].flatten(1, 2) for t in (k_cache, v_cache))
    assert torch.equal(k_cache, want_k)
    assert torch.equal(v_cache, want_v)
    want, want_lse = cache_reference(q, want_k, want_v, lengths + new, **options)
    torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(lse.double(), want_lse, atol=2e-5, rtol=2e-5)


def test_cache_entries_left_padding_and_slopes():
    q, k_cache, v_cache, lengths = cache_case()
    index = torch.tensor([2, 2, 0], dtype=torch.int32)
    chosen = [t[index.long()] for t in (k_cache, v_cache)]
    got = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, cache_batch_idx=index)
    want, _ = cache_reference(q, *chosen, lengths)
    torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=2e-5)

    pad = torch.tensor([3, 0, 11], dtype=torch.int32)
    slopes = rand(3, 4).abs()
    got = flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=lengths, cache_leftpad=pad, causal=True,
        alibi_slopes=slopes,
    )  # fmt: skip
    for b in range(3):
        want, _ = cache_reference(
            q[b : b + 1], k_cache[b : b + 1], v_cache[b : b + 1], lengths[b : b + 1],
            pad[b : b + 1], causal=True, slopes=slopes[b : b + 1],
        )  # fmt: skip
        torch.testing.assert_close(got[b : b + 1].double(), want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_cache_with_rotary_embedding(interleaved, causal):
    q, k_cache, v_cache, lengths = cache_case()
    k, v = rand(3, 4, 2, 8, seed=5), rand(3, 4, 2, 8, seed=6)
    angle = rand(16, 3)
    plain_k, plain_v = k_cache.clone(), v_cache.clone()

    def turned(x, b, at):
        """The first 6 features as 3 complex numbers, in float64."""
        part = x[b : b + 1, :, :, :6].double()
        pairs = part.unflatten(-1, (3, 2)) if interleaved else part.unflatten(-1, (2, 3)).mT
        z = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angle.double())[at][:, None]
        flat = torch.view_as_real(z)
        flat = (flat if interleaved else flat.mT).flatten(-2)
        return torch.cat((flat, x[b : b + 1, :, :, 6:].double()), -1)

    got = flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, angle.cos(), angle.sin(), lengths, causal=causal,
        rotary_interleaved=interleaved,
    )  # fmt: skip
    for b in range(3):
        n = int(lengths[b])
        at = torch.arange(n, n + 4)
        keys = torch.cat((plain_k[b : b + 1, :n].double(), turned(k, b, at)), 1)
        values = torch.cat((plain_v[b : b + 1, :n], v[b : b + 1]), 1).double()
        query = turned(q, b, at if causal else torch.full((4,), n))
        want, _, _ = reference(query, keys, values, causal=causal)
        torch.testing.assert_close(got[b : b + 1].double(), want, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(k_cache[b : b + 1, : n + 4].double(), keys)


def test_cache_of_full_length_takes_no_part_in_autograd():
    q, k_cache, v_cache, _ = cache_case()
    got = flash_attn_with_kvcache(q.requires_grad_(), k_cache, v_cache, num_splits=3)
    assert not got.requires_grad
    want, _, _ = reference(q.double(), k_cache.double(), v_cache.double())
    torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=2e-5)
    short = flash_attn_with_kvcache(q[:2], k_cache, v_cache, cache_seqlens=16)
    torch.testing.assert_close(short, got[:2])


def test_wrong_arguments():
    q, k, v = rand(2, 5, 4, 8), rand(2, 7, 2, 8), rand(2, 7, 2, 8)
    for change, sentence in (
        ({"alibi_slopes": torch.ones(3)}, r"alibi_slopes has the shape \[3\]"),
        ({"alibi_slopes": torch.ones(4).double()}, "alibi_slopes is torch.float64"),
        ({"q": q[0]}, "q has 3 dimensions"),
        ({"k": k[:, :, :, :4]}, "head size of 4"),
        ({"k": k.half()}, "float16"),
        ({"window_size": (1, 2, 3)}, "3 numbers"),
        ({"dropout_p": 1.0}, "dropout"),
        ({"q": rand(2, 5, 3, 8)}, "heads"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=sentence):
            flash_attn_func(**{"q": q, "k": k, "v": v, **change})
    with pytest.raises(UnsupportedError, match="576"):
        flash_attn_func(*(rand(1, 4, 1, 584) for _ in range(3)))


def test_wrong_cache_arguments():
    q, k_cache, v_cache, lengths = cache_case()
    k, table = rand(3, 4, 2, 8), torch.zeros(3, 1, dtype=torch.int32)
    index = torch.zeros(3, dtype=torch.int32)
    for kind, change, sentence in (
        (InvalidArgumentError, {"k": k}, "go together"),
        (InvalidArgumentError, {"k": k, "v": k}, "cache_seqlens"),
        (InvalidArgumentError, {"rotary_cos": k[0, :, 0]}, "go together"),
        (InvalidArgumentError, {"rotary_cos": k[0, :, 0], "rotary_sin": k[0, :, 0]}, "need k"),
        (UnsupportedError, {"block_table": table, "cache_batch_idx": index}, "cache_batch_idx"),
        (UnsupportedError, {"block_table": table, "cache_leftpad": index}, "cache_leftpad"),
        (InvalidArgumentError, {"block_table": table, "cache_seqlens": lengths + 8}, "room for 16"),
        (InvalidArgumentError, {"cache_seqlens": lengths[:2]}, r"not \[3\]"),
        (InvalidArgumentError, {"q": rand(4, 4, 4, 8)}, "3 batch entries"),
    ):
        arguments = {"q": q, "k_cache": k_cache, "v_cache": v_cache, **change}
        with pytest.raises(kind, match=sentence):
            flash_attn_with_kvcache(**arguments)


def test_compiled_whole():
    q, k, v = rand(2, 5, 4, 8), rand(2, 7, 2, 8), rand(2, 7, 2, 8)

    def f(q, k, v):
        return flash_attn_func(q, k, v, causal=True, window_size=(3, 0))

    torch.testing.assert_close(
        torch.compile(f, backend="eager", fullgraph=True)(q, k, v), f(q, k, v)
    )
