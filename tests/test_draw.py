"""Pictures are valid, self-contained, deterministic SVG; a few are pinned."""

import xml.etree.ElementTree as ElementTree

import pytest

from tileweave.draw import BoxNode, Edge, Label, Rect, Stroke, canvas, grid, layers, palette

SVG = "{http://www.w3.org/2000/svg}"

NODES = [
    BoxNode("a", ("Source: A",), "cds", "#E5E8E8"),
    BoxNode("x", ("Tensor: X", "[3, <4>]"), "box3d", "#d0d0ff"),
    BoxNode("s", ("concat", "dim=0"), "parallelogram", "#a0d0d0"),
    BoxNode("op", ("add", "[0:3]"), "arrow", "#E5E8E8"),
    BoxNode("sig", ("Signature",), "component", "#ffffd0", "op"),
    BoxNode("p", ("Sequence", "Point"), "octagon", "#B4F8C8"),
    BoxNode("n", ('a "note" & more',), "note"),
    BoxNode("b", ("plain",)),
]
EDGES = [
    Edge("a", "x"), Edge("x", "s", "x0"), Edge("x", "op", "long way"), Edge("s", "op"), Edge("sig", "op", dashed=True),
    Edge("op", "p"), Edge("n", "b"),
]  # fmt: skip

PICTURES = {
    "grid.svg": lambda: grid(
        [["0", "1", "2"], ["3", "4", "5"]],
        [[palette(r * 3 + c) for c in range(3)] for r in range(2)],
        title="a <layout>",
        row_names=["0", "1"],
        column_names="abc",
    ),
    "grid_cropped.svg": lambda: grid([[str(c) for c in range(100)] for _ in range(70)], limit=(2, 4)),
    "layers.svg": lambda: layers(NODES, EDGES, title="every shape"),
    "canvas.svg": lambda: canvas(
        [
            Rect(-10, 0, 60, 24, "<a>", "#a6cee3", 8.0),
            Stroke(((50, 12), (80, 12), (80, 40)), arrow=True),
            Label(80, 60, "end", "middle", bold=True, size=10),
        ],
        title="free",
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_pinned(name, golden):
    text = PICTURES[name]()
    assert text == PICTURES[name]()
    golden(f"draw_{name}", text)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_valid_and_stay_inside_their_canvas(name):
    root = ElementTree.fromstring(PICTURES[name]())
    assert root.tag == f"{SVG}svg"
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("width") != "100%":
            assert float(rect.get("x")) + float(rect.get("width")) <= width
            assert float(rect.get("y")) + float(rect.get("height")) <= height
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height


def test_text_is_escaped():
    root = ElementTree.fromstring(layers(NODES, EDGES))
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {"[3, <4>]", 'a "note" & more'} <= words


def test_what_is_left_out_is_stated():
    assert "showing 2 of 70 rows, 4 of 100 columns" in PICTURES["grid_cropped.svg"]()
    many = [BoxNode(str(k), (str(k),)) for k in range(10)]
    assert "showing 3 of 10 nodes" in layers(many, [Edge("0", "9")], limit=3)


def test_empty_pictures():
    for text in (grid([]), layers([], []), canvas([])):
        assert ElementTree.fromstring(text).tag == f"{SVG}svg"


def test_every_edge_points_right_and_layers_follow_the_longest_path():
    root = ElementTree.fromstring(
        layers([BoxNode(c, (c,)) for c in "dcba"], [Edge("a", "b"), Edge("b", "c"), Edge("c", "d"), Edge("a", "d")])
    )
    x = {text.text: float(text.get("x")) for text in root.iter(f"{SVG}text")}
    assert x["a"] < x["b"] < x["c"] < x["d"]


def test_a_long_chain_needs_no_recursion():
    nodes = [BoxNode(str(k), ("n",)) for k in range(3000)]
    text = layers(nodes, [Edge(str(k), str(k + 1)) for k in range(2999)], limit=3000)
    assert text.count("<polygon") == 3000


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: grid([["a"], ["b", "c"]]), "rows differ"),
        (lambda: grid([["a"]], [["red", "blue"]]), "another shape"),
        (lambda: layers([BoxNode("a", ()), BoxNode("a", ())], []), "one key"),
        (lambda: layers([BoxNode("a", ()), BoxNode("b", ())], [Edge("a", "b"), Edge("b", "a")]), "cycle"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, problem):
    with pytest.raises(ValueError, match=problem):
        call()
