# SPDX-License-Identifier: MIT OR Apache-2.0
"""AdaSplash: attention with alpha-entmax in the place of softmax.

The functions of the package ``adasplash`` 0.2 for attention, with its arguments and defaults. Its
``niter`` is accepted and has no effect: Tandem's threshold is exact to rounding, where AdaSplash's
is as good as that many steps make it. Its limits do not hold here: any length, head sizes from 1
to 576, any strides, fewer heads of keys with every alpha.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor

from .._errors import InvalidArgumentError, UnsupportedError
from ..torch import attention


def _entmax(
    q: Tensor, k: Tensor, v: Tensor, alpha: float, is_causal: bool, varlen: Tensor | None
) -> Tensor:
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise InvalidArgumentError("q, k and v have four dimensions, [B, H, N, D]")
    if k.shape != v.shape:
        raise InvalidArgumentError(f"k is {list(k.shape)} and v is {list(v.shape)}")
    if k.shape[2] != q.shape[2]:
        raise InvalidArgumentError(
            f"k has {k.shape[2]} rows where q has {q.shape[2]}; AdaSplash is self-attention"
        )
    if varlen is not None:
        if tuple(varlen.shape) != (q.shape[0],):
            raise InvalidArgumentError(f"varlen is {list(varlen.shape)}, not [{q.shape[0]}]")
        if varlen.is_floating_point():
            raise InvalidArgumentError(f"varlen is {varlen.dtype}; it holds integers")
    o: Tensor = attention(
        q, k, v, normalizer="entmax", alpha=alpha, causal=bool(is_causal),
        lengths_q=varlen, lengths_kv=varlen,
    )  # fmt: skip
    return o


def adasplash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float = 1.5,
    is_causal: bool = True,
    varlen: Tensor | None = None,
    niter: int | None = None,
) -> Tensor:
    """Self-attention with the weights ``entmax_alpha(<q_i, k_j> / sqrt(D))``, causal by default.

    Args:
        q: [B, H, N, D], f32, f16 or bf16.
        k, v: [B, Hk, N, D], of q's type; H is a multiple of Hk.
        alpha: 1 < alpha <= 2; 2 is sparsemax.
        is_causal: whether key j is hidden from rows before j.
        varlen: [B], integers, rows of each batch entry that are there (padding is on the right).
        niter: no effect, the threshold is exact.

    Returns:
        [B, H, N, D] in q's type; 0 in rows at and behind varlen.

    Raises:
        InvalidArgumentError: sizes do not fit each other, or alpha is out of range.
    """
    del niter
    return _entmax(q, k, v, alpha, is_causal, varlen)


def adasplash_v1(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float = 1.5,
    is_causal: bool = False,
    varlen: Tensor | None = None,
    niter: int = 10,
) -> Tensor:
    """adasplash(), not causal by default."""
    del niter
    return _entmax(q, k, v, alpha, is_causal, varlen)


def adasplash_no_block_mask(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float = 1.5,
    is_causal: bool = False,
    varlen: Tensor | None = None,
    niter: int = 10,
) -> Tensor:
    """adasplash_v1(): in Tandem, which keys have weight is found in the same kernels."""
    del niter
    return _entmax(q, k, v, alpha, is_causal, varlen)


def adasplash_v2(
    q: Tensor, k: Tensor, v: Tensor, niter: int = 1, varlen: Tensor | None = None
) -> Tensor:
    """adasplash() with alpha 1.5, causal."""
    del niter
    return _entmax(q, k, v, 1.5, True, varlen)


adasplash2 = adasplash_v2


def _refused(name: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(
            f"{name} maps a tensor of scores; Tandem computes entmax inside attention alone."
            " The package entmax has the function on its own."
        )

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Refused: no attention. Raises UnsupportedError."
    return function


triton_entmax = _refused("triton_entmax")
triton_entmax_v1 = _refused("triton_entmax_v1")
triton_entmax_v2 = _refused("triton_entmax_v2")
triton_sparsemax = _refused("triton_sparsemax")
triton_entmax15 = _refused("triton_entmax15")

__all__ = [
    "adasplash",
    "adasplash2",
    "adasplash_no_block_mask",
    "adasplash_v1",
    "adasplash_v2",
    "triton_entmax",
    "triton_entmax15",
    "triton_entmax_v1",
    "triton_entmax_v2",
    "triton_sparsemax",
]
