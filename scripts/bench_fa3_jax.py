#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Times FlashAttention-3's own kernels beside the library on a Hopper GPU, in turns, and writes rows of `tandem bench`.

    tandem bench --preset lengths --list > cases.json
    scripts/bench_fa3_jax.py --library libdew_flash_attn3.so --cases cases.json --tandem build/release/bin/tandem --out fa3.json

The kernels come as FFI targets of JAX from the wheel dew-flash-attn-cu13 (0.3.6 has them in libdew_flash_attn3.so), as FlashAttention
has no wheel of them. A call of JAX takes the host some 0.1 ms, so many calls follow each other without a wait, and their wall clock
counts: a row of less than that is the host's. Cases are of f16 or bf16, without or with a causal mask, and nothing else.
"""
import argparse
import ctypes
import json
import os
import statistics
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the library shares the GPU

import bench_peers
import jax
import jax.numpy as jnp
import numpy as np

SAMPLES, SAMPLE_SECONDS, WARM_SECONDS = 5, 0.1, 0.4


def attributes(case):
    return {"softmax_scale": np.float64(case["D"] ** -0.5), "is_causal": case["mask"] == "causal",
            "window_size_left": np.int64(-1), "window_size_right": np.int64(-1)}


def forward(case):
    def run(q, k, v):
        batch, rows, heads, _ = q.shape
        shapes = [(q.shape, q.dtype), ((batch, heads, rows), jnp.float32), ((1, 1, 1, 1), jnp.float32), ((1, 1, 1), jnp.float32)]
        call = jax.ffi.ffi_call("dew_flash3_mha_fwd", tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes))
        return call(q, k, v, **attributes(case))[:2]

    return jax.jit(run)


def backward(case):
    def run(d_o, q, k, v, o, lse):
        batch, rows, heads, _ = q.shape
        scratch = ((heads * (batch * rows + 128 * (batch + 1)),), jnp.float32)
        shapes = [(q.shape, q.dtype), (k.shape, k.dtype), (v.shape, v.dtype), scratch, scratch]
        call = jax.ffi.ffi_call("dew_flash3_mha_bwd", tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes))
        return call(d_o, q, k, v, o, lse, **attributes(case))[:3]

    return jax.jit(run)


def measured(run):
    """Median seconds of a call, the spread, samples, and True, as bench_peers.measure()."""

    def sample(times):
        start = time.perf_counter()
        for _ in range(times):
            last = run()
        jax.block_until_ready(last)
        return (time.perf_counter() - start) / times

    one, warm = sample(1), time.perf_counter()
    while time.perf_counter() - warm < WARM_SECONDS:
        one = sample(10)
    times = max(3, int(SAMPLE_SECONDS / one))
    seconds = [sample(times) for _ in range(SAMPLES)]
    middle = statistics.median(seconds)
    return middle, (max(seconds) - min(seconds)) / middle, SAMPLES, True


def timed(case):
    """{op: measured()} of one case."""
    key = jax.random.PRNGKey(1)
    shape = (case["B"], case["Sq"], case["Hq"], case["D"])
    dtype = {"f16": jnp.float16, "bf16": jnp.bfloat16}[case["dtype"]]
    q, k, v, d_o = (jax.random.normal(part, shape, dtype) for part in jax.random.split(key, 4))
    run, back = forward(case), backward(case)
    o, lse = run(q, k, v)
    return {"fwd": measured(lambda: run(q, k, v)), "bwd": measured(lambda: back(d_o, q, k, v, o, lse))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--cases", required=True, help="json of tandem bench --list")
    parser.add_argument("--tandem", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    library = ctypes.cdll.LoadLibrary(args.library)
    for name in ("dew_flash3_mha_fwd", "dew_flash3_mha_bwd"):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="CUDA")
    # What bench_peers asks of its own command line.
    args.warmup, args.reps, args.round_seconds, args.max_seconds = 0.2, 5, 0.1, 1.0
    args.device, args.commit, args.no_check = "cuda", "", False
    rows, clocks = [], []
    for case in json.load(open(args.cases)):
        ours, theirs = bench_peers.Tandem(case, "cuda:0/sm90", args), []
        for _ in range(args.rounds):
            ours.round()
            theirs.append(timed(case))
        rows += ours.rows()
        for op in ("fwd", "bwd"):
            row = bench_peers.row_of(case, op, "fa3", "cuda", [one[op] for one in theirs], None)
            rows.append({**row, "path": "jax", "clock": "wall"})
        clocks.append(bench_peers.clock_now() or 0)
        notes = {"fa3": f"{os.path.basename(args.library)} by JAX {jax.__version__}"}
        bench_peers.write(args, rows, clocks, ours.header, notes)
    for row in rows:
        print(f"{row['case']:<24} {row['op']} {row['impl']:<7} {row['ms']:9.4f} ms {row['tflops']:8.1f} TFLOP/s")


if __name__ == "__main__":
    main()
