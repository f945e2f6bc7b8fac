# SPDX-License-Identifier: MIT OR Apache-2.0
"""Derivatives, options and outputs at the edges of a call: computed right or refused by a sentence.

test_torch_faults.py has the plain cases; here are the other ways that lead to the same faults.
TANDEM_TEST_TORCH_DEVICE=cuda runs the same on a GPU, but for what is said of the CPU alone.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch import Tensor  # noqa: E402

import tandem_attention as ta  # noqa: E402
from tandem_attention import InvalidArgumentError, UnsupportedError, _plans  # noqa: E402
from tandem_attention.drop_in.flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from tandem_attention.torch import attention  # noqa: E402

on_cpu = pytest.mark.skipif(
    os.environ.get("TANDEM_TEST_TORCH_DEVICE", "cpu") != "cpu", reason="tensors of the CPU alone"
)


def qkv(*shape: int, grad: bool = False) -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.randn(*shape).requires_grad_(grad) for _ in "qkv"]


def dual(t: Tensor) -> Any:
    return forward_ad.make_dual(t, torch.ones_like(t))


@pytest.mark.parametrize("way", ["out", "device"])
def test_forward_mode_is_refused_where_memory_is_named(way: str) -> None:
    q, k, v = qkv(1, 2, 5, 8)
    named = {"out": torch.empty_like(q)} if way == "out" else {"device": "cpu"}
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="k has a tangent"):
        ta.attention(q, dual(k), v, **named)


def test_forward_mode_is_refused_in_the_backward() -> None:
    q, k, v = qkv(1, 2, 5, 8, grad=True)
    o = attention(q, k, v)
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="d_o has a tangent"):
        torch.autograd.grad(o, q, dual(torch.ones_like(o)))
    q, k, v = (t.detach() for t in (q, k, v))
    o, lse = ta.attention(q, k, v, return_lse=True)
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="d_o has a tangent"):
        ta.attention_backward(dual(torch.ones_like(o)), q, k, v, o, lse)


def test_forward_mode_of_options_is_refused() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    one = torch.tensor(1.0)
    with pytest.raises(UnsupportedError, match="scale has a tangent"):
        torch.func.jvp(lambda s: attention(q, k, v, scale=s), (one,), (one,))
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="alpha has a tangent"):
        attention(q, k, v, normalizer="entmax", alpha=dual(one + 0.5))
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="alibi_slopes has a tang"):
        flash_attn_func(*turned, alibi_slopes=dual(torch.ones(2)))


def test_forward_over_reverse_is_refused() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    with pytest.raises(UnsupportedError, match="forward-mode derivatives"):
        torch.func.hessian(lambda x: attention(x, k, v).sum())(q)


def test_gradients_that_out_would_lose_are_refused() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    out = torch.empty_like(q)
    v.requires_grad_()
    with pytest.raises(UnsupportedError, match="v requires a gradient"):
        ta.attention(q, k, v, out=out)
    with torch.no_grad():
        assert torch.equal(ta.attention(q, k, v, out=out), attention(q, k, v))
    with pytest.raises(UnsupportedError, match="out requires a gradient"):
        ta.attention(q, k, v.detach(), out=out.requires_grad_())


def test_options_of_arrays_that_are_no_numbers() -> None:
    q, k, v = (t.cpu().numpy() for t in qkv(1, 2, 5, 8))
    parameter = torch.nn.Parameter(torch.tensor(0.5))
    for name in ("scale", "softcap", "dropout"):
        with pytest.raises(UnsupportedError, match=f"{name} requires a gradient"):
            ta.attention(q, k, v, **{name: parameter})
    with pytest.raises(UnsupportedError, match="alpha requires a gradient"):
        ta.attention(q, k, v, normalizer="entmax", alpha=parameter + 1)
    for function, tensors in ((ta.attention, (q, k, v)), (attention, qkv(1, 2, 5, 8))):
        for name in ("seed", "offset"):
            with pytest.raises(InvalidArgumentError, match=f"{name} is 1.5, which is no whole"):
                function(*tensors, dropout=0.5, **{"seed": 3, name: 1.5})
        with pytest.raises(InvalidArgumentError, match="scale is 'wide', which is no number"):
            function(*tensors, scale="wide")
        for window in (3, (1,), (1, 2, 3)):
            with pytest.raises(InvalidArgumentError, match=r"window is \(left, right\) or"):
                function(*tensors, window=window)
    low = ta.attention(q, k, v, dropout=0.5, seed=2**64 - 1)
    assert (ta.attention(q, k, v, dropout=0.5, seed=-1) == low).all()


def test_flash_options_that_are_no_numbers() -> None:
    q, k, v = qkv(1, 5, 2, 8)
    with pytest.raises(InvalidArgumentError, match=r"window_size\[0\] is 2\.5"):
        flash_attn_func(q, k, v, window_size=(2.5, 1))
    with pytest.raises(UnsupportedError, match="softcap requires a gradient"):
        flash_attn_func(q, k, v, softcap=torch.nn.Parameter(torch.tensor(1.0)))


@on_cpu
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_output_of_another_device_that_is_an_input_is_refused(kind: str) -> None:
    wide, k, v = (t.numpy() if kind == "numpy" else t for t in qkv(1, 2, 5, 16))
    q, k, v = wide[..., :8], k[..., :8], v[..., :8]
    before = wide + 0
    for out in (q, wide[..., 4:12], k, v):
        with pytest.raises(InvalidArgumentError, match=r"out shares memory with [qkv]: "):
            ta.attention(q, k, v, out=out, device="cuda:0")
    assert (wide == before).all()
    # Elements that interleave with an input are free: the call goes on, to a device that is not.
    with pytest.raises(ta.DeviceError):
        ta.attention(q, k, v, out=wide[..., 8:], device="cuda:77")


def test_writing_to_out_is_known_to_autograd() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    out, weight = torch.zeros_like(q), torch.ones_like(q, requires_grad=True)
    product = weight * out  # its backward reads out
    ta.attention(q, k, v, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_meta_tensors_are_checked() -> None:
    own = torch.zeros(2, 2, 5, 8)
    q, k, v = (t.to("meta") for t in qkv(2, 2, 5, 8))
    with pytest.raises(InvalidArgumentError, match="k has a head size of 4 where q has 8"):
        attention(q, k[..., :4], v)
    with pytest.raises(InvalidArgumentError, match=f"k lies on {own.device}, q on meta"):
        attention(q, own, v)
    with pytest.raises(InvalidArgumentError, match="does not broadcast"):
        attention(q, k, v, bias=torch.zeros(2, 2, 4, 5, device="meta"))
    with pytest.raises(UnsupportedError, match="q is int32"):
        attention(q.int(), k.int(), v.int())
    assert attention(q, k, v, dropout=0.5).shape == q.shape


def test_cache_is_left_alone_by_a_call_that_fails() -> None:
    q, k, v = qkv(1, 3, 2, 8)
    lengths = torch.tensor([2], dtype=torch.int32)
    table = torch.tensor([[0, 5]], dtype=torch.int32)
    entry = torch.tensor([4], dtype=torch.int32)
    cases: list[tuple[Tensor, dict[str, Any], str]] = [
        (q, {"cache_batch_idx": entry}, "cache_batch_idx has the entry 4; the cache has 2"),
        (q, {"block_table": table}, "block_table has the page 5; the cache has 2"),
        (q, {"alibi_slopes": torch.ones(3)}, "alibi_slopes has the shape"),
        (q, {"window_size": (1.5, 0)}, "window_size"),
        (q, {"softmax_scale": float("nan")}, "scale is nan"),
        (q, {"softcap": float("nan")}, "softcap is nan"),
        (q[..., :4], {}, "head size"),
        (q.half(), {}, "float"),
        (q[:, :, :1], {}, "heads"),
    ]
    for query, more, sentence in cases:
        rows = 4 if "block_table" in more else 8
        cache_k, cache_v = (torch.ones(2, rows, 2, 8) for _ in "kv")
        with pytest.raises(ta.TandemError, match=sentence):
            flash_attn_with_kvcache(query, cache_k, cache_v, k, v, cache_seqlens=lengths, **more)
        assert (cache_k == 1).all(), sentence
        assert (cache_v == 1).all(), sentence


def test_a_buffer_gets_its_own_address() -> None:
    from tandem_attention._problem import BUFFERS, GRADIENTS
    from tandem_attention.torch import _kernels

    kept = {name: torch.empty(4) for name in BUFFERS if name != "workspace"}
    want = {"workspace": 4096, **{name: t.data_ptr() for name, t in kept.items()}}
    outputs = {name: kept[name] for name in ("o", "lse")}
    inputs = _kernels.Inputs(**{name: kept[name] for name in _kernels.Inputs._fields})
    made = [kept[f"d_{name}"] for name in GRADIENTS]
    given = _kernels._backward_addresses(
        inputs, made, (kept["d_lse"],), d_o=kept["d_o"], **outputs, workspace=4096
    )
    others = ("max_logit", "part_o", "part_lse", "d_part_o", "d_part_lse")  # of other directions
    assert dict(zip(BUFFERS, given, strict=True)) == {**want, **dict.fromkeys(others, 0)}
    few = _kernels.Inputs(kept["q"], kept["k"], kept["v"], sink=kept["sink"])
    given = _kernels._forward_addresses(few, (kept["max_logit"],), **outputs, workspace=4096)
    present = {"q", "k", "v", "sink", "o", "lse", "max_logit", "workspace"}
    assert dict(zip(BUFFERS, given, strict=True)) == {
        name: at if name in present else 0 for name, at in want.items()
    }
    with pytest.raises(ValueError, match=r"a call has no buffers .*slopes"):
        _kernels._addresses_by(("q", "slopes"), tensors=())


def test_complex_vectors_are_refused() -> None:
    q, k, v = qkv(1, 2, 4, 8)
    wrong = torch.ones(2, dtype=torch.complex64)
    options: dict[str, dict[str, Any]] = {
        "slope": {}, "sink": {}, "tau": {"normalizer": "elastic"},
        "dist_bias": {}, "bias_table": {"bias_index": torch.zeros(4, 4, dtype=torch.int32)},
    }  # fmt: skip
    for name, more in options.items():
        value = wrong[:, None].expand(2, 4) if name in ("dist_bias", "bias_table") else wrong
        with pytest.raises(InvalidArgumentError, match=f"{name} is complex64, must be real"):
            attention(q, k, v, **{name: value}, **more)


def test_lengths_that_are_no_whole_numbers_are_refused() -> None:
    q, k, v = qkv(2, 1, 4, 8)
    want = attention(q, k, v, lengths_kv=torch.tensor([2, 3]))
    for kind in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(attention(q, k, v, lengths_kv=torch.tensor([2, 3], dtype=kind)), want)
    for name in ("lengths_q", "lengths_kv"):
        for wrong in (torch.tensor([2.5, 3.5]), torch.tensor([2.0, 3.0]), torch.tensor([True] * 2)):
            kind = str(wrong.dtype)[6:]
            with pytest.raises(
                InvalidArgumentError, match=f"{name} is {kind}, not of a type of whole numbers"
            ):
                attention(q, k, v, **{name: wrong})
    packed = [t.reshape(1, 8, 8) for t in (q, k, v)]
    for name, other in (("offsets_q", "offsets_kv"), ("offsets_kv", "offsets_q")):
        given = {name: torch.tensor([0.0, 4.0, 8.0]), other: torch.tensor([0, 4, 8])}
        with pytest.raises(
            InvalidArgumentError, match=f"{name} is float32, not of a type of whole numbers"
        ):
            attention(*packed, **given)
    with pytest.raises(InvalidArgumentError, match="lengths_kv is a list, not a tensor"):
        attention(q, k, v, lengths_kv=[2, 3])  # type: ignore[arg-type]


def test_lengths_of_drop_ins_are_not_cut() -> None:
    cache_k, cache_v = (torch.randn(2, 8, 2, 8) for _ in "kv")
    before = cache_k.clone(), cache_v.clone()
    q, k, v = qkv(2, 3, 2, 8)
    words: dict[str, Any] = {"cache_seqlens": torch.tensor([1, 2], dtype=torch.int32)}
    for name, wrong in (
        ("cache_seqlens", torch.tensor([1.5, 2.5])),
        ("cache_batch_idx", torch.tensor([0.5, 1.5])),
    ):
        with pytest.raises(InvalidArgumentError, match=f"{name} is float32, not of a type"):
            flash_attn_with_kvcache(q, cache_k, cache_v, k, v, **{**words, name: wrong})
    with pytest.raises(InvalidArgumentError, match=r"cache_seqlens is 1\.5, which is no whole"):
        flash_attn_with_kvcache(q, cache_k, cache_v, k, v, cache_seqlens=1.5)  # type: ignore[arg-type]
    assert torch.equal(cache_k, before[0])
    assert torch.equal(cache_v, before[1])
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    offsets = torch.tensor([0, 3, 6], dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match=r"max_seqlen_k is 3\.5, which is no whole"):
        flash_attn_varlen_func(q, k, v, offsets, offsets, 3, 3.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="cu_seqlens_q is float32, not of a type"):
        flash_attn_varlen_func(q, k, v, offsets.float(), offsets, 3, 3)


@pytest.mark.parametrize("compiled", [False, True])
def test_one_seed_for_different_masks_is_refused(compiled: bool) -> None:
    """As torch, which under vmap draws another mask for each entry where it says "different"."""
    vmap = torch.func.vmap
    q, k, v = qkv(3, 1, 2, 5, 8)

    def call(randomness: str) -> Any:
        made = vmap(lambda a, b, c: attention(a, b, c, dropout=0.5, seed=3), randomness=randomness)
        return torch.compile(made, backend="eager")(q, k, v) if compiled else made(q, k, v)

    same = call("same")
    for n in range(3):
        assert torch.equal(same[n], attention(q[n], k[n], v[n], dropout=0.5, seed=3))
    with pytest.raises(Exception, match="seed gives all entries one mask"):
        call("different")
    nothing = vmap(lambda a: attention(a, a, a, dropout=0.0, seed=3), randomness="different")
    assert torch.equal(nothing(q)[1], attention(q[1], q[1], q[1]))


def test_batch_invariant_rows_have_the_bits_of_their_sequence_alone() -> None:
    q, k, v = (torch.randn(3, 2, 40, 16) for _ in "qkv")
    words = {"causal": "bottom_right", "batch_invariant": True, "return_lse": True}
    whole = attention(q, k, v, **words)
    alone = attention(q[1:2], k[1:2], v[1:2], **words)
    piece = attention(q[1:2, :, 30:33], k[1:2, :, :33], v[1:2, :, :33], **words)
    for of_whole, of_alone, of_piece in zip(whole, alone, piece, strict=True):
        assert torch.equal(of_whole[1:2], of_alone)
        assert torch.equal(of_whole[1:2, :, 30:33], of_piece)
    with pytest.raises(ta.UnsupportedError, match="TANDEM_FLAG_BATCH_INVARIANT"):
        attention(q, k, v, dropout=0.5, batch_invariant=True)


@on_cpu
def test_a_workspace_limit_holds_for_forward_and_backward() -> None:
    q, k, v = qkv(1, 2, 40, 8, grad=True)
    least = ta.plan(q, k, v, backward=True).workspace_bytes
    assert least > 1
    wanted = attention(q, k, v)
    o = attention(q, k, v, workspace_limit=least)
    assert torch.equal(o, wanted)
    (d_q,) = torch.autograd.grad(o, q, torch.ones_like(o))
    assert torch.equal(d_q, torch.autograd.grad(wanted, q, torch.ones_like(o))[0])
    o = attention(q, k, v, workspace_limit=least - 1)  # a forward on the CPU needs none
    with pytest.raises(ta.TandemError, match=f"workspace_limit is {least - 1}.* {least} bytes"):
        torch.autograd.grad(o, q, torch.ones_like(o))
    with pytest.raises(InvalidArgumentError, match="workspace_limit is -1"):
        attention(q, k, v, workspace_limit=-1)


@pytest.mark.parametrize("more", [{}, {"slope": torch.ones(2)}, {"keep": torch.ones(3, 3) > 0}])
def test_negative_views(more: dict[str, Any]) -> None:
    _plans.clear()
    view = torch.randn(1, 2, 3, 8, dtype=torch.complex64).conj().imag
    assert view.is_neg()
    plain = view.resolve_neg().clone()
    for _ in range(2):  # the first call plans
        o = attention(view, plain, view, **more)
        want = attention(plain, plain, plain, **more)
        torch.testing.assert_close(o, want)
    q = plain.clone().requires_grad_()
    for _ in range(2):
        (d_q,) = torch.autograd.grad(attention(q, plain, plain, **more), q, view)
        (want,) = torch.autograd.grad(attention(q, plain, plain, **more), q, plain)
        torch.testing.assert_close(d_q, want)
    with pytest.raises(UnsupportedError, match="k is a negative view"):
        ta.attention(plain, view, plain, out=torch.empty_like(plain))


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("dense", [True, False])
def test_gradients_of_negative_views(dense: bool, which: int) -> None:
    _plans.clear()
    plain = qkv(1, 2, 4, 8)
    plain += [torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 8)]  # bias, and the gradient of o
    gaps = [torch.stack([t, t], -1)[..., 0] for t in plain]
    view = torch._neg_view(-plain[which])
    if not dense:
        view = torch.complex(plain[which], -plain[which]).conj().imag
    assert view.is_neg()
    assert view.stride() == (plain if dense else gaps)[which].stride()

    def gradients(tensors: list[Tensor]) -> tuple[Tensor, ...]:
        own = [t.detach().requires_grad_() for t in tensors[:4]]
        return torch.autograd.grad(attention(*own[:3], bias=own[3]), own, tensors[4])

    want = gradients(plain)
    for other in (view, view, gaps[which], view):  # the first one plans
        got = gradients([*plain[:which], other, *plain[which + 1 :]])
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("more", ["slope", "bias", "keep", "none"])
def test_zeros_without_memory(more: str) -> None:
    """As torch's derivatives make them: operators get them resolved, and no plan may differ."""
    _plans.clear()
    plain = qkv(1, 2, 3, 8)
    zeros: Any = functools.partial(torch._efficientzerotensor, device=plain[0].device)
    kept = {"keep": torch.ones(3, 3, dtype=torch.bool)} if more == "keep" else {}
    shape = {"slope": (2,), "bias": (2, 3, 3)}.get(more)

    def call(given: list[Tensor], make: Any) -> Tensor:
        added = {more: make(*shape)} if shape else {}
        o: Tensor = attention(*given, **kept, **added)
        return o

    for place in (0, 1, 2, 0):  # the first call plans
        of_zeros, with_memory = list(plain), list(plain)
        of_zeros[place] = zeros(1, 2, 3, 8)
        with_memory[place] = torch.zeros(1, 2, 3, 8)
        want = call(with_memory, torch.zeros)
        for _ in range(2):
            torch.testing.assert_close(call(of_zeros, zeros), want)
    q = plain[0].clone().requires_grad_()
    for _ in range(2):
        o = call([q, *plain[1:]], torch.zeros)
        assert (torch.autograd.grad(o, q, zeros(1, 2, 3, 8))[0] == 0).all()
    with pytest.raises(UnsupportedError, match="k is zeros without memory"):
        ta.attention(plain[0], zeros(1, 2, 3, 8), plain[2], out=torch.empty(1, 2, 3, 8))


def test_lengths_beyond_int32_are_beyond_every_sequence() -> None:
    """Their low bits would be other lengths."""
    q, k, v = qkv(2, 2, 4, 8)
    want = attention(q, k, v, lengths_kv=torch.tensor([1, 4]))
    for far in (2**32 + 1, 2**31 + 2):
        assert torch.equal(attention(q, k, v, lengths_kv=torch.tensor([1, far])), want)


def test_a_seed_that_changes_is_a_number_of_the_graph() -> None:
    """Without a remainder of 2^64, which inductor has no type for."""
    operations: list[str] = []

    def record(graph: Any, _: Any) -> Any:
        operations.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    q, k, v = qkv(1, 2, 8, 8)
    f = torch.compile(
        lambda seed: attention(q, k, v, dropout=0.5, seed=seed), backend=record, fullgraph=True
    )
    for seed in (2**64 - 1, 3, 4, -5):
        assert torch.equal(f(seed), attention(q, k, v, dropout=0.5, seed=seed))
        assert not any("mod" in name for name in operations if "module" not in name)


@pytest.mark.parametrize("setting", ["tf32", "ieee"])
def test_tf32_by_the_newer_name_of_the_setting(setting: str) -> None:
    """After which torch refuses to say it by the older one."""
    from tandem_attention.torch._kernels import matmul_tf32

    matmul: Any = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has one name")
    before = matmul.fp32_precision
    f = torch.compile(lambda x: x * 2 if matmul_tf32() else x, backend="eager", fullgraph=True)
    try:
        matmul.fp32_precision = setting
        assert matmul_tf32() == (setting == "tf32")
        assert f(torch.ones(1)) == 1 + (setting == "tf32")
    finally:
        matmul.fp32_precision = before
    assert not matmul.allow_tf32


def test_transforms_inside_a_graph() -> None:
    """vmap has a rule there. Derivatives are refused by name, whatever torch makes of the error."""
    q, k, v = qkv(2, 1, 2, 3, 8)

    def loss(x: Tensor) -> Tensor:
        o: Tensor = attention(x, k[0], v[0])
        return o.sum()

    mapped = torch.compile(lambda *x: torch.vmap(attention)(*x), backend="eager", fullgraph=True)
    torch.testing.assert_close(mapped(q, k, v), torch.vmap(attention)(q, k, v))
    gradient = torch.compile(lambda x: torch.func.grad(loss)(x), backend="eager", fullgraph=True)
    with pytest.raises(
        Exception, match=r"attention has no derivatives of torch\.func inside a graph"
    ):
        gradient(q[0])


def test_a_ring_sums_in_float32_whatever_the_default_is() -> None:
    from tandem_attention._options import make_options
    from tandem_attention.torch import _ring

    q, k, v = qkv(2, 2, 4, 8, grad=True)
    bias = torch.randn(1, 2, 1, 4, requires_grad=True)
    rest = [None] * (len(_ring.Tensors._fields) - 4)
    want = torch.autograd.grad(attention(q, k, v, bias=bias).sin().sum(), (q, k, v, bias))
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        o, _ = _ring.RingAttention.apply(
            make_options(), _ring.Ring(None, 0, 1, 2), q, k, v, bias, *rest
        )
        got = torch.autograd.grad(o.sin().sum(), (q, k, v, bias))
    finally:
        torch.set_default_dtype(default)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_a_bias_of_no_keys_has_a_gradient() -> None:
    q = torch.randn(2, 2, 5, 8, requires_grad=True)
    k = torch.randn(2, 2, 0, 8)
    for heads in (1, 2):
        bias = torch.randn(2, heads, 5, 0, requires_grad=True)
        for _ in range(2):
            made = torch.autograd.grad(attention(q, k, k, bias=bias).sum(), (q, bias))
            assert made[0].eq(0).all()
            assert made[1].shape == bias.shape


@on_cpu
def test_what_is_no_tensor_is_named() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((None, k, v), {}, "q is a NoneType"),
        ((q.numpy(), k, v), {}, "q is a ndarray"),
        ((q, None, v), {}, "k is a NoneType"),
        ((q, None, v), {"bias": q}, "k is a NoneType"),
        ((q, k, [1.0]), {}, "v is a list"),
        ((q, k, v), {"bias": 1.0}, "bias is a float"),
        ((q, k, v), {"keep": k.numpy()}, "keep is a ndarray"),
    ]
    for tensors, more, sentence in cases:
        with pytest.raises(InvalidArgumentError, match=f"{sentence}, not a tensor"):
            attention(*tensors, **more)
    nested = torch.nested.nested_tensor([torch.randn(2, 3, 8), torch.randn(2, 4, 8)])
    for grad in (False, True):
        with pytest.raises(UnsupportedError, match="q is a nested tensor"):
            attention(*(nested.detach().requires_grad_(grad) for _ in "qkv"))


@on_cpu
def test_autocast_leaves_alone_what_torch_leaves_alone() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q.half(), k, v).dtype == torch.bfloat16
        assert attention(q.double(), k.double(), v.double()).dtype == torch.float64
        with pytest.raises(UnsupportedError, match="q is int32"):
            attention(q.int(), k.int(), v.int())
        with pytest.raises(InvalidArgumentError, match="k is a ndarray"):
            attention(q, k.numpy(), v)  # type: ignore[arg-type]
