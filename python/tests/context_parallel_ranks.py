# SPDX-License-Identifier: MIT OR Apache-2.0
"""What each process of test_torch_context_parallel.py does.

Over gloo on the CPU, or with TANDEM_TEST_TORCH_DEVICE=cuda over NCCL on two or four GPUs.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import tandem_attention as ta
from tandem_attention.torch import attention
from tandem_attention.torch.context_parallel import ContextParallel

CUDA = os.environ.get("TANDEM_TEST_TORCH_DEVICE", "cpu").startswith("cuda")
SIZE = 4 if not CUDA or torch.cuda.device_count() >= 4 else 2
B, HQ, HK, S, D, DV = 2, 8, 2, 64, 16, 8
# q, k and v of a case; what else it has is made by name.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "bshd": {"causal": True, "layout": "bshd"},
    "window": {"causal": True, "window": (21, -1)},
    "window_both": {"window": (5, 19)},
    "lengths": {"causal": True, "lengths_q": [64, 37], "lengths_kv": [51, 40]},
    "lengths_plain": {"lengths_q": [3, 64], "lengths_kv": [64, 9]},
    "spans": {"spans": True},
    "spans_causal": {"spans": True, "causal": True, "window": (30, 0)},
    "spans_local": {"spans": "local", "causal": True},
    "slope": {"causal": True, "slope": True},
    "slope_both": {"slope": True, "window": (40, 40)},
    "slope_sink": {"slope": True, "sink": True},
    "sink": {"causal": True, "sink": True},
    "bias": {"bias": (1, HQ, S, S)},
    "bias_causal": {"bias": (2, 1, S, S), "causal": True},
    "bias_one_row": {"bias": (1, HQ, 1, S), "causal": True},
    "bias_columns": {"bias": (1, HQ, S, S), "columns": True, "causal": True},
    "bias_columns_one": {"bias": (1, HK, 1, S), "columns": True},
    "keep": {"keep": (1, 1, S, S)},
    "softcap": {"softcap": 3.0, "scale": 0.7, "causal": True},
}


def draw(case: dict[str, Any], dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Whole tensors, the same on all ranks, and options."""
    g = torch.Generator().manual_seed(7)
    made = {
        "q": torch.randn(B, HQ, S, D, generator=g), "k": torch.randn(B, HK, S, D, generator=g),
        "v": torch.randn(B, HK, S, DV, generator=g), "d_o": torch.randn(B, HQ, S, DV, generator=g),
    }  # fmt: skip
    made = {n: t.to(dtype) for n, t in made.items()}
    options = dict(case)
    if "bias" in case:
        made["bias"] = torch.randn(options.pop("bias"), generator=g)
    if "keep" in case:
        made["keep"] = torch.rand(options.pop("keep"), generator=g) < 0.5
    if options.pop("slope", None):
        made["slope"] = torch.rand(HQ, generator=g) / 4
    if options.pop("sink", None):
        made["sink"] = torch.randn(HQ, generator=g)
    if options.pop("spans", None):
        made["spans"] = torch.from_numpy(ta.masks.tree([-1, 0, 0, 2, 2], [20, 14, 10, 9, 11]))
    for name in ("lengths_q", "lengths_kv"):
        if name in options:
            made[name] = torch.tensor(options.pop(name), dtype=torch.int32)
    return made, options


def on_device(made: dict[str, Tensor]) -> dict[str, Tensor]:
    """Where the ranks compute."""
    return {n: t.cuda() if CUDA else t for n, t in made.items()}


def on_one(made: dict[str, Tensor], options: dict[str, Any]) -> dict[str, Tensor]:
    """o, lse and all gradients, of one process."""
    own = {n: t.clone() for n, t in made.items() if n != "d_o"}
    grads = [n for n in ("q", "k", "v", "bias", "slope", "sink") if n in own]
    for n in grads:
        own[n].requires_grad_()
    options = {n: x for n, x in options.items() if n not in ("columns", "layout")}
    o, lse = attention(**own, **options, return_lse=True)  # type: ignore[arg-type]
    o.backward(made["d_o"].to(o.dtype))
    found = {f"d_{n}": own[n].grad for n in grads}
    return {"o": o.detach(), "lse": lse, **found}  # type: ignore[dict-item]


def split(
    cp: ContextParallel, case: dict[str, Any], made: dict[str, Tensor], options: dict[str, Any]
) -> dict[str, Tensor]:
    """As on_one(), whole, on every rank."""
    own: dict[str, Tensor] = {n: cp.shard(made[n], 2) for n in "qkv"}
    bshd = options.get("layout") == "bshd"
    if bshd:
        own = {n: t.transpose(1, 2).contiguous() for n, t in own.items()}
    options = dict(options)
    columns = options.pop("columns", False)
    for n in ("bias", "keep"):
        if n in made:
            t = made[n]
            own[n] = cp.shard(t, 3) if columns else t.clone() if t.shape[2] == 1 else cp.shard(t, 2)
    for n in ("spans", "slope", "sink", "lengths_q", "lengths_kv"):
        if n in made:
            own[n] = made[n].clone()
    if case.get("spans") == "local":
        own["spans"] = cp.shard(made["spans"], 2)
    grads = [n for n in ("q", "k", "v", "bias", "slope", "sink") if n in own]
    for n in grads:
        own[n] = own[n].detach().requires_grad_()
    o, lse = cp.attention(**own, **options, return_lse=True)  # type: ignore[arg-type]
    d_o = cp.shard(made["d_o"], 2)
    o.backward((d_o.transpose(1, 2) if bshd else d_o).to(o.dtype))
    found = {"o": cp.unshard(o, 1 if bshd else 2), "lse": cp.unshard(lse, 2)}
    if bshd:
        found["o"] = found["o"].transpose(1, 2)
    for n in grads:
        g = own[n].grad
        assert g is not None
        if n in "qkv":
            whole = cp.unshard(g, 1 if bshd else 2)
            found[f"d_{n}"] = whole.transpose(1, 2) if bshd else whole
        elif n == "bias" and columns:
            found["d_bias"] = cp.unshard(g, 3)
        elif n == "bias" and g.shape[2] > 1:
            found["d_bias"] = cp.unshard(g, 2)
        else:
            g = g.clone()
            dist.all_reduce(g)
            found[f"d_{n}"] = g
    return found


def check(
    name: str, got: dict[str, Tensor], one: dict[str, Tensor], exact: dict[str, Tensor]
) -> None:
    """Every entry is as near to the f32 result as one process's own rounding lets it be."""
    assert got.keys() == one.keys()
    got, one = ({n: t.cpu() for n, t in x.items()} for x in (got, one))
    for n, t in got.items():
        want = exact[n].float()
        assert t.shape == want.shape, (name, n, t.shape, want.shape)
        hidden = torch.isinf(want)
        assert torch.equal(torch.isinf(t), hidden), (name, n)
        big = want.masked_fill(hidden, 0).abs().max().item()
        error = (t.float() - want).masked_fill(hidden, 0).abs().max().item()
        own = (one[n].float() - want).masked_fill(hidden, 0).abs().max().item()
        # An entry is rounded to 16 bits in each of two parts, and once more as their sum.
        ulp = 2**-8 if one["o"].dtype == torch.bfloat16 else 0.0
        bound = max(2 * own, 3 * ulp * max(big, 1.0), 3e-6 * max(big, 1.0))
        assert error <= bound, (name, n, error, own, big)


def start(rank: int, file: str) -> None:
    """Joins the others; a process that hangs is ended by the group's timeout."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_default_device("cpu")
    if CUDA:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if CUDA else "gloo", init_method=f"file://{file}", rank=rank, world_size=SIZE,
        timeout=timedelta(seconds=60),
    )  # fmt: skip


def arrangements() -> list[ContextParallel]:
    """Ring, Ulysses and both; the other placements too, and a mesh."""
    mesh = init_device_mesh("cuda" if CUDA else "cpu", (SIZE // 2, 2))
    return [
        ContextParallel(),
        ContextParallel(ulysses=SIZE),
        ContextParallel(ulysses=2),
        ContextParallel(placement="contiguous"),
        ContextParallel(ulysses=SIZE, placement="paired"),
        ContextParallel(mesh, check="first"),
    ]


def values(rank: int, file: str) -> None:
    """Every case in every arrangement, f32 and bf16."""
    start(rank, file)
    failures = []
    made_by = arrangements()
    for name, case in CASES.items():
        for dtype in (torch.float32, torch.bfloat16):
            made, options = draw(case, dtype)
            wide = {n: t.float() if t.dtype == dtype else t for n, t in made.items()}
            exact = on_one(wide, options)
            made = on_device(made)
            one = on_one(made, options)
            for cp in made_by:
                if case.get("columns") and cp.ring > 1 and cp.ulysses > 1:
                    continue
                where = f"{name} {dtype} ring {cp.ring} ulysses {cp.ulysses} {cp.placement}"
                try:
                    got = split(cp, case, made, options)
                    check(where, got, one, exact)
                except AssertionError as failed:
                    failures.append(f"{where}: {failed}")
    dist.destroy_process_group()
    assert not failures, "\n".join(failures)


def errors(rank: int, file: str) -> None:
    """One bad rank: a sentence on all, and the group goes on."""
    start(rank, file)

    device, last = "cuda" if CUDA else "cpu", SIZE - 1

    def draw_one(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    def refused(cp: ContextParallel, *words: str, **options: Any) -> None:
        x = draw_one(1, 4, 16, 8)
        k = options.pop("k", x)
        with pytest.raises(ta.TandemError) as said:
            cp.attention(x, k, options.pop("v", k), **options)
        for word in words:
            assert word in str(said.value), (rank, word, str(said.value))

    keys = 16 * SIZE
    for cp in arrangements()[:3]:
        other = draw_one(1, 4, 8 if rank == last else 16, 8)
        refused(cp, "k is float32 [1, 4, 16, 8]", "[1, 4, 8, 8]", f"rank {last}", k=other)
        refused(cp, "ranks disagree: causal", causal=rank == 1)
        refused(cp, "head size", k=draw_one(1, 4, 16, 9 if rank == last else 8))
        refused(cp, "dropout", dropout=0.1)
        refused(cp, "dist_bias", dist_bias=draw_one(4, 8))
        refused(cp, "bias of shape [16, 5]", bias=draw_one(16, 5 if rank == 0 else keys))
        x = draw_one(1, 4, 16, 8)
        with pytest.raises(ta.UnsupportedError, match="q is float64"):
            cp.attention(x.double(), x.double(), x.double())
        with pytest.raises(ta.InvalidArgumentError, match="q is a NoneType, not a tensor"):
            cp.attention(None, x, x)  # type: ignore[arg-type]
        with pytest.raises(ta.UnsupportedError, match="q is a tensor of layout"):
            cp.attention(x.to_sparse(), x, x)
        assert cp.attention(x, x, x).shape == x.shape
        # The gradient of a sum depends on x alone, and on nothing that comes in.
        x.requires_grad_()
        (d_x,) = torch.autograd.grad(cp.attention(x, x, x).sum(), x, create_graph=True)
        with pytest.raises(ta.UnsupportedError, match="no second derivatives"):
            (d_x.square().sum() + x.sum()).backward()
    dist.destroy_process_group()


def bits(rank: int, file: str) -> None:
    """The same call twice."""
    start(rank, file)
    for cp in arrangements():
        made, options = draw(CASES["bias_causal"], torch.bfloat16)
        made, options = on_device(made), {**options, "deterministic": True}
        first = split(cp, CASES["bias_causal"], made, options)
        again = split(cp, CASES["bias_causal"], made, options)
        for n in first:
            assert torch.equal(first[n], again[n]), n
    dist.destroy_process_group()


def page(rank: int, file: str) -> None:
    """The code of docs/guide/context_parallel.md."""
    start(rank, file)
    torch.set_default_device("cuda" if CUDA else "cpu")
    torch.manual_seed(3)
    text = (Path(__file__).resolve().parents[2] / "docs/guide/context_parallel.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "context_parallel.md", "exec"), names)
    rows = names["rows"].requires_grad_()
    q = rows.view(2, -1, 8, 16).transpose(1, 2)
    o = attention(q, q[:, :2], q[:, :2], causal=True)
    o.square().sum().backward()
    torch.testing.assert_close(names["whole"], o.detach(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        names["x"].grad, names["cp"].shard(rows.grad, 1), atol=1e-5, rtol=1e-5
    )
    dist.destroy_process_group()
