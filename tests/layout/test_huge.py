"""Sizes up to 2**60: every structural operation answers, and its answer is right at random points.

What would have to list points says `Undecided` or refuses, at once.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tileweave.errors import LayoutError, NoLayout, Undecided
from tileweave.index import symbol
from tileweave.layout import (
    Coord,
    Iter,
    Layout,
    axe,
    canonical_key,
    carries,
    collision,
    common_refinement,
    complement,
    compose,
    direct_sum,
    direct_sum_of,
    divide,
    from_carries,
    group,
    holders,
    image,
    is_contiguous,
    is_injective,
    left_inverse,
    lego,
    normalize,
    product,
    recover,
    right_inverse,
    same_map,
    slice_layout,
    slice_pieces,
    strided,
    substitute,
    tile,
    tile_of,
    to_strides,
)
from tileweave.layout.analysis import conflicts, memory, movement, svg

E = 1 << 20
WHOLE = 1 << 60
ROWS = strided((E, E, E), (E * E, E, 1))
TURNED = strided((E, E, E), (1, E * E, E))
BACKWARDS = strided((E, E, E), (-1, E * E, E), E - 1)
COPIES = Layout(TURNED.shard, ((E, {"gpu": 1}), (2, 0)), 7)
SPREAD = Layout(((E, {"gpu": 1}), (E, {"lane": 3, "m": -1}), (E, {"m": E})), (), E)


def points():
    rng = Random(1)
    return [0, 1, E - 1, E, E * E - 1, E * E, WHOLE - 1, *(rng.randrange(WHOLE) for _ in range(50))]


@pytest.mark.parametrize("layout", [ROWS, TURNED, BACKWARDS, SPREAD], ids=str)
def test_evaluation_bounds_and_text(layout):
    for x in points():
        a, b, c = x // (E * E), x // E % E, x % E
        want = layout.offset + a * layout.shard[0].stride + b * layout.shard[1].stride + c * layout.shard[2].stride
        assert layout(x) == layout.at((a, b, c), (E, E, E)) == layout((a, b, c)) == want
        found = layout(np.array([x]))
        assert all(int((found[axis] if isinstance(found, dict) else found)[0]) == want[axis] for axis in layout.axes)
    for axis in layout.axes:
        low, high = layout.bounds(axis)
        assert low <= want[axis] <= high
        assert layout.span(axis) == high - low + 1
        assert layout.cosize(axis) == high + 1
    assert axe.parse(str(layout)) == layout
    assert layout(symbol("x", 0, WHOLE)) is not None
    with pytest.raises(LayoutError, match="points are too many"):
        layout.table()
    assert svg.svg(layout, limit=(2, 2)).startswith("<svg")


def test_normal_forms_equality_and_keys():
    assert normalize(ROWS) == strided((WHOLE,), (1,))
    assert same_map(ROWS, strided((WHOLE,), (1,)))
    assert not same_map(ROWS, TURNED)
    assert canonical_key(COPIES) == canonical_key(
        Layout(TURNED.shard, ((2, 0), (1 << 10, {"gpu": 1 << 10}), (1 << 10, {"gpu": 1})), 7)
    )
    assert canonical_key(COPIES, "set") == canonical_key(Layout(TURNED.shard, ((E, {"gpu": 1}),), 7), "set")
    assert axe.canonicalize(COPIES, "set").replica == (Iter(E, {"gpu": 1}),)
    assert recover(ROWS) == normalize(ROWS)
    assert from_carries(WHOLE, carries(TURNED.shard)) == normalize(TURNED).shard
    with pytest.raises(Undecided):
        recover(lambda x: TURNED(x), WHOLE)
    with pytest.raises(NoLayout):
        recover(lambda x: x * x, WHOLE)


def test_injectivity_images_and_holders():
    for layout in (ROWS, TURNED, BACKWARDS):
        assert is_injective(layout)
        assert is_contiguous(layout)
        for x in points():
            assert holders(layout, layout(x)) == (x,)
    assert is_injective(SPREAD)
    assert not is_contiguous(SPREAD)
    assert collision(strided((E, E, E), (E, E, 1))) == (E, E * E)
    with pytest.raises(Undecided):
        image(ROWS)


def test_groups_refinements_tiles_and_sums():
    blocks = group(ROWS, (1 << 30, 1 << 30))
    assert [[str(it) for it in block] for block in blocks] == [["1073741824:1073741824@m"], ["1073741824:1@m"]]
    assert common_refinement(ROWS, TURNED) == (E, E * E) or common_refinement(ROWS, TURNED) == (E, E, E)
    outer, inner = strided((1 << 30,), (-1,), (1 << 30) - 1), strided((1 << 15, 1 << 15), (1, 1 << 15))
    whole = tile(outer, (1 << 30,), inner, (1 << 30,))
    for x in points():
        assert whole(x)["m"] == outer(x >> 30)["m"] * (1 << 30) + inner(x % (1 << 30))["m"]
    assert tile_of(whole, (WHOLE,), inner, (1 << 30,)) == outer
    added = direct_sum(outer, (1 << 30,), inner, (1 << 30,))
    assert direct_sum_of(added, (WHOLE,), inner, (1 << 30,)) == outer
    assert axe.groups(TURNED, (E, 1 << 10, 1 << 30))
    assert not axe.groups(TURNED, (1 << 59, 3))
    bound = axe.bind(TURNED, (5, 9), (E, E))
    assert bound == Layout(((E, E),), (), 5 + 9 * E * E)
    assert axe.intersect(Iter(1 << 60, 6), Iter(1 << 60, 4)) == Iter(((1 << 60) - 1) * 4 // 12 + 1, 12)


def test_slices_and_pieces():
    rng = Random(2)
    for layout in (ROWS, TURNED, BACKWARDS, COPIES):
        begin, extent = (3, 5 * E), (E - 7, 1 << 35)
        part = slice_layout(layout, (E, E * E), begin, extent)
        for _ in range(50):
            u = (rng.randrange(extent[0]), rng.randrange(extent[1]))
            assert part.at(u, extent) == layout.at((u[0] + 3, u[1] + 5 * E), (E, E * E))
        pieces = slice_pieces(layout, (E, E * E), (3, 5 * E + 1), extent)
        assert sum(p.extent[0] * p.extent[1] for p in pieces.pieces) == extent[0] * extent[1]


def test_composition_complements_and_inverses():
    both = compose(TURNED, TURNED)
    for x in points():
        assert both(x) == TURNED(TURNED(x)["m"])
    assert compose(TURNED, strided((WHOLE,), (-1,), WHOLE - 1))(5) == TURNED(WHOLE - 6)
    with pytest.raises(NoLayout):
        compose(TURNED, strided((1 << 39,), (3,)))
    rest = complement(strided((E,), (E,)), WHOLE)
    assert rest.size * E == WHOLE
    assert is_contiguous(Layout(rest.shard + (Iter(E, E),)))
    assert right_inverse(TURNED).size == WHOLE
    for layout, inverse in ((TURNED, right_inverse(TURNED)), (BACKWARDS, right_inverse(BACKWARDS))):
        assert all(layout(inverse(x)["m"])["m"] == x for x in points())
    back = left_inverse(BACKWARDS)
    assert all(back(BACKWARDS(x)["m"])["m"] == x for x in points())
    tiles = divide(TURNED, 1 << 10)
    assert tiles.size == WHOLE
    assert all(tiles(x) == TURNED(x) for x in points())
    blocks = product(strided((E, E), (1, E)), E)
    assert is_contiguous(blocks)
    assert blocks.size == WHOLE


def test_lego_and_strides():
    layout = lego.OrderBy(lego.RegP((E, E, E), (3, 1, 2))).GroupBy((WHOLE,))
    for x in points():
        assert layout.inv(layout[x]) == (x,)
    core = lego.to_core(layout)
    assert all(core(x)["m"] == layout[x] for x in points())
    again = lego.from_core(core)
    assert again.apply(*again.inv(12345)) == 12345
    ragged = lego.PartialTiles((WHOLE - 1,), (E,))
    assert ragged.grid == (E * E,)
    assert ragged.mask(E * E - 1, E - 2)
    assert not ragged.mask(E * E - 1, E - 1)
    reverse = lego.reversal((E, E, E)).apply(0, 0, 0)
    assert reverse == WHOLE - 1
    assert lego.xor_swizzle(E, E).inv(lego.xor_swizzle(E, E).apply(5, 9)) == (5, 9)
    assert to_strides(TURNED).strides == (1, E * E, E)
    symbolic = Layout(((symbol("n", 1), 1),))
    assert substitute(symbolic, {"n": WHOLE}) == strided((WHOLE,), (1,))


def test_analyses_of_a_huge_buffer():
    threads = np.arange(32) * E
    assert memory.vector_width(ROWS, 4).elements == 4
    assert memory.bank_conflicts(ROWS, threads).passes == (32,)
    assert memory.coalescing(ROWS, np.arange(32)).sectors == (4,)
    assert conflicts.remove_conflicts(ROWS, [np.arange(32)]).kind == "none"
    lanes = Layout(((E, {"lane": 1}), (E * E, {"reg": 1})))
    assert movement.conversion(lanes, lanes).means == "nothing"
    turned = Layout(((E, {"reg": E}), (E, {"lane": 1}), (E, {"reg": 1})))
    assert movement.conversion(lanes, turned).means == "lanes"
    assert Coord.of(WHOLE)["m"] == WHOLE
