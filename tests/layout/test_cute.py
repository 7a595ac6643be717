"""CuTe layouts against their definitions, enumerated: every answer at every point, every refusal by brute force."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings

from cute_definitions import (
    composes,
    has_iters,
    layouts,
    leaves_of,
    random_compact,
    random_layout,
    same,
    table,
    unbounded,
)
from tileweave.errors import Incongruent, LayoutError, NoLayout
from tileweave.layout import cute
from tileweave.layout.core.coord import Coord
from tileweave.layout.cute import CuteLayout, E, _, composition, make_layout

MANY = [300, pytest.param(10_000, marks=pytest.mark.slow)]


# --- values


def test_prints_and_parses_as_cute_does():
    layout = CuteLayout(((2, 2), 4), ((1, 8), 2))
    assert str(layout) == "((2,2),4):((1,8),2)"
    assert cute.parse(str(layout)) == layout
    assert eval(repr(layout)) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert cute.parse("(4,(2,3)):(-1,(1@0,2@1@0))").stride == (
        Coord.of(-1), (E(0), 2 * E(0, 1)),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "(2,3", "(2,3):(1)", "2:1:1", "a", "(2,,3)", "2:x", "(2)):1", "2:1 3"])
def test_malformed_text_is_refused(text):
    with pytest.raises(LayoutError):
        cute.parse(text)


@pytest.mark.parametrize("shape", [0, -1, 2.0, True, "4", None, (2, 0), (2, (3, -1))])
def test_bad_extents_are_refused(shape):
    with pytest.raises(LayoutError):
        CuteLayout(shape, shape)


@pytest.mark.parametrize("stride", [1.5, "1", None, True])
def test_bad_strides_are_refused(stride):
    with pytest.raises(LayoutError):
        CuteLayout(4, stride)


def test_incongruent_parts_are_refused():
    with pytest.raises(Incongruent):
        CuteLayout((2, 3), (1, (2, 3)))
    with pytest.raises(Incongruent):
        CuteLayout((2, 3), 1)


@pytest.mark.parametrize("count", MANY)
def test_evaluation_is_the_definition(count):
    rng = random.Random(1)
    for _k in range(count):
        layout = random_layout(rng)
        values = table(layout)
        assert [layout(i) for i in range(layout.size)] == values
        assert layout(np.arange(layout.size)).tolist() == values
        for i in range(layout.size):
            crd = cute.idx2crd(i, layout.shape)
            assert layout(crd) == values[i]
            assert cute.crd2idx(crd, layout.shape) == i
            if isinstance(crd, tuple):
                assert layout(*crd) == values[i]


@pytest.mark.parametrize(
    "bad", [-1, 24, (2, 0), (0, 3, 0), (0, (1, 1)), 1.5, True, "1", (0, None, 0), np.array([3, 24])]
)
def test_coordinates_out_of_range_are_refused(bad):
    with pytest.raises(LayoutError):
        result = CuteLayout((2, 12), (1, 2))(bad)
        assert isinstance(result, int)


def test_huge_layouts_are_exact():
    layout = CuteLayout((1 << 30, 1 << 30), (1 << 30, 1))
    assert layout.size == 1 << 60
    assert layout((1 << 60) - 1) == (1 << 60) - 1
    assert layout(np.array([(1 << 60) - 1])).tolist() == [(1 << 60) - 1]
    assert str(cute.complement(CuteLayout(1 << 30, 1 << 10), 1 << 60)) == f"({1 << 10},{1 << 20}):(1,{1 << 40})"
    wide = CuteLayout((4, 4), (1 << 62, 1))
    assert wide(np.arange(16)).tolist() == table(wide)


def test_long_arrays_agree_with_single_indices():
    layout = CuteLayout((7, (64, 9), 50), (3, (1000, -2), 64000))
    values = layout(np.arange(layout.size).reshape(2, -1)).reshape(-1)
    assert [int(values[i]) for i in range(0, layout.size, 997)] == [layout(i) for i in range(0, layout.size, 997)]
    assert values.size == layout.size and values.dtype == np.int64
    wide = CuteLayout((1 << 16, 2), (1 << 50, 1))
    assert wide(np.arange(1 << 17))[-1] == wide((1 << 17) - 1)


# --- shapes and coordinates


def test_profiles():
    assert cute.congruent((1, (2, 3)), (4, (5, 6))) and not cute.congruent((1, 2), (1, (2, 3)))
    assert cute.weakly_congruent(5, (1, 2)) and not cute.weakly_congruent((1, 2), 5)
    assert cute.compatible(24, (4, 6)) and cute.compatible((4, 6), ((2, 2), 6)) and not cute.compatible((2, 3), (3, 2))
    assert (cute.rank((2, (3, 4))), cute.depth((2, (3, 4))), cute.size((2, (3, 4)))) == (2, 2, 24)
    assert cute.depth(3) == 0 and cute.rank(CuteLayout(3, 1)) == 1


def test_crd2crd_goes_through_the_linear_index():
    for i in range(24):
        crd = cute.idx2crd(i, (4, 6))
        assert cute.crd2crd(crd, (4, 6), (2, (3, 4))) == cute.idx2crd(i, (2, (3, 4)))
    with pytest.raises(Incongruent):
        cute.crd2crd(0, 4, 5)


def test_constructors_state_their_order():
    assert str(make_layout((2, 3))) == "(2,3):(1,2)"
    assert str(make_layout(6)) == "6:1"
    assert str(cute.make_ordered_layout((2, 3), (1, 0))) == "(2,3):(3,1)"
    assert str(cute.make_identity_layout((2, 3))) == "(2,3):(1@0,1@1)"
    assert cute.make_identity_layout((2, 3))(1, 2) == Coord.of({"e0": 1, "e1": 2})
    assert str(cute.make_layout_like(CuteLayout((4, 3, 2), (10, 0, 1)))) == "(4,3,2):(2,0,1)"
    with pytest.raises(Incongruent):
        cute.make_ordered_layout((2, 3), (1, 0, 2))


def test_parts_select_and_regroup():
    layout = make_layout((2, 3, 4))
    assert str(cute.take(layout, 1, 3)) == "(3,4):(2,6)"
    assert cute.ungroup(cute.group(layout, 0, 2), 0) == layout
    assert cute.flatten(cute.group(layout, 0, 2)) == layout
    assert cute.shape(cute.group(layout, 0, 2), 0, 1) == 3 and cute.stride(layout, 2) == 6


@pytest.mark.parametrize("count", MANY)
def test_slice_and_dice_split_the_value(count):
    rng = random.Random(2)
    for _k in range(count):
        layout = random_layout(rng)
        point = cute.idx2crd(rng.randrange(layout.size), layout.shape)

        def hole(c):
            if isinstance(c, tuple) and rng.random() < 0.7:
                return tuple(map(hole, c))
            return _ if rng.random() < 0.5 else c

        crd = hole(point) if isinstance(point, tuple) else _
        sliced, offset = cute.slice_and_offset(layout, crd)
        assert layout(crd) == sliced if has_hole(crd) else True
        kept = [i for i in range(layout.size) if fits(crd, cute.idx2crd(i, layout.shape))]
        assert sorted(layout(i) for i in kept) == sorted(offset + v for v in table(sliced))
        assert [layout(i) for i in kept] == [offset + v for v in table(sliced)]
        assert sliced.size * cute.dice(layout, crd).size == layout.size


def has_hole(crd):
    return any(map(has_hole, crd)) if isinstance(crd, tuple) else crd is _


def fits(crd, point):
    if isinstance(crd, tuple):
        return all(map(fits, crd, point))
    return crd is _ or crd == point


# --- coalesce and filter


@pytest.mark.parametrize("count", MANY)
def test_coalesce_keeps_the_map_and_is_shortest(count):
    rng = random.Random(3)
    for _k in range(count):
        layout = random_layout(rng, parts=4)
        flat = cute.coalesce(layout)
        assert same(flat, layout)
        assert cute.coalesce(flat) == flat
        extents = [n for n, _d in flat.flat]
        assert all(n > 1 for n in extents) or extents == [1]
        profile = tuple(1 for _m in layout) if isinstance(layout.shape, tuple) else None
        by_mode = cute.coalesce(layout, profile)
        assert same(by_mode, layout)
        assert [m.size for m in by_mode] == [m.size for m in layout]
        filtered = cute.filter_layout(layout)
        assert set(table(filtered)) == set(table(layout))
        assert all(d for _n, d in filtered.flat) or filtered.size == 1


# --- composition


@pytest.mark.parametrize("count", [1500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_composition_is_the_definition_or_a_true_refusal(count):
    rng = random.Random(4)
    seen = {True: 0, False: 0}
    for _k in range(count):
        a = random_layout(rng, most=6) if rng.random() < 0.7 else random_compact(rng)
        b = random_layout(rng, most=4, parts=2)
        exists = composes(a, b)
        seen[exists] += 1
        if exists:
            c = composition(a, b)
            values = unbounded(a, max(map(abs, table(b))) + 1)
            assert table(c) == [values[i] if i >= 0 else -values[-i] for i in table(b)]
            assert cute.compatible(b, c)
        else:
            with pytest.raises(NoLayout) as caught:
                composition(a, b)
            check_composition_witness(caught.value.witness, a, b)
    assert min(seen.values()) > count // 20


def check_composition_witness(witness, a, b):
    """The witness must be a point that really breaks the condition."""
    leaves = leaves_of(b.shape, b.stride)
    if "divides" in witness.condition:
        return
    if "along row" in witness.condition:  # the steps into the second and the last point differ
        ats = [sum(c * d for c, (_n, d) in zip(point, leaves, strict=True)) for point in witness.points]
        values = [unbounded(a, at + 1)[at] for at in ats]
        assert values == list(witness.values)
        assert values[1] - values[0] != values[-1] - values[-2]
        return
    (point,) = witness.points
    at = sum(c * d for c, (_n, d) in zip(point, leaves, strict=True))
    if "0 <= value" in witness.condition:
        assert at < 0
        return
    values = unbounded(a, at + 1)
    assert values[at] == witness.values[0]
    assert witness.values[0] != witness.values[1]


@pytest.mark.parametrize("count", MANY)
def test_composition_of_wide_layouts_is_structural(count):
    """Scaling every extent of A's boundary leaves the answer to the structure: no enumeration at 2^60 points."""
    rng = random.Random(5)
    big = 1 << 40
    for _k in range(count):
        a = random_compact(rng)
        b = random_layout(rng, most=4, parts=2)
        if cute.cosize(b) > a.size:
            continue
        wide = CuteLayout((*(n for n, _d in a.flat), big), (*(d for _n, d in a.flat), a.size))
        try:
            small = composition(a, b)
        except NoLayout:
            continue
        assert composition(wide, b) == small
    assert composition(make_layout((big, 1 << 20)), make_layout(1 << 60)).size == 1 << 60


def test_composition_hint_names_the_coalesced_answer():
    a = CuteLayout((3, 2), (1, 10))
    with pytest.raises(NoLayout, match=r"composition\(a, coalesce\(b\)\), which is \(3,2\):\(1,10\)"):
        composition(a, CuteLayout((2, 3), (1, 2)))


def test_composition_takes_tilers_shapes_and_coordinates():
    a = make_layout((6, 8))
    assert str(composition(a, (2, 4))) == "(2,4):(1,6)"
    assert str(composition(a, (_, CuteLayout(2, 4)))) == "(6,2):(1,24)"
    assert str(composition(a, 12)) == "(6,2):(1,6)" or table(composition(a, 12)) == list(range(12))
    transposed = composition(a, CuteLayout((8, 6), (E(1), E(0))))
    assert [transposed(j, i) for i in range(6) for j in range(8)] == [a(i, j) for i in range(6) for j in range(8)]
    diagonal = composition(a, CuteLayout(6, E(0) + E(1)))
    assert table(diagonal) == [a(i, i) for i in range(6)]
    with pytest.raises(NoLayout):
        composition(a, CuteLayout(7, E(0)))
    with pytest.raises(Incongruent):
        composition(a, (1, 2, 3))
    with pytest.raises(LayoutError):
        composition(a, "4")


@pytest.mark.parametrize("count", MANY)
def test_composition_with_coordinate_strides_reads_modes(count):
    rng = random.Random(6)
    done = 0
    for _k in range(count):
        a = random_compact(rng)
        if not isinstance(a.shape, tuple):
            continue
        paths = [E(k) for k in range(len(a.shape))]
        b = CuteLayout(
            tuple(rng.choice([1, 2, 3]) for _m in range(2)),
            tuple(
                rng.choice([0, 1, 2]) * rng.choice(paths) + rng.choice([0, 0, 1]) * rng.choice(paths) for _m in range(2)
            ),
        )
        points = table(b)
        if any(p[f"e{k}"] >= n for p in points for k, n in enumerate(a.shape)):
            with pytest.raises(NoLayout):
                composition(a, b)
            continue
        want = [a(*(p[f"e{k}"] for k in range(len(a.shape)))) for p in points]
        try:
            assert table(composition(a, b)) == want
            done += 1
        except NoLayout:
            assert not coordinate_composes(a, b, want)
    assert done > count // 10


def coordinate_composes(a, b, want):
    (n, m) = b.shape
    rows = [want[i] for i in range(n)]
    columns = [want[j * n] for j in range(m)]
    return (
        has_iters(rows)
        and has_iters(columns)
        and all(want[i + j * n] == rows[i] + columns[j] for i in range(n) for j in range(m))
    )


@settings(max_examples=150, deadline=None)
@given(layouts(3), layouts(2), layouts(2))
def test_composition_is_associative(a, b, c):
    if cute.cosize(c) > b.size:
        return  # beyond its size a layout is read as it is written
    try:
        left = composition(composition(a, b), c)
        right = composition(a, composition(b, c))
    except NoLayout:
        return
    assert same(left, right)


@settings(max_examples=100, deadline=None)
@given(layouts(3))
def test_the_identity_is_neutral(a):
    assert same(composition(a, make_layout(a.size)), a)
    assert same(composition(make_layout(cute.cosize(a)), a), a)


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [("4:2", "8:1", "8:2"), ("(4,1):(2,100)", "8:1", "(4,2):(2,100)"), ("(4,2):(2,1)", "3:4", "3:1"),
     ("1:0", "8:1", "8:0"), ("(6,(2,2)):(1,(6,50))", "(12,4):(1,12)", "(12,4):(1,50)")],
)  # fmt: skip
def test_beyond_its_size_a_layout_runs_on_as_in_cute(a, b, result):
    assert str(composition(cute.parse(a), cute.parse(b))) == result


def test_a_layout_of_several_modes_has_no_values_below_zero():
    assert str(composition(CuteLayout(4, 2), CuteLayout(4, -1))) == "4:-2"
    for a in (CuteLayout((4, 2), (2, 1)), CuteLayout((4, 1), (2, 100))):
        with pytest.raises(NoLayout, match="the inner layout reaches -1"):
            composition(a, CuteLayout(2, -1))
