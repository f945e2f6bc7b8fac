# SPDX-License-Identifier: MIT OR Apache-2.0
"""What torch users do around a call: transforms, default devices, counters, options as tensors.

Each is computed right or refused by a sentence; none is dropped in silence.
"""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.func import jacrev, vmap  # noqa: E402

from tandem_attention import InvalidArgumentError, UnsupportedError  # noqa: E402
from tandem_attention.drop_in.flash_attn import flash_attn_with_kvcache  # noqa: E402
from tandem_attention.drop_in.sdpa import scaled_dot_product_attention as sdpa  # noqa: E402
from tandem_attention.torch import attention  # noqa: E402


def qkv(*shape: int, grad: bool = False) -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.randn(*shape).requires_grad_(grad) for _ in "qkv"]


@pytest.mark.parametrize("function", [attention, sdpa])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_forward_mode_is_refused(function: Any, place: int) -> None:
    tensors = qkv(1, 2, 5, 8)
    with forward_ad.dual_level():
        tensors[place] = forward_ad.make_dual(tensors[place], torch.ones(1, 2, 5, 8))
        with pytest.raises(UnsupportedError, match=f"{'qkv'[place]} has a tangent"):
            function(*tensors)
        attention(*qkv(1, 2, 5, 8))  # without a tangent all is well


def test_jvp_is_refused() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    with pytest.raises((UnsupportedError, RuntimeError)):
        torch.func.jvp(lambda x: attention(x, k, v), (q,), (torch.ones_like(q),))


def test_vmap_with_one_batch_entry() -> None:
    x = torch.randn(5, 1, 1, 4, 3)
    n = torch.tensor([3])
    got = vmap(lambda t: attention(t, t, t, lengths_kv=n))(x)
    want = torch.stack([attention(t, t, t, lengths_kv=n) for t in x])
    torch.testing.assert_close(got, want)
    q, k, v = qkv(1, 1, 3, 2)
    jacobian = jacrev(lambda t: attention(t, k, v, lengths_kv=n))(q)
    loop = torch.autograd.functional.jacobian(lambda t: attention(t, k, v, lengths_kv=n), q)
    torch.testing.assert_close(jacobian, loop)


def test_vmap_with_dropout() -> None:
    q, k, v = (t.expand(4, *t.shape).contiguous() for t in qkv(2, 1, 16, 8))
    call = vmap(lambda a, b, c: attention(a, b, c, dropout=0.5), randomness="same")
    same = call(q, k, v)
    assert all(torch.equal(same[0], row) for row in same)
    call = vmap(lambda a, b, c: attention(a, b, c, dropout=0.5), randomness="different")
    different = call(q, k, v)
    assert not any(torch.equal(different[0], row) for row in different[1:])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda a, b, c: attention(a, b, c, dropout=0.5))(q, k, v)


def test_batched_gradients() -> None:
    q, k, v = qkv(2, 2, 5, 8, grad=True)
    o = attention(q, k, v)
    rows = torch.randn(3, *o.shape)
    got = torch.autograd.grad(o, (q, k, v), rows, is_grads_batched=True, retain_graph=True)
    for n in range(3):
        want = torch.autograd.grad(o, (q, k, v), rows[n], retain_graph=True)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a[n], b)
    one = torch.autograd.functional.jacobian(lambda t: attention(t, k, v), q)
    torch.testing.assert_close(
        torch.autograd.functional.jacobian(lambda t: attention(t, k, v), q, vectorize=True), one
    )


def test_another_default_device() -> None:
    q, k, v = (t.expand(3, *t.shape).contiguous() for t in qkv(2, 1, 8, 8))
    with torch.device("meta"):
        assert attention(q[0], k[0], v[0], dropout=0.5).device.type == "cpu"
        made = vmap(lambda a, b, c: attention(a, b, c, dropout=0.5), randomness="same")(q, k, v)
    assert made.device.type == "cpu"


def test_options_that_are_no_numbers() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    with pytest.raises(InvalidArgumentError, match="scale is nan"):
        attention(q, k, v, scale=math.nan)
    parameter = torch.nn.Parameter(torch.tensor(0.5))
    with pytest.raises(UnsupportedError, match="scale requires a gradient"):
        attention(q, k, v, scale=parameter)
    with pytest.raises(UnsupportedError, match="alpha requires a gradient"):
        attention(q, k, v, normalizer="entmax", alpha=parameter + 1)
    with pytest.raises(InvalidArgumentError, match=r"window\[0\] is 2.5, which is no whole number"):
        attention(q, k, v, window=(2.5, 1.0))
    with pytest.raises(InvalidArgumentError, match=r"seed is 1\.5"):
        attention(q, k, v, dropout=0.5, seed=1.5)
    seeded = attention(q, k, v, dropout=0.5, seed=torch.tensor(3))
    assert torch.equal(seeded, attention(q, k, v, dropout=0.5, seed=3))


def test_scale_of_a_tensor_is_read_each_time() -> None:
    q, k, v = qkv(1, 2, 5, 8)
    scale = torch.tensor(0.5)
    first = attention(q, k, v, scale=scale)
    scale.fill_(2.0)
    assert torch.equal(attention(q, k, v, scale=scale), attention(q, k, v, scale=2.0))
    assert not torch.equal(first, attention(q, k, v, scale=scale))


def test_meta_tensors() -> None:
    q, k, v = (torch.randn(2, 3, 5, 8, device="meta", requires_grad=True) for _ in "qkv")
    o = attention(q, k, v, causal=True)
    assert o.shape == (2, 3, 5, 8)
    assert o.device.type == "meta"
    o.sum().backward()
    assert q.grad is not None
    assert q.grad.shape == q.shape


def test_full_cache_is_refused_before_it_is_written() -> None:
    cache_k, cache_v = (torch.randn(1, 8, 2, 8) for _ in "kv")
    before = cache_k.clone(), cache_v.clone()
    q, k, v = qkv(1, 3, 2, 8)
    lengths = torch.tensor([7], dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match="10 keys; the cache has room for 8"):
        flash_attn_with_kvcache(q, cache_k, cache_v, k, v, cache_seqlens=lengths)
    for wrong_k, wrong_v, length in ((k, v[..., :4], 2), (k, v.half(), 2), (k, v, -2)):
        with pytest.raises(InvalidArgumentError):
            flash_attn_with_kvcache(
                q, cache_k, cache_v, wrong_k, wrong_v,
                cache_seqlens=torch.tensor([length], dtype=torch.int32),
            )  # fmt: skip
    assert torch.equal(cache_k, before[0])
    assert torch.equal(cache_v, before[1])


def test_flops_are_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = qkv(1, 12, 64, 64, grad=True)
    with FlopCounterMode(display=False) as counter:
        o = attention(q, k, v)
        assert counter.get_total_flops() == 12_582_912
        o.sum().backward()
    assert counter.get_total_flops() == 12_582_912 * 7 // 2


def test_threads_follow_torch() -> None:
    from tandem_attention import _devices

    before = torch.get_num_threads()
    q, k, v = qkv(1, 2, 5, 8)
    want = attention(q, k, v)
    try:
        torch.set_num_threads(3)
        assert torch.equal(attention(q, k, v), want)
    finally:
        torch.set_num_threads(before)
    assert ("cpu", 3) in _devices._open


def test_import_says_nothing() -> None:
    command = [sys.executable, "-c", "import tandem_attention.torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
