# SPDX-License-Identifier: MIT OR Apache-2.0
"""attention(): the torch function that users call."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._blocks import Blocks, parts_of
from .._errors import InvalidArgumentError, UnsupportedError
from .._options import (
    Diagonal,
    Normalizer,
    Options,
    Order,
    Window,
    make_options,
    number,
    whole_number,
)
from .._problem import (
    FORWARD,
    make_problem,
    places,
)
from . import _eager, _kernels, _ops, _plain_ops
from ._eager import KnownOptions
from ._kernels import Inputs


class _TransformedBackward(torch.autograd.Function):
    """The backward under torch.func; says that there are no second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _ops.attention_backward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        _ops.refuse_second_derivatives()

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _ops.refuse_forward_mode()


class _Transformed(torch.autograd.Function):
    """Under torch.func, which does not enter the formula of a custom operation. The rule for vmap
    is made of those of the operations in forward and backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return _ops.attention(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _ops.setup_context(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        return _ops.gradients_by(_TransformedBackward.apply, ctx, d_o, d_lse)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _ops.refuse_forward_mode()


def _options(
    scale: float | None,
    causal: bool | Diagonal,
    align: Diagonal,
    window: Window | None,
    softcap: float,
    dropout: float,
    normalizer: Normalizer,
    alpha: float,
    layout: Order,
    deterministic: bool,
    batch_invariant: bool,
    allow_tf32: bool,
    workspace_limit: int,
    packed_q: bool,
    packed_kv: bool,
    max_seq_q: int,
    max_seq_kv: int,
) -> Options:
    return make_options(
        scale=scale, causal=causal, align=align, window=window, softcap=softcap, dropout=dropout,
        normalizer=normalizer, alpha=alpha, layout=layout, deterministic=deterministic,
        batch_invariant=batch_invariant, allow_tf32=allow_tf32, workspace_limit=workspace_limit,
        packed_q=packed_q, packed_kv=packed_kv, max_seq_q=max_seq_q, max_seq_kv=max_seq_kv,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _remembered(*args: Any) -> KnownOptions:
    return _eager.known(_options(*args))


def _known_options(*args: Any) -> KnownOptions:
    """Options of an eager call; most calls of a process have those of one before."""
    try:
        return _remembered(*args)
    except TypeError:  # a list as the window, say, cannot be remembered
        return _eager.known(_options(*args))


def _four(t: Tensor, name: str, keys: int) -> Tensor:
    if not isinstance(t, Tensor):
        raise InvalidArgumentError(f"{name} is a {type(t).__name__}, not a tensor")
    if t.dim() > 4:
        raise InvalidArgumentError(f"{name} has {t.dim()} dimensions; at most 4 are possible")
    while t.dim() < 4:
        t = t.unsqueeze(0)
    return t.expand(*t.shape[:3], keys) if t.shape[3] != keys and t.shape[3] == 1 else t


def _vector(name: str, t: Tensor | None, q: Tensor) -> Tensor | None:
    if t is None or not isinstance(t, Tensor):  # check_tensors() names what is no tensor
        return t
    if t.is_complex():  # to() would leave its imaginary part out
        raise InvalidArgumentError(f"{name} is {str(t.dtype)[6:]}, must be real")
    return t.to(_kernels.side_type(q)).contiguous()


def _integers(name: str, t: Tensor | None) -> Tensor | None:
    if t is None or not isinstance(t, Tensor):
        return t
    _kernels.check_whole_numbers(name, t)
    if t.dtype in (torch.int64, torch.uint32, torch.uint64):  # their low bits are other lengths
        t = t.to(torch.int64).clamp(-(2**31), 2**31 - 1)
    return t.to(torch.int32).contiguous()


def _places(
    lengths_q: Tensor | None,
    lengths_kv: Tensor | None,
    offsets_q: Tensor | None,
    offsets_kv: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The last four of Inputs."""
    q = places(_integers("lengths_q", lengths_q), _integers("offsets_q", offsets_q))
    kv = places(_integers("lengths_kv", lengths_kv), _integers("offsets_kv", offsets_kv))
    return q[0], kv[0], q[1], kv[1]


def _spans(t: Tensor | None) -> Tensor | None:
    """As int32. Numbers beyond that are beyond every sequence, as the largest ones of int32 are."""
    if t is None or not isinstance(t, Tensor):
        return t
    _kernels.check_whole_numbers("spans", t)
    if t.dtype == torch.uint64:
        raise UnsupportedError("spans is uint64; it may be int32 or int64")
    if t.dtype in (torch.int64, torch.uint32):
        t = t.to(torch.int64).clamp(-(2**31), 2**31 - 1)
    if t.dim() > 4:
        raise InvalidArgumentError(f"spans has {t.dim()} dimensions; at most 4 are possible")
    t = t.to(torch.int32).contiguous()
    return t.reshape((1,) * (4 - t.dim()) + tuple(t.shape))


def _blocks(block_mask: Any) -> tuple[Tensor | None, Tensor | None]:
    """lists and bits, as int32; of torch's BlockMask, read at its first call."""
    if block_mask is None:
        return None, None
    if not isinstance(block_mask, Blocks):
        from ._block_mask import blocks_of  # imports torch's compiler

        block_mask = blocks_of(block_mask)
    made = []
    for name, t in zip(("block_mask.lists", "block_mask.bits"), parts_of(block_mask), strict=True):
        if not isinstance(t, Tensor):
            raise InvalidArgumentError(f"{name} is a {type(t).__name__}, not a tensor")
        _kernels.check_whole_numbers(name, t)
        if t.dtype != torch.int32:
            raise InvalidArgumentError(f"{name} is {t.dtype}, not torch.int32")
        made.append(t.contiguous())
    return made[0], made[1]


def _index(t: Tensor | None) -> Tensor | None:
    """As a type of bias_index, [batch, Sq, Sk]. What is no entry of a table stays none."""
    if t is None or not isinstance(t, Tensor):
        return t
    _kernels.check_whole_numbers("bias_index", t)
    if t.dtype == torch.uint64:
        raise UnsupportedError("bias_index is uint64; it may be uint8, uint16, int32 or int64")
    if t.dtype not in (torch.uint8, torch.uint16, torch.int32):
        t = t.to(torch.int64).clamp(-1, 2**31 - 1).to(torch.int32)
    t = t.contiguous()
    return t.unsqueeze(0) if t.dim() == 2 else t


def _number(name: str, value: Any) -> float:
    """A number of the options, which may be a tensor of one element without a gradient."""
    _ops.refuse_tangents(((name, value),))
    return number(name, value)


def _check_meta(inputs: Inputs, options: Options) -> None:
    """Holds sizes, types and devices against each other, as a plan of other tensors does."""
    _kernels._check(inputs, {})
    layouts = {
        name: _kernels._layout(t)
        for name, t in zip(Inputs._fields, inputs, strict=True)
        if t is not None
    }
    make_problem(layouts, options, FORWARD, 0)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    spans: Tensor | None = None,
    block_mask: Any = None,
    bias_table: Tensor | None = None,
    bias_index: Tensor | None = None,
    dist_bias: Tensor | None = None,
    slope: Tensor | None = None,
    tau: Tensor | None = None,
    sink: Tensor | None = None,
    lengths_q: Tensor | None = None,
    lengths_kv: Tensor | None = None,
    offsets_q: Tensor | None = None,
    offsets_kv: Tensor | None = None,
    max_seq_q: int = 0,
    max_seq_kv: int = 0,
    scale: float | None = None,
    causal: bool | Diagonal = False,
    align: Diagonal = "top_left",
    window: Window | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    normalizer: Normalizer = "softmax",
    alpha: float = 1.5,
    layout: Order = "bhsd",
    deterministic: bool | None = None,
    batch_invariant: bool = False,
    allow_tf32: bool | None = None,
    workspace_limit: int = 0,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    return_max_logit: bool = False,
) -> Any:
    """Attention on torch tensors; all inputs with a gradient take part in autograd.

    Args:
        q: [B, Hq, Sq, D], f32, f16 or bf16, on the CPU or a CUDA device, any strides; or f64, on
            the CPU. What is said to be f32 is f64 then.
        k: [B, Hk, Sk, D], of q's type. Hq is a multiple of Hk.
        v: [B, Hk, Sk, Dv], of q's type.
        bias: [B or a divisor of it, Hq, Hk or 1, Sq or 1, Sk or 1], fewer dimensions too; f32, f16
            or bf16; added to the scores unscaled. Entry b reads entry b / (B / bias's own).
            Differentiable. Give it unexpanded: its gradient is then summed inside the kernel.
        keep: bool, as bias; False hides a key.
        spans: [B or a divisor of it, Hq, Hk or 1, Sk, 2 or 4], fewer dimensions too, whole numbers:
            begin and end of the rows that see a key, one interval or two; it hides the key from
            other rows. Entry b reads entry b / (B / spans' own). tandem_attention.masks makes them.
        block_mask: which blocks of rows and keys are visible, beside everything but keep: torch's
            BlockMask of blocks of a multiple of 64, or tandem_attention.masks.Blocks. A BlockMask
            is read at its first call, its mask_mod for the pairs of partial blocks alone.
        bias_table: [Hq, N], with bias_index, in place of bias: the biases that a head has.
            Differentiable; the gradient has the same bits in every run.
        bias_index: [B or a divisor, Sq, Sk] or [Sq, Sk], whole numbers: the entry of
            bias_table that each pair reads, in all heads. A pair whose index is no entry
            has no bias. uint8, uint16 and int32 are read as they are; others are converted in each
            call.
        dist_bias: [Hq, W], added at distance t = i + off - j, 0 <= t < W. Differentiable.
        slope: [Hq] or [B or a divisor of it, Hq], ALiBi slopes. Differentiable.
        tau: [Hq], of elastic softmax. Differentiable.
        sink: [Hq] or [B or a divisor of it, Hq], one more score in each row's sum. Differentiable.
        lengths_q, lengths_kv: [B], whole numbers: rows of each batch entry that are there.
        offsets_q, offsets_kv: [B + 1], cumulative: q (k, v) is packed, [Hq, total, D]. Beside
            lengths [B]: entry b has the rows from offsets[b] to offsets[b] + lengths[b], in any
            order and with gaps, which are neither used nor written: in o and in gradients they
            hold any values.
        max_seq_q, max_seq_kv: the longest packed sequence; 0 means the total number of rows.
        scale: 1 / sqrt(D) by default.
        causal: True, "top_left" or "bottom_right".
        align: where the diagonal is, for windows and distances.
        window: (left, right); -1 or None is unbounded.
        softcap: c > 0: c tanh(s / c) in place of the scaled product.
        dropout: 0 <= p < 1.
        normalizer: "softmax", "elastic" or "entmax".
        alpha: of entmax.
        layout: "bhsd" or "bshd" (packed: [total, H, D]).
        deterministic: by default torch.are_deterministic_algorithms_enabled().
        batch_invariant: the bits of a row do not depend on the batch, on padding, packing, how many
            heads there are, or where a prefill is cut. Includes deterministic. With softmax, masks
            by position, softcap, slope, sink and lengths.
        allow_tf32: by default torch.backends.cuda.matmul.allow_tf32, or its fp32_precision.
        workspace_limit: most bytes of workspace of a kernel call; 0: the planner's choice.
        seed, offset: of dropout, whole numbers; by default drawn from torch's CPU generator, which
            torch.manual_seed() sets and checkpointing restores.
        return_lse: also return lse.
        return_max_logit: also return the largest score of a visible key of each head, before any
            sink, f32 [B, Hq], without a gradient; minus infinity where no row sees a key. With
            softmax alone, and not under torch.func.

    Returns:
        o, [B, Hq, Sq, Dv] in q's order of dimensions in memory; with return_lse or
        return_max_logit a tuple of it and those, in this order; lse is f32 [B, Hq, Sq].
        With softmax lse is differentiable as o is; a loss that depends on the lse of another
        normalizer is refused in the backward.

    Raises:
        TandemError: or a subclass, with the library's sentence.
    """
    try:
        kind = q.device.type
        if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            q, k, v = (_kernels.autocast(t, dtype) for t in (q, k, v))
    except AttributeError:
        _kernels.check_tensors(Inputs(q, k, v))
        raise
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if allow_tf32 is None:
        allow_tf32 = kind == "cuda" and q.dtype == torch.float32 and _kernels.matmul_tf32()
    # As numbers, since a tensor as part of a key would count by its identity, not its value.
    if scale is not None and type(scale) is not float:
        scale = _number("scale", scale)
    if type(alpha) is not float:
        alpha = _number("alpha", alpha)
    if type(softcap) is not float:
        softcap = _number("softcap", softcap)
    if type(dropout) is not float:
        dropout = _number("dropout", dropout)
    if seed is not None:
        seed = whole_number("seed", seed)
    if type(offset) is not int:
        offset = whole_number("offset", offset)
    compiling = torch.compiler.is_compiling()
    made: Any = (_options if compiling else _known_options)(
        scale, causal, align, window, softcap, dropout, normalizer, alpha, layout, deterministic,
        batch_invariant, allow_tf32, workspace_limit, offsets_q is not None,
        offsets_kv is not None, max_seq_q, max_seq_kv,
    )  # fmt: skip
    options: Options = made if compiling else made.options
    if bias is not None or keep is not None:
        if not isinstance(k, Tensor):
            _kernels.check_tensors(Inputs(q, k, v))
        if k.dim() < 3:
            raise InvalidArgumentError(f"k has {k.dim()} dimensions, not 4")
        keys = k.shape[-3 if options.bshd else -2]
        if options.packed_kv and options.seq_kv:
            keys = options.seq_kv
        bias = None if bias is None else _four(bias, "bias", keys)
        keep = None if keep is None else _four(keep, "keep", keys)
    plain = (
        spans is None and block_mask is None and bias_table is None and bias_index is None
        and dist_bias is None and slope is None and tau is None and sink is None
        and lengths_q is None and lengths_kv is None and offsets_q is None and offsets_kv is None
        and not return_max_logit and forward_ad._current_level < 0
    )  # fmt: skip
    if plain and not compiling and _eager.serving:
        served = _eager.attention(q, k, v, bias, keep, made, seed, offset, return_lse)
        if served is not None:
            return served
    inputs = Inputs(
        q, k, v, bias, keep, _spans(spans), *_blocks(block_mask),
        _vector("bias_table", bias_table, q), _index(bias_index),
        _vector("dist_bias", dist_bias, q), _vector("slope", slope, q),
        _vector("tau", tau, q), _vector("sink", sink, q),
        *_places(lengths_q, lengths_kv, offsets_q, offsets_kv),
    )  # fmt: skip
    optional = _kernels.has_optional(inputs)
    if forward_ad._current_level >= 0:
        _kernels.check_tensors(inputs)
        _ops.refuse_tangents(zip(Inputs._fields, inputs, strict=True))
    if return_max_logit:
        _kernels.check_tensors(inputs)
        if kind == "meta" and not compiling:
            _check_meta(inputs, options)
        if torch._C._are_functorch_transforms_active():
            raise UnsupportedError("return_max_logit under torch.func is not in this version")
        every: Any = _ops.attention_max_logit
        o, lse, largest = every(*inputs, _eager.rng(options, seed, offset), *options)
        return (o, lse, largest) if return_lse else (o, largest)
    if compiling or not _eager.is_plain(inputs, optional):
        _kernels.check_tensors(inputs)
        if kind == "meta" and not compiling:
            _check_meta(inputs, options)
        op: Any = _ops.attention
        args: tuple[Any, ...]
        if compiling and plain and not options.dropout and not _plain_ops.is_exporting():
            op, args = _plain_ops.attention, _plain_ops.narrow(inputs, options)
        else:
            args = *inputs, _eager.rng(options, seed, offset), *options
        if not torch._C._are_functorch_transforms_active():
            o, lse = op(*args)
        elif compiling:
            o, lse = _ops.in_traced_transform(op, args)
        else:
            o, lse = _Transformed.apply(*args)
    else:
        if seed is None:
            seed = int(_eager.random_seed()) if options.dropout else 0
        seed, offset = seed % 2**64, offset % 2**32
        if torch.is_grad_enabled() and (
            q.requires_grad or k.requires_grad or v.requires_grad
            or (optional and any(t is not None and t.requires_grad for t in inputs[3:]))
        ):  # fmt: skip
            o, lse = _eager.AttentionInPython.apply(*inputs, seed, offset, options)
        else:
            o, lse = _kernels.forward(inputs, options, seed, offset)
    return (o, lse) if return_lse else o
