# SPDX-License-Identifier: MIT OR Apache-2.0
"""merge(): the torch function, and the custom operations ``tandem::merge`` and its backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _plans
from .._core import Plan
from .._devices import get_device
from .._errors import InvalidArgumentError, UnsupportedError
from .._options import Order, is_bshd
from .._problem import BUFFERS, make_merge
from . import _kernels, _ops
from ._namespace import NAMESPACE


def _layouts(tensors: dict[str, Tensor]) -> dict[str, Any]:
    first = tensors["part_o"]
    for name, t in tensors.items():
        if t.device != first.device:
            raise InvalidArgumentError(f"{name} lies on {t.device}, part_o on {first.device}")
        if t.layout is not torch.strided:
            raise UnsupportedError(f"{name} is a tensor of layout {t.layout}, not strided")
    return {name: _kernels._layout(t) for name, t in tensors.items()}


def _execute(tensors: dict[str, Tensor], bshd: bool, into: bool = False) -> None:
    """One call on tensors by the C API's names; those of lse are contiguous."""
    first = tensors["part_o"]
    threads = torch.get_num_threads() if first.device.type == "cpu" else None
    key = (
        "merge", bshd, into, threads,
        tuple([(n, t.device, t.dtype, t.shape, t.stride()) for n, t in tensors.items()]),
    )  # fmt: skip
    plan: Plan | None = _plans.find(key)
    if plan is None:
        problem = make_merge(_layouts(tensors), bshd, into)
        device = get_device(_kernels._device_name(first, "part_o"), threads)
        plan = _plans.add(key, Plan(device, problem))
    addresses = tuple([tensors[n].data_ptr() if n in tensors else 0 for n in BUFFERS])
    plan.execute(_kernels._stream(first, plan), addresses, 0, 0, 0)


def merge_into(o: Tensor, lse: Tensor, part_o: Tensor, part_lse: Tensor) -> None:
    """o and lse of some keys become those of these and the part's keys, in place.

    Args:
        o, part_o: [B, Hq, Sq, Dv], each of a type and of strides of its own.
        lse, part_lse: f32 [B, Hq, Sq].
    """
    whole = lse.contiguous()
    tensors = {"part_o": part_o[None], "part_lse": part_lse[None].contiguous(), "o": o}
    _execute({**tensors, "lse": whole}, False, into=True)
    if whole is not lse:
        lse.copy_(whole)


def _outputs(part_o: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.empty(part_lse.shape[1:], dtype=part_lse.dtype, device=part_lse.device)
    return torch.empty_like(part_o.select(0, 0)), lse


@torch.library.custom_op(f"{NAMESPACE}::merge", mutates_args=())
def merge_op(part_o: Tensor, part_lse: Tensor, bshd: bool) -> tuple[Tensor, Tensor]:
    """o and lse; see tandem_attention.torch.merge."""
    part_lse = part_lse.contiguous()
    o, lse = _outputs(part_o, part_lse)
    _execute({"part_o": part_o, "part_lse": part_lse, "o": o, "lse": lse}, bshd)
    return o, lse


@merge_op.register_fake
def _(part_o: Tensor, part_lse: Tensor, bshd: bool) -> tuple[Tensor, Tensor]:
    return _outputs(part_o, part_lse)


def _gradients(part_o: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    d_part_lse = torch.empty(part_lse.shape, dtype=part_lse.dtype, device=part_lse.device)
    # Contiguous, as parts of an output may not interleave.
    return torch.empty(part_o.shape, dtype=part_o.dtype, device=part_o.device), d_part_lse


@torch.library.custom_op(f"{NAMESPACE}::merge_backward", mutates_args=())
def merge_backward_op(
    d_o: Tensor, d_lse: Tensor | None, part_o: Tensor, part_lse: Tensor, bshd: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of part_o and part_lse."""
    part_lse = part_lse.contiguous()
    d_part_o, d_part_lse = _gradients(part_o, part_lse)
    tensors = {"part_o": part_o, "part_lse": part_lse, "d_o": d_o}
    if d_lse is not None:
        tensors["d_lse"] = d_lse.contiguous()
    _execute({**tensors, "d_part_o": d_part_o, "d_part_lse": d_part_lse}, bshd)
    return d_part_o, d_part_lse


@merge_backward_op.register_fake
def _(
    d_o: Tensor, d_lse: Tensor | None, part_o: Tensor, part_lse: Tensor, bshd: bool
) -> tuple[Tensor, Tensor]:
    return _gradients(part_o, part_lse)


# ---- autograd ------------------------------------------------------------------------------------


def _refuse_second_derivatives(*_: Any) -> Any:
    raise UnsupportedError("merge has no second derivatives in this version")


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.bshd = inputs[2]
    ctx.set_materialize_grads(False)


def _by(op: Any, ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
    part_o, part_lse = ctx.saved_tensors
    if d_o is None and d_lse is None:
        return None, None, None
    _ops.refuse_tangents((("d_o", d_o), ("d_lse", d_lse)), "merge")
    d_o = torch.zeros_like(part_o.select(0, 0)) if d_o is None else _ops.dense_rows(d_o)
    made = op(d_o, d_lse, part_o, part_lse, ctx.bshd)
    return (*(t if need else None for t, need in zip(made, ctx.needs_input_grad[:2])), None)  # noqa: B905 two of both


def _backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
    return _by(merge_backward_op, ctx, d_o, d_lse)


merge_op.register_autograd(_backward, setup_context=_setup)
merge_backward_op.register_autograd(_refuse_second_derivatives)


@merge_op.register_vmap
def _(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    return _ops._one_by_one(merge_op, info.batch_size, dims, args)


@merge_backward_op.register_vmap
def _(info: Any, dims: tuple[Any, ...], *args: Any) -> Any:
    return _ops._one_by_one(merge_backward_op, info.batch_size, dims, args)


class _TransformedBackward(torch.autograd.Function):
    """The backward under torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return merge_backward_op(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        _refuse_second_derivatives()

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _ops.refuse_forward_mode("merge")


class _Transformed(torch.autograd.Function):
    """Under torch.func, which does not enter the formula of a custom operation."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return merge_op(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _setup(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        return _by(_TransformedBackward.apply, ctx, d_o, d_lse)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _ops.refuse_forward_mode("merge")


def merge(part_o: Tensor, part_lse: Tensor, *, layout: Order = "bhsd") -> tuple[Tensor, Tensor]:
    """o and lse of disjoint parts of the keys become those of all these keys; differentiable.

    ``lse_i = ln sum_n exp(lse_ni)``, ``o_i = sum_n exp(lse_ni - lse_i) o_ni``. What a part holds in
    rows of which it saw no key, those whose lse is minus infinity, has no effect, and may be NaN. A
    row that one part alone saw has the bits of this part.

    Args:
        part_o: [parts, B, Hq, Sq, Dv], f32, f16 or bf16, on the CPU or a CUDA device, any strides;
            or f64, on the CPU. torch.stack() makes it of attention()'s results.
        part_lse: f32 [parts, B, Hq, Sq]; f64 beside a part_o of f64.
        layout: "bhsd", or "bshd" for [parts, B, Sq, Hq, Dv].

    Returns:
        o, [B, Hq, Sq, Dv] of part_o's type in layout's order, and lse, f32 [B, Hq, Sq].
        A loss may depend on both.

    Raises:
        TandemError: or a subclass, with the library's sentence.
    """
    bshd = is_bshd(layout)
    for name, t in (("part_o", part_o), ("part_lse", part_lse)):
        if not isinstance(t, Tensor):
            raise InvalidArgumentError(f"{name} is a {type(t).__name__}, not a tensor")
    if forward_ad._current_level >= 0:
        _ops.refuse_tangents((("part_o", part_o), ("part_lse", part_lse)), "merge")
    op: Any = merge_op
    compiling = torch.compiler.is_compiling()
    if torch._C._are_functorch_transforms_active():
        if compiling:
            o, lse = _ops.in_traced_transform(op, (part_o, part_lse, bshd), "merge")
            return o, lse
        op = _Transformed.apply
    elif not compiling:  # of a sentence before one of torch's about sizes
        whole = part_lse.contiguous()
        make_merge(_layouts({"part_o": part_o, "part_lse": whole}), bshd, False)
    o, lse = op(part_o, part_lse, bshd)
    return o, lse
