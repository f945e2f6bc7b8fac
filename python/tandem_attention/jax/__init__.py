# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention as a differentiable JAX operation, through XLA's foreign functions.

Works under jax.jit, jax.grad and jax.vmap, on the CPU and on CUDA devices.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from .._blocks import Blocks, parts_of
from .._devices import get_device
from .._errors import InvalidArgumentError, UnsupportedError
from .._options import (
    Options,
    StaticOptions,
    Unpack,
    in_parts,
    make_options,
    refuse_unknown,
    truth,
)
from .._problem import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    INDEX_DTYPES,
    INPUTS,
    Layout,
    make_problem,
    output_shapes,
    places,
    refuse_no_whole_numbers,
    side_dtype,
)

__all__ = ["attention"]

_TARGET = "tandem_attention"


@functools.cache
def _register() -> None:
    if not hasattr(_core, "jax_handlers"):
        raise UnsupportedError("this build has no JAX: jaxlib was not there when it was built")
    for platform, handler in _core.jax_handlers().items():
        jax.ffi.register_ffi_target(_TARGET, handler, platform=platform)


def _shaped(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _side(q: Any) -> Any:
    return side_dtype(jnp.dtype(q.dtype).name)


def _layout(x: Any) -> Layout:
    if not all(isinstance(n, (int, np.integer)) for n in x.shape):
        raise UnsupportedError(
            f"an array of shape {x.shape} has a size that is no number: a program has a plan for"
            " each size, so export one for each"
        )
    strides, size = [], 1
    for n in reversed(x.shape):
        strides.append(size)
        size *= n
    return Layout(tuple(x.shape), tuple(reversed(strides)), jnp.dtype(x.dtype).name)


def _varying(x: Any) -> frozenset[Any]:
    """The axes of a shard_map() along which x differs between devices. Empty where JAX does not
    look: outside, with check_vma=False, and before its version 0.7."""
    typeof = getattr(jax, "typeof", None)
    kind = None if typeof is None else typeof(x)
    found = getattr(kind, "vma", None)
    if found is None:  # by its new name
        found = getattr(getattr(kind, "mat", None), "varying", None)
    return frozenset(found or ())


def _vary(x: Any, axes: frozenset[Any]) -> Any:
    """x as one that differs along axes, too. Its cotangent is then summed over these."""
    more = tuple(sorted(axes - _varying(x), key=str))
    if not more:
        return x
    lax: Any = jax.lax
    return lax.pcast(x, more, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, more)


def _vary_together(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs that differ along the same axes, as a call's inputs and the rule of its gradients have
    to."""
    axes = frozenset().union(*map(_varying, inputs.values()))
    return {n: _vary(x, axes) for n, x in inputs.items()} if axes else inputs


def _call(
    inputs: dict[str, Any], outputs: dict[str, Any], options: Options, direction: int, bits: int
) -> tuple[Any, ...]:
    """One execute: outputs are shapes and types by name."""
    _register()
    layouts = {n: _layout(x) for n, x in (*inputs.items(), *outputs.items())}
    problem, _ = make_problem(layouts, options, direction, bits)
    # The CPU plans every legal problem: what is illegal is said here, in Python's words.
    _core.Plan(get_device("cpu"), problem)
    ffi = jax.ffi.ffi_call(_TARGET, tuple(outputs.values()), vmap_method="sequential")
    words = {"problem": str(problem), "buffers": " ".join((*inputs, *outputs))}

    @jax.custom_jvp
    def call(*values: Any) -> Any:
        return ffi(*values, **words)

    @call.defjvp
    def refuse(*_: Any) -> Any:  # JAX comes here from the rule of a gradient alone
        raise UnsupportedError("attention has no second derivatives in this version")

    inputs = _vary_together(inputs)
    made = call(*inputs.values())
    axes = _varying(inputs["q"])  # which XLA's call does not say of its results
    return tuple(_vary(x, axes) for x in made)


def _forward(options: Options, inputs: dict[str, Any]) -> tuple[Any, Any]:
    shapes = output_shapes({n: _layout(x) for n, x in inputs.items()}, options)
    outputs = {
        "o": _shaped(shapes["o"], inputs["q"].dtype),
        "lse": _shaped(shapes["lse"], _side(inputs["q"])),
    }
    o, lse = _call(inputs, outputs, options, FORWARD, 0)
    return o, lse


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: Options, inputs: dict[str, Any]) -> tuple[Any, Any]:
    return _forward(options, inputs)


@jax.tree_util.register_static
class _Wanted(NamedTuple):
    """Which inputs want a gradient; static, and so part of a program's key."""

    names: tuple[str, ...]


def _fwd(options: Options, inputs: dict[str, Any]) -> Any:
    wanted = tuple(n for n, x in inputs.items() if n in GRADIENTS and x.perturbed)
    values = {n: x.value for n, x in inputs.items()}
    o, lse = _forward(options, values)
    return (o, lse), (values, o, lse, _Wanted(wanted))


def _bwd(options: Options, kept: Any, cotangents: Any) -> Any:
    inputs, o, lse, wanted = kept
    d_o, d_lse = (
        None if isinstance(x, jax.custom_derivatives.SymbolicZero) else x for x in cotangents
    )
    results: dict[str, Any] = dict.fromkeys(inputs)
    if wanted.names and not (d_o is None and d_lse is None):
        outputs = {f"d_{n}": _shaped(inputs[n].shape, inputs[n].dtype) for n in wanted.names}
        bits = sum(GRADIENTS[n] for n in wanted.names)
        every = {**inputs, "o": o, "lse": lse, "d_o": jnp.zeros_like(o) if d_o is None else d_o}
        if d_lse is not None:
            every["d_lse"] = d_lse
        made = _call(every, outputs, options, BACKWARD, bits)
        results.update(zip(wanted.names, made, strict=True))
    return (results,)


_attention.defvjp(_fwd, _bwd, symbolic_zeros=True)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    keep: Any = None,
    spans: Any = None,
    block_mask: Blocks | None = None,
    bias_table: Any = None,
    bias_index: Any = None,
    dist_bias: Any = None,
    slope: Any = None,
    tau: Any = None,
    sink: Any = None,
    lengths_q: Any = None,
    lengths_kv: Any = None,
    offsets_q: Any = None,
    offsets_kv: Any = None,
    return_lse: bool = False,
    **options: Unpack[StaticOptions],
) -> Any:
    """Attention on JAX arrays, with gradients of its inputs of real numbers.

    Args:
        q: [B, Hq, Sq, D], f32, f16 or bf16; f64, where x64 is on, on the CPU. What is said to be
            f32 is f64 then.
        k: [B, Hk, Sk, D], of q's type; Hq is a multiple of Hk.
        v: [B, Hk, Sk, Dv], of q's type.
        bias, keep: [B or a divisor of it, Hq, Hk or 1, Sq or 1, Sk or 1], fewer dimensions too.
        spans: [B or a divisor of it, Hq, Hk or 1, Sk, 2 or 4], fewer dimensions too: the rows that
            see a key, as in tandem_attention.attention().
        block_mask: lists of visible blocks, as in tandem_attention.attention().
        bias_table: [Hq, N], with bias_index, in place of bias.
        bias_index: [B or a divisor, Sq, Sk] or [Sq, Sk], whole numbers: the entry of
            bias_table that each pair reads; what is no entry stands for no bias.
        dist_bias: [Hq, W].
        slope, tau, sink: [Hq]; slope and sink also [B or a divisor of it, Hq].
        lengths_q, lengths_kv: [B], rows of each batch entry that are there.
        offsets_q, offsets_kv: [B + 1], cumulative: q (k, v) is packed, [Hq, total, D]. Beside
            lengths [B]: entry b has the rows from offsets[b] to offsets[b] + lengths[b], in any
            order and with gaps, which are neither used nor written.
        return_lse: also return lse.
        options: static values: the other arguments of tandem_attention.attention() that say what
            is computed, but dropout, which is refused, because its seed is a number of the host.

    Returns:
        o, [B, Hq, Sq, Dv], of q's type; with return_lse, (o, lse), lse f32 [B, Hq, Sq]. With
        softmax lse is differentiable as o is; the derivative of another normalizer's is refused.

    Raises:
        TandemError: or a subclass, with the library's sentence, when the call is traced. A GPU that
            has no kernel for the problem says so when the program runs, as an error of JAX.
    """
    opts, inputs = _prepare(
        {"q": q, "k": k, "v": v, "bias": bias, "keep": keep, "spans": spans,
         "block_mask": block_mask,
         "bias_table": bias_table, "bias_index": bias_index, "dist_bias": dist_bias,
         "slope": slope, "tau": tau, "sink": sink, "lengths_q": lengths_q, "lengths_kv": lengths_kv,
         "offsets_q": offsets_q, "offsets_kv": offsets_kv},
        {**options},
    )  # fmt: skip
    wants_lse = truth("return_lse", return_lse)
    o, lse = _attention(opts, _vary_together(inputs))
    return (o, lse) if wants_lse else o


def attention_backward(
    d_o: Any,
    o: Any,
    lse: Any,
    given: dict[str, Any],
    gradients: tuple[str, ...],
    bias_dtype: str | None,
    d_lse: Any,
    part_of_keys: bool,
    options: dict[str, Any],
) -> dict[str, Any]:
    """The gradients by name; of tandem_attention.attention_backward(), whose arrays are JAX's."""
    opts, inputs = _prepare(given, options)
    opts = in_parts(opts, part_of_keys)
    outputs = {}
    for name in gradients:
        dtype = bias_dtype if name == "bias" and bias_dtype else inputs[name].dtype
        outputs[f"d_{name}"] = _shaped(inputs[name].shape, dtype)
    every = {**inputs, "o": jnp.asarray(o), "lse": jnp.asarray(lse), "d_o": jnp.asarray(d_o)}
    if d_lse is not None:
        every["d_lse"] = jnp.asarray(d_lse)
    bits = sum(GRADIENTS[n] for n in gradients)
    made = dict(zip(gradients, _call(every, outputs, opts, BACKWARD, bits), strict=True))
    if "bias" in made:
        own = given["bias"].shape
        if own[-1] == 1 != made["bias"].shape[-1]:
            wide = made["bias"].astype(_side(made["bias"])).sum(-1, keepdims=True)
            made["bias"] = wide.astype(made["bias"].dtype)
        made["bias"] = made["bias"].reshape(own)
    return made


def _array(name: str, x: Any) -> Any:
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{name} is a {type(x).__name__}, not an array") from None


def _as_int32(x: Any) -> Any:
    """Whole numbers. Those beyond int32 are beyond every sequence, as its largest ones are."""
    if x.dtype.itemsize >= 4 and x.dtype != jnp.int32:
        unsigned = jnp.issubdtype(x.dtype, jnp.unsignedinteger)
        x = x.clip(None if unsigned else -(2**31), 2**31 - 1)
    return jnp.asarray(x, jnp.int32)


def _prepare(given: dict[str, Any], options: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Options, and the inputs by the C API's names, of its types and numbers of dimensions."""
    if options.get("dropout"):
        raise UnsupportedError("dropout is not there for JAX: its seed is a number of the host")
    offsets_q, offsets_kv = given.get("offsets_q"), given.get("offsets_kv")
    refuse_unknown(options)
    opts = make_options(packed_q=offsets_q is not None, packed_kv=offsets_kv is not None, **options)
    given = {**given, **{n: _array(n, given[n]) for n in ("q", "k", "v")}}
    k = given["k"]
    if k.ndim < 3:
        raise InvalidArgumentError(f"k has {k.ndim} dimensions, not 4")
    keys = opts.seq_kv if opts.packed_kv and opts.seq_kv else k.shape[-3 if opts.bshd else -2]

    def four(name: str) -> Any:
        x = given.get(name)
        if x is None:
            return None
        x = jnp.asarray(x)
        if x.ndim > 4:
            raise InvalidArgumentError(f"{name} has {x.ndim} dimensions; at most 4 are possible")
        x = x.reshape((1,) * (4 - x.ndim) + x.shape)
        return jnp.broadcast_to(x, (*x.shape[:3], keys)) if x.shape[3] == 1 else x

    def spans() -> Any:
        x = given.get("spans")
        if x is None:
            return None
        x = x if hasattr(x, "dtype") else np.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.integer):
            refuse_no_whole_numbers("spans", jnp.dtype(x.dtype).name)
        if x.ndim > 4:
            raise InvalidArgumentError(f"spans has {x.ndim} dimensions; at most 4 are possible")
        return _as_int32(x).reshape((1,) * (4 - x.ndim) + x.shape)

    def blocks() -> list[Any]:
        made = []
        for name, x in zip(("lists", "bits"), parts_of(given.get("block_mask")), strict=True):
            x = x if x is None or hasattr(x, "dtype") else np.asarray(x)
            if x is not None and x.dtype != np.int32:
                raise InvalidArgumentError(f"block_mask.{name} is {x.dtype}, not int32")
            made.append(x)
        return made

    def index() -> Any:
        """As a type of bias_index, [batch, Sq, Sk]. What is no entry of a table stays none."""
        x = given.get("bias_index")
        if x is None:
            return None
        x = x if hasattr(x, "dtype") else np.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.integer):
            refuse_no_whole_numbers("bias_index", jnp.dtype(x.dtype).name)
        if jnp.dtype(x.dtype).name not in INDEX_DTYPES:
            unsigned = jnp.issubdtype(x.dtype, jnp.unsignedinteger)
            if x.dtype.itemsize >= 4:
                x = x.clip(None if unsigned else -1, 2**31 - 1)
            x = x.astype(jnp.int32)
        x = jnp.asarray(x)
        return x[None] if x.ndim == 2 else x

    def cast(name: str, dtype: Any) -> Any:
        x = given.get(name)
        if x is None:
            return None
        x = x if hasattr(x, "dtype") else np.asarray(x)
        if jnp.issubdtype(x.dtype, jnp.complexfloating):  # JAX would leave its imaginary part out
            raise InvalidArgumentError(f"{name} is {x.dtype}, must be real")
        return jnp.asarray(x, dtype)

    def whole(name: str) -> Any:
        if given.get(name) is None:
            return None
        x = given[name]
        x = x if hasattr(x, "dtype") else np.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.integer):
            refuse_no_whole_numbers(name, jnp.dtype(x.dtype).name)
        return _as_int32(x)

    every = {
        **{n: given[n] for n in ("q", "k", "v")},
        **{n: four(n) for n in ("bias", "keep")},
        "spans": spans(),
        **dict(zip(("blocks", "block_bits"), blocks(), strict=True)),
        "bias_index": index(),
        **{
            n: cast(n, _side(given["q"]))
            for n in ("bias_table", "dist_bias", "slope", "tau", "sink")
        },
    }
    for side in ("q", "kv"):
        lengths, offsets = whole(f"lengths_{side}"), whole(f"offsets_{side}")
        every[f"lengths_{side}"], every[f"offsets_{side}"] = places(lengths, offsets)
    return opts, {n: jnp.asarray(every[n]) for n in INPUTS if every[n] is not None}
