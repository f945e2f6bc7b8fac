# SPDX-License-Identifier: MIT OR Apache-2.0
"""tandem_attention.torch.attention on CPU tensors: values, gradients, compilers and transforms.

TANDEM_TEST_TORCH_DEVICE=cuda runs the same on a GPU.
"""

from __future__ import annotations

import gc
import math
import os
import resource
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tandem_attention as ta  # noqa: E402
from tandem_attention._options import Options  # noqa: E402
from tandem_attention.torch import _ops, _plain_ops, attention  # noqa: E402
from tandem_attention.torch._kernels import Inputs  # noqa: E402

DEVICE = os.environ.get("TANDEM_TEST_TORCH_DEVICE", "cpu")
GRADIENTS = ("q", "k", "v", "bias", "dist_bias", "slope", "tau", "sink")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)


def normal(*shape: int, **options: Any) -> Tensor:
    return torch.randn(*shape, device=DEVICE, **options)


def math_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    dist_bias: Tensor | None = None,
    slope: Tensor | None = None,
    tau: Tensor | None = None,
    sink: Tensor | None = None,
    causal: bool = False,
    normalizer: str = "softmax",
) -> Tensor:
    """The formulas with torch's operations, for autograd in double."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    t = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).to(q.device)

    def whole(x: Tensor) -> Tensor:  # an entry of x serves a group of the batch's
        return x if x.dim() < 4 else x.repeat_interleave(q.shape[0] // x.shape[0], 0)

    if bias is not None:
        s = s + whole(bias)
    if dist_bias is not None:
        near = (t >= 0) & (t < dist_bias.shape[1])
        s = s + torch.where(near, dist_bias[:, torch.where(near, t, 0)], 0)
    if slope is not None:
        slope = slope.reshape(-1, slope.shape[-1], 1, 1)
        s = s - whole(slope) * t.abs()
    seen = torch.ones_like(s, dtype=torch.bool)
    if causal:
        seen = seen & (t >= 0)
    count = seen.sum(-1, keepdim=True)
    if keep is not None:
        seen = seen & whole(keep)
    s = s.masked_fill(~seen, -torch.inf)
    if sink is not None:
        column = whole(sink.reshape(-1, sink.shape[-1], 1, 1)).expand(*s.shape[:3], 1)
        p = torch.softmax(torch.cat([s, column], -1), -1)[..., :-1]
    else:
        p = torch.softmax(s, -1)
    p = p.nan_to_num(0)  # rows that see no key
    if normalizer == "elastic":
        assert tau is not None
        p = torch.where(seen, torch.relu(p + tau.reshape(1, -1, 1, 1) / count), 0)
    return p @ v


def case(batch: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "q": normal(batch, 4, 9, 8),
        "k": normal(batch, 2, 11, 8),
        "v": normal(batch, 2, 11, 6),
        **more,
    }


CASES: dict[str, Any] = {
    "plain": case,
    "causal": lambda: case(causal=True),
    "bias": lambda: case(bias=normal(2, 4, 9, 11)),
    "bias of all": lambda: case(bias=normal(9, 11)),
    "bias of keys": lambda: case(bias=normal(2, 1, 1, 11)),
    "bias of rows": lambda: case(bias=normal(4, 9, 1)),
    "groups": lambda: case(
        6, bias=normal(3, 4, 9, 11), keep=torch.rand(2, 1, 9, 11, device=DEVICE) < 0.6
    ),
    "groups of slopes and sinks": lambda: case(6, sink=normal(6, 4), slope=normal(2, 4).abs()),
    "groups of bias rows": lambda: case(4, bias=normal(2, 1, 1, 11)),
    "mask": lambda: case(keep=torch.rand(2, 1, 9, 11, device=DEVICE) < 0.6),
    "sink and alibi": lambda: case(sink=normal(4), slope=normal(4).abs()),
    "distance": lambda: case(dist_bias=normal(4, 5), causal=True),
    "elastic": lambda: case(
        normalizer="elastic", tau=-0.3 * torch.ones(4, device=DEVICE), dist_bias=normal(4, 6)
    ),
}


def with_gradients(function: Any, arguments: dict[str, Any], dtype: Any) -> list[Tensor]:
    inputs = {
        n: x.detach().to(dtype).requires_grad_() if n in GRADIENTS else x
        for n, x in arguments.items()
    }
    o = function(**inputs)
    weight = torch.linspace(-1, 1, o.numel(), dtype=torch.float64, device=DEVICE).reshape(o.shape)
    (o * weight.to(o.dtype)).sum().backward()
    return [o.detach()] + [inputs[n].grad for n in GRADIENTS if n in inputs]


def close(got: list[Tensor], want: list[Tensor], tolerance: float = 1e-5) -> None:
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape
        torch.testing.assert_close(x.double(), y.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_eager(name: str) -> None:
    arguments = CASES[name]()
    got = with_gradients(attention, arguments, torch.float32)
    close(got, with_gradients(math_attention, arguments, torch.float64))


@pytest.mark.parametrize("name", ["plain", "bias of rows", "elastic"])
def test_compile_without_graph_breaks(name: str) -> None:
    arguments = CASES[name]()
    eager = with_gradients(attention, arguments, torch.float32)
    torch._dynamo.reset()
    # aot_eager: tracing, functionalisation and the partitioner, without inductor's C++ compiler.
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    close(with_gradients(compiled, arguments, torch.float32), eager, 1e-6)


def test_compile_with_sizes_that_change() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (5, 6, 9):
        q, k, v = (normal(1, 2, rows, 8) for _ in range(3))
        close([compiled(q, k, v, causal=True)], [attention(q, k, v, causal=True)], 1e-6)


def test_export() -> None:
    class Module(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return attention(q, k, v, causal=True)

    q, k, v = (normal(1, 2, 5, 8) for _ in range(3))
    program = torch.export.export(Module(), (q, k, v))
    assert any("tandem.attention" in str(n.target) for n in program.graph.nodes)
    close([program.module()(q, k, v)], [attention(q, k, v, causal=True)], 1e-7)


@pytest.mark.parametrize("kind", ["plain", "bias", "dropout", "elastic", "spans"])
def test_opcheck(kind: str) -> None:
    q, k, v = (normal(2, 2, 5, 8).requires_grad_() for _ in range(3))
    bias = tau = rng = spans = None
    options = Options()
    if kind == "bias":
        bias = normal(1, 2, 5, 5).requires_grad_()
    elif kind == "dropout":
        options, rng = Options(dropout=0.5), torch.tensor([3, 4])
    elif kind == "elastic":
        options, tau = Options(normalizer=1), normal(2).requires_grad_()
    elif kind == "spans":
        spans = torch.tensor([[0, 5], [1, 3], [2, 5], [0, 0], [4, 9]], dtype=torch.int32)
        spans = spans.to(DEVICE)[None, None]
    inputs = Inputs(q, k, v, bias, spans=spans, tau=tau)
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if kind != "elastic":  # it asks for a gradient through lse, which elastic softmax refuses
        tests.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(_ops.attention, (*inputs, rng, *options), test_utils=tests)
    o, lse = (t.detach() for t in _ops.attention(*inputs, rng, *options))
    plain = [t.detach() if isinstance(t, Tensor) else t for t in inputs]
    bits = 0x7 | (0x8 if bias is not None else 0) | (0x40 if tau is not None else 0)
    d_lse = torch.ones_like(lse) if kind == "plain" else None
    arguments = (torch.ones_like(o), o, lse, bits, d_lse, *plain, rng, *options)
    torch.library.opcheck(_ops.attention_backward, arguments)


def test_short_operation_of_compiled_graphs() -> None:
    options = Options(scale=0.3, causal=True, window_left=3, softcap=2.5, flags=1)
    q, k, v = (normal(2, 2, 5, 8).requires_grad_() for _ in range(3))
    bias = normal(1, 2, 5, 5).requires_grad_()
    keep = torch.rand(2, 1, 5, 5, device=DEVICE) < 0.8
    short = _plain_ops.narrow(Inputs(q, k, v, bias, keep), options)
    assert _plain_ops.options_of(*short[5:]) == options
    assert _plain_ops.options_of(*_plain_ops.narrow(Inputs(q, k, v), Options())[5:]) == Options()
    torch.library.opcheck(_plain_ops.attention, short)
    o, lse = (t.detach() for t in _plain_ops.attention(*short))
    for bits in (0, 0x7, 0xF):
        arguments = [torch.ones_like(o), o, lse, bits, torch.ones_like(lse), *short]
        arguments = [t.detach() if isinstance(t, Tensor) else t for t in arguments]
        torch.library.opcheck(_plain_ops.attention_backward, arguments)
    # They give what tandem::attention gives, mapped, too.
    tensors = [normal(3, *t.shape) if t.is_floating_point() else t for t in short[:5]]
    whole = (*tensors, *(None,) * 14, *options)
    dims = (0, 0, 0, 0, None)
    got = torch.vmap(_plain_ops.attention, in_dims=(*dims, *(None,) * 4))(*tensors, *short[5:])
    want = torch.vmap(_ops.attention, in_dims=(*dims, *(None,) * (len(whole) - 5)))(*whole)
    close(list(got), list(want), 1e-7)
    d_o = torch.ones_like(got[0])
    outer = (d_o, *got, 0xF, None)
    dims = (0, 0, 0, None, None, *dims)
    got = torch.vmap(_plain_ops.attention_backward, in_dims=(*dims, *(None,) * 4))(
        *outer, *tensors, *short[5:]
    )
    want = torch.vmap(_ops.attention_backward, in_dims=(*dims, *(None,) * (len(whole) - 5)))(
        *outer, *whole
    )[:4]
    close(list(got), list(want), 1e-7)


@pytest.mark.parametrize("more", [{}, {"dropout": 0.5}, {"sink": True}])
def test_which_operation_a_compiled_graph_has(more: dict[str, Any]) -> None:
    seen: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.extend(str(n.target) for n in module.graph.nodes)
        return module.forward

    arguments = {"sink": normal(2)} if "sink" in more else more
    torch._dynamo.reset()
    function = torch.compile(attention, fullgraph=True, backend=backend)
    function(*(normal(1, 2, 5, 8) for _ in range(3)), **arguments)
    names = [name for name in seen if "tandem" in name]
    assert ["plain" in name for name in names] == [not more]


def test_numbers_of_dynamic_shapes() -> None:
    def call(q: Tensor) -> Tensor:
        rows = q.shape[2]
        o: Tensor = attention(q, q, q, scale=rows**-0.5, window=(rows // 2, 0))
        return o

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (6, 9):
        q = normal(1, 2, rows, 8)
        close([compiled(q)], [call(q)], 1e-6)
    with pytest.raises(Exception, match="scale is nan"):
        attention(q, q, q, scale=float("nan"))


# ---- torch.func ----------------------------------------------------------------------------------


def test_vmap() -> None:
    q, k, v = normal(3, 2, 4, 5, 8), normal(2, 4, 3, 7, 8), normal(2, 4, 7, 8)
    bias = normal(1, 3, 4, 5, 7)

    def one(*tensors: Tensor) -> Any:
        return attention(*tensors[:3], bias=tensors[3])

    got = torch.vmap(one, in_dims=(0, 2, None, 1))(q, k, v, bias)
    want = torch.stack([one(q[n], k[:, :, n], v, bias[:, n]) for n in range(3)])
    close([got], [want], 1e-6)


@pytest.mark.parametrize("mapped_bias", [True, False])
def test_vmap_of_gradients(mapped_bias: bool) -> None:
    q, k, v = normal(3, 2, 4, 5, 8), normal(3, 2, 4, 7, 8), normal(2, 4, 7, 8)
    bias, sink = normal(3, 1, 4, 5, 7), normal(4)

    def loss(*tensors: Tensor) -> Any:
        return attention(*tensors[:3], bias=tensors[3], sink=tensors[4]).sin().sum()

    gradient = torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))
    pick = (lambda n: bias[n]) if mapped_bias else (lambda n: bias[0])
    got = torch.vmap(gradient, in_dims=(0, 0, None, 0 if mapped_bias else None, None))(
        q, k, v, bias if mapped_bias else bias[0], sink
    )
    want = [gradient(q[n], k[n], v, pick(n), sink) for n in range(3)]
    close(list(got), [torch.stack(list(column)) for column in zip(*want, strict=True)], 2e-6)


def test_vmap_beside_groups() -> None:
    q, k, v = normal(3, 4, 2, 5, 8), normal(3, 4, 2, 7, 8), normal(4, 2, 7, 8)
    bias, keep, sink = normal(3, 2, 2, 5, 7), normal(2, 1, 5, 7) > -1, normal(2, 2)

    def loss(*tensors: Tensor) -> Any:
        return attention(*tensors[:3], bias=tensors[3], keep=keep).sin().sum()

    def sunk(q: Tensor) -> Any:
        return attention(q, k[0], v, sink=sink)

    gradient = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    got = torch.vmap(gradient, in_dims=(0, 0, None, 0))(q, k, v, bias)
    want = [gradient(q[n], k[n], v, bias[n]) for n in range(3)]
    close(list(got), [torch.stack(list(column)) for column in zip(*want, strict=True)], 2e-6)
    close([torch.vmap(sunk)(q)], [torch.stack([sunk(x) for x in q])], 1e-6)


def test_vmap_over_what_has_no_batch() -> None:
    q, k, v, sink = normal(2, 4, 5, 8), normal(2, 4, 7, 8), normal(2, 4, 7, 8), normal(3, 4)
    got = torch.vmap(lambda s: attention(q, k, v, sink=s))(sink)
    close([got], [torch.stack([attention(q, k, v, sink=s) for s in sink])], 1e-6)


def test_second_derivatives_are_refused() -> None:
    q = normal(1, 1, 3, 4, requires_grad=True)
    o = attention(q, q, q).sum()
    (d_q,) = torch.autograd.grad(o, q, create_graph=True)
    assert d_q.requires_grad  # so that no loss can leave it out in silence
    with pytest.raises(ta.UnsupportedError, match="second derivatives"):
        d_q.sum().backward()
    twice = torch.func.grad(lambda x: torch.func.grad(lambda y: attention(y, y, y).sum())(x).sum())
    with pytest.raises((RuntimeError, NotImplementedError), match="second derivatives"):
        twice(q.detach())


# ---- what surrounds a call -----------------------------------------------------------------------


def test_autocast() -> None:
    q, k, v = (normal(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    with torch.autocast(DEVICE, torch.bfloat16):
        o = attention(q, k, v)
    assert o.dtype == torch.bfloat16
    o.sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.float32


def test_checkpointing_repeats_dropout() -> None:
    arguments = case(dropout=0.5)

    def run(**inputs: Any) -> Any:
        torch.manual_seed(11)
        return attention(**inputs)

    def saved(**inputs: Any) -> Any:
        torch.manual_seed(11)
        return checkpoint(attention, **inputs, use_reentrant=False)

    close(
        with_gradients(saved, arguments, torch.float32),
        with_gradients(run, arguments, torch.float32),
        1e-7,
    )
    first = attention(**arguments)
    assert not torch.equal(first, attention(**arguments))
    seeded = {**arguments, "seed": 5, "offset": 9}
    assert torch.equal(attention(**seeded), attention(**seeded))


def test_memory_order_follows_q() -> None:
    q, k, v = (normal(2, 5, 4, 8).transpose(1, 2) for _ in range(3))
    o = attention(q, k, v)
    assert o.transpose(1, 2).is_contiguous()
    qkv = normal(2, 5, 3, 4, 8, requires_grad=True)
    o = attention(*qkv.unbind(2), layout="bshd")
    assert o.is_contiguous()
    o.backward(torch.ones((), device=DEVICE).expand(o.shape))  # strides of 0
    assert qkv.grad is not None
    assert qkv.grad.shape == qkv.shape


def test_packed_and_lse() -> None:
    offsets = torch.tensor([0, 4, 9], device=DEVICE)  # int64 serves too
    q, k, v = (normal(9, 2, 8, requires_grad=True) for _ in range(3))
    o, lse = attention(
        q, k, v, offsets_q=offsets, offsets_kv=offsets, max_seq_q=5, max_seq_kv=5, layout="bshd",
        return_lse=True,
    )  # fmt: skip
    assert lse.shape == (2, 2, 5)
    assert lse.requires_grad
    o.sum().backward()
    for part in (slice(0, 4), slice(4, 9)):
        one = [t.detach()[None, part].requires_grad_() for t in (q, k, v)]
        want = attention(*one, layout="bshd")
        want.sum().backward()
        close([o[part], q.grad[part]], [want[0], one[0].grad[0]], 1e-6)


def test_only_what_needs_a_gradient() -> None:
    arguments = case(bias=normal(1, 4, 9, 11))
    arguments["bias"].requires_grad_()
    attention(**arguments).sum().backward()
    assert arguments["bias"].grad is not None
    with torch.no_grad():
        assert not attention(**arguments).requires_grad
    with torch.inference_mode():
        attention(**arguments)


def test_arrays_api_takes_tensors() -> None:
    arguments = case()
    arguments["q"].requires_grad_()
    o = ta.attention(**arguments)
    o.sum().backward()
    assert arguments["q"].grad is not None
    with torch.no_grad():
        o, lse = ta.attention(**arguments, return_lse=True)
        got = ta.attention_backward(torch.ones_like(o), **arguments, o=o, lse=lse)
    close([got.q], [arguments["q"].grad], 1e-7)
    if DEVICE == "cpu":
        on_ref = ta.attention(**arguments, device="cpu/ref")
        close([on_ref], [o], 2e-6)


# ---- distributed ---------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(16, 48)
        self.bias = torch.nn.Parameter(torch.zeros(2, 6, 6))

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).unbind(2)
        return attention(q, k, v, bias=self.bias, layout="bshd").flatten(2)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_distributed(kind: str, tmp_path: Any) -> None:
    dist = torch.distributed
    x = normal(2, 6, 16)
    torch.manual_seed(3)
    plain = Block().to(DEVICE)
    plain(x).sum().backward()
    dist.init_process_group(
        "gloo" if DEVICE == "cpu" else "nccl", f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        torch.manual_seed(3)
        if kind == "ddp":
            model: Any = torch.nn.parallel.DistributedDataParallel(Block().to(DEVICE))
        else:
            from torch.distributed.fsdp import fully_shard

            mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (1,))
            model = fully_shard(Block().to(DEVICE), mesh=mesh)
        model(x).sum().backward()
        got = [p.grad.full_tensor() if kind == "fsdp" else p.grad for p in model.parameters()]
        # DDP orders parameters as the module does; names differ by a prefix alone.
        close(got, [p.grad for p in plain.parameters()], 1e-6)
    finally:
        dist.destroy_process_group()


# ---- what is refused -----------------------------------------------------------------------------


def test_refusals() -> None:
    q, k, v = case().values()
    bad = ta.InvalidArgumentError
    for kind, sentence, call in (
        (bad, "k is float16 where q is float32", lambda: attention(q, k.half(), v)),
        (ta.UnsupportedError, "q is int32", lambda: attention(*(t.int() for t in (q, k, v)))),
        (bad, "does not broadcast", lambda: attention(q, k, v, bias=normal(3, 11))),
        (bad, "3 batch entries, which do not divide the 2 of q",
         lambda: attention(q, k, v, bias=normal(3, 1, 9, 11))),
        (bad, "keep is float32", lambda: attention(q, k, v, keep=normal(9, 11))),
        (bad, "q has 3 dimensions", lambda: attention(q[0], k, v)),
        (bad, "k is a ndarray, not a tensor", lambda: attention(q, k.cpu().numpy(), v)),
        (bad, "k lies on meta", lambda: attention(q, k.to("meta"), v)),
        (ta.UnsupportedError, "layout", lambda: attention(q, k, v.to_sparse())),
        (bad, "tau and normalizer", lambda: attention(q, k, v, tau=normal(4))),
        (bad, "offsets_q is float32", lambda: attention(q, k, v, offsets_q=normal(3))),
        (bad, r"sink is float32 \[3\]", lambda: attention(q, k, v, sink=normal(3))),
    ):  # fmt: skip
        with pytest.raises(kind, match=sentence):
            call()
    with pytest.raises(RuntimeError):
        attention(q.requires_grad_(), k, v).sum().backward(torch.ones(2, device=DEVICE))
    close([attention(q.detach(), k, v)], [math_attention(q.detach(), k, v)])


def test_tensors_may_be_freed_at_once() -> None:
    """Inputs and outputs that are referenced no more while the gradient is still to come."""
    q = normal(2, 4, 9, 8, requires_grad=True)
    o = attention(q, q * 1, q * 2)
    total = o.sum()
    del o
    gc.collect()
    total.backward()
    assert q.grad is not None
    assert torch.isfinite(q.grad).all()


def test_nothing_is_leaked() -> None:
    arguments = case(bias=normal(1, 4, 9, 11))
    for name in ("q", "bias"):
        arguments[name].requires_grad_()

    def many(count: int) -> None:
        for n in range(count):
            attention(**arguments).sum().backward()
            if n % 10 == 0:
                with pytest.raises(ta.InvalidArgumentError):
                    attention(**{**arguments, "bias": arguments["q"]})

    many(500)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    many(10000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8000, f"{grown} KiB more"


@pytest.mark.skipif(DEVICE != "cuda", reason="captures a CUDA graph")
def test_cuda_graph() -> None:
    q, k, v = (normal(1, 2, 64, 64, dtype=torch.bfloat16) for _ in range(3))
    attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = attention(q, k, v, causal=True)
    q.copy_(normal(1, 2, 64, 64))
    graph.replay()
    close([o], [attention(q, k, v, causal=True)], 1e-7)


@pytest.mark.skipif(DEVICE != "cuda", reason="fills a GPU's memory")
def test_out_of_device_memory() -> None:
    free, _ = torch.cuda.mem_get_info()
    q = torch.empty(1, 1, free // 512, 64, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(torch.OutOfMemoryError):
        attention(*[q.expand(64, 1, -1, -1)] * 3)
