# SPDX-License-Identifier: MIT OR Apache-2.0
"""``tandem::plain_attention`` and ``tandem::plain_attention_backward``.

They are what a compiled graph has of a call with q, k, v, bias and keep alone, without dropout.
They do what ``tandem::attention`` does (_ops.py), in a third of its arguments: a graph pays for
each of them at each call. Options that may depend on shapes are numbers; the others are a text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._options import Options
from .._problem import GRADIENTS
from . import _kernels, _ops
from ._kernels import Inputs
from ._namespace import NAMESPACE, OPS

_PLAIN = 5  # q, k, v, bias, keep
_NUMBERS = ("scale", "window_left", "window_right")
_WORDS = tuple(name for name in Options._fields if name not in _NUMBERS)
_DEFAULTS = Options()
_TAIL = "Tensor? bias, Tensor? keep, float? scale, SymInt left, SymInt right, str options)"
_NOTHING = (None,) * (len(Inputs._fields) - _PLAIN + 1)  # the other inputs and rng

_read: dict[str, dict[str, Any]] = {"": {}}


def is_exporting() -> bool:
    """Whether torch.export asks: its program is kept, and tandem::attention stays as it is."""
    # Dynamo of torch 2.7 to 2.11 takes torch.compiler.is_exporting() for true in all that it
    # compiles, so the flag behind it is read. torch 2.6 has none.
    return bool(getattr(torch.compiler, "_is_exporting_flag", True))


def narrow(inputs: Inputs, options: Options) -> tuple[Any, ...]:
    """The arguments of plain_attention."""
    words = [
        f"{name}={getattr(options, name)}"
        for name in _WORDS
        if getattr(options, name) != getattr(_DEFAULTS, name)
    ]
    numbers = options.scale, options.window_left, options.window_right
    return *inputs[:_PLAIN], *numbers, " ".join(words)


def options_of(scale: float | None, left: int, right: int, text: str) -> Options:
    words = _read.get(text)
    if words is None:
        words = {}
        for word in text.split(" "):
            name, value = word.split("=")
            kind = type(getattr(_DEFAULTS, name))
            words[name] = value == "True" if kind is bool else kind(value)
        _read[text] = words
    return Options(scale=scale, window_left=left, window_right=right, **words)


def _wide(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments from q on, as those of tandem::attention."""
    return *args[:_PLAIN], *_NOTHING, *options_of(*args[_PLAIN:])


def _wide_dims(dims: tuple[Any, ...]) -> tuple[Any, ...]:
    return *dims[:_PLAIN], *_NOTHING, *(None,) * len(Options._fields)


@torch.library.custom_op(
    f"{NAMESPACE}::plain_attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_TAIL} -> (Tensor, Tensor)",
)
def attention(*args: Any) -> tuple[Tensor, Tensor]:
    """o and lse."""
    options = _kernels.intern(options_of(*args[_PLAIN:]))
    return _kernels.forward(Inputs(*args[:_PLAIN]), options, 0, 0)


@torch.library.custom_op(
    f"{NAMESPACE}::plain_attention_backward",
    mutates_args=(),
    schema="(Tensor d_o, Tensor o, Tensor lse, SymInt gradients, Tensor? d_lse, "
    f"Tensor q, Tensor k, Tensor v, {_TAIL} -> (Tensor, Tensor, Tensor, Tensor)",
)
def attention_backward(
    d_o: Tensor, o: Tensor, lse: Tensor, gradients: int, d_lse: Tensor | None, *args: Any
) -> Any:
    """d_q, d_k, d_v and d_bias; empty tensors where they are not asked for."""
    options = _kernels.intern(options_of(*args[_PLAIN:]))
    inputs = Inputs(*args[:_PLAIN])
    made: Any = _kernels.backward(d_o, inputs, o, lse, d_lse, options, gradients, 0, 0)
    return _ops.with_empty(inputs.q, made[:4])


attention.register_fake(lambda *args: _ops.fake_attention(*_wide(args)))
attention_backward.register_fake(
    lambda *args: _ops.fake_attention_backward(*args[:5], *_wide(args[5:]))[:4]
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:_PLAIN], *output)
    ctx.options = inputs[_PLAIN:]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
    *tensors, o, lse = ctx.saved_tensors
    results: list[Tensor | None] = [None] * (_PLAIN + len(ctx.options))
    bits = _ops.gradient_bits(ctx.needs_input_grad[:_PLAIN])
    outer = _ops.outer_gradients(o, d_o, d_lse) if bits else None
    if outer is None:
        return tuple(results)
    made = attention_backward(outer[0], o, lse, bits, outer[1], *tensors, *ctx.options)
    for n, bit in enumerate(tuple(GRADIENTS.values())[:4]):
        if bits & bit:
            results[n] = made[n]
    return tuple(results)


attention.register_autograd(_backward, setup_context=_setup_context)
attention_backward.register_autograd(_ops.refuse_second_derivatives)


@attention.register_vmap
def _(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    return _ops.vmap_attention(info, _wide_dims(dims), *_wide(args))


@attention_backward.register_vmap
def _(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    wide_dims = (*dims[:5], *_wide_dims(dims[5:]))
    made, out = _ops.vmap_attention_backward(info, wide_dims, *args[:5], *_wide(args[5:]))
    return made[:4], out[:4]


def _forward_flops(*args: Any, out_shape: Any = None) -> int:
    return _ops.forward_flops(*_wide(args))


def _backward_flops(*args: Any, out_shape: Any = None) -> int:
    return _ops.backward_flops(*args[:5], *_wide(args[5:]))


_ops.counter.register_flop_formula(OPS.plain_attention)(_forward_flops)
_ops.counter.register_flop_formula(OPS.plain_attention_backward)(_backward_flops)
