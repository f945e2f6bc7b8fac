#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Times attention on this CPU: ours by `tandem bench`, PyTorch's scaled_dot_product_attention beside it.

    scripts/compare_torch_cpu.py [--out bench/results/cpu_NAME.json] [--rounds 5] [--threads N]

Needs torch (any build; a virtual environment will do: `pip install torch numpy`). The two take turns, round by
round, so that a disturbance of the machine meets both; a time is the median of its round, and the row of a case
is the median round. Rows are those of `tandem bench`, with impl "torch" for PyTorch's.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def listed_cases(args):
    command = [args.tandem, "bench", "--preset", args.preset, "--list"]
    cases = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # What PyTorch has no words for is left out of the comparison, aloud.
    for case in list(cases):
        extra = [f for f in case["features"] if f not in ("gqa", "mqa", "bias", "keep")]
        if case["mask"] == "causal_bottom_right" or extra:
            print(f"left out: {case['case']}", file=sys.stderr)
            cases.remove(case)
    return cases


def run_tandem(args, case):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "rows.json")
        command = [args.tandem, "bench", "--device", "cpu", "--problem", case["problem"],
                   "--max-seconds", str(args.seconds), "--out", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(out) as file:
            return json.load(file)


def median_time(work, seconds):
    """Median seconds of one call; the first calls are not counted."""
    times, end = [], time.perf_counter() + seconds
    warm = 3
    while warm > 0 or time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        work()
        if warm > 0:
            warm -= 1
        else:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def run_torch(args, case):
    def tensor(heads, rows, features):
        shape = (case["B"], heads, rows, features)
        return torch.randn(shape, dtype=DTYPES[case["dtype"]]).requires_grad_()

    q = tensor(case["Hq"], case["Sq"], case["D"])
    k = tensor(case["Hk"], case["Sk"], case["D"])
    v = tensor(case["Hk"], case["Sk"], case["Dv"])
    options = {"is_causal": case["mask"] == "causal"}
    inputs = [q, k, v]
    overlay = re.search(r" (bias:\w+|keep):(\d+)x(\d+)x(\d+)", case["problem"])
    if overlay:
        shape = (*(int(n) for n in overlay.groups()[1:]), case["Sk"])
        if overlay[1] == "keep":
            options["attn_mask"] = torch.ones(shape, dtype=torch.bool)
        else:
            options["attn_mask"] = torch.randn(shape, dtype=DTYPES[case["dtype"]]).requires_grad_()
            inputs.append(options["attn_mask"])
    if case["Hq"] != case["Hk"]:
        options["enable_gqa"] = True

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    def inference():
        with torch.no_grad():
            forward()

    o = forward()
    d_o = torch.randn_like(o)
    return {"fwd": median_time(inference, args.seconds),
            "bwd": median_time(lambda: torch.autograd.grad(o, inputs, d_o, retain_graph=True), args.seconds)}


def torch_row(like, op, flops, rounds):
    """The row of an operation that took so many seconds in each round."""
    seconds = statistics.median(rounds)
    row = {key: like[key] for key in ("case", "op", "impl", "backend", "path", "dtype", "B", "Hq", "Hk", "Sq", "Sk",
                                      "D", "Dv", "mask", "features", "problem")}
    row.update(op=op, impl="torch", path="sdpa", ms=1e3 * seconds, tflops=flops / seconds * 1e-12, max_err_ratio=None,
               spread=(max(rounds) - min(rounds)) / seconds,
               version=torch.__version__)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tandem", default="build/release/bin/tandem", help="the command (default: %(default)s)")
    parser.add_argument("--preset", default="cpu", help="cases of `tandem bench` (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for one row of one round (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="processors for both (default: all)")
    parser.add_argument("--out", help="result file (json)")
    args = parser.parse_args()

    if args.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:args.threads])
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)

    result = None
    for case in listed_cases(args):
        ours, theirs = [], []
        for _ in range(args.rounds):
            measured = run_tandem(args, case)
            theirs.append(run_torch(args, case))
            ours.append(measured["rows"])
            result = result or {"header": measured["header"], "rows": []}
        for n, op in enumerate(("fwd", "bwd")):
            row = sorted((rows[n] for rows in ours), key=lambda r: r["ms"])[args.rounds // 2]
            other = torch_row(row, op, case["flops_" + op], [t[op] for t in theirs])
            for r in (row, other):
                r["threads"], r["rounds"] = threads, args.rounds
                result["rows"].append(r)
            print(f"{case['problem']} {op}  tandem {row['ms']:8.3f} ms  torch {other['ms']:8.3f} ms  "
                  f"{other['ms'] / row['ms']:.2f} x as fast", flush=True)
    if result is None:
        sys.exit("no case to compare")
    if args.out:
        rows = ",\n    ".join(json.dumps(row) for row in result["rows"])
        with open(args.out, "w") as file:
            file.write(f'{{\n  "header": {json.dumps(result["header"])},\n  "rows": [\n    {rows}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
