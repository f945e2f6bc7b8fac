#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the CUDA kernels are held to on a Hopper GPU: times every line beside its peer, and says which holds.

    scripts/bench_floors.py --tandem build/release/bin/tandem --out DIR [GROUP...]

GROUPs (all of them, in this order): errors grid64 grid128 grid256 bias own f32 fixed elastic entmax. Each leaves DIR/GROUP.json, a result file of
`tandem bench`; what is there of earlier calls counts as well. `--say` only reads them. Peers run in turns with the library
(scripts/bench_peers.py). The Triton kernels of Lazy Attention and AdaSplash-2 are not run: their times, of an H100 80GB HBM3 with
the same driver, are constants below. Errors come from rows that are timed briefly; the grid gets them from there.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GRIDS = ["grid64", "grid128", "grid256"]
GROUPS = ["errors", *GRIDS, "bias", "own", "f32", "fixed", "elastic", "entmax"]
# ms forward, backward; B 4 H 16 S 4096 or B 1 H 16 S 16384, bf16, causal; H100 80GB HBM3, 580.159.04, 2026-11-21.
TRITON = {
    "bf16-d64-s4096-causal-elastic": (2.58, 30.2),
    "bf16-d128-s4096-causal-elastic": (3.64, 43.9),
    "bf16-d128-s16384-causal-elastic": (13.3, 176.7),
    "bf16-d64-s4096-causal-entmax": (1.58, 1.24),
    "bf16-d64-s16384-causal-entmax": (5.89, 4.46),
}


def shape(d, s, batch=None):
    batch = batch or 16384 // s
    return f"b{batch} hq{2048 // d} hk{2048 // d} sq{s} sk{s} d{d} dv{d}"


def with_bias(d, s):
    return f"bwd bf16 {shape(d, s, 4)} bias:bf16:1x{2048 // d}x{s} grads=qkvb d_bias:bf16"


def fixed_lines():
    for d in (64, 128):
        for s in (1024, 4096, 16384):
            for mask in ("", " causal_top_left"):
                yield f"bwd bf16 {shape(d, s)}{mask}"


F32 = [f"bwd f32 {shape(d, 4096)}{mask}" for d in (64, 128) for mask in ("", " causal_top_left")]
BIAS = [with_bias(d, s) for d in (128, 64) for s in (2048, 4096)]
OWN = [line for d in (128, 64) for s in (2048, 4096) for line in (f"bwd bf16 {shape(d, s, 4)}", with_bias(d, s))]


class Runs:
    def __init__(self, args):
        self.args = args

    failed = False  # whether a program ended with an error

    def ended(self, what, done):
        if done.returncode:
            self.failed = True
            print(f"FAILED {what}: exit status {done.returncode}", flush=True)
        return done

    def file(self, name):
        return os.path.join(self.args.out, name + ".json")

    def tandem(self, *words, out=None):
        command = [self.args.tandem, "bench", *words] + (["--out", self.file(out)] if out else [])
        if "--list" not in words:
            command += ["--max-seconds", str(self.args.max_seconds)]
        to = subprocess.PIPE if not out else sys.stderr
        return self.ended(out or "tandem bench", subprocess.run(command, check=False, stdout=to, text=True))

    def problems(self, lines):
        return [word for line in lines for word in ("--problem", line)]

    def peers(self, name, which, device, rounds, cases, wanted=lambda case: True):
        listed = os.path.join(self.args.out, name + ".cases")
        with open(listed, "w") as out:
            json.dump([case for case in json.loads(self.tandem(*cases, "--list").stdout) if wanted(case)], out)
        command = [sys.executable, os.path.join(HERE, "bench_peers.py"), "--cases", listed, "--peers", which]
        command += ["--tandem", self.args.tandem, "--tandem-device", device, "--rounds", str(rounds), "--no-check"]
        command += ["--max-seconds", str(self.args.max_seconds)]
        self.ended(name, subprocess.run(command + ["--out", self.file(name)], check=False, stdout=sys.stderr))
        os.remove(listed)

    def errors(self):
        brief = "--warmup 0.05 --reps 1 --round-seconds 0".split()
        devices = ["--device", "cuda:0/sm90", "--device", "cuda:0/sm80"]
        self.tandem("--preset", "lengths", *devices, *brief, out="errors")

    def grid(self, d):
        lengths = self.args.lengths
        self.peers(
            f"grid{d}",
            "cudnn,fa2",
            "cuda:0/sm90,cuda:0/sm80",
            self.args.rounds,
            ["--preset", "lengths"],
            lambda case: case["D"] == d and (not lengths or case["Sq"] in lengths),
        )

    def grid64(self):
        self.grid(64)

    def grid128(self):
        self.grid(128)

    def grid256(self):
        self.grid(256)

    def bias(self):
        self.peers("bias", "flex", "cuda:0/sm90", max(2, self.args.rounds), self.problems(BIAS))

    def own(self):
        """With a bias and without, one after the other, in rounds: samples in turns meet clocks that follow the sample before."""
        found, header = {}, None
        for _ in range(max(2, self.args.rounds)):
            for pair in zip(OWN[0::2], OWN[1::2]):
                if self.tandem(*self.problems(pair), "--no-check", "--device", "cuda:0/sm90", out="own").returncode:
                    continue
                result = json.load(open(self.file("own")))
                header = result["header"]
                for row in result["rows"]:
                    found.setdefault((row["case"], row["op"]), []).append(row)
        rows = []
        for of in found.values():
            times = [row["ms"] for row in of]
            middle = statistics.median(times)
            row = dict(of[0], ms=middle, tflops=of[0]["tflops"] * of[0]["ms"] / middle)
            rows.append(dict(row, spread=(max(times) - min(times)) / middle))
        if rows:
            write(self.file("own"), header, rows)

    def f32(self):
        self.peers("f32", "efficient", "cuda:0/sm80", self.args.rounds, self.problems(F32))

    def fixed(self):
        lines = [line + more for line in fixed_lines() for more in ("", " deterministic")]
        self.tandem(*self.problems(lines), *"--op bwd --no-check --device cuda:0/sm90".split(), out="fixed")

    def elastic(self):
        self.tandem(*"--preset elastic --no-check --device cuda:0/sm90".split(), out="elastic")

    def entmax(self):
        self.tandem(*"--preset entmax --no-check --device cuda:0/sm90".split(), out="entmax")


def write(path, header, rows):
    with open(path, "w") as out:
        out.write('{\n  "header": ' + json.dumps(header) + ',\n  "rows": [\n    ')
        out.write(",\n    ".join(json.dumps(row) for row in rows) + "\n  ]\n}\n")


def rows_of(runs, name):
    """{(case, op, impl or path): row}"""
    if not os.path.exists(runs.file(name)):
        return {}
    rows = json.load(open(runs.file(name)))["rows"]
    return {(r["case"], r["op"], r["path"] if r["impl"] == "tandem" else r["impl"]): r for r in rows}


def add_errors(runs, name):
    """Those of the errors' rows to a part of the grid."""
    errors, path = rows_of(runs, "errors"), runs.file(name)
    if not errors or not os.path.exists(path):
        return
    grid = json.load(open(path))
    for row in grid["rows"]:
        found = errors.get((row["case"], row["op"], row["path"]))
        if row["impl"] == "tandem" and found:
            row["max_err_ratio"] = found["max_err_ratio"]
    write(path, grid["header"], grid["rows"])


class Floors:
    def __init__(self):
        self.missed = 0

    def say(self, what, values, least, mean=None):
        """values: [(name, times as fast)]; the smallest must reach `least`, their geometric mean `mean`."""
        if not values:
            print(f"-      {what}: not run")
            return
        name, worst = min(values, key=lambda value: value[1])
        middle = statistics.geometric_mean(value for _, value in values)
        holds = worst >= least and (mean is None or middle >= mean)
        self.missed += not holds
        wanted = f"{least:g}" + (f", mean {mean:g}" if mean else "")
        print(f"{'holds ' if holds else 'MISSED'} {what}: {worst:.3f} to {max(v for _, v in values):.3f}, mean {middle:.3f} of "
              f"{len(values)} (asked {wanted}); least {name}")


def ratios(rows, ours, peer, op, wanted=lambda row: True):
    for (case, of, impl), row in rows.items():
        other = rows.get((case, op, peer))
        if of == op and impl == ours and other and wanted(row):
            yield case, other["ms"] / row["ms"]


def say(runs):
    floors = Floors()
    grid = {key: row for name in GRIDS for key, row in rows_of(runs, name).items()}
    floors.say("sm90 forward, cuDNN", list(ratios(grid, "sm90", "cudnn", "fwd")), 0.75, 0.9)
    narrow, wide = (lambda row: row["D"] < 256), (lambda row: row["D"] == 256)
    floors.say("sm90 backward, cuDNN, D 64 and 128", list(ratios(grid, "sm90", "cudnn", "bwd", narrow)), 0.7, 0.85)
    floors.say("sm90 backward, cuDNN, D 256", list(ratios(grid, "sm90", "cudnn", "bwd", wide)), 1)
    for op, least in (("fwd", 1.6), ("bwd", 1.5)):
        floors.say(f"sm90 {op}, FlashAttention-2", list(ratios(grid, "sm90", "fa2", op)), least)
    for op in ("fwd", "bwd"):
        floors.say(f"sm80 {op}, FlashAttention-2", list(ratios(grid, "sm80", "fa2", op)), 1)
    bias, own = rows_of(runs, "bias"), rows_of(runs, "own")
    for op, least in (("fwd", 1.4), ("bwd", 2)):
        floors.say(f"dense bias {op}, FlexAttention", list(ratios(bias, "sm90", "flex", op)), least)
        cases = [line.removeprefix("bwd ") for line in OWN]
        pairs = zip(cases[0::2], cases[1::2])
        floors.say(
            f"dense bias {op}, of the own speed without",
            [(b, own[a, op, "sm90"]["ms"] / own[b, op, "sm90"]["ms"]) for a, b in pairs if (b, op, "sm90") in own and (a, op, "sm90") in own],
            0.75,
        )
    for name, least in (("elastic", (5, 15)), ("entmax", (1, 1))):
        rows = rows_of(runs, name)
        for n, op in enumerate(("fwd", "bwd")):
            values = [(case, TRITON[case][n] / row["ms"]) for (case, of, _), row in rows.items() if of == op]
            floors.say(f"{name} {op}, its authors' Triton kernel", values, least[n])
    fixed = rows_of(runs, "fixed")
    floors.say(
        "d_q in a fixed order, of any order's speed",
        [
            (line, fixed[line, "bwd", "sm90"]["ms"] / row["ms"])
            for (case, _, _), row in fixed.items()
            for line in [case.removesuffix(" deterministic")]
            if case.endswith(" deterministic") and (line, "bwd", "sm90") in fixed
        ],
        1 / 1.2,
    )
    f32 = rows_of(runs, "f32")
    for op in ("fwd", "bwd"):
        floors.say(f"f32 {op}, mem-efficient", list(ratios(f32, "sm80", "efficient", op)), 1)
    worst = [row["max_err_ratio"] for row in rows_of(runs, "errors").values() if row["max_err_ratio"] is not None]
    if worst:
        holds = all(ratio <= 2 for ratio in worst)
        floors.missed += not holds
        print(f"{'holds ' if holds else 'MISSED'} errors: {len(worst)} rows, at most {max(worst):.3f} (2 allowed)")
    return floors.missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("groups", nargs="*", help=" ".join(GROUPS))
    parser.add_argument("--tandem", help="the built program")
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=1, help="turns beside peers")
    # At the power limit samples seldom agree: with 10 s the grid took 30 s a case. (H100 80GB HBM3, 580.159.04.)
    parser.add_argument("--max-seconds", type=float, default=2, help="of samples, for each row and turn")
    parser.add_argument("--lengths", type=int, nargs="*", help="of the grid, these alone")
    parser.add_argument("--say", action="store_true", help="run nothing")
    args = parser.parse_args()
    for group in args.groups:
        if group not in GROUPS:
            parser.error(f"no group is named '{group}' ({' '.join(GROUPS)})")
    if not args.say and not args.tandem:
        parser.error("--tandem is missing")
    os.makedirs(args.out, exist_ok=True)
    runs = Runs(args)
    for group in [] if args.say else args.groups or GROUPS:
        started = time.monotonic()
        getattr(runs, group)()
        print(f"{group}: {time.monotonic() - started:.0f} s", flush=True)
    for name in GRIDS:
        add_errors(runs, name)
    return 1 if say(runs) or runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
