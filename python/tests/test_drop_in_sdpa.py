# SPDX-License-Identifier: MIT OR Apache-2.0
"""drop_in.sdpa against torch's own function in float64."""

from __future__ import annotations

import inspect
import threading

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from tandem_attention import InvalidArgumentError, UnsupportedError  # noqa: E402
from tandem_attention.drop_in import sdpa  # noqa: E402
from tandem_attention.drop_in.sdpa import replace_sdpa, scaled_dot_product_attention  # noqa: E402

TORCH = functional.scaled_dot_product_attention
INF = float("inf")


def rand(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def compare(q, k, v, mask=None, tolerance=2e-5, **options):
    """Output and all gradients."""
    float_mask = mask is not None and mask.dtype != torch.bool
    inputs = [q, k, v] + ([mask] if float_mask else [])
    ours = [t.detach().clone().requires_grad_() for t in inputs]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = TORCH(*exact[:3], exact[3] if float_mask else mask, **options)
    got = scaled_dot_product_attention(*ours[:3], ours[3] if float_mask else mask, **options)
    assert got.shape == want.shape
    assert got.dtype == q.dtype
    d_o = rand(*want.shape, seed=9)
    want_d = torch.autograd.grad(want, exact, d_o.double())
    got_d = torch.autograd.grad(got, ours, d_o.to(got.dtype))
    for g, w in zip((got, *got_d), (want, *want_d), strict=True):
        assert g.shape == w.shape
        torch.testing.assert_close(g.double(), w, atol=tolerance, rtol=tolerance)


SHAPES = [
    ((5, 8), (7, 8), (7, 3)),
    ((4, 5, 8), (4, 7, 8), (4, 7, 3)),
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 16)),
    ((2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 8)),
    ((2, 1, 2, 3, 5, 8), (2, 1, 2, 3, 7, 8), (2, 1, 2, 3, 7, 8)),
    # Broadcast: batch of q, of k and v, heads of k and v, heads of q, of k alone, ranks.
    ((1, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
    ((2, 3, 5, 8), (1, 3, 7, 8), (1, 3, 7, 8)),
    ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    ((2, 1, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
    ((2, 3, 5, 8), (2, 1, 7, 8), (2, 3, 7, 8)),
    ((2, 3, 5, 8), (7, 8), (7, 8)),
    ((5, 8), (2, 3, 7, 8), (3, 7, 8)),
    ((2, 1, 3, 5, 8), (1, 2, 3, 7, 8), (3, 7, 8)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_shapes(shapes, is_causal):
    q, k, v = (rand(*s, seed=n) for n, s in enumerate(shapes))
    compare(q, k, v, is_causal=is_causal)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (1, 1, 5, 7), (2, 1, 1, 7), (1, 3, 5, 7),
                                   (2, 3, 5, 7), (3, 5, 7), (3, 1, 1)])  # fmt: skip
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(shape, kind):
    q, k, v = rand(2, 3, 5, 8), rand(2, 3, 7, 8, seed=1), rand(2, 3, 7, 4, seed=2)
    mask = rand(*shape, seed=3)
    compare(q, k, v, mask > -0.5 if kind == "bool" else mask)


@pytest.mark.parametrize("shape", [(2, 1, 3, 5, 7), (1, 2, 1, 5, 7), (1, 1, 1, 5, 7), (3, 1, 7)])
def test_masks_of_five_dimensions(shape):
    q, k, v = rand(2, 2, 3, 5, 8), rand(2, 2, 3, 7, 8, seed=1), rand(2, 2, 3, 7, 8, seed=2)
    mask = rand(*shape, seed=3)
    compare(q, k, v, mask)
    compare(q, k, v, mask > -0.5)


def test_masks_of_two_and_three_dimensions():
    compare(rand(5, 8), rand(7, 8), rand(7, 8), rand(5, 7))
    compare(rand(4, 5, 8), rand(4, 7, 8), rand(4, 7, 8), rand(4, 5, 7))
    compare(rand(4, 5, 8), rand(4, 7, 8), rand(4, 7, 8), rand(4, 1, 7) > 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_its_own_mask_and_a_float_one(dtype):
    q, k, v = (rand(2, 2, 9, 16, seed=n, dtype=dtype) for n in range(3))
    tolerance = 4e-3 if dtype == torch.float16 else 4e-2
    compare(q, k, v, rand(9, 9, dtype=dtype), tolerance)
    compare(q, k, v, rand(9, 9), tolerance)


@pytest.mark.parametrize(
    "heads", [(4, 2, 2), (4, 1, 1), (4, 4, 4), (4, 2, 4), (12, 4, 6), (4, 1, 2)]
)
def test_grouped_heads(heads):
    q, k, v = (rand(2, h, 5, 8, seed=n) for n, h in enumerate(heads))
    compare(q, k, v, enable_gqa=True)
    compare(q, k, v, rand(1, heads[0], 5, 5), enable_gqa=True)


def test_grouped_heads_of_three_and_five_dimensions():
    compare(rand(4, 5, 8), rand(2, 7, 8), rand(2, 7, 8), enable_gqa=True, is_causal=True)
    compare(rand(2, 3, 4, 5, 8), rand(2, 3, 2, 7, 8), rand(2, 3, 2, 7, 8), enable_gqa=True)


@pytest.mark.parametrize("scale", [0.5, 0.0, -0.7])
def test_scale(scale):
    compare(rand(2, 3, 5, 8), rand(2, 3, 7, 8), rand(2, 3, 7, 8), scale=scale)


def test_strides():
    q, k, v = (rand(2, 5, 3, 8, seed=n).transpose(1, 2) for n in range(3))
    compare(q, k, v)
    wide = rand(2, 3, 5, 32)
    compare(wide[..., :8], wide[..., 8:16], wide[..., 16:24], rand(7, 5).t()[:, :5][:5])


def test_rows_without_keys_are_zero():
    q, k, v = (rand(1, 2, 4, 8, seed=n) for n in range(3))
    hidden = torch.ones(4, 4, dtype=torch.bool)
    hidden[2] = False
    for mask in (hidden, torch.zeros(4, 4).masked_fill(~hidden, -INF)):
        o = scaled_dot_product_attention(q, k, v, mask)
        assert torch.equal(o[:, :, 2], torch.zeros(1, 2, 8))
        assert o[:, :, 3].abs().min() > 0
    compare(q, k, v, hidden)
    nothing = scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0])
    assert torch.equal(nothing, torch.zeros(1, 2, 4, 8))


def test_a_finite_mask_is_a_number():
    q, k, v = (rand(1, 1, 3, 8, seed=n) for n in range(3))
    low = torch.full((3, 3), torch.finfo(torch.float32).min)
    o = scaled_dot_product_attention(q, k, v, low)
    torch.testing.assert_close(o, v.mean(2, keepdim=True).expand_as(o))


def test_autocast_takes_mixed_types():
    """Rotary embeddings leave q and k in float32 where v and a mask are bfloat16."""
    q, k, v = (rand(2, 2, 5, 8, seed=n) for n in range(3))
    mask = rand(5, 5)
    half = v.bfloat16(), mask.bfloat16()
    with pytest.raises(InvalidArgumentError, match=r"value is torch\.bfloat16"):
        scaled_dot_product_attention(q, k, half[0])
    with torch.autocast(q.device.type, torch.bfloat16):
        for args in ((q, k, half[0], half[1]), (q, k, v, mask), (q, k, half[0], mask > 0)):
            got, want = scaled_dot_product_attention(*args), TORCH(*args)
            assert got.dtype == want.dtype == torch.bfloat16
            torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
        with pytest.raises(InvalidArgumentError, match="float64"):
            scaled_dot_product_attention(q.double(), k, v)


def test_no_queries():
    q, k = rand(2, 3, 0, 8).requires_grad_(), rand(2, 3, 7, 8).requires_grad_()
    o = scaled_dot_product_attention(q, k, k, rand(7) > 0)
    assert o.shape == (2, 3, 0, 8)
    o.sum().backward()
    assert torch.equal(k.grad, torch.zeros(2, 3, 7, 8))


def test_causal_bias_objects():
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    q, k, v = rand(2, 3, 5, 8), rand(2, 3, 9, 8, seed=1), rand(2, 3, 9, 8, seed=2)
    for made, diagonal in ((causal_upper_left(5, 9), 0), (causal_lower_right(5, 9), 4)):
        mask = torch.ones(5, 9, dtype=torch.bool).tril(diagonal)
        want = TORCH(q, k, v, mask)
        torch.testing.assert_close(scaled_dot_product_attention(q, k, v, made), want)
    with pytest.raises(InvalidArgumentError, match="causal already"):
        scaled_dot_product_attention(q, k, v, causal_lower_right(5, 9), is_causal=True)
    with pytest.raises(InvalidArgumentError, match="5 queries and 8 keys"):
        scaled_dot_product_attention(q, k, v, causal_lower_right(5, 8))


def test_dropout_repeats_with_torchs_seed_and_is_a_mean():
    q, k = torch.zeros(1, 1, 64, 8), torch.zeros(1, 1, 128, 8)
    v = torch.ones(1, 1, 128, 8)
    torch.manual_seed(4)
    first = scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    other = scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    torch.manual_seed(4)
    assert torch.equal(first, scaled_dot_product_attention(q, k, v, dropout_p=0.25))
    assert not torch.equal(first, other)
    assert abs(first.mean().item() - 1) < 0.03
    # Equal weights: what is left is a number of kept keys times 1 / (128 (1 - p)).
    kept = first[0, 0, :, 0] * 128 * 0.75
    torch.testing.assert_close(kept, kept.round(), atol=1e-3, rtol=0)


BAD = [
    (lambda q: dict(attn_mask=torch.ones(5, 5, dtype=torch.bool), is_causal=True), "exclude"),
    (lambda q: dict(attn_mask=torch.ones(5, 5, dtype=torch.int32)), "attn_mask is torch.int32"),
    (lambda q: dict(attn_mask=torch.ones(5, 5, dtype=torch.float64)), "attn_mask is torch.float64"),
    (lambda q: dict(attn_mask=torch.ones(5, 5, dtype=torch.float16)), "attn_mask is torch.float16"),
    (lambda q: dict(attn_mask=torch.ones(5, 4)), r"\[5, 4\] does not broadcast"),
    (lambda q: dict(attn_mask=torch.ones(1, 1, 1, 5, 5)), "does not broadcast"),
    (lambda q: dict(attn_mask=torch.ones(3, 1, 5, 5)), "does not broadcast"),
    (lambda q: dict(key=q.half()), "key is torch.float16"),
    (lambda q: dict(key=q[..., :7]), "head size of 7"),
    (lambda q: dict(key=q[:, :2], value=q[:, :2]), "heads"),
    (lambda q: dict(key=q[:, :3], value=q[:, :3], enable_gqa=True), "must divide"),
    (lambda q: dict(key=rand(3, 4, 5, 8), value=rand(3, 4, 5, 8)), "batch dimensions"),
    (lambda q: dict(value=q[:, :, :4]), "keys 4"),
    (lambda q: dict(query=q[0, 0, 0]), "1 dimensions"),
    (lambda q: dict(dropout_p=1.0), "dropout"),
    (lambda q: dict(dropout_p=-0.5), "dropout"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_wrong_arguments(change, sentence):
    q = rand(2, 4, 5, 8)
    with pytest.raises(InvalidArgumentError, match=sentence) as caught:
        scaled_dot_product_attention(**{**dict(query=q, key=q, value=q), **change(q)})
    # Code that catches what torch raises catches these.
    assert isinstance(caught.value, RuntimeError)


def test_what_is_refused():
    q = rand(2, 2, 5, 8)
    for t, sentence in (
        (q.to(torch.complex64), "complex64"), (q.int(), "int32"), (rand(1, 1, 4, 577), "576"),
        (torch.nested.nested_tensor([q[0], q[0]]), "nested"),
        (q.to_sparse(), "sparse"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match=sentence):
            scaled_dot_product_attention(t, t, t)
    with pytest.raises(TypeError, match="query is a NoneType"):
        scaled_dot_product_attention(None, q, q)
    with pytest.raises(TypeError, match="attn_mask is a list, not a tensor"):
        scaled_dot_product_attention(q, q, q, [[True]])
    with pytest.raises(TypeError, match="positional"):
        scaled_dot_product_attention(q, q, q, None, 0.0, False, 1.0)


def test_signature_is_torchs():
    schema = torch.ops.aten.scaled_dot_product_attention.default._schema
    ours = inspect.signature(scaled_dot_product_attention).parameters
    assert list(ours) == [a.name for a in schema.arguments]
    for argument in schema.arguments:
        mine = ours[argument.name]
        assert (mine.kind is mine.KEYWORD_ONLY) == argument.kwarg_only
        if argument.has_default_value():
            assert mine.default == argument.default_value


def test_compiled_whole():
    def f(q, k, v, mask):
        return scaled_dot_product_attention(q, k, v, mask) * 2

    q, k, v = (rand(3, 5, 8, seed=n) for n in range(3))
    mask = rand(5, 5) > -1
    got = torch.compile(f, backend="eager", fullgraph=True)(q, k, v, mask)
    torch.testing.assert_close(got, f(q, k, v, mask))


def test_tensor_subclasses_and_fx():
    class Mine(torch.Tensor):
        pass

    q = rand(2, 2, 5, 8)
    o = scaled_dot_product_attention(q.as_subclass(Mine), q, q)
    assert isinstance(o, Mine)
    torch.testing.assert_close(o.as_subclass(torch.Tensor), TORCH(q, q, q))

    graph = torch.fx.symbolic_trace(lambda q: scaled_dot_product_attention(q, q, q))
    assert any(n.target is scaled_dot_product_attention for n in graph.graph.nodes)
    torch.testing.assert_close(graph(q), TORCH(q, q, q))


# ---- replace_sdpa --------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """How often Tandem ran."""
    seen = []
    attention = sdpa.attention

    def count(*args, **kwargs):
        seen.append(args)
        return attention(*args, **kwargs)

    monkeypatch.setattr(sdpa, "attention", count)
    return seen


def test_replaces_and_restores(calls):
    q = rand(2, 2, 5, 8)
    with replace_sdpa():
        got = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        torch._C._nn.scaled_dot_product_attention(q, q, q)
    assert len(calls) == 2
    torch.testing.assert_close(got, TORCH(q, q, q, is_causal=True))
    assert functional.scaled_dot_product_attention is TORCH
    assert torch._C._nn.scaled_dot_product_attention is TORCH


def test_nests_and_survives_exceptions(calls):
    q = rand(1, 1, 3, 8)
    with replace_sdpa():
        with pytest.raises(ZeroDivisionError), replace_sdpa():
            raise ZeroDivisionError
        functional.scaled_dot_product_attention(q, q, q)
        assert len(calls) == 1
    assert functional.scaled_dot_product_attention is TORCH


def test_as_a_decorator(calls):
    q = rand(1, 1, 3, 8)

    @replace_sdpa()
    def f():
        return functional.scaled_dot_product_attention(q, q, q)

    for _ in range(2):
        torch.testing.assert_close(f(), TORCH(q, q, q))
    assert len(calls) == 2
    assert functional.scaled_dot_product_attention is TORCH


def test_blocks_of_threads_overlap(calls):
    q = rand(1, 1, 3, 8)
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    def first():
        with replace_sdpa():
            first_is_in.set()
            assert second_is_in.wait(10)
        first_is_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(10)
    with replace_sdpa():
        second_is_in.set()
        assert first_is_out.wait(10)
        functional.scaled_dot_product_attention(q, q, q)
    thread.join()
    assert len(calls) == 1
    assert functional.scaled_dot_product_attention is TORCH


def test_a_reference_kept_past_the_block_is_torchs(calls):
    q = rand(1, 1, 3, 8)
    with replace_sdpa():
        kept = functional.scaled_dot_product_attention
    torch.testing.assert_close(kept(q, q, q), TORCH(q, q, q))
    assert not calls


def test_a_function_put_there_inside_the_block_stays(monkeypatch):
    def other(*args, **kwargs):
        return TORCH(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", TORCH)
    with replace_sdpa():
        functional.scaled_dot_product_attention = other
    assert functional.scaled_dot_product_attention is other


def test_multihead_attention_and_transformer_layers(calls):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    x = rand(2, 6, 16)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True

    def step():
        layer.zero_grad()
        y = layer(x, src_key_padding_mask=padding)
        y[0].square().sum().backward()
        return y[0].detach(), layer.self_attn.in_proj_weight.grad.clone()

    want = step()
    with replace_sdpa():
        got = step()
    assert len(calls) == 1
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_compiled_inside_a_block(calls):
    q = rand(2, 2, 5, 8)
    f = torch.compile(
        lambda q: functional.scaled_dot_product_attention(q, q, q), backend="eager", fullgraph=True
    )
    with replace_sdpa():
        inside = f(q)
        ran = len(calls)
    torch.testing.assert_close(inside, f(q))
    assert ran == 1
    assert len(calls) == 1
