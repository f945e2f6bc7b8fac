# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tandem's attention: FlashAttention-2's functions, SDPA's, and attention() with every option."""

from . import layers as layers
from .tandem_attention import __version__ as __version__
from .tandem_attention.drop_in.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from .tandem_attention.drop_in.sdpa import scaled_dot_product_attention
from .tandem_attention.torch import attention

__all__ = [
    "attention",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "layers",
    "scaled_dot_product_attention",
]
