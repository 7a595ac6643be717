"""Kernels of the kernel language for operations of graphs: a plan names them, their printed text computes them."""

import shutil

import ml_dtypes
import numpy as np
import pytest

import tileweave as tw
from tileweave.backends import base
from tileweave.backends.cuda import offered
from tileweave.backends.cuda.offered import OfferedKernels, offer
from tileweave.errors import BackendError, PlanError
from tileweave.planner.machine import to_toml
from tileweave.planner.show.document import from_document, to_document

needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
random = np.random.default_rng(0)
X, W, B = (random.standard_normal(s).astype(np.float32) for s in ((30, 200), (200, 70), (200,)))


@pytest.fixture
def kernels():
    yield offer("cpu", "sm_90a")
    base.unregister("kernels")


#: How far results of a type may be apart: some roundings of it; of FP64, another order of sums.
ROUNDING = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@needs_gpp
@pytest.mark.parametrize(
    "name", ["relu", *(pytest.param(n, marks=pytest.mark.slow) for n in ("chain", "product", "softmax"))]
)
def test_a_plan_takes_kernels_and_they_are_right(kernels, name):
    half = X.astype(np.float16), W.astype(np.float16)
    graph, want, taken = {
        "chain": (tw.tanh(tw.source(X) * 2 + tw.source(B)) + 1, np.tanh(X * 2 + B) + 1, "rows of 200: mul, add, tanh"),
        "product": (
            tw.source(half[0]) @ tw.source(half[1]),
            half[0].astype(float) @ half[1],
            "tiles of 128 x 128 x 64, copy",
        ),
        "relu": (tw.relu(tw.source(X) @ tw.source(W)), np.maximum(X @ W, 0), "tiles of 64 x 64 x 16, relu"),
        "softmax": (tw.softmax(tw.source(X) @ tw.source(W), axis=1), softmax(X @ W), "rows of 70: reducemax"),
    }[name]
    plan = tw.plan(graph, 1)
    assert taken in " ".join(plan.explain().replace("\n", " ").split()), plan.explain()
    np.testing.assert_allclose(np.asarray(tw.run(plan), float), want, 2e-3, 2e-2 if name == "product" else 1e-4)


def graphs():
    half, many = (random.standard_normal((2, 300, 400)) / 9).astype(np.float16), random.standard_normal((90, 300))
    x = tw.source(half[0])
    bias = tw.source(many[0].astype(np.float32))
    yield "linear_relu", tw.relu(x @ tw.source(half[1].T)), "product by tiles of 128 x 128 x 64, relu, copy: wgmma"
    hidden = x @ tw.source(half[1].T)
    bias_of = tw.source(many[1].astype(np.float16))
    yield "product_chain", tw.gelu(hidden + bias_of), "64, copy, mul, erf, add, mul, mul: wgmma"
    plus, gate = (tw.source(random.standard_normal((300, n)).astype(np.float32)) for n in (300, 1))
    wide = tw.cast(hidden, np.float32) * gate + plus  # a residual, and a factor for each row
    yield "product_chain", tw.cast(wide, np.float16), "64, copy, cast, mul, add, cast: wgmma"
    eighths = [random.integers(-4, 5, s).astype(ml_dtypes.float8_e4m3fn) for s in ((300, 208), (90, 208))]
    left, right = (tw.cast(tw.source(e), np.float32) for e in eighths)  # integers: their sums are exact in any order
    yield "matmul", left @ tw.transpose(right), "product by tiles of 128 x 128 x 128: wgmma"
    yield "product_chain", tw.absolute(left @ tw.transpose(right) / 64), "128, div, abs: wgmma"
    for many_of, terms, cut in (((), 128, 128), ((2,), 96, 32)):
        a, b = ((*many_of, n, 3, terms) for n in (70, 150))  # each block of terms has a scale per row of both
        pair = [tw.source(random.integers(-4, 5, s).astype(ml_dtypes.float8_e4m3fn)) for s in (a, b)]
        scales = [(*many_of, 3, 70, 1), (*many_of, 3, 1, 150)]
        by = [tw.source((2.0 ** random.integers(-3, 4, s)).astype(np.float32)) for s in scales]
        parts = tw.einsum("...mbk,...nbk->...bmn", *(tw.cast(x, np.float32) for x in pair))
        shown = (
            f"{'2 products' if many_of else 'product'} in 3 blocks of {terms} by tiles of 64 x 128 x {cut}, mul, mul"
        )
        yield "product_chain", tw.sum(parts * by[0] * by[1], axis=len(many_of)), f"{shown}: wgmma"
    yield "rows", tw.softmax(tw.source(many.astype(np.float32)), axis=1), "rows of 300: reducemax"
    yield "fused", tw.tanh(tw.source(many.astype(np.float32)) * 2 + bias), "rows of 300: mul, add, tanh"
    q, k, v = (tw.source(random.standard_normal((2, 3, 90, d)).astype(np.float32)) for d in (40, 40, 24))
    scores = "attention of 90 queries to 90 keys, 64 x 64 at a time"
    yield "attention", tw.attention(q, k, v), f"{scores}, mul: fma"
    yield "attention", tw.attention(q, k, v, causal=True, cap=3.0), f"{scores}, mul, div, tanh, mul, select: fma"
    wide = tw.attention(*(tw.source(random.standard_normal((2, 90, 40))) for _ in range(3)))
    yield "attention", wide, f"{scores}, mul: mma.sync"
    for kind in (np.float16, ml_dtypes.bfloat16):
        halves = [tw.source(random.standard_normal((2, 3, 90, d)).astype(kind)) for d in (40, 40, 24)]
        causal = kind == np.float16
        yield "attention", tw.attention(*halves, causal=causal), f"{scores}, mul{', select' * causal}: mma.sync"
        narrow = tw.source(many.astype(kind))
        norm = tw.softmax(narrow, axis=1) if causal else tw.layer_norm(narrow)
        yield "rows", norm, "rows of 300: cast, reducemax" if causal else "rows of 300: cast, reducesum"
    late = np.tri(90, k=70, dtype=bool) & ~np.tri(90, k=64, dtype=bool)  # the first tile of keys has none that is seen
    yield "attention", tw.attention(q, k, v, mask=late), f"{scores}, mul, select: fma"
    yield "matmul", tw.transpose(q, (1, 0, 2, 3)) @ tw.transpose(k, (1, 0, 3, 2)), "6 products by tiles of 64 x 64 x 16"
    yield "einsum", tw.einsum("abc,adc->dab", q[0], v[0, :, :, :1] + k[1]), "3 products by tiles of 64 x 64 x 16"
    x = tw.source(random.standard_normal((7, 30, 50)).astype(np.float32))
    yield "conv", tw.stencil(x, np.arange(27, dtype=np.float32).reshape(3, 3, 3)), "stencil of 3 x 3 x 3"
    yield "conv", tw.stencil(x[0], np.arange(15, dtype=np.float32).reshape(5, 3)), "stencil of 5 x 3"
    yield "conv", tw.conv(tw.unsqueeze(x, 1), np.ones((1, 1, 3, 2), np.float32), dilation=3), "stencil of 3 x 2"
    chosen = tw.where(x > 0.5, tw.clip(x, -1, 1), tw.sigmoid(x))
    yield "rows", tw.rms_norm(chosen), "rows of 50: fill, sigmoid, max, min, greater, select"


def test_a_plan_for_a_machine_with_a_device_names_its_kernels_and_runs_on_the_cpu(monkeypatch):
    """Without such a device the plan says so, and the values are those of a plan for no device."""
    monkeypatch.setitem(offered._LEAST, "cuda", 0)
    monkeypatch.setattr(offered, "_missing", lambda arch: "no driver")
    for name, graph, kernel in graphs():
        plan, plain = tw.plan(graph, tw.machines(1, gpu="sm_90a")), tw.plan(graph, 1)
        shown = plan.explain()
        row = next(line for line in shown.split("on sm_90a:")[1].splitlines() if name in line)
        assert kernel in row and "; not run here: no driver" in row
        assert "on sm_90a" not in plain.explain() and [s.kernel.backend for s in plan.steps].count("sm_90a") == 0
        ours, cpus = np.asarray(tw.run(plan)), np.asarray(tw.run(plain))
        if ours.itemsize < 4:  # attention is one operation where a device has a kernel for it
            rounding, ours, cpus = ROUNDING[ours.dtype.name], ours.astype(float), cpus.astype(float)
            np.testing.assert_allclose(ours, cpus, rounding, rounding)
        else:
            np.testing.assert_array_equal(ours, cpus)
        assert from_document(to_document(plan), plan.graph) == plan


@needs_gpp
def test_the_kernels_of_a_device_agree_with_the_cpu_backend(monkeypatch):
    """Their printed text on fibers in the place of the device."""
    monkeypatch.setitem(base._LOADED, "sm_90a", OfferedKernels("cpu", "sm_90a", "sm_90a"))
    for name, graph, _ in graphs():
        plan = tw.plan(graph, tw.machines(1, gpu="sm_90a"))
        assert [s.kernel.backend for s in plan.steps if s.name == name] == ["sm_90a"], plan.explain()
        want, got = np.asarray(tw.run(tw.plan(graph, 1))), np.asarray(tw.run(plan))
        rounding = ROUNDING[got.dtype.name]
        np.testing.assert_allclose(
            got.astype(float), want.astype(float), rounding, rounding * float(np.nanmax(np.abs(want)))
        )


def test_machines_say_their_devices(tmp_path):
    path = tmp_path / "machines.toml"
    path.write_text('[defaults]\nmemory = "1GiB"\n[[machine]]\ngpu = "sm_80"\n[[machine]]\nname = "b"\n')
    found = tw.machines(path)
    assert found.devices == ("", "sm_80") and tw.machines(2).devices == ()
    path.write_text(to_toml(found))
    assert tw.machines(path) == found
    plan = tw.plan(tw.source(X) @ tw.source(W), found)
    assert "on sm_80:" in plan.explain() and "2 machines" in plan.explain()  # one has none: nothing is taken there
    for wrong in ("cpu", "sm_9", "h100", 90):
        with pytest.raises(PlanError, match="no device that is known"):
            tw.machines(1, gpu=wrong)


def test_what_has_no_kernel_stays_with_the_cpu(kernels):
    plan = tw.plan(tw.source(np.arange(4096).reshape(64, 64)) @ tw.source(np.ones((64, 64), int)), 1)
    assert "cpu: zero, contraction" in plan.explain()


def test_small_operations_do_not_go_to_a_device():
    class Spy(OfferedKernels):
        def supports(self, program):
            seen.append(super().supports(program))
            return seen[-1]

    seen = []
    base.register(Spy("cuda"))
    try:
        assert "cpu:" in tw.plan(tw.source(X) @ tw.source(W), 1).explain()
    finally:
        base.unregister("kernels")
    assert "420000 operations do not pay" in seen[0].reason


def test_without_a_device_there_is_nothing_to_offer():
    if shutil.which("nvidia-smi"):
        pytest.skip("there is a device")
    with pytest.raises(BackendError, match="on='cpu'"):
        offer()
    assert "kernels" not in [one.name for one in base.backends()]
