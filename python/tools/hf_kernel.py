# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes a kernel repository for Hugging Face's package ``kernels`` out of wheels of this package.

    hf_kernel.py [--cuda VARIANT=ARCHITECTURE,...] WHEEL... FOLDER

Each wheel becomes one variant in FOLDER/build, for torch's stable ABI 2.10: that of CUDA where the
wheel has the CUDA backend, else that of the CPU. A variant has the whole package below it, with a
namespace of operators of its own, so that it can be loaded beside the installed package, or beside
another version of the kernel. --cuda says what a wheel with CUDA was built by and for, as
cu130=8.0,9.0. FOLDER must not exist yet.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path

NAME = "tandem-attention"
VERSION = 1  # of the kernel's functions, by which kernels chooses
PACKAGE = "tandem_attention"
TORCH = "torch-stable-abi210"  # bindings/torch_shim.h
HERE = Path(__file__).parent / "hf_kernel"


def unpack(wheel: Path, folder: Path) -> str:
    """Writes the package's files; returns the machine in the words of kernels."""
    tag = re.fullmatch(
        rf"{PACKAGE}-[\w.]+-\w+-\w+-[\w.]*linux\w*_(x86_64|aarch64)\.whl", wheel.name
    )
    if not tag:
        sys.exit(f"hf_kernel: {wheel.name} is no wheel of {NAME} for Linux")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{PACKAGE}/") and not name.startswith(f"{PACKAGE}/jax/"):
                archive.extract(name, folder)
            elif "/licenses/" in name and not name.endswith("/"):
                (folder / Path(name).name).write_bytes(archive.read(name))
    return tag[1]


def set_namespace(folder: Path, namespace: str) -> None:
    file = folder / PACKAGE / "torch" / "_namespace.py"
    text, changes = re.subn(
        r'^NAMESPACE = "tandem"$', f'NAMESPACE = "{namespace}"', file.read_text(), flags=re.M
    )
    if changes != 1:
        sys.exit(f"hf_kernel: {file} has no line NAMESPACE")
    file.write_text(text)


def digest(folder: Path) -> dict[str, object]:
    """Of all files, as the package kernels checks them."""
    files = {
        str(file.relative_to(folder)): base64.b64encode(hashlib.sha256(file.read_bytes()).digest())
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "metadata.json"
    }
    return {"algorithm": "sha256", "files": {name: value.decode() for name, value in files.items()}}


def variant(wheel: Path, repository: Path, cuda: str | None) -> Path:
    folder = repository / "build" / f"new-{wheel.stem}"
    folder.mkdir(parents=True)
    machine = unpack(wheel, folder)
    name, architectures = "cpu", ""
    if any((folder / PACKAGE).glob("libtandem_cuda*")):
        if not cuda:
            sys.exit(f"hf_kernel: {wheel.name} has CUDA, and --cuda does not say for what")
        name, _, architectures = cuda.partition("=")
    identity = hashlib.sha256(wheel.read_bytes()).hexdigest()[:12]
    namespace = f"{PACKAGE}_{identity}"
    set_namespace(folder, namespace)
    for file in sorted(HERE.glob("*.py")):
        (folder / file.name).write_bytes(file.read_bytes())
    backend: dict[str, object] = {"type": "cpu"}
    if architectures:
        backend = {"type": "cuda", "archs": architectures.split(",")}
    metadata = {
        "id": namespace,
        "name": NAME,
        "version": VERSION,
        "license": "MIT OR Apache-2.0",
        "python-depends": [],
        "backend": backend,
        "digest": digest(folder),
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    return folder.rename(folder.parent / f"{TORCH}-{name}-{machine}-linux")


def main(arguments: list[str]) -> None:
    cuda = None
    if arguments[:1] == ["--cuda"] and len(arguments) > 1:
        cuda, arguments = arguments[1], arguments[2:]
        if not re.fullmatch(r"cu\d+=\d+\.\d+(,\d+\.\d+)*", cuda):
            sys.exit(f"hf_kernel: --cuda is {cuda}, and not like cu130=8.0,9.0")
    *wheels, last = map(Path, arguments or [""])
    if not wheels:
        sys.exit(__doc__)
    if last.exists():
        sys.exit(f"hf_kernel: {last} is there already")
    for wheel in wheels:
        print(variant(wheel, last, cuda))
    (last / "README.md").write_bytes((HERE / "README.md").read_bytes())
    benchmarks = last / "benchmarks"
    benchmarks.mkdir()
    (benchmarks / "benchmark.py").write_bytes((HERE / "benchmarks" / "benchmark.py").read_bytes())


if __name__ == "__main__":
    main(sys.argv[1:])
