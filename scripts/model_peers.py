# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention of a model's case (model_case.py) by other implementations, each a function of q, k, v."""
import importlib.util
import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SDPA = {
    "fa2": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
MODULES = {"cuequivariance": "cuequivariance_torch", "fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}
NAMES = ["fa2", "cudnn", "efficient", "flex", "cuequivariance", "fa3", "fa4", "math"]
LARGEST_MASK = 1 << 29  # elements of a mask that is stored


def installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def flash_words(case):
    """What no FlashAttention has of a case."""
    return [word for word, there in (("bias", case.bias), ("keep", case.keep), ("ALiBi", case.alibi), ("sink", case.sink),
                                     ("padded lengths", case.lengths_kv and not case.packed)) if there]


def refusal_of(name, case, device):
    """A sentence, or "" where the case is tried."""
    if name in MODULES and not installed(MODULES[name]):
        return f"not installed: {MODULES[name]}"
    if name == "flex":
        return "FlexAttention has no dropout" if case.dropout else ""
    if name == "cuequivariance":
        fits = case.bias and case.bias["dims"][0] == 1 and case.bias["dims"][2] == case.Sq
        other = case.causal or case.window or case.softcap or case.dropout or case.lengths_kv or case.sink
        fits = fits and not other and (not case.keep or case.keep.endswith("x1")) and case.D == case.Dv
        return "" if fits else "triangle attention is a bias that rows share, and at most a mask of keys"
    if name in ("fa3", "fa4"):
        words = flash_words(case) + ["dropout"] * bool(case.dropout) + ["f32"] * (case.dtype == torch.float32)
        return f"it has no {', no '.join(words)}" if words else ""
    if case.softcap or case.sink:
        return f"scaled_dot_product_attention has no {'softcap' if case.softcap else 'sink'}"
    if name == "fa2":
        words = flash_words(case) + ["f32"] * (case.dtype == torch.float32)
        return f"it has no {', no '.join(words)}" if words else ""
    if case.packed:
        return "scaled_dot_product_attention has no packed sequences but by nested tensors"
    mask = stored_mask_elements(case)
    return f"its mask would have {mask} elements" if mask > LARGEST_MASK else ""


def by_flag(case):
    """Whether the mask is none, or causal in a square."""
    return not case.dense and not case.window and (not case.causal or case.Sq == case.Sk)


def stored_mask_elements(case):
    if by_flag(case):
        return 0
    batch = case.B if case.lengths_kv else int(case.keep.split(":")[1].split("x")[0]) if case.keep else 1
    heads = case.Hq if case.alibi else 1
    if case.bias:
        batch, heads = max(batch, case.bias["dims"][0]), case.bias["dims"][1]
    return batch * heads * case.Sq * case.Sk


def shown_mask(case, tensors):
    """Boolean, to be expanded to [B,Hq,Sq,Sk], or None."""
    shown = tensors.band()
    shown = None if shown is None else shown[None, None]
    if case.lengths_kv:
        lengths = torch.tensor(case.lengths_kv, device=tensors.device)
        padded = torch.arange(case.Sk, device=tensors.device) < lengths[:, None, None, None]
        shown = padded if shown is None else shown & padded
    if tensors.keep is not None:
        shown = tensors.keep if shown is None else shown & tensors.keep
    return shown


def sdpa(case, tensors, backend):
    """PyTorch's own kernels. A mask that is not trained is stored before; one with a bias is made anew in each run."""
    shape = (case.B, case.Hq, case.Sq, case.Sk)
    flags = {"scale": case.scale, "dropout_p": case.dropout, "enable_gqa": case.Hq != case.Hk}
    fixed = shown = None
    if by_flag(case):
        flags["is_causal"] = case.causal
    else:
        shown = shown_mask(case, tensors)
        if case.alibi:
            t = torch.arange(case.Sq, device=tensors.device)[:, None] + case.off
            t = (t - torch.arange(case.Sk, device=tensors.device)).abs()
            fixed = (-tensors.slopes[:, None, None] * t).to(case.dtype)[None]
            fixed = fixed if shown is None else fixed.masked_fill(~shown, float("-inf"))
            fixed = fixed.expand(shape)
        elif not case.bias:
            fixed = shown.expand(shape)

    def attend(q, k, v):
        mask = fixed
        if case.bias:
            mask = tensors.bias.to(case.dtype)
            mask = mask if shown is None else mask.masked_fill(~shown, float("-inf"))
            mask = mask.expand(shape)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **flags)

    return attend


def offsets_of(case, device):
    """Where packed sequences begin, for q and for k, or None twice."""
    if not case.packed:
        return None, None
    return tuple(torch.tensor(case.offsets(kv), device=device, dtype=torch.int32) for kv in (False, True))


def flash_2(case, tensors, device):
    """PyTorch's FlashAttention-2 by its own operation, which has windows, packed sequences and bottom-right masks."""
    offsets = offsets_of(case, device)
    window = {"window_size_left": case.left if case.left >= 0 else None,
              "window_size_right": 0 if case.causal else case.right if case.right >= 0 else None}

    def attend(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if case.packed:
            q, k, v = (x[0] for x in (q, k, v))
        o = torch.ops.aten._flash_attention_forward(
            q, k, v, *offsets, case.Sq, case.Sk, case.dropout, case.causal, False, scale=case.scale, **window
        )[0]
        return (o[None] if case.packed else o).transpose(1, 2)

    return attend


def flash_later(case, tensors, device, name):
    """FlashAttention-3 or -4 by their own packages."""
    module = importlib.import_module(MODULES[name])
    offsets, none = offsets_of(case, device), -1 if name == "fa3" else None
    words = {"softmax_scale": case.scale, "causal": case.causal}
    if case.window:
        words["window_size"] = (case.left if case.left >= 0 else none, 0 if case.causal else case.right if case.right >= 0 else none)
    if case.softcap:
        words["softcap"] = case.softcap

    def attend(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if case.packed:
            o = module.flash_attn_varlen_func(q[0], k[0], v[0], cu_seqlens_q=offsets[0], cu_seqlens_k=offsets[1],
                                              max_seqlen_q=case.Sq, max_seqlen_k=case.Sk, **words)
        else:
            o = module.flash_attn_func(q, k, v, **words)
        o = o[0] if isinstance(o, tuple) else o
        return (o[None] if case.packed else o).transpose(1, 2)

    return attend


def triangle(case, tensors):
    """cuEquivariance's triangle attention: the batch is its rows, the bias is f32."""
    from cuequivariance_torch import triangle_attention

    mask = None if tensors.keep is None else tensors.keep.expand(case.B, 1, 1, case.Sk)[None].contiguous()

    def attend(q, k, v):
        bias = tensors.bias.float()[None]
        return triangle_attention(q[None], k[None], v[None], bias=bias, mask=mask, scale=case.scale)[0]

    return attend


def flex(case, tensors, device):
    """FlexAttention, compiled for this case. A sink joins by the lse."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # or one case's code would count as the next one's recompilation
    torch._functorch.config.donated_buffer = False  # a backward that is timed runs more than once
    run = flex_attention if device == "cpu" else torch.compile(flex_attention, dynamic=False)
    bias, keep, slopes, softcap = tensors.bias, tensors.keep, tensors.slopes, case.softcap
    off, left, right, causal = case.off, case.left, case.right, case.causal
    by_entry = bias is not None and bias.shape[0] > 1
    by_head, by_row = bias is not None and bias.shape[1] > 1, bias is not None and bias.shape[2] > 1
    lengths = documents = None
    if case.packed:
        documents = [torch.repeat_interleave(torch.arange(case.B, device=device), torch.tensor(n, device=device))
                     for n in (case.lengths_q, case.lengths_kv)]
    elif case.lengths_kv:
        lengths = torch.tensor(case.lengths_kv, device=device)

    def score_mod(score, b, h, i, j):
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            score = score + bias[b if by_entry else 0, h if by_head else 0, i if by_row else 0, j]
        if slopes is not None:
            score = score - slopes[h] * (i + off - j).abs()
        return score

    def mask_mod(b, h, i, j):
        shown = i + off >= j if causal else i >= 0
        if left >= 0:
            shown = shown & (i + off - j <= left)
        if right >= 0:
            shown = shown & (j - i - off <= right)
        if lengths is not None:
            shown = shown & (j < lengths[b])
        if documents is not None:
            shown = shown & (documents[0][i] == documents[1][j])
        if keep is not None:
            shown = shown & keep[b if keep.shape[0] > 1 else 0, 0, i if keep.shape[2] > 1 else 0, j]
        return shown

    mask = None
    if causal or case.window or lengths is not None or documents is not None or keep is not None:
        by_batch = lengths is not None or (keep is not None and keep.shape[0] > 1)
        mask = create_block_mask(mask_mod, case.B if by_batch else None, None, tensors.q.shape[2], tensors.k.shape[2], device=device)
    scored = score_mod if softcap or bias is not None or slopes is not None else None

    def attend(q, k, v):
        o = run(q, k, v, score_mod=scored, block_mask=mask, scale=case.scale, enable_gqa=case.Hq != case.Hk,
                return_lse=tensors.sink is not None)
        if tensors.sink is None:
            return o
        o, lse = o
        return o * torch.sigmoid(lse - tensors.sink[:, None])[..., None].to(o.dtype)

    return attend


def with_reasons(attend):
    """attend, whose first failure says why PyTorch found no kernel: it tells that in warnings."""
    def checked(q, k, v):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                return attend(q, k, v)
            except RuntimeError as e:
                texts = [str(w.message).split(" (Triggered")[0] for w in said]
                texts = [text for text in texts if "runtime disabled" not in text and "not used because" not in text]
                if "No available kernel" in str(e) and texts:
                    raise RuntimeError(texts[0]) from e
                raise

    return checked


def attend_of(name, case, tensors, device):
    if name == "flex":
        return flex(case, tensors, device)
    if name == "cuequivariance":
        return triangle(case, tensors)
    if name in ("fa3", "fa4"):
        return flash_later(case, tensors, device, name)
    if name == "fa2" and not by_flag(case) or name == "fa2" and case.packed:
        return flash_2(case, tensors, device)
    return with_reasons(sdpa(case, tensors, SDPA[name]))
