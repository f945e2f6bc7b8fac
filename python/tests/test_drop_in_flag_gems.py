# SPDX-License-Identifier: MIT OR Apache-2.0
"""drop_in.flag_gems against its definition in float64."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from tandem_attention import InvalidArgumentError, UnsupportedError  # noqa: E402
from tandem_attention.drop_in import flag_gems  # noqa: E402

INF = float("inf")


def rand(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def reference(q, k, v, *, mask=None, causal=None, scale=None, window=(-1, -1), softcap=0.0,
              slopes=None, sink=None, lengths=None, weights=None):  # fmt: skip
    """(o, lse, y) of [B, H, S, D]. causal: "top_left" or "bottom_right"."""
    g = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    rows, keys = q.shape[2], k.shape[2]
    s = q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if mask is not None:
        s = s + mask
    t = torch.arange(rows)[:, None] - torch.arange(keys)
    if causal != "top_left":
        t = t + keys - rows
    if slopes is not None:
        s = s - slopes.double()[..., None, None] * t.abs()
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        seen &= t >= 0
    if window[0] >= 0:
        seen &= t <= window[0]
    if window[1] >= 0:
        seen &= t >= -window[1]
    if lengths is not None:
        seen = seen & (torch.arange(keys) < lengths[:, None])[:, None, None]
    s = s.masked_fill(~seen, -INF)
    if sink is not None:
        extra = sink.double()[None, :, None, None].expand(*s.shape[:3], 1)
        lse = torch.cat((s, extra), -1).logsumexp(-1)
    else:
        lse = s.logsumexp(-1)
    lse = lse.masked_fill((s == -INF).all(-1), INF)
    y = (s - lse[..., None]).exp()
    return (y if weights is None else weights) @ v, lse, y


def inputs(*shapes, dtype=torch.float32):
    ours = [rand(*s, seed=n, dtype=dtype).requires_grad_() for n, s in enumerate(shapes)]
    return ours, [t.detach().double().requires_grad_() for t in ours]


def close(got, want, tolerance=3e-5):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.double(), w, atol=tolerance, rtol=tolerance)


SHAPES = ((2, 4, 9, 8), (2, 2, 12, 8), (2, 2, 12, 8))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shapes", [SHAPES, ((2, 4, 12, 8), (2, 4, 9, 8), (2, 4, 9, 8))], ids=str)
def test_sdpa_and_its_explicit_pair(masked, is_causal, shapes):
    """Causal is top left whatever the sizes, and may come with a mask."""
    ours, exact = inputs(*shapes)
    mask = rand(1, 1, shapes[0][2], shapes[1][2], seed=5) if masked else None
    options = {"attn_mask": mask, "is_causal": is_causal, "scale": 0.4,
               "enable_gqa": shapes[0][1] != shapes[1][1]}  # fmt: skip
    want, want_lse, _ = reference(
        *exact, mask=mask, causal="top_left" if is_causal else None, scale=0.4
    )
    d_o = rand(*want.shape, seed=9)
    want_d = torch.autograd.grad(want, exact, d_o.double())
    got = flag_gems.scaled_dot_product_attention(*ours, **options)
    close((got, *torch.autograd.grad(got, ours, d_o)), (want, *want_d))

    o, m = flag_gems.scaled_dot_product_attention_forward(*ours, **options)
    assert not o.requires_grad
    close((o, m), (want.detach(), want_lse.detach() / math.log(2)))
    made = flag_gems.scaled_dot_product_attention_backward(d_o, *ours, o, m, **options)
    close(made, want_d)


def test_class_has_apply():
    ours, _ = inputs((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    want = flag_gems.scaled_dot_product_attention(*ours, is_causal=True, scale=0.3)
    got = flag_gems.ScaleDotProductAttention.apply(*ours, None, 0.0, True, 0.3, False)
    assert torch.equal(got, want)
    assert torch.equal(
        torch.autograd.grad(got.sum(), ours)[1], torch.autograd.grad(want.sum(), ours)[1]
    )


def test_mask_has_a_gradient_and_an_expanded_one_of_the_output_is_taken():
    ours, exact = inputs((2, 2, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), (1, 1, 5, 7))
    flag_gems.scaled_dot_product_attention(*ours[:3], ours[3]).sum().backward()
    reference(*exact[:3], mask=exact[3])[0].sum().backward()
    close([t.grad for t in ours], [t.grad for t in exact])
    o, m = flag_gems.scaled_dot_product_attention_forward(*ours)
    d_o = torch.ones(()).expand(2, 2, 5, 8)
    made = flag_gems.scaled_dot_product_attention_backward(d_o, *ours[:3], o, m, ours[3])
    close(made, [t.grad for t in exact[:3]])


def test_sdpa_refusals():
    q, k = rand(2, 4, 5, 8), rand(2, 2, 5, 8)
    with pytest.raises(UnsupportedError, match="attn_mask is bool"):
        flag_gems.scaled_dot_product_attention(q, q, q, torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(InvalidArgumentError, match="enable_gqa"):
        flag_gems.scaled_dot_product_attention(q, k, k)
    with pytest.raises(InvalidArgumentError, match="3 dimensions"):
        flag_gems.scaled_dot_product_attention(q[0], q[0], q[0])
    with pytest.raises(UnsupportedError, match=r"dropout_p is 0\.1"):
        flag_gems.scaled_dot_product_attention_forward(q, q, q, dropout_p=0.1)
    with pytest.raises(UnsupportedError, match=r"dropout_p is 0\.1"):
        flag_gems.scaled_dot_product_attention_backward(q, q, q, q, q, q[..., 0], dropout_p=0.1)


BSHD = ((2, 9, 4, 8), (2, 12, 2, 8), (2, 12, 2, 8))


def flash_inputs():
    ours, _ = inputs(*BSHD)
    return [t.detach() for t in ours], [
        t.detach().double().transpose(1, 2).requires_grad_() for t in ours
    ]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [(None, None), (4, 3), (4, None)], ids=str)
def test_flash_forward_and_backward(is_causal, window):
    ours, exact = flash_inputs()
    options = {"window_size_left": window[0], "window_size_right": window[1], "scale": 0.4}
    out, lse, seed, offset, dmask = flag_gems.flash_attention_forward(
        *ours, None, None, 9, 12, 0.0, is_causal, False, **options
    )
    sides = [-1 if n is None else n for n in window]
    want, want_lse, _ = reference(
        *exact, causal="bottom_right" if is_causal else None, window=sides, scale=0.4
    )
    close((out.transpose(1, 2), lse), (want, want_lse))
    assert dmask.numel() == 0
    d_o = rand(*BSHD[0], seed=9)
    made = flag_gems.flash_attention_backward(
        d_o, *ours, out, lse, None, None, 9, 12, 0.0, is_causal, torch.stack((seed, offset)), None,
        **options,
    )  # fmt: skip
    want_d = torch.autograd.grad(want, exact, d_o.double().transpose(1, 2))
    close([t.transpose(1, 2) for t in made], want_d)


def test_flash_forward_with_everything_else():
    ours, exact = flash_inputs()
    slopes, lengths = rand(2, 4).abs(), torch.tensor([12, 7], dtype=torch.int32)
    got = flag_gems.flash_attention_forward(
        *ours, None, None, 9, 12, 0.0, False, False, alibi_slopes=slopes, softcap=1.5
    )
    want, _, _ = reference(*exact, slopes=slopes, softcap=1.5)
    close([got[0].transpose(1, 2)], [want])
    got = flag_gems.flash_attention_forward(
        *ours, None, None, 9, 12, 0.0, False, False, seqused_k=lengths, disable_splitkv=True
    )
    want, _, _ = reference(*exact, lengths=lengths)
    close([got[0].transpose(1, 2)], [want])


def test_flash_rows_without_keys():
    """The backward takes the plus infinity that the forward gives."""
    ours = [rand(1, 7, 2, 8), rand(1, 3, 2, 8), rand(1, 3, 2, 8)]
    exact = [t.double().transpose(1, 2).requires_grad_() for t in ours]
    out, lse, *_ = flag_gems.flash_attention_forward(*ours, None, None, 7, 3, 0.0, True, False)
    assert (lse[:, :, :4] == INF).all()
    d_o = rand(1, 7, 2, 8, seed=9)
    made = flag_gems.flash_attention_backward(
        d_o, *ours, out, lse, None, None, 7, 3, 0.0, True, None
    )
    want, _, _ = reference(*exact, causal="bottom_right")
    want_d = torch.autograd.grad(want, exact, d_o.double().transpose(1, 2))
    close([t.transpose(1, 2) for t in (out, *made)], (want, *want_d))


@pytest.mark.parametrize("as_pair", [False, True])
def test_flash_dropout(as_pair):
    ours, exact = flash_inputs()
    out, lse, seed, offset, dmask = flag_gems.flash_attention_forward(
        *ours, None, None, 9, 12, 0.3, True, True
    )
    _, _, y = reference(*exact, causal="bottom_right")
    weights = torch.where(dmask < 0, 0.0, y / 0.7)
    assert (dmask < 0).any()
    want, _, _ = reference(*exact, causal="bottom_right", weights=weights)
    close([out.transpose(1, 2)], [want])
    d_o = rand(*BSHD[0], seed=9)
    state = (seed, offset) if as_pair else (torch.stack((seed, offset)), None)
    made = flag_gems.flash_attention_backward(
        d_o, *ours, out, lse, None, None, 9, 12, 0.3, True, *state
    )
    close(
        [t.transpose(1, 2) for t in made],
        torch.autograd.grad(want, exact, d_o.double().transpose(1, 2)),
    )


def test_flash_refusals():
    ours, _ = flash_inputs()
    cu = torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="flash_attn_varlen_func"):
        flag_gems.flash_attention_forward(*ours, cu, cu, 9, 12, 0.0, False, False)
    with pytest.raises(UnsupportedError, match="alibi_slopes of"):
        flag_gems.flash_attention_forward(
            *ours, None, None, 9, 12, 0.5, False, False, alibi_slopes=rand(2, 4).abs()
        )
    lse = torch.zeros(2, 4, 9)
    for state, sentence in ((None, "needs rng_state"), (torch.zeros(3), "3 numbers")):
        with pytest.raises(InvalidArgumentError, match=sentence):
            flag_gems.flash_attention_backward(
                ours[0], *ours, ours[0], lse, None, None, 9, 12, 0.5, False, state
            )


CU_Q = torch.tensor([0, 6, 17], dtype=torch.int32)
CU_K = torch.tensor([0, 9, 16], dtype=torch.int32)


def one_by_one(q, k, v, **options):
    parts = []
    for b in range(2):
        i, j = slice(CU_Q[b], CU_Q[b + 1]), slice(CU_K[b], CU_K[b + 1])
        rows = (q[None, i], k[None, j], v[None, j])
        o, lse, _ = reference(*(t.transpose(1, 2) for t in rows), **options)
        parts.append((o[0].transpose(0, 1), lse[0]))
    return torch.cat([o for o, _ in parts]), torch.cat([lse for _, lse in parts], 1)


@pytest.mark.parametrize("option", ["plain", "window", "sink"])
def test_varlen(option):
    ours, exact = inputs((17, 4, 8), (16, 2, 8), (16, 2, 8), (4,))
    options, same = {
        "plain": ({}, {}),
        "window": ({"window_size": [4, 4]}, {"window": (4, -1)}),
        "sink": ({"s_aux": ours[3]}, {"sink": exact[3]}),
    }[option]
    got, lse = flag_gems.flash_attn_varlen_func(
        *ours[:3], torch.tensor(11), CU_Q, 9, CU_K, causal=True, return_softmax_lse=True, **options
    )
    want, want_lse = one_by_one(*exact[:3], causal="bottom_right", **same)
    d_o = rand(*want.shape, seed=9)
    count = 4 if option == "sink" else 3
    want_d = torch.autograd.grad(want, exact[:count], d_o.double())
    close((got, lse, *torch.autograd.grad(got, ours[:count], d_o)), (want, want_lse, *want_d))


def test_varlen_with_pages_and_out():
    q, pages = rand(17, 4, 8), rand(5, 4, 2, 8)
    table = torch.tensor([[4, 0, 2], [1, 3, -1]], dtype=torch.int32)
    used = CU_K.diff()
    flat = torch.cat([pages[table[b].clamp(0).long()].flatten(0, 1)[: used[b]] for b in range(2)])
    want, _ = one_by_one(q.double(), flat.double(), flat.double(), causal="bottom_right")
    out = torch.empty(17, 4, 8)
    got = flag_gems.flash_attn_varlen_func(
        q, pages, pages, 11, CU_Q, 9, seqused_k=used, block_table=table, causal=True, out=out
    )
    assert got is out
    close([got], [want])


def test_varlen_refusals():
    q, k = rand(17, 4, 8), rand(16, 4, 8)
    scales = torch.ones(1)
    for kind, change, sentence in (
        (UnsupportedError, {"q_v": q}, "q_v"),
        (UnsupportedError, {"k_descale": scales}, "k_descale"),
        (UnsupportedError, {"fa_version": 3}, "fa_version"),
        (UnsupportedError, {"num_splits": 2}, "num_splits"),
        (UnsupportedError, {"cp_world_size": 2}, "cp_world_size"),
        (InvalidArgumentError, {"cu_seqlens_k": None}, "is needed"),
        (InvalidArgumentError, {"seqused_k": CU_K.diff()}, "is needed"),
        (InvalidArgumentError, {"seqused_k": CU_K.diff(), "cu_seqlens_k": None}, "together"),
        (UnsupportedError, {"q": q.clone().requires_grad_(), "out": q}, "out has no gradients"),
    ):
        arguments = {"q": q, "k": k, "v": k, "max_seqlen_q": 11, "cu_seqlens_q": CU_Q,
                     "max_seqlen_k": 9, "cu_seqlens_k": CU_K, **change}  # fmt: skip
        with pytest.raises(kind, match=sentence):
            flag_gems.flash_attn_varlen_func(**arguments)
