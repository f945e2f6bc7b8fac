# SPDX-License-Identifier: MIT OR Apache-2.0
"""What came of a run: OUT/<suite>.xml, OUT/<suite>.txt and OUT/summary.txt."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .kinds import reason_of
from .part import read_records
from .runner import Process

UNKNOWN = "UNKNOWN"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


@dataclass
class Outcome:
    """The results of a suite, one for each test; a test that failed in any phase has failed."""

    suite: str
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    collected: int = 0

    def count(self, outcome: str) -> int:
        return sum(r["outcome"] == outcome for r in self.results.values())

    def failures(self) -> dict[str, list[dict[str, Any]]]:
        """Failures by their reason, UNKNOWN last."""
        groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in self.results.values():
            if record["outcome"] == "failed":
                text = f"{record['message']}\n{record['text']}"
                groups[reason_of(self.suite, record["id"], text) or UNKNOWN].append(record)
        order = sorted(groups, key=lambda k: (k == UNKNOWN, -len(groups[k]), k))
        return {k: groups[k] for k in order}


def outcomes(processes: list[Process]) -> list[Outcome]:
    """The parts of each suite put together."""
    found: dict[str, Outcome] = {}
    for process in processes:
        outcome = found.setdefault(process.suite.name, Outcome(process.suite.name))
        for record in read_records(process.records):
            outcome.collected += record.get("collected", 0)
            outcome.left_out.update(record.get("left_out", {}))
            if "outcome" not in record:
                continue
            before = outcome.results.get(record["id"])
            if before is None or before["outcome"] != "failed":
                outcome.results[record["id"]] = record
    return list(found.values())


def _first_line(record: dict[str, Any]) -> str:
    lines = [line for line in record["message"].splitlines() if line.strip()]
    return lines[0].strip()[:160] if lines else ""


def _write_suite(outcome: Outcome, out: Path) -> None:
    reasons = {r["id"]: why for why, records in outcome.failures().items() for r in records}
    suite = ET.Element(
        "testsuite", name=outcome.suite, tests=str(len(outcome.results)),
        failures=str(outcome.count("failed")), skipped=str(outcome.count("skipped")),
    )  # fmt: skip
    for record in outcome.results.values():
        file, _, name = record["id"].partition("::")
        case = ET.SubElement(
            suite, "testcase", classname=file, name=_NOT_XML.sub("?", name or file),
            time=f"{record['seconds']:.3f}",
        )  # fmt: skip
        if record["outcome"] == "failed":
            why = reasons[record["id"]]
            failure = ET.SubElement(case, "failure", message=f"{why}: {_first_line(record)}")
            failure.set("message", _NOT_XML.sub("?", failure.get("message", "")))
            failure.text = _NOT_XML.sub("?", record["text"])
        elif record["outcome"] == "skipped":
            ET.SubElement(case, "skipped", message=_NOT_XML.sub("?", _first_line(record)))
    ET.ElementTree(suite).write(out / f"{outcome.suite}.xml", encoding="utf-8")
    with (out / f"{outcome.suite}.txt").open("w") as file_:
        for why, records in outcome.failures().items():
            file_.write(f"==== {why}: {len(records)}\n")
            for record in records:
                file_.write(f"---- {record['id']}\n{record['message']}\n")
                if why == UNKNOWN:
                    file_.write(f"{record['text']}\n")


def write(processes: list[Process], out: Path, head: str) -> tuple[str, int]:
    """Writes all files; returns the summary and the number of unknown failures."""
    lines, unknown = [head, ""], 0
    every = outcomes(processes)
    for outcome in every:
        _write_suite(outcome, out)
        not_run = max(outcome.collected - len(outcome.results), 0)
        lines.append(
            f"{outcome.suite:24} {outcome.count('passed'):5} passed {outcome.count('failed'):4}"
            f" failed {outcome.count('skipped'):4} skipped"
            + (f" {not_run:4} not reached" if not_run else "")
            + ("" if outcome.collected else "  NOTHING WAS COLLECTED")
        )
        if not outcome.collected:
            unknown += 1
    for outcome in every:
        failures = outcome.failures()
        if not failures and not outcome.left_out:
            continue
        lines += ["", f"{outcome.suite}:"]
        for why, records in failures.items():
            lines.append(f"  {len(records):4} failed: {why}")
            if why != UNKNOWN:
                continue
            unknown += len(records)
            for record in records[:12]:
                name = record["id"].rpartition("/")[2]
                lines.append(f"         {name[:110]}")
                lines.append(f"           {_first_line(record)[:110]}")
            if len(records) > 12:
                lines.append(f"         and {len(records) - 12} more in {outcome.suite}.txt")
        for why, count in sorted(outcome.left_out.items()):
            lines.append(f"  {count:4} left out: {why}")
    lines += ["", f"{unknown} unknown failures" if unknown else "no unknown failures"]
    text = "\n".join(lines) + "\n"
    (out / "summary.txt").write_text(text)
    return text, unknown
