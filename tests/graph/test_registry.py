"""Every operator has what the package promises: signature, costs, meaning in NumPy, errors, a gradient or a reason."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.special
from arrays import same, values

from tileweave import graph as tw
from tileweave.errors import GraphError
from tileweave.graph.ops.along import triangle
from tileweave.graph.ops.grouped.attention import attended
from tileweave.graph.ops.grouped.chained import conv_chain, product_chain, product_of
from tileweave.graph.ops.grouped.ragged import ragged_outer
from tileweave.graph.ops.grouped.recurrence import recurrence as steps_of
from tileweave.graph.ops.grouped.rows import rows
from tileweave.graph.ops.operators import OPERATORS
from tileweave.graph.ops.windows import max_pool_gradient
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.rules import OPTIMIZATIONS
from tileweave.graph.passes.shard import input_region

UNARY = ("negative", "absolute", "sign", "exp", "log", "sqrt", "tanh")
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
BINARY = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "power",
    "maximum",
    "minimum",
    *COMPARISONS,
)
GRADIENTS = {name for name, row in OPERATORS.items() if row.gradient is not None}

RNG = np.random.default_rng(0)
X, Y, V = values(RNG, (3, 4), "float64") + 0.0625, values(RNG, (3, 4), "float64") + 5.125, values(RNG, (4,), "float64")
W = values(RNG, (4, 5), "float64")
MATRICES = values(RNG, (3, 4, 5), "float64")
IMAGE, FILTERS = values(RNG, (2, 3, 6, 5), "float64"), values(RNG, (4, 3, 2, 2), "float64")


@dataclass(frozen=True)
class Row:
    """One operator: a call, what NumPy makes of it, and a call that makes no sense."""

    call: Callable[[], tw.Tensor]
    oracle: Callable[[], Any]
    bad: Callable[[], Any]


def windows(x, shape):
    return np.lib.stride_tricks.sliding_window_view(x, shape, (2, 3))


def fused(tensor):
    return rewrite(tw.Graph.of(tensor), OPTIMIZATIONS).graph.sinks[0].tensor


SCIPYS = (
    "erfc", "erfcx", "erfinv", "ndtri", "log_ndtr", "lgamma", "digamma", "i0", "i0e", "i1", "i1e", "j0", "j1",
)  # fmt: skip
INTEGERS, SHIFTS = RNG.integers(-50, 50, (3, 4)), RNG.integers(0, 5, (3, 4))
SMALL = np.tanh(X) * 0.9
ON_ALL = (
    "floor", "ceil", "trunc", "rint", "isnan", "isinf", "isfinite", "signbit", "logical_not", "exp2", "expm1", "square",
    "sin", "cos", "tan", "arctan", "sinh", "cosh", "arcsinh",
)  # fmt: skip
ON_POSITIVE, ON_SMALL = ("log1p", "log2", "log10", "reciprocal"), ("arcsin", "arccos", "arctanh")
ON_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
ON_PAIRS = ("logical_and", "logical_or", "logical_xor", "arctan2", "fmod")


def numpys(name, *arrays, bad):
    return Row(lambda: getattr(tw, name)(*arrays), lambda: getattr(np, name)(*arrays), lambda: getattr(tw, name)(*bad))


MORE: dict[str, Row] = {
    **{name: numpys(name, X, bad=("text",)) for name in ON_ALL},
    **{name: numpys(name, np.abs(X), bad=("text",)) for name in ON_POSITIVE},
    **{name: numpys(name, SMALL, bad=("text",)) for name in ON_SMALL},
    **{name: numpys(name, INTEGERS, SHIFTS, bad=(X, X)) for name in ON_BITS},
    **{name: numpys(name, X, Y, bad=(X, np.ones(5))) for name in ON_PAIRS},
    "nextafter": numpys("nextafter", X, Y, bad=(X, np.ones(5))),
    **{name: numpys(name, INTEGERS, SHIFTS, bad=(X, X)) for name in ("gcd", "lcm")},
    **{
        name: Row(
            lambda name=name: getattr(tw, name)(SMALL),
            lambda name=name: getattr(scipy.special, "gammaln" if name == "lgamma" else name)(SMALL),
            lambda name=name: getattr(tw, name)("text"),
        )
        for name in SCIPYS
    },
    "arccosh": numpys("arccosh", np.abs(Y) + 1, bad=("text",)),
    "invert": numpys("invert", INTEGERS, bad=(X,)),
    "any": Row(lambda: tw.any(X > 0, 1), lambda: (X > 0).any(1), lambda: tw.any(X, 2)),
    "all": Row(lambda: tw.all(X > 0, 1), lambda: (X > 0).all(1), lambda: tw.all(X, 2)),
    "take": Row(lambda: tw.take(X, [1, 0], 0), lambda: X[[1, 0]], lambda: tw.take(X, [0.5], 0)),
    "take_along_axis": Row(
        lambda: tw.take_along_axis(X, [[1]] * 3, 1), lambda: X[:, 1:2], lambda: tw.take_along_axis(X, [1], 1)
    ),
    "scatter": Row(
        lambda: tw.scatter(X, [[1]] * 3, Y[:, :1], 1),
        lambda: np.where(np.arange(4) == 1, Y[:, :1], X),
        lambda: tw.scatter(X, [[1]], Y, 1),
    ),
    "gather_nd": Row(lambda: tw.gather_nd(X, [[1]]), lambda: X[[1]], lambda: tw.gather_nd(X, [[0, 0, 0]])),
    "scatter_nd": Row(
        lambda: tw.scatter_nd(X, [[1]], Y[:1]),
        lambda: np.where(np.arange(3)[:, None] == 1, Y[0], X),
        lambda: tw.scatter_nd(X, [[1]], Y),
    ),
    "searchsorted": Row(
        lambda: tw.searchsorted(np.sort(X, 1), Y, "right"),
        lambda: np.stack([np.searchsorted(np.sort(x), y, "right") for x, y in zip(X, Y, strict=True)]),
        lambda: tw.searchsorted(X, Y[:2]),
    ),
    "bincount": Row(
        lambda: tw.bincount(INTEGERS, 3),
        lambda: np.stack([(k == INTEGERS).sum(-1) for k in range(3)], -1),
        lambda: tw.bincount(X, 3),
    ),
    "triangle": Row(
        lambda: triangle(tw.as_tensor(X), 1, True), lambda: np.triu(X, 1), lambda: triangle(tw.as_tensor(X[0]), 1, True)
    ),
    "cumsum": Row(lambda: tw.cumsum(X, 1), lambda: X.cumsum(1), lambda: tw.cumsum(X, 2)),
    "cumprod": Row(lambda: tw.cumprod(X, 1), lambda: X.cumprod(1), lambda: tw.cumprod(X, 2)),
    **{
        name: Row(
            lambda name=name: getattr(tw, name)(X, 1),
            lambda ufunc=ufunc: ufunc.accumulate(X, 1),
            lambda name=name: getattr(tw, name)(X, 2),
        )
        for name, ufunc in (("cummax", np.maximum), ("cummin", np.minimum), ("logcumsumexp", np.logaddexp))
    },
    "sort": Row(lambda: tw.sort(X, 1), lambda: np.sort(X, 1), lambda: tw.sort(X, 2)),
    "reshape": Row(lambda: tw.reshape(X, (2, 6)), lambda: X.reshape(2, 6), lambda: tw.reshape(X, 5)),
}

SQUARE = np.arange(16.0).reshape(4, 4) / 20


def shared(x: np.ndarray, y: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """dy in equal shares for the greatest elements of windows of 2 x 5."""
    hits = x.reshape(2, 3, 3, 2, 5) == y[..., None]
    return (hits / hits.sum((3, 4), keepdims=True) * dy[..., None]).reshape(x.shape)


def recurrence(cell: str, *inputs: np.ndarray) -> tuple[tw.Tensor, tw.Tensor | None]:
    """All steps of a recurrent layer, of arrays."""
    return steps_of(cell, *map(tw.as_tensor, inputs))


TILES = {"window": (2, 5), "stride": (2, 5), "dilation": (1, 1)}
POOLED = IMAGE.reshape(2, 3, 3, 2, 5).max((3, 4))[..., None]
SOFTMAX = (("max", (0,), "float64"), ("subtract", (0, -1), "float64"), ("exp", (-2,), "float64")) + (
    ("sum", (-3,), "float64"),
    ("divide", (-3, -4), "float64"),
)
TABLE: dict[str, Row] = {
    **MORE,
    **{
        name: Row(
            lambda name=name: getattr(tw, name)(np.abs(X) if name in ("log", "sqrt") else X),
            lambda name=name: getattr(np, name)(np.abs(X) if name in ("log", "sqrt") else X),
            lambda name=name: getattr(tw, name)("text"),
        )
        for name in UNARY
    },
    **{
        name: Row(
            lambda name=name: getattr(tw, name)(np.abs(X) if name == "power" else X, Y),
            lambda name=name: getattr(np, name)(np.abs(X) if name == "power" else X, Y),
            lambda name=name: getattr(tw, name)(X, np.ones(5)),
        )
        for name in BINARY
    },
    "relu": Row(lambda: tw.relu(X), lambda: np.maximum(X, 0), lambda: tw.relu(np.ones(2, bool))),
    "sigmoid": Row(lambda: tw.sigmoid(X), lambda: 1 / (1 + np.exp(-X)), lambda: tw.sigmoid([object()])),
    "erf": Row(lambda: tw.erf(X), lambda: np.vectorize(math.erf)(X), lambda: tw.erf("text")),
    "cast": Row(lambda: tw.cast(X, "float32"), lambda: X.astype("float32"), lambda: tw.cast(X, "complex64")),
    "saturate": Row(
        lambda: tw.saturate(99 * X, "int8"),
        lambda: np.clip(np.trunc(99 * X), -128, 127).astype("int8"),
        lambda: tw.saturate(X, "float32"),
    ),
    "where": Row(
        lambda: tw.where(X > 0, X, Y), lambda: np.where(X > 0, X, Y), lambda: tw.where(np.ones(5, bool), X, Y)
    ),
    "sum": Row(lambda: tw.sum(X, 0), lambda: X.sum(0), lambda: tw.sum(X, 2)),
    "product": Row(lambda: tw.product(X, 1), lambda: X.prod(1), lambda: tw.product(X, (0, 0))),
    "max": Row(lambda: tw.max(X, 0), lambda: X.max(0), lambda: tw.max(X[:0], 0)),
    "min": Row(lambda: tw.min(X), lambda: X.min(), lambda: tw.min(X, 1.5)),
    "argmax": Row(lambda: tw.argmax(X, 0), lambda: X.argmax(0), lambda: tw.argmax(X)),
    "argmin": Row(lambda: tw.argmin(X, 1), lambda: X.argmin(1), lambda: tw.argmin(X[:0], 0)),
    "matmul": Row(lambda: tw.matmul(X, W), lambda: X @ W, lambda: tw.matmul(W, X)),
    "ragged_dot": Row(
        lambda: tw.ragged_dot(X, MATRICES, [1, 0, 1]),
        lambda: np.stack([X[0] @ MATRICES[0], X[1] @ MATRICES[2], 0 * W[0]]),
        lambda: tw.ragged_dot(X, MATRICES, [1, 2]),
    ),
    "recurrence": Row(
        lambda: recurrence("tanh", X[None, :, None], SQUARE[None], X[None])[0],
        lambda: np.tanh(X + X @ SQUARE.T)[None, :, None],
        lambda: recurrence("tanh", X[None, :, None], SQUARE[None], X[None, :2]),
    ),
    "ragged_outer": Row(
        lambda: ragged_outer(X, Y, [1, 0, 2]),
        lambda: np.stack([X[:1].T @ Y[:1], np.zeros((4, 4)), X[1:].T @ Y[1:]]),
        lambda: ragged_outer(X, W, [1, 0, 2]),
    ),
    "linear": Row(lambda: tw.linear(X, W, W[0]), lambda: X @ W + W[0], lambda: tw.linear(X, W, V)),
    "linear_relu": Row(
        lambda: fused(tw.relu(tw.linear(X, W, W[0]))),
        lambda: np.maximum(X @ W + W[0], 0),
        lambda: tw.relu(tw.linear(X, W, V)),
    ),
    "fused": Row(
        lambda: fused(tw.relu(tw.add(tw.multiply(X, 2.0), Y))),
        lambda: np.maximum(X * 2 + Y, 0),
        lambda: tw.relu(tw.add(X, np.ones(5))),
    ),
    "rows": Row(
        lambda: rows((tw.as_tensor(X),), X.shape, (1,), (("max", (0,), "float64"), ("divide", (0, -1), "float64"))),
        lambda: X / X.max(1, keepdims=True),
        lambda: rows((tw.as_tensor(X),), X.shape, (1,), (("matmul", (0, 0), "float64"),)),
    ),
    "einsum": Row(lambda: tw.einsum("ij,ij->j", X, Y), lambda: (X * Y).sum(0), lambda: tw.einsum("ij,jk->ik", X, X)),
    "conv": Row(
        lambda: tw.conv(IMAGE, FILTERS),
        lambda: np.einsum("ncxyij,fcij->nfxy", windows(IMAGE, (2, 2)), FILTERS),
        lambda: tw.conv(IMAGE, FILTERS, groups=2),
    ),
    "conv_chain": Row(
        lambda: conv_chain(
            tw.conv(IMAGE, FILTERS).producer,
            (tw.as_tensor(2.0),),
            (("multiply", (0, 1), "float64"), ("relu", (-1,), "float64")),
        ),
        lambda: np.maximum(2 * np.einsum("ncxyij,fcij->nfxy", windows(IMAGE, (2, 2)), FILTERS), 0),
        lambda: conv_chain(tw.conv(IMAGE, FILTERS).producer, (tw.as_tensor(X),), (("add", (0, 1), "float64"),)),
    ),
    "product_chain": Row(
        lambda: product_chain(
            product_of(tw.linear(X, Y.T, np.arange(len(Y))).producer)[0],
            (tw.as_tensor(2.0),),
            (("multiply", (0, 1), "float64"), ("relu", (-1,), "float64")),
        ),
        lambda: np.maximum(2 * (X @ Y.T + np.arange(len(Y))), 0),
        lambda: product_chain(
            product_of(tw.matmul(X, Y.T).producer)[0], (tw.as_tensor(IMAGE),), (("add", (0, 1), "float64"),)
        ),
    ),
    "attention": Row(
        lambda: attended(*map(tw.as_tensor, (X, X, Y)), (), ("id", "jd", "je", "ie"), SOFTMAX),
        lambda: (lambda e: (e / e.sum(1, keepdims=True)) @ Y)(np.exp(X @ X.T)),
        lambda: attended(*map(tw.as_tensor, (X, X, Y)), (), ("id", "dj", "je", "ie"), SOFTMAX),
    ),
    "max_pool": Row(
        lambda: tw.max_pool(IMAGE, 2, stride=1),
        lambda: windows(IMAGE, (2, 2)).max((-2, -1)),
        lambda: tw.max_pool(IMAGE, 7),
    ),
    "max_pool_gradient": Row(
        lambda: max_pool_gradient(*map(tw.as_tensor, (IMAGE, POOLED, POOLED + 1)), **TILES),
        lambda: shared(IMAGE, POOLED, POOLED + 1),
        lambda: max_pool_gradient(*map(tw.as_tensor, (IMAGE, POOLED, IMAGE)), **TILES),
    ),
    "arange": Row(lambda: tw.arange(2, 11, 3), lambda: np.arange(2, 11, 3), lambda: tw.arange(0, 1, 0)),
    # random numbers have no oracle but their distribution, which tests/graph/test_generate.py looks at
    "uniform": Row(lambda: tw.uniform((4, 3), 1), lambda: None, lambda: tw.uniform((4, 3), -1)),
    "normal": Row(lambda: tw.normal((4, 3), 1), lambda: None, lambda: tw.normal((-4,), 1)),
    "random_integers": Row(
        lambda: tw.random_integers((4, 3), 1, 0, 9), lambda: None, lambda: tw.random_integers((4,), 1, 9, 0)
    ),
}

WITHOUT_GRADIENT = {
    **dict.fromkeys(COMPARISONS, "a truth value"),
    **dict.fromkeys(("argmax", "argmin", "searchsorted"), "a place"),
    "bincount": "a count",
    **dict.fromkeys(
        ("isnan", "isinf", "isfinite", "signbit", "logical_not", "any", "all", *ON_PAIRS[:3]), "a truth value"
    ),
    **dict.fromkeys((*ON_BITS, "gcd", "lcm", "invert", "saturate"), "an integer"),
    **dict.fromkeys(
        ("rows", "conv_chain", "product_chain", "attention", "triangle"),
        "made when a graph is planned, behind every gradient",
    ),
    **dict.fromkeys(("digamma", "log_ndtr", "i1", "i1e", "j1"), "rarely asked for"),
    **dict.fromkeys(("arange", "uniform", "normal", "random_integers"), "depends on no tensor"),
}


def operation_of(name: str) -> tuple[tw.Tensor, tw.Operation]:
    tensor = TABLE[name].call()
    return tensor, next(o for o in tw.Graph.of(tensor).operations if o.operator == name)


# before any test adds its own
OURS = frozenset(
    name
    for name, operator in OPERATORS.items()
    if operator.block.__module__.startswith("tileweave.graph.") and name not in ("combine", "max_and_sum", "moments")
)


def test_the_table_has_every_operator():
    assert set(TABLE) == OURS  # tests/graph/test_states.py looks at operators that make states


@pytest.mark.parametrize("name", TABLE)
def test_its_meaning_is_numpys(name):
    tensor, _ = operation_of(name)
    tw.verify(tw.Graph.of(tensor))
    expected = TABLE[name].oracle()
    if expected is None:
        assert tensor.shape == (4, 3)
    else:
        same(tensor, expected, rtol=1e-13)


@pytest.mark.parametrize("name", TABLE)
def test_it_has_a_signature_whose_projections_fit(name):
    _, operation = operation_of(name)
    signature = operation.signature
    assert signature is not None and len(set(signature.dims)) == operation.index.rank
    assert [n for n, _ in signature.inputs] == [n for n, _ in operation.inputs]
    for own, tensor in operation.inputs:
        assert input_region(operation, own, operation.index) == tensor.type.box
    for own, kind in operation.outputs:
        assert signature.output(own).cover(operation.index).shape == kind.shape
    used = {k for _, p in signature.outputs for row in p.map.matrix for k, c in enumerate(row) if c}
    assert set(signature.monoids) == set(range(operation.index.rank)) - used  # what no output uses is reduced


@pytest.mark.parametrize("name", TABLE)
def test_its_marginal_costs_are_the_differences_of_its_costs(name):
    _, operation = operation_of(name)
    signature, index = operation.signature, operation.index
    moves = name in ("reshape", "take", "take_along_axis", "gather_nd")
    assert (signature.cost("flops", index) > 0) != moves
    for dim in range(index.rank):
        longer = index.with_range(dim, index.start[dim], index.stop[dim] + 1)
        step = signature.cost("flops", longer) - signature.cost("flops", index)
        assert step == pytest.approx(signature.marginal_cost("flops", index, dim))
    halves = [signature.cost("flops", box) for box in index.split(0, 2)] if index.rank and index.shape[0] > 1 else []
    assert not halves or sum(halves) == pytest.approx(signature.cost("flops", index))


@pytest.mark.parametrize("name", TABLE)
def test_what_does_not_fit_is_refused_in_its_own_words(name):
    with pytest.raises(GraphError) as caught:
        TABLE[name].bad()
    first, *rest = str(caught.value).splitlines()
    asked = {"linear_relu": "linear", "fused": "add"}.get(name, name)
    assert first.startswith(f"{asked}(") and rest  # says what was asked, and what was given or would be legal


@pytest.mark.parametrize("name", TABLE)
def test_it_has_a_gradient_or_a_reason(name):
    assert (name in GRADIENTS) != (name in WITHOUT_GRADIENT)
    tensor, operation = operation_of(name)
    wrt = [t for _, t in operation.inputs if t.dtype.kind == "f"]
    if name in GRADIENTS:
        grads = tw.grad(tw.sum(tensor), wrt)
        assert [g.type for g in grads] == [t.type for t in wrt]
        tw.verify(tw.Graph.of(*grads))


COMPOSED = {
    "mean", "variance", "standard_deviation", "logsumexp", "softmax", "log_softmax", "layer_norm", "rms_norm", "gelu",
    "attention", "attention_in_parts", "reduce_in_parts", "average_pool", "stencil",
}  # fmt: skip


def test_every_public_function_of_tensors_says_what_it_does():
    for name in (*TABLE, *COMPOSED):
        function = getattr(tw, name, None)
        if function is not None:
            assert inspect.getdoc(function), name
