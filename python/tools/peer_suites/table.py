# SPDX-License-Identifier: MIT OR Apache-2.0
"""The suites: where their tests are, which of them run, and what is left out and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suite:
    """The tests of one library that run through one drop-in.

    Attributes:
        name: as the command line has it.
        checkout: a folder of FOLDER; suites of one repository share theirs.
        repository: owner and name.
        commit: the commit or tag that is fetched.
        files: the paths of the repository that a run reads.
        tests: the files or folders with tests.
        drop_in: our module that takes the calls.
        select: a regular expression that a test's id has to match.
        left_out: a regular expression over ids, and the reason.
        each: how many tests of each test function run, drawn by the seed; 0 is all of them.
        parts: how many processes the suite is split over.
        returns_verdict: its test functions return False where others raise.
        conftest: whether its conftest.py files are read.
        options: more options of pytest.
    """

    name: str
    checkout: str
    repository: str
    commit: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    drop_in: str
    select: str = ""
    left_out: tuple[tuple[str, str], ...] = ()
    each: int = 0
    parts: int = 1
    returns_verdict: bool = False
    conftest: bool = True
    options: tuple[str, ...] = ()


_FLASH = {
    "checkout": "flash-attention",
    "repository": "Dao-AILab/flash-attention",
    "commit": "0251105a2fb19d2957484b7f023cd8c115286ced",
    "files": (
        "tests/test_flash_attn.py",
        "tests/cute/test_flash_attn.py",
        "tests/cute/test_flash_attn_race_condition.py",
        "flash_attn/bert_padding.py",
        "flash_attn/layers/__init__.py",
        "flash_attn/layers/rotary.py",
        "flash_attn/ops/__init__.py",
        "flash_attn/ops/triton/__init__.py",
        "flash_attn/ops/triton/rotary.py",
        "flash_attn/cute/testing.py",
    ),
}

_ONE_SIDED = (
    r"test_flash_attn_(varlen_)?output\[.*-(True|False)-[23]-(0\.0|15\.0)-",
    "a window that begins or ends off the diagonal: ours hold the diagonal",
)

SUITES: tuple[Suite, ...] = (
    Suite(
        name="flash-attention",
        **_FLASH,  # type: ignore[arg-type]
        tests=("tests/test_flash_attn.py",),
        drop_in="tandem_attention.drop_in.flash_attn",
        each=22,
        parts=2,
    ),
    Suite(
        name="flash-attention-4",
        **_FLASH,  # type: ignore[arg-type]
        tests=("tests/cute/test_flash_attn.py",),
        drop_in="tandem_attention.drop_in.flash_attn",
        left_out=(
            _ONE_SIDED,
            (r"_mla_|paged_deepseek", "latent attention, which is not offered"),
        ),
        each=40,
        parts=3,
        conftest=False,
    ),
    Suite(
        name="flash-attention-4-race",
        **_FLASH,  # type: ignore[arg-type]
        tests=("tests/cute/test_flash_attn_race_condition.py",),
        drop_in="tandem_attention.drop_in.flash_attn",
        left_out=(
            (r"-192-(True|False)-[01]-", "its own test expects a failure at this head size"),
            (r"test_flash_attn_output\[.*-1-(0\.0|15\.0)-", "no backward with a window there"),
        ),
        each=24,
        parts=2,
        conftest=False,
    ),
    Suite(
        name="pytorch",
        checkout="pytorch",
        repository="pytorch/pytorch",
        commit="v2.6.0",
        files=("test/test_transformers.py",),
        tests=("test/test_transformers.py",),
        drop_in="tandem_attention.drop_in.sdpa",
        select=r"::Test(SDPA|AttnBias)",
        left_out=(
            (r"::TestSDPAPrivateUse1", "another device"),
            (r"cudnn", "calls torch's cuDNN kernels by name, and compares them with themselves"),
            (r"test_fused_kernels_nested|test_.*nestedtensor", "nested tensors, refused by name"),
        ),
        each=14,
        parts=2,
    ),
    Suite(
        name="pytorch-flex",
        checkout="pytorch-flex",
        repository="pytorch/pytorch",
        commit="v2.6.0",
        files=("test/inductor/test_flex_attention.py",),
        tests=("test/inductor/test_flex_attention.py",),
        drop_in="tandem_attention.drop_in.flex_attention",
        select=r"::Test(FlexAttention|LearnableBiases)",
        left_out=(
            (r"paged_attention|_cuda_1|wrong_device|mixed_device", "pages, other devices"),
            (r"dynamic", "counts what torch's compiler compiles"),
            (
                r"fused|realized|autotune|lowering|cant_lower|graph_correctness|free_symbol"
                r"|symbol_closure|force_write|subgraph_respect|recompile|kernel_options"
                r"|gradcheck|matmul_precision|cpu_|reduction_unrolled|aot_eager"
                r"|logsumexp_only_return|invalid_block_size|stride_ordering",
                "how torch's compiler lowers it",
            ),
        ),
        each=4,
    ),
    Suite(
        name="adasplash",
        checkout="adasplash",
        repository="deep-spin/adasplash",
        commit="4b64c94fa4cd60d274dafff3178bb96d2f831edb",
        files=("tests", "examples"),
        tests=("tests",),
        drop_in="tandem_attention.drop_in.adasplash",
        left_out=(
            (r"long_context", "its dense reference wants most of a GPU's memory"),
            (r"test_triton_entmax\.py", "maps of scores, refused by name"),
        ),
        each=100,
        parts=2,
    ),
    Suite(
        name="lazy-attention",
        checkout="lazy-attention",
        repository="Fzkuji/flash-lazy-attention",
        commit="dc1e61be84e867d3c2b256e6ae0cb8871a5f2dec",
        files=("tests",),
        tests=(
            "tests/test_lazy_attention.py",
            "tests/test_lazy_attention_triton.py",
            "tests/test_lazy_attention_triton_backward.py",
            "tests/test_lazy_attention_varlen.py",
        ),
        drop_in="tandem_attention.drop_in.lazy_attention_triton",
    ),
    Suite(
        name="flag-gems",
        checkout="flag-gems",
        repository="flagos-ai/FlagGems",
        commit="ed2508bcb5a03000e9774734201d840ba362cd11",
        files=(
            "tests/__init__.py",
            "tests/accuracy_utils.py",
            "tests/conftest.py",
            "tests/test_scaled_dot_product_attention.py",
            "tests/test_flash_attention.py",
            "tests/test_flash_attention_backward.py",
            "tests/test_flash_attn_varlen_func.py",
            "src/flag_gems/testing",
        ),
        tests=(
            "tests/test_scaled_dot_product_attention.py",
            "tests/test_flash_attention.py",
            "tests/test_flash_attention_backward.py",
            "tests/test_flash_attn_varlen_func.py",
        ),
        drop_in="tandem_attention.drop_in.flag_gems",
        left_out=(
            (
                r"cudnn_attention|efficient_attention_backward"
                r"|test_scaled_dot_product_flash_attention\[|test__flash_attention_forward\[",
                "calls an operator of aten that FlagGems replaces and we do not",
            ),
            (r"test_sparse_attention", "no function of ours"),
        ),
        each=60,
        parts=2,
    ),
    Suite(
        name="flash-dmattn",
        checkout="flash-dmattn",
        repository="SmallDoges/flash-dmattn",
        commit="1dcc395d495318c3f0cee27353b9afadc3928650",  # 1.2.2: later ones fail alone
        files=("benchmarks/forward_equivalence.py", "benchmarks/backward_equivalence.py"),
        tests=("benchmarks/forward_equivalence.py", "benchmarks/backward_equivalence.py"),
        drop_in="tandem_attention.drop_in.flash_dmattn",
        parts=2,
        returns_verdict=True,
    ),
    Suite(
        name="xformers",
        checkout="xformers",
        repository="facebookresearch/xformers",
        commit="41531cee4ca4e21f703968b31ffabda3d028f8fc",  # 0.0.33.post2: fmha has left since
        files=(
            "tests/__init__.py",
            "tests/utils.py",
            "tests/test_mem_eff_attention.py",
            "xformers/*.py",
            "xformers/ops",
            "xformers/triton",
            "xformers/flash_attn_3",
        ),
        tests=("tests/test_mem_eff_attention.py",),
        drop_in="tandem_attention.drop_in.xformers",
        each=40,
        parts=3,
    ),
    Suite(
        name="cuequivariance",
        checkout="cuequivariance",
        repository="NVIDIA/cuEquivariance",
        commit="74c226eac39c3c46eff10c5c81549d6e87e01302",
        files=(
            "cuequivariance_torch/tests/primitives/triangle_test.py",
            "cuequivariance_jax/tests/triangle_attention_test.py",
        ),
        tests=(
            "cuequivariance_torch/tests/primitives/triangle_test.py",
            "cuequivariance_jax/tests/triangle_attention_test.py",
        ),
        drop_in="tandem_attention.drop_in.cuequivariance",
        conftest=False,
    ),
)


def find(name: str) -> Suite:
    """The suite of that name; KeyError with all names where there is none."""
    for suite in SUITES:
        if suite.name == name:
            return suite
    raise KeyError(f"no suite is named {name!r}; there are {', '.join(s.name for s in SUITES)}")
