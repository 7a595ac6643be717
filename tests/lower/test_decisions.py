"""What computes an operation is decided once per kind: a model is planned again for every extent that it meets."""

import importlib

import pytest

from tileweave import graph as g
from tileweave import lower
from tileweave.backends.base import AnswersByKind, Decision, backend, register, unregister
from tileweave.lower.forms import planned_forms
from tileweave.planner import machines

execute = importlib.import_module("tileweave.lower.execute")  # a function has the same name


def operation(rows, columns=64):
    x = g.Tensor(g.Source(g.Hole("x"), g.TensorType((rows, columns), "float32"), "x"))
    return g.exp(g.add(x, 1)).producer


@pytest.fixture
def asked(monkeypatch):
    """The operations whose programs were made."""
    made = []
    whole = execute.whole_program
    monkeypatch.setattr(execute, "whole_program", lambda op, stage: made.append(op) or whole(op, stage))
    monkeypatch.setattr(execute, "_OF_KINDS", type(execute._OF_KINDS)())
    return made


def test_a_further_extent_asks_nobody(asked):
    first, second, small = (lower.decide(operation(n), "block") for n in (100, 300, 1))
    assert isinstance(backend("cpu"), AnswersByKind) and first == second and first.backend == "cpu"
    assert len(asked) == 2 and not small.backend  # few elements are NumPy's: that does depend on extents


def test_long_sums_are_another_kind(asked):
    def product(n):
        a, b = (g.Tensor(g.Source(g.Hole(k), g.TensorType((4, n), "float32"), k)) for k in "ab")
        return g.einsum("ik,jk->ij", a, b).producer

    short, long = (lower.decide(product(n), "block") for n in (1 << 10, 1 << 20))
    assert len(asked) == 2 and short != long


class Picky:
    """A backend that looks at extents."""

    name = "picky"

    def supports(self, program):
        odd = any(axis.extent % 2 for axis in program.axes)
        return Decision("" if odd else "even", "odd" if odd else "", "" if odd else self.name)


def test_backends_that_look_at_extents_are_asked_each_time(asked):
    register(Picky())
    try:
        found = [lower.decide(operation(n), "block").backend for n in (100, 301, 300)]
        assert found == ["picky", "cpu", "picky"] and len(asked) == 3
    finally:
        unregister("picky")


def test_a_chain_that_grows_asks_when_an_operator_is_new(asked):
    """Not for each operation that it takes in: a quantised model's chains have some twenty of them."""
    x = g.Tensor(g.Source(g.Hole("x"), g.TensorType((100, 64), "float32"), "x"))
    y = x
    for k in range(8):
        y = g.add(g.exp(y), k)
    (only,) = next(planned_forms(g.Graph.of(y), machines(1))).operations
    steps = only.parameter("program")
    assert len(steps) == 16 and lower.decide(only, "block").backend == "cpu"
    assert len([one for one in asked if one.operator == "fused"]) <= 3
