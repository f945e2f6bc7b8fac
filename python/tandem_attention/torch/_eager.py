# SPDX-License-Identifier: MIT OR Apache-2.0
"""Eager calls at which nothing looks but autograd: no tracer, mode or transform.

Those of q, k, v, bias and keep go to two operators in C++ (bindings/torch.cpp), which know the
plans of earlier calls. An operator that declines a call returns None: the call is then made from
Python, which plans it or raises. torch's stable ABI has no nodes of autograd, so that the formula
is a torch.autograd.Function, and as short as one can be.
"""

from __future__ import annotations

import atexit
import itertools
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _core, _plans
from .._options import Options
from .._problem import GRADIENTS
from . import _kernels, _ops, _plain_ops
from ._kernels import Call, Inputs
from ._namespace import NAMESPACE, OPS

_PLAIN = (Tensor, torch.nn.Parameter)


class KnownOptions:
    """Options as intern() gives them, with a number that no others have had."""

    __slots__ = ("number", "options", "tag")
    _count = itertools.count()

    def __init__(self, options: Options) -> None:
        self.options = options
        self.number = next(KnownOptions._count)
        #: The number as ATen's operator takes it; None where that cannot have the options.
        self.tag: float | None = None
        if not options.dropout and self.number < _plans.LIMIT:
            self.tag = -1.0 - self.number
            _numbered[self.number] = self


#: A node of autograd may ask for its options as long as it lives: they stay for ever, and others
#: beyond so many numbers have no tag.
_numbered: dict[int, KnownOptions] = {}
_known: dict[Options, KnownOptions] = {}


def known(options: Options) -> KnownOptions:
    """One object for all equal options."""
    if len(_known) >= _plans.LIMIT:
        _known.clear()
    found = _known.get(options)
    if found is None:
        found = _known.setdefault(options, KnownOptions(_kernels.intern(options)))
    return found


def random_seed() -> Tensor:
    return torch.randint(0, 2**62, (), dtype=torch.int64, device="cpu")


def rng(options: Options, seed: int | None, offset: int) -> Tensor | None:
    """seed and offset of dropout as the operations take them."""
    if not options.dropout:
        return None
    if seed is None:
        start = torch.full((), offset % 2**32, dtype=torch.int64, device="cpu")
        return torch.stack([random_seed(), start])
    if not -(2**63) <= seed < 2**63:  # a graph has no remainders of 2^64 of its numbers
        seed = _signed(seed % 2**64)
    numbers = [seed, offset % 2**32]
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


def is_watched() -> bool:
    """Whether a mode, a transform or a tracer looks at the calls of this thread."""
    return (
        torch._C._len_torch_dispatch_stack() != 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
    )


def is_plain(inputs: Inputs, optional: bool) -> bool:
    """Whether nothing looks at this call but eager autograd."""
    return (
        inputs.q.device.type != "meta"
        and type(inputs.q) in _PLAIN
        and type(inputs.k) in _PLAIN
        and type(inputs.v) in _PLAIN
        and not is_watched()
        and not (optional and any(t is not None and type(t) not in _PLAIN for t in inputs[3:]))
    )


# ---- the formula in Python -----------------------------------------------------------------------


def _gradients(
    needed: tuple[bool, ...],
    inputs: Inputs,
    o: Tensor,
    lse: Tensor,
    d_o: Tensor | None,
    d_lse: Tensor | None,
    call: tuple[Options, int, int],
) -> list[Tensor | None]:
    """The gradients of inputs, in their order."""
    results: list[Tensor | None] = [None] * len(inputs)
    bits = _ops.gradient_bits(needed)
    outer = _ops.outer_gradients(o, d_o, d_lse) if bits else None
    if outer is None:
        return results
    d_o, d_lse = outer
    options, seed, offset = call
    # The operation says that there are no second derivatives, and knows batched gradients.
    if (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._functorch.is_legacy_batchedtensor(d_o)
        or (d_lse is not None and torch._C._functorch.is_legacy_batchedtensor(d_lse))
        or torch._C._are_functorch_transforms_active()
    ):
        made = _ops.attention_backward(
            d_o, o, lse, bits, d_lse, *inputs, rng(options, seed, offset), *options
        )
        made = [t if bits & bit else None for t, bit in zip(made, GRADIENTS.values())]  # noqa: B905
    else:
        made = _kernels.backward(d_o, inputs, o, lse, d_lse, options, bits, seed, offset)
    for place, t in zip(_kernels.PLACES, made):  # noqa: B905 both are as long as GRADIENTS
        if t is not None:
            results[place] = t
    return results


class AttentionInPython(torch.autograd.Function):
    """The eager way, without the custom operation's dispatch: some ten microseconds less."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        *tensors, seed, offset, options = args
        inputs = Inputs(*tensors)
        o, lse = _kernels.forward(inputs, options, seed, offset)
        ctx.save_for_backward(*tensors, o, lse)
        ctx.call = (options, seed, offset)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        *tensors, o, lse = ctx.saved_tensors
        made = _gradients(ctx.needs_input_grad, Inputs(*tensors), o, lse, d_o, d_lse, ctx.call)
        return (*made, None, None, None)


# ---- the operators in C++ ------------------------------------------------------------------------

_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? keep, int options, int seed, int offset"
)
_library.define(f"eager_forward({_INPUTS}) -> (Tensor, Tensor)")
_library.define(
    "eager_backward(Tensor d_o, Tensor o, Tensor lse, Tensor? d_lse, int gradients, "
    f"{_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
for _name in ("eager_forward", "eager_backward"):  # they are called below autograd
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
_reason = _core.torch_connect(str(Path(torch.__file__).parent / "lib"), NAMESPACE)
serving = not _reason
_eager_forward: Any = OPS.eager_forward.default._op
_eager_backward: Any = OPS.eager_backward.default._op


@dataclass(frozen=True)
class EagerInfo:
    """What serves the plain eager calls of this process.

    Attributes:
        operator: ``"c++"``, or ``"python"`` where torch lacks what the operators need.
        formula: likewise of autograd's formula; ``"c++"`` is for calls without keep, dropout and
            lse.
        reason: why one of them is ``"python"``.
        forward: calls that the operators have served.
        backward: likewise.
        declined: calls that they left to Python: the first of their kind, or one that failed.
    """

    operator: str
    formula: str
    reason: str
    forward: int
    backward: int
    declined: int


def eager_info() -> EagerInfo:
    """Says whether the operators in C++ serve plain eager calls, and how many they have served.

    These are calls with q, k, v, bias and keep alone, with or without gradients, at which no mode,
    transform or compiler looks.
    """
    operator, formula = ("c++" if serves else "python" for serves in (serving, overriding))
    return EagerInfo(operator, formula, _reason, *_core.torch_calls())


def _remember(key: bytes, call: Call, outputs: list[Tensor | None]) -> None:
    """Has the operators serve calls like this one from now on."""
    if not key:
        return
    made = [("", (), ()) if t is None else _kernels._output(t) for t in outputs]
    if _core.torch_remember(key, call.plan, made) >= _plans.LIMIT:
        _plans.clear()


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    keep: Tensor | None,
    known: KnownOptions,
    seed: int,
    offset: int,
) -> tuple[Tensor, Tensor]:
    key = b""
    try:
        o, lse = _eager_forward(q, k, v, bias, keep, known.number, _signed(seed), offset)
        if o is not None:
            return o, lse
        key = _core.torch_missed()
    except NotImplementedError:  # by the dispatcher, for tensors that are not dense
        pass
    inputs = Inputs(q, k, v, bias, keep)
    o, lse, call = _kernels.forward_call(inputs, known.options, seed, offset)
    _remember(key, call, [o, lse])
    return o, lse


def _four_gradients(
    d_o: Tensor,
    o: Tensor,
    lse: Tensor,
    d_lse: Tensor | None,
    bits: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    keep: Tensor | None,
    known: KnownOptions,
    seed: int,
    offset: int,
) -> Any:
    """Those of q, k, v and bias; None where their bit is not set."""
    key = b""
    try:
        made = _eager_backward(
            d_o, o, lse, d_lse, bits, q, k, v, bias, keep, known.number, _signed(seed), offset
        )
        d_q, d_k, d_v, d_bias = made
        if not (d_q is None and d_k is None and d_v is None and d_bias is None):
            return made
        key = _core.torch_missed()
    except NotImplementedError:
        pass
    inputs = Inputs(q, k, v, bias, keep)
    made, call = _kernels.backward_call(
        d_o, inputs, o, lse, d_lse, known.options, bits, seed, offset
    )
    _remember(key, call, made[:4])
    return made[:4]


class _Attention(torch.autograd.Function):
    """o alone, of q, k, v, bias and keep."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        keep: Tensor | None,
        known: KnownOptions,
        seed: int,
        offset: int,
    ) -> Any:
        o, lse = _forward(q, k, v, bias, keep, known, seed, offset)
        if bias is None and keep is None:
            ctx.save_for_backward(q, k, v, o, lse)
        else:
            ctx.save_for_backward(q, k, v, o, lse, bias, keep)
        ctx.call = known, seed, offset
        ctx.set_materialize_grads(False)
        return o

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None) -> Any:
        return _backward(ctx, d_o, None)


class _AttentionLse(torch.autograd.Function):
    """o and lse, of q, k, v, bias and keep."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        return _Attention.forward(ctx, *args), ctx.to_save[4]

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        return _backward(ctx, d_o, d_lse)


def _backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
    q, k, v, o, lse, *others = ctx.saved_tensors
    bias, keep = others or (None, None)
    needed = ctx.needs_input_grad
    known, seed, offset = ctx.call
    if (
        type(d_o) is not Tensor
        or d_lse is not None
        or d_o.stride(-1) != 1
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._functorch.is_legacy_batchedtensor(d_o)
    ):
        inputs = Inputs(q, k, v, bias, keep)
        made = _gradients(needed[:5], inputs, o, lse, d_o, d_lse, (known.options, seed, offset))
        return (*made[:5], None, None, None)
    bits = needed[0] | needed[1] << 1 | needed[2] << 2 | needed[3] << 3
    d_q, d_k, d_v, d_bias = _four_gradients(
        d_o, o, lse, None, bits, q, k, v, bias, keep, known, seed, offset
    )
    return d_q, d_k, d_v, d_bias, None, None, None, None


# ---- with a formula in C++ -----------------------------------------------------------------------
# ATen has an operator of attention with a formula of autograd and no kernels for CPU and CUDA.
# It is there to be overridden by other devices. Our operators are these kernels, for calls of q, k,
# v and bias. The options travel by their number.

_FORMULA = "_scaled_dot_product_fused_attention_overrideable"
_SCHEMAS = (
    f"aten::{_FORMULA}(Tensor query, Tensor key, Tensor value, Tensor? attn_bias=None,"
    " float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *,"
    " float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k,"
    " SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor philox_offset,"
    " Tensor debug_attn_mask)",
    f"aten::{_FORMULA}_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value,"
    " Tensor attn_bias, bool[4] grad_input_mask, Tensor out, Tensor logsumexp, Tensor cum_seq_q,"
    " Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal,"
    " Tensor philox_seed, Tensor philox_offset, *, float? scale=None)"
    " -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_attn_bias)",
)


def _override() -> str:
    """Overrides ATen's operator, or says why not."""
    if not serving:
        return _reason
    for schema in _SCHEMAS:
        name = schema.partition("(")[0]
        op = getattr(torch.ops.aten, name[6:], None)
        if op is None or str(op.default._schema) != schema:
            return f"this torch has another {name}"
        for key in ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA"):
            if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
                return f"{name} has a kernel for {key}"
    return _core.torch_override()


_failed = threading.local()


def _forward_in_python(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What the operator declines, and a mark of two dimensions where it failed.

    attention() raises the error: an exception would lose its type on its way through C++.
    """
    key = _core.torch_missed()
    try:
        inputs = Inputs(q, k, v, bias)
        o, lse, call = _kernels.forward_call(inputs, _numbered[number].options, 0, 0)
        _remember(key, call, [o, lse])
        return o, lse, q.new_empty(0)
    except BaseException as error:
        _failed.error = error
        return q.new_empty(0), q.new_empty(0), q.new_empty(0, 0)


def _backward_in_python(
    d_o: Tensor,
    o: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    bits: int,
    number: int,
) -> Any:
    """What the C++ formula declines, and a mark of two dimensions where it failed.

    An error is raised at the end of the backward: an exception would lose its type on its way
    through the C++ formula.
    """
    key = _core.torch_missed()
    known = _numbered[number]
    inputs = Inputs(q, k, v, bias)
    needed = tuple(bool(bits & 1 << n) for n in range(4))
    try:
        if key and not torch.is_grad_enabled():
            made, call = _kernels.backward_call(
                d_o, inputs, o, lse, None, known.options, bits, 0, 0
            )
            _remember(key, call, made[:4])
        else:
            made = _gradients(needed, inputs, o, lse, d_o, None, (known.options, 0, 0))
        return *(q.new_empty(0) if t is None else t for t in made[:4]), q.new_empty(0)
    except BaseException as error:
        _raise_later(error)
        return *(q.new_empty(0) for _ in range(4)), q.new_empty(0, 0)


def _raise_later(error: BaseException) -> None:
    def fail() -> None:
        raise error

    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(fail)


_library.define(
    "eager_backward_in_python(Tensor d_o, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, "
    "Tensor? bias, int bits, int number) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
for _key in ("CompositeImplicitAutograd", "FuncTorchBatched", "Batched"):
    _library.impl("eager_backward_in_python", _backward_in_python, _key)
_library.define(
    "eager_forward_in_python(Tensor q, Tensor k, Tensor v, Tensor? bias, int number)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.impl("eager_forward_in_python", _forward_in_python, "CompositeImplicitAutograd")
_not_overriding = _override()
_reason = _reason or _not_overriding
overriding = not _not_overriding
_formula: Any = getattr(torch.ops.aten, _FORMULA).default._op if overriding else None


# What Function.apply() does where no transform is active.
_apply: Any = super(torch.autograd.Function, _Attention).apply
_apply_lse: Any = super(torch.autograd.Function, _AttentionLse).apply


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    keep: Tensor | None,
    known: KnownOptions,
    seed: int | None,
    offset: int,
    return_lse: bool,
) -> Any:
    """A plain call; None where it is none."""
    if (
        type(q) not in _PLAIN
        or type(k) not in _PLAIN
        or type(v) not in _PLAIN
        or (bias is not None and type(bias) not in _PLAIN)
        or (keep is not None and type(keep) not in _PLAIN)
        or is_watched()
        or not (q.is_cuda or q.is_cpu)
    ):
        return None
    if seed is None:
        seed = int(random_seed()) if known.options.dropout else 0
    else:
        seed %= 2**64
    offset %= 2**32
    if torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad
        or (bias is not None and bias.requires_grad)
    ):  # fmt: skip
        if (
            overriding and keep is None and not return_lse and known.tag is not None
            and not k.is_meta and not v.is_meta and (bias is None or not bias.is_meta)
        ):  # fmt: skip
            try:
                o = _formula(q, k, v, bias, known.tag)[0]
            except RuntimeError:  # by the dispatcher, for tensors that are not dense
                return _apply(q, k, v, bias, keep, known, seed, offset)
            if o is None:
                error, _failed.error = _failed.error, None
                raise error
            return o
        apply = _apply_lse if return_lse else _apply
        return apply(q, k, v, bias, keep, known, seed, offset)
    o, lse = _forward(q, k, v, bias, keep, known, seed, offset)
    return (o, lse) if return_lse else o


# ---- the operations of graphs --------------------------------------------------------------------
# torch.library's kernels for them check more, and take twice the time.


def _graph_forward(*args: Any) -> tuple[Tensor, Tensor]:
    inputs, seeds, options = _ops.split(args)
    seed, offset = _ops.seed_of(seeds)
    if serving and not _kernels.has_more(inputs):
        return _forward(*inputs[:5], known(options), seed, offset)
    return _kernels.forward(inputs, _kernels.intern(options), seed, offset)


def _graph_backward(
    d_o: Tensor, o: Tensor, lse: Tensor, bits: int, d_lse: Tensor | None, *args: Any
) -> Any:
    inputs, seeds, options = _ops.split(args)
    seed, offset = _ops.seed_of(seeds)
    if serving and bits and not _kernels.has_more(inputs):
        made = _four_gradients(d_o, o, lse, d_lse, bits, *inputs[:5], known(options), seed, offset)
        made = [*made, *(None,) * (len(GRADIENTS) - 4)]
    else:
        options = _kernels.intern(options)
        made = _kernels.backward(d_o, inputs, o, lse, d_lse, options, bits, seed, offset)
    return _ops.with_empty(inputs.q, made)


_known_plain: dict[tuple[Any, ...], KnownOptions] = {}


def _plain_options(key: tuple[Any, ...]) -> KnownOptions:
    found = _known_plain.get(key)
    if found is None:
        if len(_known_plain) >= _plans.LIMIT:
            _known_plain.clear()
        found = _known_plain[key] = known(_plain_ops.options_of(*key))
    return found


def _plain_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None, *key: Any
) -> tuple[Tensor, Tensor]:
    return _forward(q, k, v, bias, keep, _plain_options(key), 0, 0)


def _plain_backward(
    d_o: Tensor, o: Tensor, lse: Tensor, bits: int, d_lse: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, keep: Tensor | None, *key: Any,
) -> Any:  # fmt: skip
    made: Any = (None,) * 4
    if bits:
        options = _plain_options(key)
        made = _four_gradients(d_o, o, lse, d_lse, bits, q, k, v, bias, keep, options, 0, 0)
    return _ops.with_empty(q, made)


for _device in ("CPU", "CUDA"):
    if serving:
        _library.impl("plain_attention", _plain_forward, _device)
        _library.impl("plain_attention_backward", _plain_backward, _device)
    _library.impl("attention", _graph_forward, _device)
    _library.impl("attention_backward", _graph_backward, _device)

_plans.forget_in_torch.append(_core.torch_forget)
atexit.register(_core.torch_forget, True)
