# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the parts of suites in processes side by side, each with limits of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .part import STICKY_STATUS, Part, read_records
from .table import Suite

TOOLS = Path(__file__).resolve().parents[1]
_RESTARTS = 12  # of a part whose process ends before its tests do
_TIME_IS_UP = "stopped: the time was up"
_GRACE = 20.0  # seconds for the test that runs when the time is up


@dataclass
class Process:
    """One part of a suite, and its process."""

    suite: Suite
    part: Part
    log: Path
    child: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    ended: str = ""
    killed: str = field(default="", repr=False)

    @property
    def records(self) -> Path:
        return Path(self.part.records)


def _unfinished(path: Path) -> tuple[str, float] | None:
    """The test that began last and has no result, and when it began."""
    started: tuple[str, float] | None = None
    for record in read_records(path):
        if "start" in record:
            started = (record["start"], record["at"])
        elif started and record.get("id") == started[0]:
            started = None
    return started


def _start(process: Process, threads: int) -> None:
    part, suite = process.part, process.suite
    checkout = Path(part.checkout)
    work = process.records.with_suffix("")  # files that a suite writes beside itself
    work.mkdir(parents=True, exist_ok=True)
    (work / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "peer_suites.plugin", "-p", "no:cacheprovider",
        "-p", "no:xdist", "-p", "no:randomly", "-W", "ignore", "--tb=short",
        "--continue-on-collection-errors", "-c", str(work / "pytest.ini"),
        "--rootdir", str(checkout), *suite.options,
    ]  # fmt: skip
    if not suite.conftest:
        command.append("--noconftest")
    command += [str(checkout / name) for name in suite.tests]
    path = os.pathsep.join(filter(None, (str(TOOLS), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        "TANDEM_PEER_PART": part.line(),
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(threads),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    with process.log.open("ab") as log:
        process.child = subprocess.Popen(
            command, cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


def _stop(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _after(process: Process, status: int) -> bool:
    """Notes what ended a process; whether its part goes on in a new one."""
    if status in (0, 1, 5) and not process.killed:
        return False
    unfinished = _unfinished(process.records)
    if process.killed == _TIME_IS_UP:
        return False  # its test was not reached, for all we know
    if unfinished:
        how = process.killed or f"the process ended with status {status}"
        record = {
            "id": unfinished[0], "outcome": "failed", "when": "call",
            "seconds": time.time() - unfinished[1], "message": how, "text": how,
        }  # fmt: skip
        with process.records.open("a") as file:
            file.write("\n" + json.dumps(record) + "\n")
    elif status != STICKY_STATUS and not process.killed:
        tail = process.log.read_text(errors="replace")[-3000:]
        record = {
            "id": f"{process.suite.name} part {process.part.part}", "outcome": "failed",
            "when": "process", "seconds": 0.0, "text": tail,
            "message": f"pytest ended with status {status} outside of a test",
        }  # fmt: skip
        with process.records.open("a") as file:
            file.write("\n" + json.dumps(record) + "\n")
        return False
    process.restarts += 1
    return process.restarts <= _RESTARTS and time.time() < process.part.deadline


def run(
    suites: list[Suite], folder: Path, out: Path, *,
    seconds: float, jobs: int, each: int | None, seed: int, test_seconds: float, match: str = "",
) -> list[Process]:  # fmt: skip
    """All parts of the suites; returns them with their records written to OUT/parts."""
    parts = out / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + seconds
    waiting = []
    for n in range(max(s.parts for s in suites)):  # the first part of every suite first
        for suite in suites:
            if n >= suite.parts:
                continue
            name = f"{suite.name}.{n}"
            records, log = parts / f"{name}.jsonl", parts / f"{name}.txt"
            records.unlink(missing_ok=True)
            log.unlink(missing_ok=True)
            part = Part(
                suite.name, str((folder / suite.checkout).resolve()), str(records.resolve()),
                n, suite.parts, suite.each if each is None else each, seed, deadline, match,
            )  # fmt: skip
            waiting.append(Process(suite, part, log))
    every = list(waiting)
    running: list[Process] = []
    threads = max(1, (os.cpu_count() or 1) // jobs)
    while waiting or running:
        now = time.time()
        while waiting and len(running) < jobs and now < deadline:
            process = waiting.pop(0)
            _start(process, threads)
            running.append(process)
        if now >= deadline:
            waiting.clear()
        for process in list(running):
            child = process.child
            assert child is not None
            status = child.poll()
            if status is None:
                unfinished = _unfinished(process.records)
                if now > deadline + _GRACE:
                    process.killed = _TIME_IS_UP
                elif unfinished and now - unfinished[1] > test_seconds:
                    process.killed = f"stopped after {test_seconds:.0f} s"
                else:
                    continue
                _stop(child)
                status = -signal.SIGKILL
            running.remove(process)
            if _after(process, status):
                process.killed = ""
                waiting.insert(0, process)
        time.sleep(0.5)
    return every
