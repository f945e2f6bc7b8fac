# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs one group of the package's tests: run_tests.py GROUP [PYTEST-OPTION...].

A group in which no test passed is a failure, so that a renamed file cannot look like success.
Where a group needs torch or jax and it is not there, says so and exits with 77, which CTest counts
as skipped.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "python" / "tests"
SKIPPED = 77

# Files by group; a file that no pattern names belongs to "numpy".
GROUPS: dict[str, tuple[str, ...]] = {
    "torch": ("test_torch*.py", "test_hf_kernel.py"),
    "drop_in": ("test_drop_in*.py",),
    "jax": ("test_jax*.py",),
    "examples": ("test_examples*.py",),
    "vulkan": ("test_vulkan*.py",),
    "types": ("test_types*.py",),
    "numpy": (),
}
NEEDS: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "drop_in": ("torch",),
    "jax": ("jax",),
    "examples": ("torch",),
    "types": ("torch", "jax"),
}
LINTED = ("python", "examples/python")


def files_of(group: str) -> list[Path]:
    """The test files of a group, by name."""
    named = {g: {f for p in patterns for f in TESTS.glob(p)} for g, patterns in GROUPS.items()}
    if group == "numpy":
        return sorted(set(TESTS.glob("test_*.py")).difference(*named.values()))
    return sorted(named[group])


def run_pytest(group: str, options: list[str]) -> int:
    """Runs the group's files; returns an exit status."""
    import pytest

    class Count:
        passed = 0

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            self.passed += report.when == "call" and report.passed

    files = files_of(group)
    if not files:
        print(f"no file in {TESTS} belongs to the group {group}")
        return 1
    count = Count()
    # -rs: a skipped test is to say why.
    arguments = ["-q", "-rs", "-p", "no:cacheprovider", *options, *map(str, files)]
    status = int(pytest.main(arguments, plugins=[count]))
    if status == 0 and not count.passed:
        print(f"no test of the group {group} passed: {', '.join(f.name for f in files)}")
        return 1
    return status


def run_programs(*commands: list[str]) -> int:
    """Runs all commands from the project's root; returns 1 if one failed."""
    failed = [
        c for c in commands if subprocess.run([sys.executable, "-m", *c], cwd=ROOT).returncode
    ]
    for command in failed:
        print("failed:", *command)
    return int(bool(failed))


def main(group: str, *options: str) -> int:
    """Runs a group; returns the exit status."""
    absent = [name for name in NEEDS.get(group, ()) if importlib.util.find_spec(name) is None]
    if absent:
        print(f"skipped: {sys.executable} has no {' and no '.join(absent)}")
        print("scripts/toolchain --python installs them; TANDEM_TORCH=OFF leaves torch out")
        return SKIPPED
    if group == "lint":
        linted = [path for path in LINTED if (ROOT / path).exists()]
        return run_programs(["ruff", "check", *linted], ["ruff", "format", "--check", *linted])
    if group == "types":
        return run_programs(["mypy", "-p", "tandem_attention"]) or run_pytest(group, list(options))
    if group not in GROUPS:
        print(f"no group is named {group!r}; there are {', '.join((*GROUPS, 'lint'))}")
        return 2
    return run_pytest(group, list(options))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
