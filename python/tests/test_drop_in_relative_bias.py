# SPDX-License-Identifier: MIT OR Apache-2.0
"""T5's and Swin's attention modules against their mathematics, and against transformers."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from drop_in_reference import attend, banded

import tandem_attention as ta
from tandem_attention.drop_in.relative_bias import (
    SwinWindowAttention,
    T5RelativeAttention,
    relative_position_bucket,
    shifted_window_keep,
    window_position_index,
)


def bucket(relative, bidirectional, buckets, far):
    """One relative position's bucket, by the definition."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    grown = math.log(distance / exact) / math.log(far / exact) * (buckets - exact)
    return first + min(exact + int(grown + 1e-9), buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20), (6, 4)])
def test_buckets(bidirectional, buckets, far):
    positions = torch.arange(-200, 201)
    got = relative_position_bucket(positions, bidirectional, buckets, far)
    want = [bucket(int(r), bidirectional, buckets, far) for r in positions]
    # Logarithms in f32 may put a distance that lies on a bucket's edge into its neighbour.
    off = [n for n, (a, b) in enumerate(zip(got.tolist(), want, strict=True)) if a != b]
    assert len(off) <= 4
    assert all(abs(int(got[n]) - want[n]) == 1 for n in off)
    with pytest.raises(ta.InvalidArgumentError):
        relative_position_bucket(positions, bidirectional, 32, 2)


def named_doubles(module):
    return {n: p.detach().double().requires_grad_() for n, p in module.named_parameters()}


def t5_reference(module, w, x, source=None, mask=None):
    source = x if source is None else source
    heads, size = module.n_heads, module.key_value_proj_dim

    def project(name, t):
        return (t.double() @ w[name + ".weight"].T).unflatten(-1, (heads, size)).transpose(1, 2)

    rows, keys = x.shape[1], source.shape[1]
    bias = 0.0
    if module.has_relative_attention_bias:
        relative = torch.arange(keys)[None, :] - torch.arange(rows)[:, None]
        index = relative_position_bucket(
            relative, not module.is_decoder, module.relative_attention_num_buckets,
            module.relative_attention_max_distance,
        )  # fmt: skip
        bias = w["relative_attention_bias.weight"][index].permute(2, 0, 1)[None]
    seen = banded(rows, keys, None, 0 if module.is_decoder and source is x else None)
    if mask is not None:
        seen = seen & mask
    o, _ = attend(project("q", x), project("k", source), project("v", source), seen=seen,
                  bias=bias, scale=1.0)  # fmt: skip
    return o.transpose(1, 2).flatten(2) @ w["o.weight"].T


def t5(**more):
    torch.manual_seed(0)
    module = T5RelativeAttention(
        d_model=24, d_kv=8, num_heads=3, relative_attention_num_buckets=8,
        relative_attention_max_distance=12, has_relative_attention_bias=True, **more,
    )  # fmt: skip
    with torch.no_grad():
        module.relative_attention_bias.weight.normal_()
    return module


def same_gradients(module, w, got, want, limit=2e-5):
    torch.testing.assert_close(got.double(), want, rtol=limit, atol=limit)
    d = torch.randn(got.shape, generator=torch.Generator(torch.get_default_device()).manual_seed(1))
    got.backward(d)
    want.backward(d.double())
    for name, p in module.named_parameters():
        assert p.grad is not None, name
        assert p.grad.any(), name
        scale = float(w[name].grad.abs().max())
        torch.testing.assert_close(
            p.grad.double(), w[name].grad, rtol=limit, atol=limit * scale,
            msg=lambda m, n=name: f"{n}: {m}",
        )  # fmt: skip


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_t5(decoder, masked):
    # 30 keys: far more than the 12 distances behind which a decoder's bias is one number.
    module, x = t5(is_decoder=decoder), torch.randn(2, 30, 24)
    w = named_doubles(module)
    mask = torch.rand(2, 1, 1, 30) < 0.7 if masked else None
    if masked:
        mask[..., 0] = True
    out, bias = module(x, mask)
    assert bias.shape == ((3, 12) if decoder else (1, 3, 30, 30))
    same_gradients(module, w, out, t5_reference(module, w, x, mask=mask))


def test_t5_decoder_bias_is_the_matrix_but_for_one_number_a_head():
    module = t5(is_decoder=True)
    matrix = module.compute_bias(20, 20)
    distance = module.compute_distance_bias()
    last = module.relative_attention_bias.weight[-1]
    t = torch.arange(20)[:, None] - torch.arange(20)[None, :]
    wide = torch.where((t >= 0) & (t < 12), distance[:, t.clamp(0, 11)], 0.0)
    wanted = matrix[0] - last[:, None, None]
    torch.testing.assert_close(wide[:, t >= 0], wanted[:, t >= 0])


def test_t5_layers_share_a_bias():
    first, x = t5(is_decoder=True), torch.randn(1, 9, 24)
    second = T5RelativeAttention(24, 8, 3, is_decoder=True)
    assert not hasattr(second, "relative_attention_bias")
    _, bias = first(x)
    out, handed_on = second(x, position_bias=bias)
    assert handed_on is bias
    out.sum().backward()
    assert first.relative_attention_bias.weight.grad.any()
    plain, nothing = second(x)
    assert nothing is None
    assert not torch.allclose(plain, out)


def test_t5_cross_attention():
    module = T5RelativeAttention(24, 8, 3, is_decoder=True)
    x, source = torch.randn(2, 5, 24), torch.randn(2, 11, 24)
    w = named_doubles(module)
    out, _ = module(x, key_value_states=source)
    torch.testing.assert_close(
        out.double(), t5_reference(module, w, x, source), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ta.InvalidArgumentError, match="distance bias"):
        module(x, key_value_states=source, position_bias=torch.zeros(3, 4))


def test_t5_dropout_is_for_training():
    module, x = t5(dropout=0.5), torch.randn(1, 9, 24)
    quiet = module.eval()(x)[0]
    assert torch.equal(quiet, module(x)[0])
    assert not torch.allclose(quiet, module.train()(x)[0])


def test_t5_refuses_additive_masks():
    with pytest.raises(ta.UnsupportedError, match="additive"):
        t5()(torch.randn(1, 4, 24), torch.zeros(1, 1, 1, 4))


@pytest.mark.parametrize("decoder", [False, True])
def test_t5_against_transformers(decoder):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = modeling.T5Config(
        d_model=24, d_kv=8, num_heads=3, relative_attention_num_buckets=8,
        relative_attention_max_distance=12, is_decoder=decoder, dropout_rate=0.0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    theirs = modeling.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = t5(is_decoder=decoder)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 17, 24)
    padding = torch.rand(2, 1, 1, 17) < 0.8
    padding[..., 0] = True
    hidden = ~padding
    if decoder:
        hidden = hidden | ~banded(17, 17, None, 0)
    additive = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    want = theirs(x, mask=additive)[0]
    got = ours(x, padding)[0]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    d = torch.randn_like(got)
    got.backward(d)
    want.backward(d)
    torch.testing.assert_close(
        ours.relative_attention_bias.weight.grad, theirs.relative_attention_bias.weight.grad,
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip


# ---- Swin ----------------------------------------------------------------------------------------

IMAGES, HEADS, DIM = 3, 2, 16


def swin(window=(3, 4), **more):
    torch.manual_seed(0)
    module = SwinWindowAttention(DIM, HEADS, window_size=window, **more)
    with torch.no_grad():
        module.relative_position_bias_table.normal_()
    return module


def swin_reference(module, w, x, seen=None):
    n = module.window_area
    qkv = x.double() @ w["qkv.weight"].T + w["qkv.bias"]
    q, k, v = qkv.view(x.shape[0], n, 3, HEADS, module.head_dim).permute(2, 0, 3, 1, 4)
    height, width = module.window_size
    bias = torch.stack([
        torch.stack([
            w["relative_position_bias_table"][
                (i // width - j // width + height - 1) * (2 * width - 1)
                + i % width - j % width + width - 1
            ]
            for j in range(n)
        ])
        for i in range(n)
    ]).permute(2, 0, 1)  # fmt: skip
    if seen is not None:
        seen = seen.repeat(x.shape[0] // seen.shape[0], 1, 1).unsqueeze(1)
    o, _ = attend(q, k, v, bias=bias, seen=seen)
    return o.transpose(1, 2).flatten(2) @ w["proj.weight"].T + w["proj.bias"]


@pytest.mark.parametrize("mask", [None, "bool", "additive", "infinite"])
def test_swin(mask):
    module = swin()
    w = named_doubles(module)
    keep = shifted_window_keep(6, 8, (3, 4), (1, 2))
    x = torch.randn(IMAGES * keep.shape[0], 12, DIM)
    given = {
        None: None,
        "bool": keep,
        "additive": torch.zeros(keep.shape).masked_fill(~keep, -100.0),
        "infinite": torch.zeros(keep.shape).masked_fill(~keep, float("-inf")),
    }[mask]
    out = module(x, given)
    same_gradients(module, w, out, swin_reference(module, w, x, keep if mask else None))
    again = module(x, given)
    assert torch.equal(out, again)


def test_shifted_windows_keep_their_part_of_the_image():
    height, width, window, shift = 6, 8, (3, 4), (1, 2)
    keep = shifted_window_keep(height, width, window, shift)
    assert keep.shape == (4, 12, 12)
    assert keep[0].all()
    # In the image that is not rolled, tokens far from each other are those of different parts.
    for w in range(4):
        top, left = w // 2 * window[0], w % 2 * window[1]
        at = [
            ((top + n // window[1] + shift[0]) % height, (left + n % window[1] + shift[1]) % width)
            for n in range(12)
        ]
        for i in range(12):
            for j in range(12):
                near = all(
                    abs(a - b) < side for a, b, side in zip(at[i], at[j], window, strict=True)
                )
                assert bool(keep[w, i, j]) == near
    assert shifted_window_keep(6, 8, (3, 4), (0, 0)).all()
    with pytest.raises(ta.InvalidArgumentError, match="whole number"):
        shifted_window_keep(7, 8, (3, 4), (1, 2))


def test_swin_looks_at_a_mask_again_when_it_changes():
    module, x = swin(), torch.randn(4, 12, DIM)
    mask = torch.zeros(2, 12, 12)
    plain = module(x, mask)
    mask[:, :, 5] = -100.0
    changed = module(x, mask)
    assert not torch.allclose(plain, changed)
    assert torch.equal(changed, module(x, mask == 0))
    mask[0, 0, 0] = -1.0
    with pytest.raises(ta.UnsupportedError, match="neither bool"):
        module(x, mask)


def test_swin_trains_with_a_mask_first_seen_in_inference_mode():
    module, x = swin(), torch.randn(2, 12, DIM)
    mask = torch.zeros(2, 12, 12)
    mask[:, :, 5] = -100.0
    with torch.inference_mode():
        want = module(x, mask)
        assert torch.equal(module(x, mask.clone()), want)
    out = module(x, mask)
    assert torch.equal(out, want)
    out.sum().backward()


def test_swin_refusals():
    module, x = swin(), torch.randn(4, 12, DIM)
    with pytest.raises(ta.InvalidArgumentError, match="whole number"):
        module(x, torch.ones(3, 12, 12, dtype=torch.bool))
    with pytest.raises(ta.InvalidArgumentError, match="mask is"):
        module(x, torch.ones(12, 12, dtype=torch.bool))
    with pytest.raises(ta.InvalidArgumentError, match="positions"):
        module(x[:, :5])
    with pytest.raises(ta.UnsupportedError):
        module(x, torch.zeros(2, 12, 12, requires_grad=True))


def test_swin_state_dicts():
    module = swin()
    names = set(module.state_dict())
    assert names == {
        "relative_position_bias_table", "qkv.weight", "qkv.bias", "proj.weight", "proj.bias"
    }  # fmt: skip
    other = SwinWindowAttention(DIM, HEADS, window_size=(3, 4))
    index = window_position_index(3, 4)
    for stored in (index, index.flatten()):
        other.load_state_dict({**module.state_dict(), "relative_position_index": stored})
    x = torch.randn(2, 12, DIM)
    assert torch.equal(other(x), module(x))
    with pytest.raises(RuntimeError, match="another window"):
        other.load_state_dict({**module.state_dict(), "relative_position_index": index + 1})


def test_swin_can_be_copied_after_a_call():
    module, x = swin(), torch.randn(2, 12, DIM)
    mask = torch.zeros(1, 12, 12).masked_fill(torch.rand(1, 12, 12) < 0.3, -100.0)
    out = module(x, mask)
    assert torch.equal(copy.deepcopy(module)(x, mask), out)


def test_swin_dropout_is_for_training():
    module, x = swin(attn_drop=0.5), torch.randn(2, 12, DIM)
    quiet = module.eval()(x)
    assert torch.equal(quiet, module(x))
    assert not torch.allclose(quiet, module.train()(x))


def test_swin_against_transformers():
    modeling = pytest.importorskip("transformers.models.swin.modeling_swin")
    ours = swin(window=(4, 4))
    config = modeling.SwinConfig(embed_dim=DIM, window_size=4, attention_probs_dropout_prob=0.0)
    config._attn_implementation = "eager"
    theirs = modeling.SwinAttention(config, DIM, HEADS, 4)
    names = {n: p.shape for n, p in theirs.named_parameters()}
    state, inner = ours.state_dict(), DIM
    loaded = {}
    for name in names:
        if name.endswith("relative_position_bias_table"):
            loaded[name] = state["relative_position_bias_table"]
        for at, part in enumerate(("q", "k", "v")):
            for word in (f"{part}_proj.", {"q": "query.", "k": "key.", "v": "value."}[part]):
                if word in name:
                    kind = name.rsplit(".", 1)[1]
                    loaded[name] = state[f"qkv.{kind}"][at * inner : (at + 1) * inner]
        for word in ("o_proj.", "output.dense."):
            if word in name:
                loaded[name] = state["proj." + name.rsplit(".", 1)[1]]
    assert set(loaded) == set(names)
    theirs.load_state_dict(loaded, strict=False)
    keep = shifted_window_keep(8, 8, (4, 4), (2, 2))
    additive = torch.zeros(keep.shape).masked_fill(~keep, -100.0)
    x = torch.randn(IMAGES * 4, 16, DIM)
    want = theirs.eval()(x, additive)[0]
    torch.testing.assert_close(ours.eval()(x, additive), want, rtol=1e-4, atol=1e-5)
