"""Slices of boxes: each against its definition, enumerated; the pieces of what is no layout."""

from __future__ import annotations

from itertools import product as every
from math import prod
from random import Random

import numpy as np
import pytest

from strategies import PLAIN, VECTOR, coords_of, fibres, flat, is_layout, random_layout, random_shape
from tileweave.errors import LayoutError, NoLayout
from tileweave.layout import (
    Layout,
    slice_layout,
    slice_pieces,
    strided,
)

FEW = pytest.mark.parametrize("cases", [80, pytest.param(10_000, marks=pytest.mark.slow)])


MANY = pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])


def _box_points(shape, begin, extent):
    for u in every(*map(range, extent)):
        yield flat([x + b for x, b in zip(u, begin, strict=True)], shape)


def _random_box(rng, shape):
    begin = tuple(rng.randrange(n) for n in shape)
    return begin, tuple(rng.randint(1, n - b) for n, b in zip(shape, begin, strict=True))


@MANY
def test_slices_agree_at_every_point_or_no_layout_exists_and_pieces_cover(cases):
    rng = Random(6)
    refused = 0
    for _ in range(cases):
        layout = random_layout(rng, strides=VECTOR, extent=6, copies=1, offsets=(0, 7))
        shape = random_shape(rng, layout.size)
        begin, extent = _random_box(rng, shape)
        truth, base = fibres(layout), coords_of(layout)
        points = list(_box_points(shape, begin, extent))
        pieces = slice_pieces(layout, shape, begin, extent)
        try:
            part = slice_layout(layout, shape, begin, extent)
        except NoLayout as error:
            refused += 1
            assert not is_layout([base[x] for x in points])
            assert len(pieces.pieces) > 1
            assert error.witness.points
        else:
            assert fibres(part) == [truth[x] for x in points]
            assert len(pieces.pieces) == 1
            assert pieces.fewest
        seen: list[int] = []
        for piece in pieces.pieces:
            inside = list(_box_points(shape, piece.begin, piece.extent))
            assert fibres(piece.layout) == [truth[x] for x in inside]
            seen += inside
        assert sorted(seen) == sorted(points)
    assert 0 < refused < cases


@FEW
def test_pieces_of_one_dimension_are_the_fewest(cases):
    rng = Random(10)
    for _ in range(cases):
        layout = random_layout(rng, strides=rng.choice([PLAIN, VECTOR]), extent=6)
        begin, extent = _random_box(rng, (layout.size,))
        base = coords_of(layout)[begin[0] : begin[0] + extent[0]]
        if len(base) > 40:
            continue
        best = [0] + [len(base)] * len(base)
        for j in range(1, len(base) + 1):
            best[j] = min(best[i] + 1 for i in range(j) if is_layout(base[i:j]))
        pieces = slice_pieces(layout, (layout.size,), begin, extent)
        assert pieces.fewest
        assert len(pieces.pieces) == best[-1]


def test_cuts_may_lie_between_turns_and_are_found_at_any_size():
    for n in (2, 2**10, 2**40):  # runs of n, 4n and 3n: the middle one is shared by its neighbours
        pieces = slice_pieces(strided((4, 4 * n), (10 * n, 1)), (16 * n,), (3 * n,), (8 * n,))
        assert [(p.begin, p.extent) for p in pieces.pieces] == [((3 * n,), (2 * n,)), ((5 * n,), (6 * n,))]
        assert pieces.fewest
    pieces = slice_pieces(strided((4, 2000), (5000, 1)), (8000,), (1999,), (4002,))  # runs of 1, 2000, 2000 and 1
    assert [p.extent for p in pieces.pieces] == [(2,), (3998,), (2,)]
    assert pieces.fewest


@pytest.mark.parametrize(
    ("iters", "begin", "extent"),
    [
        (((22, 1), (3, 1), (2, 1), (11, 0), (34, 0)), 40224, 8663),
        (((23, 0), (49, 1), (2, 1), (36, 0)), 38141, 30632),
        (((26, 1533), (47, 1), (2, 1), (21, 0)), 16655, 10943),
    ],
)
def test_cuts_go_on_where_no_turn_of_a_digit_can_be_reached(iters, begin, extent):
    layout, at = Layout(iters), begin
    for piece in slice_pieces(layout, (layout.size,), (begin,), (extent,)).pieces:
        assert piece.begin == (at,)
        points = np.arange(piece.extent[0])
        assert (piece.layout(points) == layout(at + points)).all()
        at += piece.extent[0]
    assert at == begin + extent


def test_slices_of_huge_layouts_are_decided_without_points():
    layout = strided((2**20, 2**20, 2**20), (2**40, 1, 2**20))
    shape = (2**20, 2**40)
    part = slice_layout(layout, shape, (5, 3 * 2**20), (2**19, 2**22))
    assert part(2**22 + 1) == layout(6 * 2**40 + 3 * 2**20 + 1)
    with pytest.raises(NoLayout) as caught:
        slice_layout(layout, shape, (5, 3 * 2**20 + 1), (2**19, 2**22))
    for x, v in zip(caught.value.witness.points, caught.value.witness.values, strict=True):
        assert layout(x) == v
    pieces = slice_pieces(layout, shape, (5, 3 * 2**20 + 1), (2**19, 2**22))
    assert sum(prod(p.extent) for p in pieces.pieces) == 2**41
    assert len(pieces.pieces) == 3


def test_bad_boxes_are_named():
    layout = strided((4, 4), (4, 1))
    for begin, extent in [((0, 0), (5, 1)), ((-1, 0), (1, 1)), ((0, 0), (0, 1)), ((4, 0), (1, 1))]:
        with pytest.raises(LayoutError, match="is no interval"):
            slice_layout(layout, (4, 4), begin, extent)
    with pytest.raises(LayoutError, match=r"begin 0\.5 is not an integer"):
        slice_layout(layout, (4, 4), (0.5, 0), (1, 1))
    with pytest.raises(LayoutError, match="the ranks differ"):
        slice_layout(layout, (4, 4), (0,), (4, 4))


# Complement, inverses, divide, product.
