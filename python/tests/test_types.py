# SPDX-License-Identifier: MIT OR Apache-2.0
"""Options have one list, and a type checker knows it.

``_options.py`` says which options a call has. The signatures that write them out, the docstrings
and what mypy accepts are held against it here.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

for name in ("torch", "jax", "mypy"):
    pytest.importorskip(name)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import torch  # noqa: E402

import tandem_attention as ta  # noqa: E402
import tandem_attention.jax  # noqa: E402
import tandem_attention.torch  # noqa: E402
from tandem_attention._options import (  # noqa: E402
    AttentionOptions,
    OptionalArrays,
    StaticOptions,
    make_options,
)
from tandem_attention._problem import INPUTS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
ALL, ARRAYS, STATIC = (set(d.__annotations__) for d in (AttentionOptions, OptionalArrays,
                                                        StaticOptions))  # fmt: skip

HEAD = """\
import jax
import numpy as np
import torch
import tandem_attention as ta
import tandem_attention.jax
import tandem_attention.torch
x, t, j = np.zeros((1, 1, 1, 8), np.float32), torch.zeros(1, 1, 1, 8), jax.numpy.zeros((1, 1, 1, 8))
o, lse = ta.attention(x, x, x, return_lse=True)
mine: ta.AttentionOptions = {"causal": "bottom_right", "window": (4, None)}
"""
RIGHT = """\
ta.attention(x, x, x, bias=x, keep=None, causal=True, scale=0.5, window=(-1, 0), dropout=0.5)
ta.attention(x, x, x, normalizer="entmax", alpha=1.25, layout="bshd", deterministic=True)
ta.attention(x, x, x, **mine, seed=3)
ta.attention_backward(x, x, x, x, o, lse, gradients=("q",), sink=x, deterministic=True)
ta.plan(x, x, x, causal="top_left", backward=True).path
ta.plan("fwd f32 b1 hq1 hk1 sq1 sk1 d8", device="cpu").path
ta.explain(x, x, x, softcap=2.0)
ta.torch.attention(t, t, t, bias=t, causal="bottom_right", align="bottom_right", window=(None, 3))
ta.torch.attention(t, t, t, normalizer="elastic", tau=t, deterministic=None)
ta.torch.attention(t, t, t, spans=torch.from_numpy(ta.masks.tree([-1, 0], [3, 4])))
ta.attention(x, x, x, spans=ta.masks.documents([1], causal=False), keep=x)
ta.masks.windows((4, None), [2, 3]).shape
ta.jax.attention(j, j, j, slope=j, max_seq_q=3, allow_tf32=True)
ta.merge(x[None], lse[None], into=(o, lse), layout="bhsd")[0]
ta.merge_backward(x, x[None], lse[None], d_lse=lse, layout="bshd")[1]
ta.torch.merge(t[None], t[None, ..., 0], layout="bhsd")[0].sum()
"""
#: Calls that mypy refuses, with a part of what it says.
WRONG = {
    "ta.attention(x, x, x, causl=True)": 'Unexpected keyword argument "causl"',
    "ta.attention(x, x, x, is_causal=True)": 'Unexpected keyword argument "is_causal"',
    "ta.attention(x, x, x, causal='lower')": 'Argument "causal"',
    "ta.attention(x, x, x, window=4)": 'Argument "window"',
    "ta.attention(x, x, x, window=(1, 2, 3))": 'Argument "window"',
    "ta.attention(x, x, x, scale='8')": 'Argument "scale"',
    "ta.attention(x, x, x, normalizer='soft')": 'Argument "normalizer"',
    "ta.attention(x, x, x, layout='sbhd')": 'Argument "layout"',
    "ta.attention(x, x, x, dropout=None)": 'Argument "dropout"',
    "ta.attention(x, x, x, max_seq_q=2.5)": 'Argument "max_seq_q"',
    "ta.attention_backward(x, x, x, x, o, lse, slop=x)": 'Unexpected keyword argument "slop"',
    "ta.attention_backward(x, x, x, x, o, lse, out=x)": 'Unexpected keyword argument "out"',
    "ta.plan(x, x, x, casual=True)": "No overload variant",
    "ta.plan(x, x)": "No overload variant",
    "ta.plan('fwd b1', causal=True)": "No overload variant",
    "ta.explain(x, x, x, align='left')": "No overload variant",
    "ta.torch.attention(t, t, t, attn_mask=t)": 'Unexpected keyword argument "attn_mask"',
    "ta.torch.attention(t, t, t, align='lower')": 'Argument "align"',
    "ta.torch.attention(t, t, t, bias=x)": 'Argument "bias"',
    "ta.torch.attention(t, t, t, seed=1.5)": 'Argument "seed"',
    "ta.jax.attention(j, j, j, casual=True)": 'Unexpected keyword argument "casual"',
    "ta.jax.attention(j, j, j, dropout=0.1)": 'Unexpected keyword argument "dropout"',
    "ta.jax.attention(j, j, j, seed=1)": 'Unexpected keyword argument "seed"',
    "ta.torch.attention(t, t, t, spans=ta.masks.documents([1]))": 'Argument "spans"',
    "ta.masks.windows(4, [2])": 'Argument 1 to "windows"',
    "ta.masks.documents([1], casual=True)": 'Unexpected keyword argument "casual"',
    "ta.merge(x, lse, layout='sbhd')": 'Argument "layout"',
    "ta.merge(x, lse, out=x)": 'Unexpected keyword argument "out"',
    "ta.torch.merge(x, t)": 'Argument 1 to "merge"',
    "mine['causal'] = 'lower'": "has incompatible type",
    "mine['caus'] = True": 'no key "caus"',
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy says of each line that it refuses."""
    folder = tmp_path_factory.mktemp("types")
    lines = (HEAD + RIGHT).splitlines() + list(WRONG)
    (folder / "calls.py").write_text("\n".join(lines) + "\n")
    cache = os.environ.get("MYPY_CACHE_DIR", str(folder / "cache"))
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--no-error-summary", "--cache-dir", cache, str(folder / "calls.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        match = re.search(r"calls\.py:(\d+): error: (.*)", line)
        if match:
            said = lines[int(match[1]) - 1]
            found[said] = f"{found.get(said, '')}{match[2]}\n"
    return found


def test_mypy_takes_what_is_right(messages: dict[str, str]) -> None:
    assert {line: said for line, said in messages.items() if line not in WRONG} == {}


@pytest.mark.parametrize("call", WRONG)
def test_mypy_refuses_what_is_wrong(call: str, messages: dict[str, str]) -> None:
    assert WRONG[call] in messages.get(call, "nothing")


def names_of(function: Callable[..., Any]) -> set[str]:
    """The names that a function takes, those of its TypedDict in place of ``options``."""
    names = set(inspect.signature(function).parameters)
    if "options" not in names:
        return names
    is_jax = function is ta.jax.attention
    return (names - {"options"}) | (STATIC if is_jax else ALL)


def test_runtime_and_types_know_the_same_options() -> None:
    given = inspect.signature(make_options).parameters
    assert set(given) - {"packed_q", "packed_kv"} == ALL - ARRAYS
    types, said = get_type_hints(make_options), get_type_hints(AttentionOptions)
    assert {n: types[n] for n in ALL - ARRAYS} == {n: said[n] for n in ALL - ARRAYS}
    assert {"dropout"} == ALL - ARRAYS - STATIC
    lists = {"blocks", "block_bits"}  # of block_mask
    assert {*INPUTS[3:], "offsets_q", "offsets_kv", "block_mask"} - lists == ARRAYS


def test_functions_that_write_options_out_have_all() -> None:
    function = ta.torch.attention
    own = {"q", "k", "v", "seed", "offset", "return_lse", "return_max_logit"}
    assert names_of(function) == own | ALL
    assert names_of(ta.jax.attention) == {"q", "k", "v", "return_lse"} | ARRAYS | STATIC
    types, said = get_type_hints(function), get_type_hints(AttentionOptions)
    defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}
    wanted = {n: p.default for n, p in inspect.signature(make_options).parameters.items()}
    for name in ALL - ARRAYS - {"deterministic", "allow_tf32"}:
        assert (types[name], defaults[name]) == (said[name], wanted[name]), name
    for name in ("deterministic", "allow_tf32"):  # torch's own settings, where they are left out
        assert (types[name], defaults[name]) == (said[name] | None, None), name
    assert (types["block_mask"], defaults["block_mask"]) == (Any, None)  # torch's BlockMask, too
    for name in ARRAYS - {"block_mask"}:
        assert (types[name], defaults[name]) == (torch.Tensor | None, None), name


@pytest.mark.parametrize("module", ["tandem_attention", "tandem_attention.torch"])
def test_docstrings_describe_the_options_that_are_there(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "python" / "tools"))
    api_page = importlib.import_module("api_page")
    function = getattr(sys.modules[module], "attention")  # noqa: B009
    parts = api_page.sections(inspect.cleandoc(function.__doc__ or ""))
    described = {n for entry, _ in api_page.entries(parts["Args"]) for n in entry.split(", ")}
    assert described == names_of(function)


def calls() -> Iterator[tuple[str, Callable[..., Any], Any]]:
    x = np.ones((1, 1, 2, 8), np.float32)
    yield "numpy", ta.attention, x
    yield "torch", ta.attention, torch.from_numpy(x)
    yield "torch module", ta.torch.attention, torch.from_numpy(x)
    yield "jax", ta.jax.attention, jnp.asarray(x)
    yield "traced jax", lambda *a, **b: jax.jit(lambda y: ta.attention(y, y, y, **b))(a[0]), x
    yield "plan", ta.plan, x
    yield "explain", ta.explain, x
    yield "backward", lambda *a, **b: ta.attention_backward(*a, a[0], a[0][..., 0], a[0], **b), x


@pytest.mark.parametrize(("function", "x"), [c[1:] for c in calls()], ids=[c[0] for c in calls()])
def test_a_wrong_name_is_refused_in_a_run_too(function: Callable[..., Any], x: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'causl'"):
        function(x, x, x, causl=True)
