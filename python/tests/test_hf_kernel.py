# SPDX-License-Identifier: MIT OR Apache-2.0
"""python/tools/hf_kernel.py: a kernel repository, loaded by kernels and by transformers."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.10")
pytest.importorskip("kernels", minversion="0.17")

import tandem_attention

TOOLS = Path(__file__).parent.parent / "tools"
MACHINE = platform.machine()
SCRIPT = """
import shutil, sys, pathlib, torch
import tandem_attention.torch as installed
from kernels import get_local_kernel
repository = pathlib.Path(sys.argv[1])
kernel = get_local_kernel(repository, backend="cpu")
torch.manual_seed(1)
q, k, v = (torch.randn(2, 40, 4, 16, requires_grad=True) for _ in range(3))
sdpa = torch.nn.functional.scaled_dot_product_attention
want = sdpa(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2)
wanted = torch.autograd.grad(want.sin().sum(), (q, k, v))

def check(function):
    o = function(q, k, v)
    torch.testing.assert_close(o, want, atol=1e-5, rtol=1e-5)
    made = torch.autograd.grad(o.sin().sum(), (q, k, v))
    torch.testing.assert_close(made, wanted, atol=2e-5, rtol=2e-5)

def flash(q, k, v):
    return kernel.flash_attn_func(q, k, v, causal=True)

def plain(q, k, v):
    o = kernel.attention(*(t.transpose(1, 2) for t in (q, k, v)), causal=True)
    return o.transpose(1, 2)

def layer(q, k, v):
    tensors = [t.transpose(1, 2) for t in (q, k, v)]
    return kernel.layers.ScaledDotProductAttention()(*tensors, is_causal=True).transpose(1, 2)

for function in (flash, plain, layer):
    check(function)
    check(torch.compile(function, fullgraph=True, backend="aot_eager"))
    check(lambda q, k, v: installed.attention(  # the installed package, as before
        *(t.transpose(1, 2) for t in (q, k, v)), causal=True).transpose(1, 2))
info = sys.modules[kernel.__name__ + ".tandem_attention.torch"].eager_info()
assert info.operator == "c++" and info.forward > 0, info

# transformers takes the variant of the backend that torch was built for.
from kernels.backends import _select_backend
(variant,) = (repository / "build").iterdir()
of_torch = variant.name.replace("-cpu-", f"-{_select_backend(None).variant_str}-")
if of_torch != variant.name:
    shutil.copytree(variant, variant.with_name(of_torch))
from transformers import utils
from transformers.utils import import_utils
# Some versions want a kernels that is not released.
utils.is_kernels_available = import_utils.is_kernels_available = lambda *_: True
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
words = torch.randint(0, 97, (2, 33))
losses = {}
for name in ("eager", "owner/tandem-attention"):
    torch.manual_seed(2)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config)
    if name != "eager":
        model.set_attn_implementation(name, allow_all_kernels=True)
    loss = model(words, labels=words).loss
    loss.backward()
    losses[name] = [loss.detach(), model.model.layers[0].self_attn.q_proj.weight.grad]
torch.testing.assert_close(*losses.values(), atol=1e-4, rtol=1e-4)
print("right")
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernel")
    wheel = folder / f"tandem_attention-0.1.0-cp312-abi3-linux_{MACHINE}.whl"
    package = Path(tandem_attention.__file__).parent
    with zipfile.ZipFile(wheel, "w") as archive:
        for folder_name, _, names in os.walk(package, followlinks=True):
            for file in (Path(folder_name) / name for name in names):
                if "__pycache__" not in file.parts:
                    archive.write(file, Path("tandem_attention") / file.relative_to(package))
    command = [sys.executable, TOOLS / "hf_kernel.py", wheel, folder / "repository"]
    subprocess.run(command, check=True)
    return folder / "repository"


def test_metadata(repository: Path) -> None:
    from kernels._rust import Digest, DigestAlgorithm, Metadata

    (variant,) = (repository / "build").iterdir()
    assert variant.name == f"torch-stable-abi210-cpu-{MACHINE}-linux"
    metadata = Metadata.read_from_file(variant / "metadata.json")
    assert metadata.digest is not None
    metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, variant))


def test_no_variant_imports_the_installed_package(repository: Path) -> None:
    imports = re.compile(r'^\s*(?:from|import) tandem_attention|import_module\("tandem_att', re.M)
    for file in repository.rglob("*.py"):
        assert not imports.search(file.read_text()), file


def test_kernel_beside_the_package(repository: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment["LOCAL_KERNELS"] = f"owner/tandem-attention={repository}"
    command = [sys.executable, "-c", SCRIPT, str(repository)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("right\n")
