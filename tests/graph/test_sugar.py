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
]


@pytest.mark.parametrize("function", SAME)
def test_numpys_functions_make_tensors(function: Callable[[Any], Any]) -> None:
    made = function(g.as_tensor(A))
    assert isinstance(made, g.Tensor)
    np.testing.assert_allclose(np.asarray(made), function(A), rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (np.sin, "np.sin(tensor): NumPy does not compute tensors\n  legal  np.sin of np.asarray(tensor)"),
        (np.add.reduce, "np.add.reduce(tensor): NumPy does not"),
        (lambda x: np.add(x, 1, out=A.copy()), "legal  tileweave.graph.add, or np.add of np.asarray(tensor)"),
        (lambda x: np.equal(x, A), "legal  tileweave.graph.equal"),
        (lambda x: x == A, "legal  tileweave.graph.equal"),
        (lambda x: np.sum(x, dtype="f4"), "sum(tensor, ..): dtype='f4' is NumPy's own"),
        (lambda x: np.var(x, ddof=1), "ddof=1 is NumPy's own"),
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
