# SPDX-License-Identifier: MIT OR Apache-2.0
"""Our functions under the names that the tests of a library import.

install() runs before a test file is imported. A stand-in for a package may have a folder of the
checkout as its path: then what is pure Python there (references, padding) is the library's own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


def _module(name: str, content: dict[str, Any], path: Path | None = None) -> ModuleType:
    """A module in sys.modules, as an attribute of its package too."""
    module = ModuleType(name, "Stands in for the library's module of this name.")
    if path is not None:
        module.__path__ = [str(path)]
    module.__dict__.update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
    return module


def _drop_in(name: str) -> dict[str, Any]:
    module = importlib.import_module(f"tandem_attention.drop_in.{name}")
    return {n: getattr(module, n) for n in module.__all__}


def _flash_attention(checkout: Path) -> None:
    functions = _drop_in("flash_attn")
    _module("flash_attn", {**functions, "__version__": "2.8.3"}, checkout / "flash_attn")
    _module(
        "flash_attn.flash_attn_interface",
        {**functions, "USE_TRITON_ROCM": False, "_get_block_size_n": lambda *_: 128},
    )


def _flash_attention_4(checkout: Path) -> None:
    _flash_attention(checkout)
    from . import flash_attn_4

    names = (
        "flash_attn_func", "flash_attn_varlen_func", "flash_attn_combine", "_flash_attn_fwd",
        "_flash_attn_bwd", "_flash_attn_bwd_sparse_mla", "get_scheduler_metadata",
    )  # fmt: skip
    functions = {n: getattr(flash_attn_4, n) for n in names}
    _module("flash_attn.cute", functions, checkout / "flash_attn" / "cute")
    _module("flash_attn.cute.interface", functions)
    _module("flash_attn.cute.cache_utils", {"JITCache": flash_attn_4.JITCache})


def _pytorch(checkout: Path) -> None:
    from tandem_attention.drop_in.sdpa import replace_sdpa

    # A helper of other tests of torch, for a device that is not there.
    _module("test_cpp_extensions_open_device_registration", {"generate_faked_module": lambda: None})
    block = replace_sdpa()
    block.__enter__()  # until the process ends
    _kept.append(block)


def _pytorch_flex(_: Path) -> None:
    from . import flex

    flex.install()


_kept: list[Any] = []


def _adasplash(checkout: Path) -> None:
    functions = _drop_in("adasplash")
    names = sorted(functions)
    _module("adasplash", {**functions, "__all__": names, "__version__": "0.2.0"})
    sys.path.insert(0, str(checkout))  # for its examples, which the tests import


def _lazy_attention(checkout: Path) -> None:
    from tandem_attention.drop_in.lazy_attention_triton import (
        LazyAttention,
        lazy_attention_triton,
    )

    # The tests are of the version that had this package. There a window of W reads W + 1 distances.
    def older(
        q: Any, k: Any, v: Any, bias: Any, tau: Any, window_size: int = 512, varlen: Any = None
    ) -> Any:
        return lazy_attention_triton(q, k, v, bias[:, : window_size + 1], tau, varlen=varlen)

    _module("adasplash", {}, checkout / "adasplash")
    _module("adasplash.lazy_attention", {"LazyAttention": LazyAttention})
    _module("adasplash.lazy_attention_triton", {"lazy_attention_triton": older})


def _flag_gems(checkout: Path) -> None:
    import torch

    from tandem_attention.drop_in.sdpa import replace_sdpa

    functions = _drop_in("flag_gems")

    @contextlib.contextmanager
    def use_gems(*_: Any, **__: Any) -> Iterator[None]:
        """torch's functions that have one of ours are ours inside."""
        library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        try:
            library.impl("_flash_attention_backward", functions["flash_attention_backward"], "CUDA")
            with replace_sdpa():
                yield
        finally:
            library._destroy()

    def set_philox_state(seed: int, offset: int, device: Any = None) -> None:
        del offset, device
        torch.manual_seed(seed)

    top = {**functions, "device": "cuda", "vendor_name": "nvidia", "use_gems": use_gems}
    _module("flag_gems", top, checkout / "src" / "flag_gems")
    _module("flag_gems.ops", functions)
    device = ModuleType("device")
    device.__dict__.update(
        name="cuda", vendor_name="nvidia", support_fp64=True, support_bf16=True, support_int64=True
    )
    _module("flag_gems.runtime", {"device": device, "torch_device_fn": torch.cuda})
    _module("flag_gems.utils", {})
    _module("flag_gems.utils.random_utils", {"set_philox_state": set_philox_state})
    importlib.import_module("flag_gems.testing")  # the library's own comparisons


def _flash_dmattn(checkout: Path) -> None:
    functions = _drop_in("flash_dmattn")
    for package, function in (("flash_dmattn", "dmattn"), ("flash_sparse_attn", "sparse_attn")):
        _module(package, functions, checkout / package)
        for backend in ("interface", "triton", "flex"):
            _module(f"{package}.flash_{function}_{backend}", functions)


def _xformers(checkout: Path) -> None:
    sys.path.insert(0, str(checkout))
    ops = importlib.import_module("xformers.ops")
    fmha = importlib.import_module("xformers.ops.fmha")
    ours = importlib.import_module("tandem_attention.drop_in.xformers")

    def without_op(function: Callable[..., Any]) -> Callable[..., Any]:
        """Its tests name a kernel in each call; ours refuses that, and plans by itself."""

        @functools.wraps(function)
        def call(*args: Any, op: Any = None, **more: Any) -> Any:
            return function(*args, **more)

        return call

    for name in (
        "memory_efficient_attention", "memory_efficient_attention_forward",
        "memory_efficient_attention_forward_requires_grad", "memory_efficient_attention_backward",
        "memory_efficient_attention_partial",
    ):  # fmt: skip
        for place in (ops, fmha):
            if hasattr(place, name):
                setattr(place, name, without_op(getattr(ours, name)))


def _cuequivariance(checkout: Path) -> None:
    _module("cuequivariance_torch", _drop_in("cuequivariance"))

    def triangle_attention(
        q: Any, k: Any, v: Any, bias: Any, mask: Any, scale: float, precision: Any = None
    ) -> tuple[Any, Any, Any]:
        """By our JAX operation. The rows' maxima, which no kernel stores, are not a number."""
        del precision
        import jax.numpy as jnp

        from tandem_attention.jax import attention

        parts = [
            attention(
                q[b], k[b], v[b], bias=bias[b], keep=mask[b], scale=float(scale), return_lse=True
            )
            for b in range(q.shape[0])
        ]
        o, lse = (jnp.stack(column) for column in zip(*parts, strict=True))
        return o, lse[..., None], jnp.full((*lse.shape, 1), jnp.nan, lse.dtype)

    _module("cuequivariance_jax", {"triangle_attention": triangle_attention})


_INSTALL: dict[str, Callable[[Path], None]] = {
    "flash-attention": _flash_attention,
    "flash-attention-4": _flash_attention_4,
    "flash-attention-4-race": _flash_attention_4,
    "pytorch": _pytorch,
    "pytorch-flex": _pytorch_flex,
    "adasplash": _adasplash,
    "lazy-attention": _lazy_attention,
    "flag-gems": _flag_gems,
    "flash-dmattn": _flash_dmattn,
    "xformers": _xformers,
    "cuequivariance": _cuequivariance,
}


def install(suite: str, checkout: Path) -> None:
    """Puts our modules under the names that the suite's tests import."""
    _INSTALL[suite](checkout)


def adjust(suite: str, module: ModuleType) -> None:
    """What has to change in an imported test file; more than once does no harm.

    FlashAttention's S_dmask holds weights up to a factor that its tests take out; ours are the
    weights. One test of flash-dmattn hands its reference the arguments in another order.
    """
    if suite == "flash-attention" and hasattr(module, "normalize_flash_attn_S"):
        module.__dict__["normalize_flash_attn_S"] = lambda weights, *_, **__: weights
    if suite == "pytorch-flex":
        from . import flex

        flex.adjust(module)
    name = "dynamic_mask_attention_python"
    if suite == "flash-dmattn" and hasattr(module, name) and not hasattr(module, "_theirs"):
        theirs = module.__dict__["_theirs"] = getattr(module, name)

        def ordered(q: Any, k: Any, v: Any, *rest: Any) -> Any:
            if isinstance(rest[0], int):
                window, bias, mask, scale, *more = rest
                rest = (bias, mask, scale, window, *more)
            return theirs(q, k, v, *rest)

        module.__dict__[name] = ordered
