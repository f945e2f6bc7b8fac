# SPDX-License-Identifier: MIT OR Apache-2.0
"""attention() and attention_backward() for arrays of any framework."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np

from . import _core, _plans
from ._arrays import Framework, View, framework_of
from ._blocks import parts_of
from ._devices import get_device
from ._errors import InvalidArgumentError, UnsupportedError
from ._options import (
    AttentionOptions,
    OptionalArrays,
    Options,
    Unpack,
    in_parts,
    make_options,
    refuse_unknown,
    truth,
    whole_number,
)
from ._problem import (
    BACKWARD,
    BUFFERS,
    FORWARD,
    GRADIENTS,
    INPUTS,
    Layout,
    make_problem,
    output_shapes,
    places,
    side_dtype,
)


class Gradients(NamedTuple):
    """What attention_backward() returns; None for what was not asked for."""

    q: Any = None
    k: Any = None
    v: Any = None
    bias: Any = None
    dist_bias: Any = None
    slope: Any = None
    tau: Any = None
    sink: Any = None
    bias_table: Any = None


class _Arrays:
    """The arrays of one call: views by the C API's name, all in one place."""

    def __init__(self, device: str | None, framework: Framework) -> None:
        if device is not None and not isinstance(device, str):
            raise InvalidArgumentError(
                f"device is a name such as 'cpu' or 'cuda:0', not {device!r}"
            )
        self.framework = framework
        self.views: dict[str, View] = {}
        self.where = ""  # the device on which the arrays lie
        self.updated = frozenset(("max_logit",))  # outputs that are read, too
        self.device = device

    def add(self, name: str, array: Any, framework: Framework | None = None) -> None:
        """Looks at an array, of that framework where the caller knows it."""
        view = (framework or framework_of(array)).view(name, array)
        if self.where and view.device != self.where:
            first = next(iter(self.views))
            raise InvalidArgumentError(f"{name} lies on {view.device}, {first} on {self.where}")
        self.where = view.device
        self.views[name] = view

    def layouts(self) -> dict[str, Layout]:
        return {name: view.layout for name, view in self.views.items()}

    def run(self, plan: _core.Plan, seed: int, offset: int, stream: int | None) -> None:
        """Executes, on the memory as it lies or through buffers of the device."""
        views = self.views
        # As in torch: numbers beyond the generator's range count by their low bits.
        seed = whole_number("seed", seed) % 2**64
        offset = whole_number("offset", offset) % 2**32
        if self.device is None or self.device.partition("/")[0] == self.where:
            size = plan.workspace_size
            # A page more than asked for: numpy aligns to 16 bytes.
            space = self.framework.empty((size + 4096,), "uint8", self.where) if size else None
            start = 0
            if space is not None:
                start = -(-framework_of(space).view("workspace", space).address // 4096) * 4096
            current = self.framework.stream(self.where)
            if stream is None:
                stream = current
            elif stream != current and self.framework.name in ("torch", "cupy"):
                # Their allocators reuse memory in the order of the current stream alone.
                raise InvalidArgumentError(
                    f"stream is {stream}, and {self.framework.name}'s current one {current}:"
                    " make it the current one"
                )
            addresses = tuple(
                views[n].address if n in views else start if n == "workspace" else 0
                for n in BUFFERS
            )
            plan.execute(stream, addresses, size, seed, offset)
            return
        if self.where != "cpu":
            raise InvalidArgumentError(
                f"arrays on {self.where} cannot go to {self.device}; those on the CPU can"
            )
        written = _WRITTEN_FORWARD if "d_o" not in views else _WRITTEN_BACKWARD
        spans = tuple(
            (
                views[n].address,
                _extent(views[n].layout),
                n not in written or n in self.updated,
                n in written,
            )
            if n in views
            else None
            for n in BUFFERS
        )
        plan.execute_staged(spans, seed, offset)


_WRITTEN_FORWARD = frozenset(("o", "lse", "max_logit"))
_WRITTEN_BACKWARD = frozenset(f"d_{name}" for name in (*GRADIENTS, "part_o", "part_lse"))
_ITEM = {
    "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "bool": 1, "uint8": 1,
    "uint16": 2, "float64": 8,
}  # fmt: skip


def _extent(layout: Layout) -> int:
    """Bytes from the first element to the end of the last one."""
    if 0 in layout.shape:
        return 0
    last = sum((n - 1) * s for n, s in zip(layout.shape, layout.strides, strict=True))
    return (last + 1) * _ITEM[layout.dtype]


def _four(name: str, layout: Layout) -> Layout:
    """With leading dimensions of size 1."""
    shape, strides = layout.shape, layout.strides
    if len(shape) > 4:
        raise InvalidArgumentError(f"{name} has {len(shape)} dimensions; at most 4 are possible")
    if not shape:
        raise InvalidArgumentError(f"{name} is a single number")
    missing = 4 - len(shape)
    return Layout((1,) * missing + shape, (0,) * missing + strides, layout.dtype)


def _for_all_keys(layout: Layout, sk: int) -> Layout:
    """A bias or mask whose one key is repeated for all."""
    shape, strides = layout.shape, layout.strides
    if shape[-1] == 1 != sk:
        shape, strides = (*shape[:-1], sk), (*strides[:-1], 0)
    return Layout(shape, strides, layout.dtype)


def _collect(
    framework: Framework,
    q: Any,
    k: Any,
    v: Any,
    options: Options,
    device: str | None,
    inputs: dict[str, Any],
) -> _Arrays:
    """The arrays of a call; framework is q's."""
    arrays = _Arrays(device, framework)
    arrays.add("q", q, framework)
    arrays.add("k", k)
    arrays.add("v", v)
    packed = options.packed_kv
    keys = arrays.views["k"].layout.shape
    dims = 3 if packed else 4
    if len(keys) != dims:
        raise InvalidArgumentError(f"k has {len(keys)} dimensions, not {dims}")
    sk = (options.seq_kv if packed else 0) or keys[-3 if options.bshd else -2]
    for name, array in inputs.items():
        if array is None:
            continue
        arrays.add(name, array)
        if name == "bias_index":
            view = arrays.views[name]
            if len(view.layout.shape) == 2:  # of all batch entries
                shape, strides, dtype = view.layout
                layout = Layout((1, *shape), (0, *strides), dtype)
                arrays.views[name] = view._replace(layout=layout)
        if name in ("bias", "keep", "spans"):
            view = arrays.views[name]
            layout = _four(name, view.layout)
            layout = layout if name == "spans" else _for_all_keys(layout, sk)
            arrays.views[name] = view._replace(layout=layout)
    return arrays


def _device_name(arrays: _Arrays) -> str:
    return arrays.device or arrays.where


def _split_arrays(options: AttentionOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays among the options, by the C API's names, and the others for make_options().

    Cumulative offsets are the lengths of packed tensors, and go to args.lengths_*. Beside lengths,
    offsets are args.offsets_*.
    """
    words: dict[str, Any] = {**options}
    refuse_unknown(words)
    inputs = {name: words.pop(name, None) for name in INPUTS[3:]}
    inputs["blocks"], inputs["block_bits"] = parts_of(words.pop("block_mask", None))
    for side in ("q", "kv"):
        offsets, lengths = inputs[f"offsets_{side}"], inputs[f"lengths_{side}"]
        words[f"packed_{side}"] = offsets is not None
        inputs[f"lengths_{side}"], inputs[f"offsets_{side}"] = places(lengths, offsets)
    return inputs, words


def _is_foreign_jax(framework: Framework, array: Any) -> bool:
    """Whether it is a JAX array on a GPU, whose results XLA alone can allocate, or on several
    devices, or traced."""
    if framework.name != "jax":
        return False
    jax = importlib.import_module("jax")
    if isinstance(array, jax.core.Tracer):
        return True
    devices = array.devices()  # more than one: no memory has all of it
    return len(devices) > 1 or any(device.platform != "cpu" for device in devices)


def _refuse_for_jax(**given: Any) -> None:
    for name, value in given.items():
        if value:
            raise UnsupportedError(
                f"{name} is not there for JAX arrays that are traced, on a GPU or on several"
                " devices"
            )


def _refuse_autograd(given: dict[str, Any], where: str = "out=") -> None:
    """That no gradient of torch gets lost: as in torch, out= is for calls without one."""
    for name, array in given.items():
        if not getattr(array, "requires_grad", False):
            continue
        if importlib.import_module("torch").is_grad_enabled():
            raise UnsupportedError(
                f"{name} requires a gradient, and autograd has no part in calls with {where}:"
                " detach() it, or call under torch.no_grad()"
            )


class _Bytes:
    """Memory as numpy sees it, of whichever framework it is."""

    def __init__(self, view: View) -> None:
        item = _ITEM[view.layout.dtype]
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item}",
            "data": (view.address, True),
            "shape": view.layout.shape,
            "strides": tuple(s * item for s in view.layout.strides),
        }


def _refuse_shared(out: View, inputs: dict[str, View]) -> None:
    """That out, into which a result is copied, is no input. Plans compare what they write."""
    for name, view in inputs.items():
        if view.layout.dtype not in _ITEM or out.layout.dtype not in _ITEM:
            continue  # the plan refuses the type
        if np.shares_memory(np.asarray(_Bytes(out)), np.asarray(_Bytes(view))):
            raise InvalidArgumentError(f"out shares memory with {name}: an output may share none")


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    out: Any = None,
    return_lse: bool = False,
    return_max_logit: bool = False,
    device: str | None = None,
    stream: int | None = None,
    seed: int = 0,
    offset: int = 0,
    **options: Unpack[AttentionOptions],
) -> Any:
    """Attention, forward.

    ``o_i = sum_j y_ij v_j`` with the weights y of the normalizer over the scores
    ``s_ij = cap(scale <q_i, k_j>) + bias_ij + dist_bias[h, t] - slope[h] |t|``, t = i + off - j
    (docs/guide/semantics.md has all of it).

    Args:
        q: [B, Hq, Sq, D], f32, f16 or bf16, any strides that are not negative; on the CPU f64,
            too, with which all that is said to be f32 is f64. Any framework with DLPack or a
            buffer: numpy, torch, jax, cupy.
        k: [B, Hk, Sk, D], of q's type; Hq is a multiple of Hk.
        v: [B, Hk, Sk, Dv], of q's type.
        bias: added to the scores, not scaled; [B or a divisor of it, Hq, Hk or 1, Sq or 1, Sk or
            1], with fewer dimensions too; f32, f16 or bf16. Entry b reads entry b / (B / bias's
            own).
        keep: bool or uint8, as bias; False hides a key.
        spans: int32 [B or a divisor of it, Hq, Hk or 1, Sk, 2 or 4], contiguous, fewer dimensions
            too: begin and end of the rows that see a key, one interval or two; it hides the key
            from other rows. Entry b reads entry b / (B / spans' own). ``tandem_attention.masks``
            makes them.
        block_mask: ``tandem_attention.masks.Blocks``: lists of the blocks that are visible, beside
            everything but ``keep``.
        bias_table: f32 [Hq, N], contiguous; with bias_index, in place of bias: the biases that a
            head has.
        bias_index: uint8, uint16 or int32, [B or a divisor, Sq, Sk] or [Sq, Sk], contiguous: the
            entry of bias_table that each pair reads, in all heads. A pair whose index is no entry
            has no bias.
        dist_bias: f32 [Hq, W], added at distance t for 0 <= t < W.
        slope: f32 [Hq], ALiBi's slopes, for the distance |t|; or [a divisor of B, Hq], as bias.
        tau: f32 [Hq], with ``normalizer="elastic"`` alone.
        sink: f32 [Hq] or [a divisor of B, Hq], one more score in each row's sum.
        lengths_q, lengths_kv: int32 [B], how many rows of each batch entry are there.
        offsets_q, offsets_kv: int32 [B + 1], cumulative from 0: q (k, v) is packed, [Hq, total, D].
            Beside lengths int32 [B]: entry b has the rows from offsets[b] to offsets[b] +
            lengths[b], in any order and with gaps, which are neither used nor written.
        max_seq_q, max_seq_kv: the longest sequence of packed tensors; 0 means the total.
        scale: 1 / sqrt(D) by default.
        causal: True, "top_left" or "bottom_right": key j is seen up to i + off.
        align: where the diagonal is, for windows and distances: "top_left" (off is 0) or
            "bottom_right" (off is Sk - Sq).
        window: (left, right), keys on both sides of the diagonal; -1 or None is unbounded.
        softcap: c > 0: c tanh(s / c) in place of the scaled product.
        dropout: 0 <= p < 1, with seed and offset (Philox4x32-10).
        normalizer: "softmax", "elastic" or "entmax".
        alpha: of entmax, 1 < alpha <= 2.
        layout: "bhsd", or "bshd" for tensors [B, S, H, D] (packed: [total, H, D]).
        deterministic: the same bits run after run; costs speed on some paths.
        batch_invariant: the bits of a row do not depend on the batch, on padding, packing, how many
            heads there are, or where a prefill is cut. Includes deterministic. With softmax, masks
            by position, softcap, slope, sink and lengths.
        allow_tf32: f32 products may round their operands to TF32.
        workspace_limit: most bytes of workspace; 0: the planner's choice.
        out: an array for o; else a new one of q's framework.
        return_lse: also return lse, f32 [B, Hq, Sq].
        return_max_logit: also return the largest score of a visible key of each head, before any
            sink, f32 [B, Hq]; minus infinity where no row sees a key. With softmax alone. Not on
            JAX arrays that are traced, on a GPU or on several devices.
        device: "cpu", "vulkan:0", "cuda:0", ...; by default the one on which q lies. Arrays on the
            CPU may go to any device: they are copied there and back.
        stream: a CUDA stream as a number; by default the framework's current one, which is the only
            one that torch and cupy may name.
        seed, offset: of dropout. The same numbers drop the same weights: count offset up from step
            to step. tandem_attention.torch.attention() draws the seed where none is given; here it
            is 0, for torch tensors, too, so that attention_backward() knows it.

    Returns:
        o, [B, Hq, Sq, Dv] in q's layout and type; with return_lse or return_max_logit a tuple of
        it and those, in this order. On CUDA the work is queued on the stream.
        Torch tensors take part in autograd, but not with device= or stream=, which give results
        without a gradient, nor with out=, which refuses inputs that want one.

    Raises:
        TandemError: or a subclass, with the library's sentence.
    """
    framework = framework_of(q)
    if framework.name == "torch" and device is None and out is None and stream is None:
        from . import torch as tandem_torch

        return tandem_torch.attention(
            q, k, v, return_lse=return_lse, return_max_logit=return_max_logit, seed=seed,
            offset=offset, **options
        )  # fmt: skip
    if _is_foreign_jax(framework, q):
        from . import jax as tandem_jax

        _refuse_for_jax(
            device=device is not None, out=out is not None, stream=stream is not None,
            seed=seed, offset=offset, return_max_logit=return_max_logit,
        )  # fmt: skip
        taken: Any = options  # dropout too, which it refuses by a sentence
        return tandem_jax.attention(q, k, v, return_lse=return_lse, **taken)
    inputs, words = _split_arrays(options)
    opts = make_options(**words)
    if out is not None:
        _refuse_autograd({"q": q, "k": k, "v": v, **inputs, "out": out})
    elif framework.name != "torch":
        _refuse_autograd({"k": k, "v": v, **inputs}, "a q that is no tensor")
    arrays = _collect(framework, q, k, v, opts, device, inputs)
    shapes = output_shapes(arrays.layouts(), opts)
    make, of_out = framework, None if out is None else framework_of(out)
    o = (
        make.empty(shapes["o"], arrays.views["q"].layout.dtype, arrays.where)
        if out is None
        else out
    )
    staged = device is not None and arrays.where == "cpu" and device.partition("/")[0] != "cpu"
    # A staged call copies whole buffers back, which would overwrite what lies between rows of out.
    target = o
    if staged and out is not None:
        target = make.empty(shapes["o"], arrays.views["q"].layout.dtype, "cpu")
    if out is not None and isinstance(out, np.ndarray) and not out.flags.writeable:
        raise InvalidArgumentError("out is read-only")
    if target is not o and tuple(out.shape) != shapes["o"]:
        raise InvalidArgumentError(f"out has the shape {list(out.shape)}, not {list(shapes['o'])}")
    if target is not o and of_out is not None:
        _refuse_shared(of_out.view("out", out), arrays.views)
    arrays.add("o", target, of_out if target is out else None)
    lse = None
    if truth("return_lse", return_lse):
        side = side_dtype(arrays.views["q"].layout.dtype)
        lse = make.empty(shapes["lse"], side, arrays.where)
        arrays.add("lse", lse)
    max_logit = None
    if truth("return_max_logit", return_max_logit):
        max_logit = make.empty(shapes["max_logit"], "float32", arrays.where)
        max_logit[...] = -math.inf
        arrays.add("max_logit", max_logit)
    plan = _plans.get(_device_name(arrays), arrays.layouts(), opts, FORWARD, 0)
    arrays.run(plan, seed, offset, stream)
    if target is not o:
        out[...] = target
    elif of_out is not None and of_out.name == "torch":
        # The library writes behind torch's back: what autograd saved of out counts as changed.
        importlib.import_module("torch").autograd.graph.increment_version(out)
    o = make.finish(o) if out is None else o
    more = [make.finish(x) for x in (lse, max_logit) if x is not None]
    return (o, *more) if more else o


def attention_backward(
    d_o: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    d_lse: Any = None,
    part_of_keys: bool = False,
    gradients: tuple[str, ...] | None = None,
    bias_gradient_dtype: str | None = None,
    device: str | None = None,
    stream: int | None = None,
    seed: int = 0,
    offset: int = 0,
    **options: Unpack[AttentionOptions],
) -> Gradients:
    """Attention, backward.

    Args:
        d_o: [B, Hq, Sq, Dv], the gradient of a loss with respect to o; of q's type.
        q, k, v: as in attention().
        o, lse: what attention() of the same problem returned, on any device.
        d_lse: f32 [B, Hq, Sq], the gradient of the loss with respect to lse, where it depends on
            lse; with softmax alone.
        part_of_keys: k and v are a part of the keys that o and lse are of, as in ring attention:
            the gradients are then this part's, and those of q add up over the parts. With softmax
            alone, and not for the gradient of slope.
        gradients: of "q", "k", "v", "bias", "dist_bias", "slope", "tau", "sink", "bias_table"; by
            default of every input that is given and has one.
        bias_gradient_dtype: "float32", or by default bias's type.
        device, stream, seed, offset: as in attention(), the values of the forward.
        options: the other arguments of attention(), the values of the forward.

    Returns:
        Gradients, in the shapes and types of their inputs; those of dist_bias, slope, tau, sink
        and bias_table are f32.

    Raises:
        TandemError: or a subclass, with the library's sentence.
    """
    framework = framework_of(q)
    if _is_foreign_jax(framework, q):
        from . import jax as tandem_jax

        _refuse_for_jax(
            device=device is not None, stream=stream is not None, seed=seed, offset=offset
        )
        words: dict[str, Any] = {**options}
        given = {"q": q, "k": k, "v": v}
        for name in OptionalArrays.__annotations__:
            if (array := words.pop(name, None)) is not None:
                given[name] = array
        gradients = _wanted(gradients, given)
        return Gradients(**tandem_jax.attention_backward(
            d_o, o, lse, given, gradients, bias_gradient_dtype, d_lse, part_of_keys, words
        ))  # fmt: skip
    inputs, words = _split_arrays(options)
    opts = in_parts(make_options(**words), part_of_keys)
    arrays = _collect(framework, q, k, v, opts, device, inputs)
    gradients = _wanted(gradients, {"q": q, "k": k, "v": v, **inputs})
    for name, array in (("d_o", d_o), ("o", o), ("lse", lse)):
        arrays.add(name, array)
    if d_lse is not None:
        arrays.add("d_lse", d_lse)
    make, results = framework, {}
    for name in gradients:
        layout = arrays.views[name].layout
        dtype = bias_gradient_dtype if name == "bias" and bias_gradient_dtype else layout.dtype
        results[name] = make.empty(layout.shape, dtype, arrays.where)
        arrays.add(f"d_{name}", results[name])
    bits = sum(GRADIENTS[name] for name in gradients)
    plan = _plans.get(_device_name(arrays), arrays.layouts(), opts, BACKWARD, bits)
    arrays.run(plan, seed, offset, stream)
    shaped = {}
    for name, array in results.items():
        if name == "bias":
            array = _reduced(array, inputs["bias"])
        shaped[name] = make.finish(array)
    return Gradients(**shaped)


def _wanted(gradients: tuple[str, ...] | None, present: dict[str, Any]) -> tuple[str, ...]:
    """The names of the gradients to compute; by default of all that is present and has one."""
    if gradients is None:
        return tuple(n for n in GRADIENTS if present.get(n) is not None)
    try:
        names = tuple(gradients)
    except TypeError:
        raise InvalidArgumentError(
            f"gradients is a {type(gradients).__name__}, not names such as ('q', 'k', 'v')"
        ) from None
    for name in names:
        if not isinstance(name, str) or name not in GRADIENTS:
            raise InvalidArgumentError(f"{name!r} has no gradient; {', '.join(GRADIENTS)} have")
        if present.get(name) is None:
            raise InvalidArgumentError(f"the gradient of {name} is asked for, and {name} is absent")
    return names


def _reduced(gradient: Any, bias: Any) -> Any:
    """d_bias in bias's own shape: summed over keys where bias has one for all."""
    if bias.shape[-1] == 1 != gradient.shape[-1]:
        if hasattr(gradient, "astype"):  # numpy's and cupy's
            side = side_dtype(gradient.dtype.name)
            wide = gradient.astype(side).sum(-1, keepdims=True)
            gradient = wide.astype(gradient.dtype)
        else:
            gradient = gradient.sum(-1, keepdim=True)
    return gradient.reshape(tuple(bias.shape))


@dataclass(frozen=True)
class PlanInfo:
    """What a problem becomes on a device.

    Attributes:
        line: the problem in one line, as ``tandem bench --problem`` takes it.
        path: backend and path, such as ``"cuda.sm90"``.
        kernels: in the order in which they run.
        tile: (Br, Bc); (0, 0) where the path has no tiles.
        workspace_bytes: device memory that a call needs beside its arrays.
        flops: 2 (D + Dv) for each visible pair of every head; 2.5 times that backward.
        estimated_ms: time of one call on the device, as times of a GPU of the same kind let it
            expect; None where there are none of this path, or of no problem like this one.
        deterministic: whether every gradient has the same bits run after run.
    """

    line: str
    path: str
    kernels: tuple[str, ...]
    tile: tuple[int, int]
    workspace_bytes: int
    flops: float
    estimated_ms: float | None
    deterministic: bool


def _problem_of(
    args: tuple[Any, ...], backward: bool, options: AttentionOptions
) -> tuple[_core.Problem, str | None]:
    if len(args) == 1 and isinstance(args[0], str):
        if options or backward:
            raise InvalidArgumentError("a problem line says all options itself")
        return _core.Problem.parse(args[0]), None
    if len(args) != 3:
        raise InvalidArgumentError("plan and explain take a problem line, or q, k and v")
    q, k, v = args
    inputs, words = _split_arrays(options)
    opts = make_options(**words)
    arrays = _collect(framework_of(q), q, k, v, opts, None, inputs)
    bits = 0
    if backward:
        present = {"q": q, "k": k, "v": v, **inputs}
        bits = sum(bit for name, bit in GRADIENTS.items() if present.get(name) is not None)
        if inputs["bias"] is not None:
            arrays.views["d_bias"] = arrays.views["bias"]
    problem, _ = make_problem(arrays.layouts(), opts, BACKWARD if backward else FORWARD, bits)
    return problem, arrays.where


@overload
def plan(line: str, /, *, device: str | None = None) -> PlanInfo: ...


@overload
def plan(
    q: Any,
    k: Any,
    v: Any,
    /,
    *,
    device: str | None = None,
    backward: bool = False,
    **options: Unpack[AttentionOptions],
) -> PlanInfo: ...


def plan(
    *args: Any,
    device: str | None = None,
    backward: bool = False,
    **options: Unpack[AttentionOptions],
) -> PlanInfo:
    """The kernels, tiles and workspace of a problem, without running it.

    Args:
        args: q, k and v, or one problem line such as
            ``"bwd bf16 b2 hq8 hk2 sq128 sk130 d64 causal_bottom_right"``.
        device: by default the one on which q lies; ``"cpu"`` for a line.
        backward: of q, k and v: plan the backward with all gradients.
        options: those of attention().

    Raises:
        UnsupportedError: no path takes the problem; explain() says why.
    """
    problem, where = _problem_of(args, backward, options)
    made = _core.Plan(get_device(where or "cpu" if device is None else device), problem)
    return PlanInfo(
        line=str(problem),
        path=f"{made.backend}.{made.path}",
        kernels=tuple(made.kernels),
        tile=(made.tile_rows, made.tile_cols),
        workspace_bytes=made.workspace_size,
        flops=made.flops,
        estimated_ms=made.estimated_ms or None,
        deterministic=made.unordered == 0,
    )


@overload
def explain(line: str, /, *, device: str | None = None) -> str: ...


@overload
def explain(
    q: Any,
    k: Any,
    v: Any,
    /,
    *,
    device: str | None = None,
    backward: bool = False,
    **options: Unpack[AttentionOptions],
) -> str: ...


def explain(
    *args: Any,
    device: str | None = None,
    backward: bool = False,
    **options: Unpack[AttentionOptions],
) -> str:
    """Every path of the device, a line each, with its tiles or the reason for its refusal.

    Args: those of plan().
    """
    problem, where = _problem_of(args, backward, options)
    return get_device(where or "cpu" if device is None else device).explain(problem)
