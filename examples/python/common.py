# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the examples share: the command line, and losses beside each other."""

from __future__ import annotations

import argparse
import csv
import importlib.util
from collections.abc import Sequence
from pathlib import Path

Curves = dict[str, list[float]]


def parser(description: str, steps: int, device: str = "cpu") -> argparse.ArgumentParser:
    """Options that every example has."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--device", default=device, help="where to compute: cpu, cuda, ...")
    made.add_argument("--steps", type=int, default=steps, help="steps of training")
    made.add_argument("--seed", type=int, default=1, help="of parameters and data")
    made.add_argument("--csv", type=Path, help="write the losses of all steps to this file")
    made.add_argument("--png", type=Path, help="draw them into this file (needs matplotlib)")
    return made


def difference(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest difference of two curves at the same step, relative to b."""
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


def report(curves: Curves, args: argparse.Namespace) -> None:
    """Prints some steps and how far the curves are apart; writes the files asked for."""
    names = list(curves)
    steps = len(curves[names[0]])
    print("step".rjust(6), *(name.rjust(12) for name in names))
    shown = sorted({*range(0, steps, max(1, steps // 9)), steps - 1})
    for step in shown:
        print(f"{step:6d}", *(f"{curves[name][step]:12.6f}" for name in names))
    for name in names[1:]:
        apart = difference(curves[names[0]], curves[name])
        print(f"{names[0]} and {name}: at most {apart:.2e} apart, relative")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", *names])
            rows = zip(*curves.values(), strict=True)
            writer.writerows([step, *row] for step, row in enumerate(rows))
    if args.png:
        if importlib.util.find_spec("matplotlib") is None:
            raise SystemExit(f"{args.png} is not drawn: matplotlib is not installed")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot(xlabel="step", ylabel="loss")
        for name, style in zip(names, ("-", "--", ":"), strict=False):
            axes.plot(curves[name], style, label=name)
        axes.legend()
        figure.savefig(args.png)
