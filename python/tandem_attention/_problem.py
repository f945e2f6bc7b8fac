# SPDX-License-Identifier: MIT OR Apache-2.0
"""From shapes, strides and options to the C API's problem. Knows no framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _core
from ._errors import InvalidArgumentError, UnsupportedError
from ._options import NORMALIZERS, Options

FORWARD, BACKWARD, MERGE, MERGE_BACKWARD = 1, 2, 3, 4
F32, F16, BF16, BOOL8, F64 = 1, 2, 3, 4, 8
INDEX_DTYPES = {"uint8": 5, "uint16": 6, "int32": 7}
DTYPES = {"float32": F32, "float16": F16, "bfloat16": BF16, "float64": F64}
FULL, PADDED, PACKED, GAPPED = 0, 1, 2, 3

#: Gradients by the name of their input, as bits of TANDEM_GRAD_*.
GRADIENTS = {
    "q": 0x1,
    "k": 0x2,
    "v": 0x4,
    "bias": 0x8,
    "dist_bias": 0x10,
    "slope": 0x20,
    "tau": 0x40,
    "sink": 0x80,
    "bias_table": 0x100,
}

#: What a forward reads.
INPUTS = (
    "q", "k", "v", "bias", "keep", "spans", "blocks", "block_bits", "bias_table", "bias_index",
    "dist_bias", "slope", "tau", "sink", "lengths_q", "lengths_kv", "offsets_q", "offsets_kv",
)  # fmt: skip

#: The order of a call's buffers, that of tandem_args. It has the workspace.
BUFFERS = _core.BUFFERS


class Layout(NamedTuple):
    """Shape, strides in elements and element type of an array."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def _bhsd(name: str, layout: Layout, options: Options, packed: bool) -> tuple[list[int], list[int]]:
    """Sizes and strides in the order batch, head, position, feature. Packed: batch is 1."""
    shape, strides = list(layout.shape), list(layout.strides)
    want = 3 if packed else 4
    if len(shape) != want:
        order = (
            ("[total, H, D]" if options.bshd else "[H, total, D]")
            if packed
            else ("[B, S, H, D]" if options.bshd else "[B, H, S, D]")
        )
        raise InvalidArgumentError(f"{name} has {len(shape)} dimensions where {order} has {want}")
    if packed:
        shape.insert(0, 1)
        strides.insert(0, 0)
    if options.bshd:
        shape[1], shape[2] = shape[2], shape[1]
        strides[1], strides[2] = strides[2], strides[1]
    return shape, strides


def _same(name: str, what: str, got: int, want: int, other: str) -> None:
    if got != want:
        raise InvalidArgumentError(f"{name} has {what} {got} where {other} has {want}")


def _vector(name: str, layout: Layout, shape: tuple[int, ...], dtype: str) -> None:
    if layout.shape != shape or layout.dtype != dtype:
        raise InvalidArgumentError(
            f"{name} is {layout.dtype} {list(layout.shape)}, not {dtype} {list(shape)}"
        )
    if 0 in shape:  # frameworks give empty arrays strides of several kinds
        return
    dense = 1
    for size, stride in zip(reversed(shape), reversed(layout.strides), strict=True):
        if size > 1 and stride != dense:
            raise InvalidArgumentError(f"{name} is not contiguous")
        dense *= size


def places(lengths: Any, offsets: Any) -> tuple[Any, Any]:
    """args.lengths_* and args.offsets_* of what a caller gives by these names.

    Offsets alone are cumulative, which the C API takes as lengths.
    """
    return (offsets, None) if lengths is None else (lengths, offsets)


def refuse_no_whole_numbers(name: str, dtype: str) -> None:
    """For lengths and offsets that would have to be cut."""
    raise InvalidArgumentError(f"{name} is {dtype}, not of a type of whole numbers such as int32")


def _divides(name: str, layout: Layout, batch: int) -> None:
    entries = layout.shape[0]
    if entries not in (1, batch) and (entries < 1 or batch % entries):
        raise InvalidArgumentError(
            f"{name} of shape {list(layout.shape)} has {entries} batch entries, which do not divide"
            f" the {batch} of q"
        )


def _broadcast(name: str, layout: Layout, b: int, heads: Sequence[int], sq: int, sk: int) -> None:
    if len(layout.shape) != 4:
        raise InvalidArgumentError(f"{name} has {len(layout.shape)} dimensions, not 4")
    _, size_h, size_q, size_k = layout.shape
    _divides(name, layout, b)
    if size_h not in (1, *heads) or size_q not in (1, sq) or size_k != sk:
        raise InvalidArgumentError(
            f"{name} of shape {list(layout.shape)} does not broadcast to"
            f" [{b}, {heads[0]}, {sq}, {sk}]"
        )


def _set_spans(p: _core.Problem, spans: Layout, sizes: Sizes) -> None:
    _vector("spans", spans, spans.shape, "int32")
    if len(spans.shape) != 4:
        raise InvalidArgumentError(f"spans has {len(spans.shape)} dimensions, not 4")
    batch, heads, keys, numbers = spans.shape
    if numbers not in (2, 4):
        raise InvalidArgumentError(
            f"spans of shape {list(spans.shape)} has {numbers} numbers a key; there are 2 for one"
            f" interval of rows, begin and end, and 4 for two"
        )
    _same("spans", "keys", keys, sizes.seq_kv, "k")
    if heads not in (1, sizes.heads_q, sizes.heads_kv):
        raise InvalidArgumentError(
            f"spans of shape {list(spans.shape)} has {heads} heads; it may have 1,"
            f" {sizes.heads_kv} or {sizes.heads_q}"
        )
    _divides("spans", spans, sizes.batch)
    p.spans, p.spans_batch, p.spans_heads = numbers // 2, batch, heads


def _set_blocks(p: _core.Problem, lists: Layout, bits: Layout, sizes: Sizes) -> None:
    _vector("block_mask.lists", lists, lists.shape, "int32")
    _vector("block_mask.bits", bits, bits.shape, "int32")
    if len(lists.shape) != 4 or len(bits.shape) != 6 or lists.shape[3] < 2:
        raise InvalidArgumentError(
            f"block_mask has lists {list(lists.shape)} and bits {list(bits.shape)}, not [batch,"
            f" heads, rows of blocks, 2 + width] and [batch, heads, rows of blocks, blocks, rows,"
            f" words]"
        )
    batch, heads, rows, numbers = lists.shape
    _, _, _, blocks, height, words = bits.shape
    if bits.shape[:3] != lists.shape[:3]:
        raise InvalidArgumentError(
            f"block_mask has bits {list(bits.shape)} beside lists {list(lists.shape)}: batch, heads"
            f" and rows of blocks differ"
        )
    if height < 1 or words < 1 or rows != -(-sizes.seq_q // height):
        raise InvalidArgumentError(
            f"block_mask has {rows} rows of blocks of {height} query rows and {32 * words} keys;"
            f" q has {sizes.seq_q} rows"
        )
    _divides("block_mask.lists", lists, sizes.batch)
    p.block_q, p.block_kv, p.block_width = height, 32 * words, numbers - 2
    p.block_bits, p.block_batch, p.block_heads = blocks, batch, heads


def _set_table(p: _core.Problem, layouts: dict[str, Layout], sizes: Sizes) -> None:
    table, index = layouts.get("bias_table"), layouts.get("bias_index")
    if table is None or index is None:
        raise InvalidArgumentError("bias_table and bias_index go together, and one is not given")
    if len(table.shape) != 2 or table.shape[1] < 1:
        raise InvalidArgumentError(f"bias_table is {list(table.shape)}, not [Hq, N]")
    _vector("bias_table", table, (sizes.heads_q, table.shape[1]), side_dtype(layouts["q"].dtype))
    if index.dtype not in INDEX_DTYPES:
        raise InvalidArgumentError(
            f"bias_index is {index.dtype}; it may be {', '.join(INDEX_DTYPES)}"
        )
    want = (sizes.seq_q, sizes.seq_kv)
    if len(index.shape) != 3 or index.shape[1:] != want:
        raise InvalidArgumentError(
            f"bias_index is {list(index.shape)}, not [batch, {want[0]}, {want[1]}]"
        )
    batch = index.shape[0]
    _divides("bias_index", index, sizes.batch)
    _vector("bias_index", index, index.shape, index.dtype)
    p.bias_table_size, p.bias_index_batch = table.shape[1], batch
    p.bias_index_dtype = INDEX_DTYPES[index.dtype]


class Sizes(NamedTuple):
    """B, Hq, Hk, Sq, Sk, D and Dv of a call; rows of packed tensors, else 0."""

    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    total_q: int
    total_kv: int

    @property
    def lse(self) -> tuple[int, int, int]:
        """The shape of lse."""
        return self.batch, self.heads_q, self.seq_q


def sizes_of(layouts: dict[str, Layout], options: Options) -> Sizes:
    """Reads the sizes off q, k, v and the offsets, and holds them against each other."""
    q, _ = _bhsd("q", layouts["q"], options, options.packed_q)
    k, _ = _bhsd("k", layouts["k"], options, options.packed_kv)
    v, _ = _bhsd("v", layouts["v"], options, options.packed_kv)
    _same("k", "a head size of", k[3], q[3], "q")
    _same("v", "heads", v[1], k[1], "k")
    _same("v", "keys", v[2], k[2], "k")
    batches: dict[str, int] = {}
    for side, size, packed in (("q", q[0], options.packed_q), ("kv", k[0], options.packed_kv)):
        if packed:
            offsets = layouts.get(f"offsets_{side}")
            if offsets is not None:  # beside lengths
                if len(offsets.shape) != 1:
                    raise InvalidArgumentError(
                        f"offsets_{side} has one dimension, [B], beside lengths_{side}"
                    )
                batches[side] = offsets.shape[0]
                continue
            offsets = layouts.get(f"lengths_{side}")
            if offsets is None:
                raise InvalidArgumentError(f"a packed {side} needs offsets_{side}")
            if len(offsets.shape) != 1 or offsets.shape[0] < 1:
                raise InvalidArgumentError(f"offsets_{side} has one dimension, [B + 1]")
            batches[side] = offsets.shape[0] - 1
        else:
            batches[side] = size
    if not options.packed_kv:
        _same("v", "a batch of", v[0], k[0], "k")
    if batches["q"] != batches["kv"]:
        raise InvalidArgumentError(
            f"k and v have {batches['kv']} batch entries where q has {batches['q']}"
        )
    return Sizes(
        batch=batches["q"],
        heads_q=q[1],
        heads_kv=k[1],
        # Without a row no sequence has one, whatever the longest is said to be.
        seq_q=options.seq_q if options.packed_q and options.seq_q and q[2] else q[2],
        seq_kv=options.seq_kv if options.packed_kv and options.seq_kv and k[2] else k[2],
        head_dim=q[3],
        head_dim_v=v[3],
        total_q=q[2] if options.packed_q else 0,
        total_kv=k[2] if options.packed_kv else 0,
    )


def side_dtype(dtype: str) -> str:
    """The type of lse and of arrays that have none of their own, beside a q of dtype."""
    return "float64" if dtype == "float64" else "float32"


def _dtype_of(name: str, layout: Layout) -> int:
    dtype = DTYPES.get(layout.dtype)
    if dtype is None:
        raise UnsupportedError(f"{name} is {layout.dtype}; it may be {', '.join(DTYPES)}")
    return dtype


def make_problem(
    layouts: dict[str, Layout], options: Options, direction: int, gradients: int
) -> tuple[_core.Problem, Sizes]:
    """The problem of a call whose arrays are laid out so; absent ones are not in layouts.

    Raises InvalidArgumentError where sizes or types do not fit. The plan checks the rest.
    """
    sizes = sizes_of(layouts, options)
    p = _core.Problem()
    p.direction = direction
    p.gradients = gradients
    p.batch, p.heads_q, p.heads_kv = sizes.batch, sizes.heads_q, sizes.heads_kv
    p.seq_q, p.seq_kv = sizes.seq_q, sizes.seq_kv
    p.head_dim, p.head_dim_v = sizes.head_dim, sizes.head_dim_v
    p.total_q, p.total_kv = sizes.total_q, sizes.total_kv
    if options.scale is not None:
        p.scale = options.scale
    p.mask = int(options.causal)
    p.align = options.align
    p.window_left, p.window_right = options.window_left, options.window_right
    p.softcap, p.dropout, p.flags = options.softcap, options.dropout, options.flags
    p.workspace_limit = options.workspace_limit
    p.normalizer, p.entmax_alpha = options.normalizer, options.alpha

    p.contiguous(_dtype_of("q", layouts["q"]))
    own_dtype = side_dtype(layouts["q"].dtype)
    for name in ("q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v"):
        layout = layouts.get(name)
        if layout is None:
            continue
        if layout.dtype != layouts["q"].dtype:
            raise InvalidArgumentError(f"{name} is {layout.dtype} where q is {layouts['q'].dtype}")
        packed = options.packed_kv if name[-1] in "kv" else options.packed_q
        shape, strides = _bhsd(name, layout, options, packed)
        heads, rows = (
            (sizes.heads_kv, sizes.total_kv or sizes.seq_kv)
            if name[-1] in "kv"
            else (sizes.heads_q, sizes.total_q or sizes.seq_q)
        )
        width = sizes.head_dim_v if name[-1] in "vo" else sizes.head_dim
        want = [1 if packed else sizes.batch, heads, rows, width]
        if shape != want:
            raise InvalidArgumentError(f"{name} has the sizes {shape} (B H S D), not {want}")
        p.set_tensor(name, _dtype_of(name, layout), strides)

    both = (sizes.heads_q, sizes.heads_kv)
    if "bias" in layouts:
        bias = layouts["bias"]
        _broadcast("bias", bias, sizes.batch, both, sizes.seq_q, sizes.seq_kv)
        p.bias_batch, p.bias_heads, p.bias_rows = bias.shape[:3]
        p.set_tensor("bias", _dtype_of("bias", bias), list(bias.strides))
        d_bias = layouts.get("d_bias")
        if d_bias is not None:
            if d_bias.shape != bias.shape:
                raise InvalidArgumentError(
                    f"d_bias is {list(d_bias.shape)}, not {list(bias.shape)}"
                )
            p.set_tensor("d_bias", _dtype_of("d_bias", d_bias), list(d_bias.strides))
    if "keep" in layouts:
        keep = layouts["keep"]
        if keep.dtype not in ("bool", "uint8"):
            raise InvalidArgumentError(f"keep is {keep.dtype}; it may be bool or uint8")
        _broadcast("keep", keep, sizes.batch, both, sizes.seq_q, sizes.seq_kv)
        p.keep_batch, p.keep_heads, p.keep_rows = keep.shape[:3]
        p.set_tensor("keep", BOOL8, list(keep.strides))
    if "spans" in layouts:
        _set_spans(p, layouts["spans"], sizes)
    if "blocks" in layouts:
        _set_blocks(p, layouts["blocks"], layouts["block_bits"], sizes)
    if "bias_table" in layouts or "bias_index" in layouts:
        _set_table(p, layouts, sizes)
    if "dist_bias" in layouts:
        dist = layouts["dist_bias"]
        if len(dist.shape) != 2 or dist.shape[1] < 1:
            raise InvalidArgumentError(f"dist_bias is {list(dist.shape)}, not [Hq, W]")
        p.dist_window = dist.shape[1]
        _vector("dist_bias", dist, (sizes.heads_q, dist.shape[1]), own_dtype)
    if "tau" in layouts:
        _vector("tau", layouts["tau"], (sizes.heads_q,), own_dtype)
    for name in ("slope", "sink"):
        if name in layouts:
            own = layouts[name].shape
            entries = own[:1] if len(own) == 2 else ()
            _vector(name, layouts[name], (*entries, sizes.heads_q), own_dtype)
            if entries:
                _divides(name, layouts[name], sizes.batch)
                setattr(p, f"{name}s_batch", entries[0])
    p.alibi, p.sink = int("slope" in layouts), int("sink" in layouts)
    if ("tau" in layouts) != (options.normalizer == NORMALIZERS["elastic"]):
        raise InvalidArgumentError("tau and normalizer='elastic' go together")
    for side, packed in (("q", options.packed_q), ("kv", options.packed_kv)):
        lengths = layouts.get(f"lengths_{side}")
        offsets = layouts.get(f"offsets_{side}")
        if offsets is not None:
            _vector(f"offsets_{side}", offsets, (sizes.batch,), "int32")
        if lengths is not None:
            cumulative = packed and offsets is None
            word = "offsets" if cumulative else "lengths"
            _vector(f"{word}_{side}", lengths, (sizes.batch + cumulative,), "int32")
            kind = PADDED if not packed else PACKED if cumulative else GAPPED
            setattr(p, f"lengths_{side}", kind)
    if "lse" in layouts:
        _vector("lse", layouts["lse"], sizes.lse, own_dtype)
    if "d_lse" in layouts:
        _vector("d_lse", layouts["d_lse"], sizes.lse, own_dtype)
        p.d_lse = 1
    if "max_logit" in layouts:
        _vector("max_logit", layouts["max_logit"], (sizes.batch, sizes.heads_q), "float32")
        p.max_logit_batch = sizes.batch
    for name in ("bias_table", "dist_bias", "slope", "tau", "sink"):
        if f"d_{name}" in layouts and name in layouts:
            _vector(f"d_{name}", layouts[f"d_{name}"], layouts[name].shape, own_dtype)
    return p, sizes


def output_shapes(layouts: dict[str, Layout], options: Options) -> dict[str, tuple[int, ...]]:
    """Shapes of o, lse and max_logit, in the caller's order of dimensions."""
    sizes = sizes_of(layouts, options)
    q = layouts["q"].shape
    return {
        "o": (*q[:-1], sizes.head_dim_v),
        "lse": sizes.lse,
        "max_logit": (sizes.batch, sizes.heads_q),
    }


def make_merge(layouts: dict[str, Layout], bshd: bool, into: bool) -> _core.Problem:
    """The problem of a merge, or of its backward where d_o is in layouts.

    Args:
        layouts: of part_o and part_lse; of o and lse, or of d_o, d_lse, d_part_o and d_part_lse.
        bshd: dimensions are [B, S, H, D].
        into: o and lse hold a part.

    Raises InvalidArgumentError where sizes or types do not fit. The plan checks the rest.
    """
    part = layouts["part_o"]
    order = "B, S, H, D" if bshd else "B, H, S, D"
    if len(part.shape) != 5:
        raise InvalidArgumentError(
            f"part_o has {len(part.shape)} dimensions where [parts, {order}] has 5"
        )
    if part.shape[0] < 1:
        raise InvalidArgumentError(f"part_o of shape {list(part.shape)} has no part")
    want = list(part.shape[1:])
    parts, side = part.shape[0], side_dtype(part.dtype)
    batch, heads, rows, width = [want[n] for n in ((0, 2, 1, 3) if bshd else (0, 1, 2, 3))]
    p = _core.Problem()
    p.direction = MERGE_BACKWARD if "d_o" in layouts else MERGE
    p.batch, p.heads_q, p.seq_q, p.head_dim_v = batch, heads, rows, width
    p.heads_kv, p.seq_kv, p.head_dim = heads, rows, width  # which it ignores
    p.parts, p.merge_into, p.d_lse = parts, int(into), int("d_lse" in layouts)
    p.contiguous(_dtype_of("part_o", part))
    for name in ("part_o", "d_part_o", "o", "d_o"):
        layout = layouts.get(name)
        if layout is None:
            continue
        shape, strides = list(layout.shape), list(layout.strides)
        if name.endswith("part_o"):
            if layout.shape != part.shape:
                raise InvalidArgumentError(f"{name} is {shape}, not {list(part.shape)}")
            setattr(p, f"{name[:-2]}_stride", strides[0])
            shape, strides = shape[1:], strides[1:]
        if shape != want:
            raise InvalidArgumentError(f"{name} is {shape}, not {want} ({order}) as a part is")
        if bshd:
            strides[1], strides[2] = strides[2], strides[1]
        p.set_tensor(name, _dtype_of(name, layout), strides)
    for name in ("part_lse", "d_part_lse", "lse", "d_lse"):
        if name in layouts:
            all_parts = (parts,) if "part" in name else ()
            _vector(name, layouts[name], (*all_parts, batch, heads, rows), side)
    return p
