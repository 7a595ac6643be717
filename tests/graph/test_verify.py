"""Every rule of a well-formed graph: one bad graph each, its message, and no false alarm."""

from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph

from tileweave import graph as tw
from tileweave.errors import VerifyError
from tileweave.graph.ir.resolve import SEGMENTS, Segment, register_assembly
from tileweave.graph.passes.verify import RULES
from tileweave.space import AffineMap, Box, Projection

X = tw.as_tensor(np.arange(12.0).reshape(3, 4))
ADD = tw.add(X, X).producer
SUM = tw.sum(X, 0).producer
VIEW = tw.transpose(X).producer
JOIN = tw.concat([X, X], 0).producer


def observe(node, output=None):
    """The graph of one output of a node; of the first where none is named."""
    return tw.Graph.of(tw.Tensor(node, output or next(iter(node.output_types), "out")))


def with_output(operation, **changes):
    """The operation whose signature has another output projection or other reductions."""
    return replace(operation, signature=replace(operation.signature, **changes))


def parameters(node, **changes):
    """The node's parameters with some of them changed."""
    return tuple({**dict(node.parameters), **changes}.items())


def halves(selector):
    """Two halves of a dimension in turn, as a third party's selector that assembles."""
    (_, x), n = selector.inputs[0], selector.out.shape[0] // 2
    yield Segment(0, n, x)
    yield Segment(n, selector.out.shape[0] - n, x, 3)


if "test_halves" not in SEGMENTS:
    register_assembly("test_halves", halves)


def stored(parts, shape):
    """Sinks of one file: (tensor, box) pairs."""
    target = tw.FileTarget("out.npy", "npy")
    return tw.Graph.of(*(tw.Sink(x, target, None, tw.SinkPart(box, shape)) for x, box in parts))


F8 = np.dtype("float64")
CUT = stored([(X[:2], Box((0, 0), (2, 4))), (X[2:], Box((2, 0), (1, 4)))], (3, 4))
MATMUL = tw.matmul(np.ones((2, 3)), np.ones((3, 3))).producer
NOISE = tw.uniform((5, 3), 1).producer
TURNED = Projection(AffineMap(((-1, 0), (0, 1)), (4, 0)), (1, 1))
SHEARED = Projection(AffineMap(((1, 0), (1, 1)), (0, 0)), (1, 1))
DIAGONAL = Projection(AffineMap(((1, 0), (1, 0)), (0, 0)), (1, 1))
HALVES = tw.Selector("test_halves", (("x", X),), tw.TensorType((3, 4), F8), (("dim", 0),))
STRIDED = tw.conv(np.ones((1, 1, 9)), np.ones((1, 1, 3)), stride=2).producer
CONV = tw.conv(np.ones((1, 4, 9, 9)), np.ones((6, 2, 3, 3)), groups=2).producer
POOL = tw.max_pool(np.ones((1, 2, 9, 9)), 3).producer
FUSED = tw.rewrite(tw.Graph.of(tw.relu(X + 1)), tw.OPTIMIZATIONS).graph.sinks[0].tensor.producer
RANGE = tw.arange(5).producer
ARGMAX = tw.argmax(X, 1).producer
DICE = tw.random_integers((5,), 1, 0, 6, np.int8).producer
BAD_PARAMETERS = [
    (ADD, {"depth": 1}),
    *((SUM, {"axes": axes}) for axes in (0, (7,), (-1,), (), (1, 0), (True,), ("0",), (0.0,), None)),
    *((MATMUL, {"equation": text}) for text in (
        "ik,kj", "ik->ij", "ikl,kj->ij", "ik,kj->iz", "ik,kj->ii", "i.,kj->ij", 3,
    )),
    *((tw.cast(X, np.float32).producer, {"dtype": name}) for name in ("float64", "int", None, 4)),
    *((CONV, {"stride": value}) for value in (1, (0, 1), (-1, 1), (1,), (1, 1, 1), (1.0, 1), "11")),
    *((CONV, {"dilation": value}) for value in ((0, 1), (9, 9), None)),
    *((CONV, {name: value}) for name in ("channels", "filters") for value in (0, -1, 5, "2", None)),
    *((CONV, {"groups": value}) for value in (0, 1, "2", None)),
    *((POOL, {name: value}) for name in ("window", "stride", "dilation") for value in ((0, 1), (3,), 3, "x")),
    (POOL, {"window": (30, 3)}),
    *((ARGMAX, {"axis": axis}) for axis in (2, -1, True, 1.0, "1", (1,))),
    *((RANGE, {name: value}) for name in ("start", "step") for value in ("1", None, float("inf"), True)),
    *((NOISE, {"seed": seed}) for seed in (-1, 1 << 64, 1.0, "1")),
    *((NOISE, {"shape": shape}) for shape in ((5,), (4, 3), (-5, 3), 5)),
    *((DICE, {"low": 127}, ), (DICE, {"span": 0}), (DICE, {"span": 200}), (DICE, {"low": 0.5})),
    *((FUSED, {"program": program}) for program in (
        (), 3, ("add",), (("add", (0, 1)),), (("matmul", (0, 1), "float64"),), (("add", (0,), "float64"),),
        (("add", (0, 9), "float64"),), (("add", (0, -1), "float64"),), (("add", (0, 1), "complex64"),),
        (("add", (0, 1), "float32"),),
    )),
]  # fmt: skip
JOIN_2, PAD = tw.interleave([X, X], 1).producer, tw.pad(X, [(1, 2), (0, 0)]).producer
REFLECT, REPEAT = tw.pad(X, [(1, 2), (0, 0)], "reflect").producer, tw.copies(X, 2).producer
BAD_SELECTORS = [
    *((VIEW, {"matrix": matrix}) for matrix in (
        ((0, 1),), ((1, 1), (0, 0)), ((1, 0), (1, 0)), ((0, 1.0), (1, 0)), ((0, True), (1, 0)), ((0,), (1,)), 3, None,
    )),
    *((VIEW, {"offset": offset}) for offset in ((0,), (0, 0, 0), (0, 0.5), None)),
    *((node, {"dim": dim}) for node in (JOIN, JOIN_2, PAD, REPEAT, HALVES) for dim in (2, -1, "0", None, True)),
    *((REPEAT, {"count": count}) for count in (3, -1, 10**9, 2.0)),
    *((PAD, {name: value}) for name in ("before", "after") for value in (-1, 10**9, 1.0)),
    *((PAD, {"mode": mode}) for mode in ("wrap", None, "reflect")),
    (PAD, {"value": "0"}),
    (REFLECT, {"mode": "constant"}),
    *((tw.full((), 1, dtype).producer, {"value": value}) for dtype, value in (
        ("int8", 200), ("int8", 1.0), ("bool", 1), ("float64", "1"), ("float64", None), ("uint8", -1),
    )),
    (tw.full((), 1).producer, {"other": 1}),
]  # fmt: skip
BAD = {
    "tensor.producer-makes": [tw.Graph.of(tw.Sink(tw.Tensor(tw.Sink(X, tw.MemoryTarget())), tw.MemoryTarget()))],
    "sink.stores-a-tensor": [
        tw.Graph.of(tw.Sink(ADD, tw.MemoryTarget())),
        tw.Graph.of(tw.Sink(None, tw.MemoryTarget())),
    ],
    "operation.after-points": [
        tw.Graph.of(tw.Tensor(replace(ADD, after=(X,)))),
        tw.Graph.of(tw.Tensor(replace(ADD, signature=X))),
    ],
    "graph.holds-points": [tw.Graph((X,)), tw.Graph((ADD,)), tw.Graph((tw.SequencePoint((ADD,)), 3))],
    "operation.operator-known": [observe(replace(ADD, operator="addition"))],
    "operation.signature-agrees": [
        observe(replace(ADD, index=Box.of((3, 4, 5)))),
        observe(with_output(ADD, inputs=ADD.signature.inputs[:1])),
        observe(with_output(ADD, dims=("d0",))),
    ],
    "operation.inputs-named": [
        observe(replace(ADD, inputs=ADD.inputs[:1])),
        observe(replace(ADD, inputs=tuple(reversed(ADD.inputs)))),
        observe(replace(tw.einsum("ij->ji", X).producer, inputs=())),
    ],
    "operation.parameters-fit": [
        observe(replace(operation, parameters=parameters(operation, **changes)))
        for operation, changes in BAD_PARAMETERS
    ]
    + [
        observe(replace(SUM, parameters=())),
        observe(replace(SUM, parameters=SUM.parameters * 2)),
    ],
    "operation.cuts-agree": [
        observe(replace(tw.sum(tw.as_tensor(np.ones((4, 4))), 0).producer, parameters=(("axes", (1,)),))),
        observe(replace(MATMUL, parameters=(("equation", "ik,jk->ij"),))),
        observe(replace(STRIDED, parameters=parameters(STRIDED, stride=(1,)))),
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
        observe(with_output(NOISE, outputs=(("out", TURNED),))),
        observe(with_output(tw.uniform((1, 3), 1).producer, outputs=(("out", SHEARED),))),
        observe(with_output(tw.uniform((3, 3), 1).producer, outputs=(("out", DIAGONAL),))),
        observe(  # the box has holes
            replace(
                with_output(ADD, outputs=(("out", Projection(AffineMap(((2, 0), (0, 1)), (0, 0)), (1, 1))),)),
                outputs=(("out", tw.TensorType((5, 4), F8)),),
            )
        ),
    ],
    "operation.block-agrees": [
        observe(replace(ADD, outputs=(("out", tw.TensorType((3, 4), np.dtype("float32"))),))),
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
    "node.names-differ": [
        observe(replace(ADD, inputs=(("x0", X), ("x0", X)))),
        observe(replace(JOIN, inputs=(("x0", X), ("x0", X)))),
    ],
    "node.type-supported": [
        observe(tw.Source(tw.Hole(), tw.TensorType((3,), np.dtype("complex64")))),
        observe(tw.Source(tw.Hole(), tw.TensorType((3,), np.dtype(">f8")))),
        observe(replace(VIEW, out=tw.TensorType((4, 3), np.dtype("datetime64[s]")))),
    ],
    "node.placed": [observe(replace(X.producer, placement=-1)), tw.Graph.of(tw.Sink(X, tw.MemoryTarget(), -2))],
    "signature.costs-are-amounts": [
        observe(with_output(ADD, costs=(("flops", float("nan")),))),
        observe(with_output(ADD, costs=(("flops", -1.0),))),
    ],
    "selector.kind-known": [observe(replace(VIEW, kind="mirror"))],
    "selector.inside": [
        observe(replace(VIEW, out=tw.TensorType((5, 3), F8))),
        observe(replace(VIEW, out=tw.TensorType((4, 3), np.dtype("int64")))),
        observe(replace(HALVES, out=tw.TensorType((4, 4), F8))),
        observe(replace(HALVES, inputs=(("x", X[:2]),))),
    ],
    "selector.inputs-named": [
        observe(replace(VIEW, inputs=())),
        observe(replace(VIEW, inputs=(("x", X), ("y", X)))),
        observe(replace(JOIN, inputs=())),
    ],
    "selector.parameters-fit": [
        observe(replace(JOIN, out=tw.TensorType((7, 4), F8))),
        observe(replace(JOIN, inputs=(("x0", X), ("x1", X[:, :2])))),
        observe(replace(JOIN, inputs=(("x0", X), ("x1", X[0])))),
        observe(replace(VIEW, inputs=(("x", X[0]),))),
        observe(replace(HALVES, parameters=())),
    ]
    + [observe(replace(selector, parameters=parameters(selector, **changes))) for selector, changes in BAD_SELECTORS],
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
    "point.parts-cover": [
        stored([(X[:2], Box((0, 0), (3, 4)))], (3, 4)),
        stored([(X[:2], Box((0, 0), (2, 4))), (X[1:], Box((1, 0), (2, 4)))], (3, 4)),  # an overlap
        stored([(X[:1], Box((0, 0), (1, 4))), (X[2:], Box((2, 0), (1, 4)))], (3, 4)),  # a gap
        stored([(X[:2], Box((0, 0), (2, 4))), (X[2:].astype("float32"), Box((2, 0), (1, 4)))], (3, 4)),
        stored([(X[:2], Box((0, 0), (2, 4))), (X[2:], Box((2, 0), (1, 4)))], (4, 4)),  # another shape
        stored(
            [(X[:, :2], Box((0, 0), (3, 2))), (X[:1, 2:], Box((0, 2), (1, 2))), (X[1:, 2:], Box((1, 2), (2, 2)))],
            (3, 4),
        ),
        tw.Graph(tuple(tw.SequencePoint((sink,)) for sink in CUT.sinks)),  # each part in a point of its own
        tw.Graph.of(CUT.sinks[0], replace(CUT.sinks[1], placement=1)),
    ],
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
        for graph in graphs[:: max(1, len(graphs) // 12)]:
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


def test_samples_outside_an_operators_domain_are_no_news():
    x = X[:2]  # a warning would be an error here
    for found in (tw.sqrt(x - 9.0) / (x - x), tw.log(x - x), 1.0 / (x - 1.0)):
        fused = tw.rewrite(tw.Graph.of(found), tw.OPTIMIZATIONS).graph
        assert [node.operator for node in fused.operations] == ["fused"]
        assert tw.verify(fused) is fused
