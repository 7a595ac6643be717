"""Graphs deeper than the interpreter's stack: nothing walks them by recursion."""

import pickle
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from tileweave import graph as tw
from tileweave.backends.base import Decision
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.rules import OPTIMIZATIONS
from tileweave.planner import machines, make_plan

DEEP = sys.getrecursionlimit() + 200
LENGTHS = [DEEP, pytest.param(10_000, marks=pytest.mark.slow)]
ARRAY = np.arange(4.0)


def additions(x, length):
    for k in range(length):
        x = x + float(k % 7)
    return x


def selectors(x, length):
    for k in range(length // 3):
        x = tw.concat([tw.flip(x), x[:1]])[1:] if k % 3 else tw.pad(tw.interleave([x, x]), 1)[1:-1:2]
    return x


def products(x, length):
    for _ in range(length // 2):
        x = tw.where(x > 3.0, x * 0.5, x)
    return x


CHAINS = {"additions": additions, "selectors": selectors, "products": products}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_evaluated_verified_printed_pickled_and_written(name, length):
    y = CHAINS[name](tw.as_tensor(ARRAY), length)
    graph = tw.verify(tw.Graph.of(y))
    (value,) = tw.evaluate([y])
    assert len(str(graph).splitlines()) >= length // 3
    assert tw.evaluate([pickle.loads(pickle.dumps(graph)).sinks[0].tensor])[0].tolist() == value.tolist()
    assert tw.evaluate([tw.from_json(tw.to_json(graph)).sinks[0].tensor])[0].tolist() == value.tolist()
    assert str(tw.explain(graph))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_chain_is_differentiated(length):
    x = tw.as_tensor(ARRAY)
    for name in ("additions", "selectors"):
        y = CHAINS[name](x, length // (10 if name == "selectors" else 1))
        assert np.asarray(tw.grad(tw.sum(y), x)).sum() == ARRAY.size


@pytest.mark.parametrize("length", LENGTHS)
def test_a_chain_is_planned_expanded_coalesced_and_fused(length):
    y = additions(tw.as_tensor(ARRAY), length)
    graph = tw.Graph.of(y)
    plan = make_plan(graph, machines(1), lambda operation, stage: Decision(""))
    assert len(plan.steps) > 0
    sharded = tw.expand(graph, {o: tw.partition(o, (2,)) for o in graph.operations})
    assert len(sharded.operations) == 2 * len(graph.operations)
    assert tw.coalesce(sharded) is graph
    assert rewrite(graph, OPTIMIZATIONS).complete


def test_a_chain_is_drawn():
    assert ElementTree.fromstring(tw.Graph.of(additions(tw.as_tensor(ARRAY), DEEP))._repr_svg_()).tag.endswith("svg")


def test_a_chain_of_sequence_points_is_walked():
    points: tuple[tw.SequencePoint, ...] = ()
    plain = tw.negative(ARRAY).producer
    for _ in range(DEEP):
        held = tw.Operation(
            plain.operator, plain.index, plain.inputs, plain.outputs, plain.parameters, plain.signature, points
        )
        points = (tw.SequencePoint((held,)),)
    graph = tw.verify(tw.Graph(points))
    assert len(graph.operations) == len(pickle.loads(pickle.dumps(graph)).operations) == DEEP
