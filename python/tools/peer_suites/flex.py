# SPDX-License-Identifier: MIT OR Apache-2.0
"""torch's tests of FlexAttention on our drop-in.

They compare ``torch.compile(f)`` with f run eagerly and with f in double. Here a compiled f runs
eagerly with our flex_attention(), the two others keep torch's.

Where there is no CUDA device, "cuda" is the CPU, the tests run at an eighth of their lengths, and
what torch refuses there, gradients, comes from dense products.
"""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode

_theirs = flex.flex_attention
_ours: list[bool] = []
_SHORTER = 8
_modes: list[TorchFunctionMode] = []


@contextmanager
def _running_ours() -> Iterator[None]:
    _ours.append(True)
    try:
        yield
    finally:
        _ours.pop()


class _OnTheCpu(TorchFunctionMode):
    """Whatever asks for a CUDA device gets the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.to:
            args = tuple("cpu" if isinstance(a, str) and a[:4] == "cuda" else a for a in args)
        return func(*args, **kwargs)


def _dense(
    query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None,
    scale: Any = None, enable_gqa: bool = False, return_lse: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """What torch's function is, in query's type, with gradients."""
    if query.shape[0] != key.shape[0]:
        key, value = (t.expand(query.shape[0], -1, -1, -1) for t in (key, value))
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    s = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    s = s.to(torch.promote_types(s.dtype, torch.float32))
    index = [torch.arange(n, device=s.device) for n in s.shape]
    if score_mod is not None:
        from tandem_attention.drop_in._score_mod import _ReadByIndex

        function = score_mod
        for n in (4, 3, 2, 1):
            places = [0 if at in (0, n) else None for at in range(5)]
            function = torch.vmap(function, in_dims=tuple(places))
        with _ReadByIndex():
            s = function(s, *index)
    if block_mask is not None:
        rows, keys = s.shape[2:]
        shown = flex.create_mask(
            block_mask.mask_mod, s.shape[0], s.shape[1], rows, keys, device=s.device
        )
        s = s.masked_fill(~shown, -torch.inf)
    empty = (s == -torch.inf).all(-1, keepdim=True)
    p = s.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
    o = p.to(query.dtype) @ value
    return (o, s.logsumexp(-1)) if return_lse else o


def _flex_attention(*args: Any, **kwargs: Any) -> Any:
    query = args[0] if args else kwargs["query"]
    if _ours and query.dtype != torch.float64:
        from tandem_attention.drop_in.flex_attention import flex_attention

        return flex_attention(*args, **kwargs)
    if query.device.type == "cpu" and torch.is_grad_enabled():
        return _dense(*args, **kwargs)
    return _theirs(*args, **kwargs)


def _compile(model: Callable[..., Any] | None = None, **_: Any) -> Any:
    if model is None:
        return _compile

    @functools.wraps(model)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _running_ours():
            return model(*args, **kwargs)

    return run


_theirs_skip = unittest.skipUnless


def _skip_unless(condition: Any, reason: str) -> Any:
    return _theirs_skip(condition or reason.startswith("Requires CUDA and Triton"), reason)


def install() -> None:
    """Before the test file is imported."""
    flex.__dict__["flex_attention"] = _flex_attention
    torch.__dict__["compile"] = _compile
    if not torch.cuda.is_available():
        unittest.__dict__["skipUnless"] = _skip_unless
        _modes.append(_OnTheCpu())
        _modes[0].__enter__()  # until the process ends


def adjust(module: ModuleType) -> None:
    """No pages; without a CUDA device shorter sequences and gradients. May run more than once."""
    suite: Any = module.__dict__["TestFlexAttention"]
    suite.run_test_with_paged_attention = lambda *_, **__: None
    if torch.cuda.is_available() or module.__dict__.get("test_device") == "cuda":
        return
    long = module.__dict__["S"]
    module.__dict__.update(test_device="cuda", S=long // _SHORTER)
    for name in ("TestFlexAttention", "TestLearnableBiases"):
        cls: Any = getattr(module, name)
        for function in vars(cls).values():
            if getattr(function, "__defaults__", None):
                function.__defaults__ = tuple(
                    long // _SHORTER if type(d) is int and d == long else d
                    for d in function.__defaults__
                )
