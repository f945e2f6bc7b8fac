# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pytest plugin of one process of a suite: what runs, and a line of JSON for each result.

TANDEM_PEER_PART holds a Part as JSON. Lines are written as they come, so that what a process found
before it died is not lost.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from . import stand_ins, table
from .part import STICKY_STATUS, Part, read_records

_TEXT = 4000  # characters kept of a failure
# Errors after which no further call of the process's CUDA context succeeds.
_STICKY = re.compile(
    r"illegal memory access|device-side assert|unspecified launch failure|misaligned address"
    r"|illegal instruction"
)


def group_of(name: str, functions: Sequence[str]) -> str:
    """The function that a test is one case of: the longest that its name begins with."""
    base = name.partition("[")[0]
    found = [f for f in functions if base == f or base.startswith(f"{f}_")]
    return max(found, key=len, default=base)


class Plugin:
    def __init__(self, part: Part) -> None:
        self.part = part
        self.suite = table.find(part.suite)
        self.left_out: Counter[str] = Counter()
        self.drawn: set[str] = set()  # functions whose cases were drawn before they became tests
        records = Path(part.records)
        known = read_records(records)
        self.done = {r["id"] for r in known if "outcome" in r}
        self.again = bool(known)
        self.file = records.open("a")
        self._functions: dict[str, list[str]] = {}

    def write(self, **record: Any) -> None:
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    # ---- which tests ----

    def reason(self, name: str) -> str:
        """Why a test does not run; empty where it does."""
        if self.part.match and not re.search(self.part.match, name):
            return "not asked for"
        if self.suite.select and not re.search(self.suite.select, name):
            return "not of this suite"
        for pattern, reason in self.suite.left_out:
            if re.search(pattern, name):
                return reason
        return ""

    def draw(self, name: str, cases: list[Any]) -> list[Any]:
        """As many of a function's cases as the suite wants, in their order."""
        each = self.part.each or len(cases)
        if len(cases) <= each:
            return cases
        chosen = random.Random(f"{self.part.seed} {name}").sample(range(len(cases)), each)
        return [cases[n] for n in sorted(chosen)]

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: Any) -> Iterator[None]:
        """Draws among the cases before pytest makes tests of them: some have 10^5."""
        yield
        calls = getattr(metafunc, "_calls", None)
        if not calls or self.suite.select:
            return
        name = metafunc.definition.nodeid
        kept = []
        for call in calls:
            reason = self.reason(f"{name}[{call.id}]")
            self.left_out[reason] += bool(reason)
            if not reason:
                kept.append(call)
        if kept:  # else pytest_collection_modifyitems() takes all of them out
            metafunc._calls = self.draw(name, kept)
            self.drawn.add(name)

    def functions_of(self, path: Path) -> list[str]:
        """Names of test functions that a file defines."""
        key = str(path)
        if key not in self._functions:
            self._functions[key] = re.findall(r"^\s*def (test_\w+)", path.read_text(), re.M)
        return self._functions[key]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        groups: defaultdict[str, list[Any]] = defaultdict(list)
        for item in items:
            stand_ins.adjust(self.suite.name, item.module)
            reason = self.reason(item.nodeid)
            self.left_out[reason] += bool(reason)
            if not reason:
                group = group_of(item.name, self.functions_of(item.path))
                groups[f"{item.path}::{group}"].append(item)
        chosen: list[Any] = []
        for name, members in groups.items():
            whole = members[0].nodeid.partition("[")[0] in self.drawn
            chosen += members if whole else self.draw(name.rpartition("/")[2], members)
        # What is not reached before the time is up is then a part of everything.
        random.Random(self.part.seed).shuffle(chosen)
        mine = chosen[self.part.part :: self.part.parts]
        if not self.again:
            self.write(collected=len(mine))
            if self.part.part == 0:
                self.write(left_out={k: n for k, n in self.left_out.items() if n and k})
        items[:] = [item for item in mine if item.nodeid not in self.done]

    # ---- results ----

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> None:
        if time.time() > self.part.deadline:
            item.session.shouldstop = "the time is up"
        else:
            self.write(start=item.nodeid, at=time.time())

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool | None:
        if not self.suite.returns_verdict:
            return None
        names = pyfuncitem._fixtureinfo.argnames
        verdict = pyfuncitem.obj(**{n: pyfuncitem.funcargs[n] for n in names})
        assert verdict is not False, "the test returned False"
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            if report.when == "teardown":
                _free_memory()
            return
        outcome = "skipped" if report.skipped else report.outcome
        text = "" if outcome == "passed" else str(report.longrepr)
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash is not None else text
        if isinstance(report.longrepr, tuple):
            message = str(report.longrepr[2])
        self.write(
            id=report.nodeid, outcome=outcome, when=report.when, seconds=report.duration,
            message=message[:_TEXT], text=text[-_TEXT:],
        )  # fmt: skip
        if outcome == "failed" and _STICKY.search(text):
            os._exit(STICKY_STATUS)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = str(report.longrepr)
            self.write(
                id=report.nodeid, outcome="failed", when="collect", seconds=0.0,
                message=text[-_TEXT:], text=text[-_TEXT:],
            )  # fmt: skip


def _free_memory() -> None:
    """Several processes share a GPU: what torch's allocator keeps goes back when it is much."""
    import torch

    if torch.cuda.is_available() and torch.cuda.memory_reserved() > 2 << 30:
        torch.cuda.empty_cache()


_told = os.environ.get("TANDEM_PEER_PART")


def pytest_configure(config: pytest.Config) -> None:
    if _told:
        config.pluginmanager.register(Plugin(Part(**json.loads(_told))), "tandem-peers")


if _told:  # before a conftest.py of the suite is imported
    _part = json.loads(_told)
    stand_ins.install(_part["suite"], Path(_part["checkout"]))
