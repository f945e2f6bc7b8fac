#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Times PyTorch's attention on the cases of `tandem bench` and writes rows of the same json.

    tandem bench --preset training --list > cases.json
    scripts/bench_peers.py --cases cases.json --out peers.json
    tandem bench --merge tandem.json peers.json --out both.json

Peers: cudnn, fa2 (PyTorch's flash kernel), efficient, math, and flex: FlexAttention, compiled. (On the CPU there is
only math, to try this script; scripts/compare_torch_cpu.py compares CPUs.) A dense bias is learned: it goes to the others
as attn_mask, to FlexAttention as a score_mod that captures it, and its gradient is part of the backward. A peer that
refuses a case is left out, with its reason on stderr. Timing as the library's own bench does it: warm-up of continuous
work, then rounds of samples until two medians agree, each sample by events around many launches; on a GPU a round lasts
0.6 s at least, as a power limit shows as drops of the clock about once a second. The error ratio is that of
harness/compare.h; d_bias has none.

    scripts/bench_peers.py --cases cases.json --tandem build/release/bin/tandem --rounds 5 --out both.json

times each case by `tandem bench` (with --tandem-device cuda:0/sm90,cuda:0/sm80 by both paths) and by the peers one after
the other, as often as --rounds says, and writes the rows of all: clocks and temperatures that change within minutes then
change for all of them. A row has the median of its rounds, and as its spread how far these are apart.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ULP = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
PEERS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "fa2": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "flex": None,
}
KNOWN = {"bias", "gqa", "mqa"}  # of a case's features, those that peers can have


def say(text):
    print(text, file=sys.stderr, flush=True)


def sdpa(case, bias):
    """o of q, k, v by PyTorch's own kernels."""
    causal = case["mask"] == "causal"
    if causal and bias is not None:
        raise RuntimeError("scaled_dot_product_attention takes a bias or is_causal, not both")
    mask = None if bias is None else bias.expand(case["B"], *bias.shape[1:])

    def attend(q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=case["Hq"] != case["Hk"]
        )

    return attend


def flex(case, bias, device):
    """The same by FlexAttention, compiled for this case."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # or one case's code would count as the next one's recompilation
    torch._functorch.config.donated_buffer = False  # a backward that is timed runs more than once
    compiled = torch.compile(flex_attention, dynamic=False)
    score_mod = mask = None
    if bias is not None:
        entries = bias.shape[0]

        def score_mod(score, b, h, i, j):
            return score + bias[b if entries > 1 else 0, h, i, j]

    if case["mask"] == "causal":
        mask = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, case["Sq"], case["Sk"], device=device
        )

    def attend(q, k, v):
        gqa = case["Hq"] != case["Hk"]
        return compiled(q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=gqa)

    return attend


def hidden(case, s):
    return torch.ones_like(s, dtype=torch.bool).triu(1) if case["mask"] == "causal" else None


def plain(case, q, k, v, d_o, bias):
    """One head step by step in the dtype of its inputs: o, d_q, d_k, d_v, and the sums of the magnitudes
    of the terms of each."""
    scale = case["D"] ** -0.5
    s = (q @ k.T) * scale
    if bias is not None:
        s = s + bias
    if case["mask"] == "causal":
        s = s.masked_fill(hidden(case, s), float("-inf"))
    p = torch.softmax(s, -1)
    o = p @ v
    d_p = d_o @ v.T
    d_s = p * (d_p - (d_o * o).sum(-1, keepdim=True))
    e = p * (d_p.abs() + (d_o * o).abs().sum(-1, keepdim=True))
    values = [o, (d_s @ k) * scale, (d_s.T @ q) * scale, p.T @ d_o]
    terms = [p @ v.abs(), (e @ k.abs()) * scale, (e.T @ q.abs()) * scale, p.T @ d_o.abs()]
    return values, terms


def usual_errors(relative, bins):
    """What 9 of 10 rows with as many terms stay below; harness/compare.cpp has the same."""
    usual = torch.zeros_like(relative)
    for n in bins.unique():
        reach = 0
        while (bins - n).abs().le(reach).sum() < min(16, len(bins)):
            reach += 1
        pool = relative[(bins - n).abs().le(reach)].sort().values
        usual[bins == n] = pool[len(pool) * 9 // 10]
    return usual


def ratio(case, got, exact, stepwise, terms, roundings, keys):
    got, stepwise, rows = got.double(), stepwise.double(), len(exact)
    if not torch.isfinite(got).all():
        return 1e9
    error, step = (got - exact).abs().amax(-1), (stepwise - exact).abs().amax(-1)
    terms = terms.amax(-1)
    index = torch.arange(rows, device=got.device)
    counts = torch.full_like(index, case["Sq"] if keys else case["Sk"])
    if case["mask"] == "causal":
        counts = case["Sq"] - index if keys else (index + 1).clamp_max(case["Sk"])
    bins = counts.clamp_min(1).double().log2().floor()
    usual = usual_errors(step / terms.clamp_min(1e-300), bins) * terms
    bound = 2 * torch.maximum(step, usual) + ULP[case["dtype"]] * exact.abs().amax(-1)
    bound += roundings * 2.0**-24 * terms
    return (2 * error / bound.clamp_min(1e-300)).max().item()


def seconds_of(run, times, device):
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(times):
            run()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def measure(run, device, args):
    """Median seconds of one run, the spread, samples and whether two rounds agreed."""
    start = time.perf_counter()
    one = seconds_of(run, 1, device)
    repeats = lambda: min(1000, max(1, int(0.02 / max(one, 1e-7)) + 1))
    warm = time.perf_counter()
    while time.perf_counter() - warm < args.warmup:
        n = repeats()
        one = seconds_of(run, n, device) / n
    n, before = repeats(), []
    while True:
        samples, began = [], time.perf_counter()
        while len(samples) < args.reps or time.perf_counter() - began < args.round_seconds:
            samples.append(seconds_of(run, n, device) / n)
        last = statistics.median(before) if before else None
        agreed = last is not None and abs(statistics.median(samples) - last) <= 0.02 * last
        if agreed or time.perf_counter() - start > args.max_seconds:
            both = samples + before
            middle = statistics.median(both)
            return middle, (max(both) - min(both)) / middle, len(both), agreed
        before = samples


def inputs(case, device):
    generator = torch.Generator(device).manual_seed(1)

    def normal(heads, length, features):
        shape = (case["B"], heads, length, features)
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(
            DTYPES[case["dtype"]]
        )

    q = normal(case["Hq"], case["Sq"], case["D"]).requires_grad_()
    k = normal(case["Hk"], case["Sk"], case["D"]).requires_grad_()
    v = normal(case["Hk"], case["Sk"], case["Dv"]).requires_grad_()
    d_o = normal(case["Hq"], case["Sq"], case["Dv"])
    bias = None
    if case.get("bias"):
        shape = case["bias"]["dims"]
        bias = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        bias = bias.to(DTYPES[case["bias"]["dtype"]]).requires_grad_()
    return q, k, v, d_o, bias


def errors(case, q, k, v, d_o, bias, o, gradients):
    """Worst ratios of forward and backward, over the first and the last head."""
    worst = [0.0, 0.0]
    group = case["Hq"] // case["Hk"]
    for b, h in {(0, 0), (case["B"] - 1, case["Hq"] - 1)}:
        head = [q[b, h], k[b, h // group], v[b, h // group], d_o[b, h]]
        head = [t.detach() for t in head]
        added = None if bias is None else bias[b % bias.shape[0], h].detach()
        stepwise, _ = plain(case, *head, None if added is None else added.to(head[0].dtype))
        exact, terms = plain(case, *[None if t is None else t.double() for t in (*head, added)])
        size = [t.double().abs().mean(-1).max().item() for t in head[:2]]
        roundings = 8 + case["D"] ** 0.5 * size[0] * size[1]
        pairs = [(0, o[b, h], 0), (1, gradients[0][b, h], 1)]
        if group == 1:  # keys of a group sum over heads, which one head does not tell
            pairs += [(1, gradients[1][b, h], 2), (1, gradients[2][b, h], 3)]
        for op, got, n in pairs:
            found = ratio(case, got, exact[n], stepwise[n], terms[n], roundings, n >= 2)
            worst[op] = max(worst[op], found)
    return worst


def prepared(case, peer, device, args):
    """What to time of a peer, with its errors: [(op, run, error)]."""
    q, k, v, d_o, bias = inputs(case, device)
    learned = (q, k, v) if bias is None else (q, k, v, bias)
    attend = flex(case, bias, device) if peer == "flex" else sdpa(case, bias)

    def forward():
        return attend(q, k, v)

    o = forward()
    gradients = torch.autograd.grad(o, learned, d_o, retain_graph=True)
    bad = [None, None] if args.no_check else errors(case, q, k, v, d_o, bias, o, gradients)
    del gradients

    def backward():
        torch.autograd.grad(o, learned, d_o, retain_graph=True)

    return [("fwd", forward, bad[0]), ("bwd", backward, bad[1])]


def row_of(case, op, peer, device, rounds, error):
    """A peer's row of its rounds, each as measure() returns it."""
    seconds = statistics.median(one[0] for one in rounds)
    row = {"case": case["case"], "op": op, "impl": peer}
    row.update(backend="cpu" if device == "cpu" else "cuda", path="torch")
    keys = ["case", "dtype", "B", "Hq", "Hk", "Sq", "Sk", "D", "Dv", "mask", "features"]
    row.update({key: case[key] for key in keys})
    flops = case["flops_fwd" if op == "fwd" else "flops_bwd"]
    row.update(ms=1e3 * seconds, tflops=flops / seconds / 1e12, max_err_ratio=error)
    row.update(spread=rounds[0][1], reps=sum(one[2] for one in rounds), agreed=all(one[3] for one in rounds))
    row["clock"] = "wall" if device == "cpu" else "events"
    if len(rounds) > 1:
        row.update(spread=spread_of([one[0] for one in rounds]), rounds=len(rounds))
    return row


def spread_of(values):
    return (max(values) - min(values)) / statistics.median(values)


class Peers:
    """Some peers on one case: prepared once, timed as often as wanted."""

    def __init__(self, case, names, device, args):
        self.case, self.device, self.args, self.ready, self.times = case, device, args, {}, {}
        for name in names:
            say(f"{name}: {case['case']}")
            self.guarded(name, lambda: self.ready.update({name: prepared(case, name, device, args)}))

    def guarded(self, name, work):
        try:
            with nullcontext() if name == "flex" else sdpa_kernel(PEERS[name]):
                work()
        except Exception as e:  # compilers of FlexAttention throw what they like
            say(f"  {name} refused: {type(e).__name__}: {(str(e).splitlines() or [''])[0]}")
            self.ready.pop(name, None)

    def round(self):
        args = self.args

        def timed(name):
            for op, run, _ in self.ready[name]:
                with torch.no_grad() if op == "fwd" else nullcontext():
                    one = measure(run, self.device, args)
                self.times.setdefault((name, op), []).append(one)

        for name in list(self.ready):
            self.guarded(name, lambda: timed(name))

    def rows(self):
        for name, ops in self.ready.items():
            for op, _, error in ops:
                yield row_of(self.case, op, name, self.device, self.times[name, op], error)


class Tandem:
    """The same of `tandem bench`, a process for each round. Errors are looked for in the first one."""

    def __init__(self, case, device, args):
        self.case, self.args, self.results, self.header = case, args, [], {}
        self.device = device

    def round(self):
        args = self.args
        command = [args.tandem, "bench", "--problem", self.case["problem"], "--format", "json"]
        command += ["--device", self.device]
        command += ["--warmup", str(args.warmup), "--reps", str(args.reps)]
        command += ["--round-seconds", str(args.round_seconds), "--max-seconds", str(args.max_seconds)]
        if args.no_check or self.results:
            command.append("--no-check")
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if not done.stdout:
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode} and no rows")
        result = json.loads(done.stdout)
        self.header = result["header"]
        self.results.append({row["op"]: row for row in result["rows"]})

    def rows(self):
        for op, row in self.results[0].items():
            ms = [result[op]["ms"] for result in self.results if op in result]
            row.update(case=self.case["case"], ms=statistics.median(ms), rounds=len(ms))
            row["tflops"] = self.case["flops_" + op] / row["ms"] / 1e9
            if len(ms) > 1:
                row["spread"] = spread_of(ms)
            row["agreed"] = all(result[op]["agreed"] for result in self.results if op in result)
            row["reps"] = sum(result[op]["reps"] for result in self.results if op in result)
            yield row


def clock_now():
    try:
        query = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
        return int(subprocess.run(query, capture_output=True, text=True).stdout.split()[0])
    except (OSError, ValueError, IndexError):
        return None


def exact_f32():
    """f32 means f32: without this PyTorch may round products to TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def write(args, rows, clocks, tandem, notes=None):
    """The result file; tandem: the header of its rows, if there are any; notes: more members of the header."""
    header = {
        "device": "CPU" if args.device == "cpu" else torch.cuda.get_device_name(),
        "driver": (tandem["driver"] + "; " if tandem else "")
        + f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}",
        "backend": "cpu" if args.device == "cpu" else "cuda",
        "commit": args.commit or tandem.get("commit", ""),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "clocks_mhz": min(clocks) if clocks else None,
        **(notes or {}),
    }
    with open(args.out + ".part", "w") as out:
        out.write('{\n  "header": ' + json.dumps(header) + ',\n  "rows": [\n    ')
        out.write(",\n    ".join(json.dumps(row) for row in rows) + "\n  ]\n}\n")
    os.replace(args.out + ".part", args.out)  # whole, or as it was


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", required=True, help="json of tandem bench --list")
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peers", help="comma-separated; default: cudnn,fa2,efficient,flex")
    parser.add_argument("--tandem", help="this program's bench in turns with the peers, and its rows in the same file")
    parser.add_argument("--tandem-device", help="its --device, or several: a,b; default: cuda:0, beside --device cpu: cpu")
    parser.add_argument("--rounds", type=int, help="turns of --tandem; default: 5")
    parser.add_argument("--commit", default="", help="of the tandem rows that these will be merged with")
    parser.add_argument("--warmup", type=float, default=None, help="seconds; default 1, on the CPU 0.1")
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--round-seconds", type=float, help="of samples at least; default 0.6, on the CPU 0")
    parser.add_argument("--max-seconds", type=float, default=10)
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
    if args.rounds is not None and (args.rounds < 1 or not args.tandem):
        parser.error("--rounds is a number of turns with --tandem, at least 1")
    cpu = args.device == "cpu"
    if args.warmup is None:
        args.warmup = 0.1 if cpu else 1.0
    if args.round_seconds is None:
        args.round_seconds = 0.0 if cpu else 0.6
    exact_f32()

    cases = json.load(open(args.cases))
    peers = (args.peers or ("math" if cpu else "cudnn,fa2,efficient,flex")).split(",")
    devices = (args.tandem_device or ("cpu" if cpu else "cuda:0")).split(",")
    rows, clocks, tandem = [], [], {}
    for case in cases:
        others = [word for word in case["features"] if word not in KNOWN]
        able = peers
        if case["mask"] not in ("none", "causal") or case["D"] != case["Dv"] or others:
            say(f"{case['case']}: no peer has its mask, head sizes or {' '.join(others) or 'features'}")
            able = []
        # By themselves, peers come one after the other, each with the whole memory.
        for group in [able] if args.tandem else [[peer] for peer in able]:
            turns = [Peers(case, group, args.device, args)]
            if args.tandem:
                turns = [Tandem(case, device, args) for device in devices] + turns
            for n in range((args.rounds or 5) if args.tandem else 1):
                if args.tandem:
                    say(f"round {n + 1}: {case['case']}")
                for each in turns:
                    each.round()
            for each in turns:
                rows += each.rows()
            if args.tandem:
                tandem = turns[0].header
            mhz = None if cpu else clock_now()
            clocks += [mhz] if mhz else []
        if rows:  # what there is, whatever ends this run
            write(args, rows, clocks, tandem)
    if not rows:
        say("Nothing ran, so there is no result.")
        sys.exit(1)
    for row in rows:
        error = "-" if row["max_err_ratio"] is None else f"{row['max_err_ratio']:.3f}"
        name = f"tandem.{row['path']}" if row["impl"] == "tandem" else row["impl"]
        print(f"{row['case']:<24} {row['op']}  {name:<14} {row['ms']:9.4f} ms {row['tflops']:8.2f} TFLOP/s  {error}")


if __name__ == "__main__":
    main()
