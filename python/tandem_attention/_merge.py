# SPDX-License-Identifier: MIT OR Apache-2.0
"""merge() and merge_backward() for arrays of any framework."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from . import _core, _plans
from ._arrays import Framework, framework_of
from ._attention import (
    _Arrays,
    _device_name,
    _is_foreign_jax,
    _refuse_autograd,
    _refuse_for_jax,
    _refuse_shared,
)
from ._devices import get_device, threads_of
from ._errors import InvalidArgumentError
from ._options import Order, is_bshd
from ._problem import make_merge, side_dtype


def _plan(arrays: _Arrays, bshd: bool, into: bool) -> _core.Plan:
    device, layouts = _device_name(arrays), arrays.layouts()
    key = ("merge", device, threads_of(device), bshd, into, tuple(layouts.items()))
    made: _core.Plan | None = _plans.find(key)
    if made is None:
        problem = make_merge(layouts, bshd, into)
        made = _plans.add(key, _core.Plan(get_device(device), problem))
    return made


def _collect(
    framework: Framework, part_o: Any, part_lse: Any, bshd: bool, device: str | None
) -> _Arrays:
    arrays = _Arrays(device, framework)
    arrays.add("part_o", part_o, framework)
    arrays.add("part_lse", part_lse)
    make_merge(arrays.layouts(), bshd, False)  # that there are sizes to make results of
    return arrays


def _into(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise InvalidArgumentError(f"into is a pair (o, lse), not a {type(given).__name__}")
    for name, array in zip(("o", "lse"), given, strict=True):
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            raise InvalidArgumentError(f"{name} of into is read-only")
    return given[0], given[1]


def merge(
    part_o: Any,
    part_lse: Any,
    *,
    into: Any = None,
    layout: Order = "bhsd",
    device: str | None = None,
    stream: int | None = None,
) -> tuple[Any, Any]:
    """o and lse of disjoint parts of the keys become those of all these keys.

    ``lse_i = ln sum_n exp(lse_ni)``, ``o_i = sum_n exp(lse_ni - lse_i) o_ni``. What a part holds in
    rows of which it saw no key, those whose lse is minus infinity, has no effect, and may be NaN. A
    row that one part alone saw has the bits of this part.

    Args:
        part_o: [parts, B, Hq, Sq, Dv], f32, f16 or bf16, any strides; on the CPU f64, too, with
            which all that is said to be f32 is f64.
        part_lse: f32 [parts, B, Hq, Sq], contiguous, as attention() returns it.
        into: a pair (o, lse) of one more part, [B, Hq, Sq, Dv] and f32 [B, Hq, Sq], which counts as
            the one before the others and is overwritten by the result; o may have another type than
            part_o. By default the results are new, o of part_o's type.
        layout: "bhsd", or "bshd" for [parts, B, Sq, Hq, Dv] and [B, Sq, Hq, Dv].
        device, stream: as in attention().

    Returns:
        o, [B, Hq, Sq, Dv] in layout's order, and lse, f32 [B, Hq, Sq]. Torch tensors take part in
        autograd, but not with device=, stream= or into=, which refuses inputs that want a gradient.

    Raises:
        TandemError: or a subclass, with the library's sentence.
    """
    framework = framework_of(part_o)
    if framework.name == "torch" and device is None and into is None and stream is None:
        from . import torch as tandem_torch

        return tandem_torch.merge(part_o, part_lse, layout=layout)
    if _is_foreign_jax(framework, part_o):
        _refuse_for_jax(merge=True)
    bshd = is_bshd(layout)
    arrays = _collect(framework, part_o, part_lse, bshd, device)
    if into is None:
        part = arrays.views["part_o"].layout
        o = framework.empty(part.shape[1:], part.dtype, arrays.where)
        side = side_dtype(part.dtype)
        lse = framework.empty(arrays.views["part_lse"].layout.shape[1:], side, arrays.where)
        arrays.add("o", o)
        arrays.add("lse", lse)
        arrays.run(_plan(arrays, bshd, False), 0, 0, stream)
        return framework.finish(o), framework.finish(lse)
    o, lse = _into(into)
    _refuse_autograd({"part_o": part_o, "part_lse": part_lse, "o": o, "lse": lse})
    # A staged call copies whole buffers back, which would overwrite what lies between rows of o.
    staged = device is not None and arrays.where == "cpu" and device.partition("/")[0] != "cpu"
    target, of_o = o, framework_of(o)
    if staged:
        view = of_o.view("o", o)
        _refuse_shared(view, arrays.views)
        target = framework.empty(view.layout.shape, view.layout.dtype, "cpu")
        target[...] = o
    arrays.updated = frozenset(("o", "lse"))
    arrays.add("o", target)
    arrays.add("lse", lse)
    arrays.run(_plan(arrays, bshd, True), 0, 0, stream)
    if target is not o:
        o[...] = target
    if of_o.name == "torch":
        # The library writes behind torch's back: what autograd saved of them counts as changed.
        importlib.import_module("torch").autograd.graph.increment_version((o, lse))
    return o, lse


def merge_backward(
    d_o: Any,
    part_o: Any,
    part_lse: Any,
    *,
    d_lse: Any = None,
    layout: Order = "bhsd",
    device: str | None = None,
    stream: int | None = None,
) -> tuple[Any, Any]:
    """The gradients of merge() with respect to the parts.

    Args:
        d_o: [B, Hq, Sq, Dv], the gradient of a loss with respect to o.
        part_o, part_lse: as in merge().
        d_lse: f32 [B, Hq, Sq], the gradient of the loss with respect to lse, where it depends on
            lse.
        layout, device, stream: as in merge().

    Returns:
        d_part_o, in the shape and type of part_o, and d_part_lse, f32 [parts, B, Hq, Sq]: what
        attention_backward() of each part takes as d_o and d_lse.

    Raises:
        TandemError: or a subclass, with the library's sentence.
    """
    framework = framework_of(part_o)
    if _is_foreign_jax(framework, part_o):
        _refuse_for_jax(merge_backward=True)
    bshd = is_bshd(layout)
    arrays = _collect(framework, part_o, part_lse, bshd, device)
    arrays.add("d_o", d_o)
    if d_lse is not None:
        arrays.add("d_lse", d_lse)
    made = []
    for name in ("part_o", "part_lse"):
        of = arrays.views[name].layout
        made.append(framework.empty(of.shape, of.dtype, arrays.where))
        arrays.add(f"d_{name}", made[-1])
    arrays.run(_plan(arrays, bshd, False), 0, 0, stream)
    d_part_o, d_part_lse = map(framework.finish, made)
    return d_part_o, d_part_lse
