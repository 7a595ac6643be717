"""The text, the table and the picture of a graph."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from random_graphs import random_graph

from tileweave import graph as tw
from tileweave.graph.svg import svg
from tileweave.graph.text import ids


def network():
    images = tw.Tensor(tw.Source(tw.FileData("images.npy", "npy"), tw.TensorType((1198, 64), "float32"), "images"))
    w = tw.as_tensor(np.zeros((64, 32), "float32"))
    b = tw.Tensor(tw.Source(tw.Hole(), tw.TensorType((32,), "float32"), "bias", 1))
    h = tw.relu(tw.linear(images, w, b))
    first = tw.SequencePoint((tw.Sink(h[:10, ::-1], tw.FileTarget("head.npz", "npz", "h")),))
    out = tw.softmax(h).producer
    late = tw.Operation(out.operator, out.index, out.inputs, out.outputs, out.parameters, out.signature, (first,))
    bare = tw.Operation("exp", h.producer.index, (("x", h),), h.producer.outputs)
    return tw.Graph((tw.SequencePoint((tw.Sink(tw.Tensor(late), tw.MemoryTarget(), 2), bare)),))


def test_text_is_pinned(golden):
    graph = network()
    golden("graph_text.txt", f"{graph}\n\n{tw.explain(graph)}\n")
    assert str(graph) == str(network())


def test_sharded_text_and_picture_are_pinned(golden):
    x, b = np.zeros((1000, 10)), np.zeros(10)
    graph = tw.Graph.of(tw.add(x, b))
    (add,) = graph.operations
    sharded = tw.expand(graph, {add: tw.partition(add, (2, 1))})
    golden("graph_add_sharded.txt", f"{sharded}\n")
    golden("graph_add.svg", svg(graph, signatures=True))
    golden("graph_add_sharded.svg", sharded._repr_svg_())
    assert len(sharded.operations) == 2


def test_explain_adds_up():
    graph = tw.Graph.of(tw.matmul(np.zeros((8, 4)), np.zeros((4, 2))))
    table = tw.explain(graph)
    assert table.flops == 2 * 8 * 4 * 2 and table.made_bytes == 8 * 2 * 8 and table.source_bytes == (32 + 8) * 8
    assert [row.what for row in table.rows] == ["source", "source", "matmul", "sink"]


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_every_graph_has_a_text_and_a_valid_picture(dtype):
    for seed in range(30):
        graph = tw.Graph.of(*(v.tensor for v in random_graph(seed, dtype)))
        lines = str(graph).splitlines()
        names = ids(graph)
        tensors = [node for node in graph.nodes() if isinstance(node, tw.Tensor)]
        assert len({names[t] for t in tensors}) == len(tensors)
        assert all(any(line.startswith(f"{names[t]} ") for line in lines) for t in tensors)
        assert ElementTree.fromstring(graph._repr_svg_()).tag.endswith("svg")
