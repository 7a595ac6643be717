"""Every rule of a well-formed graph: one bad graph each, its message, and no false alarm."""

from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph

from tileweave import graph as tw
from tileweave.errors import VerifyError
from tileweave.graph.verify import RULES
from tileweave.space import AffineMap, Box, Projection

X = tw.as_tensor(np.arange(12.0).reshape(3, 4))
ADD = tw.add(X, X).producer
SUM = tw.sum(X, 0).producer
VIEW = tw.transpose(X).producer
JOIN = tw.concat([X, X], 0).producer


def observe(node, output="out"):
    return tw.Graph.of(tw.Tensor(node, output))


def with_output(operation, **changes):
    """The operation whose signature has another output projection or other reductions."""
    return replace(operation, signature=replace(operation.signature, **changes))


F8 = np.dtype("float64")
BAD = {
    "operation.operator-known": [observe(replace(ADD, operator="addition"))],
    "operation.signature-agrees": [
        observe(replace(ADD, index=Box.of((3, 4, 5)))),
        observe(replace(ADD, inputs=ADD.inputs[:1])),
        observe(replace(ADD, inputs=tuple(reversed(ADD.inputs)))),
    ],
    "operation.regions-fit": [
        observe(replace(ADD, inputs=(("x0", X[:2]), ("x1", X)))),
        observe(replace(ADD, outputs=(("out", tw.TensorType((3, 5), F8)),))),
    ],
    "operation.outputs-covered": [
        observe(with_output(SUM, reductions=())),
        observe(with_output(ADD, reductions=((0, "sum"),))),
        observe(  # neighbours overlap: each index point writes two elements, one step apart
            replace(
                with_output(ADD, outputs=(("out", Projection(AffineMap.identity(2), (2, 1))),)),
                outputs=(("out", tw.TensorType((4, 4), F8)),),
            )
        ),
        observe(  # the box has holes
            replace(
                with_output(ADD, outputs=(("out", Projection(AffineMap(((2, 0), (0, 1)), (0, 0)), (1, 1))),)),
                outputs=(("out", tw.TensorType((5, 4), F8)),),
            )
        ),
    ],
    "operation.block-agrees": [
        observe(replace(ADD, outputs=(("out", tw.TensorType((3, 4), np.dtype("float32"))),))),
        observe(replace(SUM, parameters=(("axes", (7,)),))),
        observe(replace(SUM, parameters=())),
        observe(
            replace(
                with_output(ADD, outputs=(("y", ADD.signature.output("out")),)),
                outputs=(("y", tw.TensorType((3, 4), F8)),),
            ),
            "y",
        ),
    ],
    "operation.reductions-declared": [
        observe(with_output(SUM, reductions=((0, "median"),))),
        observe(with_output(SUM, reductions=((0, "sum"), (5, "sum")))),
    ],
    "operation.names-differ": [observe(replace(ADD, inputs=(("x0", X), ("x0", X))))],
    "selector.kind-known": [observe(replace(VIEW, kind="mirror"))],
    "selector.inside": [
        observe(replace(VIEW, out=tw.TensorType((5, 3), F8))),
        observe(replace(VIEW, out=tw.TensorType((4, 3), np.dtype("int64")))),
        observe(replace(JOIN, out=tw.TensorType((7, 4), F8))),
        observe(replace(JOIN, inputs=(("x0", X), ("x1", X[:, :2])))),
        observe(replace(VIEW, inputs=(("x", X[0]),))),
    ],
    "tensor.output-exists": [tw.Graph.of(replace(ADD, inputs=(("x0", tw.Tensor(ADD, "y")), ("x1", X))))],
    "source.array-matches": [
        observe(tw.Source(X.producer.data, tw.TensorType((3, 5), F8))),
        observe(tw.Source(X.producer.data, tw.TensorType((3, 4), np.dtype("float32")))),
    ],
    "node.inputs-are-tensors": [
        observe(replace(ADD, inputs=(("x0", tw.Sink(X, tw.MemoryTarget())), ("x1", X)))),
        observe(replace(VIEW, inputs=(("x", tw.Sink(X, tw.MemoryTarget())),))),
    ],
    "point.holds-work": [tw.Graph((tw.SequencePoint((X,)),))],
    "graph.targets-differ": [
        tw.Graph.of(tw.Sink(X, tw.FileTarget("out.npy", "npy")), tw.Sink(X * 2, tw.FileTarget("out.npy", "npy")))
    ],
}


def test_every_rule_has_a_bad_graph():
    assert set(BAD) == set(RULES)


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_graph_breaks_its_rule(rule):
    for graph in BAD[rule]:
        assert rule in {problem.facts["rule"] for problem in tw.problems(graph)}
        with pytest.raises(VerifyError) as caught:
            tw.verify(graph)
        assert caught.value.rule in {p.facts["rule"] for p in tw.problems(graph)} and caught.value.path.startswith(
            "node "
        )


def test_messages(golden):
    text = []
    for rule, graphs in BAD.items():
        for graph in graphs:
            text += [str(p) for p in tw.problems(graph) if p.facts["rule"] == rule][:1]
    golden("graph_verify_errors.txt", "\n\n".join(text) + "\n")


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_well_formed_graphs_pass(dtype):
    for seed in range(40):
        graph = tw.Graph.of(*(v.tensor for v in random_graph(seed, dtype)))
        assert tw.problems(graph) == []


def test_a_good_gradient_passes():
    loss = tw.sum(tw.softmax(tw.linear(X, np.ones((4, 2)), np.ones(2))) ** 2)
    assert tw.problems(tw.Graph.of(loss, tw.grad(loss, X))) == []
