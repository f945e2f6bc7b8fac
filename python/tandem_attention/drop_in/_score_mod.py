# SPDX-License-Identifier: MIT OR Apache-2.0
"""Score mods of FlexAttention as the inputs of attention().

A score mod is traced on scalars, which gives a graph of operations, and the graph is followed from
the score on: what comes out must be ``m score + f(b, h, i, j)`` or ``m tanh(a score) + f``. The
values of f are then those of the mod itself at a score of 0, so autograd knows what f was made of.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from .._errors import UnsupportedError

_NO_INDEX: frozenset[str] = frozenset()
_INDICES = ("b", "h", "i", "j")
#: What a distance's name among the indices is: the value is known from i - j.
_DISTANCE = "t"


class Free(NamedTuple):
    """A value that the score is no part of.

    Attributes:
        of: the indices that it is known from, "b", "h", "i", "j", or "t" for i - j.
        number: its value, where it is the same everywhere and known.
        affine: (x, y, z), where it is x i + y j + z.
        far: "signed" or "abs", where it is i - j, or its absolute value, times what no position
            is part of.
        hides: it may be minus infinity by a condition of the mod.
    """

    of: frozenset[str] = _NO_INDEX
    number: float | None = None
    affine: tuple[float, float, float] | None = None
    far: str | None = None
    hides: bool = False


class Form(NamedTuple):
    """``times * score + added``, or ``times * tanh(inner * score) + added``."""

    times: float
    inner: float | None
    added: Free


class _NoFormError(Exception):
    """What a mod does that no input of attention() stands for."""


class _ReadByIndex(TorchFunctionMode):
    """tensor[i, j] of scalars as an operation, where torch would look at the numbers."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__:
            index = list(args[1]) if isinstance(args[1], (tuple, list)) else [args[1]]
            if any(isinstance(n, Tensor) for n in index) and all(
                isinstance(n, Tensor) or type(n) is int for n in index
            ):
                read = [n if isinstance(n, Tensor) else torch.tensor(n) for n in index]
                tensor: Tensor = args[0]
                if tensor.requires_grad and tensor.dtype in (torch.float16, torch.bfloat16):
                    # The gradient of an element is summed over all pairs that read it.
                    tensor = tensor.to(torch.float32)
                return torch.ops.aten.index(tensor, read)
        return func(*args, **(kwargs or {}))


_ZERO = Free(number=0.0)
_aten = torch.ops.aten
_COPIES = {
    _aten._to_copy.default, _aten.clone.default, _aten.detach.default, _aten.alias.default,
    _aten.lift_fresh_copy.default, _aten.lift_fresh.default,
}  # fmt: skip
_ADD = {_aten.add.Tensor, _aten.add.Scalar}
_SUB = {_aten.sub.Tensor, _aten.sub.Scalar}
_RSUB = {_aten.rsub.Tensor, _aten.rsub.Scalar}
_MUL = {_aten.mul.Tensor, _aten.mul.Scalar}
_DIV = {_aten.div.Tensor, _aten.div.Scalar}
_WHERE = {_aten.where.self, _aten.where.ScalarOther, _aten.where.ScalarSelf}
_FILL = {_aten.masked_fill.Scalar, _aten.masked_fill.Tensor}
#: Types that a number of the score's type goes through unchanged; None stands for no new type.
_WIDE = (None, torch.float32, torch.float64)
_SUMS = "score + f(b, h, i, j), a number times the score, or cap * tanh(score / cap)"


def _affine(x: float, y: float, z: float) -> Free:
    if x == y == 0:
        return Free(number=z)
    if x == -y:
        return Free(frozenset("t"), affine=(x, y, z), far="signed" if z == 0 else None)
    return Free(frozenset(n for n, c in (("i", x), ("j", y)) if c), affine=(x, y, z))


def _line(value: Free) -> tuple[float, float, float] | None:
    return (0.0, 0.0, value.number) if value.number is not None else value.affine


def _union(*values: Free) -> Free:
    """What is known of a function of values."""
    infinite = any(v.number is not None and not math.isfinite(v.number) for v in values)
    return Free(
        _NO_INDEX.union(*(v.of for v in values)), hides=infinite or any(v.hides for v in values)
    )


def _sum(a: Free, b: Free, sign: float = 1.0) -> Free:
    """a + sign b."""
    one, two = _line(a), _line(b)
    if one is not None and two is not None:
        return _affine(*(x + sign * y for x, y in zip(one, two, strict=True)))
    both = _union(a, b)
    if b.number == 0:
        return a
    if (a.number == 0 and b.far) or (a.far and a.far == b.far):
        return both._replace(far=b.far)
    return both


def _product(a: Free, b: Free) -> Free:
    if b.number is None:
        a, b = b, a
    one = _line(a)
    if one is not None and b.number is not None:
        return _affine(*(x * b.number for x in one))
    both = _union(a, b)
    for far, factor in ((a, b), (b, a)):
        if far.far and factor.of <= {"b", "h"}:
            return both._replace(far=far.far)
    return both


def _quotient(a: Free, b: Free) -> Free:
    if b.number:
        return _product(a, Free(number=1 / b.number))
    return _union(a, b)._replace(far=a.far if b.of <= {"b", "h"} else None)


def _free(target: Any, args: list[Free], dtype: torch.dtype | None) -> Free:
    """What is known of an operation on values that the score is no part of."""
    if target in _COPIES:
        return args[0] if dtype in _WIDE else _union(args[0])
    if target in _ADD and len(args) == 2:
        return _sum(args[0], args[1])
    if target in _SUB and len(args) == 2:
        return _sum(args[0], args[1], -1)
    if target in _RSUB and len(args) == 2:
        return _sum(args[1], args[0], -1)
    if target in _MUL:
        return _product(args[0], args[1])
    if target in _DIV:
        return _quotient(args[0], args[1])
    if target is _aten.neg.default:
        return _product(args[0], Free(number=-1.0))
    if target is _aten.abs.default and args[0].far == "signed":
        # The factor's sign may vary: only that of i - j itself, or of a number times it, is known.
        return _union(args[0])._replace(far="abs")
    if target in (_aten.scalar_tensor.default, _aten.full.default) and args[-1].number is not None:
        return args[-1]
    return _union(*args)


def _scaled(form: Form, by: Free, what: str) -> Form:
    if by.number is None or not math.isfinite(by.number):
        raise _NoFormError(f"{what} the score by what is no number")
    number = by.number
    return form._replace(times=form.times * number, added=_product(form.added, by))


def _chosen(condition: Any, yes: Any, no: Any) -> Form:
    """where(condition, yes, no), in which the score is."""
    if isinstance(condition, Form):
        raise _NoFormError("compares the score")
    if isinstance(yes, Form) and isinstance(no, Form):
        if yes[:2] != no[:2]:
            raise _NoFormError("chooses between different multiples of the score")
        return Form(yes.times, yes.inner, _union(condition, yes.added, no.added))
    form, other = (yes, no) if isinstance(yes, Form) else (no, yes)
    if other.number != -math.inf:
        raise _NoFormError("puts something else in the place of the score than minus infinity")
    hidden = _union(condition, form.added)._replace(hides=True)
    return Form(form.times, form.inner, hidden)


def _of_score(target: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Form:
    """An operation that takes the score."""
    form: Form = next(a for a in args if isinstance(a, Form))
    scores, first = sum(isinstance(a, Form) for a in args), isinstance(args[0], Form)
    if target in _WHERE:
        return _chosen(args[0], args[1], args[2])
    if scores == 1 and first:
        if target in _COPIES and kwargs.get("dtype") in _WIDE:
            return form
        if target in _FILL:
            return _chosen(args[1], args[2], form)
        if target in _ADD | _SUB and not kwargs.get("alpha"):
            sign = 1 if target in _ADD else -1
            return form._replace(added=_sum(form.added, args[1], sign))
        if target is _aten.neg.default:
            return _scaled(form, Free(number=-1.0), "multiplies")
        if target in _DIV and not kwargs.get("rounding_mode"):
            by: Free = args[1]
            by = Free(number=1 / by.number) if by.number else Free(by.of)
            return _scaled(form, by, "divides")
        if target is _aten.tanh.default and form.inner is None and form.added.number == 0:
            return Form(1.0, form.times, _ZERO)
    if scores == 1 and target in _MUL:
        return _scaled(form, args[1] if first else args[0], "multiplies")
    if scores == 1 and target in _ADD and not kwargs.get("alpha"):
        return form._replace(added=_sum(args[0], form.added))
    if scores == 1 and not kwargs.get("alpha") and (
        (target in _SUB and not first) or (target in _RSUB and first)
    ):  # fmt: skip
        other: Free = args[0] if target in _SUB else args[1]
        form = _scaled(form, Free(number=-1.0), "multiplies")
        return form._replace(added=_sum(other, form.added))
    if target is _aten.tanh.default:
        raise _NoFormError("takes tanh of the score together with something else")
    raise _NoFormError(f"hands the score to {target}")


def _constant(value: Any) -> Free:
    if isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad:
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return Free(number=float(value))
    return Free()


def _follow(graph: Graph, module: Any) -> Any:
    known: dict[Node, Any] = {}
    inputs = iter(
        [Form(1.0, None, _ZERO), Free(frozenset("b")), Free(frozenset("h")),
         _affine(1, 0, 0), _affine(0, 1, 0)]
    )  # fmt: skip

    def value(a: Any) -> list[Any]:
        if isinstance(a, (list, tuple)):
            return [v for x in a for v in value(x)]
        return [known[a]] if isinstance(a, Node) else [_constant(a)]

    for node in graph.nodes:
        if node.op == "placeholder":
            known[node] = next(inputs)
        elif node.op == "get_attr":
            known[node] = _constant(operator.attrgetter(str(node.target))(module))
        elif node.op == "output":
            made = value(node.args[0])
            if len(made) != 1:
                raise _NoFormError(f"returns {len(made)} values, not one")
            return made[0]
        else:
            known[node] = _apply(node, value)
    raise AssertionError("a graph has an output")


def _apply(node: Node, value: Callable[[Any], list[Any]]) -> Any:
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        raise _NoFormError(f"draws random numbers by {target}")
    if getattr(getattr(target, "_schema", None), "is_mutable", False):
        raise _NoFormError(f"writes in place by {target}")
    args = value(node.args)
    if any(isinstance(a, Form) for a in args):
        return _of_score(target, args, node.kwargs)
    more = [v for k, v in node.kwargs.items() if isinstance(v, Node) or k in ("alpha", "value")]
    args += value(more)
    if any(isinstance(a, Form) for a in args):
        raise _NoFormError(f"hands the score to {target}")
    if node.kwargs.get("rounding_mode"):
        return _union(*args)
    dtype: Any = node.kwargs.get("dtype")
    return _free(target, args, dtype)


def form_of(score_mod: Callable[..., Any], device: torch.device) -> Form:
    """What a score mod makes of the score.

    Raises:
        UnsupportedError: it is no sum, with what it does instead.
    """
    name = getattr(score_mod, "__name__", type(score_mod).__name__)
    score = torch.zeros((), dtype=torch.float32, device=device)
    index = [torch.zeros((), dtype=torch.int64, device=device) for _ in _INDICES]
    try:
        with torch.no_grad(), _ReadByIndex():
            traced = make_fx(score_mod)(score, *index)
    except Exception as error:
        raise UnsupportedError(f"score_mod {name} cannot be traced: {error}") from error
    traced.graph.eliminate_dead_code()
    try:
        form = _follow(traced.graph, traced)
        if isinstance(form, Free):
            raise _NoFormError("returns what the score is no part of")
    except _NoFormError as error:
        raise UnsupportedError(f"score_mod {name} {error}; it may be {_SUMS}") from None
    made: Form = form
    return made


def values(score_mod: Callable[..., Any], at: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """f, of the mod at a score of 0; f32 [b, h, i, j], with autograd's history.

    Args:
        at: whole numbers for each of "b", "h", "i", "j": [n], or [] of an index that f is the same
            for, or that stays the same.
    """

    def of_zero(*index: Tensor) -> Any:
        return score_mod(torch.zeros((), dtype=torch.float32, device=device), *index)

    function: Any = of_zero
    for n in reversed(range(len(_INDICES))):
        if at[_INDICES[n]].dim():
            places: list[int | None] = [None] * len(_INDICES)
            places[n] = 0
            function = torch.vmap(function, in_dims=tuple(places))
    with _ReadByIndex():
        made: Tensor = function(*(at[name] for name in _INDICES))
    return made.to(torch.float32).reshape([at[name].numel() for name in _INDICES])


class _Sizes(NamedTuple):
    b: int
    h: int
    i: int
    j: int


def lower(
    score_mod: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    scale: float,
    is_causal: Callable[[], bool],
) -> dict[str, Any]:
    """The arguments of attention() that stand for a score mod, scale among them.

    Args:
        query: [B, Hq, L, E]. key: [B, Hkv, S, E].
        is_causal: says whether no row sees a key behind it; asked only where that matters.

    Raises:
        UnsupportedError: as form_of().
    """
    device = query.device
    form = form_of(score_mod, device)
    made = _multiples(form, scale, getattr(score_mod, "__name__", type(score_mod).__name__))
    f = form.added
    sizes = _Sizes(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if f.number == 0 or 0 in sizes:
        return made
    every = {
        name: torch.arange(size, device=device) for name, size in zip(_INDICES, sizes, strict=True)
    }
    zero = torch.zeros((), dtype=torch.int64, device=device)
    by_distance = f.of <= {"h", _DISTANCE} and _DISTANCE in f.of and not f.hides
    if by_distance and sizes.i > 1 and (f.far == "abs" or (f.far and is_causal())):
        one = values(score_mod, {"b": zero, "h": every["h"], "i": zero + 1, "j": zero}, device)
        made["slope"] = -one.reshape(sizes.h)
    elif by_distance and is_causal():
        line = {"b": zero, "h": every["h"], "i": every["i"], "j": zero}
        made["dist_bias"] = values(score_mod, line, device).reshape(sizes.h, sizes.i)
    else:
        of = f.of | {"i", "j"} if _DISTANCE in f.of else f.of
        at = {name: every[name] if name in of else zero for name in _INDICES}
        made["bias"] = values(score_mod, at, device)
    return made


def _multiples(form: Form, scale: float, name: str) -> dict[str, Any]:
    """scale and softcap."""
    if form.inner is None:
        return {"scale": scale * form.times}
    times, inner = form.times, form.inner
    if times < 0:  # tanh is odd
        times, inner = -times, -inner
    if times == 0:
        raise UnsupportedError(f"score_mod {name} multiplies tanh of the score by 0")
    return {"scale": scale * times * inner, "softcap": times}
