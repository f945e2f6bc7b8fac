# SPDX-License-Identifier: MIT OR Apache-2.0
"""The custom operations ``tandem::attention`` and ``tandem::attention_backward``.

They are what torch.compile, torch.export and torch.func see. Options travel as plain numbers.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Iterable
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._errors import InvalidArgumentError, UnsupportedError
from .._options import Options
from .._problem import GRADIENTS
from . import _kernels
from ._kernels import Inputs
from ._namespace import NAMESPACE, OPS

_FIELDS = len(Options._fields)
_TENSORS = len(Inputs._fields)


def seed_of(rng: Tensor | None) -> tuple[int, int]:
    if rng is None:
        return 0, 0
    seed, offset = rng.tolist()
    return seed % 2**64, offset % 2**32


_SCHEMA_WORDS: dict[Any, str] = {
    Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", float | None: "float?",
    int: "SymInt", bool: "bool",
}  # fmt: skip


def _schema(before: str, results: int) -> str:
    """An operation that takes before, the fields of Inputs, rng and the fields of Options."""
    types = {**get_type_hints(Inputs), "rng": Tensor | None, **get_type_hints(Options)}
    arguments = ", ".join(f"{_SCHEMA_WORDS[kind]} {name}" for name, kind in types.items())
    return f"({before}{arguments}) -> ({', '.join(['Tensor'] * results)})"


def split(args: tuple[Any, ...]) -> tuple[Inputs, Tensor | None, Options]:
    """The arguments of an operation from q on."""
    return Inputs(*args[:_TENSORS]), args[_TENSORS], Options(*args[_TENSORS + 1 :])


@torch.library.custom_op(f"{NAMESPACE}::attention", mutates_args=(), schema=_schema("", 2))
def attention(*args: Any) -> tuple[Tensor, Tensor]:
    """o and lse; see tandem_attention.torch.attention."""
    inputs, rng, options = split(args)
    return _kernels.forward(inputs, _kernels.intern(options), *seed_of(rng))


@attention.register_fake
def fake_attention(*args: Any) -> tuple[Tensor, Tensor]:
    inputs, _, options = split(args)
    q = inputs.q
    o = _kernels.ordered_empty(q, inputs.v.shape[-1])
    shape = _kernels.lse_shape(inputs, options)
    return o, q.new_empty(shape, dtype=_kernels.side_type(q))


@torch.library.custom_op(
    f"{NAMESPACE}::attention_max_logit", mutates_args=(), schema=_schema("", 3)
)
def attention_max_logit(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """o, lse and the largest logits, f32 [B, Hq], which have no gradient."""
    inputs, rng, options = split(args)
    try:
        shape = _kernels.lse_shape(inputs, options)[:2]
        largest = inputs.q.new_full(shape, -math.inf, dtype=torch.float32)
    except (IndexError, RuntimeError):
        _kernels.check_sizes(inputs, options)
        raise
    made = _kernels.forward(inputs, _kernels.intern(options), *seed_of(rng), largest)
    return *made, largest


@attention_max_logit.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, _, options = split(args)
    q = inputs.q
    shape = _kernels.lse_shape(inputs, options)
    lse, largest = (q.new_empty(s, dtype=torch.float32) for s in (shape, shape[:2]))
    return _kernels.ordered_empty(q, inputs.v.shape[-1]), lse, largest


@torch.library.custom_op(
    f"{NAMESPACE}::attention_backward",
    mutates_args=(),
    schema=_schema(
        "Tensor d_o, Tensor o, Tensor lse, SymInt gradients, Tensor? d_lse, ", len(GRADIENTS)
    ),
)
def attention_backward(
    d_o: Tensor, o: Tensor, lse: Tensor, gradients: int, d_lse: Tensor | None, *args: Any
) -> Any:
    """The gradients in the order of GRADIENTS; empty tensors where they are not asked for."""
    inputs, rng, options = split(args)
    options = _kernels.intern(options)
    made = _kernels.backward(d_o, inputs, o, lse, d_lse, options, gradients, *seed_of(rng))
    return with_empty(inputs.q, made)


def with_empty(q: Tensor, made: list[Tensor | None]) -> Any:
    return tuple(q.new_empty(0) if t is None else t for t in made)


@attention_backward.register_fake
def fake_attention_backward(
    d_o: Tensor, o: Tensor, lse: Tensor, gradients: int, d_lse: Tensor | None, *args: Any
) -> Any:
    inputs, _, _ = split(args)
    return with_empty(inputs.q, _kernels.new_gradients(inputs, gradients))


# ---- autograd ------------------------------------------------------------------------------------


_BIT_OF = tuple(GRADIENTS.get(name, 0) for name in Inputs._fields)


def gradient_bits(needed: tuple[bool, ...]) -> int:
    """TANDEM_GRAD_* of the inputs that need a gradient, in the order of Inputs."""
    bits = 0
    for bit, need in zip(_BIT_OF, needed):  # noqa: B905 needed has options behind the inputs
        if need:
            bits |= bit
    return bits


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[: _TENSORS + 1], *output)
    ctx.options = inputs[_TENSORS + 1 :]
    ctx.set_materialize_grads(False)


def refuse_forward_mode(what: str = "attention") -> None:
    """What a derivative of forward mode ends in, where no input can be named."""
    raise UnsupportedError(f"{what} has no forward-mode derivatives in this version")


def in_traced_transform(op: Any, args: tuple[Any, ...], what: str = "attention") -> Any:
    """An operation under torch.func in what torch.compile traces: vmap has a rule for it there, and
    derivatives have none."""
    try:
        return op(*args)
    except RuntimeError:
        raise UnsupportedError(
            f"{what} has no derivatives of torch.func inside a graph of torch.compile: take them by"
            " autograd, or outside of it"
        ) from None


def refuse_tangents(named: Iterable[tuple[str, Any]], what: str = "attention") -> None:
    """Names the tensor whose derivative of forward mode would vanish.

    Raises:
        UnsupportedError: one of them has a tangent.
    """
    if forward_ad._current_level < 0:
        return
    for name, t in named:
        if not isinstance(t, Tensor):
            continue
        if forward_ad.unpack_dual(t).tangent is not None:  # type: ignore[no-untyped-call]
            raise UnsupportedError(
                f"{name} has a tangent; {what} has no forward-mode derivatives in this version"
            )


def dense_rows(d_o: Tensor) -> Tensor:
    """d_o with elements of a row side by side: an expanded one would leave the fast kernels."""
    return d_o if d_o.stride(-1) == 1 or d_o.shape[-1] == 1 else d_o.contiguous()


def outer_gradients(
    o: Tensor, d_o: Tensor | None, d_lse: Tensor | None
) -> tuple[Tensor, Tensor | None] | None:
    """The gradients with respect to o and lse as the backward takes them; None: there are none.

    Where the loss depends on lse alone, d_o is zeros. A d_lse that is None costs nothing.
    """
    if d_o is None and d_lse is None:
        return None
    refuse_tangents((("d_o", d_o), ("d_lse", d_lse)))
    d_o = torch.zeros_like(o) if d_o is None else dense_rows(d_o)
    return d_o, None if d_lse is None else d_lse.contiguous()


def gradients_by(op: Any, ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
    """The gradients of attention's arguments; op is attention_backward or what wraps it."""
    *tensors, o, lse = ctx.saved_tensors
    results: list[Tensor | None] = [None] * (_TENSORS + 1 + _FIELDS)
    bits = gradient_bits(ctx.needs_input_grad)
    outer = outer_gradients(o, d_o, d_lse) if bits else None
    if outer is None:
        return tuple(results)
    made = op(outer[0], o, lse, bits, outer[1], *tensors, *ctx.options)
    for place, bit, t in zip(_kernels.PLACES, GRADIENTS.values(), made, strict=True):
        if bits & bit:
            results[place] = t
    return tuple(results)


def refuse_second_derivatives(*_: Any) -> Any:
    """What a derivative of the gradients ends in."""
    raise UnsupportedError("attention has no second derivatives in this version")


attention_backward.register_autograd(refuse_second_derivatives)


def _backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
    return gradients_by(attention_backward, ctx, d_o, d_lse)


attention.register_autograd(_backward, setup_context=setup_context)


def _setup_max_logit(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    setup_context(ctx, inputs, (output[0], output[1]))
    ctx.mark_non_differentiable(output[2])


def _backward_max_logit(
    ctx: Any, d_o: Tensor | None, d_lse: Tensor | None, _: Tensor | None
) -> Any:
    return gradients_by(attention_backward, ctx, d_o, d_lse)


attention_max_logit.register_autograd(_backward_max_logit, setup_context=_setup_max_logit)


# ---- vmap ----------------------------------------------------------------------------------------
# The mapped dimension joins the batch. What has no batch dimension (distance bias, slopes, tau,
# sinks, packed tensors) cannot join it: where one of those inputs is mapped, one call follows the
# other.

_SHARED = ("bias_table", "dist_bias", "slope", "tau", "sink")
# May have fewer entries than B.
_GROUPED = ("bias", "keep", "spans", "blocks", "block_bits", "bias_index")
# These have no strides of their own in the C API.
_DENSE = ("spans", "blocks", "block_bits", "bias_index", "lengths_q", "lengths_kv", "lse", "d_lse")


def _folds(tensors: tuple[Any, ...], dims: tuple[int | None, ...], options: Options) -> bool:
    # In a larger batch, dropout would drop other weights of each entry.
    if options.packed_q or options.packed_kv or options.dropout:
        return False
    # Slopes and sinks of groups would have other groups.
    return all(
        d is None and (t is None or t.dim() == 1 or n == "dist_bias")
        for n, t, d in zip(Inputs._fields, tensors, dims, strict=True)
        if n in _SHARED
    )


def _fold(name: str, t: Tensor | None, dim: int | None, count: int, batch: int) -> Tensor | None:
    """[count, B, ...] as [count B, ...]; a tensor that is not mapped is repeated."""
    if t is None or name in _SHARED:
        return t
    if dim is None:
        if t.shape[0] == 1 and name in _GROUPED:
            return t
        t = t.unsqueeze(0).expand(count, *t.shape)
    else:
        t = t.movedim(dim, 0)
    if t.shape[1] == 1 and batch != 1 and name not in _GROUPED:
        t = t.expand(count, batch, *t.shape[2:])
    t = t.flatten(0, 1)
    return t.contiguous() if name in _DENSE else t


def _batch_of(q: Tensor, dim: int | None) -> int:
    return q.shape[0] if dim is None or dim != 0 else q.shape[1]


def _one_by_one(op: Any, count: int, dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    rows = []
    for n in range(count):
        rows.append(
            op(*[a if d is None else a.select(d, n) for a, d in zip(args, dims, strict=True)])
        )
    outputs = tuple(torch.stack(column) for column in zip(*rows, strict=True))
    return outputs, (0,) * len(outputs)


def vmap_attention(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    options = Options(*args[_TENSORS + 1 :])
    count, names = info.batch_size, Inputs._fields
    if options.dropout and info.randomness == "error":
        raise RuntimeError("vmap: dropout needs randomness='same' or 'different'")
    if options.dropout and info.randomness == "different" and dims[_TENSORS] is None:
        raise InvalidArgumentError(
            "vmap: randomness is 'different', and one seed gives all entries one mask:"
            " leave seed out, or say randomness='same'"
        )
    if not _folds(args[:_TENSORS], dims[:_TENSORS], options):
        return _one_by_one(attention, count, dims, args)
    batch = _batch_of(args[0], dims[0])
    tensors = [
        _fold(n, t, d, count, batch)
        for n, t, d in zip(names, args[:_TENSORS], dims[:_TENSORS], strict=True)
    ]
    o, lse = attention(*tensors, *args[_TENSORS:])
    return (o.unflatten(0, (count, batch)), lse.unflatten(0, (count, batch))), (0, 0)


attention.register_vmap(vmap_attention)


@attention_max_logit.register_vmap
def _(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    return _one_by_one(attention_max_logit, info.batch_size, dims, args)


def vmap_attention_backward(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    options = Options(*args[5 + _TENSORS + 1 :])
    count = info.batch_size
    gradients = args[3]
    shared = sum(GRADIENTS[n] for n in _SHARED)
    inputs, in_dims = args[5 : 5 + _TENSORS], dims[5 : 5 + _TENSORS]
    names = Inputs._fields
    bias, bias_dim = inputs[3], in_dims[3]
    # A gradient of what is not mapped is wanted for each mapped entry.
    bias_shared = bias is not None and bias_dim is None and gradients & GRADIENTS["bias"]
    if not _folds(inputs, in_dims, options) or gradients & shared or bias_shared:
        return _one_by_one(attention_backward, count, dims, args)
    batch = _batch_of(inputs[0], in_dims[0])
    outer = [
        _fold(n, t, d, count, batch)
        for n, t, d in zip(
            ("d_o", "o", "lse", "d_lse"), (*args[:3], args[4]), (*dims[:3], dims[4]), strict=True
        )
    ]
    tensors = [_fold(n, t, d, count, batch) for n, t, d in zip(names, inputs, in_dims, strict=True)]
    made = attention_backward(*outer[:3], gradients, outer[3], *tensors, *args[5 + _TENSORS :])
    results: list[Tensor] = []
    out_dims: list[int | None] = []
    for name, t in zip(GRADIENTS, made, strict=True):
        if gradients & GRADIENTS[name]:
            results.append(t.unflatten(0, (count, t.shape[0] // count)))
            out_dims.append(0)
        else:
            results.append(t)
            out_dims.append(None)
    return tuple(results), tuple(out_dims)


attention_backward.register_vmap(vmap_attention_backward)


# ---- torch.utils.flop_counter --------------------------------------------------------------------


def _flop_counter() -> Any:
    """The module; without the warning that importing it gives where Triton is not installed."""
    logger = logging.getLogger("torch.utils.flop_counter")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return importlib.import_module("torch.utils.flop_counter")
    finally:
        logger.setLevel(level)


def _flops(q: Any, k: Any, v: Any, args: tuple[Any, ...]) -> int:
    """2 (D + Dv) for each query row, head and key; masks count as nothing, as torch counts. Packed:
    as if each row saw max_seq_kv keys."""
    options = Options(*args[-_FIELDS:])
    rows = math.prod(q[:-1])
    keys = options.seq_kv or k[-3 if options.bshd else -2]
    return int(2 * rows * keys * (q[-1] + v[-1]))


def forward_flops(q: Any, k: Any, v: Any, *args: Any, out_shape: Any = None) -> int:
    return _flops(q, k, v, args)


def backward_flops(
    d_o: Any, o: Any, lse: Any, gradients: int, d_lse: Any, *args: Any, out_shape: Any = None
) -> int:
    q, k, v, *rest = args
    return _flops(q, k, v, tuple(rest)) * 5 // 2


counter = _flop_counter()
counter.register_flop_formula(OPS.attention)(forward_flops)
counter.register_flop_formula(OPS.attention_backward)(backward_flops)
