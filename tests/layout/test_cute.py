"""CuTe layouts against their definitions, enumerated: every answer at every point, every refusal by brute force."""

from __future__ import annotations

import pickle
import random
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import any_left_inverse
from tileweave.errors import Incongruent, LayoutError, NoLayout, NotDivisible, TileweaveError, Undecided
from tileweave.layout import cute
from tileweave.layout.core.coord import Coord
from tileweave.layout.cute import CuteLayout, E, _, composition, make_layout

MANY = [300, pytest.param(10_000, marks=pytest.mark.slow)]


# --- the definitions, enumerated


def table(layout):
    """The values at all linear indices, first mode fastest, from the definition alone."""
    leaves = leaves_of(layout.shape, layout.stride)
    out = [0 * leaves[0][1]] if leaves else [0]
    for n, d in leaves:
        out = [base + k * d for k in range(n) for base in out]
    return out


def leaves_of(shape, stride):
    if isinstance(shape, tuple):
        return [leaf for s, d in zip(shape, stride, strict=True) for leaf in leaves_of(s, d)]
    return [(shape, stride)]


def has_iters(f):
    """Whether the values f on [0, len f) are those of some list of iters: all chains of divisors are tried."""
    n = len(f)
    if f[0]:
        return False
    if all(v == i * f[1] for i, v in enumerate(f)) if n > 1 else True:
        return True
    for q in range(2, n):
        if n % q or any(f[i] != i * f[1] for i in range(q)):
            continue
        outer = [f[i * q] for i in range(n // q)]
        if all(f[i + q * k] == f[i] + outer[k] for i in range(q) for k in range(n // q)) and has_iters(outer):
            return True
    return False


def unbounded(layout, count):
    """The values at [0, count) with the last leaf running on, as CuTe reads a layout beyond its size."""
    *leaves, (_n, last) = leaves_of(layout.shape, layout.stride) or [(1, 0)]
    out = []
    for i in range(count):
        value = 0 * last
        for n, d in leaves:
            i, digit = divmod(i, n)
            value = value + digit * d
        out.append(value + i * last)
    return out


def is_linear(layout):
    """Whether the layout read without bound is one mode, which goes on below zero too."""
    values = unbounded(layout, 2 * layout.size + 1)
    return values == [i * values[1] for i in range(len(values))]


def composes(a, b):
    """Whether some layout that refines b has the values a(b(c)): additive over the leaves of b, iters along each."""
    inner = table(b)
    values = unbounded(a, max(inner) + 1)
    if min(inner) < 0:
        return is_linear(a)
    return has_layout(values, b)


def has_layout(values, b):
    """Whether some layout that refines b has the values at b(c): additive over its leaves, iters along each."""
    leaves = leaves_of(b.shape, b.stride)
    along = [[values[k * d] for k in range(n)] for n, d in leaves]
    for point in product(*(range(n) for n, _d in leaves)):
        at = sum(c * d for c, (_n, d) in zip(point, leaves, strict=True))
        if values[at] != sum(f[c] for f, c in zip(along, point, strict=True)):
            return False
    return all(map(has_iters, along))


def random_tree(rng, parts, most):
    """A random nesting of `parts` leaves (extent, stride)."""
    leaves = [
        (rng.choice([1, 2, 2, 3, 4, 5, 6][:most]), rng.choice([0, 1, 1, 2, 3, 4, 5, 6, 8, 9, 12, -1, -3]))
        for _k in range(parts)
    ]

    def nest(items):
        if len(items) == 1 and rng.random() < 0.8:
            return items[0]
        if len(items) <= 1 or rng.random() < 0.5:
            return tuple(i[0] for i in items), tuple(i[1] for i in items)
        cut = rng.randrange(1, len(items))
        halves = [nest(items[:cut]), nest(items[cut:])]
        return tuple(h[0] for h in halves), tuple(h[1] for h in halves)

    return CuteLayout(*nest(leaves))


def random_layout(rng, most=5, parts=3):
    return random_tree(rng, rng.randint(1, parts), most)


def random_compact(rng, parts=3, most=6):
    """A layout onto [0, size), its modes permuted."""
    extents = [rng.choice([1, 2, 2, 3, 4, 5][:most]) for _k in range(rng.randint(1, parts))]
    order = list(range(len(extents)))
    rng.shuffle(order)
    return cute.make_ordered_layout(tuple(extents), tuple(order))


def same(a, b):
    return table(a) == table(b)


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


small = st.integers(1, 4)
strides = st.integers(0, 6)


@st.composite
def layouts(draw, modes=2):
    rank = draw(st.integers(1, modes))
    return CuteLayout(tuple(draw(small) for _k in range(rank)), tuple(draw(strides) for _k in range(rank)))


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
