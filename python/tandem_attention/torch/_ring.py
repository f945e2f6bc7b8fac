# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ring attention: keys and values travel from rank to rank, and each part that came is computed
while the next one is on its way."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._options import UNBOUNDED, Options, in_parts
from .._problem import GRADIENTS
from . import _kernels, _ops
from ._exchange import first_derivative, shift, wait
from ._kernels import Inputs
from ._merge import merge_into

_FAR = 2**31 - 1


class Ring(NamedTuple):
    """How a sequence lies on the ring. halves: chunks of a rank, 2 where they are paired."""

    group: Any
    rank: int
    size: int
    halves: int

    def starts(self, rank: int, chunk: int) -> list[int]:
        """The first position of each chunk of a rank."""
        if self.halves == 1:
            return [rank * chunk]
        return [rank * chunk, (2 * self.size - 1 - rank) * chunk]


class Tensors(NamedTuple):
    """What the ring's forward reads. bias and keep have the rank's rows and all keys, spans all
    keys and rows of the whole sequence, lengths are those of the whole sequence."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    keep: Tensor | None
    spans: Tensor | None
    slope: Tensor | None
    sink: Tensor | None
    lengths_q: Tensor | None
    lengths_kv: Tensor | None


class Piece(NamedTuple):
    """Rows [q0, q1) of the rank against keys [k0, k1) of what came from another one."""

    q0: int
    q1: int
    k0: int
    k1: int
    at_q: tuple[int, ...]  # positions at which the chunks of these rows begin
    at_kv: tuple[int, ...]
    causal: bool  # the chunks' own diagonal
    band: tuple[int | None, int | None] | None  # else -right <= i - j <= left within the piece
    side: str  # where the keys are: "own", "below" or "above" the diagonal


def pieces(t: Tensors, o: Options, ring: Ring, owner: int) -> list[Piece]:
    """What the rank computes with the keys of another one, in the order of its sums."""
    rows, keys = t.q.shape[2], t.k.shape[2]
    cq, ck = rows // ring.halves, keys // ring.halves
    at_q, at_kv = ring.starts(ring.rank, cq), ring.starts(owner, ck)
    off = (keys - rows) * ring.size if o.align else 0
    windowed = o.window_left != UNBOUNDED or o.window_right != UNBOUNDED
    by_pair = windowed or any(x is not None for x in (t.bias, t.keep, t.spans, t.slope))
    if not by_pair and not o.causal:
        return [Piece(0, rows, 0, keys, tuple(at_q), tuple(at_kv), False, None, "own")]
    if not by_pair and cq == ck and not off:
        if owner == ring.rank:
            return [Piece(0, rows, 0, keys, tuple(at_q), tuple(at_kv), True, None, "own")]
        if owner < ring.rank:
            return [Piece(0, rows, 0, ck, tuple(at_q), (at_kv[0],), False, None, "below")]
        if ring.halves == 1:
            return []
        return [Piece(cq, rows, 0, keys, (at_q[1],), tuple(at_kv), False, None, "below")]
    left = None if o.window_left == UNBOUNDED else o.window_left
    right = None if o.window_right == UNBOUNDED else o.window_right
    if o.causal:
        right = 0 if right is None else min(right, 0)
    made = []
    for m, b in enumerate(at_kv):
        for n, a in enumerate(at_q):
            d = a - b + off  # t = i - j + d
            lo, hi = d - (ck - 1), d + cq - 1
            if (left is not None and lo > left) or (right is not None and hi < -right):
                continue
            own_left = None if left is None or hi <= left else left - d
            own_right = None if right is None or lo >= -right else right + d
            side = "own" if d == 0 and cq == ck else "below" if lo >= 0 else "above"
            where = (n * cq, (n + 1) * cq, m * ck, (m + 1) * ck, (a,), (b,))
            if d == 0:
                made.append(Piece(*where, True, None, side))
            elif own_left is None and own_right is None:
                made.append(Piece(*where, False, None, side))
            else:
                made.append(Piece(*where, False, (own_left, own_right), side))
    return made


def _local_lengths(lengths: Tensor | None, starts: tuple[int, ...], chunk: int) -> Tensor | None:
    if lengths is None:
        return None
    # A chunk has rows only where those before it are full, so that these add up.
    return sum((lengths - s).clamp(0, chunk) for s in starts).to(torch.int32).contiguous()  # type: ignore[union-attr]


def _piece_spans(t: Tensors, p: Piece) -> Tensor | None:
    spans = None
    keys = p.k1 - p.k0
    if t.spans is not None:
        own = t.spans[:, :, p.at_kv[0] : p.at_kv[0] + keys].to(torch.int64) - p.at_q[0]
        spans = own.clamp(-_FAR - 1, _FAR)
    if p.band is not None:
        left, right = p.band
        j = torch.arange(keys, device=t.q.device)
        begin = torch.full_like(j, -_FAR) if right is None else j - right
        end = torch.full_like(j, _FAR) if left is None else j + left + 1
        if spans is None:
            spans = torch.stack((begin, end), -1)[None, None]
        else:
            low = spans[..., 0::2].maximum(begin[:, None])
            high = spans[..., 1::2].minimum(end[:, None])
            spans = torch.stack((low, high), -1).flatten(-2)
    return None if spans is None else spans.to(torch.int32).contiguous()


def _distances(t: Tensors, p: Piece) -> tuple[Tensor, Tensor]:
    """|t| of each key from the piece's nearest row, and of each row from that one."""
    rows, keys = p.q1 - p.q0, p.k1 - p.k0
    i = torch.arange(rows, device=t.q.device, dtype=torch.float32)
    j = torch.arange(keys, device=t.q.device, dtype=torch.float32)
    d = p.at_q[0] - p.at_kv[0]
    if p.side == "own":  # of each pair, in a backward that wants the slopes' gradient
        return (i[:, None] - j).abs(), torch.zeros_like(i)
    if p.side == "below":
        return d - j, i
    return j - (d + rows - 1), rows - 1 - i


def _by_entry(x: Tensor, batch: int) -> Tensor:
    """[Hq] or [N, Hq] as [B, Hq, 1]."""
    x = x if x.dim() == 2 else x[None]
    return x.repeat_interleave(batch // x.shape[0], 0)[..., None]


def _call(
    t: Tensors, k: Tensor, v: Tensor, o: Options, p: Piece, ring: Ring, as_bias: bool = False
) -> tuple[Inputs, Options]:
    """A piece as a call of its own. as_bias: slopes as a bias, on the diagonal too. A backward that
    forms their gradient sums delta over the keys that it sees, which are a part here."""
    b0, keys = p.at_kv[0], p.k1 - p.k0

    def part(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        x = x[..., b0 : b0 + keys]
        return x if x.shape[2] == 1 else x[:, :, p.q0 : p.q1]

    bias, slope = part(t.bias), t.slope
    if slope is not None and (as_bias or p.side != "own"):
        near, _ = _distances(t, p)
        slope = slope if slope.dim() == 2 else slope[None]
        bias, slope = -slope[:, :, None, None] * near, None
    options = o._replace(
        causal=o.causal and p.causal,
        window_left=o.window_left if p.causal else UNBOUNDED,
        window_right=o.window_right if p.causal else UNBOUNDED,
        align=0,
    )
    chunk_q, chunk_kv = t.q.shape[2] // ring.halves, k.shape[2] // ring.halves
    inputs = Inputs(
        t.q[:, :, p.q0 : p.q1], k[:, :, p.k0 : p.k1], v[:, :, p.k0 : p.k1],
        bias=bias, keep=part(t.keep), spans=_piece_spans(t, p), slope=slope,
        lengths_q=_local_lengths(t.lengths_q, p.at_q, chunk_q),
        lengths_kv=_local_lengths(t.lengths_kv, p.at_kv, chunk_kv),
    )  # fmt: skip
    return inputs, _kernels.intern(options)


def probe(t: Tensors, o: Options, ring: Ring) -> None:
    """Plans every piece, so that what is refused is refused before anything is sent."""
    for owner in range(ring.size):
        k, v = t.k.contiguous(), t.v.contiguous()
        for p in pieces(t, o, ring, owner):
            inputs, options = _call(t, k, v, o, p, ring)
            _kernels._first_forward(("probe", _kernels._key_of(inputs, options)), inputs, options)


class _Travel:
    """k and v of one rank after the other. At most two buffers: the present one and the next."""

    def __init__(self, t: Tensors, ring: Ring) -> None:
        self.ring, self.shapes = ring, (t.k.shape, t.v.shape)
        self.now = torch.cat((t.k.reshape(-1), t.v.reshape(-1)))
        self.next = torch.empty_like(self.now) if ring.size > 1 else self.now

    def __iter__(self) -> Any:
        """The owner's rank, k and v; what comes next is under way meanwhile."""
        size = self.ring.size
        for step in range(size):
            works = shift(self.ring.group, self.now, self.next) if step + 1 < size else []
            size_k = self.shapes[0].numel()
            k, v = self.now[:size_k], self.now[size_k:]
            yield (self.ring.rank - step) % size, k.view(self.shapes[0]), v.view(self.shapes[1])
            wait(works)
            self.now, self.next = self.next, self.now


class RingAttention(torch.autograd.Function):
    """o and lse of the rank's rows."""

    @staticmethod
    def forward(ctx: Any, options: Options, ring: Ring, *tensors: Any) -> Any:
        t = Tensors(*tensors)
        batch, heads, rows, _ = t.q.shape
        by_side = t.slope is not None and ctx.needs_input_grad[2 + Tensors._fields.index("slope")]
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        for owner, k, v in _Travel(t, ring):
            for p in pieces(t, options, ring, owner):
                side = p.side if by_side else "own"
                inputs, own = _call(t, k, v, options, p, ring)
                part, part_lse = _kernels.forward(inputs, own, 0, 0)
                if t.slope is not None and p.side != "own":
                    _, far = _distances(t, p)
                    part_lse = part_lse - _by_entry(t.slope, batch) * far
                if side not in sums and p.q1 - p.q0 == rows:
                    sums[side] = part.float(), part_lse
                    continue
                if side not in sums:
                    sums[side] = (
                        t.q.new_zeros((batch, heads, rows, t.v.shape[3]), dtype=torch.float32),
                        t.q.new_full((batch, heads, rows), -torch.inf, dtype=torch.float32),
                    )
                o, lse = (x[:, :, p.q0 : p.q1] for x in sums[side])
                merge_into(o, lse, part, part_lse)
        if not sums:
            sums["own"] = (
                t.q.new_zeros((batch, heads, rows, t.v.shape[3]), dtype=torch.float32),
                t.q.new_full((batch, heads, rows), -torch.inf, dtype=torch.float32),
            )
        apart = [sums.get(side) for side in ("below", "above")]
        first, *others = sums.values()
        o, lse = (x.clone() for x in first) if by_side else first
        for part, part_lse in others:
            merge_into(o, lse, part, part_lse)
        if t.sink is not None:
            full = torch.logaddexp(lse, _by_entry(t.sink, batch).expand_as(lse))
            full = full.masked_fill(lse == -torch.inf, -torch.inf)
            safe = full.masked_fill(full == -torch.inf, 0.0)
            o, lse = o * (lse - safe).exp()[..., None], full
        made = _kernels.ordered_empty(t.q, t.v.shape[3]).copy_(o)
        lse = lse.contiguous()
        kept = [x for pair in apart for x in (pair or (None, None))] if by_side else [None] * 4
        ctx.save_for_backward(*tensors, made, lse, *kept)
        ctx.call = (options, ring)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return made, lse

    @staticmethod
    @first_derivative
    def backward(ctx: Any, d_o: Tensor | None, _: Any) -> Any:
        *tensors, o, lse, below, below_lse, above, above_lse = ctx.saved_tensors
        t = Tensors(*tensors)
        options, ring = ctx.call
        need = dict(zip(Tensors._fields, ctx.needs_input_grad[2:], strict=True))
        if d_o is None:
            d_o = torch.zeros_like(o)  # other ranks wait for this one
        d_o = d_o if d_o.stride(-1) == 1 else d_o.contiguous()
        made = _backward(t, options, ring, need, d_o, o, lse)
        delta = None
        if need["sink"] or need["slope"]:
            delta = (d_o.float() * o.float()).sum(-1)
            safe = lse.masked_fill(lse == -torch.inf, torch.inf)
        if need["sink"] and t.sink is not None and delta is not None:
            terms = -(_by_entry(t.sink, t.q.shape[0]) - safe).exp() * delta
            made["sink"] = _like(terms.sum(-1), t.sink)
        if need["slope"] and t.slope is not None and delta is not None:
            rows = t.q.shape[2]
            chunk = rows // ring.halves
            i = torch.arange(rows, device=o.device, dtype=torch.float32) % chunk
            for part, part_lse, far in ((below, below_lse, i), (above, above_lse, chunk - 1 - i)):
                if part is None:
                    continue
                ds = (part_lse - safe).exp() * ((d_o.float() * part).sum(-1) - delta)
                made["slope"] = made["slope"] - _like((ds * far).sum(-1), t.slope)
        return (None, None, *(made.get(n) if need[n] else None for n in Tensors._fields))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        _ops.refuse_forward_mode()


def _like(x: Tensor, like: Tensor) -> Tensor:
    """[B, Hq] summed to [Hq] or [N, Hq]."""
    n = like.shape[0] if like.dim() == 2 else 1
    return x.reshape(n, -1, x.shape[-1]).sum(1).reshape(like.shape)


def _backward(
    t: Tensors,
    options: Options,
    ring: Ring,
    need: dict[str, bool],
    d_o: Tensor,
    o: Tensor,
    lse: Tensor,
) -> dict[str, Tensor]:
    """The gradients but for those of the sink and of the rows' part of the slope. Those of k and v
    travel with their keys, in f32: the owner adds first, then each rank behind it."""
    d_q: Tensor | None = None
    d_bias = None if t.bias is None else t.bias.new_zeros(t.bias.shape, dtype=torch.float32)
    d_slope = None if t.slope is None else torch.zeros_like(t.slope)
    bits = sum(GRADIENTS[n] for n in ("q", "k", "v") if need[n])
    keys = need["k"] or need["v"]
    size_k = t.k.numel()
    # What has come, of the keys that are here now, and what is under way.
    sums = torch.zeros(size_k + t.v.numel(), dtype=torch.float32, device=o.device)
    other = torch.empty_like(sums)
    works: list[Any] = []
    for step, (owner, k, v) in enumerate(_Travel(t, ring)):
        mine = torch.zeros_like(sums) if keys else sums
        d_k, d_v = mine[:size_k].view(t.k.shape), mine[size_k:].view(t.v.shape)
        for p in pieces(t, options, ring, owner):
            as_bias = t.slope is not None and (need["slope"] or p.side != "own")
            inputs, own = _call(t, k, v, options, p, ring, as_bias)
            rows, cols = slice(p.q0, p.q1), slice(p.k0, p.k1)
            part_lse, wanted = lse[:, :, rows], bits
            if as_bias and t.slope is not None:
                _, far = _distances(t, p)
                part_lse = part_lse + _by_entry(t.slope, t.q.shape[0]) * far
            if need["bias"] or need["slope"]:
                wanted |= GRADIENTS["bias"]
            if not wanted:
                continue
            # o and lse are those of all keys.
            own = _kernels.intern(in_parts(own, True))
            made = _kernels.backward(
                d_o[:, :, rows], inputs, o[:, :, rows], part_lse.contiguous(), None, own, wanted,
                0, 0,
            )  # fmt: skip
            one = made[0]
            if one is not None and d_q is None and one.shape == t.q.shape:
                d_q = one.to(torch.float32)
            elif one is not None:
                if d_q is None:
                    d_q = torch.zeros(t.q.shape, dtype=torch.float32, device=o.device)
                d_q[:, :, rows] += one
            for one, total in ((made[1], d_k), (made[2], d_v)):
                if one is not None:
                    total[:, :, cols] += one
            gradient = made[3]
            if gradient is not None and as_bias and d_slope is not None:
                near, _ = _distances(t, p)
                d_slope -= (gradient * near).sum((-2, -1)).reshape(d_slope.shape)
            elif gradient is not None and d_bias is not None:
                at = slice(p.at_kv[0], p.at_kv[0] + p.k1 - p.k0)
                d_bias[:, :, slice(None) if d_bias.shape[2] == 1 else rows, at] += gradient
        if keys and ring.size > 1:
            wait(works)
            if step:
                sums, other = other, sums
            sums += mine
            works = shift(ring.group, sums, other)
        elif keys:
            sums = mine
    if keys and ring.size > 1:
        wait(works)
        sums = other
    result = {"q": torch.zeros_like(t.q) if d_q is None else d_q.to(t.q.dtype)}
    result["k"] = sums[:size_k].view(t.k.shape).to(t.k.dtype)
    result["v"] = sums[size_k:].view(t.v.shape).to(t.v.dtype)
    if d_bias is not None and t.bias is not None:
        result["bias"] = d_bias.to(t.bias.dtype)
    if d_slope is not None:
        result["slope"] = d_slope
    return result
