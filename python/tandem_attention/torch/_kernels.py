# SPDX-License-Identifier: MIT OR Apache-2.0
"""One call of the library on torch tensors: plan, outputs, workspace, stream. No autograd here."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _plans
from .._core import Plan
from .._devices import get_device
from .._errors import InvalidArgumentError, UnsupportedError
from .._options import Options
from .._problem import (
    BACKWARD,
    BUFFERS,
    FORWARD,
    GRADIENTS,
    INPUTS,
    Layout,
    make_problem,
    refuse_no_whole_numbers,
    sizes_of,
)

_BITS = tuple(GRADIENTS.values())


class Inputs(NamedTuple):
    """The tensors that a forward reads, by the C API's names."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    keep: Tensor | None = None
    spans: Tensor | None = None
    blocks: Tensor | None = None
    block_bits: Tensor | None = None
    bias_table: Tensor | None = None
    bias_index: Tensor | None = None
    dist_bias: Tensor | None = None
    slope: Tensor | None = None
    tau: Tensor | None = None
    sink: Tensor | None = None
    lengths_q: Tensor | None = None
    lengths_kv: Tensor | None = None
    offsets_q: Tensor | None = None  # beside lengths alone
    offsets_kv: Tensor | None = None


_NAMES = Inputs._fields
assert _NAMES == INPUTS
#: For each gradient, in the order of GRADIENTS, the place of its input in Inputs.
PLACES = tuple(map(_NAMES.index, GRADIENTS))
_sources = operator.itemgetter(*PLACES)


def has_optional(inputs: Inputs) -> bool:
    """Whether there is more than q, k and v. Written out: each call asks."""
    return not (inputs[3] is None and inputs[4] is None) or has_more(inputs)


def has_more(inputs: Inputs) -> bool:
    """Whether there is more than q, k, v, bias and keep."""
    (_, _, _, _, _, spans, blocks, _, bias_table, bias_index, dist_bias, slope, tau, sink,
     lengths_q, lengths_kv, _, _) = inputs  # fmt: skip
    return not (
        spans is None and blocks is None and bias_table is None and bias_index is None
        and dist_bias is None and slope is None and tau is None and sink is None
        and lengths_q is None and lengths_kv is None
    )  # fmt: skip


_interned: dict[Options, Options] = {}


def intern(options: Options) -> Options:
    """One object for all equal options."""
    if len(_interned) >= _plans.LIMIT:
        _interned.clear()
    return _interned.setdefault(options, options)


def _layout(t: Tensor) -> Layout:
    return Layout(tuple(t.shape), tuple(t.stride()), str(t.dtype)[6:])


def _output(t: Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """A new array as bindings/torch.cpp makes one like it."""
    return str(t.dtype)[6:], tuple(t.shape), tuple(t.stride())


def side_type(q: Tensor) -> torch.dtype:
    """The type of lse and of inputs that have none of their own."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _device_name(t: Tensor, name: str = "q") -> str:
    kind = t.device.type
    if kind == "cpu":
        return "cpu"
    if kind == "cuda":
        return f"cuda:{t.device.index}"
    raise UnsupportedError(
        f"{name} is a tensor on '{t.device}'; it has to be on the CPU or on CUDA"
    )


def check_tensors(inputs: Inputs) -> None:
    """Says which input is no tensor; those behind v may be None."""
    for name, t in zip(_NAMES, inputs, strict=True):
        if not isinstance(t, Tensor) and (t is not None or name in ("q", "k", "v")):
            raise InvalidArgumentError(f"{name} is a {type(t).__name__}, not a tensor")


def autocast(t: Tensor, dtype: torch.dtype) -> Tensor:
    """What torch's autocast makes of an argument: float64 and whole numbers stay as they are."""
    return t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t


def matmul_tf32() -> bool:
    """Whether torch's products of f32 on CUDA may round to TF32, by either name of the setting."""
    matmul: Any = torch.backends.cuda.matmul
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:  # it was set by its newer name, and torch wants no mix of both
        return bool(matmul.fp32_precision == "tf32")


# torch's compiler takes the result for a constant, and compiles anew where the setting changes.
matmul_tf32._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_whole_numbers(name: str, t: Tensor) -> None:
    """Refuses a tensor whose elements would have to be cut."""
    if t.dtype.is_floating_point or t.dtype.is_complex or t.dtype == torch.bool:
        refuse_no_whole_numbers(name, str(t.dtype)[6:])


def _check(inputs: Inputs, more: dict[str, Tensor]) -> None:
    check_tensors(inputs)
    for name, t in (*zip(_NAMES, inputs, strict=True), *more.items()):
        if t is None:
            continue
        if t.device != inputs.q.device:
            raise InvalidArgumentError(f"{name} lies on {t.device}, q on {inputs.q.device}")
        if t.layout is not torch.strided:
            raise UnsupportedError(f"{name} is a tensor of layout {t.layout}, not strided")
        if t.is_nested:
            raise UnsupportedError(f"{name} is a nested tensor; packed rows go with offsets")


def _is_like(like: Tensor, width: int) -> bool:
    """Whether ordered_empty() is torch.empty_like()."""
    return width == like.shape[-1] and like.is_contiguous()


def ordered_empty(like: Tensor, width: int) -> Tensor:
    """A new tensor of like's shape and order of dimensions, dense, its last size replaced."""
    if _is_like(like, width):
        return torch.empty_like(like)
    if like.dim() == 4 and like.stride(1) < like.stride(2):
        b, m, n, _ = like.shape
        return like.new_empty((b, n, m, width)).transpose(1, 2)
    if like.dim() == 3 and like.stride(0) < like.stride(1):
        m, n, _ = like.shape
        return like.new_empty((n, m, width)).transpose(0, 1)
    return like.new_empty((*like.shape[:-1], width))


def lse_shape(inputs: Inputs, options: Options) -> tuple[int, ...]:
    """[B, Hq, Sq], without a look at keys and values."""
    q, lengths_q = inputs.q, inputs.lengths_q
    head, row = (q.dim() - 2, q.dim() - 3) if options.bshd else (q.dim() - 3, q.dim() - 2)
    if options.packed_q:
        assert lengths_q is not None
        batch = lengths_q.shape[0] - (inputs.offsets_q is None)
        rows = q.shape[row]
        return batch, q.shape[head], options.seq_q if options.seq_q and rows else rows
    return q.shape[0], q.shape[head], q.shape[row]


class Call:
    """A plan with what every call of it needs. Kept in _plans, and nowhere else: what is dropped
    there may be destroyed."""

    __slots__ = ("alignment", "like_q", "lse", "options", "outputs", "plan", "workspace")

    def __init__(self, plan: Plan, inputs: Inputs, options: Options) -> None:
        self.plan = plan
        self.options = options  # kept, so that no other options get their id
        self.workspace = plan.workspace_size
        self.alignment = plan.workspace_alignment
        self.like_q = _is_like(inputs.q, inputs.v.shape[-1])
        # Of one element, in lse's shape: torch makes a tensor like another faster than of a shape.
        shape = lse_shape(inputs, options)
        self.lse = torch.empty(1, dtype=side_type(inputs.q), device=inputs.q.device).expand(shape)
        self.outputs: tuple[tuple[int, bool], ...] = ()


def _stream(q: Tensor, plan: Plan) -> int:
    if not q.is_cuda:
        return 0
    if torch.cuda.is_current_stream_capturing():
        _plans.keep_for_ever(plan)
    return int(torch._C._cuda_getCurrentRawStream(q.device.index))


def _workspace(call: Call, q: Tensor) -> tuple[Tensor, int]:
    """From the tensors' own allocator, for the current stream; of a call that needs one."""
    size = call.workspace
    space = torch.empty(size, dtype=torch.uint8, device=q.device)
    address = space.data_ptr()
    if address % call.alignment:
        space = torch.empty(size + call.alignment, dtype=torch.uint8, device=q.device)
        address = -(-space.data_ptr() // call.alignment) * call.alignment
    return space, address


def resolved(t: Tensor) -> Tensor:
    """A tensor whose memory holds its numbers. Two kinds have other memory: that of negative views,
    such as the imag of a conjugate, has the opposite sign, and zeros of torch's derivatives have
    none. torch resolves them for operators. The layout is the one that an operator then sees."""
    if t._is_zerotensor():
        return torch.zeros((), dtype=t.dtype, device=t.device).expand(t.shape)
    return t.resolve_neg()


def _resolved(inputs: Inputs) -> Inputs:
    for t in inputs:
        if t is not None and (t.is_neg() or t._is_zerotensor()):
            made: list[Any] = [None if t is None else resolved(t) for t in inputs]
            # No operator has the inputs behind keep, and the C API wants them dense.
            dense = [t if t is None or n < 5 else t.contiguous() for n, t in enumerate(made)]
            return Inputs(*dense)
    return inputs


def _key_of(inputs: Inputs, options: Options) -> tuple[Any, ...]:
    """All that a plan of these inputs depends on. The options count by their identity, which
    intern() makes the same for equal ones."""
    q, k, v = inputs.q, inputs.k, inputs.v
    key = (
        id(options), 0 if q.is_cuda else torch.get_num_threads(),
        q.device, q.dtype, q.shape, q.stride(), k.shape, k.stride(), k.dtype, k.device,
        v.shape, v.stride(), v.dtype, v.device,
    )  # fmt: skip
    if not has_optional(inputs):
        return key
    return key + tuple(
        [None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in inputs[3:]]
    )


def _plan(
    key: object,
    inputs: Inputs,
    more: dict[str, Tensor],
    options: Options,
    direction: int,
    gradients: int,
) -> Call:
    """A call that none was like; checks all that the key then stands for."""
    _check(inputs, more)
    layouts = {
        name: _layout(t)
        for name, t in (*zip(_NAMES, inputs, strict=True), *more.items())
        if t is not None
    }
    problem, _ = make_problem(layouts, options, direction, gradients)
    threads = torch.get_num_threads() if inputs.q.device.type == "cpu" else None
    plan = Plan(get_device(_device_name(inputs.q), threads), problem)
    call: Call = _plans.add(key, Call(plan, inputs, options))
    return call


def check_sizes(inputs: Inputs, options: Options) -> None:
    """Says which input is no tensor of q's device, or has sizes that do not fit."""
    _check(inputs, {})
    sizes_of({n: _layout(t) for n, t in zip(_NAMES, inputs, strict=True) if t is not None}, options)


def _first_forward(
    key: object, inputs: Inputs, options: Options, max_logit: Tensor | None = None
) -> Call:
    check_sizes(inputs, options)
    q = inputs.q
    o = ordered_empty(q, inputs.v.shape[-1])
    lse = q.new_empty(lse_shape(inputs, options), dtype=side_type(q))
    more = {"o": o, "lse": lse}
    if max_logit is not None:
        more["max_logit"] = max_logit
    return _plan(key, inputs, more, options, FORWARD, 0)


def _addresses_by(*parts: tuple[str, ...], tensors: tuple[str, ...]) -> Callable[..., Any]:
    """Makes f(*parts, *, **tensors, workspace), the addresses of a call in the order of BUFFERS.

    f is compiled of these names, so that no buffer can get another's address. A loop over them
    would cost a call several microseconds.

    Args:
        parts: names of the tensors, or None, in each tuple that f takes.
        tensors: names of the tensors that f takes by keyword.
    """
    given = {"workspace", *tensors, *(name for part in parts for name in part)}
    if unknown := given.difference(BUFFERS):
        raise ValueError(f"a call has no buffers {unknown}")
    sure = {"q", "k", "v", *tensors}

    def address(name: str) -> str:
        if name not in given:
            return "0"
        if name == "workspace":
            return name
        absent = "" if name in sure else f"0 if {name} is None else "
        return f"{absent}{name}.data_ptr()"

    names = [f"part{n}" for n in range(len(parts))]
    lines = [f"def f({', '.join((*names, '*', *tensors, 'workspace'))}):"]
    lines += [f" {', '.join(part)}, = {name}" for part, name in zip(parts, names, strict=True)]
    lines += [f" return {', '.join(map(address, BUFFERS))}"]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)
    f: Callable[..., Any] = made["f"]
    return f


_forward_addresses = _addresses_by(Inputs._fields, ("max_logit",), tensors=("o", "lse"))
_backward_addresses = _addresses_by(
    Inputs._fields,
    tuple(f"d_{name}" for name in GRADIENTS),
    ("d_lse",),
    tensors=("d_o", "o", "lse"),
)


def forward(
    inputs: Inputs, options: Options, seed: int, offset: int, max_logit: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """o in q's order of dimensions, and lse, f32 [B, Hq, Sq].

    options: as intern() gives them.
    max_logit: f32 [B, Hq], contiguous, raised to the largest logits; None: they are not wanted.
    """
    return forward_call(inputs, options, seed, offset, max_logit)[:2]


def forward_call(
    inputs: Inputs, options: Options, seed: int, offset: int, max_logit: Tensor | None = None
) -> tuple[Tensor, Tensor, Call]:
    """forward(), and what it executed."""
    inputs = _resolved(inputs)
    q = inputs.q
    try:
        key = _key_of(inputs, options)
    except RuntimeError:  # a nested tensor has no shape
        _check(inputs, {})
        raise
    if max_logit is not None:
        key = (*key, "max_logit")
    call: Call | None = _plans.find(key)
    if call is None:
        call = _first_forward(key, inputs, options, max_logit)
    o = torch.empty_like(q) if call.like_q else ordered_empty(q, inputs.v.shape[-1])
    lse = torch.empty_like(call.lse)
    # The name keeps the workspace until the work is queued.
    _space, address = _workspace(call, q) if call.workspace else (None, 0)
    plan = call.plan
    plan.execute(
        _stream(q, plan),
        _forward_addresses(inputs, (max_logit,), o=o, lse=lse, workspace=address),
        call.workspace,
        seed,
        offset,
    )
    return o, lse, call


def new_gradients(inputs: Inputs, gradients: int) -> list[Tensor | None]:
    """A tensor for each bit of gradients, in the order of GRADIENTS; None for the others."""
    made: list[Tensor | None] = [None] * len(_BITS)
    for n, source, like in _outputs(inputs, gradients):
        made[n] = _gradient(n, source, like)
    return made


def _outputs(inputs: Inputs, gradients: int) -> list[tuple[int, Tensor, bool]]:
    """Of each gradient: its place in GRADIENTS, its input, whether torch.empty_like() makes it."""
    sources = _sources(inputs)
    return [
        (n, source, source.is_contiguous())
        for n, (bit, source) in enumerate(zip(_BITS, sources, strict=True))
        if gradients & bit and source is not None
    ]


def _gradient(n: int, source: Tensor, like: bool) -> Tensor:
    """An empty gradient: q's, k's and v's in the order of dimensions of their inputs."""
    if like:
        return torch.empty_like(source)
    if n < 3:
        return ordered_empty(source, source.shape[-1])
    return torch.empty(source.shape, dtype=source.dtype, device=source.device)


def backward(
    d_o: Tensor,
    inputs: Inputs,
    o: Tensor,
    lse: Tensor,
    d_lse: Tensor | None,
    options: Options,
    gradients: int,
    seed: int,
    offset: int,
) -> list[Tensor | None]:
    """The gradients whose bits are set, in the order of GRADIENTS; None for the others.

    d_lse: the gradient with respect to lse, contiguous; None where the loss does not depend on it.
    options: as intern() gives them. The key has the layout of each tensor as it is now: what
    autograd saved may come back from hooks (offloading, checkpoints) with other strides than the
    forward's.
    """
    return backward_call(d_o, inputs, o, lse, d_lse, options, gradients, seed, offset)[0]


def backward_call(
    d_o: Tensor,
    inputs: Inputs,
    o: Tensor,
    lse: Tensor,
    d_lse: Tensor | None,
    options: Options,
    gradients: int,
    seed: int,
    offset: int,
) -> tuple[list[Tensor | None], Call]:
    """backward(), and what it executed."""
    inputs = _resolved(inputs)
    d_o, d_lse = resolved(d_o), None if d_lse is None else resolved(d_lse).contiguous()
    q = inputs.q
    key = (
        gradients, d_o.shape, d_o.stride(), d_o.dtype, d_o.device, o.shape, o.stride(), o.dtype,
        o.device, lse.shape, lse.stride(), lse.dtype, lse.device, _key_of(inputs, options),
        None if d_lse is None else (d_lse.shape, d_lse.stride(), d_lse.dtype, d_lse.device),
    )  # fmt: skip
    call: Call | None = _plans.find(key)
    made: list[Tensor | None]
    if call is None:
        made = new_gradients(inputs, gradients)
        more = {"d_o": d_o, "o": o, "lse": lse}
        if d_lse is not None:
            more["d_lse"] = d_lse
        for name, t in zip(GRADIENTS, made, strict=True):
            if t is not None:
                more[f"d_{name}"] = t
        call = _plan(key, inputs, more, options, BACKWARD, gradients)
        call.outputs = tuple((n, like) for n, _, like in _outputs(inputs, gradients))
    else:
        sources = _sources(inputs)
        made = [None] * len(_BITS)
        for n, like in call.outputs:
            source = sources[n]
            assert source is not None  # the key says so
            made[n] = torch.empty_like(source) if like else _gradient(n, source, like)
    _space, address = _workspace(call, q) if call.workspace else (None, 0)
    plan = call.plan
    plan.execute(
        _stream(q, plan),
        _backward_addresses(inputs, made, (d_lse,), d_o=d_o, o=o, lse=lse, workspace=address),
        call.workspace,
        seed,
        offset,
    )
    return made, call


def _wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)


_plans.wait_for_devices.append(_wait)
