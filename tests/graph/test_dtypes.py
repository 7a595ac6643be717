"""Element types: narrow floats accumulate wide, Python numbers beyond a type, names of types, no warnings."""

import itertools
import operator
import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import pytest
from arrays import same

import tileweave
from tileweave import graph as tw
from tileweave.errors import DtypeError
from tileweave.graph.ir.dtypes import NARROW as NAMES
from tileweave.graph.ir.dtypes import bounds

BF16 = np.dtype(ml_dtypes.bfloat16)
NARROW = [np.dtype(np.float16), BF16]
RNG = np.random.default_rng(0)


def narrow(shape, dtype, low=-2.0, high=2.0):
    return RNG.uniform(low, high, shape).astype(dtype)


def rounded(tensor, exact, steps=1.0):
    """The value is the exact one rounded once to the tensor's type, give or take so many units in the last place."""
    (got,) = tw.evaluate([tensor])
    assert got.dtype == tensor.dtype and got.shape == np.shape(exact)
    eps = float(ml_dtypes.finfo(tensor.dtype).eps)
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=steps * eps, atol=1e-7)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_sums_of_narrow_floats_are_kept_wide_and_rounded_once(dtype):
    ones = np.ones((5000, 2), dtype)
    rounded(tw.sum(ones, 0), [5000, 5000])
    rounded(tw.matmul(ones.T, ones), np.full((2, 2), 5000.0))
    rounded(tw.einsum("ij->j", ones), [5000, 5000])
    rounded(tw.einsum("ij,ij,ij->", ones, ones, ones), 10000.0)
    rounded(tw.linear(ones.T, ones, np.full(2, 24, dtype)), np.full((2, 2), 5024.0))
    rounded(tw.conv(ones.T[None], ones.T[None]), [[[10000.0]]])
    rounded(tw.mean(ones, 0), [1, 1])
    rounded(tw.average_pool(ones.T[None], 5000), [[[1.0], [1.0]]])
    rounded(tw.logsumexp(np.zeros(5000, dtype)), np.log(5000))


CASES = {
    "matmul": (lambda x, w: tw.matmul(x, w), lambda x, w: x @ w),
    "einsum": (lambda x, w: tw.einsum("ij,jk->ki", x, w), lambda x, w: (x @ w).T),
    "linear": (lambda x, w: tw.linear(x, w, w[0]), lambda x, w: x @ w + w[0]),
    "conv": (lambda x, w: tw.conv(x[None], w[:, :3, None]), lambda x, w: (w[:, :3] @ x)[None]),
    "product": (lambda x, w: tw.product(x, 1), lambda x, w: x.prod(1)),
    "softmax": (lambda x, w: tw.softmax(x), lambda x, w: softmax(x)),
    "log_softmax": (lambda x, w: tw.log_softmax(x), lambda x, w: np.log(softmax(x))),
    "variance": (lambda x, w: tw.variance(x, 1), lambda x, w: x.var(1)),
    "standard_deviation": (lambda x, w: tw.standard_deviation(x, 0), lambda x, w: x.std(0)),
    "layer_norm": (
        lambda x, w: tw.layer_norm(x, w[:, 0], w[:, 1]),
        lambda x, w: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w[:, 0] + w[:, 1],
    ),
    "rms_norm": (lambda x, w: tw.rms_norm(x), lambda x, w: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)),
    "attention": (lambda x, w: tw.attention(x, x, x), lambda x, w: softmax(x @ x.T / 2) @ x),
    "attention_in_parts": (lambda x, w: tw.attention_in_parts(x, x, x), lambda x, w: softmax(x @ x.T / 2) @ x),
    "variance in parts": (lambda x, w: tw.reduce_in_parts("variance", x), lambda x, w: x.var(1)),
    "max_pool": (lambda x, w: tw.max_pool(x[None], 2), lambda x, w: x.reshape(1, 3, 2, 2).max(-1)),
    "gelu": (lambda x, w: tw.cast(tw.gelu(tw.cast(x, "float32")), x.dtype), None),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_operators_are_the_wide_ones_rounded(name, dtype):
    function, oracle = CASES[name]
    x, w = narrow((3, 4), dtype), narrow((4, 3), dtype)
    got = function(tw.as_tensor(x), tw.as_tensor(w))
    if oracle is None:
        oracle = lambda x, w: np.asarray(tw.gelu(x))  # noqa: E731
    assert got.dtype == dtype
    rounded(got, oracle(x.astype(np.float64), w.astype(np.float64)), 2)
    tw.verify(tw.Graph.of(got))


@pytest.mark.parametrize("name", ["negative", "absolute", "exp", "sqrt", "tanh", "sigmoid", "relu", "erf"])
def test_bfloat16_elementwise(name):
    x = narrow((3, 4), BF16, 0.1, 2.0)
    wide = np.asarray(getattr(tw, name)(x.astype(np.float64)))
    rounded(getattr(tw, name)(x), wide, 2)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power"])
def test_python_numbers_adapt_to_bfloat16(name):
    x = narrow((3, 4), BF16, 0.1, 2.0)
    for number in (2, 0.5):
        got = getattr(tw, name)(x, number)
        assert got.dtype == BF16
        rounded(got, getattr(np, name)(x.astype(np.float64), number))
        assert getattr(tw, name)(number, x).dtype == BF16


def test_bfloat16_promotes_as_numpy_adds():
    x = np.ones((2, 2), BF16)
    for dtype in ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"):
        y = np.ones((2, 2), dtype)
        assert tw.matmul(x, y).dtype == tw.add(x, y).dtype == np.add(x, y).dtype
        same(tw.matmul(y, x), np.full((2, 2), 2, np.add(x, y).dtype))


GRADIENTS = {
    "product": lambda x, w: tw.sum(x * w.T * 0.5),
    "matmul": lambda x, w: tw.sum(tw.tanh(x @ w)),
    "softmax": lambda x, w: tw.sum(tw.softmax(x) * w.T),
    "layer_norm": lambda x, w: tw.sum(tw.layer_norm(x) * w.T),
    "attention": lambda x, w: tw.sum(tw.attention(x, x, w.T)),
    "max": lambda x, w: tw.sum(tw.max(x, 0) * w[:, 0]),
    "conv": lambda x, w: tw.sum(tw.conv(x[None], w[:, :3, None])),
    "relu": lambda x, w: tw.sum(tw.relu(x[:, ::2]) * 3.0 + w[0, 0]),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_gradients_of_narrow_floats(name, dtype):
    x, w = narrow((3, 4), dtype), narrow((4, 3), dtype)
    tensors = tw.as_tensor(x), tw.as_tensor(w)
    wide = tw.as_tensor(x.astype(np.float64)), tw.as_tensor(w.astype(np.float64))
    got, exact = tw.grad(GRADIENTS[name](*tensors), list(tensors)), tw.grad(GRADIENTS[name](*wide), list(wide))
    eps = float(ml_dtypes.finfo(dtype).eps)
    for a, b in zip(tw.evaluate(got), tw.evaluate(exact), strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=8 * eps, atol=8 * eps)


INTEGERS = ["uint8", "int8", "int16", "uint32", "int64", "uint64", "bool"]
NUMBERS = [300, -1, 2**70, -(2**70), 127, -128, 2**63, 2**64 - 1, -(2**63), 0]


COMPARISONS = {
    "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
    "equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_with_any_python_integer_are_exact(name):
    compare = COMPARISONS[name]
    for dtype, number in itertools.product(INTEGERS, NUMBERS):
        x = np.array([0, 1, 1], dtype) if dtype == "bool" else np.array([0, 1, np.iinfo(dtype).max], dtype)
        same(getattr(tw, name)(x, number), [compare(int(v), number) for v in x])
        same(getattr(tw, name)(number, x), [compare(number, int(v)) for v in x])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(300, "uint8"), (-1, "uint8"), (np.int64(300), "uint8"), (2**70, "int64"), (np.nan, "int32"), (np.inf, "int32"),
     (1e30, "int64"), (2**2000, "float64"), (2**2000, "bfloat16")],
)  # fmt: skip
def test_constants_that_a_type_does_not_hold_are_refused(value, dtype):
    for call in (
        lambda: tw.full((2,), value, dtype),
        lambda: tw.pad(tw.zeros((2,), dtype), 1, value=value),
        lambda: tw.add(np.ones(2, np.uint8), 300),
        lambda: tw.add(np.ones(2), 2**2000),
    ):
        with pytest.raises(DtypeError, match="does not fit"):
            call()


@pytest.mark.parametrize(
    ("value", "dtype"), [(255, "uint8"), (1.5, "int32"), (True, "int32"), (2, "bool"), (2**70, "float32"), (3, None)]
)
def test_constants_that_a_type_holds_are_numpys(value, dtype):
    same(tw.full((2, 1), value, dtype), np.full((2, 1), value, dtype))
    same(tw.full((), 1e300, "float32"), np.float32(np.inf))


@pytest.mark.parametrize("name", ["no such type", object, "U5", "complex128", np.dtype([("a", "i4")])])
def test_what_is_no_element_type_is_refused_by_every_function_that_takes_one(name):
    x = np.ones(3)
    for call in (
        lambda: tw.cast(x, name),
        lambda: tw.sum(x, dtype=name),
        lambda: tw.full((2,), 1, name),
        lambda: tw.uniform((2,), 1, dtype=name),
        lambda: tw.random_integers((2,), 1, 0, 3, dtype=name),
    ):
        with pytest.raises(DtypeError, match="element type"):
            call()


def test_bfloat16_is_known_by_name_alone():
    code = (
        "from tileweave import graph as tw; import numpy as np;"
        "print(np.asarray(tw.cast(tw.sum(tw.cast([1.5, 2.0], 'bfloat16')), 'float32')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3.5"


def test_no_operator_warns_of_values_that_are_not_finite():
    bad = np.array([[np.nan, np.inf], [-np.inf, 1e308]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in (
            lambda x: x @ x, lambda x: tw.linear(x, x, x[0]), lambda x: tw.einsum("ij,jk,kl->il", x, x, x),
            lambda x: tw.conv(x[None], x[None, :, :1]), lambda x: tw.sum(x), lambda x: tw.product(x),
            lambda x: tw.softmax(x), lambda x: tw.variance(x), lambda x: tw.cast(x, "int32"), lambda x: x / 0,
            lambda x: tw.log(-x), lambda x: tw.exp(x), lambda x: tw.cast(x, "float16"),
            lambda x: tw.max_pool(x[None], 2),
            lambda x: tw.average_pool(x[None], 2), lambda x: tw.attention(x, x, x), lambda x: x // 0, lambda x: x % 0,
            lambda x: tw.grad(tw.sum(tw.sign(x) + x // 2.0 + tw.relu(x)), x),
        ):  # fmt: skip
            np.asarray(call(tw.as_tensor(bad)))


def test_gradients_that_are_zero_are_zero_beside_infinity():
    x = tw.as_tensor(np.array([np.inf, -1.0, np.nan, 2.0]))
    for y in (tw.sign(x), x // 2.0, tw.floor_divide(3.0, x)):
        same(tw.grad(tw.sum(y * np.inf), x), np.zeros(4))
    same(tw.grad(tw.sum(tw.relu(x) * np.inf), x), [np.inf, 0.0, 0.0, np.inf])
    y = tw.as_tensor(np.array([1.0, 3.0, 2.0]))
    same(tw.grad(tw.max(y) * np.inf, y), [0.0, np.inf, 0.0])
    same(tw.grad(tw.sum(tw.max_pool(tw.unsqueeze(y, (0, 1)), 3)) * np.inf, y), [0.0, np.inf, 0.0])


EIGHT_BITS = [np.dtype(getattr(ml_dtypes, name)) for name in NAMES if name.startswith("float8")]
WITH_ZERO = [dtype for dtype in EIGHT_BITS if dtype.name != "float8_e8m0fnu"]


def float32s(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)


@pytest.mark.parametrize("machines", [None, 3])
@pytest.mark.parametrize("dtype", WITH_ZERO, ids=str)
def test_floats_of_8_bits_are_elements(dtype, machines):
    x, y = narrow((6, 8), dtype, 0.5, 2), narrow((8, 5), dtype, 0.5, 2)
    wide = float32s(x) @ float32s(y)
    cases = [
        (tw.matmul(x, y), wide),
        (tw.einsum("ij,jk->ki", x, y), wide.T),
        (tw.sum(x, 1), float32s(x).sum(1)),
        (tw.max(x, 0), float32s(x).max(0)),
        (tw.min(x, 0), float32s(x).min(0)),
        (tw.multiply(x, 2.0), float32s(x) * 2),
        (tw.concat([x, x])[1:, ::2], np.concatenate([float32s(x)] * 2)[1:, ::2]),
        (tw.max_pool(tw.reshape(x, (1, 1, 6, 8)), 2), float32s(x).reshape(1, 1, 3, 2, 4, 2).max((3, 5))),
        (tw.cast(x, np.float32), float32s(x)),
    ]
    for tensor, exact in cases:
        with np.errstate(over="ignore"):
            wanted = exact.astype(tensor.dtype)
        for got in (tileweave.run(tensor, machines=machines), tw.evaluate([tensor])[0]):
            assert got.dtype == tensor.dtype
            np.testing.assert_array_equal(float32s(got), float32s(wanted))


@pytest.mark.parametrize("dtype", [BF16, *EIGHT_BITS], ids=str)
def test_the_bounds_of_narrow_floats(dtype):
    low, high = bounds(dtype)
    every = np.arange(256, dtype=np.uint8).view(dtype) if dtype.itemsize == 1 else None
    assert float(low) < float(high)
    if every is not None:
        numbers = float32s(every)
        assert float(low) == np.nanmin(numbers) and float(high) == np.nanmax(numbers)
    assert tw.full((2,), 1.0, dtype.name).dtype == dtype


def test_narrow_floats_beside_other_types():
    x = np.ones(3, ml_dtypes.float8_e4m3fn)
    assert tw.add(x, 2.0).dtype == x.dtype
    assert tw.add(x, np.ones(3, np.float32)).dtype == np.float32
    assert tw.add(x, np.ones(3, ml_dtypes.float8_e5m2)).dtype == np.float32
    assert tw.einsum("i,i->", x, np.ones(3, ml_dtypes.float8_e5m2)).dtype == np.float32


@pytest.mark.parametrize("dtype", [BF16, *EIGHT_BITS], ids=str)
def test_documents_keep_narrow_floats(dtype):
    x = np.array([0.5, 1.0, 2.0]).astype(dtype)
    graph = tw.Graph.of(tw.reshape(x, (3, 1)))
    again = tw.from_json(tw.to_json(graph))
    (tensor,) = [sink.tensor for sink in again.sinks]
    np.testing.assert_array_equal(float32s(tw.evaluate([tensor])[0]), float32s(x)[:, None])
