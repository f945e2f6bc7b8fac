#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Times the fused kernels that PyTorch users have on the cases of `tandem bench --preset models`.

    tandem bench --preset models --list > cases.json
    scripts/bench_models.py --cases cases.json --out peers.json [--total-seconds S] [--peers NAME,...]
    tandem bench --merge tandem.json peers.json --out both.json

Peers (scripts/model_peers.py): fa2, cudnn and efficient by scaled_dot_product_attention; flex, which is FlexAttention, compiled,
where there is a bias or a mask that is not plain; cuequivariance, fa3 and fa4 where they are installed. Each case runs on all of
them together: forward and backward are captured into CUDA graphs, so that no launch costs the host; where that fails a row says
"clock": "events". A second of all of them warms the GPU, then samples of all of them take turns. A row has their median and spread.

A peer that does not take a case has a row with "refused", a sentence. A case that does not fit into memory is skipped, and the
header names it. --total-seconds ends the run: "not_reached" in the header names the cases that are left. The file is written after
each case; --resume goes on behind those that it has. A kernel that loses the GPU ends the process; it starts itself again behind
the case.

The error ratio is that of harness/compare.h, of one head, against PyTorch in double on the same GPU. d_bias has none, and neither
has a case with dropout.
"""
import argparse
import json
import os
import statistics
import sys
import time

import bench_peers
import model_peers
import torch
from model_case import Case, Tensors, head_errors

GRAPH_SECONDS = 0.002  # of work that a graph holds, so that its launch is small beside it


class Lost(Exception):
    """The GPU takes no more work from this process."""


def sentence(e):
    """The first line of an exception that says something."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return f"{type(e).__name__}: {lines[0][:200] if lines else 'no message'}"


def check_device(device):
    if device != "cpu":
        try:
            torch.cuda.synchronize()
        except Exception as e:
            raise Lost(sentence(e)) from e


def captured(run, device):
    """run as often as a graph should hold it: (replay, times, "graph"), or by launches: (run, 1, "events")."""
    if device == "cpu":
        return run, 1, "wall"
    one = bench_peers.seconds_of(run, 3, device) / 3
    times = max(1, min(50, int(GRAPH_SECONDS / max(one, 1e-6))))
    graph = torch.cuda.CUDAGraph()
    try:
        torch.cuda.synchronize()
        graph.capture_begin()
        try:
            for _ in range(times):
                run()
        finally:
            graph.capture_end()
        graph.replay()
        torch.cuda.synchronize()
    except Exception as e:
        bench_peers.say(f"    no graph: {sentence(e)}")
        check_device(device)
        return run, 1, "events"
    return graph.replay, times, "graph"


class Run:
    """One direction of one peer, ready to be timed."""

    def __init__(self, peer, op, run, device, error):
        self.peer, self.op, self.error, self.samples = peer, op, error, []
        self.replay, self.times, self.clock = captured(run, device)
        self.device, self.repeats = device, 1

    def sample(self):
        seconds = bench_peers.seconds_of(self.replay, self.repeats, self.device)
        return seconds / self.repeats / self.times


def prepared(case, tensors, peer, device, args):
    """Both directions of a peer, as Runs, and why there is no backward, or "". What its forward refuses is raised."""
    attend = model_peers.attend_of(peer, case, tensors, device)

    def forward():  # as in training: with the lse that the backward reads
        return attend(*tensors.qkv)

    o = forward()
    gradients, why = None, ""
    if case.backward:
        learned = tensors.learned()

        def backward():
            return torch.autograd.grad(o, learned, tensors.d_o, retain_graph=True)

        try:
            gradients = backward()
        except Exception as e:
            if stops(device, e):
                raise
            why = sentence(e)
    errors = (None, None) if args.no_check else head_errors(case, tensors, o.detach(), gradients)
    runs = [Run(peer, "fwd", forward, device, errors[0])]
    if gradients is not None:
        del gradients
        runs.append(Run(peer, "bwd", backward, device, errors[1]))
    return runs, why


def row_of(case, peer, op, device):
    row = {"case": case.name, "op": op, "impl": peer, "backend": "cpu" if device == "cpu" else "cuda"}
    row["path"] = "torch" if peer in ("fa2", "cudnn", "efficient", "math", "flex") else peer
    keys = ["dtype", "B", "Hq", "Hk", "Sq", "Sk", "D", "Dv", "mask", "features"]
    row.update({key: case.listed[key] for key in keys})
    return row


def refusal(case, peer, op, device, why):
    row = row_of(case, peer, op, device)
    row.update(ms=None, tflops=None, max_err_ratio=None, refused=why)
    bench_peers.say(f"  {peer} refused: {why}")
    return row


def timed_row(case, run):
    row = row_of(case, run.peer, run.op, run.device)
    ms = 1e3 * statistics.median(run.samples)
    row.update(ms=ms, tflops=case.listed["flops_" + run.op] / ms / 1e9, max_err_ratio=run.error)
    row.update(spread=bench_peers.spread_of(run.samples), reps=len(run.samples))
    row.update(clock=run.clock, problem=case.listed["problem"])
    error = "-" if run.error is None else f"{run.error:.3f}"
    bench_peers.say(f"  {run.peer:<14} {run.op} {ms:9.4f} ms  {row['tflops']:7.1f} TFLOP/s  {error}  {run.clock}")
    return row


def time_together(runs, device, args):
    """Continuous work of all for the warm-up, then samples in turns."""
    end = time.perf_counter() + args.warmup
    while True:
        for run in runs:
            one = bench_peers.seconds_of(run.replay, 1, device)
            run.repeats = max(1, min(1000, int(args.sample_seconds / max(one, 1e-7))))
        if time.perf_counter() >= end:
            break
    for _ in range(args.reps):
        for run in runs:
            run.samples.append(run.sample())


def stops(device, e):
    """Whether the exception leaves nothing to go on with: the memory, for the case; the GPU, for the process."""
    if isinstance(e, Lost):
        raise e
    if isinstance(e, torch.OutOfMemoryError):
        return True
    check_device(device)
    return False


def rows_of_case(case, device, args):
    """All rows of a case. An OutOfMemoryError of its inputs is raised."""
    rows, runs = [], []
    tensors = Tensors(case, device)
    wanted = [name for name in args.peers if name != "flex" or case.wants_flex or args.flex_always]
    for name in wanted:
        if time.time() > args.deadline:
            rows.append(refusal(case, name, "fwd", device, "no time was left"))
            continue
        why = model_peers.refusal_of(name, case, device)
        if why:
            if not why.startswith("not installed"):
                rows.append(refusal(case, name, "fwd", device, why))
            continue
        try:
            ready, why = prepared(case, tensors, name, device, args)
            runs += ready
            if why:
                rows.append(refusal(case, name, "bwd", device, why))
        except Exception as e:
            if stops(device, e):
                torch.cuda.empty_cache()
                rows.append(refusal(case, name, "fwd", device, "out of memory"))
            else:
                rows.append(refusal(case, name, "fwd", device, sentence(e)))
    if runs:
        time_together(runs, device, args)
        rows += [timed_row(case, run) for run in runs]
    return rows


class Results:
    """The file, written whole after each case."""

    def __init__(self, args):
        self.args, self.rows, self.clocks, self.notes = args, [], [], {"skipped": {}, "not_reached": []}
        if args.resume and os.path.exists(args.out):
            with open(args.out) as file:
                old = json.load(file)
            self.rows = old["rows"]
            self.notes["skipped"] = old["header"].get("skipped", {})

    def has(self, name):
        return name in self.notes["skipped"] or any(row["case"] == name for row in self.rows)

    def save(self):
        mhz = None if self.args.device == "cpu" else bench_peers.clock_now()
        self.clocks += [mhz] if mhz else []
        bench_peers.write(self.args, self.rows, self.clocks, {}, self.notes)


def chosen(args):
    with open(args.cases) as file:
        cases = [Case(listed) for listed in json.load(file)]
    if not args.case:
        return cases
    named = {case.name: case for case in cases}
    lost = [name for name in args.case if name not in named]
    if lost:
        sys.exit(f"bench_models: {args.cases} has no case {lost[0]}")
    return [named[name] for name in args.case]


def start_again_if_lost(case, e, args, results):
    """Where the GPU takes no more work from this process, a new one goes on behind the case."""
    try:
        check_device(args.device)
        if not isinstance(e, Lost):
            return
    except Lost as lost:
        e = lost
    results.notes["skipped"][case.name] = f"the GPU was lost: {e}"
    results.save()
    bench_peers.say(f"  skipped: the GPU was lost, a new process goes on: {e}")
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if "--deadline" not in words:
        words += ["--deadline", str(args.deadline)]
    os.execv(sys.executable, [sys.executable, sys.argv[0], *words, "--resume"])


def run_all(args, results):
    cases = [case for case in chosen(args) if not results.has(case.name)]
    for n, case in enumerate(cases):
        if time.time() > args.deadline:
            results.notes["not_reached"] = [left.name for left in cases[n:]]
            results.save()
            bench_peers.say(f"the time is over: {len(cases) - n} cases are left")
            return
        bench_peers.say(f"{case.name}: {case.listed['problem']}")
        try:
            results.rows += rows_of_case(case, args.device, args)
        except torch.OutOfMemoryError:
            results.notes["skipped"][case.name] = "out of memory"
            bench_peers.say("  skipped: out of memory")
        except Exception as e:
            start_again_if_lost(case, e, args, results)
            results.notes["skipped"][case.name] = sentence(e)
            bench_peers.say(f"  skipped: {sentence(e)}")
        if args.device != "cpu":
            torch.cuda.empty_cache()
        results.save()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", required=True, help="json of tandem bench --preset models --list")
    parser.add_argument("--case", action="append", help="only these, in this order")
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peers", help=f"comma-separated, of {','.join(model_peers.NAMES)}; default: all, on the CPU math")
    parser.add_argument("--flex-always", action="store_true", help="FlexAttention for plain cases, too")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds of a case's work before its samples")
    parser.add_argument("--reps", type=int, default=9, help="samples of each direction")
    parser.add_argument("--sample-seconds", type=float, default=0.01)
    parser.add_argument("--total-seconds", type=float, default=3600)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)  # of a run that starts itself again
    parser.add_argument("--resume", action="store_true", help="keep the rows of --out, and go on behind them")
    parser.add_argument("--commit", default="", help="of the tandem rows that these will be merged with")
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
    args.peers = (args.peers or ("math" if args.device == "cpu" else ",".join(model_peers.NAMES[:-1]))).split(",")
    args.deadline = args.deadline or time.time() + args.total_seconds
    for name in args.peers:
        if name not in model_peers.NAMES:
            parser.error(f"no peer is named {name}; there are {', '.join(model_peers.NAMES)}")
    bench_peers.exact_f32()
    results = Results(args)
    stream = torch.cuda.Stream() if args.device != "cpu" else None
    if stream is None:
        run_all(args, results)
    else:
        with torch.cuda.stream(stream):  # graphs capture on no other than a side stream
            run_all(args, results)
    if not any(row["ms"] for row in results.rows):
        bench_peers.say("Nothing ran, so there is no result.")
        sys.exit(1)


if __name__ == "__main__":
    main()
