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
        r"test_flash_attn_lse_grad",
        r"lse\.requires_grad|does not require grad|gradient of lse",
        "the gradient of lse, which is not offered",
    ),
    Kind("flash-attention-4", r"metadata", r"NoneType|metadata", "its scheduler's metadata"),
    Kind("flash-attention-4", "", r"UnsupportedError: .* is not offered", "refused: not offered"),
    Kind(
        "flash-attention-4",
        r"decode_prefill_consistency",
        r"",
        "equal bits of two kernels",
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
        r"Mismatched elements: \d+ / \d+ \(0\.[0-4]\d*%\)",
        "within its limit of half an ulp of f16 but for up to half a percent of the elements",
    ),
    # ---- PyTorch ----
    Kind("pytorch", "", r"float64|torch\.double", "float64, refused by name"),
    Kind("pytorch", "", r"[Nn]ested|jagged", "nested tensors, refused by name"),
    Kind(
        "pytorch",
        r"dropout_p_0_[1-9]|dropout_p_0_[0-9]*[1-9]|dropout",
        r"AssertionError|not close|Mismatched|dropout",
        "masks of torch's own dropout numbers",
    ),
    Kind(
        "pytorch",
        r"TestSDPAFailureModes|invalid|fail|warn|unaligned",
        r"not raised|not triggered|does not match|DID NOT RAISE|UserWarning",
        "an error or warning that torch's kernels have to give for what we take",
    ),
    Kind("pytorch", "", r"torch\.jit|TorchScript|jit\.script", "torch.jit.script"),
    Kind(
        "pytorch",
        r"sdp_choice|priority|backend",
        r"",
        "which of torch's own kernels is chosen",
    ),
    Kind(
        "pytorch",
        "",
        r"SDPBackend|No available kernel|_fused_sdp_choice",
        "asks for one of torch's own kernels",
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
    Kind("xformers", "", r"InputsFp8|float8|quantised|int32.*quant", "quantised keys, refused"),
    Kind("xformers", "", r"Paged|Gappy|page_size|block_tables", "masks refused by name"),
    Kind("xformers", r"paged", r"UnsupportedError", "masks refused by name"),
    Kind(
        "xformers",
        r"unsupported|wrong_strides|attn_bias_blockdiag_doc|empty_tensors",
        r"DID NOT RAISE",
        "an error that it has to raise for what we take",
    ),
    Kind("xformers", r"dispatch|meta|compile", r"", "names of its dispatcher"),
    Kind(
        "xformers",
        r"test_forward_gqa",
        r"(total failing elements: [1-9] |failing elements: [1-9]\b|allclose)",
        "one element of millions up to 4e-4 beyond its limit in f16",
    ),
    Kind("xformers", "", r"memory_efficient_attention_partial", "refused by name"),
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
