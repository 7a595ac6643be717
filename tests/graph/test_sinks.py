"""Sinks that are cut: values, the way back, rules, refusals."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from arrays import values
from random_graphs import close, random_cuts, random_graph, random_partitions

from tileweave import graph as tw
from tileweave.errors import GraphError, VerifyError
from tileweave.graph.ir.svg import svg
from tileweave.graph.passes.shard import join_sinks, results
from tileweave.space import Box

RNG = np.random.default_rng(0)
A1, A2, B = (tw.as_tensor(values(RNG, shape, "int64")) for shape in ((5, 4), (5, 4), (4,)))
FILE = tw.FileTarget("C.npy", "npy")
ADD = tw.Graph.of(tw.Sink(tw.concat([A1, A2]) + B, FILE))


def cut(graph, parts):
    """Every operation and every sink of a graph, evenly."""
    return tw.expand(graph, {node: tw.partition(node, parts) for node in (*graph.operations, *graph.sinks)})


def written(graph):
    """The results as the sinks write them, element by element; each element once."""
    out = []
    for group in (group for point in graph.points for group in results(point)):
        whole = group[0].part.shape if group[0].part else group[0].tensor.shape
        made, count = np.zeros(whole, group[0].tensor.dtype), np.zeros(whole, int)
        for sink in group:
            box = sink.part.box if sink.part else sink.tensor.type.box
            place = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
            made[place] = np.asarray(sink.tensor)
            count[place] += 1
        assert (count == 1).all()
        out.append(made)
    return out


def test_the_sharded_add_of_the_document():
    """Two shards, each stored by its own sink; nothing is joined."""
    sharded = tw.verify(cut(ADD, (2, 1)))
    assert not any(isinstance(node, tw.Selector) for node in sharded.nodes())
    first, second = sharded.sinks
    assert (first.tensor.producer, second.tensor.producer) == sharded.operations
    assert str(first.part) == "[0:5, 0:4] of [10, 4]" and str(second.part) == "[5:10, 0:4] of [10, 4]"
    assert repr(second) == "<Sink int64[5, 4] -> C.npy [5:10, 0:4] of [10, 4]>"
    assert tw.coalesce(sharded) is ADD
    tw.check_sharding(sharded, ADD)
    np.testing.assert_array_equal(written(sharded)[0], np.concatenate([A1, A2]) + np.asarray(B), strict=True)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_random_cuts_of_random_graphs(dtype):
    """Evaluated, written, joined, coalesced, recognised, read from JSON: always the same results."""
    more = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        made = random_graph(seed + 90, dtype, 6)
        graph = tw.Graph.of(*(v.tensor for v in made))
        cuts = {sink: random_cuts(rng, sink.tensor.type.box) for sink in graph.sinks if not sink.tensor.type.box.empty}
        sharded = tw.verify(tw.expand(graph, random_partitions(rng, graph) | cuts))
        more += len(sharded.sinks) - len(graph.sinks)
        assert tw.is_sharding(sharded, graph)
        joined = tw.verify(join_sinks(sharded))
        assert [(s.target, s.tensor.type, s.part) for s in joined.sinks] == [
            (s.target, s.tensor.type, None) for s in graph.sinks
        ]
        back = tw.coalesce(sharded)
        assert len(back.operations) <= len(sharded.operations)
        whole = tw.evaluate([v.tensor for v in made])
        for got in (
            written(sharded),
            tw.evaluate([s.tensor for s in joined.sinks]),
            tw.evaluate([s.tensor for s in back.sinks]),
            written(tw.from_json(tw.to_json(sharded))),
            written(pickle.loads(pickle.dumps(sharded))),
        ):
            for v, array, expected in zip(made, got, whole, strict=True):
                close(v, array, expected)
    assert more > 50


def test_cutting_only_the_sinks_is_undone():
    """Whatever the tensor: an operation's output, a view of one, a source, a constant."""
    x = tw.exp(A1)
    graph = tw.Graph.of(x, x[::2], A2, tw.full((3, 2), 7), tw.concat([A1, A2]), x)
    for parts in ((2, 1), (1, 2), (2, 2)):
        sharded = tw.verify(tw.expand(graph, {sink: tw.partition(sink, parts) for sink in graph.sinks}))
        assert len(sharded.sinks) == 6 * parts[0] * parts[1]
        joined = join_sinks(sharded)
        assert [s.tensor for s in joined.sinks][::5] == [x, x] and joined.sinks[2].tensor is A2
        for got, expected in zip(written(sharded), tw.evaluate([s.tensor for s in graph.sinks]), strict=True):
            np.testing.assert_array_equal(got, expected, strict=True)


def test_a_part_is_cut_again():
    twice = tw.expand(cut(ADD, (2, 1)), {})
    twice = tw.verify(tw.expand(twice, {sink: tw.partition(sink, (1, 2)) for sink in twice.sinks}))
    assert [str(sink.part.box) for sink in twice.sinks] == ["[0:5, 0:2]", "[0:5, 2:4]", "[5:10, 0:2]", "[5:10, 2:4]"]
    assert tw.coalesce(twice) is ADD
    first, _ = cut(ADD, (2, 1)).sinks
    with pytest.raises(VerifyError, match="not the blocks of a grid"):
        tw.verify(tw.expand(cut(ADD, (2, 1)), {first: tw.partition(first, (1, 2))}))


def test_sinks_without_elements_or_dimensions_stay_whole():
    graph = tw.Graph.of(tw.as_tensor(np.ones((0, 4))), tw.sum(A1))
    empty, total = graph.sinks
    assert tw.expand(graph, {empty: tw.partition(empty, (1, 2)), total: tw.partition(total, ())}) is graph


def test_order_and_operations_of_a_point_are_kept():
    """A sequence point that only orders holds all of the parts, where the sink stood."""
    noise = tw.exp(A1).producer
    done = tw.SequencePoint((noise, ADD.sinks[0], tw.Sink(A1, tw.MemoryTarget())))
    late = replace(tw.negative(A2).producer, after=(done,))
    graph = tw.Graph.of(tw.Tensor(late))
    sharded = tw.verify(tw.expand(graph, {ADD.sinks[0]: tw.partition(ADD.sinks[0], (2, 2)), noise: cut_of(noise)}))
    (point,) = sharded.operations[-1].after
    assert [type(item).__name__ for item in point.before] == ["Operation"] * 2 + ["Sink"] * 5
    assert tw.coalesce(sharded) is graph


def cut_of(operation):
    return tw.partition(operation, (2, 1))


def test_a_wrong_sharding_is_found():
    first, second = cut(ADD, (2, 1)).sinks
    swapped = tw.Graph.of(replace(first, tensor=second.tensor), replace(second, tensor=first.tensor))
    tw.verify(swapped)
    odd = tw.Graph.of(first, replace(second, tensor=A1[:, :2]))
    hidden = replace(tw.negative(A2).producer, after=(tw.SequencePoint((first,)),))
    for bad, rule in (
        (swapped, "cover"),
        (tw.Graph.of(first), "sinks"),
        (tw.Graph.of(first, first), "sinks"),
        (odd, "sinks"),
        (tw.Graph.of(tw.Tensor(hidden)), "sinks"),
    ):
        assert not tw.is_sharding(bad, ADD)
        with pytest.raises(VerifyError) as caught:
            tw.check_sharding(bad, ADD)
        assert caught.value.rule == rule
    with pytest.raises(GraphError, match="do not cover"):
        join_sinks(tw.Graph.of(first))


@pytest.mark.parametrize("box", [Box((0,), (4,)), Box((0, 0), (4, 4)), Box((-1, 0), (2, 2)), Box((0, 0), (0, 3))])
def test_a_part_is_a_box_inside(box):
    with pytest.raises(GraphError, match="no region"):
        tw.SinkPart(box, (3, 4))


def test_cuts_that_do_not_fit_are_refused():
    (sink,) = ADD.sinks
    with pytest.raises(GraphError, match=r"partition\(sink, parts\): 5 parts do not fit extent 4 of dimension d1"):
        tw.partition(sink, (1, 5))
    with pytest.raises(GraphError, match=r"expand\(sink\): the cuts do not fit the index"):
        tw.expand(ADD, {sink: tw.Partition(((0, 9), (0, 4)))})


def test_documents():
    jsonschema = pytest.importorskip("jsonschema", reason="the schema is checked with jsonschema")
    from document_schema import schema

    sharded = cut(ADD, (2, 1))
    text = tw.to_json(sharded)
    check = jsonschema.Draft202012Validator(schema())
    check.validate(json.loads(text))
    again = tw.from_json(text)
    assert tw.to_json(again) == text and [s.part for s in again.sinks] == [s.part for s in sharded.sinks]
    assert '"part"' not in tw.to_json(ADD)
    for change, problem in (
        ({"start": [9, 0]}, "is no region of"),
        ({"start": [0, 0]}, "two sinks of one"),
        ({"of": [10]}, "is no region of"),
        ({"of": "all"}, "is not a list"),
        ({"colour": "red"}, "unknown key"),
    ):
        data = json.loads(text)
        node = next(node for node in data["nodes"] if node["id"] == "sink1")
        node["part"].update(change)
        with pytest.raises(VerifyError, match=problem):
            tw.from_json(json.dumps(data))


def test_text_and_picture():
    sharded = cut(ADD, (2, 1))
    lines = str(sharded).splitlines()
    assert lines[3] == "s0 = sink(t2)     C.npy        part [0:5, 0:4] of [10, 4]"
    assert lines[6] == "s1 = sink(t4)     C.npy        part [5:10, 0:4] of [10, 4]"
    assert ">[5:10, 0:4]</text>" in svg(sharded)
