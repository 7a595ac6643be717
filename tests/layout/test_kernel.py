"""One kernel for every notation: what fails without it, what it once got wrong, and the theorems it stands on."""

from __future__ import annotations

import sys
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest

from strategies import random_layout, values
from tileweave import graph
from tileweave.backends.base import Decision
from tileweave.errors import LayoutError, NotDivisible
from tileweave.index import symbol
from tileweave.layout import (
    Layout,
    axe,
    collision,
    cute,
    divide,
    group,
    holders,
    image,
    is_compact,
    is_contiguous,
    is_injective,
    left_inverse,
    parse,
    right_inverse,
    same_map,
    slice_layout,
    slice_pieces,
    strided,
    substitute,
    tile,
)
from tileweave.layout.analysis.movement import conversion
from tileweave.layout.core import composition, rows
from tileweave.layout.core.checks import Witness
from tileweave.layout.core.inverse import complement as complements
from tileweave.layout.core.inverse import inverses
from tileweave.layout.cute import CuteLayout, _, make_layout
from tileweave.layout.lego import OrderBy, RegP, TileBy, to_core
from tileweave.planner import machines, movements
from tileweave.planner.plan import Plan
from tileweave.planner.steps import steps_of
from tileweave.teir.emit.elements import emit_copy
from tileweave.teir.emit.terms import Operand

# The kernel.

USERS = {
    "CuTe composition": lambda: cute.composition(make_layout((4, 8)), CuteLayout(4, 2)),
    "CuTe divide": lambda: cute.logical_divide(make_layout(32), 4),
    "CuTe product": lambda: cute.blocked_product(make_layout((2, 2)), make_layout((3, 3))),
    "CuTe coalesce": lambda: cute.coalesce(make_layout((4, 8))),
    "CuTe complement": lambda: cute.complement(CuteLayout(4, 2), 32),
    "CuTe inverses": lambda: (cute.left_inverse(make_layout((4, 8))), cute.right_inverse(make_layout((4, 8)))),
    "Axe group": lambda: group(strided((4, 6), (12, 2)), (2, 12)),
    "Axe tile": lambda: tile(strided((2, 3), (3, 1)), (2, 3), strided((8, 8), (8, 1)), (8, 8)),
    "Axe canonicalize": lambda: axe.canonicalize(strided((4, 6), (12, 2))),
    "Axe slice": lambda: axe.slice(strided((4, 6), (12, 2)), (24,), ((2, 6),)),
    "LEGO to_core": lambda: _lego(),
    "TEIR emission": lambda: _teir(),
    "planner's collectives": lambda: _plan(),
    "conversion between placements": lambda: conversion(parse("(4:1@lane, 2:1@reg)"), parse("(4:1@reg, 2:1@lane)")),
}


def _lego():
    return to_core(OrderBy(RegP((2, 3), (2, 1))).GroupBy((6,)))


def _plan():
    x = graph.exp(graph.as_tensor(np.ones((8, 8))))
    columns = graph.Graph.of(graph.sum(x, 0))
    grids = {op: (4, 1) if op.operator == "exp" else (1, 4) for op in columns.operations}
    steps = steps_of(columns, {op: grids[op][::-1] for op in columns.operations}, 4, _decide, lambda sink: None)
    return movements(Plan(columns, machines(4), steps))


def _decide(operation, stage):
    return Decision(stage)


def _teir():
    blocked = Operand(strided((2, 4, 3, 8), (96, 8, 32, 1)), "FP32", (8, 24))
    flat = Operand(strided((8, 24), (24, 1)), "FP32")
    return emit_copy(blocked, flat)


@pytest.mark.parametrize("user", USERS)
def test_every_notation_fails_without_the_kernel(user, monkeypatch):
    USERS[user]()

    def broken(*_args, **_kwargs):
        raise AssertionError("the kernel was asked")

    kernel = [rows.coalesce, composition.compose_rows, complements.complement_rows]
    kernel += [inverses.left_inverse_rows, inverses.right_inverse_rows]
    for module in [m for name, m in sys.modules.items() if name.startswith("tileweave.")]:
        for name, value in list(vars(module).items()):
            if any(value is part for part in kernel):
                monkeypatch.setattr(module, name, broken)
    with pytest.raises(AssertionError, match="the kernel was asked"):
        USERS[user]()


# Defects that were.


def test_cover_divide_of_a_layout_that_the_tile_splits():
    cover = cute.cover_divide(cute.parse("(2,5):(5,1)"), 4)
    assert str(cover.layout) == "((2,2),3):((5,1),2)"
    a, seen = cute.parse("(2,5):(5,1)"), []
    for i in range(cover.layout.size):
        if cover.valid(i):
            x = cover.index(i)["e0"]
            assert cover.layout(i) == a(x)
            seen.append(x)
    assert sorted(seen) == list(range(10))


def test_crd2idx_reads_the_strides_of_a_layout():
    assert cute.crd2idx((1, 2), cute.parse("(4,8):(8,1)")) == 10
    assert cute.crd2idx((1, 2), (4, 8)) == 9


def test_right_inverses_are_the_longest_in_both_notations():
    layout = cute.parse("(5,5,6):(1,12,4)")
    found = cute.right_inverse(layout)
    assert found.size == right_inverse(strided((6, 5, 5), (4, 12, 1))).size == 72
    assert [layout(found(i)) for i in range(72)] == list(range(72))
    wide = strided((1000, 400), (160, 1))
    longest = right_inverse(wide)
    assert longest.size == 160160
    assert np.array_equal(wide.table()[longest.table()], np.arange(longest.size))


def test_left_inverses_are_found_beyond_the_old_bound():
    for layout in (strided((4, 3), (2003, 2)), strided((5, 3), (5003, 6))):
        back = left_inverse(layout)
        assert [back(y)["m"] for y in layout.table().tolist()] == list(range(layout.size))


def test_a_box_across_digits_is_cut_into_few_pieces():
    layout = parse("(10:1, 10:7, 10:3, 10:11)")
    parts = slice_pieces(layout, (16, 625), (1, 5), (4, 600)).pieces
    assert len(parts) <= 18
    covered = set()
    for piece in parts:
        for u in product(*map(range, piece.extent)):
            at = tuple(b + k for b, k in zip(piece.begin, u, strict=True))
            assert piece.layout.at(u, piece.extent) == layout.at(at, (16, 625))
            assert at not in covered
            covered.add(at)
    assert covered == set(product(range(1, 5), range(5, 605)))


def test_equal_replica_sets_have_one_canonical_form():
    one, other = parse("()+[4:2,5:3]"), parse("()+[7:2,3:3]")
    assert one.set_at(0) == other.set_at(0)
    assert axe.canonicalize(one, "set") == axe.canonicalize(other, "set")
    assert same_map(one, other, "set") and not same_map(one, other)
    assert axe.canonicalize(one) != axe.canonicalize(other)  # the defaults agree: multisets


@pytest.mark.parametrize("cases", [150, pytest.param(5_000, marks=pytest.mark.slow)])
def test_canonical_forms_are_equal_exactly_for_equal_sets(cases):
    rng = Random(31)
    known = {}
    for _case in range(cases):
        layout = Layout((), tuple((rng.randint(2, 5), rng.randint(1, 6)) for _k in range(rng.randint(1, 3))))
        points = layout.set_at(0)
        canon = axe.canonicalize(layout, "set")
        assert canon.set_at(0) == points
        assert known.setdefault(points, canon) == canon, f"seed 31: {layout}"
    assert len(set(known.values())) == len(known)


def test_profiles_of_products_are_those_of_cute():
    assert (
        str(cute.blocked_product(cute.parse("(2,5):(5,1)"), cute.parse("(3,4):(1,3)")))
        == "((2,3),(5,4)):((5,10),(1,30))"
    )
    assert str(cute.tile_to_shape(make_layout((2, 3)), (6, 12))) == "((2,3),(3,4)):((1,6),(2,18))"


def test_what_does_not_divide_has_a_witness():
    refused = [
        lambda: cute.logical_divide(make_layout(10), 4),
        lambda: cute.tile_to_shape(make_layout((2, 2)), (3, 4)),
        lambda: cute.shape_div((4, 6), 5),
        lambda: axe.tile_of(strided((9,), (1,)), (9,), strided((2,), (1,)), (2,)),
        lambda: cute.upcast(CuteLayout((6, 4), (1, 6)), 4),
    ]
    for call in refused:
        with pytest.raises(NotDivisible) as caught:
            call()
        assert isinstance(caught.value.witness, Witness)
        assert caught.value.witness.points and caught.value.witness.condition


# Listing below the bound, and halves that meet in the middle above it.


def test_no_question_below_a_million_points_is_undecided():
    rng = Random(32)
    for _case in range(6):
        extents = [rng.choice([2, 3, 4, 5, 7]) for _k in range(8)]
        while prod(extents) > 1 << 20:
            extents.pop()
        layout = strided(tuple(extents), tuple(rng.randrange(1, 10**6) for _e in extents))
        table = layout.table()
        unique = np.unique(table)
        assert is_injective(layout) == is_compact(layout) == (unique.size == table.size)
        assert np.array_equal(image(layout), unique)
        y = int(table[rng.randrange(table.size)])
        assert holders(layout, y) == tuple(np.flatnonzero(table == y).tolist())


def test_collisions_of_many_strides_meet_in_the_middle():
    rng = Random(33)
    strides = [rng.randrange(10**11, 10**12) for _k in range(17)]
    layout = strided((3,) * 17, tuple(strides))  # 1e8 points: a search over digits passes its bound
    pair = collision(layout)
    assert pair is None or layout(pair[0]) == layout(pair[1])
    planted = strided((3,) * 14 + (2, 2), (*strides[:14], 10**13, 10**13 + strides[3] - strides[7]))
    a, b = collision(planted)
    assert a != b and planted(a) == planted(b)


# CuTe's own names.


def test_partitions_are_those_of_the_whole():
    layout = CuteLayout((8, 12), (12, 1))
    seen = []
    for thread in range(6):
        mine, offset = cute.local_partition(layout, CuteLayout((2, 3), (3, 1)), thread)
        seen += [offset + mine(i) for i in range(mine.size)]
    assert sorted(seen) == list(range(96))
    seen = []
    for i, j in product(range(2), range(4)):
        tile_, offset = cute.local_tile(layout, (4, 3), (i, j))
        assert {(offset + tile_(r, c)) for r in range(4) for c in range(3)} == {
            layout(4 * i + r, 3 * j + c) for r in range(4) for c in range(3)
        }
        seen += [offset + tile_(k) for k in range(12)]
    assert sorted(seen) == list(range(96))
    kept, offset = cute.local_tile(layout, (4, 7, 3), (1, 5, 2), proj=(1, None, 1))
    assert (str(kept), offset) == tuple(map(str, cute.local_tile(layout, (4, 3), (1, 2))))[:1] + (54,)


def test_thread_value_layouts_reach_each_element_once():
    threads, inner = CuteLayout((4, 8), (8, 1)), CuteLayout((2, 4), (4, 1))
    tiler, tv = cute.make_layout_tv(threads, inner)
    assert tiler == (8, 32)
    assert sorted(tv(i) for i in range(tv.size)) == list(range(256))
    for (i, j), (p, q) in product(product(range(4), range(8)), product(range(2), range(4))):
        element = (p + 2 * i) + 8 * (q + 4 * j)  # thread (i, j) holds the block of values at (i, j)
        assert tv(threads(i, j), inner(p, q)) == element


def test_small_names_that_cute_users_expect():
    layout = CuteLayout((2, (3, 4)), (1, (2, 6)))
    assert (cute.size(layout), cute.size(layout, 1), cute.size(layout, 1, 0)) == (24, 12, 3)
    assert make_layout((2, 3), stride=(3, 1)) == CuteLayout((2, 3), (3, 1))
    assert make_layout((4, 8)) @ CuteLayout(4, 2) == cute.composition(make_layout((4, 8)), CuteLayout(4, 2))
    assert cute.slice_((1, (_, 2)), layout) == cute.slice_(layout, (1, (_, 2)))
    assert cute.product_each(layout) == (2, 12)
    assert str(cute.append(make_layout(4), 1, up_to_rank=3)) == "(4,1,1):(1,1,1)"
    assert cute.prepend((2, 3), 5) == (5, 2, 3)
    for shape, by in [((4, 6), 8), ((2, 2, 5), 4), ((6,), 3), (12, 4)]:
        assert cute.size(cute.shape_div(shape, by)) * by == cute.size(shape)
    with pytest.raises(LayoutError):
        cute.size(layout, 2)
    with pytest.raises(LayoutError):
        make_layout((2, 3), (3, 1), stride=(1, 2))


# Theorems: seed 003, section 5; Axe, appendices A and C.


def to_coordinate(shape, x):
    """``linToCoord`` of seed 003, by its own formula."""
    out, below = [], 1
    for m in shape:
        out.append(x // below % m)
        below *= m
    return out


@pytest.mark.parametrize("cases", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_law_rectilinear_chamber_lin_to_coord_is_bijective(cases):
    rng = Random(34)
    for _case in range(cases):
        shape = tuple(rng.randint(1, 5) for _k in range(rng.randint(1, 4)))
        coords = [to_coordinate(shape, x) for x in range(prod(shape))]
        assert len({tuple(c) for c in coords}) == prod(shape)
        assert all(0 <= c < m for coord in coords for c, m in zip(coord, shape, strict=True))
        flat = shape if len(shape) > 1 else shape[0]
        for x, coord in enumerate(coords):
            mine = cute.idx2crd(x, flat)
            assert (list(mine) if isinstance(mine, tuple) else [mine]) == coord
            assert cute.crd2idx(mine, flat) == x


@pytest.mark.parametrize("cases", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_law_rectilinear_chamber_eval_size_cosize_compact_contiguous(cases):
    rng = Random(35)
    for _case in range(cases):
        shape = tuple(rng.randint(1, 4) for _k in range(3))
        stride = tuple(rng.randint(1, 9) for _k in range(3))
        layout = CuteLayout(shape, stride)
        table = [sum(c * d for c, d in zip(to_coordinate(shape, x), stride, strict=True)) for x in range(prod(shape))]
        assert [layout(x) for x in range(layout.size)] == table
        assert layout.size == prod(shape) and cute.cosize(layout) == 1 + max(table)
        core = cute.to_index_map(layout)
        compact = len(set(table)) == len(table)
        assert is_compact(core) == compact
        assert is_contiguous(core) == (compact and sorted(table) == list(range(len(table))))
        assert not (compact and cute.cosize(layout) == layout.size) or is_contiguous(core)


@pytest.mark.parametrize("cases", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_law_axe_a8_normal_forms_are_equal_exactly_for_equal_maps(cases):
    rng = Random(36)
    seen = {}
    for _case in range(cases):
        layout = random_layout(rng)
        normal = axe.canonicalize(layout)
        assert values(normal) == values(layout)
        assert axe.canonicalize(normal) == normal
        assert seen.setdefault(tuple(values(layout)), normal) == normal, f"seed 36: {layout}"
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("cases", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_law_axe_c_tiles_have_multiplied_spans_and_nest(cases):
    rng = Random(37)
    for _case in range(cases):
        a, b, c = (Layout([(rng.randint(2, 3), rng.choice([1, 2, 3, -2])) for _k in range(2)]) for _l in range(3))
        whole = tile(a, a.extents, b, b.extents)
        assert whole.span() == a.span() * b.span()
        shape = tuple(x * y for x, y in zip(a.extents, b.extents, strict=True))
        inner = tuple(x * y for x, y in zip(b.extents, c.extents, strict=True))
        left = tile(whole, shape, c, c.extents)
        right = tile(a, a.extents, tile(b, b.extents, c, c.extents), inner)
        assert values(left) == values(right)
        assert values(tile(Layout(((1, 0), (1, 0))), (1, 1), b, b.extents)) == values(b)


# Any notation, and refusals in the name that was called.


def test_questions_take_layouts_of_any_notation():
    rng = Random(38)
    for _case in range(50):
        shape = tuple(rng.randint(1, 4) for _k in range(3))
        layout = CuteLayout((shape[0], shape[1:]), (rng.randint(1, 9), (rng.randint(1, 9), rng.randint(1, 9))))
        table = [layout(i) for i in range(layout.size)]
        core = cute.to_index_map(layout)
        assert is_injective(layout) == is_compact(layout) == (len(set(table)) == len(table))
        assert is_contiguous(layout) == (sorted(table) == list(range(len(table))))
        assert image(layout).tolist() == sorted(set(table))
        assert holders(layout, table[0]) == tuple(i for i, y in enumerate(table) if y == table[0])
        assert same_map(layout, core) and same_map(core, layout)
        assert same_map(layout, cute.coalesce(layout))
    order = OrderBy(RegP((2, 3), (2, 1))).GroupBy((6,))
    assert is_injective(order) and same_map(order, to_core(order)) and holders(order, 3) == (4,)
    n = symbol("n", 1)
    assert substitute(CuteLayout((n, (4, 2)), (8, (1, 4))), {"n": 3}) == CuteLayout((3, (4, 2)), (8, (1, 4)))
    assert substitute(TileBy((n, 4)), {"n": 2}) == to_core(TileBy((2, 4)))
    with pytest.raises(LayoutError, match="is not a layout"):
        image(7)


@pytest.mark.parametrize(
    ("called", "call"),
    [
        ("zipped_divide", lambda: cute.zipped_divide(make_layout((4, 6)), (3, 2))),
        ("flat_divide", lambda: cute.flat_divide(make_layout(10), 4)),
        ("blocked_product", lambda: cute.blocked_product(CuteLayout((2, 2), (1, 1)), 3)),
        ("tile_to_shape", lambda: cute.tile_to_shape(make_layout((2, 2)), (3, 4))),
        ("recast_layout", lambda: cute.recast_layout(CuteLayout((6, 4), (1, 6)), 32, 8)),
        ("local_tile", lambda: cute.local_tile(make_layout((4, 6)), (3, 2), (0, 0))),
        ("slice", lambda: axe.slice(strided((4, 4), (100, 1)), (16,), ((2, 12),))),
        ("slice_layout", lambda: slice_layout(strided((4, 4), (100, 1)), (16,), (2,), (10,))),
        ("bind", lambda: axe.bind(parse("(4:1)"), (1,), (3,))),
        ("canonicalize", lambda: axe.canonicalize(7)),
        ("tile", lambda: tile(strided((4,), (1,)), (3,), strided((2,), (1,)), (2,))),
        ("divide", lambda: divide(strided((4, 6), (4, 8)), strided((3, 2), (2, 3)))),
        ("left_inverse", lambda: left_inverse(strided((3, 4), (2, 3)))),
        ("collision", lambda: collision(7)),
    ],
)
def test_refusals_name_the_function_that_was_called(called, call):
    with pytest.raises(LayoutError) as caught:
        call()
    assert str(caught.value).startswith(f"{called}(")
