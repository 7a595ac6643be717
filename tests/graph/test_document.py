"""Graphs as JSON: round trips, the schema, and refusals that say where."""

import json

import numpy as np
import pytest
from document_schema import schema
from random_graphs import random_graph, random_partitions

from tileweave import graph as tw
from tileweave.errors import VerifyError
from tileweave.graph import from_json, to_json

jsonschema = pytest.importorskip("jsonschema", reason="the schema is checked with jsonschema")


def example():
    x = tw.Tensor(tw.Source(tw.FileData("images.npy", "npy"), tw.TensorType((6, 4), "float32"), "images"))
    w = tw.Tensor(tw.Source(tw.Hole(), tw.TensorType((4, 3), "float32"), "w", 1))
    h = tw.relu(tw.linear(x, w, np.arange(3, dtype="float32")))
    first = tw.SequencePoint((tw.Sink(h[::-1], tw.FileTarget("head.npz", "npz", "h", True)),))
    plain = tw.where(h > 0, h, -np.inf).producer
    late = tw.Operation(
        plain.operator, plain.index, plain.inputs, plain.outputs, plain.parameters, plain.signature, (first,)
    )
    constants = tw.concat([tw.full((1, 3), v, "float32") for v in (np.nan, np.inf, -0.0, 1e-30)])
    return tw.Graph(
        (tw.SequencePoint((tw.Sink(tw.Tensor(late), tw.MemoryTarget(), 2), tw.Sink(constants, tw.MemoryTarget()))),)
    )


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_random_graphs_come_back(dtype):
    check = jsonschema.Draft202012Validator(schema())
    for seed in range(6):
        made = random_graph(seed, dtype)
        graph = tw.Graph.of(*(v.tensor for v in made))
        sharded = tw.expand(graph, random_partitions(np.random.default_rng(seed), graph, 2))
        for one in (graph, sharded):
            text = to_json(one)
            check.validate(json.loads(text))
            again = from_json(text)
            assert to_json(again) == text
            for got, expected in zip(again.sinks, one.sinks, strict=True):
                np.testing.assert_array_equal(*tw.evaluate([got.tensor, expected.tensor]))


def test_a_graph_without_arrays_comes_back_as_the_same_object():
    graph = example()
    text = to_json(graph, arrays="omit")
    again = from_json(text)
    assert to_json(again, arrays="omit") == text
    assert from_json(text) is again
    assert [o.operator for o in again.operations] == [o.operator for o in graph.operations]
    assert isinstance(next(s for s in again.nodes() if isinstance(s, tw.Source) and not s.name).data, tw.Hole)


def test_arrays_that_are_left_out_stay_apart():
    one, two = (tw.as_tensor(np.full((2, 3), k)) for k in (1.0, 2.0))
    named = [tw.Tensor(tw.Source(tw.ArrayData(np.full((2, 3), k)), one.type, "w")) for k in (3.0, 4.0)]
    hole = tw.Tensor(tw.Source(tw.Hole("source0"), one.type))
    graph = tw.Graph.of((one - two) * (named[0] - named[1]) + hole)
    text = to_json(graph, arrays="omit")
    again = from_json(text)
    sources = [node for node in again.nodes() if isinstance(node, tw.Source)]
    assert len(sources) == 5 and len(set(sources)) == 5
    assert to_json(again) == to_json(again, arrays="omit") == text
    assert "source(no data: source" in str(again) and "source('w', no data)" in str(again)
    arrays = [np.full((2, 3), float(k)) for k in (1, 2, 3, 4, 5)]
    (got,) = tw.evaluate([again.sinks[0].tensor], dict(zip(sources, arrays, strict=True)))
    np.testing.assert_array_equal(got, (1 - 2) * (3 - 4) + 5.0)


def test_arrays_of_bfloat16_come_back():
    import ml_dtypes

    array = np.array([1.5, -2.0, np.nan], ml_dtypes.bfloat16)
    again = from_json(to_json(tw.Graph.of(tw.as_tensor(array) * 2)))
    (source,) = [node for node in again.nodes() if isinstance(node, tw.Source)]
    assert source.data.array.tobytes() == array.tobytes() and source.data.array.dtype == array.dtype


def test_the_text_is_pinned(golden):
    text = to_json(example())
    golden("graph_document.json", text)
    jsonschema.validate(json.loads(text), schema())


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            {"format": "tileweave.graph", "version": 1, "nodes": [{"id": "x"}], "observe": []}, schema()
        )


def test_numbers_keep_their_type_and_bits():
    values = (1, 1.0, True, -0.0, 1e300, float("nan"), float("-inf"), "text", None, (1, (2.0, False)))
    node = tw.Selector("full", (), tw.TensorType((), "float64"), (("value", 0.0), ("other", values)))
    again = from_json(to_json(tw.Graph.of(tw.Tensor(node))), check=False)
    assert again.sinks[0].tensor.producer is node


def changed(change):
    """The example's document with a change, and its nodes by id."""
    data = json.loads(to_json(example()))
    nodes = {node["id"]: node for node in data["nodes"]}
    change(data, nodes)
    return json.dumps(data)


def deep(levels):
    return [] if not levels else [deep(levels - 1)]


def swap(data, nodes):
    """Puts an operation before what it depends on: the closest that a document comes to a cycle."""
    order = [node["id"] for node in data["nodes"]]
    place = order.index("operation0")
    data["nodes"].insert(0, data["nodes"].pop(place))


BAD = {
    "json": lambda: "{",
    "constant": lambda: '{"format": NaN}',
    "repeated key": lambda: '{"format": 1, "format": 2}',
    "list": lambda: "[]",
    "missing": lambda: '{"format": "tileweave.graph"}',
    "format": lambda: changed(lambda d, n: d.update(format="other")),
    "version": lambda: changed(lambda d, n: d.update(version=2)),
    "unknown field": lambda: changed(lambda d, n: n["sink0"].update(colour="red")),
    "missing field": lambda: changed(lambda d, n: n["sink0"].pop("tensor")),
    "unknown kind": lambda: changed(lambda d, n: n["sink0"].update(kind="drain")),
    "no kind": lambda: changed(lambda d, n: n["sink0"].pop("kind")),
    "no such node": lambda: changed(lambda d, n: n["sink0"].update(tensor="t99")),
    "another node": lambda: changed(lambda d, n: n["sink0"].update(tensor="source0")),
    "later node": lambda: changed(swap),
    "same id": lambda: changed(lambda d, n: n["sink1"].update(id="sink0")),
    "text": lambda: changed(lambda d, n: n["operation0"].update(operator=3)),
    "integer": lambda: changed(lambda d, n: n["operation0"]["index"].update(shape=[1.5])),
    "bool extent": lambda: changed(lambda d, n: n["operation0"]["index"].update(shape=[True])),
    "negative extent": lambda: changed(lambda d, n: n["source0"]["type"].update(shape=[-1])),
    "box": lambda: changed(lambda d, n: n["operation0"]["index"].update(start=[0])),
    "dtype": lambda: changed(lambda d, n: n["source0"]["type"].update(dtype="float33")),
    "unsupported dtype": lambda: changed(lambda d, n: n["source0"]["type"].update(dtype="complex64")),
    "nested too deep": lambda: changed(lambda d, n: n["operation0"].update(parameters=[["p", deep(900)]])),
    "parameter": lambda: changed(lambda d, n: n["operation0"].update(parameters=[["equation", "ik,k"]])),
    "data": lambda: changed(lambda d, n: n["source0"].update(data={"kind": "tape"})),
    "npy": lambda: changed(lambda d, n: n["source0"].update(data={"kind": "array", "npy": "AAAA"})),
    "base64": lambda: changed(lambda d, n: n["source0"].update(data={"kind": "array", "npy": "?"})),
    "target": lambda: changed(lambda d, n: n["sink0"].update(target=None)),
    "overwrite": lambda: changed(lambda d, n: n["sink0"]["target"].update(overwrite=1)),
    "pair": lambda: changed(lambda d, n: n["operation0"].update(inputs=[["x"]])),
    "special": lambda: changed(lambda d, n: n["operation0"].update(parameters=[["p", {"float": "big"}]])),
    "cost": lambda: changed(lambda d, n: n["signature0"].update(costs=[["flops", "many"]])),
    "projection": lambda: changed(lambda d, n: n["signature0"]["outputs"][0][1].update(shape=[])),
    "observed": lambda: changed(lambda d, n: d.update(observe=["sink0"])),
    "rule": lambda: changed(lambda d, n: n["operation0"].update(operator="no such operator")),
}


def test_refusals_say_where(golden):
    text = []
    for name, make in BAD.items():
        with pytest.raises(VerifyError) as caught:
            from_json(make())
        assert caught.value.path
        text.append(f"## {name}\n{caught.value}\n")
    golden("graph_document_errors.txt", "\n".join(text))


def test_without_check_a_broken_rule_is_read():
    graph = from_json(BAD["rule"](), check=False)
    assert any(o.operator == "no such operator" for o in graph.operations)


def test_a_deep_chain_comes_back():
    y = tw.as_tensor(np.ones(2))
    for _ in range(1500):
        y = -y
    text = to_json(tw.Graph.of(y))
    assert len(from_json(text, check=False).operations) == 1500
