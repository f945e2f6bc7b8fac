#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Times training steps of models from Python, with Tandem and with torch's SDPA, and the host's cost.

    scripts/bench_torch.py [--model NAME] [--seconds S] [--device cuda|cpu] [--small] [--compile] [--depth N]
                           [--no-layout-optimization] [--out FILE.json]

Each model is built here with random weights, in bf16 on a GPU. A step is forward, backward and SGD.
Steps of both implementations alternate, and a row holds the median and the spread of each. --compile
times steps of the model as torch.compile compiles it, in place of the others, with N blocks where a depth is given.
Attention alone is timed with the shapes of the model's largest layer: device time by events around many
calls, and host time of a call, which is the time until Python has the result while the device is
still busy. ``execute`` is the same call of the C API with its arguments ready.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import time
import unittest.mock
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor, nn

import tandem_attention
from tandem_attention.drop_in.relative_bias import (
    relative_position_bucket,
    shifted_window_keep,
    window_position_index,
)
from tandem_attention.torch import _kernels, attention, eager_info

# (q, k, v [B, S, H, D], bias [1, H, S, S] or None, keep [B, 1, S, S] or None, causal, scale)
Attend = Callable[..., Tensor]


def with_tandem(q, k, v, bias=None, keep=None, causal=False, scale=None):
    return attention(q, k, v, bias=bias, keep=keep, causal=causal, scale=scale, layout="bshd")


def with_sdpa(q, k, v, bias=None, keep=None, causal=False, scale=None):
    mask = bias
    if keep is not None:
        mask = bias.expand(keep.shape[0], -1, -1, -1).masked_fill(~keep, -math.inf)
    elif bias is not None:  # expanded, as the fused kernels want it
        mask = bias.expand(q.shape[0], -1, -1, -1)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    return o.transpose(1, 2)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attend: Attend, **call: Any) -> None:
        super().__init__()
        self.heads, self.attend, self.call = heads, attend, call
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def mix(self, x: Tensor, bias: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        o = self.attend(q, k, v, bias=bias, keep=keep, **self.call)
        return self.out(o.flatten(2))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x + self.mix(self.first(x), bias)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """GPT-2 small without its embedding of words."""

    def __init__(self, attend: Attend, small: bool) -> None:
        super().__init__()
        self.batch, self.rows, width, heads, depth = (
            (2, 64, 64, 2, 2) if small else (8, 1024, 768, 12, 12)
        )
        self.width = width
        self.blocks = nn.ModuleList(Block(width, heads, attend, causal=True) for _ in range(depth))
        self.shape = (self.batch, self.rows, heads, width // heads)
        self.call = {"causal": True}

    def input(self, device: str, dtype: torch.dtype) -> Tensor:
        return torch.randn(self.batch, self.rows, self.width, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class T5Encoder(Gpt):
    """T5-large's encoder: one table of relative positions, whose bias all layers add."""

    def __init__(self, attend: Attend, small: bool) -> None:
        nn.Module.__init__(self)
        self.batch, self.rows, width, heads, depth = (
            (2, 64, 64, 2, 2) if small else (16, 512, 1024, 16, 24)
        )
        self.width, self.heads = width, heads
        self.blocks = nn.ModuleList(Block(width, heads, attend, scale=1.0) for _ in range(depth))
        self.table = nn.Embedding(32, heads)
        at = torch.arange(self.rows)
        self.register_buffer("index", relative_position_bucket(at - at[:, None]))
        self.shape = (self.batch, self.rows, heads, width // heads)
        self.call = {"scale": 1.0}

    def bias(self) -> Tensor:
        return self.table(self.index).permute(2, 0, 1).contiguous()[None]

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias()
        for block in self.blocks:
            x = block(x, bias)
        return x


class SwinBlock(Block):
    def __init__(self, width: int, heads: int, side: int, shift: int, attend: Attend) -> None:
        super().__init__(width, heads, attend)
        self.side, self.shift = side, shift
        self.table = nn.Parameter(0.02 * torch.randn(13 * 13, heads))
        self.register_buffer("index", window_position_index(7, 7))
        keep = shifted_window_keep(side, side, (7, 7), (shift, shift)) if shift else None
        self.register_buffer("keep", keep)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        images, side, _, width = x.shape
        y = torch.roll(self.first(x), (-self.shift, -self.shift), (1, 2))
        y = y.view(images, side // 7, 7, side // 7, 7, width).transpose(2, 3)
        bias = self.table[self.index].permute(2, 0, 1).contiguous()[None]
        keep = None
        if self.keep is not None:
            keep = self.keep.expand(images, *self.keep.shape).reshape(-1, 1, 49, 49)
        y = self.mix(y.reshape(-1, 49, width), bias, keep)
        y = y.view(images, side // 7, side // 7, 7, 7, width).transpose(2, 3)
        y = torch.roll(y.reshape(x.shape), (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.down(F.gelu(self.up(self.second(x))))


class Swin(Gpt):
    """Swin-T for images of 224 x 224, from behind its patch embedding."""

    def __init__(self, attend: Attend, small: bool) -> None:
        nn.Module.__init__(self)
        self.batch, depths = (2, (2,)) if small else (64, (2, 2, 6, 2))
        self.side, self.width = (14, 96) if small else (56, 96)
        stages, side, width = [], self.side, 96
        for number, depth in enumerate(depths):
            if number:
                stages.append(nn.Conv2d(width, 2 * width, 2, 2))
                side, width = side // 2, 2 * width
            for n in range(depth):
                shift = 3 if n % 2 and side > 7 else 0
                stages.append(SwinBlock(width, width // 32, side, shift, attend))
        self.stages = nn.ModuleList(stages)
        self.shape = (self.batch * (self.side // 7) ** 2, 49, 3, 32)
        self.heads = 3
        self.call = {}

    def bias(self) -> Tensor:
        block = self.stages[0]
        return block.table[block.index].permute(2, 0, 1).contiguous()[None]

    def input(self, device: str, dtype: torch.dtype) -> Tensor:
        return torch.randn(self.batch, self.side, self.side, self.width, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            if isinstance(stage, nn.Conv2d):
                x = stage(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            else:
                x = stage(x)
        return x


MODELS: dict[str, type[Gpt]] = {"gpt2-small": Gpt, "t5-large-encoder": T5Encoder, "swin-t": Swin}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], Any], device: str) -> float:
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def alternate(works: dict[str, Callable[[], Any]], device: str, seconds: float) -> dict[str, Any]:
    """Medians and spreads of works that take turns, after a second of all of them."""
    end = time.perf_counter() + (1.0 if device == "cuda" else 0.0)
    for work in works.values():
        work()
    while time.perf_counter() < end:
        for work in works.values():
            work()
        synchronize(device)
    times: dict[str, list[float]] = {name: [] for name in works}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 5:
        for name, work in works.items():
            times[name].append(seconds_of(work, device))
    return {
        name: {
            "ms": 1e3 * statistics.median(t),
            "spread": (max(t) - min(t)) / statistics.median(t),
            "steps": len(t),
        }
        for name, t in times.items()
    }


def shorten(model: Gpt, depth: int | None) -> None:
    for blocks in model.children():
        if depth and isinstance(blocks, nn.ModuleList):
            del blocks[depth:]


def steps_of(
    kind: type[Gpt], args: argparse.Namespace, dtype: torch.dtype, compiled: bool = False
) -> dict[str, Any]:
    works: dict[str, Callable[[], Any]] = {}
    outputs = {}
    for name, attend in (("tandem", with_tandem), ("sdpa", with_sdpa)):
        torch.manual_seed(1)
        model = kind(attend, args.small)
        shorten(model, args.depth)
        model = model.to(args.device, dtype)
        if compiled:
            model.compile()
        x = model.input(args.device, dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def step(model: Any = model, x: Tensor = x, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad(set_to_none=True)
            y = model(x)
            y.float().square().mean().backward()
            optimizer.step()
            return y

        outputs[name] = step().detach().float()
        works[name] = step
    rows = alternate(works, args.device, args.seconds)
    difference = (outputs["tandem"] - outputs["sdpa"]).abs().max() / outputs["sdpa"].abs().max()
    return {**rows, "relative_difference_of_outputs": float(difference)}


def host_microseconds(call: Callable[[], Any], device: str, count: int = 200) -> float:
    """The least time of a call over slices of ten, while the device has work left."""
    best = math.inf
    for _ in range(count):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(10):
            call()
        best = min(best, (time.perf_counter() - start) / 10)
    synchronize(device)
    return 1e6 * best


def host_rows(args: argparse.Namespace, dtype: torch.dtype) -> dict[str, float]:
    """Host time of a call on tensors so small that nothing else takes time."""
    q, k, v = (torch.randn(1, 1, 16, 64, device=args.device, dtype=dtype) for _ in range(3))
    options = attention_options()
    inputs = _kernels.Inputs(q, k, v)
    d_o = torch.randn_like(q)
    direct = Direct(inputs, options, d_o, 7)
    rows = {
        "execute": host_microseconds(direct.forward, args.device),
        "execute_backward": host_microseconds(direct.backward, args.device),
    }
    with torch.no_grad():
        rows["tandem_forward"] = host_microseconds(lambda: attention(q, k, v), args.device)
        rows["sdpa_forward"] = host_microseconds(
            lambda: F.scaled_dot_product_attention(q, k, v), args.device
        )
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    for name, function in (("tandem", attention), ("sdpa", F.scaled_dot_product_attention)):
        rows[f"{name}_forward_autograd"] = host_microseconds(
            lambda f=function: f(*leaves), args.device
        )

        def both(f: Any = function) -> None:
            torch.autograd.grad(f(*leaves), leaves, d_o)

        rows[f"{name}_forward_backward"] = host_microseconds(both, args.device)
    return rows


def attention_options(**words: Any) -> Any:
    from tandem_attention._options import make_options

    return _kernels.intern(make_options(**words))


def call_of(work: Callable[[], Any]) -> tuple[Any, Any]:
    """What work() returns, and the plan, with what belongs to it, that it executed."""
    find = tandem_attention._plans.find
    with unittest.mock.patch.object(tandem_attention._plans, "find", wraps=find) as spy:
        made = work()
    return made, find(spy.call_args.args[0])


class Direct:
    """The C API's own calls of a forward and its backward: arguments ready, nothing allocated."""

    def __init__(self, inputs: Any, options: Any, d_o: Tensor, gradients: int) -> None:
        (o, lse), forward = call_of(lambda: _kernels.forward(inputs, options, 0, 0))
        made, backward = call_of(
            lambda: _kernels.backward(d_o, inputs, o, lse, None, options, gradients, 0, 0)
        )
        self.stream = _kernels._stream(inputs.q, forward.plan)
        self.kept: list[Any] = [inputs, d_o, o, lse, made]
        outputs = {"o": o, "lse": lse, "workspace": self._workspace(forward, inputs.q)}
        self._forward = forward, _kernels._forward_addresses(inputs, (None,), **outputs)
        outputs["workspace"] = self._workspace(backward, inputs.q)
        self._backward = (
            backward,
            _kernels._backward_addresses(inputs, made, (None,), d_o=d_o, **outputs),
        )

    def _workspace(self, call: Any, q: Tensor) -> int:
        if not call.workspace:
            return 0
        space, address = _kernels._workspace(call, q)
        self.kept.append(space)
        return address

    def forward(self) -> None:
        call, addresses = self._forward
        call.plan.execute(self.stream, addresses, call.workspace, 0, 0)

    def backward(self) -> None:
        call, addresses = self._backward
        call.plan.execute(self.stream, addresses, call.workspace, 0, 0)

    def __call__(self) -> None:
        self.forward()
        self.backward()


def replay_of(work: Callable[[], None]) -> Callable[[], None]:
    """The same out of a CUDA graph: what the device alone takes."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def attention_rows(kind: type[Gpt], args: argparse.Namespace, dtype: torch.dtype) -> dict[str, Any]:
    """The model's attention alone: forward and backward of one layer, ten of them in a row. tandem
    and sdpa: called from Python; *_graph: out of a CUDA graph; execute: the C API's own calls."""
    model = kind(with_tandem, args.small).to(args.device, dtype)
    q, k, v = (
        torch.randn(model.shape, device=args.device, dtype=dtype, requires_grad=True)
        for _ in range(3)
    )
    leaves = [q, k, v]
    bias = None
    if hasattr(model, "bias"):
        bias = model.bias().detach().requires_grad_()
        leaves.append(bias)
    d_o = torch.randn_like(q)
    works: dict[str, Callable[[], Any]] = {}
    for name, attend in (("tandem", with_tandem), ("sdpa", with_sdpa)):

        def work(attend: Attend = attend) -> None:
            for _ in range(10):
                o = attend(q, k, v, bias=bias, **model.call)
                torch.autograd.grad(o, leaves, d_o)

        works[name] = work
        if args.device == "cuda":
            works[f"{name}_graph"] = replay_of(work)
    with torch.no_grad():
        inputs = _kernels.Inputs(q, k, v, bias)
        options = attention_options(layout="bshd", **model.call)
        direct = Direct(inputs, options, d_o, 7 if bias is None else 15)
    works["execute"] = lambda: [direct() for _ in range(10)]
    rows = alternate(works, args.device, args.seconds)
    for row in rows.values():
        row["ms"] /= 10
    lines = [
        tandem_attention.plan(q, k, v, layout="bshd", bias=bias, backward=b, **model.call)
        for b in (False, True)
    ]
    return {**rows, "problems": [p.line for p in lines], "paths": [p.path for p in lines]}


def header(args: argparse.Namespace) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    return {
        "device": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if args.device == "cuda" else None,
        "commit": commit,
        "command": "scripts/bench_torch.py",
        "operator": eager_info().operator,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Training steps from Python, beside torch's SDPA")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--compile", action="store_true", help="steps of compiled models")
    parser.add_argument("--depth", type=int, help="at most so many blocks, to compile sooner")
    parser.add_argument(
        "--no-layout-optimization",
        action="store_true",
        help="compiled models keep the layout of their tensors (torch._inductor.config)",
    )
    parser.add_argument("--out")
    args = parser.parse_args()
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    if args.no_layout_optimization:
        torch._inductor.config.layout_optimization = False
    result: dict[str, Any] = {"header": header(args), "host_us": host_rows(args, dtype)}
    print(json.dumps(result["host_us"], indent=1), flush=True)
    result["models"] = {}
    for name in args.model or MODELS:
        if args.compile:
            row = {"compiled_step": steps_of(MODELS[name], args, dtype, compiled=True)}
        else:
            row = {
                "step": steps_of(MODELS[name], args, dtype),
                "attention": attention_rows(MODELS[name], args, dtype),
            }
        result["models"][name] = row
        print(name, json.dumps(row, indent=1), flush=True)
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
