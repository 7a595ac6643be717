"""NumPy's functions on tensors: the operators of their names, or a refusal that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tileweave import graph as g
from tileweave.errors import GraphError

A = np.arange(6.0).reshape(2, 3)

SAME: list[Callable[[Any], Any]] = [
    lambda x: A + x,
    lambda x: A // (x + 1),
    lambda x: A.T @ x,
    lambda x: np.less_equal(A, x),
    lambda x: np.float32(2) * x,
    np.exp,
    np.sqrt,
    np.negative,
    np.absolute,
    lambda x: np.maximum(x, 2),
    lambda x: np.power(2, x),
    np.sum,
    np.prod,
    np.max,
    np.min,
    lambda x: np.sum(x, axis=0, keepdims=True),
    lambda x: np.mean(x, 0),
    lambda x: np.var(x, axis=1),
    np.std,
    lambda x: np.argmax(x, axis=1),
    lambda x: np.argmin(x, axis=0),
    lambda x: np.sum(x, dtype="f4"),
    lambda x: np.var(x, ddof=1),
    lambda x: np.std(a=x, axis=0, keepdims=True),
    lambda x: np.concatenate([x, A], axis=1),
    lambda x: np.transpose(x, (1, 0)),
    lambda x: np.expand_dims(x, (0, 2)),
    lambda x: np.squeeze(x[:1], 0),
    lambda x: np.flip(x, 1),
    lambda x: np.broadcast_to(x, (4, 2, 3)),
    lambda x: np.pad(x, ((0, 1), (2, 0))),
    lambda x: np.einsum("ij,kj->ik", x, A),
    lambda x: np.where(np.less(x, 3), x, -1.0),
    lambda x: np.einsum("ij->j", x, optimize=True),
    lambda x: np.pad(x, 1, constant_values=3),
    lambda x: np.zeros_like(x) + np.ones_like(x),
    lambda x: x.cumsum(0) + x.clip(1, 3).round(),
    lambda x: x.any(axis=1),
    lambda x: x.flatten() * x.ravel() + x.reshape(-1) + x.reshape(3, 2).swapaxes(0, 1).ravel(),
    lambda x: x[None].squeeze(0).take([1, 0], 1),
    lambda x: x.argsort(1),
    lambda x: (x > 2).all(1, keepdims=True),
]


@pytest.mark.parametrize("function", SAME)
def test_numpys_functions_make_tensors(function: Callable[[Any], Any]) -> None:
    made = function(g.as_tensor(A))
    assert isinstance(made, g.Tensor)
    np.testing.assert_allclose(np.asarray(made), function(A), rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (np.cbrt, "np.cbrt(tensor): NumPy does not compute tensors\n  legal  np.cbrt of np.asarray(tensor)"),
        (np.add.reduce, "np.add.reduce(tensor): NumPy does not"),
        (lambda x: np.add(x, 1, out=A.copy()), "legal  tileweave.graph.add, or np.add of np.asarray(tensor)"),
        (lambda x: np.equal(x, A), "legal  tileweave.graph.equal"),
        (lambda x: x == A, "legal  tileweave.graph.equal"),
        (lambda x: np.sum(x, 0, None, None, True), "sum(tensor, ..): too many positional arguments"),
        (lambda x: np.where(x > 1), "where(tensor, ..): missing a required argument: 'x'"),
        (lambda x: np.max(x, initial=3.0), "max(tensor, ..): initial=3.0 is NumPy's own"),
        (lambda x: np.linalg.svd(x), "np.svd(tensor): no operator has this meaning"),
        (lambda x: np.nanmean(x), "legal  np.nanmean of np.asarray(tensor), which evaluates it and has no gradient"),
        (lambda x: x != 3, "legal  tileweave.graph.not_equal(x, y) for the elements, `is` for the tensors"),
        (lambda x: x == 3, "legal  tileweave.graph.equal(x, y)"),
        (lambda x: x != g.as_tensor(A), "tensors are values"),
        (lambda x: x.item(), "tensor.item(): the tensor has 6 elements"),
        (lambda x: x.sum(where=A > 0), "is NumPy's own"),
    ],
)
def test_what_is_no_operator_is_refused(function: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(GraphError) as caught:
        function(g.as_tensor(A))
    assert said in str(caught.value)


def test_subclasses_of_arrays_are_read_as_arrays_and_masked_ones_refused() -> None:
    class Doubled(np.ndarray[Any, Any]):
        def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("a subclass has no say in what a graph means")

    x = g.as_tensor(A.view(Doubled))
    np.testing.assert_array_equal(g.sum(x * x, axis=1), (A * A).sum(axis=1))
    masked = np.ma.masked_array(A, A > 2)
    for call in (lambda: g.as_tensor(masked), lambda: g.as_tensor(A) + masked, lambda: g.linear(masked, A.T, A[0, :2])):
        with pytest.raises(GraphError, match="masked array, whose mask would be lost"):
            call()


def test_an_array_of_the_base_class_is_kept_itself() -> None:
    source = g.as_tensor(A).producer
    assert isinstance(source, g.Source) and isinstance(source.data, g.ArrayData) and source.data.array is A


def test_a_refusal_names_the_function_that_was_called() -> None:
    with pytest.raises(GraphError, match=r"^transpose\(x, axes\): \(0, 0\) is not a permutation"):
        g.transpose(g.as_tensor(A), (0, 0))


def test_no_function_of_numpy_cuts_a_gradient_in_silence() -> None:
    """Every function that NumPy lets a tensor answer stays a tensor, is refused, or asks for a value in plain sight."""
    x = g.as_tensor(A)
    (slope,) = g.grad(g.sum(np.concatenate([x * x, x])), [x])
    np.testing.assert_array_equal(slope, 2 * A + 1)
    assert np.allclose(x, A) and np.array_equal(x, A) and not np.array_equal(x, A + 1)
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((2, 3), 2, 6)
    calls: list[Callable[[Any], Any]] = [
        np.sort, np.cumsum, np.diff, np.median, np.ravel, np.atleast_2d, np.linalg.norm, np.fft.fft, np.unique, np.dot,
        np.nonzero, np.trace, np.gradient, np.percentile, np.copy, np.vdot, np.round, np.interp, np.roll, np.cov,
    ]  # fmt: skip
    for call in calls:
        try:
            made = call(x)
        except (GraphError, TypeError):
            continue
        assert isinstance(made, g.Tensor), call


def test_a_scalar_is_read_where_a_number_is_asked_for() -> None:
    total = g.sum(g.as_tensor(A))
    assert float(total) == 15.0 and int(total) == 15 and total.item() == 15.0 and type(total.item()) is float
    assert A[g.argmax(g.as_tensor([1, 5]))].tolist() == A[1].tolist()
    with pytest.raises(TypeError, match="only a tensor of integers"):
        range(total)  # type: ignore[arg-type]


def test_identity_is_what_equality_means() -> None:
    x, y = g.as_tensor(A), g.as_tensor(A.copy())
    assert x == x and x is not y and len({x, y, x}) == 2 and y in [x, y]
    assert (x == y) is False and (x == "x") is False


def test_selectors_take_arrays() -> None:
    for made, expected in (
        (g.flip(A, 0), A[::-1]),
        (g.concat([A, g.as_tensor(A)]), np.concatenate([A, A])),
        (g.interleave([A, -A]), np.stack([A, -A], 1).reshape(4, 3)),
        (g.permute(A, (1, 0)), A.T),
        (g.select(A, 1, 2), A[:, 2]),
        (g.unsqueeze(A, 0), A[None]),
        (g.squeeze(A[None]), A),
        (g.broadcast_to([1, 2], (2, 2)), [[1, 2], [1, 2]]),
        (g.pad([1], 1), [0, 1, 0]),
        (g.copies([1], 3), [1, 1, 1]),
        (g.repeat([1, 2], 2), [1, 1, 2, 2]),
        (g.stride(A, 2, 1), A[:, ::2]),
        (g.getitem(A, (0, slice(1, None))), A[0, 1:]),
    ):
        np.testing.assert_array_equal(made, expected)


def test_python_asks_for_elements_as_of_arrays() -> None:
    t = g.as_tensor(A)
    assert (t.item(1), t.item(-1), t.item(0, 1)) == (A.item(1), A.item(-1), A.item(0, 1))
    assert t.tolist() == A.tolist()
    for mine, theirs in zip(divmod(t, 2), divmod(A, 2), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), theirs)
    np.testing.assert_array_equal(np.asarray(round(t)), A.round())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: t.__setitem__(0, 1), "tensor[key] = value: a tensor is a value, which nothing changes\n  tensor "),
        (lambda t: 3.0 in t, "value in tensor: a tensor is not searched before it is run\n  legal "),
        (lambda t: bool(t), "bool(tensor): a tensor has no truth value before it is run\n  legal "),
        (lambda t: list(t), "iter(tensor): a tensor is not iterated\n  legal "),
    ],
)
def test_what_python_cannot_do_to_a_value_says_what_to_do(call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises((GraphError, TypeError)) as caught:
        call(g.as_tensor(A))
    assert str(caught.value).startswith(said) and isinstance(caught.value, TypeError)
    assert isinstance(caught.value, GraphError)
