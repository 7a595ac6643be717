"""Kernels as NKI: the printed text on our executor of its calls, against NumPy; limits are refused by name."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.nki.executor import execute
from tileweave.errors import BackendError, VerifyError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
trainium, softmax = import_module("trainium"), import_module("softmax").softmax
RANDOM = np.random.default_rng(8)


def rows(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("m", "n", "k"), [(128, 512, 128), (256, 1024, 384)])
def test_products_contract_partitions_and_add_up_in_psum(m, n, k):
    a, b = (RANDOM.integers(-3, 4, s).astype(np.float16) for s in ((k, m), (k, n)))
    c = np.zeros((m, n), np.float32)
    want = a.T.astype(float) @ b.astype(float)
    assert (trainium.matmul.check(a, b, c).outputs["C"] == want).all()
    trainium.matmul.run(a, b, c, on="nki")
    assert (c == want).all()
    text = trainium.matmul.text("nki", a, b, c)
    assert "nisa.nc_matmul(dst=acc[:, :], stationary=a[:, :], moving=b[:, :], accumulate=" in text
    assert ("accumulate=0 < i)" in text) == (k > 128)
    assert "acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)  # (128:1@P, 512:1@F)" in text


def test_attention_of_several_heads_agrees_with_numpy_and_the_interpreter():
    qt, kt, v, o = rows(2, 64, 256), rows(2, 64, 256), rows(2, 256, 64), np.zeros((2, 256, 64), np.float32)
    checked = trainium.attention.check(qt, kt, v, o).outputs["O"]
    trainium.attention.run(qt, kt, v, o, on="nki")
    scores = np.einsum("hdq,hdk->hqk", qt.astype(float), kt) / 8
    e = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(o, e / e.sum(-1, keepdims=True) @ v, atol=1e-6)
    np.testing.assert_allclose(o, checked, atol=1e-6)


def test_a_kernel_of_whole_blocks_is_also_a_trainium_kernel():
    x, y = rows(3, 1000), np.zeros((3, 1000), np.float32)
    softmax.run(x, y, on="nki")
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"bn": 1024}, "n = 1024 of a product"),
        ({"bm": 256}, "128 partitions"),
        ({"bk": 256}, "128 partitions"),
        ({"bn": 8192}, "32768 bytes of a partition of psum"),
    ],
)
def test_limits_are_refused_with_the_line(options, problem):
    a, b, c = rows(256, 256), rows(256, 8192), rows(256, 8192)
    with pytest.raises((BackendError, VerifyError), match=problem) as caught:
        trainium.matmul.text("nki", a, b, c, **options)
    assert "trainium.py:" in str(caught.value)


def test_products_that_do_not_contract_partitions_are_refused():
    @tk.kernel
    def rowwise(k, x, y, z):
        a, b, acc = k.sbuf((64, 128), like=x), k.sbuf((64, 128), like=y), k.psum((64, 64))
        with k.cta(threads=128) as cta:
            cta.copy(a, x)
            cta.copy(b, y)
            cta.gemm(acc, a, b, keep=False)
            cta.copy(z, cta.load(acc))

    with pytest.raises(BackendError, match=r"A \(m, k\) = a\[:, :\] lies on \('P', 'F'\)"):
        rowwise.text("nki", rows(64, 128), rows(64, 128), rows(64, 64))


@pytest.mark.parametrize(
    ("module", "name", "arrays", "problem"),
    [
        ("transpose", "transpose", ((70, 45), (45, 70)), "in shared memory"),
        ("trainium", "matmul", ((256, 100), (256, 512), (100, 512)), "is there in part only"),
        ("matmul", "matmul_roles", ((128, 64), (256, 64), (128, 256)), "in shared memory"),
    ],
)
def test_what_nki_cannot_say_is_declined_with_the_line(module, name, arrays, problem):
    kernel = getattr(import_module(module), name)
    with pytest.raises(BackendError, match=problem) as caught:
        kernel.text("nki", *(rows(*s, dtype=np.float16) for s in arrays))
    assert f"{module}.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("nisa.nc_matmul(dst=p[:, :], stationary=x[:, :], moving=s[:, :])", "hbm and sbuf into psum"),
        ("nisa.nc_matmul(dst=s[:, :], stationary=s[:, :], moving=s[:, :])", "sbuf and sbuf into sbuf"),
        ("nisa.nc_matmul(dst=p[:, :], stationary=w[:, :], moving=w[:, :])", r"stationary \(128, 600\)"),
        ("nisa.dma_copy(dst=p[:, :], src=x[:, :])", "hbm to psum"),
        ("nisa.tensor_copy(dst=s[:, :], src=x[:, :])", "an operand in device memory"),
        ("nl.ndarray((129, 4), dtype=nl.float32, buffer=nl.sbuf)", "129 partitions"),
        ("nisa.tensor_copy(dst=s[0:300, :], src=s[:, :])", "0:300 of an extent of 128"),
    ],
)
def test_the_executor_names_what_the_hardware_cannot_do(call, problem):
    source = f"""
import nki.isa as nisa
import nki.language as nl
def f(x):
    s = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
    w = nl.ndarray((128, 600), dtype=nl.float32, buffer=nl.sbuf)
    p = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
    {call}
    return p
"""
    with pytest.raises(BackendError, match=problem):
        execute(source, "f", {"x": rows(128, 128)})


def test_no_engine_divides_so_reciprocals_are_multiplied():
    """Operators are those of NKI's own table, which has no division."""

    @tk.kernel
    def divided(k, x, y):
        k.grid(1)
        with k.cta(threads=128) as cta:
            r = cta.load(x)
            e = cta.abs(r) + 1
            cta.store(y, r / e + 1 / e + r / cta.sum(e, axis=1) + r / 3 + cta.erf(r) * cta.rsqrt(e))

    x = np.random.default_rng(5).standard_normal((128, 40)).astype(np.float32)
    y = np.zeros_like(x)
    assert "nl.divide" not in divided.text("nki", x, y)
    divided.run(x, y, on="nki")
    np.testing.assert_allclose(y, divided.check(x, y).outputs["y"], rtol=1e-5, atol=1e-6)
