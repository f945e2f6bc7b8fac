# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention split over four processes is attention of one: values, gradients, errors, bits."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

TIMEOUT = 240.0


def run(name: str, folder: Path) -> None:
    """One function of context_parallel_ranks.py in four processes; one that hangs fails."""
    ranks = importlib.import_module("context_parallel_ranks")
    context = torch.multiprocessing.spawn(
        getattr(ranks, name), (str(folder / "meet"),), nprocs=ranks.SIZE, join=False
    )
    rest = TIMEOUT
    while rest > 0:
        if context.join(timeout=1):
            return
        rest -= 1
    for process in context.processes:
        process.kill()
    pytest.fail(f"{name} did not end within {TIMEOUT:.0f} s")


@pytest.mark.parametrize("name", ["values", "errors", "bits", "page"])
def test_four_processes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = torch.cuda.device_count()
    if os.environ.get("TANDEM_TEST_TORCH_DEVICE", "cpu").startswith("cuda") and ranks < 2:
        pytest.skip(f"a sequence is split over two or four GPUs, and there is {ranks}")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    run(name, tmp_path)


def test_a_graph_ends_where_ranks_compare(tmp_path: Path) -> None:
    """What they say to each other is text, which torch's compiler does not trace."""
    import torch.distributed as dist

    from tandem_attention.torch import attention
    from tandem_attention.torch.context_parallel import ContextParallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        parallel = ContextParallel()
        q, k, v = (torch.randn(1, 2, 4, 8, device="cpu") for _ in "qkv")
        f = torch.compile(lambda *x: parallel.attention(*x, causal=True) * 2, backend="eager")
        torch.testing.assert_close(f(q, k, v), attention(q, k, v, causal=True) * 2)
    finally:
        dist.destroy_process_group()
