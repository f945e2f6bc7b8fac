# SPDX-License-Identifier: MIT OR Apache-2.0
"""Plain eager calls: the operators in C++ serve them, and give what the calls from Python give.

TANDEM_TEST_TORCH_DEVICE=cuda runs the same on a GPU.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tandem_attention import UnsupportedError, _core, _plans  # noqa: E402
from tandem_attention.torch import _eager, attention, eager_info  # noqa: E402

DEVICE = os.environ.get("TANDEM_TEST_TORCH_DEVICE", "cpu")
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
HAS_ABI = TORCH >= (2, 10) and sys.platform != "win32"
pytestmark = pytest.mark.skipif(not HAS_ABI, reason="the operators need torch 2.10 and dlopen()")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)
    torch.set_num_threads(1)


def normal(*shape: int, **options: Any) -> Tensor:
    return torch.randn(*shape, device=DEVICE, **options)


def served() -> tuple[int, int]:
    info = eager_info()
    return info.forward, info.backward


def leaves(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    return [t.detach().requires_grad_() for t in (q, k, v)]


Results = list[Tensor]


def both_ways(call: Callable[[], Results], monkeypatch: pytest.MonkeyPatch) -> Results:
    """What the call gives from Python and by the operators, which have to be the same."""
    with monkeypatch.context() as patch:
        patch.setattr(_eager, "serving", False)
        before = served()
        want = call()
        assert served() == before
    call()  # plans
    got = call()
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert a.stride() == b.stride()
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    return got


def test_operators_serve() -> None:
    info = eager_info()
    assert info.operator == "c++", info.reason
    assert info.formula == "c++", info.reason
    assert info.reason == ""


def test_a_torch_without_the_functions_is_named(tmp_path: Path) -> None:
    why = _core.torch_connect(str(tmp_path), "tandem")
    assert why == f"this torch has no libtorch_cpu in {tmp_path}"
    test_operators_serve()


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (5, 3), "align": "bottom_right"},
    "scale and softcap": {"scale": 0.3, "softcap": 4.0},
    "dropout": {"dropout": 0.3, "seed": 2**64 - 5, "offset": 7},
    "entmax": {"normalizer": "entmax"},
    "bias": {"bias": (1, 4, 24, 24)},
    "bias of one head and row": {"bias": (2, 1, 1, 24)},
    "bias of two dimensions": {"bias": (24, 24)},
    "keep": {"keep": (2, 1, 24, 24)},
    "bias and keep": {"bias": (1, 4, 24, 24), "keep": (2, 1, 1, 24), "causal": True},
    "deterministic": {"deterministic": True, "bias": (1, 4, 24, 24)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_served_as_from_python(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = dict(CASES[name])
    q = normal(2, 4, 24, 16, dtype=dtype)
    k, v = normal(2, 2, 24, 16, dtype=dtype), normal(2, 2, 24, 8, dtype=dtype)
    inputs = leaves(q, k, v)
    if "bias" in words:
        words["bias"] = normal(*words["bias"], dtype=dtype).requires_grad_()
        inputs.append(words["bias"])
    if "keep" in words:
        words["keep"] = torch.rand(*words["keep"], device=DEVICE) > 0.3
    d_o = normal(2, 4, 24, 8, dtype=dtype)

    def call() -> Results:
        o = attention(*inputs[:3], **words)
        return [o, *torch.autograd.grad(o, inputs, d_o)]

    both_ways(call, monkeypatch)
    forward, backward = served()
    call()
    assert served() == (forward + 1, backward + 1)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("transposed", [False, True])
def test_layouts(layout: str, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves(*(normal(2, 6, 5, 8) for _ in "qkv"))
    views = [t.transpose(1, 2) if transposed else t for t in inputs]
    d_o = normal(*views[0].shape)

    def call() -> Results:
        o = attention(*views, layout=layout)
        return [o, *torch.autograd.grad(o, inputs, d_o)]

    both_ways(call, monkeypatch)
    before = served()
    call()
    assert served() == (before[0] + 1, before[1] + 1)


def test_some_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, bias = normal(1, 2, 9, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 8), normal(1, 2, 9, 9)
    for chosen in ([0], [1, 2], [3], [0, 3]):
        tensors = [t.detach().requires_grad_(n in chosen) for n, t in enumerate((q, k, v, bias))]

        def call(tensors: list[Tensor] = tensors, chosen: list[int] = chosen) -> Results:
            o = attention(*tensors[:3], bias=tensors[3])
            return list(torch.autograd.grad(o.sin().sum(), [tensors[n] for n in chosen]))

        both_ways(call, monkeypatch)


def test_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (normal(1, 2, 9, 8) for _ in "qkv")
    both_ways(lambda: list(attention(q, k, v, return_lse=True)), monkeypatch)
    q.requires_grad_()
    with torch.no_grad():
        before = served()
        assert not attention(q, k, v).requires_grad
        assert served() == (before[0] + 1, before[1])


def test_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves(*(normal(1, 2, 9, 8) for _ in "qkv"))

    def of_both() -> Results:
        o, lse = attention(*inputs, return_lse=True)
        return list(torch.autograd.grad(o.sin().sum() + lse.cos().sum(), inputs))

    def of_lse() -> Results:
        return list(torch.autograd.grad(attention(*inputs, return_lse=True)[1].sum(), inputs[:2]))

    def of_o() -> Results:
        o, _ = attention(*inputs, return_lse=True)
        return list(torch.autograd.grad(o.sin().sum(), inputs))

    for call in (of_both, of_lse, of_o):
        both_ways(call, monkeypatch)
    before = served()
    of_o()
    assert served() == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("kind", ["expanded", "transposed", "sliced"])
def test_gradients_of_o_in_other_strides(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves(*(normal(2, 2, 8, 8) for _ in "qkv"))
    d_o = {
        "expanded": lambda: normal(1, 1, 1, 1).expand(2, 2, 8, 8),
        "transposed": lambda: normal(2, 2, 8, 8).transpose(2, 3),
        "sliced": lambda: normal(2, 2, 8, 16)[..., ::2],
    }[kind]()

    def call() -> Results:
        return list(torch.autograd.grad(attention(*inputs), inputs, d_o))

    both_ways(call, monkeypatch)


def test_saved_tensors_may_come_back_in_other_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves(*(normal(2, 2, 8, 8) for _ in "qkv"))
    d_o = normal(2, 2, 8, 8)

    def unpack(t: Tensor) -> Tensor:
        other = torch.empty_like(t.transpose(0, 1).contiguous()).transpose(0, 1)
        return other.copy_(t) if t.dim() == 4 else t

    def call() -> Results:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            return list(torch.autograd.grad(attention(*inputs), inputs, d_o))

    want = list(torch.autograd.grad(attention(*inputs), inputs, d_o))
    for a, b in zip(both_ways(call, monkeypatch), want, strict=True):
        torch.testing.assert_close(a, b)


def test_checkpoint_of_the_first_call() -> None:
    for keep in (None, torch.ones(1, 1, 11, 11, device=DEVICE) > 0):
        inputs = leaves(*(normal(2, 2, 11, 8) for _ in "qkv"))
        _plans.clear()
        o = checkpoint(lambda *t, keep=keep: attention(*t, keep=keep), *inputs, use_reentrant=False)
        got = torch.autograd.grad(o.sin().sum(), inputs)
        want = torch.autograd.grad(attention(*inputs, keep=keep).sin().sum(), inputs)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def test_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves(*(normal(2, 2, 8, 8) for _ in "qkv"))

    def call() -> Results:
        o = checkpoint(attention, *inputs, use_reentrant=False)
        return [o, *torch.autograd.grad(o.sin().sum(), inputs)]

    both_ways(call, monkeypatch)


def test_what_python_serves() -> None:
    q, k, v = leaves(*(normal(2, 2, 8, 8) for _ in "qkv"))
    calls: list[Callable[[], Any]] = [
        lambda: attention(q, k, v, slope=torch.ones(2, device=DEVICE)),
        lambda: attention(q, k, v, lengths_kv=torch.tensor([3, 8], device=DEVICE)),
        lambda: attention(q, k, v, return_max_logit=True),
    ]
    for call in calls:
        call()
        before = served()
        call()
        assert served() == before


NODE = "ScaledDotProductFusedAttentionOverrideableBackward0"


def test_which_calls_the_formula_in_cpp_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves(*(normal(2, 2, 8, 8) for _ in "qkv"))
    bias, keep = normal(1, 2, 8, 8), torch.ones(1, 1, 8, 8, device=DEVICE) > 0

    def name(**words: Any) -> str:
        for _ in range(2):
            o = attention(*inputs, **words)
        return str((o[0] if isinstance(o, tuple) else o).grad_fn.name())

    assert name() == NODE
    assert name(bias=bias, causal=True, softcap=2.0) == NODE
    for words in ({"keep": keep}, {"dropout": 0.5}, {"return_lse": True}):
        assert name(**words) == ("_AttentionLse" if "return_lse" in words else "_Attention") + (
            "Backward"
        )
    monkeypatch.setattr(_eager, "overriding", False)
    assert name() == "_AttentionBackward"


def test_both_formulas_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves(*(normal(2, 2, 8, 8) for _ in "qkv"))
    inputs.append(normal(1, 2, 8, 8).requires_grad_())
    results = []
    for overriding in (False, True):
        monkeypatch.setattr(_eager, "overriding", overriding)
        for _ in range(2):
            o = attention(*inputs[:3], bias=inputs[3])
            made = torch.autograd.grad(o.sin().sum(), inputs)
        results.append([o, *made])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_batched_gradients_of_the_formula() -> None:
    q, k, v = leaves(*(normal(2, 2, 5, 8) for _ in "qkv"))
    attention(q, k, v)
    o = attention(q, k, v)
    assert o.grad_fn.name() == NODE
    rows = normal(3, *o.shape)
    want = [torch.autograd.grad(o, (q, k, v), row, retain_graph=True) for row in rows]
    by_engine = torch.autograd.grad(o, (q, k, v), rows, is_grads_batched=True, retain_graph=True)
    by_vmap = torch.func.vmap(
        lambda row: torch.autograd.grad(o, (q, k, v), row, retain_graph=True)
    )(rows)
    for got in (by_engine, by_vmap):
        for n in range(3):
            for a, b in zip(got, want[n], strict=True):
                torch.testing.assert_close(a[n], b)


def test_errors_of_the_backward_keep_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = leaves(*(normal(1, 2, 8, 8) for _ in "qkv"))
    attention(q, k, v)
    o = attention(q, k, v)
    assert o.grad_fn.name() == NODE
    _plans.clear()

    def refuse(*_: Any) -> Any:
        raise UnsupportedError("no such plan today")

    with monkeypatch.context() as patch:
        patch.setattr(_eager._kernels, "backward_call", refuse)
        with pytest.raises(UnsupportedError, match="no such plan today"):
            o.sum().backward(torch.tensor(1.0, device=DEVICE), retain_graph=True)
        d_o = normal(1, 2, 8, 8)
        with pytest.raises(UnsupportedError, match="no such plan today"):
            o.backward(d_o, retain_graph=True)
    assert q.grad is None
    o.backward(d_o)
    assert q.grad is not None


def test_interrupts_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = leaves(*(normal(1, 2, 8, 8) for _ in "qkv"))
    _plans.clear()

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_eager._kernels, "forward_call", interrupt)
        with pytest.raises(KeyboardInterrupt):
            attention(q, k, v)
    o = attention(q, k, v)
    assert o.grad_fn.name() == NODE
    with monkeypatch.context() as patch:
        patch.setattr(_eager._kernels, "backward_call", interrupt)
        with pytest.raises(KeyboardInterrupt):
            o.backward(normal(1, 2, 8, 8))


def test_calls_of_others_are_refused() -> None:
    q = normal(1, 2, 8, 8)
    with pytest.raises(RuntimeError, match="overridden by tandem_attention alone"):
        torch.ops.aten._scaled_dot_product_fused_attention_overrideable(q, q, q)


def test_many_options_have_no_number_in_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plans, "LIMIT", 0)
    monkeypatch.setattr(_eager, "_known", {})
    q, k, v = leaves(*(normal(1, 2, 8, 8) for _ in "qkv"))
    for _ in range(2):
        o = attention(q, k, v, scale=0.123)
    assert o.grad_fn.name() == "_AttentionBackward"


def test_operations_of_graphs_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = leaves(*(normal(2, 2, 8, 8) for _ in "qkv"))
    bias, slope = normal(1, 2, 8, 8).requires_grad_(), torch.ones(2, device=DEVICE)

    def of_func() -> Results:
        f = torch.func.grad(lambda x, b: attention(x, *inputs[1:], bias=b).sin().sum(), (0, 1))
        return list(f(inputs[0], bias))

    def of_vmap() -> Results:
        return [torch.func.vmap(attention)(*(t[None] for t in inputs))]

    def with_lse() -> Results:
        d_o, d_lse = torch.ones(2, 2, 8, 8, device=DEVICE), torch.ones(2, 2, 8, device=DEVICE)
        f = torch.func.vjp(lambda x: attention(x, *inputs[1:], return_lse=True), inputs[0])[1]
        return list(f((d_o, d_lse)))

    for call in (of_func, of_vmap, with_lse):
        both_ways(call, monkeypatch)
        before = served()
        call()
        assert served() > before

    def of_python() -> Results:
        return [torch.func.grad(lambda x: attention(x, *inputs[1:], slope=slope).sum())(inputs[0])]

    of_python()
    before = served()
    of_python()
    assert served() == before


def test_second_derivatives_are_refused() -> None:
    q, k, v = leaves(*(normal(1, 2, 8, 8) for _ in "qkv"))
    for _ in range(2):
        o = attention(q, k, v)
        (d_q,) = torch.autograd.grad(o.sin().sum(), q, create_graph=True)
        with pytest.raises(UnsupportedError, match="no second derivatives"):
            d_q.sum().backward()


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: (q, k[:, :1].expand(-1, 3, -1, -1), v),
        lambda q, k, v: (q, k.double(), v),
        lambda q, k, v: (q, k[0], v),
        lambda q, k, v: (q[None], k[None], v[None]),
        lambda q, k, v: (q, k, v[:, :, :4]),
        lambda q, k, v: (q.to_sparse(), k, v),
        lambda q, k, v: (q, k.to_sparse(), v),
        lambda q, k, v: (q, k.to("meta"), v),
        lambda q, k, v: (q.int(), k.int(), v.int()),
        lambda q, k, v: (q, None, v),
    ],
)
def test_errors_are_those_from_python(
    change: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = change(*(normal(1, 2, 8, 8) for _ in "qkv"))
    errors = []
    tensors = [None if t is None else t.requires_grad_(t.is_floating_point()) for t in tensors]
    for serving in (False, True):
        monkeypatch.setattr(_eager, "serving", serving)
        with pytest.raises(Exception) as caught:  # noqa: PT011 of any kind
            attention(*tensors)
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_plans_may_go_at_any_time() -> None:
    inputs = leaves(*(normal(1, 2, 16, 8) for _ in "qkv"))
    d_o = normal(1, 2, 16, 8)
    want = torch.autograd.grad(attention(*inputs), inputs, d_o)
    wrong: list[Any] = []

    def work() -> None:
        try:
            for _ in range(100):
                got = torch.autograd.grad(attention(*inputs), inputs, d_o)
                assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        _plans.clear()
    for thread in threads:
        thread.join()
    assert not wrong
    before = served()
    attention(*inputs)
    attention(*inputs)
    assert served()[0] >= before[0] + 1


@pytest.mark.skipif(DEVICE != "cpu", reason="counts the CPU's threads")
def test_threads_are_part_of_a_plan() -> None:
    q, k, v = (normal(1, 2, 16, 8) for _ in "qkv")
    attention(q, k, v)
    declined = eager_info().declined
    torch.set_num_threads(2)
    attention(q, k, v)
    assert eager_info().declined == declined + 1


def _child(q: Tensor, pipe: Any) -> None:
    o = attention(q, q, q)
    before = served()
    same = torch.equal(o, attention(q, q, q))
    pipe.send((same, served()[0] - before[0]))


@pytest.mark.skipif(DEVICE != "cpu", reason="no CUDA in the child of a fork")
def test_fork() -> None:
    q = normal(1, 2, 16, 8)
    attention(q, q, q)
    attention(q, q, q)
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe()
    child = context.Process(target=_child, args=(q, its))
    child.start()
    assert mine.poll(60)
    assert mine.recv() == (True, 1)
    child.join()


@pytest.mark.skipif(DEVICE != "cuda", reason="captures a CUDA graph")
def test_captured_plans_stay() -> None:
    x = normal(1, 2, 64, 64, dtype=torch.bfloat16).requires_grad_()
    d_o = normal(1, 2, 64, 64, dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            torch.autograd.grad(attention(x, x, x), x, d_o)
    torch.cuda.synchronize()
    before = served()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        o = attention(x, x, x)
        (d_x,) = torch.autograd.grad(o, x, d_o)
    assert served() == (before[0] + 1, before[1] + 1)
    _plans.clear()
    with torch.no_grad():
        x.copy_(normal(1, 2, 64, 64))
    graph.replay()
    again = attention(x, x, x)
    torch.testing.assert_close(o, again)
    torch.testing.assert_close(d_x, torch.autograd.grad(again, x, d_o)[0])
