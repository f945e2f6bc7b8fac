# SPDX-License-Identifier: MIT OR Apache-2.0
"""One call of the library on torch tensors: plan, outputs, workspace, stream. No autograd here."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _plans
from .._core import Plan
from .._devices import get_device
from .._errors import InvalidArgumentError, UnsupportedError
from .._problem import BACKWARD, FORWARD, GRADIENTS, INPUTS, Layout, Options, make_problem, sizes_of

_BITS = tuple(GRADIENTS.values())


class Inputs(NamedTuple):
    """The tensors that a forward reads, by the C API's names."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    keep: Tensor | None = None
    dist_bias: Tensor | None = None
    slope: Tensor | None = None
    tau: Tensor | None = None
    sink: Tensor | None = None
    lengths_q: Tensor | None = None
    lengths_kv: Tensor | None = None


_NAMES = Inputs._fields
assert _NAMES == INPUTS


def _layout(t: Tensor) -> Layout:
    return Layout(tuple(t.shape), tuple(t.stride()), str(t.dtype)[6:])


def _device_name(t: Tensor) -> str:
    kind = t.device.type
    if kind == "cpu":
        return "cpu"
    if kind == "cuda":
        return f"cuda:{t.device.index}"
    raise UnsupportedError(f"q is a tensor on '{t.device}'; CPU and CUDA tensors are taken")


def check_tensors(inputs: Inputs) -> None:
    """Says which input is no tensor."""
    for name, t in zip(_NAMES, inputs, strict=True):
        if t is not None and not isinstance(t, Tensor):
            raise InvalidArgumentError(f"{name} is a {type(t).__name__}, not a tensor")


def _check(inputs: Inputs, more: dict[str, Tensor]) -> None:
    check_tensors(inputs)
    for name, t in (*zip(_NAMES, inputs, strict=True), *more.items()):
        if t is None:
            continue
        if t.device != inputs.q.device:
            raise InvalidArgumentError(f"{name} lies on {t.device}, q on {inputs.q.device}")
        if t.layout is not torch.strided:
            raise UnsupportedError(f"{name} is a tensor of layout {t.layout}, not strided")


def ordered_empty(like: Tensor, width: int) -> Tensor:
    """A new tensor of like's shape and order of dimensions, dense, its last size replaced."""
    if width == like.shape[-1] and like.is_contiguous():
        return torch.empty_like(like)
    if like.dim() == 4 and like.stride(1) < like.stride(2):
        b, m, n, _ = like.shape
        return like.new_empty((b, n, m, width)).transpose(1, 2)
    if like.dim() == 3 and like.stride(0) < like.stride(1):
        m, n, _ = like.shape
        return like.new_empty((n, m, width)).transpose(0, 1)
    return like.new_empty((*like.shape[:-1], width))


def lse_shape(q: Tensor, options: Options, lengths_q: Tensor | None) -> tuple[int, ...]:
    """[B, Hq, Sq], without a look at the other inputs."""
    head, row = (q.dim() - 2, q.dim() - 3) if options.bshd else (q.dim() - 3, q.dim() - 2)
    if options.packed_q:
        assert lengths_q is not None
        return lengths_q.shape[0] - 1, q.shape[head], options.seq_q or q.shape[row]
    return q.shape[0], q.shape[head], q.shape[row]


class Call:
    """A plan with what every call of it needs. Kept in _plans, and nowhere else: what is dropped
    there may be destroyed."""

    __slots__ = ("alignment", "lse", "plan", "serial", "workspace")

    def __init__(self, plan: Plan, lse: tuple[int, ...] = ()) -> None:
        self.plan = plan
        self.workspace = plan.workspace_size
        self.alignment = plan.workspace_alignment
        self.lse = lse
        self.serial = next(_serials)  # names the call in the key of its backward


_serials = itertools.count(1)


def _stream(q: Tensor, plan: Plan) -> int:
    if not q.is_cuda:
        return 0
    if torch.cuda.is_current_stream_capturing():
        _plans.keep_for_ever(plan)
    return int(torch._C._cuda_getCurrentRawStream(q.device.index))


def _workspace(call: Call, q: Tensor) -> tuple[Tensor | None, int]:
    """From the tensors' own allocator, for the current stream."""
    size = call.workspace
    if size == 0:
        return None, 0
    space = torch.empty(size, dtype=torch.uint8, device=q.device)
    address = space.data_ptr()
    if address % call.alignment:
        space = torch.empty(size + call.alignment, dtype=torch.uint8, device=q.device)
        address = -(-space.data_ptr() // call.alignment) * call.alignment
    return space, address


def _pointer(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


def _key_of(inputs: Inputs, options: Options, gradients: int) -> tuple[Any, ...]:
    q, k, v = inputs.q, inputs.k, inputs.v
    return (
        gradients, options, q.device, q.dtype, q.shape, q.stride(),
        k.shape, k.stride(), k.dtype, k.device, v.shape, v.stride(), v.dtype, v.device,
        *[None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in inputs[3:]],
    )  # fmt: skip


def _plan(
    key: object,
    inputs: Inputs,
    more: dict[str, Tensor],
    options: Options,
    direction: int,
    gradients: int,
    lse: tuple[int, ...] = (),
) -> Call:
    """A call that none was like; checks all that the key then stands for."""
    _check(inputs, more)
    layouts = {
        name: _layout(t)
        for name, t in (*zip(_NAMES, inputs, strict=True), *more.items())
        if t is not None
    }
    problem, _ = make_problem(layouts, options, direction, gradients)
    call: Call = _plans.add(key, Call(Plan(get_device(_device_name(inputs.q)), problem), lse))
    return call


def forward(inputs: Inputs, options: Options, seed: int, offset: int) -> tuple[Tensor, Tensor, int]:
    """o in q's order of dimensions, lse, f32 [B, Hq, Sq], and a number for backward()."""
    q, k, v = inputs.q, inputs.k, inputs.v
    key = _key_of(inputs, options, 0)
    call: Call | None = _plans.find(key)
    if call is None:
        _check(inputs, {})
        sizes_of(
            {n: _layout(t) for n, t in zip(_NAMES, inputs, strict=True) if t is not None}, options
        )
        shape = lse_shape(q, options, inputs.lengths_q)
    else:
        shape = call.lse
    o = ordered_empty(q, v.shape[-1])
    lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    if call is None:
        call = _plan(key, inputs, {"o": o, "lse": lse}, options, FORWARD, 0, shape)
    _space, address = _workspace(call, q)  # the name keeps it until the work is queued
    plan = call.plan
    plan.execute(
        _stream(q, plan),
        (
            q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(), 0, 0, 0, 0,
            _pointer(inputs.bias), _pointer(inputs.keep), _pointer(inputs.dist_bias),
            _pointer(inputs.slope), _pointer(inputs.tau), _pointer(inputs.sink),
            _pointer(inputs.lengths_q), _pointer(inputs.lengths_kv), 0, 0, 0, 0, 0,
        ),
        address, call.workspace, seed, offset,
    )  # fmt: skip
    return o, lse, call.serial


def new_gradients(inputs: Inputs, gradients: int) -> list[Tensor | None]:
    """A tensor for each bit of gradients, in the order of GRADIENTS; None for the others."""
    sources = (inputs.q, inputs.k, inputs.v, inputs.bias, inputs.dist_bias, inputs.slope,
               inputs.tau, inputs.sink)  # fmt: skip
    made: list[Tensor | None] = []
    for n, (bit, source) in enumerate(zip(_BITS, sources, strict=True)):
        if not gradients & bit or source is None:
            made.append(None)
        elif n < 3:
            made.append(ordered_empty(source, source.shape[-1]))
        else:
            made.append(torch.empty(source.shape, dtype=source.dtype, device=source.device))
    return made


def backward(
    d_o: Tensor,
    inputs: Inputs,
    o: Tensor,
    lse: Tensor,
    options: Options,
    gradients: int,
    seed: int,
    offset: int,
    serial: int = 0,
) -> list[Tensor | None]:
    """The gradients whose bits are set, in the order of GRADIENTS; None for the others.

    serial is what forward() gave with o and lse of these very inputs; 0: they are of another
    source.
    """
    q = inputs.q
    made = new_gradients(inputs, gradients)
    key: tuple[Any, ...] = (d_o.shape, d_o.stride(), d_o.dtype, d_o.device, gradients, serial)
    if not serial:
        key += tuple((t.shape, t.stride(), t.dtype, t.device) for t in (o, lse))
        key += _key_of(inputs, options, gradients)
    call: Call | None = _plans.find(key)
    if call is None:
        more = {"d_o": d_o, "o": o, "lse": lse}
        for name, t in zip(GRADIENTS, made, strict=True):
            if t is not None:
                more[f"d_{name}"] = t
        call = _plan(key, inputs, more, options, BACKWARD, gradients)
    _space, address = _workspace(call, q)
    d_q, d_k, d_v, d_bias, d_dist, d_slope, d_tau, d_sink = made
    plan = call.plan
    plan.execute(
        _stream(q, plan),
        (
            q.data_ptr(), inputs.k.data_ptr(), inputs.v.data_ptr(), o.data_ptr(), lse.data_ptr(),
            d_o.data_ptr(), _pointer(d_q), _pointer(d_k), _pointer(d_v), _pointer(inputs.bias),
            _pointer(inputs.keep), _pointer(inputs.dist_bias), _pointer(inputs.slope),
            _pointer(inputs.tau), _pointer(inputs.sink), _pointer(inputs.lengths_q),
            _pointer(inputs.lengths_kv), _pointer(d_bias), _pointer(d_dist), _pointer(d_slope),
            _pointer(d_tau), _pointer(d_sink),
        ),
        address, call.workspace, seed, offset,
    )  # fmt: skip
    return made


def _wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)


_plans.wait_for_devices.append(_wait)
