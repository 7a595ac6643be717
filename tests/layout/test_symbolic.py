"""Layouts and index expressions: evaluated, they agree with numbers at every point; unproved ranges are named."""

from __future__ import annotations

import pickle
from random import Random

import numpy as np
import pytest

from strategies import VECTOR, random_layout, random_shape
from tileweave.errors import LayoutError, Unproved
from tileweave.index import evaluate, ops, symbol, symbols
from tileweave.layout import (
    Coord,
    Iter,
    Layout,
    as_array,
    axe,
    canonical_key,
    collision,
    compose,
    holders,
    image,
    left_inverse,
    normalize,
    right_inverse,
    same_map,
    slice_layout,
    strided,
)
from tileweave.layout.analysis import memory
from tileweave.layout.lego import from_core


def at(value, point):
    """An expression, or a number, or a dict of them, at a point."""
    if isinstance(value, dict):
        return {axis: at(v, point) for axis, v in value.items()}
    return value if isinstance(value, int) else evaluate(value, point)


def test_a_symbolic_index_gives_an_expression_that_agrees_everywhere():
    rng = Random(1)
    for _ in range(60):
        layout = random_layout(rng, strides=VECTOR, offsets=(0, 4))
        x = symbol("x", 0, layout.size)
        found = layout(x)
        for k in range(layout.size):
            value = at(found, {"x": k})
            want = layout(k)
            assert want == (Coord.of(value) if isinstance(value, dict) else Coord(((layout.axes[0], value),)))


def test_symbolic_coordinates_under_a_shape_agree_everywhere():
    rng = Random(2)
    for _ in range(40):
        layout = random_layout(rng, rank=3)
        shape = random_shape(rng, layout.size, 2)
        names = [symbol(f"u{k}", 0, n) for k, n in enumerate(shape)]
        found = layout.at(names, shape)
        for x in range(layout.size):
            point = {f"u{k}": int(u) for k, u in enumerate(np.unravel_index(x, shape))}
            assert at(found, point) == layout(x)["m"]


def test_symbolic_sizes_cancel_where_they_can():
    rows, cols = symbols("rows cols", 1)
    i, j = symbol("i", 0, rows), symbol("j", 0, cols)
    array = Layout(((rows, cols), (cols, 1)))
    assert str(array) == "((rows):(cols)@m, (cols):1@m)"
    found = array.at((i, j), (rows, cols))
    assert ops(found) == 2
    assert evaluate(found, {"i": 3, "j": 4, "rows": 5, "cols": 7}) == 25
    assert evaluate(array.cosize(), {"rows": 5, "cols": 7}) == 35
    assert array.span("other") == 1


def test_a_tile_of_symbolic_extent_is_evaluated():
    tiles, width = symbols("tiles width", 1)
    t, y = symbol("t", 0, tiles), symbol("y", 0, width)
    layout = Layout(((tiles, {"block": 1}), (width, 1)))
    found = layout.at((t, y), (tiles, width))
    assert {axis: str(v) for axis, v in found.items()} == {"block": "t", "m": "y"}


def test_the_thread_dependent_offset_of_section_3_1():
    tx = symbol("tx", 0, 128)
    work = axe.parse("(16:128, 8:8, 2:4, 4:1) + 2112")
    mine = axe.bind(work, (tx // 8, tx % 8), (16, 8))
    assert mine.shard == axe.parse("(8:1)").shard
    for k in range(128):
        assert evaluate(mine.offset["m"], {"tx": k}) == (k // 8) * 128 + (k % 8) * 8 + 2112
        assert evaluate(mine(5)["m"], {"tx": k}) == (k // 8) * 128 + (k % 8) * 8 + 2117
    offset = (tx // 8) * 128 + (tx % 8) * 8 + 2112
    assert same_map(mine, Layout(((2, 4), (4, 1)), (), offset))
    assert not same_map(mine, Layout(((2, 4), (4, 1)), (), offset + 1))


def test_symbolic_offsets_pass_through_the_algebra():
    base = symbol("base", 0, 1000)
    layout = Layout(((4, 8), (8, 1)), (), base)
    assert slice_layout(layout, (4, 8), (1, 2), (2, 3)) == Layout(((2, 8), (3, 1)), (), base + 10)
    assert compose(layout, strided((4,), (8,))) == Layout(((4, 8),), (), base)
    assert normalize(layout) == Layout(((32, 1),), (), base)
    whole = axe.tile(Layout(((2, 1),), (), base), (2,), strided((4,), (1,)), (4,))
    assert evaluate(whole(0)["m"], {"base": 3}) == 12
    assert (base - base) * Coord.of(5) == Coord()
    assert Coord.of(base) - Coord.of(base) == Coord()
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_what_is_not_proved_is_named():
    n = symbol("n")
    x = symbol("x", 0, 9)
    with pytest.raises(Unproved) as caught:
        Iter(n, 1)
    assert "condition" in caught.value.facts
    with pytest.raises(Unproved):
        strided((8,), (1,))(x)
    with pytest.raises(Unproved):
        strided((8,), (1,)).at((x, 0), (4, 2))
    with pytest.raises(Unproved, match="the shape has"):
        strided((8,), (1,)).at((0, 0), (symbol("k", 1), 2))
    assert not same_map(Layout((), (), n * n * n), Layout((), (), n * n * symbol("o")))


@pytest.mark.parametrize(
    "search",
    [
        lambda layout: holders(layout, 0),
        image,
        canonical_key,
        collision,
        right_inverse,
        left_inverse,
        lambda layout: layout.table(),
        lambda layout: as_array(np.arange(9), layout),
        lambda layout: axe.intersect(layout.shard[0], layout.shard[1]),
        lambda layout: memory.vector_width(layout, 4),
        lambda layout: memory.bank_conflicts(layout),
        from_core,
        lambda layout: layout(np.arange(2)),
        lambda layout: layout.at((np.arange(2), 0), layout.extents),
    ],
)
@pytest.mark.parametrize(
    "layout", [Layout(((4, symbol("s", 1)), (2, 1))), Layout(((symbol("n", 1), 2), (2, 2)))], ids=["stride", "extent"]
)
def test_searches_for_points_ask_for_numbers(layout, search):
    with pytest.raises(LayoutError) as caught:
        search(layout)
    assert caught.value.where
    assert "truth value" not in caught.value.problem
