# SPDX-License-Identifier: MIT OR Apache-2.0
"""attention() and attention_backward() on numpy arrays, on every device of TANDEM_TEST_DEVICES."""

from __future__ import annotations

import multiprocessing
import re
import threading
from typing import Any

import numpy as np
import pytest
import reference

import tandem_attention as ta

RNG = np.random.default_rng(20)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def problem(heads: int = 4, kv: int = 2, rows: int = 9, keys: int = 11) -> tuple[Any, Any, Any]:
    return normal(2, heads, rows, 8), normal(2, kv, keys, 8), normal(2, kv, keys, 6)


def some_spans(*shape: int) -> Any:
    """Any numbers around the 9 rows: empty intervals and such that reach beyond, too."""
    return RNG.integers(-2, 12, shape).astype(np.int32)


# Options by name, with the arrays that each one reads.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.7},
    "causal": {"causal": True},
    "causal bottom right": {"causal": "bottom_right"},
    "window": {"window": (3, 1)},
    "window bottom right": {"window": (2, 0), "align": "bottom_right"},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": normal(2, 4, 9, 11)},
    "bias of a row": {"bias": normal(4, 1, 11)},
    "bias of the kv heads": {"bias": normal(1, 2, 9, 11)},
    "bias of a batch entry": {"bias": normal(2, 1, 1, 1)},
    "mask": {"keep": RNG.random((2, 1, 9, 11)) < 0.5},
    "mask of two dimensions": {"keep": RNG.random((9, 11)) < 0.5},
    "spans": {"spans": some_spans(2, 1, 11, 2)},
    "two spans of the kv heads": {"spans": some_spans(1, 2, 11, 4), "sink": normal(4)},
    "spans of each head, causal": {"spans": some_spans(2, 4, 11, 4), "causal": "bottom_right"},
    "spans of two dimensions, and a mask": {
        "spans": some_spans(11, 4),
        "keep": RNG.random((9, 11)) < 0.7,
        "softcap": 1.5,
    },
    "spans, a bias and lengths": {
        "spans": some_spans(1, 4, 11, 2),
        "bias": normal(1, 4, 9, 11),
        "window": (6, 3),
        "lengths_q": np.array([9, 4], np.int32),
        "lengths_kv": np.array([5, 11], np.int32),
    },
    "distance": {"dist_bias": normal(4, 5), "causal": True},
    "alibi": {"slope": np.abs(normal(4))},
    "sink": {"sink": normal(4)},
    "elastic": {"normalizer": "elastic", "tau": -0.3 * np.ones(4, np.float32)},
    "entmax": {"normalizer": "entmax", "alpha": 1.5},
    "sparsemax": {"normalizer": "entmax", "alpha": 2.0},
    "lengths": {"lengths_q": np.array([9, 4], np.int32), "lengths_kv": np.array([5, 11], np.int32)},
}
GRADIENTS = ("q", "k", "v", "bias", "dist_bias", "slope", "tau", "sink")


@pytest.mark.parametrize("name", CASES)
def test_forward_and_gradients(name: str, device: str) -> None:
    options = dict(CASES[name])
    q, k, v = problem()
    o, lse = ta.attention(q, k, v, return_lse=True, device=device, **options)
    o_ref, lse_ref = reference.attention(q, k, v, **options)
    np.testing.assert_allclose(o, o_ref, atol=2e-6)
    rows = np.isfinite(lse_ref)
    np.testing.assert_array_equal(np.isfinite(lse), rows)
    np.testing.assert_allclose(lse[rows], lse_ref[rows], atol=3e-6)

    d_o = normal(*o.shape)
    if "lengths_q" in options:
        for b, n in enumerate(options["lengths_q"]):
            d_o[b, :, n:] = 0
    got = ta.attention_backward(d_o, q, k, v, o, lse, device=device, **options)
    # The derivative of <d_o, o> along a direction, by differences of the reference.
    arrays = {"q": q, "k": k, "v": v, **options}
    for wrt in GRADIENTS:
        if not isinstance(arrays.get(wrt), np.ndarray):
            assert getattr(got, wrt) is None
            continue
        gradient = getattr(got, wrt)
        assert gradient.shape == arrays[wrt].shape
        assert gradient.dtype == arrays[wrt].dtype
        direction = RNG.standard_normal(arrays[wrt].shape)
        sides = []
        for step in (1e-5, -1e-5):
            moved = {**arrays, wrt: arrays[wrt].astype(np.float64) + step * direction}
            sides.append((reference.attention(**moved)[0] * d_o).sum())
        want = (sides[0] - sides[1]) / 2e-5
        size = np.abs(gradient * direction).sum() + 1
        assert abs((gradient * direction).sum() - want) < 1e-5 * size, wrt


def test_float64() -> None:
    random = np.random.default_rng(12)
    arrays = {
        "q": random.standard_normal((2, 4, 3, 5)), "k": random.standard_normal((2, 2, 4, 5)),
        "v": random.standard_normal((2, 2, 4, 3)), "bias": random.standard_normal((4, 3, 1)),
        "dist_bias": random.standard_normal((4, 2)), "slope": random.standard_normal(4),
        "sink": random.standard_normal(4),
    }  # fmt: skip
    d_o, d_lse = random.standard_normal((2, 4, 3, 3)), random.standard_normal((2, 4, 3))

    def loss(given: dict[str, Any]) -> float:
        o, lse = ta.attention(**given, return_lse=True)
        assert o.dtype == lse.dtype == np.float64
        return float((o * d_o).sum() + (lse * d_lse).sum())

    o, lse = ta.attention(**arrays, return_lse=True)
    gradients = ta.attention_backward(d_o, o=o, lse=lse, d_lse=d_lse, **arrays)
    for name, array in arrays.items():
        got = getattr(gradients, name)
        assert got.dtype == np.float64
        direction = random.standard_normal(array.shape)
        up, down = (loss({**arrays, name: array + s * direction}) for s in (1e-5, -1e-5))
        assert abs((got * direction).sum() - (up - down) / 2e-5) < 1e-8, name
    with pytest.raises(ta.InvalidArgumentError, match="lse is float32"):
        ta.attention_backward(d_o, o=o, lse=lse.astype(np.float32), **arrays)
    with pytest.raises(ta.InvalidArgumentError, match="sink is float32"):
        ta.attention(**{**arrays, "sink": np.ones(4, np.float32)})


def test_types(device: str) -> None:
    q, k, v = problem()
    want = ta.attention(q, k, v, device=device)
    half = ta.attention(*(x.astype(np.float16) for x in (q, k, v)), device=device)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, want, atol=5e-3)
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    brain = ta.attention(*(x.astype(bf16) for x in (q, k, v)), device=device)
    assert brain.dtype == bf16
    np.testing.assert_allclose(brain.astype(np.float32), want, atol=4e-2)


def test_order_of_dimensions(device: str) -> None:
    q, k, v = problem()
    turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    o = ta.attention(*turned, layout="bshd", causal=True, device=device)
    want = ta.attention(q, k, v, causal=True, device=device)
    np.testing.assert_array_equal(o.transpose(0, 2, 1, 3), want)
    # The same memory, seen in the other order.
    views = [x.transpose(0, 2, 1, 3) for x in turned]
    np.testing.assert_array_equal(ta.attention(*views, causal=True, device=device), want)


def test_strided_inputs(device: str) -> None:
    qkv = normal(2, 9, 3, 4, 8)  # as a fused projection leaves it
    q, k, v = (qkv[:, :, n] for n in range(3))
    dense = [np.ascontiguousarray(x) for x in (q, k, v)]
    np.testing.assert_array_equal(
        ta.attention(q, k, v, layout="bshd", device=device),
        ta.attention(*dense, layout="bshd", device=device),
    )
    one_key = np.broadcast_to(k[:, :1], k.shape)
    np.testing.assert_allclose(
        ta.attention(q, one_key, v, layout="bshd", device=device),
        np.broadcast_to(v.mean(1, keepdims=True), v.shape),
        atol=1e-6,
    )


def test_out_with_gaps(device: str) -> None:
    q, k, v = problem()
    wide = np.full((2, 4, 9, 10), 7, np.float32)
    out = wide[..., :6]
    assert ta.attention(q, k, v, out=out, device=device) is out
    np.testing.assert_array_equal(out, ta.attention(q, k, v, device=device))
    assert (wide[..., 6:] == 7).all()


def test_packed(device: str) -> None:
    lengths = np.array([4, 0, 7])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    q, k, v = (normal(11, 2, 8) for _ in range(3))
    packed = {"offsets_q": offsets, "offsets_kv": offsets, "layout": "bshd", "causal": True}
    o, lse = ta.attention(
        q, k, v, return_lse=True, max_seq_q=7, max_seq_kv=7, device=device, **packed
    )
    assert lse.shape == (3, 2, 7)
    d_o = normal(*o.shape)
    got = ta.attention_backward(
        d_o, q, k, v, o, lse, max_seq_q=7, max_seq_kv=7, device=device, **packed
    )
    for b, n in enumerate(lengths):
        part = slice(offsets[b], offsets[b] + n)
        one = [x[None, part] for x in (q, k, v)]
        o_1, lse_1 = ta.attention(*one, layout="bshd", causal=True, return_lse=True, device=device)
        np.testing.assert_allclose(o[part], o_1[0], atol=1e-6)
        np.testing.assert_allclose(lse[b, :, :n], lse_1[0], atol=1e-6)
        back = ta.attention_backward(
            d_o[None, part], *one, o_1, lse_1, layout="bshd", causal=True, device=device
        )
        for name in "qkv":
            np.testing.assert_allclose(getattr(got, name)[part], getattr(back, name)[0], atol=2e-6)


def test_dropout(device: str) -> None:
    q, k, _ = problem()
    v = np.ones((2, 2, 11, 6), np.float32)
    options: dict[str, Any] = {"dropout": 0.4, "seed": 2**63 + 5, "offset": 3, "device": device}
    o, lse = ta.attention(q, k, v, return_lse=True, **options)
    np.testing.assert_array_equal(o, ta.attention(q, k, v, **options))
    other = ta.attention(q, k, v, **{**options, "offset": 4})
    assert np.abs(o - other).max() > 0.1
    # d_v sums what forward has given to each key: with v = d_o = 1 the totals are the same.
    d_v = ta.attention_backward(np.ones_like(o), q, k, v, o, lse, gradients=("v",), **options).v
    np.testing.assert_allclose(d_v.sum(), o.sum(), rtol=1e-5)
    assert abs(o.mean() - 1) < 0.1


def test_finite_mask_values(device: str) -> None:
    """Left padding by the lowest number: rows masked in full are the mean of v."""
    q, k, v = problem()
    bias = np.zeros((2, 1, 9, 11), np.float32)
    bias[0, :, :, :4] = np.finfo(np.float32).min
    bias[0, :, :3] = np.finfo(np.float32).min
    o, lse = ta.attention(q, k, v, bias=bias, return_lse=True, device=device)
    np.testing.assert_allclose(o[0, 0, 0], v[0, 0].mean(0), atol=1e-5)
    got = ta.attention_backward(np.ones_like(o), q, k, v, o, lse, bias=bias, device=device)
    for g in got:
        assert g is None or np.isfinite(g).all()
    # Weights of a row sum to 1, forward and backward.
    np.testing.assert_allclose(got.v.sum(), o.size, rtol=1e-5)


def test_sizes_of_zero(device: str) -> None:
    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 0, 8), normal(2, 2, 0, 6)
    o, lse = ta.attention(q, k, v, return_lse=True, device=device)
    assert (o == 0).all()
    assert (lse == -np.inf).all()
    assert ta.attention(q[:0], k[:0], v[:0], device=device).shape == (0, 4, 3, 6)


def test_devices_agree() -> None:
    q, k, v = problem(rows=40, keys=70)
    usable = [d.name for d in ta.devices() if d.usable]
    assert "cpu" in usable
    want = ta.attention(q, k, v, causal=True, device="cpu/ref")
    for name in usable:
        np.testing.assert_allclose(
            ta.attention(q, k, v, causal=True, device=name), want, atol=3e-6, err_msg=name
        )


def test_staging_buffers_are_reused() -> None:
    staged = [d.name for d in ta.devices() if d.usable and d.name != "cpu"]
    if not staged:
        pytest.skip("there is no device but the CPU")
    device = ta.get_device(staged[0])
    q, k, v = problem()
    ta.attention(q, k, v, device=staged[0])
    held = device.buffer_bytes
    assert held > 0
    for _ in range(20):
        ta.attention(q, k, v, device=staged[0])
    assert device.buffer_bytes == held
    device.release_buffers()
    assert device.buffer_bytes == 0
    ta.attention(q, k, v, device=staged[0])


# ---- plans ---------------------------------------------------------------------------------------


def test_plan_and_explain() -> None:
    q, k, v = problem()
    info = ta.plan(q, k, v, causal=True, backward=True)
    assert info.line.startswith("bwd f32 b2 hq4 hk2 sq9 sk11 d8 dv6")
    assert info.path.startswith("cpu.")
    assert info.kernels
    assert info.deterministic
    assert info.estimated_ms is None  # no GPU whose times are known
    assert ta.plan(info.line) == info
    assert "taken" in ta.explain(q, k, v)
    assert "cpu.simd" in ta.explain(info.line)
    with pytest.raises(ta.InvalidArgumentError, match="seq_q is -3"):
        ta.plan("fwd f32 sq-3 d4")


# ---- what is refused -----------------------------------------------------------------------------


def test_refusals(device: str) -> None:
    q, k, v = problem()

    def fails(kind: type[Exception], sentence: str, *args: Any, **options: Any) -> None:
        with pytest.raises(kind, match=sentence):
            ta.attention(*args, device=device, **options)

    bad = ta.InvalidArgumentError
    fails(bad, "k is float16 where q is float32", q, k.astype(np.float16), v)
    fails(bad, "k is float32 where q is float64", q.astype(np.float64), k, v)
    fails(ta.UnsupportedError, "q is int64", q.astype(np.int64), k, v)
    fails(bad, "k.stride", q, k[:, :, ::-1], v)
    fails(bad, "a head size of 7", q, k[..., :7], v)
    fails(bad, "v has keys 10", q, k, v[:, :, :10])
    fails(bad, "1 batch entries where q has 2", q, k[:1], v[:1])
    fails(bad, "3 dimensions", q[0], k, v)
    fails(bad, "heads_q", q[:, :3], k, v)
    fails(bad, "does not broadcast", q, k, v, bias=normal(3, 11))
    fails(bad, "keep is float32", q, k, v, keep=normal(9, 11))
    spans = some_spans(2, 2, 11, 2)
    fails(bad, r"spans is int64 \[2, 2, 11, 2\], not int32", q, k, v, spans=spans.astype(int))
    fails(bad, "spans is not contiguous", q, k, v, spans=spans[:, ::-1])
    fails(bad, "spans is not contiguous", q, k, v, spans=np.broadcast_to(spans[:1], spans.shape))
    fails(bad, "has 3 numbers a key; there are 2 for", q, k, v, spans=some_spans(1, 1, 11, 3))
    fails(bad, "spans has keys 9 where k has 11", q, k, v, spans=some_spans(1, 1, 9, 2))
    fails(bad, "has 3 heads; it may have 1, 2 or 4", q, k, v, spans=some_spans(1, 3, 11, 2))
    fails(bad, "3 batch entries, which do not divide", q, k, v, spans=some_spans(3, 1, 11, 2))
    fails(bad, "spans has 5 dimensions", q, k, v, spans=some_spans(1, 1, 1, 11, 2))
    fails(bad, "at most 4", q, k, v, bias=normal(1, 1, 1, 9, 11))
    fails(bad, r"sink is float32 \[3\]", q, k, v, sink=normal(3))
    fails(bad, "sink is float64", q, k, v, sink=np.ones(4))
    fails(bad, "lengths_kv is int64", q, k, v, lengths_kv=np.array([1, 2]))
    fails(bad, "tau and normalizer", q, k, v, tau=normal(4))
    fails(bad, "tau and normalizer", q, k, v, normalizer="elastic")
    fails(bad, "normalizer is", q, k, v, normalizer="linear")
    fails(bad, "layout is", q, k, v, layout="sbhd")
    fails(bad, "diagonal", q, k, v, causal="left")
    fails(bad, "q has 4 dimensions", q, k, v, lengths_q=normal(2), offsets_q=normal(3))
    fails(bad, "a str, which", "q", k, v)
    fails(bad, "a list, which", q, k, v, bias=[1.0])
    fails(bad, "dropout", q, k, v, dropout=1.5)
    fails(ta.TandemError, "alpha", q, k, v, normalizer="entmax", alpha=3.0)
    fails(
        ta.UnsupportedError, "head_dim", normal(1, 1, 2, 600), normal(1, 1, 2, 600), v[:1, :1, :2]
    )
    odd = np.zeros((2, 4, 9, 8), np.dtype([("x", np.float32), ("y", np.uint8)]))["x"]
    fails(bad, "no multiples of its elements", odd, k, v)
    fails(bad, "byte order", q.astype(">f4"), k, v)
    with pytest.raises(TypeError):
        ta.attention(q, k, v, device=device, no_such_option=1)
    with pytest.raises(ta.DeviceError, match=r"cuda:99|CUDA|NVIDIA"):
        ta.attention(q, k, v, device="cuda:99")
    with pytest.raises(bad, match="no device is named"):
        ta.attention(q, k, v, device="tpu")
    with pytest.raises(bad, match="device is a name"):
        ta.attention(q, k, v, device=3)  # type: ignore[arg-type]
    # Everything works as before.
    np.testing.assert_allclose(
        ta.attention(q, k, v, device=device), reference.attention(q, k, v)[0], atol=2e-6
    )


def test_refused_gradients() -> None:
    q, k, v = problem()
    o, lse = ta.attention(q, k, v, return_lse=True)
    with pytest.raises(ta.InvalidArgumentError, match="sink is absent"):
        ta.attention_backward(o, q, k, v, o, lse, gradients=("sink",))
    with pytest.raises(ta.InvalidArgumentError, match="'keep' has no gradient"):
        ta.attention_backward(o, q, k, v, o, lse, gradients=("keep",))
    with pytest.raises(ta.InvalidArgumentError, match="d_o has the sizes"):
        ta.attention_backward(o[:, :, :3], q, k, v, o, lse)
    with pytest.raises(ta.InvalidArgumentError, match="lse is float32"):
        ta.attention_backward(o, q, k, v, o, lse[:, :, :3])


def test_read_only_inputs() -> None:
    q, k, v = problem()
    want = ta.attention(q, k, v)
    for x in (q, k, v):
        x.setflags(write=False)
    np.testing.assert_array_equal(ta.attention(q, k, v), want)
    out = np.zeros_like(want)
    out.setflags(write=False)
    with pytest.raises(ta.InvalidArgumentError, match="out is read-only"):
        ta.attention(q, k, v, out=out)


def test_out_of_another_shape() -> None:
    q, k, v = problem()
    with pytest.raises(ta.InvalidArgumentError, match="o has the sizes"):
        ta.attention(q, k, v, out=np.empty((2, 4, 9, 5), np.float32))
    with pytest.raises(ta.InvalidArgumentError, match="o is float16"):
        ta.attention(q, k, v, out=np.empty((2, 4, 9, 6), np.float16))


class OnlyDlpack:
    """An array of an unknown framework."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    @property
    def shape(self) -> Any:
        return self._array.shape


def test_any_framework_with_dlpack() -> None:
    q, k, v = problem()
    bias = normal(9, 11)
    o = ta.attention(*(OnlyDlpack(x) for x in (q, k, v)), bias=OnlyDlpack(bias))
    np.testing.assert_array_equal(o, ta.attention(q, k, v, bias=bias))


def test_threads() -> None:
    q, k, v = problem(rows=30, keys=30)
    want = ta.attention(q, k, v)
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(50):
            if not np.array_equal(ta.attention(q, k, v), want):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def _child(queue: Any) -> None:
    q = np.ones((1, 1, 2, 4), np.float32)
    queue.put(float(ta.attention(q, q, q).sum()))


def test_fork() -> None:
    q = np.ones((1, 1, 2, 4), np.float32)
    ta.attention(q, q, q)  # the parent's device has threads, which the child lacks
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    assert queue.get(timeout=20) == 8
    child.join(timeout=20)
    assert child.exitcode == 0


def test_nothing_is_leaked() -> None:
    """10,000 calls, refused ones among them, leave the process as large as it was."""
    import resource

    q, k, v = problem()
    bias = normal(4, 1, 11)

    def many(count: int) -> None:
        for n in range(count):
            o, lse = ta.attention(q, k, v, bias=bias, return_lse=True)
            if n % 4 == 0:
                ta.attention_backward(o, q, k, v, o, lse, bias=bias)
            if n % 10 == 0:
                with pytest.raises(ta.InvalidArgumentError):
                    ta.attention(q, k, v, bias=q)

    many(500)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    many(10000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 4000, f"{grown} KiB more"


def test_many_shapes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem_attention import _plans

    monkeypatch.setattr(_plans, "LIMIT", 8)
    _plans.clear()
    for n in range(1, 40):
        x = np.ones((1, 1, n, 4), np.float32)
        assert (ta.attention(x, x, x) == 1).all()
        assert len(_plans._plans) <= 8


def test_streams_that_are_not_current_are_refused() -> None:
    """Without a GPU: what run() says before it touches a plan's kernels."""
    from tandem_attention._arrays import Framework
    from tandem_attention._attention import _Arrays

    class Fake(Framework):
        name = "torch"

        def stream(self, device: str) -> int:
            return 5

    class Plan:
        workspace_size = 0
        ran = False

        def execute(self, *_: Any) -> None:
            self.ran = True

    arrays, plan = _Arrays(None, Fake()), Plan()
    arrays.where = "cuda:0"
    with pytest.raises(ta.InvalidArgumentError, match="stream is 7, and torch's current one 5"):
        arrays.run(plan, 0, 0, 7)  # type: ignore[arg-type]
    assert not plan.ran
    arrays.device = "cuda:0"
    arrays.run(plan, 0, 0, 5)  # type: ignore[arg-type]
    assert plan.ran


def test_threads_of_the_cpu_device() -> None:
    q, k, v = normal(2, 3, 40, 8), normal(2, 3, 40, 8), normal(2, 3, 40, 8)
    want = ta.attention(q, k, v)
    try:
        ta.set_num_threads(3)
        assert np.array_equal(ta.attention(q, k, v), want)
        device = ta.get_device("cpu")
        assert re.search(r"threads +3\b", device.describe())
    finally:
        ta.set_num_threads(0)
    assert ta.get_device("cpu") is not device
    for wrong in (-1, 2.5):
        with pytest.raises(ta.InvalidArgumentError, match="threads is"):
            ta.set_num_threads(wrong)  # type: ignore[arg-type]


def test_outputs_that_are_inputs_are_refused() -> None:
    q, k, v = normal(1, 2, 300, 8), normal(1, 2, 300, 8), normal(1, 2, 300, 8)
    for out in (q, k, v):
        before = out.copy()
        with pytest.raises(ta.InvalidArgumentError, match="o"):
            ta.attention(q, k, v, out=out)
        assert np.array_equal(out, before)


def test_masks_of_numpy_are_not_lost() -> None:
    q, k, v = problem()
    with pytest.raises(ta.UnsupportedError, match="k is a masked array, whose mask is not read"):
        ta.attention(q, np.ma.masked_where(k > 0, k), v)
    whole = np.ma.masked_array(k)
    assert np.array_equal(ta.attention(q, whole, v), ta.attention(q, k, v))


def test_gradients_of_torch_beside_a_q_of_numpy_are_not_lost() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = problem()
    learned = torch.tensor(k, requires_grad=True, device="cpu")
    with pytest.raises(ta.UnsupportedError, match=r"k requires a gradient, .* no tensor"):
        ta.attention(q, learned, v)
    with torch.no_grad():
        assert np.array_equal(ta.attention(q, learned, v), ta.attention(q, k, v))
