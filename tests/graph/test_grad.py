"""Gradients against central finite differences."""

import numpy as np
import pytest
from arrays import same

from tileweave import graph as tw
from tileweave.errors import DtypeError, GraphError

RNG = np.random.default_rng(0)


def inputs(*shapes, low=-2.0, high=2.0):
    return [RNG.uniform(low, high, shape) for shape in shapes]


def numeric(function, arrays, weight, step=1e-6):
    """The gradient of sum(function * weight) by central differences, element by element."""

    def value(changed):
        (out,) = tw.evaluate([function(*map(tw.as_tensor, changed))])
        return float(np.sum(out * weight))

    grads = []
    for k, array in enumerate(arrays):
        grad = np.zeros(array.shape)
        for place in np.ndindex(*array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * step
                ends.append(value([*arrays[:k], moved, *arrays[k + 1 :]]))
            grad[place] = (ends[0] - ends[1]) / (2 * step)
        grads.append(grad)
    return grads


def check(function, *arrays, rtol=1e-6):
    """The graph's gradient is the numeric one, for a random weight of every element of the result."""
    tensors = [tw.as_tensor(a) for a in arrays]
    y = function(*tensors)
    weight = RNG.normal(size=y.shape)
    grads = tw.grad(tw.sum(tw.multiply(y, weight)), tensors)
    tw.verify(tw.Graph.of(*grads))
    for got, expected in zip(grads, numeric(function, list(arrays), weight), strict=True):
        assert got.dtype == np.float64
        same(got, expected, rtol=rtol)


POSITIVE = {"log", "sqrt"}


@pytest.mark.parametrize("name", ["negative", "absolute", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "sign"])
def test_unary(name):
    low = 0.5 if name in POSITIVE else -2.0
    check(getattr(tw, name), *inputs((3, 4), low=low))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder"])
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), (2,))])
def test_binary_with_broadcasting(name, shapes):
    check(getattr(tw, name), *inputs(*shapes, low=0.5, high=3.0))


def test_power_at_zero():
    x = tw.as_tensor(np.array([0.0, 0.0, 2.0]))
    same(tw.grad(tw.sum(x**2), x), [0.0, 0.0, 4.0])
    same(tw.grad(tw.sum(tw.power(x, 0.0)), x), [0.0, 0.0, 0.0])
    same(tw.grad(tw.sum(tw.power(x, x + 1)), x), [1.0, 1.0, 2.0**3 * (np.log(2) + 3 / 2)], rtol=1e-12)


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)])
@pytest.mark.parametrize("name", ["sum", "product", "max", "min", "mean"])
def test_reductions(name, axis):
    check(lambda x: getattr(tw, name)(x, axis), *inputs((2, 3, 2)))
    check(lambda x: getattr(tw, name)(x, axis, keepdims=True), *inputs((2, 3, 2)))


def test_product_beside_zeros():
    x = tw.as_tensor(np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 3.0]]))
    same(tw.grad(tw.sum(tw.product(x, 1)), x), [[6.0, 0, 0], [0, 0, 0], [6.0, 3.0, 2.0]])


def test_ties_share_the_gradient():
    x = tw.as_tensor(np.array([1.0, 3.0, 3.0]))
    same(tw.grad(tw.max(x), x), [0.0, 0.5, 0.5])
    same(tw.grad(tw.sum(tw.maximum(x, 3.0)), x), [0.0, 0.5, 0.5])


@pytest.mark.parametrize("function", [tw.softmax, tw.log_softmax])
def test_softmax(function):
    check(function, *inputs((3, 4)), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_is_differentiated_as_a_whole(axis):
    """Its greatest element shifts it, and is not differentiated, also where several are greatest."""
    x = np.random.default_rng(7).standard_normal((4, 5, 6))
    x[0, 0, :2] = x[1, 0, 0] = x[0, 1, 0] = 9.0
    weights = np.random.default_rng(8).standard_normal(x.shape)
    power = np.exp(x - x.max(axis, keepdims=True))
    y = power / power.sum(axis, keepdims=True)
    s = tw.as_tensor(x)
    for function, want in (
        (tw.softmax, y * (weights - (weights * y).sum(axis, keepdims=True))),
        (tw.log_softmax, weights - y * weights.sum(axis, keepdims=True)),
    ):
        slope = tw.grad(tw.sum(function(s, axis) * weights), s)
        same(slope, want, rtol=1e-10)
        assert "equal" not in {operation.operator for operation in tw.Graph.of(slope).operations}
    # what is read beside the softmax keeps its own share
    shifted = s - tw.max(s, axis, keepdims=True)
    e = tw.exp(shifted)
    both = tw.sum(e / tw.sum(e, axis, keepdims=True) * weights) + tw.sum(tw.tanh(e))
    assert "equal" in {operation.operator for operation in tw.Graph.of(tw.grad(both, s)).operations}


def test_where():
    condition = np.array([[True], [False], [True]])
    check(lambda x, y: tw.where(condition, x, y), *inputs((3, 4), (4,)))


@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((2, 3, 4), (4, 2)), ((2, 1, 3, 4), (5, 4, 2))]
)
def test_matmul(a, b):
    check(tw.matmul, *inputs(a, b))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_linear(batch):
    check(tw.linear, *inputs((*batch, 4), (4, 2), (2,)))


@pytest.mark.parametrize(
    "case",
    [("ij,jk->ik", (2, 3), (3, 4)), ("ii->i", (3, 3)), ("ii", (3, 3)), ("iij->ji", (2, 2, 3)), ("ij->", (2, 3)),
     ("i,j->ij", (2,), (3,)), ("ij,jk,kl->il", (2, 3), (3, 2), (2, 2)), ("ij,ij->i", (2, 3), (2, 3)),
     ("i,ij->j", (2,), (2, 3)), ("aab,b->a", (2, 2, 3), (3,)), ("...i,...i->...", (2, 1, 3), (2, 3))],
    ids=lambda case: case[0],
)  # fmt: skip
def test_einsum(case):
    equation, *shapes = case
    check(lambda *xs: tw.einsum(equation, *xs), *inputs(*shapes))


VIEWS = {
    "permute": lambda x: tw.permute(x, (2, 0, 1)),
    "flip": lambda x: tw.flip(x, (0, 2)),
    "slice": lambda x: x[1:3, 1:, ::2],
    "strided": lambda x: x[::2, ::-1, 3:0:-2],
    "select": lambda x: tw.select(x, 1, 2),
    "unsqueeze": lambda x: tw.unsqueeze(x, 1),
    "squeeze": lambda x: tw.squeeze(x[:, 1:2]),
    "broadcast": lambda x: tw.broadcast_to(x[:, :1], (2, 4, 5, 4)),
    "concat": lambda x: tw.concat([x, x * 2, x[1:]], 0),
    "empty": lambda x: tw.concat([x, x[:0]], 0),
    "newaxis": lambda x: x[None, ..., -1, None],
}


@pytest.mark.parametrize("name", VIEWS)
def test_selectors(name):
    check(VIEWS[name], *inputs((4, 3, 4)))


def test_a_small_network():
    x = RNG.normal(size=(5, 3))
    label = np.eye(2)[RNG.integers(0, 2, 5)]

    def loss(w1, b1, w2, b2):
        hidden = tw.tanh(tw.linear(x, w1, b1))
        return -tw.mean(tw.sum(label * tw.log_softmax(tw.linear(hidden, w2, b2)), 1))

    check(loss, *inputs((3, 4), (4,), (4, 2), (2,)), rtol=1e-5)


def test_gradient_of_intermediate_values_and_of_what_does_not_matter():
    x = tw.as_tensor(np.array([1.0, 2.0]))
    h = x * 3
    y = tw.sum(h * h)
    same(tw.grad(y, h), [6.0, 12.0])
    same(tw.grad(y, tw.as_tensor(np.ones(4))), np.zeros(4))
    same(tw.grad(y, [x, h])[0], [18.0, 36.0])
    same(tw.grad(tw.sum(tw.cast(tw.cast(x, "int64"), "float64")), x), [0.0, 0.0])


def test_gradients_keep_the_element_type():
    x = tw.as_tensor(np.array([1.0, 2.0], "float32"))
    for y in (tw.sum(tw.softmax(x) * 2), tw.sum(tw.cast(x, "float64") ** 2), tw.sum(tw.maximum(x, 0.5) / 3)):
        assert tw.grad(y, x).dtype == np.float32


def test_gradients_of_gradients():
    x = tw.as_tensor(np.array([0.3, -1.2]))
    first = tw.grad(tw.sum(tw.tanh(x)), x)
    t = np.tanh([0.3, -1.2])
    same(tw.grad(tw.sum(first), x), -2 * t * (1 - t * t), rtol=1e-12)


def test_a_deep_chain():
    x = tw.as_tensor(np.array([0.5]))
    y = x
    for _ in range(1000):
        y = y * 1.0 + 0.0
    same(tw.grad(tw.sum(y), x), [1.0])


def test_what_has_no_gradient_is_refused():
    x = tw.as_tensor(np.ones(3))
    with pytest.raises(GraphError, match="not a scalar"):
        tw.grad(x, x)
    with pytest.raises(DtypeError, match="no gradient"):
        tw.grad(tw.sum(tw.as_tensor(np.arange(3))), x)
    with pytest.raises(DtypeError, match="no gradient"):
        tw.grad(tw.sum(x), tw.as_tensor(np.arange(3)))
