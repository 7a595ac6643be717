"""Complement, inverses, divisions and products of CuTe layouts against their definitions, enumerated."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import numpy as np
import pytest

from cute_definitions import (
    composes,
    has_iters,
    has_layout,
    leaves_of,
    random_compact,
    random_layout,
    table,
)
from strategies import any_left_inverse
from tileweave.errors import Incongruent, LayoutError, NoLayout, NotDivisible, TileweaveError, Undecided
from tileweave.layout import cute
from tileweave.layout.core.coord import Coord
from tileweave.layout.cute import CuteLayout, E, _, composition, make_layout

MANY = [300, pytest.param(10_000, marks=pytest.mark.slow)]


# --- complement and inverses


def tiling_complement(values, bound):
    """The only set of starts >= 0 whose translates of the values fill [0, bound) once, or None; greedy is forced."""
    covered, starts = set(), []
    if min(values) != 0 or len(set(values)) != len(values):
        return None
    for v in range(bound):
        if v in covered:
            continue
        starts.append(v)
        for x in values:
            if v + x in covered or v + x >= bound:
                return None
            covered.add(v + x)
    return starts


@pytest.mark.parametrize("count", MANY)
def test_complement_is_the_tiling_complement(count):
    rng = random.Random(7)
    seen = {True: 0, False: 0}
    for _k in range(count):
        layout = random_layout(rng, most=4) if rng.random() < 0.6 else random_compact(rng)
        bound = rng.choice([layout.size, 12, 24, 36, 48, 60, 96, 120])
        starts = tiling_complement(table(layout), bound)
        seen[starts is not None] += 1
        if starts is None:
            with pytest.raises(NoLayout):
                cute.complement(layout, bound)
            continue
        rest = cute.complement(layout, bound)
        assert table(rest) == starts
        both = make_layout(layout, rest)
        assert sorted(table(both)) == list(range(bound))
    assert min(seen.values()) > count // 20


@pytest.mark.parametrize("count", MANY)
def test_right_inverse_inverts(count):
    rng = random.Random(8)
    for _k in range(count):
        layout = random_layout(rng) if rng.random() < 0.6 else random_compact(rng)
        inverse = cute.right_inverse(layout)
        values = table(layout)
        assert [values[i] for i in table(inverse)] == list(range(inverse.size))
        if sorted(values) == list(range(layout.size)):
            assert inverse.size == layout.size
        null = cute.nullspace(layout)
        assert all(not values[i] for i in table(null)) and len(set(table(null))) == null.size


@pytest.mark.parametrize("count", [300, pytest.param(4000, marks=pytest.mark.slow)])
def test_left_inverse_inverts_or_none_exists(count):
    rng = random.Random(9)
    seen = {True: 0, False: 0}
    for _k in range(count):
        layout = random_layout(rng, most=4) if rng.random() < 0.7 else random_compact(rng)
        values = table(layout)
        try:
            inverse = cute.left_inverse(layout)
        except NoLayout:
            seen[False] += 1
            if len(set(values)) == len(values) and min(values) >= 0 and max(values) < 14:
                assert not any_left_inverse(values)
            continue
        seen[True] += 1
        assert [inverse(v) for v in values] == list(range(layout.size))
    assert min(seen.values()) > count // 20


@pytest.mark.parametrize("count", MANY)
def test_max_common_layout_is_contiguous_in_both(count):
    rng = random.Random(10)
    longer = 0
    for _k in range(count):
        a = random_compact(rng)
        b = cute.make_ordered_layout(a.shape, tuple(rng.sample(range(len(a.shape)), len(a.shape))))
        common = cute.max_common_layout(a, b)
        assert [table(a)[i] for i in table(common)] == list(range(common.size))
        assert [table(b)[i] for i in table(common)] == list(range(common.size))
        assert cute.max_common_vector(a, b) == common.size
        longer += common.size > 1
        assert cute.max_common_vector(a, a) == a.size
    assert longer


# --- divide, product, tile_to_shape


@pytest.mark.parametrize("count", MANY)
def test_logical_divide_is_the_layout_read_by_tiles(count):
    rng = random.Random(11)
    done = 0
    for _k in range(count):
        layout = random_layout(rng, most=6) if rng.random() < 0.4 else random_compact(rng)
        tile = (
            CuteLayout(rng.choice([1, 2, 3, 4]), rng.choice([1, 1, 2, 3, 6]))
            if rng.random() < 0.6
            else random_compact(rng, 2)
        )
        starts = tiling_complement(table(tile), layout.size)
        if starts is None:
            with pytest.raises((NoLayout, NotDivisible)):
                cute.logical_divide(layout, tile)
            continue
        rest = cute.complement(tile, layout.size)
        if not composes(layout, make_layout(tile, rest)):
            with pytest.raises(NoLayout):
                cute.logical_divide(layout, tile)
            continue
        done += 1
        divided = cute.logical_divide(layout, tile)
        values = table(layout)
        assert cute.rank(divided) == 2
        assert table(divided[0]) == [values[i] for i in table(tile)]
        assert table(divided) == [values[t + s] for s in starts for t in table(tile)]
    assert done > count // 20


def test_the_four_divides_arrange_the_same_modes():
    layout = make_layout((4, 6, 5))
    tiler = (2, CuteLayout(3, 2))
    assert str(cute.logical_divide(layout, tiler)) == "((2,2),(3,2),5):((1,2),(8,4),24)"
    assert str(cute.zipped_divide(layout, tiler)) == "((2,3),(2,2,5)):((1,8),(2,4,24))"
    assert str(cute.tiled_divide(layout, tiler)) == "((2,3),2,2,5):((1,8),2,4,24)"
    assert str(cute.flat_divide(layout, tiler)) == "(2,3,2,2,5):(1,8,2,4,24)"
    assert str(cute.logical_divide(layout, (_, 3))) == "(4,(3,2),5):(1,(4,12),24)"
    with pytest.raises(NotDivisible, match="cover_divide"):
        cute.logical_divide(layout, (3,))


@pytest.mark.parametrize("count", MANY)
def test_cover_divide_pads_and_tells_where(count):
    rng = random.Random(12)
    padded = 0
    for _k in range(count):
        layout = make_layout(tuple(rng.randint(1, 7) for _m in range(2)))
        tiler = tuple(rng.randint(1, 4) for _m in range(2))
        cover = cute.cover_divide(layout, tiler)
        seen = {}
        for i in range(cover.layout.size):
            if cover.valid(i):
                point = cover.index(i)
                seen[point["e0"], point["e1"]] = cover.layout(i)
        assert seen == {(i, j): layout(i, j) for i in range(layout.shape[0]) for j in range(layout.shape[1])}
        whole = not (layout.shape[0] % tiler[0] or layout.shape[1] % tiler[1])
        assert cover.always_valid is whole
        padded += not whole
        if whole:
            assert cover.layout == cute.logical_divide(layout, tiler)
    assert padded


@pytest.mark.parametrize("count", MANY)
def test_logical_product_repeats_the_block(count):
    rng = random.Random(13)
    done = refused = 0
    for _k in range(count):
        block = random_compact(rng, 2) if rng.random() < 0.6 else random_layout(rng, most=4, parts=2)
        tile = (
            CuteLayout((2, 3), (rng.choice([1, 3, 2]), rng.choice([2, 1, 4])))
            if rng.random() < 0.5
            else random_compact(rng, 2)
        )
        values = sorted(set(table(block))) if 0 in cute.flat_tuple(block.stride) else table(block)
        if len(values) < prod(n for n, d in leaves_of(block.shape, block.stride) if d):
            continue  # values repeat beyond the modes of stride zero, of which only the image is seen here
        try:
            result = cute.logical_product(block, tile)
        except NoLayout:
            refused += 1
            exists = tiling_complement_exists(values)
            assert not exists or not has_layout(tiling_starts(values, max(table(tile)) + 1), tile)
            continue
        done += 1
        assert result[0] == block
        if tiling_complement_exists(values):
            spots = tiling_starts(values, max(table(tile)) + 1)
            assert table(result[1]) == [spots[j] for j in table(tile)]
        copies = [{start + v for v in values} for start in set(table(result[1]))]
        assert len(copies) == len(set(table(tile)))
        assert sum(map(len, copies)) == len(set().union(*copies)), "two copies overlap"
    assert done > count // 20


def tiling_complement_exists(values):
    return any(tiling_complement(values, m) for m in range(len(values), 400, len(values)))


def tiling_starts(values, how_many):
    """The first starts of the forced tiling of the non-negative integers."""
    covered, starts, v = set(), [], 0
    while len(starts) < how_many:
        if v not in covered:
            starts.append(v)
            assert not any(v + x in covered for x in values)
            covered.update(v + x for x in values)
        v += 1
    return starts


def test_products_of_the_documentation():
    block, grid = CuteLayout((2, 5), (5, 1)), CuteLayout((3, 4), (1, 3))
    blocked, raked = cute.blocked_product(block, grid), cute.raked_product(block, grid)
    for i, j, p, q in product(range(2), range(5), range(3), range(4)):
        want = block(i, j) + 10 * grid(p, q)
        assert blocked(i + 2 * p, j + 5 * q) == want
        assert raked(p + 3 * i, q + 4 * j) == want
    assert cute.tiled_product(block, grid).shape == ((2, 5), 3, 4)
    assert cute.flat_product(block, grid).shape == (2, 5, 3, 4)


@pytest.mark.parametrize("count", MANY)
def test_tile_to_shape_repeats_the_block(count):
    rng = random.Random(14)
    for _k in range(count):
        block = cute.make_ordered_layout((rng.randint(1, 3), rng.randint(1, 3)), rng.choice([(0, 1), (1, 0)]))
        counts = (rng.randint(1, 3), rng.randint(1, 3))
        target = tuple(n * c for n, c in zip(block.shape, counts, strict=True))
        order = rng.choice([(0, 1), (1, 0)])
        result = cute.tile_to_shape(block, target, order)
        grid = cute.make_ordered_layout(counts, order)
        assert [m.size for m in result] == list(target)
        for i, j in product(range(target[0]), range(target[1])):
            (p, x), (q, y) = divmod(i, block.shape[0]), divmod(j, block.shape[1])
            assert result(i, j) == block(x, y) + block.size * grid(p, q)
        ragged = tuple(rng.randint(1, t) for t in target)
        cover = cute.cover_tile_to_shape(block, ragged, order)
        real = [(i, j) for i in range(cover.layout[0].size) for j in range(cover.layout[1].size) if cover.valid(i, j)]
        assert real == list(product(range(ragged[0]), range(ragged[1])))
    with pytest.raises(NotDivisible):
        cute.tile_to_shape(make_layout((2, 2)), (3, 4))


# --- recast


@pytest.mark.parametrize("count", MANY)
def test_upcast_and_downcast_keep_the_units(count):
    rng = random.Random(15)
    done = 0
    for _k in range(count):
        layout = random_layout(rng, most=5) if rng.random() < 0.5 else random_compact(rng)
        factor = rng.choice([1, 2, 3, 4])
        try:
            fine = cute.downcast(layout, factor)
        except NoLayout:
            assert factor > 1 and all(n > 1 and d != 1 for n, d in layout.flat)
        else:
            assert sorted(table(fine)) == sorted(factor * v + k for v in table(layout) for k in range(factor))
            back = cute.upcast(fine, factor)
            assert sorted(table(back)) == sorted(table(layout))
        try:
            coarse = cute.upcast(layout, factor)
        except (NoLayout, NotDivisible):
            continue
        done += 1
        assert sorted(v // factor for v in table(layout)) == sorted(v for v in table(coarse) for _u in range(factor))
    assert done > count // 20


def test_recast_goes_through_the_common_unit():
    assert str(cute.recast_layout(make_layout((6, 4)), 24, 16)) == "(4,4):(1,4)"
    assert str(cute.recast_layout(make_layout((8, 4)), 32, 8)) == "(2,4):(1,2)"
    with pytest.raises(NotDivisible):
        cute.upcast(make_layout((3, 4)), 2)


# --- conversions


@pytest.mark.parametrize("count", MANY)
def test_the_two_conversions_keep_what_their_names_say(count):
    rng = random.Random(16)
    for _k in range(count):
        layout = random_layout(rng, parts=4)
        values = table(layout)
        by_index = cute.to_index_map(layout)
        assert [by_index(i)["m"] for i in range(layout.size)] == values
        back = cute.from_index_map(by_index)
        assert table(back) == values
        by_coordinate = cute.to_coordinate_map(layout)
        sizes = tuple(m.size for m in layout)
        strides = [prod(sizes[k + 1 :]) for k in range(len(sizes))]
        for point in product(*map(range, sizes)):
            row_major = sum(c * s for c, s in zip(point, strides, strict=True))
            value = layout(point) if isinstance(layout.shape, tuple) else layout(*point)
            assert by_coordinate(row_major)["m"] == value
        again = cute.from_coordinate_map(by_coordinate, sizes)
        assert [m.size for m in again] == list(sizes) and table(again) == values


def test_conversions_keep_named_axes_and_refuse_what_has_no_form():
    identity = cute.make_identity_layout((2, 3))
    assert table(cute.from_index_map(cute.to_index_map(identity))) == table(identity)
    core = cute.to_index_map(make_layout((2, 3)))
    shifted = type(core)(core.shard, (), Coord.of(5))
    with pytest.raises(NoLayout):
        cute.from_index_map(shifted)
    with pytest.raises(Incongruent):
        cute.from_coordinate_map(core, (4,))


def test_undecided_beyond_the_bound_never_guesses():
    a = CuteLayout((2, 1 << 13, 1 << 13), (1, 1, (1 << 13) + 2))
    b = CuteLayout((1 << 12, 1 << 12), (3, 3 << 12))
    with pytest.raises((NoLayout, Undecided)):
        composition(a, b)


# --- large and hard inputs: bounded work, right at every point that is looked at


@pytest.mark.parametrize("count", MANY)
def test_large_compositions_are_right_at_random_points_and_never_hang(count):
    rng = random.Random(17)
    done = 0
    for _k in range(count):
        powers = rng.random() < 0.7
        sizes = [2, 4, 8, 1 << 10, 1 << 16, 1 << 20] if powers else [2, 3, 6, 12, 1000, 3 << 10, 5**6]
        a = CuteLayout(
            tuple(rng.choice(sizes) for _m in range(3)), tuple(rng.choice([1, 3, 16, 1 << 21, -5]) for _m in range(3))
        )
        runs = [1, *(prod(n for n, _d in a.flat[: k + 1]) for k in range(2))]
        b = CuteLayout(
            tuple(rng.choice(sizes[:5]) for _m in range(2)),
            tuple(rng.choice(runs) * rng.choice([1, 1, 2, 4, 3]) for _m in range(2)),
        )
        try:
            c = composition(a, b)
        except NoLayout as refusal:
            assert refusal.witness.condition
            continue
        except Undecided as refusal:
            assert refusal.bound
            continue
        if cute.cosize(b) > a.size:
            continue
        done += 1
        for _point in range(20):
            i = rng.randrange(b.size)
            assert c(i) == a(b(i))
    assert done > count // 20


def test_a_hard_left_inverse_is_decided():
    hard = CuteLayout((4, 2, 6), (2495, 7, 9))
    with pytest.raises(NoLayout, match="no chain of levels"):
        cute.left_inverse(hard)


@pytest.mark.parametrize("count", MANY)
def test_composition_agrees_with_the_core(count):
    """The core decides the same question without profiles, by another road: what refines B there must exist here."""
    from tileweave.layout import compose, same_map

    rng = random.Random(18)
    both = 0
    for _k in range(count):
        a = random_layout(rng, most=6) if rng.random() < 0.5 else random_compact(rng)
        b = random_layout(rng, most=4, parts=2)
        try:
            ours = cute.to_index_map(composition(a, b))
        except NoLayout:
            continue
        if cute.cosize(b) > a.size or min(table(b)) < 0:
            continue  # the core's layouts end at their size
        assert same_map(ours, compose(cute.to_index_map(a), cute.to_index_map(b)))
        both += 1
    assert both


@pytest.mark.parametrize("count", MANY)
def test_layouts_with_coordinate_values_compose(count):
    rng = random.Random(19)
    done = 0
    for _k in range(count):
        a = cute.make_identity_layout(random_compact(rng).shape)
        b = random_layout(rng, most=4, parts=2)
        if min(table(b)) < 0 or max(table(b)) >= a.size:
            continue
        want = [a(i) for i in table(b)]
        try:
            assert [composition(a, b)(i) for i in range(b.size)] == want
            done += 1
        except NoLayout:
            numbers = [CuteLayout(a.shape, tuple(7**k for k in range(len(a.flat))))(i) for i in table(b)]
            leaves = leaves_of(b.shape, b.stride)
            assert not (len(leaves) == 1 and has_iters(numbers))
    assert done > count // 20


def test_refusals_read_well():
    with pytest.raises(NoLayout) as caught:
        composition(CuteLayout((6, 4), (8, 4)), CuteLayout((2, 3), (3, 2)))
    assert str(caught.value) == (
        "composition(a, b): the modes carry: at (1, 2) the value is 12, the modes alone add up to 56\n"
        "  a      (6,4):(8,4)\n"
        "  b      (2,3):(3,2)\n"
        "  legal  modes whose sum does not carry in the digits of the outer layout"
    )
    with pytest.raises(NotDivisible) as refused:
        cute.logical_divide(make_layout(8), 6)
    assert str(refused.value) == (
        "logical_divide(layout, tiler): 6, the period of the tile, does not divide the size 8\n"
        "  layout  8:1\n"
        "  tiler   6:1\n"
        "  legal   a size that 6 divides, or cover_divide, which pads to 12"
    )
    with pytest.raises(LayoutError) as bad:
        CuteLayout((4, 0), (1, 4))
    assert str(bad.value) == (
        "CuteLayout(shape, stride): extent 0 is not a positive integer\n  legal  integers from 1, or nested tuples"
    )


ODD = [
    0, -1, 7, 1 << 70, (2, 2), (2, (2, 2)), (), (0,), (_, 2), _, None, 1.5, "a", True, np.int64(2), np.array([1, 2]),
    Coord(), E(0), cute.Swizzle(1, 0, 1), CuteLayout(4, 1), CuteLayout((4, 4), (0, -1)),
]  # fmt: skip
SOUND = [CuteLayout(4, 1), CuteLayout(((2, 2), 4), ((1, 8), 2)), CuteLayout((), ()), CuteLayout(1 << 60, 1),
         cute.make_identity_layout((2, 3))]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["composition", "complement", "coalesce", "logical_divide", "flat_divide", "tiled_divide", "logical_product",
     "raked_product", "tile_to_shape", "cover_divide", "cover_tile_to_shape", "upcast", "downcast", "max_common_layout",
     "slice_", "dice", "get", "select", "ungroup", "crd2idx", "idx2crd", "make_layout", "make_ordered_layout"],
)  # fmt: skip
def test_malformed_input_is_refused_in_the_house_form(name):
    operation = getattr(cute, name)
    answers = 0
    for layout, odd in product(SOUND, ODD):
        try:
            operation(layout, odd)
            answers += 1
        except TileweaveError as refusal:
            assert refusal.where and refusal.problem
    assert answers < len(SOUND) * len(ODD)


def test_cute_names_stand_for_the_same_functions():
    assert cute.Layout is CuteLayout and cute.filter is cute.filter_layout and cute.slice is cute.slice_
    missing = [name for name in cute.__all__ if not hasattr(cute, name)]
    assert not missing


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_index_expressions_pass_through_layouts(count):
    from tileweave.index import evaluate, symbol

    rng = random.Random(20)
    for _k in range(count):
        layout = random_layout(rng)
        expr = layout(symbol("i", 0, layout.size))
        assert [evaluate(expr, {"i": i}) if not isinstance(expr, int) else expr for i in range(layout.size)] == table(
            layout
        )


def test_index_expressions_pass_through_swizzles_and_xor_layouts():
    from tileweave.index import evaluate, symbol

    i = symbol("i", 0, 512)
    swizzled = cute.ComposedLayout(cute.Swizzle(3, 3, 3), 0, CuteLayout((8, 64), (64, 1)))
    for layout in (swizzled, cute.xor_strides(swizzled), cute.f2_from_layout(swizzled), cute.Swizzle(2, 1, -3)):
        expr = layout(i)
        assert [evaluate(expr, {"i": k}) for k in range(512)] == [layout(k) for k in range(512)]
