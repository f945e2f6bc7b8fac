# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tandem as an attention implementation of Hugging Face transformers.

>>> from tandem_attention.drop_in import transformers as tandem_transformers
>>> tandem_transformers.register()
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tandem")
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._errors import InvalidArgumentError, UnsupportedError
from .._options import whole_number
from ..torch import attention
from ._visible import spans_of

__all__ = ["attention_forward", "register"]


def register(name: str = "tandem") -> None:
    """Makes ``attn_implementation=name`` known to transformers, for every model.

    Masks are made as for ``"sdpa"``: bool [B, 1, Sq, Sk], True takes part, and none where a causal
    mask or no mask says the same. They hold the windows, the padding, the packed rows and the
    images of a model. Where each key of one is seen by one or two intervals of rows, its spans are
    kept beside it, and layers that get the mask as it was made run by them.

    Raises:
        ImportError: transformers is not installed, or older than 4.53, which had no such masks.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention_forward)

    def mask_with_spans(*args: Any, **kwargs: Any) -> Tensor | None:
        mask: Tensor | None = sdpa_mask(*args, **kwargs)
        return None if mask is None else _with_spans(mask)

    AttentionMaskInterface.register(name, mask_with_spans)


#: Elements of a mask that are looked at together.
_AT_ONCE = 1 << 26
#: The attribute of a mask that holds its spans.
_SPANS = "_tandem_spans"


def _with_spans(mask: Tensor) -> Tensor:
    """bool [B, H, Sq, Sk] with its spans beside it, where it has some.

    A tensor made of the mask, or a mask that was written into, does not have them, so a model that
    changes its mask loses nothing but their speed. Not where the host may not look at the mask: in
    a graph that is compiled or captured.
    """
    if mask.dtype != torch.bool or mask.dim() != 4 or mask.shape[2] < 2 or not mask.numel():
        return mask
    if torch.compiler.is_compiling() or type(mask) is not Tensor or mask.is_meta:
        return mask
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return mask
    with torch.inference_mode(False), torch.no_grad():
        # A batch that is repeated has the spans of one entry.
        narrow = mask[:1] if mask.stride(0) == 0 else mask
        if mask.is_inference():  # these tensors do not say that they were written into
            narrow = narrow.clone()
            mask = narrow.expand(mask.shape)
        step = max(1, _AT_ONCE // max(1, narrow[..., 0].numel()))
        spans = spans_of(lambda begin, end: narrow[..., begin:end], narrow.shape[3], step)
        if spans is not None:
            setattr(mask, _SPANS, (spans, mask._version))
    return mask


def _spans(mask: Tensor | None, rows: int, keys: int) -> Tensor | None:
    """The spans of a mask, if its rows are those of the call and nothing wrote into it since."""
    noted: tuple[Tensor, int] | None = getattr(mask, _SPANS, None)
    if noted is None or mask is None or mask.shape[2] != rows or mask.shape[3] < keys:
        return None
    spans, version = noted
    return spans[:, :, :keys] if mask._version == version else None


def _split_mask(
    mask: Tensor | None, position_bias: Tensor | None, keys: int
) -> tuple[Tensor | None, Tensor | None]:
    """(bias, keep) of a mask that is bool or added, and a bias of the model."""
    if mask is not None:
        if mask.dim() != 4:
            raise InvalidArgumentError(
                f"attention_mask has {mask.dim()} dimensions; [B, H, Sq, Sk] has 4"
            )
        # A mask may be made for the whole of a cache that is not full yet.
        mask = mask[..., :keys]
        if mask.dtype == torch.bool:
            return position_bias, mask
    if position_bias is None or mask is None:
        return (mask if position_bias is None else position_bias), None
    return position_bias + mask, None


def _is_causal(module: nn.Module, given: bool | None) -> bool:
    return bool(getattr(module, "is_causal", True) if given is None else given)


def _packed(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, sliding_window: int | None,
    lengths: tuple[Tensor, Tensor], longest: tuple[int, int], options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """[1, H, total, D], sequences one behind the other, as data collators make them."""
    if q.shape[0] != 1:
        raise InvalidArgumentError(f"cu_seq_lens go with a batch of 1, not of {q.shape[0]}")
    window = None
    if sliding_window is not None:
        window = (sliding_window - 1, -1 if causal else sliding_window - 1)
    o: Tensor = attention(
        q[0], k[0], v[0], offsets_q=lengths[0], offsets_kv=lengths[1], max_seq_q=longest[0],
        max_seq_kv=longest[1], causal="bottom_right" if causal else False, align="bottom_right",
        window=window, **options,
    )  # fmt: skip
    return o[None]


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that models call through ``ALL_ATTENTION_FUNCTIONS``.

    Args:
        module: the attention module; its ``is_causal`` counts where the argument is None.
        query: [B, Hq, Sq, D]. key, value: [B, Hk, Sk, D], Hk dividing Hq.
        attention_mask: None, bool [B or 1, Hq or 1, Sq or 1, Sk] (True takes part) or float, added.
            One of register()'s mask function runs as its spans.
            Without one a causal module sees keys up to its own, aligned top left, if Sq is above 1.
        dropout: 0 <= p < 1; the module says 0 in evaluation.
        scaling: 1 / sqrt(D) by default.
        sliding_window: read with cu_seq_lens alone; otherwise attention_mask holds the window.
        softcap: c > 0: c tanh(s / c), as in Gemma 2.
        s_aux: [Hq], attention sinks, as in gpt-oss. Differentiable.
        position_bias: added to the scores, as in T5. Differentiable.
        cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: packed sequences, read where there
            is no attention_mask.

    Returns:
        ([B, Sq, Hq, D], None): there are no attention weights.

    Raises:
        UnsupportedError: output_attentions=True, sinks of each token, a paged cache.
    """
    if kwargs.get("output_attentions"):
        raise UnsupportedError(
            "output_attentions: weights are never in memory; use attn_implementation='eager'"
        )
    for name, what in (("sinks", "sinks of each token"), ("block_table", "a paged cache")):
        if kwargs.get(name) is not None:
            raise UnsupportedError(f"{name}: {what} is not supported")
    if query.shape[0] != key.shape[0]:
        # Learned queries may come once for the whole batch.
        batch = max(query.shape[0], key.shape[0])
        query, key, value = (t.expand(batch, -1, -1, -1) for t in (query, key, value))
    options: dict[str, Any] = {
        "scale": scaling, "dropout": dropout, "softcap": softcap or 0.0, "sink": s_aux,
    }  # fmt: skip
    rows, keys = query.shape[2], key.shape[2]
    causal = rows > 1 and attention_mask is None and _is_causal(module, is_causal)
    if attention_mask is None and cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        if position_bias is not None:
            raise UnsupportedError("position_bias with packed sequences")
        o = _packed(
            query, key, value, causal, sliding_window, (cu_seq_lens_q, cu_seq_lens_k),
            (whole_number("max_length_q", max_length_q or 0),
             whole_number("max_length_k", max_length_k or 0)), options,
        )  # fmt: skip
    else:
        if position_bias is not None:
            position_bias = position_bias[..., :keys]
        spans = _spans(attention_mask, rows, keys)
        bias, keep = _split_mask(None if spans is not None else attention_mask, position_bias, keys)
        o = attention(
            query, key, value, bias=bias, keep=keep, spans=spans,
            causal="top_left" if causal else False, **options,
        )  # fmt: skip
    return o.transpose(1, 2).contiguous(), None
