"""Kernels of the kernel language for operations of graphs: a plan names them, their printed text computes them."""

import shutil

import numpy as np
import pytest

import tileweave as tw
from tileweave.backends import base
from tileweave.backends.cuda.offered import OfferedKernels, offer
from tileweave.errors import BackendError

needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
random = np.random.default_rng(0)
X, W, B = (random.standard_normal(s).astype(np.float32) for s in ((30, 200), (200, 70), (200,)))


@pytest.fixture
def kernels():
    yield offer("cpu", "sm_90a")
    base.unregister("kernels")


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@needs_gpp
@pytest.mark.parametrize("name", ["chain", "product", "relu", "softmax"])
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
