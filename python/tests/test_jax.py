# SPDX-License-Identifier: MIT OR Apache-2.0
"""tandem_attention.jax.attention: values and gradients beside jax's own, jit, grad, vmap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.export import symbolic_shape  # noqa: E402

import tandem_attention as ta  # noqa: E402
from tandem_attention import masks  # noqa: E402

if not hasattr(ta._core, "jax_handlers"):
    pytest.skip("this build has no JAX", allow_module_level=True)

from tandem_attention.jax import attention  # noqa: E402

jax.config.update("jax_default_matmul_precision", "highest")  # of what is compared with
KEYS = iter(jax.random.split(jax.random.key(5), 1000))


def normal(*shape: int) -> Any:
    return jax.random.normal(next(KEYS), shape)


def math_attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    sink: Any = None,
    causal: bool = False,
    keep: Any = True,
) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, 1), jnp.repeat(v, group, 1)
    s = jnp.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    if bias is not None:
        s = s + bias
    if causal:
        s = jnp.where(jnp.tril(jnp.ones(s.shape[2:], bool)), s, -jnp.inf)
    s = jnp.where(keep, s, -jnp.inf)
    if sink is not None:
        column = jnp.broadcast_to(sink[None, :, None, None], (*s.shape[:3], 1))
        s = jnp.concatenate([s, column], -1)
    p = jax.nn.softmax(s, -1)
    return jnp.einsum("bhij,bhjd->bhid", p[..., : k.shape[2]], v)


@pytest.mark.parametrize("name", ["plain", "causal", "bias", "bias of keys", "sink"])
def test_values_and_gradients(name: str) -> None:
    q, k, v = normal(2, 4, 9, 8), normal(2, 2, 11, 8), normal(2, 2, 11, 6)
    more: dict[str, Any] = {
        "plain": {},
        "causal": {},
        "bias": {"bias": normal(4, 9, 11)},
        "bias of keys": {"bias": normal(2, 1, 1, 11)},
        "sink": {"sink": normal(4)},
    }[name]
    causal = name == "causal"

    def loss(function: Any) -> Any:
        return lambda x: jnp.sin(function(**x, causal=causal)).sum()

    inputs = {"q": q, "k": k, "v": v, **more}
    np.testing.assert_allclose(
        attention(**inputs, causal=causal), math_attention(**inputs, causal=causal), atol=2e-6
    )
    got = jax.jit(jax.grad(loss(attention)))(inputs)
    want = jax.grad(loss(math_attention))(inputs)
    for n in inputs:
        np.testing.assert_allclose(got[n], want[n], atol=5e-6, err_msg=n)


def test_only_what_is_wanted_is_computed() -> None:
    q, k, v, bias = normal(1, 2, 5, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8), normal(2, 5, 7)
    text = str(jax.make_jaxpr(jax.grad(lambda x: attention(q, k, x, bias=bias).sum()))(v))
    assert "grads=v" in text


def test_vmap() -> None:
    q, k, v = normal(3, 1, 2, 5, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8)
    one = lambda x: attention(x, k, v)  # noqa: E731
    np.testing.assert_allclose(jax.vmap(one)(q), jnp.stack([one(x) for x in q]), atol=1e-6)
    gradient = jax.grad(lambda x: jnp.sin(one(x)).sum())
    np.testing.assert_allclose(
        jax.vmap(gradient)(q), jnp.stack([gradient(x) for x in q]), atol=1e-6
    )


@pytest.mark.parametrize(
    ("batch", "heads", "numbers"), [(1, 1, 2), (2, 2, 4), (4, 4, 2), (2, 1, 4), (1, 4, 4)]
)
def test_spans(batch: int, heads: int, numbers: int) -> None:
    q, k, v = normal(4, 4, 9, 8), normal(4, 2, 11, 8), normal(4, 2, 11, 6)
    bias, sink = normal(1, 4, 9, 11), normal(4)
    spans = np.random.default_rng(batch + heads).integers(-2, 12, (batch, heads, 11, numbers))
    keep = masks.to_mask(spans, 9).repeat(4 // batch, 0).repeat(4 // heads, 1)
    inputs = {"q": q, "k": k, "v": v, "bias": bias, "sink": sink}

    def loss(function: Any) -> Any:
        return lambda x: jnp.sin(function(x)).sum()

    def given(x: Any) -> Any:
        return attention(**x, spans=jnp.asarray(spans), causal=True)

    def want(x: Any) -> Any:
        return math_attention(**x, keep=keep, causal=True)

    np.testing.assert_allclose(given(inputs), want(inputs), atol=2e-6)
    got, right = jax.jit(jax.grad(loss(given)))(inputs), jax.grad(loss(want))(inputs)
    for n in inputs:
        np.testing.assert_allclose(got[n], right[n], atol=5e-6, err_msg=n)
    # Spans as an argument of a program, and spans that are mapped.
    run = jax.jit(lambda s: attention(q, k, v, spans=s, causal=True))
    o = attention(q, k, v, spans=jnp.asarray(spans), causal=True)
    np.testing.assert_allclose(run(jnp.asarray(spans, jnp.int32)), o, atol=1e-6)
    many = jnp.stack([jnp.asarray(spans), jnp.asarray(spans) + 1])
    np.testing.assert_allclose(jax.vmap(run)(many), jnp.stack([run(s) for s in many]), atol=1e-6)
    # The arrays API, whose gradients are a call. A sink, as math_attention() knows no empty rows.
    more = {"spans": jnp.asarray(spans, jnp.int32), "sink": sink}
    o, lse = ta.attention(q, k, v, **more, return_lse=True)
    made = ta.attention_backward(jnp.cos(o), q, k, v, o, lse, **more)
    right = jax.grad(loss(lambda x: math_attention(*x, sink=sink, keep=keep)))((q, k, v))
    for a, b in zip(made[:3], right, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-6)


def test_block_lists() -> None:
    q, k, v = normal(2, 4, 100, 8), normal(2, 2, 90, 8), normal(2, 2, 90, 6)
    bits = np.random.default_rng(3).integers(-(2**31), 2**31, (2, 1, 2, 1, 64, 2), np.int32)
    lists = np.array([[[[1, 1, 0, 1], [0, 1, 1, 0]]], [[[1, 0, 1, 9], [1, 1, 0, 1]]]], np.int32)
    keep = np.zeros((2, 1, 128, 128), bool)
    for b, r in ((0, 0), (1, 0), (1, 1)):
        column = int(lists[b, 0, r, 2])
        words = bits[b, 0, r, 0].astype(np.uint32)[:, :, None] >> np.arange(32, dtype=np.uint32)
        keep[b, 0, 64 * r : 64 * r + 64, 64 * column : 64 * column + 64] = (words & 1).reshape(
            64, 64
        )
    keep[0, 0, :64, 64:] = keep[0, 0, 64:, 64:] = keep[1, 0, 64:, 64:] = True
    blocks = masks.Blocks(lists, bits)
    shown = jnp.asarray(keep[:, :, :100, :90])

    def loss(x: Any, **more: Any) -> Any:
        return jnp.sin(attention(*x, **more)).sum()

    np.testing.assert_allclose(
        attention(q, k, v, block_mask=blocks), attention(q, k, v, keep=shown), atol=1e-6
    )
    got = jax.jit(jax.grad(lambda x: loss(x, block_mask=blocks)))((q, k, v))
    for one, other in zip(got, jax.grad(lambda x: loss(x, keep=shown))((q, k, v)), strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6)
    with pytest.raises(ta.InvalidArgumentError, match=r"block_mask.lists is int64, not int32"):
        attention(q, k, v, block_mask=masks.Blocks(lists.astype(np.int64), bits))


def test_spans_of_other_types() -> None:
    q = normal(2, 2, 5, 8)
    spans = np.array([[0, 5], [1, 3], [2, 4], [0, 0], [4, 5]])
    want = attention(q, q, q, spans=spans)
    for kind in (np.int8, np.uint16, np.uint32, np.int64, np.uint64):
        assert jnp.array_equal(attention(q, q, q, spans=spans.astype(kind)), want)
    assert jnp.array_equal(attention(q, q, q, spans=spans.tolist()), want)
    # Numbers beyond int32 are not cut.
    for far in (np.int64(2**40), np.uint32(2**32 - 1), np.uint64(2**64 - 1)):
        to_the_end = np.stack([np.arange(5).astype(far.dtype), np.full(5, far)], 1)
        causal = attention(q, q, q, causal=True)
        np.testing.assert_allclose(attention(q, q, q, spans=to_the_end), causal, atol=1e-6)
    for wrong in (spans.astype(np.float32), spans > 1):
        with pytest.raises(ta.InvalidArgumentError, match=r"spans is .*, not of a type of whole"):
            attention(q, q, q, spans=wrong)
    with pytest.raises(ta.InvalidArgumentError, match="has 3 batch entries, which do not divide"):
        jax.jit(lambda s: attention(q, q, q, spans=s))(jnp.zeros((3, 1, 5, 2), jnp.int32))
    with pytest.raises(ta.InvalidArgumentError, match="spans has 5 dimensions; at most 4"):
        attention(q, q, q, spans=spans[None, None, None])


@pytest.mark.parametrize("batch", [1, 2])
def test_a_table(batch: int) -> None:
    q, k, v, table = normal(2, 4, 9, 8), normal(2, 2, 11, 8), normal(2, 2, 11, 6), normal(4, 7)
    index = np.random.default_rng(batch).integers(-1, 9, (batch, 9, 11))
    entry = (index >= 0) & (index < 7)
    inputs = {"q": q, "k": k, "v": v, "table": table}

    def given(x: Any) -> Any:
        return attention(x["q"], x["k"], x["v"], bias_table=x["table"], bias_index=index)

    def want(x: Any) -> Any:
        bias = jnp.where(entry, x["table"][:, np.where(entry, index, 0)], 0).swapaxes(0, 1)
        return math_attention(x["q"], x["k"], x["v"], bias=bias)

    np.testing.assert_allclose(given(inputs), want(inputs), atol=2e-6)
    got = jax.jit(jax.grad(lambda x: jnp.sin(given(x)).sum()))(inputs)
    right = jax.grad(lambda x: jnp.sin(want(x)).sum())(inputs)
    for n in inputs:
        np.testing.assert_allclose(got[n], right[n], atol=5e-6, err_msg=n)
    o = attention(q, k, v, bias_table=table, bias_index=index)
    run = jax.jit(lambda i: attention(q, k, v, bias_table=table, bias_index=i))
    for kind in (np.int8, np.int32, np.int64):
        np.testing.assert_array_equal(run(jnp.asarray(index.astype(kind))), o)
    far = np.where(index < 0, 2**40 + 1, index)
    assert jnp.array_equal(attention(q, k, v, bias_table=table, bias_index=far), o)
    if batch == 1:
        assert jnp.array_equal(attention(q, k, v, bias_table=table, bias_index=index[0]), o)
    with pytest.raises(ta.InvalidArgumentError, match=r"bias_index is .*, not of a type of whole"):
        attention(q, k, v, bias_table=table, bias_index=index.astype(np.float32))
    with pytest.raises(ta.InvalidArgumentError, match="bias_table and bias_index go together"):
        attention(q, k, v, bias_table=table)


def test_types_lengths_and_lse() -> None:
    q, k, v = (normal(2, 2, 6, 8).astype(jnp.bfloat16) for _ in range(3))
    lengths = jnp.array([6, 3])
    o, lse = attention(q, k, v, lengths_q=lengths, lengths_kv=lengths, return_lse=True)
    assert o.dtype == jnp.bfloat16
    assert lse.dtype == jnp.float32
    assert not np.isfinite(lse[1, 0, 3:]).any()
    want = math_attention(*(x[1:, :, :3].astype(jnp.float32) for x in (q, k, v)))
    np.testing.assert_allclose(o[1:, :, :3].astype(jnp.float32), want, atol=3e-2)


def test_arrays_api_takes_jax_arrays() -> None:
    q, bias = normal(1, 2, 5, 8), normal(5, 1)
    o, lse = ta.attention(q, q, q, bias=bias, return_lse=True)
    assert isinstance(o, jax.Array)
    assert o.devices() == q.devices()
    np.testing.assert_allclose(o, attention(q, q, q, bias=bias), atol=1e-6)
    got = ta.attention_backward(jnp.ones_like(o), q, q, q, o, lse, bias=bias)
    want = jax.grad(lambda x: attention(*x[:3], bias=x[3]).sum())((q, q, q, bias))
    for a, b in zip(got[:4], want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=1e-6)
    jitted = jax.jit(lambda x: ta.attention(x, x, x, bias=bias))
    np.testing.assert_allclose(jitted(q), o, atol=1e-6)


def test_refusals() -> None:
    q, k, v = normal(1, 2, 5, 8), normal(1, 2, 7, 8), normal(1, 2, 7, 8)
    with pytest.raises(ta.UnsupportedError, match="dropout"):
        attention(q, k, v, dropout=0.1)
    with pytest.raises(ta.UnsupportedError, match="stream is not there"):
        jax.jit(lambda x: ta.attention(x, x, x, stream=0))(q)
    with pytest.raises(ta.InvalidArgumentError, match="does not broadcast"):
        jax.jit(lambda x: attention(q, k, v, bias=x))(normal(3, 7))
    with pytest.raises(ta.InvalidArgumentError, match="k is float16"):
        attention(q, k.astype(jnp.float16), v)
    with pytest.raises(ta.UnsupportedError, match="head_dim"):
        attention(normal(1, 1, 2, 600), normal(1, 1, 2, 600), normal(1, 1, 2, 8))
    host = np.ones(q.shape, np.float32)
    with pytest.raises(ta.InvalidArgumentError, match="k is traced by JAX, and q is no array of"):
        jax.make_jaxpr(lambda x: ta.attention(host, x, x))(k)
    with pytest.raises(ta.UnsupportedError, match="no second derivatives"):
        jax.hessian(lambda x: attention(x, k, v).sum())(q)
    (some,) = symbolic_shape("some")
    with pytest.raises(
        ta.UnsupportedError, match=r"\(some, 2, 5, 8\) has a size that is no number"
    ):
        jax.eval_shape(
            lambda x: attention(x, x, x), jax.ShapeDtypeStruct((some, 2, 5, 8), jnp.float32)
        )
    with pytest.raises(ta.InvalidArgumentError, match="q is a NoneType, not an array"):
        attention(None, k, v)
    with pytest.raises(ta.InvalidArgumentError, match="k has 1 dimensions, not 4"):
        attention(q, k[0, 0, 0], v)
    with pytest.raises(ta.InvalidArgumentError, match="return_lse is a"):
        attention(q, k, v, return_lse=jnp.ones(2))
    for name, shape in (("slope", (2,)), ("sink", (2,)), ("dist_bias", (2, 3))):
        with pytest.raises(ta.InvalidArgumentError, match=f"{name} is complex64, must be real"):
            attention(q, k, v, **{name: jnp.ones(shape, jnp.complex64)})


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ("q k v o", "no buffer is named "),
        ("q k v o lse d_o", "buffers names more than the call has"),
        ("q k value o lse", "no buffer is named value"),
    ],
)
def test_buffers_of_a_program_are_called_by_name(names: str, sentence: str) -> None:
    """A stored program names its buffers: another version's order cannot confuse them."""
    q = normal(1, 1, 2, 8)
    attention(q, q, q)  # registers the calls
    outputs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in (q.shape, q.shape[:3])]
    line = "fwd f32 b1 hq1 hk1 sq2 sk2 d8"

    def run(names: str) -> Any:
        return jax.ffi.ffi_call("tandem_attention", outputs)(q, q, q, problem=line, buffers=names)

    assert jnp.array_equal(run("q k v o lse")[0], attention(q, q, q))
    with pytest.raises(Exception, match=sentence):
        jax.block_until_ready(run(names))


def test_lengths_that_are_no_whole_numbers_are_refused() -> None:
    q = normal(2, 1, 4, 8)
    for name in ("lengths_q", "lengths_kv"):
        for wrong in (jnp.array([2.5, 3.5]), jnp.array([True, True])):
            with pytest.raises(
                ta.InvalidArgumentError, match=f"{name} is .*, not of a type of whole numbers"
            ):
                attention(q, q, q, **{name: wrong})
    packed, offsets = q.reshape(1, 8, 8), jnp.array([0.0, 4.0, 8.0])
    with pytest.raises(
        ta.InvalidArgumentError, match="offsets_kv is float32, not of a type of whole numbers"
    ):
        attention(packed, packed, packed, offsets_q=jnp.array([0, 4, 8]), offsets_kv=offsets)
    o = attention(q, q, q, lengths_kv=jnp.array([2, 3], jnp.int16))
    assert jnp.array_equal(o, attention(q, q, q, lengths_kv=[2, 3]))


def test_lengths_beyond_int32_are_beyond_every_sequence() -> None:
    """Their low bits would be other lengths."""
    q = normal(2, 1, 4, 8)
    want = attention(q, q, q, lengths_kv=[2, 4])
    for far in (np.uint32([2, 2**32 - 1]), np.int64([2, 2**32 + 1]), np.uint64([2, 2**63])):
        assert jnp.array_equal(attention(q, q, q, lengths_kv=far), want)
