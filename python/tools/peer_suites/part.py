# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a process of a suite gets, and what it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STICKY_STATUS = 70  # the exit status after an error of the CUDA context, which stays


@dataclass(frozen=True)
class Part:
    """What a process gets."""

    suite: str
    checkout: str
    records: str
    part: int
    parts: int
    each: int
    seed: int
    deadline: float
    match: str = ""

    def line(self) -> str:
        """For the environment."""
        return json.dumps(self.__dict__)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of a part; a line that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
