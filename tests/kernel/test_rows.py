"""Rows that registers do not hold: parts from shared memory, or passes over global memory; the values stay the same."""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda import compile as compile_text
from tileweave.backends.cuda.printer import run as run_text
from tileweave.kernel.dispatch import expand

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
examples, norms = import_module("softmax"), import_module("norms")
RANDOM = np.random.default_rng(8)
WARP = 32


@tk.kernel
def rows(k, x, w, y, z):
    """Several reductions and stores, positions along the row, a narrow value between two reductions."""
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=WARP) as cta:
        r = cta.load(x[row])
        most = cta.max(r)
        least = cta.min(r)
        e = (r - least) / (most - least) + cta.load(w)
        at = cta.cast(cta.iota(r.shape), "f32")
        mean = cta.sum(e * at) / cta.sum(at)
        cta.store(y[row], e - mean)
        cta.store(z[row], cta.exp(e - 1))


def expected(x, w):
    x, w = x.astype(float), w.astype(float)
    most, least = x.max(1, keepdims=True), x.min(1, keepdims=True)
    e = (x - least) / (most - least) + w
    at = np.arange(x.shape[1])
    return e - ((e * at).sum(1) / at.sum())[:, None], np.exp(e - 1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    ("length", "dtype", "arch", "taken"),
    [
        (5003, "float32", "sm_90a", "shared memory"),
        pytest.param(30001, "float32", "sm_120a", "passes", marks=pytest.mark.slow),
        pytest.param(20000, "float16", "sm_80", "shared memory", marks=pytest.mark.slow),
        pytest.param(9999, "bfloat16", "sm_90a", "shared memory", marks=pytest.mark.slow),
    ],
)
def test_a_long_row_is_right_on_every_level(length, dtype, arch, taken):
    x, w = RANDOM.standard_normal((2, length)).astype(dtype), RANDOM.standard_normal(length).astype(dtype)
    y, z = np.full((2, length), np.nan, np.float32), np.full((2, length), np.nan, np.float32)
    shown = rows.explain(x, w, y, z, arch=arch)
    assert f"      {taken:<13} yes: " in shown and "      registers     no: " in shown
    want = rows.check(x, w, y, z, arch=arch).outputs
    run_text(rows.trace(x, w, y, z), [x, w, y, z], arch=arch, check=length < 9000)
    assert y.tobytes() == want["y"].tobytes() and z.tobytes() == want["z"].tobytes()
    for have, exact in zip((y, z), expected(x, w), strict=True):
        np.testing.assert_allclose(have, exact, rtol=3e-2 if dtype != "float32" else 1e-4, atol=2e-2)
    whole = rows.check(x, w, y, z).outputs  # as written: sums of a whole row at once
    np.testing.assert_allclose(y, whole["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("length", "passes", "held"), [(40000, 1, "row_r: f32[40192] shared"), (100003, 3, ""), (38912, 1, "")]
)
def test_what_is_loaded_and_how_often(length, passes, held):
    """Up to 152 registers a thread nothing changes; then the row lies in shared memory; then it is loaded thrice."""
    kernel = examples.softmax.trace(*[tk.spec((2, length), "f32")] * 2)
    text = tk.to_text(expand(kernel, "sm_90a"))
    assert text.count("copy(x[") == passes and held in text
    assert (expand(kernel, "sm_90a") is kernel) == (length == 38912)
    tk.verify(expand(kernel, "sm_90a"))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("name", ["softmax", pytest.param("layernorm", marks=pytest.mark.slow)])
def test_long_rows_do_not_spill(name):
    shapes = [(2, 100003)] * 2 if name == "softmax" else [(2, 50000), (50000,), (50000,), (2, 50000)]
    function = examples.softmax if name == "softmax" else norms.layernorm
    text = function.text("cuda", *(tk.spec(s, "f32") for s in shapes), arch="sm_90a")
    assert compile_text(text, "sm_90a").kernels[name].spill_bytes == 0


def test_what_is_no_straight_line_stays_as_it_is():
    @tk.kernel
    def scanned(k, x, y):
        row = k.grid(x.blocks(0, 1))
        with k.cta(threads=WARP) as cta:
            cta.store(y[row], cta.scan("add", cta.load(x[row])) / cta.sum(cta.load(x[row])))

    kernel = scanned.trace(*[tk.spec((2, 9000), "f32")] * 2)
    assert expand(kernel, "sm_90a") is kernel
