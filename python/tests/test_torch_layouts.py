# SPDX-License-Identifier: MIT OR Apache-2.0
"""A backward reads its tensors by the strides that they have then, whatever the forward saw.

Hooks on saved tensors, checkpoints and offloading hand a backward tensors of the same values in
another layout. Each tensor here lies in a storage of its own, between numbers that are not finite,
so that a read by the strides of another tensor shows.
"""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tandem_attention.torch import attention  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def relaid(t: Tensor, rng: random.Random) -> Tensor:
    """t's values in a storage of its own: any order of dimensions but the last, rows with gaps,
    and NaN in the gaps and on both ends."""
    order = [0, 1, 2]
    rng.shuffle(order)
    pads = [rng.choice([0, 0, 1, 3]) for _ in order]
    strides, step = [0, 0, 0, 1], t.shape[3] + rng.choice([0, 0, 5, 8])
    for dim, pad in zip(reversed(order), pads, strict=True):
        strides[dim] = step
        step = (step * t.shape[dim]) + pad
    begin = rng.choice([0, 8, 16]) + 64
    storage = torch.full((begin + step + 64,), math.nan, dtype=t.dtype, device=t.device)
    made = storage.as_strided(t.shape, strides, begin)
    made.copy_(t)
    return made


def in_double(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention of float64 tensors, by its definition."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        s = s.masked_fill(
            torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -math.inf
        )
    return torch.softmax(s, -1) @ v


def step(
    way: str, q: Tensor, k: Tensor, v: Tensor, d_o: Tensor, rng: random.Random, **options: Any
) -> None:
    """A forward and a backward, whose saved tensors come back in the layout of `way`."""
    hooks: Any = contextlib.nullcontext()
    if way == "relaid when saved":
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: laid(t, rng), lambda t: t)
    elif way == "relaid when used":
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: laid(t, rng))
    elif way == "contiguous":
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.detach().contiguous(), lambda t: t
        )
    elif way == "on the CPU":
        hooks = torch.autograd.graph.save_on_cpu()
    with hooks:
        if way == "checkpoint":
            o = checkpoint(
                lambda a, b, c: attention(a, b, c, **options), q, k, v, use_reentrant=False
            )
        elif way == "compiled":
            o = compiled(options)(q, k, v)
        else:
            o = attention(q, k, v, **options)
    o.backward(d_o)


def laid(t: Tensor, rng: random.Random) -> Tensor:
    return relaid(t.detach(), rng) if t.dim() == 4 else t.detach().clone()


_compiled: dict[Any, Any] = {}


def compiled(options: dict[str, Any]) -> Any:
    key = tuple(options.items())
    if key not in _compiled:
        _compiled[key] = torch.compile(
            lambda a, b, c: attention(a, b, c, **options), backend="aot_eager", dynamic=False
        )
    return _compiled[key]


WAYS = [
    "plain",
    "relaid when saved",
    "relaid when used",
    "contiguous",
    "on the CPU",
    "checkpoint",
    "compiled",
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_at_save_and_at_use(device: str, dtype: torch.dtype) -> None:
    rng = random.Random(49)
    torch.manual_seed(49)
    for shape in [(2, 3, 3, 17, 17, 8), (1, 4, 2, 33, 40, 16), (2, 2, 2, 64, 64, 64)]:
        b, hq, hk, sq, sk, d = shape
        for causal in (False, True):
            base = [
                torch.randn(b, h, s, d, device=device, dtype=dtype)
                for h, s in ((hq, sq), (hk, sk), (hk, sk), (hq, sq))
            ]
            exact = [t.double().requires_grad_() for t in base[:3]]
            in_double(*exact, causal).backward(base[3].double())
            ways = WAYS * 2
            rng.shuffle(ways)
            for way in ways:
                if way == "compiled" and (shape[0] != 2 or dtype is not torch.float32):
                    continue
                # One of two layouts, so that a forward's layout meets several of the backward's.
                given = random.Random(rng.choice([1, 2]))
                q, k, v = (relaid(t, given).requires_grad_() for t in base[:3])
                step(way, q, k, v, relaid(base[3], given), rng, causal=causal)
                tolerance = 2e-5 if dtype is torch.float32 else 4e-2
                for name, got, want in zip("qkv", (q, k, v), exact, strict=True):
                    assert got.grad is not None
                    assert want.grad is not None
                    error = (got.grad.double() - want.grad).abs().max().item()
                    assert error <= tolerance * max(1.0, want.grad.abs().max().item()), (
                        f"d_{name} is off by {error} ({way}, {shape}, causal={causal})"
                    )


def test_hooked_step_then_plain_step() -> None:
    """The smallest case: heads and rows exchanged in the forward, contiguous when saved."""

    def gradients(hooked: bool) -> list[Tensor]:
        torch.manual_seed(1)
        q, k, v = (torch.randn(2, 17, 3, 8).transpose(1, 2).requires_grad_() for _ in "qkv")
        hooks: Any = contextlib.nullcontext()
        if hooked:
            hooks = torch.autograd.graph.saved_tensors_hooks(
                lambda t: t.detach().contiguous(), lambda t: t
            )
        with hooks:
            o = attention(q, k, v)
        o.square().sum().backward()
        return [t.grad for t in (q, k, v)]

    plain = gradients(False)
    for hooked in (True, False):
        for got, want in zip(gradients(hooked), plain, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


class Model(torch.nn.Module):
    """Two attention layers between linear ones; heads of the projections lie side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(24, 72) for _ in range(2))
        self.out = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(x).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4)
            x = x + out(attention(q, k, v, causal=True).transpose(1, 2).flatten(2))
        return x


def losses(
    wrap: Any = None, around: Any = contextlib.nullcontext, device: str = "cpu"
) -> list[float]:
    torch.manual_seed(3)
    model = Model().to(device)
    x = torch.randn(4, 19, 24, device=device)
    y = torch.randn(4, 19, 24, device=device)
    if wrap:
        wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    found = []
    for _ in range(5):
        with around():
            loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_training_with_activations_on_the_cpu(device: str) -> None:
    plain = losses(device=device)
    assert plain[-1] < plain[0]
    offloaded = losses(around=torch.autograd.graph.save_on_cpu, device=device)
    assert offloaded == pytest.approx(plain, rel=1e-6)


def _sharded(rank: int, path: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,))

    def wrap(model: torch.nn.Module) -> None:
        for layer in (*model.qkv, *model.out):
            fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
        fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))

    torch.set_num_threads(1)
    found = losses(wrap, torch.autograd.graph.save_on_cpu)
    if rank == 0:
        torch.save(found, path + ".losses")
    torch.distributed.destroy_process_group()


def test_training_with_fsdp_and_cpu_offload(tmp_path: Any) -> None:
    import torch.multiprocessing as processes

    pytest.importorskip("torch.distributed.fsdp")
    path = str(tmp_path / "store")
    processes.spawn(_sharded, (path,), nprocs=2)
    assert torch.load(path + ".losses") == pytest.approx(losses(), rel=1e-5)
