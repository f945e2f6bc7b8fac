# SPDX-License-Identifier: MIT OR Apache-2.0
"""Times attention split over GPUs.

torchrun --nproc-per-node N context_parallel_bench.py [OPTION...]

One GPU, ring, Ulysses, both (from four GPUs on) and torch's own context parallel, forward and
backward, in turns within one run. Speed-up is one GPU's time over the split one's; memory is the
peak of the slowest rank above the inputs of the call.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tandem_attention.torch import attention
from tandem_attention.torch.context_parallel import ContextParallel

Step = Callable[[], Any]


def timed(step: Step, repeats: int, warmup: int) -> tuple[float, float]:
    """Median of the slowest rank's ms, and peak GiB."""
    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    found = torch.tensor([*times, peak], device="cuda")
    dist.all_reduce(found, dist.ReduceOp.MAX)
    *slowest, peak = found.tolist()
    return statistics.median(slowest), peak


def both_ways(
    run: Callable[..., Tensor], tensors: list[Tensor], d_o: Tensor, forward: bool
) -> Step:
    def step() -> None:
        for t in tensors:
            t.grad = None
        o = run(*tensors)
        if not forward:
            torch.autograd.backward(o, d_o)

    return step


def by_torch(tensors: list[Tensor], d_o: Tensor, rotate: str, forward: bool) -> Step:
    """torch's own. Its backward has to lie within the context, too."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    group = tensors[0].shape[1] // tensors[1].shape[1]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    # It reads the length of the whole sequence from a buffer, which it splits.
    rows = torch.zeros(tensors[0].shape[2] * dist.get_world_size(), device="cuda")

    def step() -> None:
        set_rotate_method(rotate)
        with context_parallel(mesh, buffers=[rows], buffer_seq_dims=[0]):
            both_ways(run, tensors, d_o, forward)()

    return step


def draw(args: argparse.Namespace, rows: int) -> tuple[list[Tensor], Tensor]:
    def one(heads: int) -> Tensor:
        shape = (1, heads, rows, args.head_dim)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    tensors = [one(h).requires_grad_() for h in (args.heads, args.kv_heads, args.kv_heads)]
    return tensors, one(args.heads)


def main() -> None:
    """Prints a line for each length and way."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lengths", type=int, nargs="+", default=[32768, 65536])
    options.add_argument("--heads", type=int, default=32)
    options.add_argument("--kv-heads", type=int, default=8)
    options.add_argument("--head-dim", type=int, default=128)
    options.add_argument("--repeats", type=int, default=10)
    options.add_argument("--warmup", type=int, default=3)
    options.add_argument("--forward", action="store_true", help="forward alone")
    options.add_argument("--check", choices=("each", "first"), default="each")
    options.add_argument("--no-one", action="store_true", help="leave one GPU out (long sequences)")
    options.add_argument("--no-torch", action="store_true", help="leave torch's own out")
    args = options.parse_args()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    # What is sent should get its share of the GPU while attention computes.
    nccl = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    dist.init_process_group("nccl", pg_options=nccl)
    size, lead = dist.get_world_size(), dist.get_rank() == 0
    ways = {"ring": ContextParallel(check=args.check)}
    ways["ulysses"] = ContextParallel(ulysses=size, check=args.check)
    if size >= 4 and size % 2 == 0:
        ways["both"] = ContextParallel(ulysses=2, check=args.check)
    if lead:
        print(f"{torch.cuda.get_device_name()} x {size}, torch {torch.__version__}", flush=True)
    for length in args.lengths:
        one = None
        if not args.no_one:
            tensors, d_o = draw(args, length)
            step = both_ways(lambda *t: attention(*t, causal=True), tensors, d_o, args.forward)
            one, peak = timed(step, args.repeats, args.warmup)
            if lead:
                print(f"S {length} one GPU: {one:.2f} ms, {peak:.2f} GiB", flush=True)
            del tensors, d_o, step
        tensors, d_o = draw(args, length // size)
        steps: dict[str, Step] = {
            n: both_ways(
                lambda *t, cp=cp: cp.attention(*t, causal=True), tensors, d_o, args.forward
            )
            for n, cp in ways.items()
        }
        if not args.no_torch:
            for rotate in ("allgather", "alltoall"):
                steps[f"torch {rotate}"] = by_torch(tensors, d_o, rotate, args.forward)
        for name, step in steps.items():
            try:
                ms, peak = timed(step, args.repeats, args.warmup)
            except Exception as failed:  # torch's own is experimental
                print(f"S {length} {name}: {type(failed).__name__}: {failed}"[:400], flush=True)
                if not name.startswith("torch"):
                    raise
                continue
            faster = f", {one / ms:.2f} times one GPU" if one else ""
            if lead:
                print(f"S {length} {name}: {ms:.2f} ms{faster}, {peak:.2f} GiB", flush=True)
        del tensors, d_o, steps
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
