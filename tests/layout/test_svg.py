"""Pictures of layouts: what every cell says is what the layout says, and the text of the picture is pinned."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tileweave.errors import LayoutError
from tileweave.index import symbol
from tileweave.layout import Coord, Layout, axe, cute, lego
from tileweave.layout.analysis.svg import svg, thread_value_svg
from tileweave.layout.cute import ComposedLayout, CuteLayout, E, Swizzle, XorLayout

ROOT = Path(__file__).resolve().parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"


def tile():
    return axe.parse("(8:4@lane, 2:1@warp, 4:1@lane, 2:1@reg) + [2:4@warp] + 5@warp")


def figure_9():
    split = lego.RegP((2, 3, 2, 3), (1, 3, 2, 4))
    return lego.OrderBy(lego.Col(2, 2), lego.antidiagonal(3)).OrderBy(split).GroupBy((6, 6))


PICTURES = {
    "tensor_core_tile": lambda: svg(tile()),
    "mesh": lambda: svg(axe.parse("(2:1@gpuid, 32:128, 128:1) + [2:2@gpuid]"), limit=(4, 6)),
    "block": lambda: svg(axe.parse("(2:48, 4:4, 2:16, 4:1)"), colour=lambda v: v // 16),
    "replicas_that_tie_axes": lambda: svg(axe.parse("(3:1@a, 2:1@b) + [2:1@a + 1@b, 3:5@a]")),
    "nested_cute": lambda: svg(cute.parse("((2,2),4):((1,8),2)")),
    "one_mode": lambda: svg(cute.parse("8:-3")),
    "identity": lambda: svg(cute.make_identity_layout((3, (2, 2)))),
    "swizzle": lambda: svg(Swizzle(2, 3, 3)),
    "composed": lambda: svg(ComposedLayout(Swizzle(2, 0, 2), 0, CuteLayout((4, 4), (4, 1)))),
    "bit_matrix": lambda: svg(cute.f2_from_layout(cute.parse("(2,4):(4,1)"))),
    "figure_9": lambda: svg(figure_9(), colour=lambda v: v // 9),
    "hilbert": lambda: svg(lego.hilbert(4)),
    "thread_value": lambda: thread_value_svg(CuteLayout(((4, 8), 2), ((16, 1), 8)), (8, 8)),
    "symbolic": lambda: svg(axe.bind(axe.parse("(4:8, 2:4, 4:1) + [2:100]"), (symbol("tx", 0, 4),), (4,))),
}


FIGURES = {
    "tensor-core": lambda: svg(tile()),
    "mesh": lambda: svg(axe.parse("(2:1@gpuid, 2:8, 8:1) + [2:2@gpuid]")),
    "block": lambda: svg(axe.parse("(2:32, 4:4, 2:16, 4:1)"), colour=lambda v: v // 16),
    "nested": lambda: svg(cute.parse("((2,2),4):((1,8),2)")),
    "swizzle": lambda: svg(Swizzle(3, 3, 3)),
    "thread-value": lambda: thread_value_svg(CuteLayout(((4, 8), 2), ((16, 1), 8)), (8, 8)),
    "figure-9": lambda: svg(figure_9(), colour=lambda v: v // 9),
    "hilbert": lambda: svg(lego.hilbert(8), colour=lambda v: v // 4),
}
"""The pictures of docs/layouts.md."""


def cells(text: str) -> list[list[list[str]]]:
    """The lines of every cell, by row, read back from the places of rectangles and texts."""
    root = ElementTree.fromstring(text)
    texts = [(float(t.get("x")), float(t.get("y")), t.text) for t in root.iter(f"{SVG}text")]
    rows: dict[float, list[list[str]]] = {}
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("width") == "100%":
            continue
        x, y, w, h = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
        inside = [t for tx, ty, t in texts if x < tx < x + w and y < ty < y + h]
        rows.setdefault(y, []).append(inside)
    return [rows[y] for y in sorted(rows)]


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_pinned_and_valid(name, golden):
    text = PICTURES[name]()
    assert text == PICTURES[name]()
    assert ElementTree.fromstring(text).tag == f"{SVG}svg"
    golden(f"layout/{name}.svg", text)


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_of_the_tutorial_are_what_the_layouts_draw(name, golden):
    text = FIGURES[name]()
    assert f"images/layout-{name}.svg" in (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    golden(f"../../docs/images/layout-{name}.svg", text)


def test_a_cell_lists_every_replica_on_every_axis():
    layout = tile()
    drawn = cells(svg(layout))
    assert (len(drawn), len(drawn[0])) == (8, 16)
    for i in range(8):
        for j in range(16):
            places = layout.set_at(16 * i + j)
            want = [
                f"{axis} " + ",".join(map(str, sorted({p[axis] for p in places}))) for axis in ("warp", "lane", "reg")
            ]
            assert drawn[i][j] == want


def test_replicas_that_are_no_product_of_axes_are_listed_as_coordinates():
    layout = axe.parse("(2:1@a) + [2:1@a + 1@b]")
    assert cells(svg(layout)) == [[["a 0 b 0", "a 1 b 1"], ["a 1 b 0", "a 2 b 1"]]]


@pytest.mark.parametrize("text", ["(4,3):(3,1)", "((2,2),(3,2)):((1,12),(2,24))", "(3,(2,2)):(-1,(3,6))"])
def test_a_cute_cell_is_the_value_at_its_coordinate(text):
    layout = cute.parse(text)
    drawn = cells(svg(layout))
    modes = [mode.size for mode in layout]
    assert drawn == [[[str(layout(i, j))] for j in range(modes[1])] for i in range(modes[0])]


def test_three_modes_put_the_later_ones_into_columns_first_fastest():
    layout = cute.parse("(2,3,2):(1,2,6)")
    assert cells(svg(layout)) == [[[str(layout(i, j, k))] for k in range(2) for j in range(3)] for i in range(2)]


def test_coordinate_strides_show_every_axis():
    assert cells(svg(CuteLayout((2, 2), (E(0), E(1))))) == [[["0"], ["e1 1"]], [["e0 1"], ["e0 1", "e1 1"]]]


@pytest.mark.parametrize(
    "layout", [figure_9(), lego.TileBy((2, 2), (2, 3)), lego.bricks((4, 4), (2, 2)), lego.OrderBy(lego.morton(4, 4))]
)
def test_a_lego_cell_is_the_physical_number(layout):
    drawn = np.array([[int(c[0]) for c in row] for row in cells(svg(layout))])
    whole = layout if isinstance(layout, lego.GroupBy) else layout.GroupBy(layout.dims)
    assert (drawn.reshape(-1) == whole.table().reshape(-1)).all()


def test_pieces_draw_as_layouts_do():
    for piece in (lego.Col(2, 3), lego.antidiagonal(3)):
        assert cells(svg(piece)) == cells(svg(lego.OrderBy(piece).GroupBy(piece.dims)))


def test_a_swizzle_is_drawn_in_units_that_it_does_not_cut():
    swizzle = Swizzle(2, 3, -3)
    drawn = [int(c[0]) for row in cells(svg(swizzle)) for c in row]
    assert drawn == [swizzle(8 * u) // 8 for u in range(32)]


def test_xor_strides_draw_like_the_swizzle_that_they_replace():
    xor, composed = XorLayout((8, 8), (9, 1)), ComposedLayout(Swizzle(3, 0, 3), 0, CuteLayout((8, 8), (8, 1)))
    assert cells(svg(xor)) == cells(svg(composed))


def test_the_shape_may_be_chosen_and_is_else_nearest_to_a_square():
    layout = axe.parse("(2:192, 8:8, 3:64, 8:1)")
    assert "on 16 x 24" in svg(layout)
    assert "on 2 x 8 x 24" in svg(layout, shape=(2, 8, 24))
    drawn = cells(svg(layout, shape=(2, 8, 24)))
    assert drawn[9] == [[str(layout.at((1, 1, j), (2, 8, 24))["m"])] for j in range(24)]


def test_colours_follow_the_axis_that_is_named():
    def fills(text):
        return re.findall(r'fill="(#\w+)" stroke="#333"', text)

    assert len(set(fills(svg(tile(), colour="warp")))) == 2
    assert len(set(fills(svg(tile(), colour="reg")))) == 2
    assert len(set(fills(svg(tile())))) == 32  # one for each lane
    many = svg(Layout(((16, {"lane": 8}), (8, {"lane": 1}))))
    assert len(set(fills(many))) == 64
    assert "(the 64 colours repeat)" in many and "repeat" not in svg(tile())
    assert "coloured by lane" in svg(tile())


def test_only_the_first_cells_of_a_large_layout_are_evaluated():
    layout = Layout(((1 << 30, 1 << 30), (1 << 30, 1)))
    text = svg(layout)
    assert "showing 32 of 1073741824 rows, 32 of 1073741824 columns" in text
    assert cells(text)[31][31] == [str((31 << 30) + 31)]


def test_replicas_beyond_the_bound_are_counted_and_not_listed():
    assert cells(svg(axe.parse(f"(2:1) + [{1 << 40}:2]")))[0][1] == ["1", f"({1 << 40} replicas)"]
    assert cells(svg(axe.parse("(2:100) + [9:3]")))[0] == [["0,3,..,24"], ["100,103,..,124"]]
    assert cells(svg(axe.parse("(2:100) + [9:1]")))[0] == [["0..8"], ["100..108"]]


def test_a_thread_value_picture_inverts_the_layout():
    layout = CuteLayout(((4, 8), 2), ((16, 1), 8))
    drawn = cells(thread_value_svg(layout, (8, 8)))
    for t in range(32):
        for v in range(2):
            i, j = layout(t, v) % 8, layout(t, v) // 8
            assert drawn[i][j] == [f"T{t}", f"V{v}"]


def test_a_thread_value_picture_shows_holders_and_holes():
    assert cells(thread_value_svg(CuteLayout((2, 2), (0, 1)), (2, 2))) == [
        [["T0 V0", "T1 V0"], []],
        [["T0 V1", "T1 V1"], []],
    ]


@pytest.mark.parametrize(
    "value",
    [
        tile(),
        cute.parse("(2,2):(1,2)"),
        Swizzle(1, 0, 1),
        ComposedLayout(Swizzle(1, 0, 1), 0, cute.parse("(2,2):(1,2)")),
        XorLayout((2, 2), (1, 2)),
        cute.f2_from_layout(cute.parse("(2,2):(1,2)")),
        figure_9(),
        lego.OrderBy(lego.Row(2, 2)),
        lego.Row(2, 2),
        lego.morton(2, 2),
        lego.TileBy((symbol("n", 1, 9), 2), (3, 3)),
        Layout(),
    ],
)
def test_every_value_draws_itself_in_a_notebook(value):
    assert value._repr_svg_() == svg(value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: svg(3), "svg(value): int is no layout"),
        (lambda: svg(tile(), colour="m"), "the layout does not use the axis m"),
        (lambda: svg(tile(), shape=(8, 8)), "the shape (8, 8) has 64 points"),
        (lambda: svg(cute.parse("4:1"), shape=(2, 2)), "a CuteLayout has its own shape"),
        (lambda: svg(cute.parse("4:1"), colour="lane"), "there is no axis lane"),
        (lambda: thread_value_svg(CuteLayout(4, 1), (2, 2)), "this is no thread-value layout"),
        (lambda: thread_value_svg(CuteLayout((4, 2), (1, 4)), 8), "the tile is not two-dimensional"),
        (lambda: thread_value_svg(CuteLayout((4, 2), (1, 5)), (2, 4)), "the value 8 lies outside the tile"),
        (lambda: thread_value_svg(CuteLayout((1 << 20, 2), (0, 1)), (2, 4)), "2097152 pairs are too many"),
    ],
)
def test_what_cannot_be_drawn_is_named(call, message):
    with pytest.raises(LayoutError) as caught:
        call()
    assert message in str(caught.value)


def test_a_layout_without_iters_is_one_cell():
    assert cells(svg(Layout((), (), Coord.of(7)))) == [[["7"]]]


def borders(text):
    """(rows before which a heavy line stands -> its weight, the same of columns), read back from the picture."""
    root = ElementTree.fromstring(text)
    boxes = [r for r in root.iter(f"{SVG}rect") if r.get("width") != "100%"]
    left, top = min(float(r.get("x")) for r in boxes), min(float(r.get("y")) for r in boxes)
    wide, tall = float(boxes[0].get("width")), float(boxes[0].get("height"))
    rows, columns = {}, {}
    for line in root.iter(f"{SVG}line"):
        x, y, weight = float(line.get("x1")), float(line.get("y1")), float(line.get("stroke-width"))
        if line.get("y1") == line.get("y2"):
            rows[round((y - top) / tall)] = weight
        else:
            columns[round((x - left) / wide)] = weight
    return rows, columns


@pytest.mark.parametrize(
    ("value", "rows", "columns"),
    [
        (axe.parse("(2:32, 4:4, 2:16, 4:1)"), {4: 2.0}, {4: 2.0}),
        (tile(), {}, {2: 2.0, 4: 2.0, 6: 2.0, 8: 3.0, 10: 2.0, 12: 2.0, 14: 2.0}),
        (cute.parse("((2,2),(2,3)):((1,8),(2,16))"), {2: 2.0}, {2: 2.0, 4: 2.0}),
        (cute.parse("(4,4):(1,4)"), {}, {}),
        (figure_9(), {3: 2.0}, {3: 2.0}),
        (lego.TileBy((2, 2), (3, 3)), {2: 2.0}, {3: 2.0, 6: 2.0}),
        (lego.hilbert(4), {}, {}),
    ],
)
def test_heavy_lines_stand_at_the_borders_of_tiles(value, rows, columns):
    assert borders(svg(value)) == (rows, columns)


def test_the_shape_asked_for_keeps_the_borders_of_tiles():
    block = axe.parse("(2:32, 4:4, 2:16, 4:1)")
    assert borders(svg(block, shape=(8, 8))) == ({4: 2.0}, {4: 2.0})
    assert borders(svg(axe.parse("(3:1@a, 4:1@b)"), shape=(2, 6))) == ({}, {})


def test_nested_modes_name_their_coordinates():
    text = svg(cute.parse("((2,2),(2,3)):((1,8),(2,16))"))
    for name in ("(0,0)", "(1,0)", "(0,1)", "(1,1)", "(0,2)", "(1,2)"):
        assert f">{name}</text>" in text
    assert ">(0)" not in svg(cute.parse("(4,4):(1,4)"))


def test_a_map_over_f2_is_drawn_with_its_names():
    from tileweave.layout.f2 import places

    text = svg(places(axe.parse("(8:4@lane, 4:1@lane, 2:1@reg)"), (8, 8)))
    for name in ("lane 1", "lane 16", "reg 1", "dim0 4", "dim1 1"):
        assert f">{name}</text>" in text
    assert borders(text) == ({3: 2.0}, {5: 2.0})
