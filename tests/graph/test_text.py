"""The text, the table and the picture of a graph."""

import re
import xml.etree.ElementTree as ElementTree
from html import unescape

import numpy as np
import pytest
from random_graphs import random_graph

from tileweave import graph as tw
from tileweave.graph.ir.svg import svg
from tileweave.graph.ir.text import ids


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


def test_a_picture_says_what_views_read():
    numbers = np.arange(96.0).reshape(12, 8)
    x = tw.as_tensor(numbers)
    lines = {
        "[3:12, 0:8]": x[3:],
        "[0:12, 1:6:4]": x[:, 1:8:4],
        "[11::-1, 0:8]": x[::-1],
        "[0:12, 7:0:-2]": x[:, ::-2],
        "(i0, i1) -> (i1, i0)": x.T,
        "(i0, i1) -> (0, i1)": tw.broadcast_to(x[:1], (4, 8)),
    }
    for line, view in lines.items():
        written = {unescape(text) for text in re.findall(">([^<]+)</text>", tw.Graph.of(tw.exp(view))._repr_svg_())}
        assert line in written
        if line.startswith("["):  # NumPy's own notation
            assert np.array_equal(eval(f"x{line}", {"x": numbers}), view)


def test_a_picture_of_a_view_of_nothing_says_so():
    x = tw.as_tensor(np.zeros((12, 8)))
    for empty in (x[0:0:2], x[5:5:-2], x[3:3]):
        assert re.search(r"\[(\d+):\1, 0:8\]", tw.Graph.of(empty)._repr_svg_())


def test_arrows_with_names_arrive_apart_and_inside_the_operation():
    x, w, b = (tw.as_tensor(np.zeros(shape)) for shape in ((4, 3), (3, 2), 2))
    root = ElementTree.fromstring(tw.Graph.of(tw.linear(x, w, b))._repr_svg_())
    ends = [re.split("[ C]", path.get("d"))[-2:] for path in root.iter() if path.get("marker-end")]
    names = {e.text: (float(e.get("x")), float(e.get("y"))) for e in root.iter() if e.text in ("x", "w", "b")}
    assert names["x"][1] < names["w"][1] < names["b"][1]
    for at, y in names.values():
        assert any(0 < at - float(u) < 10 and abs(y - 3.5 - float(v)) < 0.2 for u, v in ends)


def test_one_long_line_does_not_move_the_others():
    long = tw.as_tensor(np.zeros(3))
    for k in range(40):
        long = tw.exp(long) * float(k)
    fused = tw.rewrite(tw.Graph.of(long), tw.OPTIMIZATIONS).graph
    lines = str(fused).splitlines()
    assert max(map(len, lines)) > 200  # the fused chain
    assert lines[0].startswith("t0 = source()") and len(lines[0]) < 120


def size_of(picture: str) -> tuple[float, float]:
    found = re.search(r'width="([\d.]+)" height="([\d.]+)"', picture)
    assert found is not None
    return float(found[1]), float(found[2])


def test_a_picture_of_a_thousand_operations_fits_and_folds_what_repeats():
    x = tw.as_tensor(np.ones((4, 4)))
    steps = (tw.tanh, tw.exp, tw.relu)
    y = x
    for k in range(1000):
        y = steps[k % 3](y)
    picture = svg(tw.Graph.of(y))
    wide, high = size_of(picture)
    assert wide < 3200 and high < 400 and "331 times more" in picture and "showing" not in picture
    # what does not repeat goes on in ranks
    rng = np.random.default_rng(0)
    y = x
    for k in rng.integers(0, 3, 150):
        y = steps[k](y)
    picture = svg(tw.Graph.of(y))
    wide, high = size_of(picture)
    assert wide < 3200 and 500 < high < 4000 and picture.count("<polygon") >= 150
    # layers with weights of their own; a residual passes by
    h = x
    for k in range(24):
        h = h + tw.relu(h @ np.full((4, 4), float(k)))
    assert re.search(r"2\d times more", svg(tw.Graph.of(h)))


def test_a_folded_picture_has_every_edge_once_and_no_cycle():
    rng = np.random.default_rng(2)
    x = tw.as_tensor(np.ones((8, 4)))
    whole = tw.Graph.of(tw.relu(tw.matmul(x, np.ones((4, 4)))), tw.max(x, 0))
    for count in (5, 8):
        cuts = {
            o: tw.partition(o, (min(count, o.index.shape[0]), *(1,) * (o.index.rank - 1))) for o in whole.operations
        }
        tensors = [s.tensor for s in tw.expand(whole, cuts).sinks]
        for _ in range(30):
            tensors.append(tw.tanh(tensors[int(rng.integers(len(tensors)))]))
        picture = svg(tw.Graph.of(*tensors))
        assert picture == svg(tw.Graph.of(*tensors))
        assert ElementTree.fromstring(picture).tag.endswith("svg")
