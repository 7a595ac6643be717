"""Every operator against NumPy: shapes, strides, element types, promotion, NaN, empty and zero-dimensional tensors."""

import itertools
import warnings

import numpy as np
import pytest
from arrays import DTYPES, HOWS, same, strided, values

from tileweave import graph as tw
from tileweave.errors import DtypeError, GraphError

SHAPES = [(), (1,), (7,), (0,), (3, 5), (2, 0, 3), (4, 1, 3)]
BINARY = ["add", "subtract", "multiply", "divide", "floor_divide", "remainder", "maximum", "minimum"]
COMPARE = ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]
UNARY = ["negative", "absolute", "sign", "exp", "log", "sqrt", "tanh"]
PAIRS = [((3, 5), (3, 5)), ((3, 5), (5,)), ((3, 1), (1, 5)), ((), (4,)), ((2, 1, 3), (4, 1)), ((0,), (1,)), ((), ())]


@pytest.fixture(autouse=True)
def quiet():
    """NumPy warns about the NaN and the zeros that these tests feed it on purpose."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unary(name, dtype):
    rng = np.random.default_rng(1)
    for shape, how in itertools.product(SHAPES, HOWS if dtype == "float64" else HOWS[1:4]):
        x = strided(rng, shape, dtype, how if shape else "dense")
        # NumPy's own last bit depends on the strides here
        same(getattr(tw, name)(x), getattr(np, name)(x), rtol=1e-6 if name in ("exp", "log", "tanh") else 0)


@pytest.mark.parametrize("name", BINARY + COMPARE)
def test_binary_of_every_pair_of_types(name):
    rng = np.random.default_rng(2)
    for (a, b), s, t in itertools.product(PAIRS, DTYPES, DTYPES):
        x, y = values(rng, a, s), values(rng, b, t)
        same(getattr(tw, name)(x, y), getattr(np, name)(x, y))


@pytest.mark.parametrize("name", BINARY + COMPARE)
def test_binary_of_every_stride(name):
    rng = np.random.default_rng(3)
    for how, kind in itertools.product(HOWS[:5], HOWS[1:5]):
        x, y = strided(rng, (3, 4), "float64", how), strided(rng, (3, 4), "float64", kind)
        same(getattr(tw, name)(x, y), getattr(np, name)(x, y))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [2, -3, 0, 1.5, True, False])
def test_python_numbers_adapt_to_the_tensor(dtype, number):
    x = values(np.random.default_rng(4), (3, 4), dtype)
    for name in ["add", "multiply", "subtract", "maximum", "less", "equal", "divide", "remainder"]:
        same(getattr(tw, name)(x, number), getattr(np, name)(x, number))
        same(getattr(tw, name)(number, x), getattr(np, name)(number, x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_power(dtype):
    x = np.abs(values(np.random.default_rng(5), (3, 4), dtype)) + np.ones((), dtype)
    for exponent in (0, 1, 2, 3, np.array([0, 1, 2, 3], "int32"), np.array([0, 1, 2, 3], "int64")):
        same(tw.power(x, exponent), np.power(x, exponent), rtol=1e-6)
    if x.dtype.kind == "f":
        same(tw.power(x, -0.5), np.power(x, -0.5), rtol=1e-6)


def test_bool_tensors():
    x, y = np.array([True, False, True]), np.array([True, True, False])
    for name in ("add", "multiply", "maximum", "minimum", "less", "equal", "not_equal", "divide"):
        same(getattr(tw, name)(x, y), getattr(np, name)(x, y))
    same(tw.absolute(x), np.absolute(x))
    same(tw.sum(x), np.sum(x))
    same(tw.max(x), np.max(x))
    same(tw.mean(x), np.mean(x))
    same(tw.add(x, 1), x + 1)
    same(tw.add(x, 1.5), x + 1.5)


def test_integers_wrap_as_numpy_wraps_them():
    x = np.array([2**31 - 1, -(2**31)], "int32")
    same(tw.add(x, x), x + x)
    same(tw.negative(x), -x)
    same(tw.multiply(x, 3), x * 3)


def test_division_by_integer_zero_and_nan_follow_numpy():
    x = np.array([1, -1, 0], "int64")
    for name in ("divide", "floor_divide", "remainder"):
        same(getattr(tw, name)(x, np.zeros(3, "int64")), getattr(np, name)(x, np.zeros(3, "int64")))
    y = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0])
    for name in UNARY:
        same(getattr(tw, name)(y), getattr(np, name)(y))
    for name in BINARY + COMPARE:
        same(getattr(tw, name)(y, y[::-1]), getattr(np, name)(y, y[::-1]))
    for name in ("sum", "max", "min"):
        same(getattr(tw, name)(y), getattr(np, name)(y))
    same(tw.relu(y), np.maximum(y, 0.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_sigmoid_and_cast(dtype):
    rng = np.random.default_rng(6)
    for shape in SHAPES:
        x = values(rng, shape, dtype)
        same(tw.relu(x), np.maximum(x, x.dtype.type(0)))
        wide = x.astype(np.result_type(x.dtype, np.float32) if x.dtype == np.float32 else np.float64)
        same(tw.sigmoid(x), 1 / (1 + np.exp(-wide)), rtol=1e-6)
        for other in (*DTYPES, "bool", "float16", "uint8"):
            same(tw.cast(x, other), x.astype(other))


def test_sigmoid_does_not_overflow():
    x = np.array([-1e4, 0.0, 1e4, np.nan, np.inf, -np.inf])
    same(tw.sigmoid(x), [0.0, 0.5, 1.0, np.nan, 1.0, 0.0])


def test_where():
    rng = np.random.default_rng(7)
    c = rng.integers(0, 2, (3, 1)).astype(bool)
    for s, t in itertools.product(DTYPES, DTYPES):
        x, y = values(rng, (3, 4), s), values(rng, (4,), t)
        same(tw.where(c, x, y), np.where(c, x, y))
    same(tw.where(c, 1, 0), np.where(c, 1, 0))
    same(tw.where(c, np.float32(1), 0), np.where(c, np.float32(1), 0))


AXES = [None, 0, -1, (0, 1), (), (1, -1)]


@pytest.mark.parametrize("name", ["sum", "product", "max", "min", "mean"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(name, dtype):
    rng = np.random.default_rng(8)
    oracle = getattr(np, {"product": "prod"}.get(name, name))
    hows = itertools.cycle(HOWS)
    for shape, axis, keep in itertools.product([(3, 4, 5), (1, 7, 2), (2, 3, 1)], AXES, (False, True)):
        x = strided(rng, shape, dtype, next(hows))
        rtol = 1e-5 if dtype == "float32" else 1e-12
        same(getattr(tw, name)(x, axis, keepdims=keep), oracle(x, axis=axis, keepdims=keep), rtol=rtol)


def test_reductions_of_nothing():
    empty = np.empty((0, 3))
    same(tw.sum(empty), 0.0)
    same(tw.sum(empty, 0), np.zeros(3))
    same(tw.product(empty, 0), np.ones(3))
    same(tw.max(empty, 1), np.empty(0))
    same(tw.mean(empty, 0), np.full(3, np.nan))
    with pytest.raises(GraphError, match="over no element"):
        tw.max(empty, 0)


def test_reductions_of_zero_dimensional_tensors():
    for name in ("sum", "product", "max", "min", "mean"):
        same(getattr(tw, name)(np.float32(3)), np.float32(3))


def test_softmax_and_log_softmax():
    rng = np.random.default_rng(9)
    for shape, axis in (((3, 4), -1), ((3, 4), 0), ((5,), 0), ((2, 3, 4), 1)):
        x = rng.normal(size=shape) * 50
        e = np.exp(x - x.max(axis, keepdims=True))
        same(tw.softmax(x, axis), e / e.sum(axis, keepdims=True), rtol=1e-12)
        same(tw.log_softmax(x, axis), np.log(e / e.sum(axis, keepdims=True) + 0.0), rtol=1e-12)
    same(tw.softmax(np.array([1e4, 0.0])), [1.0, 0.0])


MATMUL = [
    ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (7, 4, 5)), ((1, 3, 4), (6, 4, 5)), ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)), ((1, 1), (1, 1)), ((2, 0, 3, 4), (1, 4, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), MATMUL)
def test_matmul(a, b):
    rng = np.random.default_rng(10)
    for s, t in itertools.product(DTYPES, DTYPES):
        x, y = values(rng, a, s), values(rng, b, t)
        same(tw.matmul(x, y), np.matmul(x, y), rtol=1e-5)
    for how, kind in zip(HOWS, HOWS[1:] + HOWS[:1], strict=True):
        x, y = strided(rng, a, "int64", how), strided(rng, b, "int64", kind)
        same(tw.matmul(x, y), np.matmul(x, y))


@pytest.mark.parametrize("batch", [(), (6,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear(batch, dtype):
    rng = np.random.default_rng(11)
    x, w, b = values(rng, (*batch, 4), dtype), values(rng, (4, 5), dtype), values(rng, (5,), dtype)
    same(tw.linear(x, w, b), x @ w + b, rtol=1e-6)
    same(tw.linear(x, w), x @ w, rtol=1e-6)


EINSUM = [
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("ji", (3, 4)), ("ij->", (3, 4)), ("ij->j", (3, 4)),
    ("ii->i", (4, 4)), ("ii", (4, 4)), ("iij->ji", (3, 3, 2)), ("i,j->ij", (3,), (4,)), ("i,i->", (3,), (3,)),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)), ("...i->...", (2, 3, 4)), ("i...->...", (2, 3, 4)),
    ("...i,...i", (3, 1, 4), (1, 5, 4)), ("...ij,jk", (2, 3, 4), (4, 5)), (",ij", (), (2, 3)), ("", ()),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("ij,ik,il->jkl", (2, 3), (2, 4), (2, 5)),
    ("ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 2), (2, 5)), ("a,a,a,a,a->a", (3,), (3,), (3,), (3,), (3,)),
    ("ii,ij,jj->", (3, 3), (3, 4), (4, 4)), ("trus,pqtu->pqrs", (2, 3, 4, 5), (6, 2, 2, 4)),
    ("ij,jk->ik", (0, 4), (4, 5)), ("ij,jk->ik", (3, 0), (0, 5)), ("i j , j k -> k i", (3, 4), (4, 5)),
    ("Ab,bC->AC", (2, 3), (3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("case", EINSUM, ids=lambda case: case[0] or "empty")
def test_einsum(case):
    equation, *shapes = case
    rng = np.random.default_rng(12)
    for dtype in DTYPES:
        operands = [values(rng, shape, dtype) for shape in shapes]
        same(tw.einsum(equation, *operands), np.einsum(equation, *operands), rtol=1e-5)
    operands = [strided(rng, shape, "int64", rng.choice(HOWS) if shape else "dense") for shape in shapes]
    same(tw.einsum(equation, *operands), np.einsum(equation, *operands))


def test_einsum_takes_the_common_type_before_any_product():
    big = np.array([2**30], "int32")
    same(tw.einsum("i,i,i->i", big, big, np.array([1.0])), [2.0**60])


def test_random_einsums():
    rng = np.random.default_rng(13)
    for _ in range(80):
        letters = "abcdef"[: rng.integers(1, 6)]
        extent = {c: int(rng.integers(1, 5)) for c in letters}
        terms = ["".join(rng.choice(list(letters), rng.integers(0, 4))) for _ in range(rng.integers(1, 5))]
        used = sorted(set("".join(terms)))
        out = "".join(rng.permutation(used)[: rng.integers(0, len(used) + 1)])
        operands = [values(rng, tuple(extent[c] for c in term), "int64") for term in terms]
        equation = ",".join(terms) + "->" + out
        same(tw.einsum(equation, *operands), np.einsum(equation, *operands))


def test_notation_on_tensors_is_numpys():
    rng = np.random.default_rng(14)
    a, b = values(rng, (3, 4), "float64"), values(rng, (4, 3), "float64")
    x, y = tw.as_tensor(a), tw.as_tensor(b)
    same(x @ y + 1, a @ b + 1)
    same(2 - x * 3 / 4, 2 - a * 3 / 4)
    same(x.T - b, a.T - b)
    same(a @ y, a @ b)
    same(a - y.T, a - b.T)
    same((x // 2) % 3, (a // 2) % 3)
    same(7 // (x + 10) + 7 % (x + 10), 7 // (a + 10) + 7 % (a + 10))
    same(abs(-x) ** 2, abs(-a) ** 2)
    same(2**x, 2**a)
    same(a < y.T, a < b.T)
    same((x >= 0).astype("int32"), (a >= 0).astype("int32"))
    same(x.sum(0) + x.max(0) - x.min(0) * x.mean(0), a.sum(0) + a.max(0) - a.min(0) * a.mean(0), rtol=1e-12)
    same(x.transpose(1, 0)[1:, ::-1], a.transpose(1, 0)[1:, ::-1])
    assert len(x) == 3 and np.asarray(x, "float32").dtype == np.float32 and +x is x
    same(x.prod(1) - x.var(1) / x.std(1, keepdims=True).T[0], a.prod(1) - a.var(1) / a.std(1), rtol=1e-12)
    same(x.argmax(0) + x.argmin(0, keepdims=True)[0], a.argmax(0) + a.argmin(0))
    with pytest.raises(ValueError, match="no array to share"):
        np.asarray(x, copy=False)
    with pytest.raises(TypeError, match="truth value"):
        bool(x)
    with pytest.raises(TypeError, match="not iterated"):
        list(x)


REFUSED = {
    "add": lambda: tw.add(np.ones((2, 3)), np.ones((4, 3))),
    "matmul-inner": lambda: tw.matmul(np.ones((2, 3)), np.ones((4, 3))),
    "matmul-scalar": lambda: tw.matmul(np.ones(()), np.ones((4, 3))),
    "matmul-batch": lambda: tw.matmul(np.ones((2, 3, 4)), np.ones((3, 4, 5))),
    "linear-in": lambda: tw.linear(np.ones((2, 3)), np.ones((4, 3)), np.ones(3)),
    "linear-bias": lambda: tw.linear(np.ones((2, 3)), np.ones((3, 4)), np.ones(3)),
    "linear-rank": lambda: tw.linear(np.ones((2, 3)), np.ones(3), np.ones(3)),
    "einsum-extent": lambda: tw.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((4, 3))),
    "einsum-rank": lambda: tw.einsum("ij,jk->ik", np.ones((2, 3, 4)), np.ones((4, 3))),
    "einsum-output": lambda: tw.einsum("ij->ijk", np.ones((2, 3))),
    "einsum-twice": lambda: tw.einsum("ij->ii", np.ones((2, 3))),
    "einsum-operands": lambda: tw.einsum("ij,jk->ik", np.ones((2, 3))),
    "einsum-nonsense": lambda: tw.einsum("i->->j", np.ones(2)),
    "sum-axis": lambda: tw.sum(np.ones((2, 3)), 2),
    "sum-repeats": lambda: tw.sum(np.ones((2, 3)), (0, -2)),
    "max-nothing": lambda: tw.max(np.ones((0, 3)), 0),
    "slice-axis": lambda: tw.as_tensor(np.ones((2, 3)))[0, 0, 0],
    "slice-bounds": lambda: tw.as_tensor(np.ones((2, 3)))[2],
    "slice-mask": lambda: tw.as_tensor(np.ones((2, 3)))[tw.as_tensor(np.ones(2, bool))],
    "slice-float": lambda: tw.as_tensor(np.ones((2, 3)))[1.5],
    "concat": lambda: tw.concat([tw.as_tensor(np.ones((2, 3))), tw.as_tensor(np.ones((2, 4)))], 0),
    "broadcast": lambda: tw.broadcast_to(tw.as_tensor(np.ones((2, 3))), (2, 4)),
    "permute": lambda: tw.permute(tw.as_tensor(np.ones((2, 3))), (0, 0)),
    "squeeze": lambda: tw.squeeze(tw.as_tensor(np.ones((2, 3))), 0),
    "text": lambda: tw.as_tensor("words"),
    "object": lambda: tw.as_tensor([object()]),
    "relu-bool": lambda: tw.relu(np.ones(3, bool)),
    "cast": lambda: tw.cast(np.ones(3), "no such type"),
    "subtract-bool": lambda: tw.subtract(np.ones(3, bool), np.ones(3, bool)),
    "constant": lambda: tw.add(np.ones(3, "int32"), 2**40),
    "power": lambda: tw.power(np.ones(3, "int32"), -2),
    "slice-outside": lambda: tw.slice_(tw.as_tensor(np.ones(3)), tw.as_tensor(np.ones(4)).type.box),
}


def test_messages_of_refused_calls(golden):
    text = []
    for name, call in REFUSED.items():
        with pytest.raises(GraphError) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        text.append(f"## {name} ({type(caught.value).__name__})\n{caught.value}\n")
    golden("graph_operator_errors.txt", "\n".join(text))


def test_dtype_errors_are_type_errors():
    with pytest.raises(TypeError) as caught:
        tw.relu(np.ones(3, bool))
    assert isinstance(caught.value, DtypeError)


def test_where_refuses_one_answer_for_all_elements():
    x = np.array([0, 1])
    with pytest.raises(GraphError, match="one answer for all elements"):
        tw.where(x is None, 1, 2)
