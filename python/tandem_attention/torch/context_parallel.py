# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention whose sequence is split over the ranks of a torch.distributed process group.

``ContextParallel`` says how the sequence is split and has the attention. Everything that ranks send
goes through torch.distributed, over NCCL or gloo.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from .._errors import InvalidArgumentError, UnsupportedError
from .._options import UNBOUNDED, Diagonal, Order, Window, make_options
from . import _exchange, _kernels, _ring
from ._attention import _four, _integers, _spans, _vector, attention

__all__ = ["ContextParallel"]

_REFUSED = (
    "dist_bias", "tau", "normalizer", "alpha", "bias_table", "bias_index", "block_mask", "dropout",
    "offsets_q", "offsets_kv", "seed", "offset", "max_seq_q", "max_seq_kv",
)  # fmt: skip
_REMEMBERED = 4096


_outside: list[Any] = []


def _outside_graphs() -> Any:
    """attention() as torch's compiler leaves it alone. Importing that takes seconds."""
    if not _outside:
        disable: Any = torch.compiler.disable
        _outside.append(disable(ContextParallel.attention))
    return _outside[0]


class ContextParallel:
    """How a sequence lies on the ranks, and attention over it.

    With n ranks, ``ulysses`` of them exchange heads for rows (all-to-all), and keys and values
    travel around the n / ulysses groups (ring): 1 is ring attention, n Ulysses, anything between
    both at once. Making one is collective: every rank of the group has to make it.

    Attributes:
        size: ranks.
        rank: this one, from 0.
        ulysses: ranks that exchange heads.
        ring: groups around which keys travel.
        placement: "paired" (rank r has chunks r and 2 n - 1 - r of 2 n, which balances causal
            attention) or "contiguous".
    """

    def __init__(
        self,
        group: Any = None,
        *,
        ulysses: int | None = None,
        placement: Literal["paired", "contiguous"] | None = None,
        check: Literal["each", "first"] = "each",
    ) -> None:
        """Makes the groups.

        Args:
            group: a process group, None for all ranks, or a DeviceMesh of two dimensions (ring,
                ulysses).
            ulysses: ranks that exchange heads, a divisor of the group's size; neighbours in the
                group. 1 by default.
            placement: "paired" where there is a ring, else "contiguous", by default.
            check: "each": ranks compare their arguments in each forward, over the CPU. "first":
                only in the first call of each shape and options on this rank; a rank whose
                arguments change alone then waits for the others until torch's timeout.

        Raises:
            InvalidArgumentError: the sizes do not fit, or a word is none of those above.
        """
        if placement not in (None, "paired", "contiguous"):
            raise InvalidArgumentError(f"placement is {placement!r}, not 'paired' or 'contiguous'")
        if check not in ("each", "first"):
            raise InvalidArgumentError(f"check is {check!r}, not 'each' or 'first'")
        if hasattr(group, "mesh_dim_names"):
            if group.ndim != 2 or ulysses is not None:
                raise InvalidArgumentError(
                    f"a mesh of {group.ndim} dimensions: it has two, ring and ulysses, and says"
                    f" itself how many ranks exchange heads"
                )
            self._ring_group, self._heads_group = group.get_group(0), group.get_group(1)
        else:
            group = dist.group.WORLD if group is None else group
            ranks = dist.get_process_group_ranks(group)
            u = 1 if ulysses is None else ulysses
            if u < 1 or len(ranks) % u:
                raise InvalidArgumentError(f"ulysses is {u}, no divisor of {len(ranks)} ranks")
            at = dist.get_rank(group)
            near, far = ranks[at - at % u : at - at % u + u], ranks[at % u :: u]
            self._heads_group = group if u == len(ranks) else self._made(near)
            self._ring_group = group if u == 1 else self._made(far)
        self.ulysses = dist.get_world_size(self._heads_group)
        self.ring = dist.get_world_size(self._ring_group)
        self.size = self.ulysses * self.ring
        ring_rank = dist.get_rank(self._ring_group)
        self.rank = ring_rank * self.ulysses + dist.get_rank(self._heads_group)
        self.placement = placement or ("paired" if self.ring > 1 else "contiguous")
        self._halves = 2 if self.placement == "paired" else 1
        self._ring = _ring.Ring(self._ring_group, ring_rank, self.ring, self._halves)
        self._first, self._agreed = check == "first", set[Any]()
        # Where the groups have no CPU backend, what is compared goes through gloo.
        self._cpu_groups = [
            g
            if dist.get_backend(g) == "gloo"
            else self._made(dist.get_process_group_ranks(g), "gloo")
            for g in (self._heads_group, self._ring_group)
        ]

    @staticmethod
    def _made(ranks: list[int], backend: str | None = None) -> Any:
        return dist.new_group(ranks, backend=backend, use_local_synchronization=True)

    def positions(self, length: int, device: Any = None) -> Tensor:
        """The positions of the rank's rows in the sequence, int64 [length / size], as for rotary
        embeddings.

        Args:
            length: of the whole sequence, a multiple of the ranks (paired: of twice as many).
            device: of the result.

        Raises:
            InvalidArgumentError: length is no such multiple.
        """
        parts = self.size * self._halves
        if length % parts:
            raise InvalidArgumentError(f"a sequence of {length} rows is not in {parts} equal parts")
        chunk = length // parts
        starts = [self.rank * chunk]
        if self._halves == 2:
            starts.append((parts - 1 - self.rank) * chunk)
        return torch.cat([torch.arange(s, s + chunk, device=device) for s in starts])

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """The rank's rows of a whole tensor, with its gradient.

        Args:
            x: any shape.
            dim: the dimension of the sequence.
        """
        return x.index_select(dim, self.positions(x.shape[dim], x.device))

    def unshard(self, x: Tensor, dim: int) -> Tensor:
        """The whole tensor of every rank's rows, on every rank, without a gradient. Collective.

        Args:
            x: of the same shape on all ranks.
            dim: the dimension of the sequence.
        """
        x = x.detach().movedim(dim, 0)
        for group in (self._heads_group, self._ring_group):
            x = torch.stack(_exchange.gathered(x, group))
        x = x.flatten(0, 1)  # ring, ulysses
        chunks = x.flatten(0, 1) if self._halves == 1 else self._unpaired(x)
        return chunks.movedim(0, dim)

    @staticmethod
    def _unpaired(x: Tensor) -> Tensor:
        """[ranks, rows, ...] of pairs as [positions, ...]."""
        low, high = x.chunk(2, 1)
        return torch.cat((low.flatten(0, 1), high.flip(0).flatten(0, 1)))

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        bias: Tensor | None = None,
        keep: Tensor | None = None,
        spans: Tensor | None = None,
        slope: Tensor | None = None,
        sink: Tensor | None = None,
        lengths_q: Tensor | None = None,
        lengths_kv: Tensor | None = None,
        scale: float | None = None,
        causal: bool | Diagonal = False,
        align: Diagonal = "top_left",
        window: Window | None = None,
        softcap: float = 0.0,
        layout: Order = "bhsd",
        deterministic: bool | None = None,
        allow_tf32: bool | None = None,
        return_lse: bool = False,
        **others: Any,
    ) -> Any:
        """Attention over the whole sequence; differentiable. Collective, and so is its backward.

        Gradients of what is the same on all ranks (slope, sink, a bias of one row) are the rank's
        share: their sum over ranks is the gradient, as with the weights of a model.

        Args:
            q: [B, Hq, Sq / size, D], the rank's rows; f32, f16 or bf16.
            k: [B, Hk, Sk / size, D], the rank's keys.
            v: [B, Hk, Sk / size, Dv].
            bias: [B or a divisor, Hq, Hk or 1, Sq / size or 1, Sk]: the rank's rows, all keys in
                the order of the sequence. Or [..., Sq, Sk / size]: the rank's keys, all rows, where
                there is a ring alone or Ulysses alone.
            keep: bool, as bias.
            spans: [B or a divisor, Hq, Hk or 1, Sk or Sk / size, 2 or 4]: rows of the whole
                sequence, for all keys (the same on all ranks) or for the rank's.
            slope, sink: [Hq] or [B or a divisor, Hq], the same on all ranks.
            lengths_q, lengths_kv: [B], of the whole sequence, the same on all ranks.
            scale, causal, align, window, softcap, layout, deterministic, allow_tf32: those of
                tandem_attention.torch.attention(); they concern the whole sequence.
            return_lse: also return lse.
            others: what else attention() takes: refused by name, as it is not split.

        Returns:
            o, [B, Hq, Sq / size, Dv]; with return_lse, (o, lse), lse f32 [B, Hq, Sq / size], which
            is not differentiable.

        Raises:
            TandemError: on all ranks: arguments of one rank are refused, or ranks disagree.
        """
        if torch.compiler.is_compiling():
            # What ranks say to each other is no part of a graph, which ends here and goes on after.
            return _outside_graphs()(
                self, q, k, v, bias=bias, keep=keep, spans=spans, slope=slope, sink=sink,
                lengths_q=lengths_q, lengths_kv=lengths_kv, scale=scale, causal=causal,
                align=align, window=window, softcap=softcap, layout=layout,
                deterministic=deterministic, allow_tf32=allow_tf32, return_lse=return_lse, **others,
            )  # fmt: skip
        words = {
            "scale": scale, "causal": causal, "align": align, "window": window, "softcap": softcap,
            "layout": layout, "deterministic": deterministic, "allow_tf32": allow_tf32,
        }  # fmt: skip
        inputs = (q, k, v, bias, keep, spans, slope, sink, lengths_q, lengths_kv)
        error: Exception | None = None
        described: dict[str, str] = {}
        call: Any = None
        try:
            call = self._prepared(inputs, words, others)
            described = self._described(call, return_lse)
        except Exception as refused:
            error = refused
        key = None if error else tuple(described.values())
        if error or not self._first or key not in self._agreed:
            _exchange.agree(self._cpu_groups, described, error)
            if len(self._agreed) >= _REMEMBERED:
                self._agreed.clear()
            self._agreed.add(key)
        o, lse = self._run(*call)
        if layout == "bshd":
            o = o.transpose(1, 2)
        return (o, lse) if return_lse else o

    def _prepared(self, inputs: Any, words: Any, others: dict[str, Any]) -> Any:
        """Tensors in the order B H S D and options. Raises what this rank refuses."""
        for name, value in others.items():
            if name not in _REFUSED:
                raise TypeError(f"attention() has no argument {name!r}")
            absent = value is None or (
                not isinstance(value, Tensor) and (value in (0, "softmax") or name == "alpha")
            )
            if not absent:
                raise UnsupportedError(f"{name} is not there when the sequence is split over ranks")
        _kernels._check(
            _kernels.Inputs(**dict(zip(_ring.Tensors._fields, inputs, strict=True))), {}
        )
        q, k, v, bias, keep, spans, slope, sink, lengths_q, lengths_kv = inputs
        words = dict(words)
        kind = q.device.type
        if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
            q, k, v = (_kernels.autocast(t, torch.get_autocast_dtype(kind)) for t in (q, k, v))
        if words["deterministic"] is None:
            words["deterministic"] = torch.are_deterministic_algorithms_enabled()
        if words["allow_tf32"] is None:
            is_f32 = kind == "cuda" and q.dtype == torch.float32
            words["allow_tf32"] = is_f32 and _kernels.matmul_tf32()
        if q.dtype == torch.float64:
            raise UnsupportedError("q is float64: ranks add up what they computed in float32")
        options = make_options(**words)
        for name, t in (("q", q), ("k", k), ("v", v)):
            if t.dim() != 4:
                raise InvalidArgumentError(f"{name} has {t.dim()} dimensions, not 4")
        if options.bshd:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            options = options._replace(bshd=False)
        for name, size in (("q", q.shape[2]), ("k", k.shape[2])):
            if size % self._halves:
                raise InvalidArgumentError(f"{name} has {size} rows, no two chunks of one size")
        if self.ulysses > 1 and q.shape[1] % self.ulysses:
            raise InvalidArgumentError(
                f"q has {q.shape[1]} heads, which {self.ulysses} ranks cannot share"
            )
        if not k.shape[1] or q.shape[1] % k.shape[1]:
            raise InvalidArgumentError(
                f"q has {q.shape[1]} heads, no multiple of the {k.shape[1]} of k"
            )
        keys, rows = k.shape[2] * self.size, q.shape[2] * self.size
        for name, t in (("bias", bias), ("keep", keep)):
            if t is not None:
                self._check_overlay(name, t, q.shape[2], k.shape[2])
        if self.ring > 1:
            banded = (
                options.causal or (options.window_left, options.window_right) != (UNBOUNDED,) * 2
            )
            if options.align and (banded or slope is not None) and (
                lengths_q is not None or lengths_kv is not None
            ):  # fmt: skip
                raise UnsupportedError(
                    "lengths with a diagonal at the bottom right need ulysses alone, not a ring"
                )
            if slope is not None and rows != keys:
                raise UnsupportedError(
                    f"slope with {rows} rows and {keys} keys needs ulysses alone, not a ring"
                )
            if slope is not None and bias is not None:
                raise UnsupportedError("slope and bias together need ulysses alone, not a ring")
        spans = _spans(spans)
        if spans is not None and spans.shape[2] not in (keys, k.shape[2]):
            raise InvalidArgumentError(
                f"spans are for {spans.shape[2]} keys; the rank has {k.shape[2]} of {keys}"
            )
        t = _ring.Tensors(
            q, k, v, bias, keep, spans, _vector("slope", slope, q), _vector("sink", sink, q),
            _integers("lengths_q", lengths_q), _integers("lengths_kv", lengths_kv),
        )  # fmt: skip
        self._probe(t, options, keys)
        return t, options

    def _check_overlay(self, name: str, t: Tensor, rows: int, keys: int) -> None:
        size = self.size
        if t.dim() < 2:
            raise InvalidArgumentError(f"{name} has {t.dim()} dimensions; it needs rows and keys")
        if t.shape[-1] == keys * size and t.shape[-2] in (1, rows):
            return
        if t.shape[-1] == keys and t.shape[-2] in (1, rows * size):
            if self.ulysses > 1 and self.ring > 1:
                raise UnsupportedError(
                    f"{name} with the rank's keys needs a ring or ulysses alone, not both: give the"
                    f" rank's rows"
                )
            return
        raise InvalidArgumentError(
            f"{name} of shape {list(t.shape)} has neither the rank's {rows} rows and all"
            f" {keys * size} keys, nor all {rows * size} rows and the rank's {keys} keys"
        )

    def _probe(self, t: _ring.Tensors, options: Any, keys: int) -> None:
        """Plans what the rank would compute by stand-ins, once for each shape."""
        key = (
            "probe",
            options,
            tuple(None if x is None else (x.shape, x.dtype, x.device) for x in t),
        )
        if key in self._agreed:
            return
        u = self.ulysses
        with torch.no_grad():
            b, heads, rows, _ = t.q.shape
            kv_heads = math.lcm(t.k.shape[1], u) // u

            def empty(x: Tensor, h: int) -> Tensor:
                return x.new_empty((b, h, u * x.shape[2], x.shape[3]))

            def overlay(x: Tensor | None) -> Tensor | None:
                if x is None:
                    return None
                x = _four(x, "bias", keys)
                own = self._kv_like(x.shape[1], t) // u if x.shape[1] > 1 else 1
                return x.new_empty((x.shape[0], own, 1 if x.shape[2] == 1 else u * rows, keys))

            spans = t.spans
            if spans is not None:
                own = self._kv_like(spans.shape[1], t) // u if spans.shape[1] > 1 else 1
                spans = spans.new_empty((spans.shape[0], own, keys, spans.shape[3]))
            stand = t._replace(
                q=empty(t.q, heads // u), k=empty(t.k, kv_heads), v=empty(t.v, kv_heads),
                bias=overlay(t.bias), keep=overlay(t.keep), spans=spans,
                slope=None if t.slope is None else t.slope[..., : heads // u].contiguous(),
            )  # fmt: skip
            if t.k.shape[:3] != t.v.shape[:3] or t.k.shape[0] != b:
                raise InvalidArgumentError(
                    f"q is {list(t.q.shape)}, k {list(t.k.shape)} and v {list(t.v.shape)}"
                )
            _ring.probe(stand, options, self._ring)
            if t.sink is not None and t.sink.shape[-1] != heads:
                raise InvalidArgumentError(f"sink is {list(t.sink.shape)}; q has {heads} heads")
        self._agreed.add(key)

    def _kv_like(self, heads: int, t: _ring.Tensors) -> int:
        """Heads of an input after those of keys are repeated as often as ranks need them."""
        return math.lcm(heads, self.ulysses) if heads == t.k.shape[1] else heads

    def _described(self, call: Any, return_lse: bool) -> dict[str, str]:
        t, options = call
        made = {"ranks": f"{self.ring} x {self.ulysses}, {self.placement}"}
        for name, x in zip(_ring.Tensors._fields, t, strict=True):
            grad = x is not None and x.requires_grad and torch.is_grad_enabled()
            made[name] = (
                "absent" if x is None else f"{str(x.dtype)[6:]} {list(x.shape)} on {x.device.type}"
                f"{' with a gradient' if grad else ''}"
            )  # fmt: skip
        for name, value in zip(options._fields, options, strict=True):
            made[name] = str(value)
        made["return_lse"] = str(return_lse)
        return made

    # ---- after all ranks agreed ------------------------------------------------------------------

    def _mine(self, x: Tensor, dim: int) -> Tensor:
        """The rank's share of heads."""
        own = x.shape[dim] // self.ulysses
        return x.narrow(dim, dist.get_rank(self._heads_group) * own, own)

    def _repeated(self, x: Tensor, t: _ring.Tensors) -> Tensor:
        """Heads as often as all ranks need them; the gradient is their sum."""
        heads = x.shape[1]
        if heads % self.ulysses == 0:
            return x
        return x.repeat_interleave(math.lcm(heads, self.ulysses) // heads, 1)

    def _overlay(self, x: Tensor | None, t: _ring.Tensors, name: str) -> Tensor | None:
        """bias or keep with the rank's heads, the rows of its part of the ring, and all keys."""
        if x is None:
            return None
        if x.dtype == torch.bool:
            x = x.to(torch.uint8)
        keys = t.k.shape[2]
        x = _four(x, name, x.shape[-1])
        if self.size > 1 and x.shape[3] == keys:  # the rank's keys: exchanged for rows
            group = self._ring_group if self.ring > 1 else self._heads_group
            one = x.shape[2] == 1
            if one:
                x = x.expand(-1, -1, self.size * self._halves, -1)
            x = (
                _exchange.to_rows(x.movedim(2, 1).transpose(2, 3), group, self._halves)
                if self._halves == 1 or one
                else self._paired_rows(x, group)
            )
            x = x.transpose(2, 3).movedim(1, 2)
            if one:
                x = x[:, :, :1]
        if self.ulysses == 1:
            return x
        if x.shape[2] == 1:
            return x if x.shape[1] == 1 else self._mine(self._repeated(x, t), 1)
        return _exchange.to_rows(self._repeated(x, t), self._heads_group, self._halves)

    def _paired_rows(self, x: Tensor, group: Any) -> Tensor:
        """Rows in the order of ranks, so that each gets its pair of chunks."""
        n = 2 * self.size
        x = x.movedim(2, 1)
        chunks = x.reshape(x.shape[0], n, x.shape[1] // n, *x.shape[2:])
        order = [c for r in range(self.size) for c in (r, n - 1 - r)]
        rows = chunks[:, order].flatten(1, 2)
        return _exchange.to_rows(rows.transpose(2, 3), group, self._halves)

    def _run(self, t: _ring.Tensors, options: Any) -> tuple[Tensor, Tensor]:
        heads, halves, whole = self._heads_group, self._halves, t
        bias, keep = self._overlay(t.bias, t, "bias"), self._overlay(t.keep, t, "keep")
        spans = t.spans
        if spans is not None and self.size > 1 and spans.shape[2] == t.k.shape[2]:
            spans = self.unshard(spans, 2)
        q, k, v, slope, sink = t.q, t.k, t.v, t.slope, t.sink
        if self.ulysses > 1:
            q = _exchange.to_rows(q, heads, halves)
            k, v = (_exchange.to_rows(self._repeated(x, whole), heads, halves) for x in (k, v))
            slope, sink = (
                None if x is None else self._mine(x, x.dim() - 1).contiguous()
                for x in (slope, sink)
            )
            if spans is not None and spans.shape[1] > 1:
                spans = self._mine(self._repeated(spans, whole), 1).contiguous()
        t = _ring.Tensors(q, k, v, bias, keep, spans, slope, sink, t.lengths_q, t.lengths_kv)
        if self.ring > 1:
            o, lse = _ring.RingAttention.apply(options, self._ring, *t)
        else:
            o, lse = attention(
                q, k, v, bias=bias, keep=keep, spans=spans, slope=slope, sink=sink,
                lengths_q=t.lengths_q, lengths_kv=t.lengths_kv, scale=options.scale,
                causal=options.causal, align="bottom_right" if options.align else "top_left",
                window=(options.window_left, options.window_right), softcap=options.softcap,
                deterministic=bool(options.flags & 1), allow_tf32=bool(options.flags & 4),
                return_lse=True,
            )  # fmt: skip
        if self.ulysses > 1:
            o = _exchange.to_heads(o, heads, halves)
            lse = _exchange.to_heads(lse.detach()[..., None], heads, halves)[..., 0]
        return o, lse
