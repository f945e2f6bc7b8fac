# SPDX-License-Identifier: MIT OR Apache-2.0
"""Failures that are known, and why they are no error of ours. A failure of no kind is UNKNOWN."""

from __future__ import annotations

import re
from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of failure.

    Attributes:
        suites: a regular expression that matches the suite's whole name.
        test: one that is searched in the test's id; empty matches all.
        message: one that is searched in the failure's text; empty matches all.
        reason: why it fails.
    """

    suites: str
    test: str
    message: str
    reason: str


KINDS: tuple[Kind, ...] = (
    # ---- flash-attention ----
    Kind(
        "flash-attention",
        "",
        r"cannot import name '_flash_attn_varlen_forward'|cannot import name 'flash_attn_gpu'",
        "private functions of its own extension",
    ),
    Kind(
        "flash-attention-4",
        r"test_flash_attn_lse_grad|sink_backward_with_lse",
        r"lse\.requires_grad|does not require grad|gradient of lse|when LSE gradient is included",
        "the gradient of lse, which is not offered",
    ),
    Kind(
        "flash-attention-4",
        r"metadata",
        r"'NoneType' object has no attribute",
        "its scheduler's metadata",
    ),
    Kind("flash-attention-4", "", r"UnsupportedError: .* is not offered", "refused: not offered"),
    Kind(
        "flash-attention-4",
        r"decode_prefill_consistency",
        r"",
        "equal bits of two kernels",
    ),
    Kind(
        "flash-attention-4",
        r"test_flash_attn_output",
        r"dSink: diff=tensor\(\[(\s*(\d\.\d+e-0[4-9]|0\.0+e\+00),?)+\]",
        "d_sink less than 1e-3 off, where its limit, twice torch's error, is by chance lower",
    ),
    Kind(
        "flash-attention-4",
        r"invalid_head_dim|rejects",
        r"DID NOT RAISE|Regex pattern did not match|UnsupportedError|InvalidArgumentError",
        "an error that it has to raise for what we take, or in its own words",
    ),
    # ---- FlagGems ----
    Kind("flag-gems", "", r"caplog|in caplog\.text", "its own log lines"),
    Kind("flag-gems", "", r"no attribute 'flash_attn_varlen_opt_func'", "a private alias"),
    Kind("flag-gems", "", r"has no attribute 'sparse_attn|'flash_mla", "no attention of ours"),
    Kind(
        "flag-gems",
        r"test_flash_attention_backward|legacy_backward",
        r"Mismatched elements: \d+ / \d+ \(0\.[0-4]\d*%\)\s+"
        r"Greatest absolute difference: (0\.00\d*|\d[.\d]*e-0[3-9]) ",
        "within its limit of half an ulp of f16 but for up to half a percent of the elements",
    ),
    # ---- PyTorch ----
    Kind("pytorch", "", r"UnsupportedError: \w+ is float64", "float64, refused by name"),
    Kind(
        "pytorch",
        "",
        r"UnsupportedError: \w+ is a nested tensor",
        "nested tensors, refused by name",
    ),
    Kind(
        "pytorch",
        r"dropout_p_0_(2|22|48|5|1)(_|$)",
        r"not close|Mismatched|AssertionError|Test error [\d.e-]+ is greater than threshold",
        "masks of torch's own dropout numbers",
    ),
    Kind(
        "pytorch",
        r"",
        r"(Error|Warning) not (raised|triggered)|\" does not match \"|DID NOT RAISE",
        "an error or warning that torch's kernels have to give for what we take",
    ),
    Kind("pytorch", "", r"torch[./]jit[./]\w+\.py|torch\.jit\.frontend", "torch.jit.script"),
    Kind(
        "pytorch",
        r"sdp_choice|priority_order|dispatch_fails_no_backend",
        r"",
        "which of torch's own kernels is chosen",
    ),
    Kind(
        "pytorch",
        "",
        r"RuntimeError: No available kernel",
        "asks for one of torch's own kernels",
    ),
    Kind(
        "pytorch-flex",
        "",
        r"UnsupportedError: score_mod",
        "a score mod that is no sum, refused by name",
    ),
    Kind(
        "pytorch-flex",
        "strided_inputs|mask_mod_combiners",
        r"assert \(\d+ \+ \d+\) <|'28' != '2'",
        "numbers of the full length, where a run without a CUDA device has shorter sequences",
    ),
    Kind("pytorch-flex", "", r"no NVIDIA driver", "asks for a CUDA device"),
    Kind(
        "pytorch-flex",
        "lse_masked_output|differentiable_logsumexp",
        r"not close",
        "the gradient of lse, which is not offered",
    ),
    Kind(
        "pytorch-flex",
        "distinct_biases|weird_bias|indirect_bias",
        r"Tensor: grad_bias1?\s",
        "a bias that all keys of a row share: its exact gradient is 0, ours the rounding of o",
    ),
    Kind(
        "pytorch-flex",
        "symmetric_bias|mixed_dtypes|captured_reduction",
        r"(LoweringException|ValueError) not raised|Unexpected success"
        r"|expected (m1 and m2|scalar type)|same dtype",
        "an error that torch's compiler or its eager function has to raise",
    ),
    # ---- AdaSplash, Lazy Attention ----
    Kind("adasplash", "", r"maps a tensor of scores", "maps of scores, refused by name"),
    Kind(
        "adasplash",
        r"test_public_api",
        r"",
        "its package's list of files, and signatures of maps of scores",
    ),
    # ---- xformers ----
    Kind("xformers", r"fp8|FP8", r"", "quantised keys, refused by name"),
    Kind("xformers", "", r"UnsupportedError: .*(quanti|float8)", "quantised keys, refused by name"),
    Kind("xformers", "", r"UnsupportedError: .*(Paged|Gappy)", "masks refused by name"),
    Kind(
        "xformers",
        r"unsupported|wrong_strides|attn_bias_blockdiag_doc|empty_tensors|test_f(16_biasf32|32_biasf16)$",
        r"DID NOT RAISE",
        "an error that it has to raise for what we take",
    ),
    Kind("xformers", r"test_dispatch_|memeff_compile", r"", "names of its dispatcher"),
    Kind(
        "xformers",
        r"test_forward_gqa",
        r"total failing elements: [1-9] ",
        "one element of millions up to 4e-4 beyond its limit in f16",
    ),
    Kind("xformers", "", r"UnsupportedError: .*_partial", "refused by name"),
    # ---- cuEquivariance ----
    Kind(
        "cuequivariance",
        "",
        r"has no attribute '(triangle_multiplicative_update|attention_pair_bias)'",
        "no triangle attention",
    ),
)


def reason_of(suite: str, test: str, text: str) -> str:
    """Why a test fails; empty where that is not known."""
    for kind in KINDS:
        if (
            re.fullmatch(kind.suites, suite)
            and re.search(kind.test, test)
            and re.search(kind.message, text)
        ):
            return kind.reason
    return ""
