# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line of scripts/peer-suites."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path

from . import runner, summary, table
from .table import Suite


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True)


def fetch(folder: Path, suites: list[Suite]) -> None:
    """Each repository once, at its commit, with the files that the suites read."""
    files: dict[str, set[str]] = {}
    for suite in suites:
        files.setdefault(suite.checkout, set()).update(suite.files)
    for suite in {s.checkout: s for s in suites}.values():
        at = folder / suite.checkout
        at.mkdir(parents=True, exist_ok=True)
        _git(at, "init", "--quiet")
        paths = [f"/{name}" for name in sorted(files[suite.checkout])]
        _git(at, "sparse-checkout", "set", "--no-cone", *paths, "/LICENSE*")
        source = f"https://github.com/{suite.repository}"
        _git(at, "fetch", "--quiet", "--depth", "1", "--filter=blob:none", source, suite.commit)
        _git(at, "checkout", "--quiet", "--force", "FETCH_HEAD")
        print(f"{suite.checkout}: {suite.repository} at {suite.commit}")


def _head(args: argparse.Namespace, suites: list[Suite]) -> str:
    import torch

    import tandem_attention

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    version = getattr(tandem_attention, "__version__", "")
    return (
        f"scripts/peer-suites run {' '.join(s.name for s in suites)}: {datetime.date.today()},"
        f" {device}, torch {torch.__version__}, tandem-attention {version}, seed {args.seed}"
    )


def run(args: argparse.Namespace, suites: list[Suite]) -> int:
    """Runs suites; 1 where a failure is of no known kind."""
    absent = [s for s in suites if not (args.folder / s.checkout).is_dir()]
    if absent:
        print(f"{args.folder} lacks {', '.join(s.checkout for s in absent)}: fetch them first")
        return 2
    try:
        head = _head(args, suites)
    except ImportError as error:
        print(f"{sys.executable} lacks what the suites need: {error}")
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    processes = runner.run(
        suites, args.folder, args.out, seconds=args.seconds, jobs=args.jobs, each=args.sample,
        seed=args.seed, test_seconds=args.test_seconds, match=args.match,
    )  # fmt: skip
    text, unknown = summary.write(processes, args.out, head)
    print(text, end="")
    return int(unknown > 0)


def main(words: list[str]) -> int:
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="peer-suites", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the suites")
    for name, about in (
        ("fetch", "clone the suites' repositories into FOLDER"),
        ("run", "run the suites of FOLDER, with results in OUT"),
    ):
        command = commands.add_parser(name, help=about)
        command.add_argument("folder", type=Path, metavar="FOLDER")
        if name == "run":
            command.add_argument("out", type=Path, metavar="OUT")
            command.add_argument(
                "--seconds", type=float, default=3600, help="what is not done then is not run"
            )
            command.add_argument("--test-seconds", type=float, default=150, help="for one test")
            command.add_argument(
                "--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side"
            )
            command.add_argument(
                "--sample", type=int, help="tests of each function, 0 for all; by the suite"
            )
            command.add_argument("--match", default="", help="a pattern that a test's id contains")
            command.add_argument("--seed", type=int, default=1, help="which tests are drawn")
        command.add_argument("suites", nargs="*", metavar="SUITE", help="by default all")
    args = parser.parse_args(words)
    if args.command == "list":
        for suite in table.SUITES:
            print(f"{suite.name:24} {suite.repository} at {suite.commit[:12]}, {suite.drop_in}")
        return 0
    try:
        suites = [table.find(name) for name in args.suites] or list(table.SUITES)
    except KeyError as error:
        parser.error(str(error.args[0]))
    if args.command == "run":
        return run(args, suites)
    try:
        fetch(args.folder, suites)
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(map(str, error.cmd))} failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
