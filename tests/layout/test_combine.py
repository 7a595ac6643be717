"""Composition, grouping, tiles, sums, inverses: each against its definition, enumerated."""

from __future__ import annotations

from collections import Counter
from itertools import product as every
from math import prod
from random import Random

import pytest

from strategies import (
    PLAIN,
    VECTOR,
    coords_of,
    fibres,
    flat,
    is_layout,
    random_index_map,
    random_layout,
    random_shape,
    values,
)
from tileweave.errors import LayoutError, NoLayout, NotDivisible, Undecided
from tileweave.layout import (
    Coord,
    Layout,
    common_refinement,
    complement,
    compose,
    direct_sum,
    direct_sum_of,
    divide,
    group,
    left_inverse,
    normalize,
    product,
    recover,
    right_inverse,
    same_map,
    slice_layout,
    strided,
    tile,
    tile_of,
)

FEW = pytest.mark.parametrize("cases", [80, pytest.param(10_000, marks=pytest.mark.slow)])
MANY = pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])


# Composition.


@MANY
def test_composition_agrees_at_every_point_or_no_layout_exists(cases):
    rng = Random(1)
    done = refused = 0
    while done < cases:
        a = random_layout(rng, strides=rng.choice([PLAIN, VECTOR]), copies=rng.choice([0, 0, 1]), offsets=(0, 5))
        b = random_index_map(rng, a.size)
        if b is None:
            continue
        done += 1
        mine, index = fibres(a), values(b)
        truth = [mine[y] for y in index]
        base = coords_of(a)
        try:
            c = compose(a, b)
        except NoLayout as error:
            refused += 1
            assert not is_layout([base[y] for y in index])
            assert all(base[index[x]] == v for x, v in zip(error.witness.points, error.witness.values, strict=True))
        else:
            assert fibres(c) == truth
            assert normalize(c) == c
    assert 0 < refused < cases


@FEW
def test_composition_with_replicated_indices_agrees_as_multisets(cases):
    rng = Random(7)
    done = 0
    while done < cases:
        a = random_layout(rng, strides=rng.choice([PLAIN, VECTOR]), copies=1, extent=4)
        inner = random_layout(rng, rank=2, extent=4, copies=2)
        low, high = inner.bounds()
        if high - low >= a.size:
            continue
        done += 1
        b = Layout(inner.shard, inner.replica, inner.offset + Coord.of(-low))
        mine = fibres(a)
        truth = []
        for fibre in fibres(b):
            total: Counter[object] = Counter()
            for terms, k in fibre.items():
                for out, n in mine[dict(terms).get("m", 0)].items():
                    total[out] += k * n
            truth.append(total)
        try:
            c = compose(a, b)
        except NoLayout:
            lows = [min(t, key=lambda terms: [dict(terms).get(n, 0) for n in ("lane", "m", "reg")]) for t in truth]
            moved = [_translate(t, low) for t, low in zip(truth, lows, strict=True)]
            assert (
                any(t != moved[0] for t in moved)
                or not is_layout([Coord(low) for low in lows])
                or not _some_iters_sum_to(moved[0])
            )
        else:
            assert fibres(c) == truth


def _some_iters_sum_to(multiset):
    """Brute force over every list of iters whose extents multiply to the count and whose strides are sums."""

    def extents(n, least):
        yield ()
        for d in range(least, n + 1):
            if n % d == 0:
                for rest in extents(n // d, d):
                    yield (d, *rest)

    count = sum(multiset.values())
    for sizes in extents(count, 2):
        if prod(sizes) != count or len(multiset) ** len(sizes) > 50_000:
            continue
        for steps in every(multiset, repeat=len(sizes)):
            guess = Layout((), tuple((e, Coord(s)) for e, s in zip(sizes, steps, strict=True)))
            if fibres(guess)[0] == multiset:
                return True
    return False


def _translate(fibre, low):
    return Counter({(Coord(terms) - Coord(low)).terms: k for terms, k in fibre.items()})


def test_composition_is_associative_where_it_exists():
    rng = Random(17)
    checked = 0
    for _ in range(1500):
        a = random_layout(rng, strides=VECTOR)
        b = random_index_map(rng, a.size)
        c = b and random_index_map(rng, b.size)
        if c is None:
            continue
        try:
            left, right = compose(compose(a, b), c), compose(a, compose(b, c))
        except NoLayout:
            continue
        assert left == right
        checked += 1
    assert checked > 100


def test_composition_at_scale_is_structural():
    big = strided((2**20, 2**20, 2**20), (2**40, 1, 2**20))
    assert compose(big, strided((2**20, 2**10, 2**20, 2), (2**40, 2**10, 2**20, 1))).size == 2**51
    assert compose(big, strided((2**60,), (-1,), 2**60 - 1))(5) == big(2**60 - 6)
    assert compose(strided((2**20, 2, 2), (1000, 12, 8)), strided((2**20, 2), (4, 3))) == strided(
        (2**20, 2), (1000, 20)
    )
    with pytest.raises(NoLayout) as caught:
        compose(strided((2**20, 3, 5, 7), (1000, 12, 8, 1)), strided((2**18, 2, 3), (4, 3, 7)))
    assert caught.value.witness.points


def test_composition_refuses_what_is_outside():
    a = strided((4, 3), (10, 1))
    with pytest.raises(NoLayout, match="outside a's domain") as caught:
        compose(a, strided((13,), (1,)))
    assert caught.value.witness.points == (12,)
    with pytest.raises(NoLayout, match="outside a's domain"):
        compose(a, strided((2,), (-1,)))
    with pytest.raises(LayoutError, match="b moves along 1@lane"):
        compose(a, Layout(((2, {"lane": 1}),)))
    assert compose(a, Layout(((2, {"lane": 1}),)), axis="lane") == strided((2,), (1,))


def test_past_its_bound_composition_is_undecided_and_never_guesses(monkeypatch):
    rng = Random(1)
    undecided = 0
    for _ in range(1500):
        a = random_layout(rng)
        b = random_index_map(rng, a.size)
        if b is None:
            continue
        with monkeypatch.context() as patch:
            patch.setattr("tileweave.layout.core.composition.BOUND", 1)
            try:
                found = compose(a, b)
            except NoLayout as error:
                with pytest.raises(NoLayout):
                    compose(a, b)
                assert error.witness.points
                continue
            except Undecided as error:
                undecided += 1
                assert "bound" in error.facts
                continue
        assert found == compose(a, b)
    assert 0 < undecided < 200


# Grouping.


@MANY
def test_grouping_exists_exactly_if_the_map_is_a_sum_over_dimensions(cases):
    rng = Random(2)
    refused = 0
    for _ in range(cases):
        layout = random_layout(rng, strides=VECTOR, extent=6)
        shape = random_shape(rng, layout.size)
        base = coords_of(layout)
        weights = [prod(shape[k + 1 :]) for k in range(len(shape))]
        separable = all(
            base[sum(u * w for u, w in zip(point, weights, strict=True))] - base[0]
            == sum((base[u * w] - base[0] for u, w in zip(point, weights, strict=True)), Coord())
            for point in every(*map(range, shape))
        )
        try:
            blocks = group(layout, shape)
        except NoLayout as error:
            refused += 1
            assert not separable
            low, x = error.witness.points[1], error.witness.points[3]
            assert base[x] - base[x - 1] != base[low] - base[low - 1]
        else:
            assert separable
            assert [prod(it.extent for it in block) for block in blocks] == list(shape)
            whole = Layout(tuple(it for block in blocks for it in block), (), layout.offset)
            assert coords_of(whole) == base
            assert all(len(normalize(Layout(block)).shard) == len(block) for block in blocks)
    assert 0 < refused < cases


def test_the_common_refinement_groups_every_layout_by_single_iters():
    rng = Random(12)
    done = 0
    for _ in range(600):
        size = rng.choice([12, 16, 24, 36])
        a, b = (Layout([(n, rng.choice(PLAIN)) for n in random_shape(rng, size, 4)]) for _ in range(2))
        try:
            shape = common_refinement(a, b)
        except NoLayout as error:
            low, high = error.witness.points
            assert high % low
            continue
        done += 1
        for layout in (a, b):
            assert all(len(block) <= 1 for block in group(layout, shape))
        levels = {prod(shape[k:]) for k in range(len(shape) + 1)}
        assert all(_is_level(level, a) or _is_level(level, b) for level in levels)
    assert done > 50


def _is_level(level, layout):
    here = {1}
    for it in reversed(normalize(layout).shard):
        here.add(max(here) * it.extent)
    return level in here


# Tiles and sums.


def _grouped(rng, rank, strides=VECTOR, copies=1):
    """A layout with a shape by which it groups."""
    blocks = [[(rng.randint(1, 3), rng.choice(strides)) for _ in range(rng.randint(0, 2))] for _ in range(rank)]
    shape = tuple(prod(e for e, _ in block) for block in blocks)
    replica = [(2, rng.choice(strides)) for _ in range(rng.randint(0, copies))]
    return Layout([it for block in blocks for it in block], replica, rng.choice([0, 3, {"lane": -2}])), shape


def _interleaved(shape_a, shape_b):
    """Pairs (x, y) of linear indices in the order of the interleaved shape."""
    ranges = [range(n) for pair in zip(shape_a, shape_b, strict=True) for n in pair]
    for point in every(*ranges):
        yield flat(point[::2], shape_a), flat(point[1::2], shape_b)


def _sum(f, g, factors):
    out: Counter[object] = Counter()
    for s, k in f.items():
        for t, n in g.items():
            scaled = Coord(tuple((axis, v * factors.get(axis, 1)) for axis, v in s))
            out[(scaled + Coord(t)).terms] += k * n
    return out


@MANY
def test_tile_and_direct_sum_agree_with_their_definitions_and_are_recognised(cases):
    rng = Random(3)
    for _ in range(cases):
        rank = rng.randint(1, 2)
        (a, shape_a), (b, shape_b) = _grouped(rng, rank), _grouped(rng, rank)
        factors = {axis: b.span(axis) for axis in ("lane", "m", "reg")}
        fa, fb = fibres(a), fibres(b)
        whole = tuple(n * k for n, k in zip(shape_a, shape_b, strict=True))
        for operation, back, scale in ((tile, tile_of, factors), (direct_sum, direct_sum_of, {})):
            made = operation(a, shape_a, b, shape_b)
            assert fibres(made) == [_sum(fa[x], fb[y], scale) for x, y in _interleaved(shape_a, shape_b)]
            assert same_map(back(made, whole, b, shape_b), a)


@MANY
def test_tile_of_is_sound_and_complete(cases):
    rng = Random(4)
    found = refused = 0
    while found + refused < cases:
        rank = rng.randint(1, 2)
        if rng.random() < 0.5:
            b, shape_b = _grouped(rng, rank, PLAIN[:6])
            c, shape_c = _grouped(rng, rank, PLAIN[:6])
            a, shape_a = tile(c, shape_c, b, shape_b), tuple(n * k for n, k in zip(shape_c, shape_b, strict=True))
            a = Layout([(it.extent, rng.choice([it.stride, 2 * it.stride])) for it in a.shard], a.replica, a.offset)
        else:
            b, shape_b = _grouped(rng, rank, [1, 2], 0)
            shape_a = tuple(n * rng.randint(1, 3) for n in shape_b)
            a = Layout([(n, rng.choice(PLAIN)) for n in random_shape(rng, prod(shape_a))])
        if prod(shape_a) != a.size:
            continue
        shape_c = tuple(n // k for n, k in zip(shape_a, shape_b, strict=True))
        try:
            c = tile_of(a, shape_a, b, shape_b)
        except NoLayout:
            refused += 1
            assert not _brute_tile_of(a, b, shape_b, shape_c)
        else:
            found += 1
            assert same_map(tile(c, shape_c, b, shape_b), a)
            assert normalize(c) == c
    assert found > cases // 10 < refused


def _brute_tile_of(a, b, shape_b, shape_c):
    """Whether C exists: its values are forced at y = 0, so they are read off, recovered and put together again."""
    factors = {axis: b.span(axis) for axis in ("lane", "m", "reg")}
    base_a, base_b = coords_of(Layout(a.shard)), coords_of(Layout(b.shard))
    outer: dict[int, Coord] = {}
    for k, (x, y) in enumerate(_interleaved(shape_c, shape_b)):
        if y == 0:
            outer[x] = base_a[k]
        if base_a[k] != outer[x] + base_b[y]:
            return False
    if any(v % factors[axis] for c in outer.values() for axis, v in c.terms):
        return False
    try:
        c = recover([Coord(tuple((n, v // factors[n]) for n, v in outer[x].terms)) for x in range(prod(shape_c))])
        group(c, shape_c)
    except NoLayout:
        return False
    ra, rb = normalize(Layout((), a.replica, a.offset)), normalize(Layout((), b.replica, b.offset))
    shift = ra.offset - rb.offset
    if any(v % factors[axis] for axis, v in shift.terms):
        return False
    return _replicas_divide(ra, rb, factors)


def _replicas_divide(whole, part, factors):
    """Brute force over at most two replica iters for C."""
    want = fibres(Layout((), whole.replica))[0]
    have = fibres(Layout((), part.replica))[0]
    total, rest = sum(want.values()), sum(have.values())
    if total % rest:
        return False
    limit = 2 * max((abs(v) for terms in want for _, v in terms), default=0) + 1
    steps = range(limit)
    for pair in every(*[[(e, s) for e in range(1, total // rest + 1) for s in steps]] * 2):
        if pair[0][0] * pair[1][0] != total // rest:
            continue
        guess = fibres(Layout((), pair))[0]
        if _sum(guess, have, factors) == want:
            return True
    return False


def test_tile_has_a_unit_on_both_sides_and_is_associative():
    rng = Random(5)
    unit = Layout()
    for _ in range(200):
        rank = rng.randint(1, 2)
        one = (1,) * rank
        (a, sa), (b, sb), (c, sc) = (_grouped(rng, rank) for _ in range(3))
        assert same_map(tile(a, sa, unit, one), a)
        assert same_map(tile(unit, one, a, sa), a)
        ab, bc = (tuple(n * k for n, k in zip(s, t, strict=True)) for s, t in ((sa, sb), (sb, sc)))
        left = tile(tile(a, sa, b, sb), ab, c, sc)
        right = tile(a, sa, tile(b, sb, c, sc), bc)
        assert same_map(left, right)
        for axis in ("lane", "m"):
            assert tile(a, sa, b, sb).span(axis) == a.span(axis) * b.span(axis)


def test_tile_of_with_replica_sets_that_collide():
    b = Layout(((2, 1),))
    twice = Layout(((4, 1),), ((2, 4), (2, 4)))
    once = Layout(((4, 1),), ((3, 4),))
    assert tile_of(once, (4,), b, (2,)) == Layout(((2, 1),), ((3, 2),))
    assert tile_of(twice, (4,), b, (2,)) == Layout(((2, 1),), ((2, 2), (2, 2)))
    spread = Layout(((2, 1),), ((2, 1), (2, 1)))
    whole = Layout(((2, 1),), ((3, 1), (2, 4)))
    with pytest.raises(NoLayout):
        tile_of(whole, (2,), spread, (2,))
    assert tile_of(whole, (2,), spread, (2,), replicas="set") == Layout((), ((2, 1),))


def test_one_number_is_a_shape_of_one_dimension():
    a, b = strided((2,), (1,)), strided((3,), (2,))
    assert tile(a, 2, b, 3) == tile(a, (2,), b, (3,))
    assert tile_of(tile(a, 2, b, 3), 6, b, 3) == a
    assert direct_sum(a, 2, b, 3) == direct_sum(a, (2,), b, (3,))
    assert group(strided((4, 6), (6, 1)), 24) == group(strided((24,), (1,)), (24,))
    assert slice_layout(strided((8,), (3,)), 8, 2, 4) == Layout(((4, 3),), (), 6)
    assert strided(4, 2) == strided((4,), (2,))
    assert strided(4, 2).at(3, 4) == Coord.of(6)


def test_bad_shapes_are_named():
    a, b = strided((4,), (1,)), strided((2,), (1,))
    with pytest.raises(NotDivisible, match="does not divide"):
        tile_of(strided((3,), (1,)), (3,), b, (2,))
    with pytest.raises(LayoutError, match="ranks 1 and 2 differ"):
        tile(a, (4,), b, (2, 1))
    with pytest.raises(LayoutError, match="has 3 points"):
        group(a, (3,))
    with pytest.raises(LayoutError, match="extent 0 is not a positive integer"):
        group(a, (0,))
    with pytest.raises(LayoutError, match="extent 'x' is not an integer"):
        group(a, ("x",))
    with pytest.raises(LayoutError, match="the sizes differ"):
        common_refinement(a, b)


# Slices.


@MANY
def test_complement_tiles_the_range_or_none_exists(cases):
    rng = Random(13)
    found = 0
    for _ in range(cases):
        layout = random_layout(rng, rank=3, extent=4)
        size = layout.size * rng.choice([1, 2, 3, 4, 6])
        try:
            rest = complement(layout, size)
        except NoLayout:
            if size <= 48:
                assert not _brute_complement(sorted(values(layout)), size)
        else:
            found += 1
            total = sorted(x + y for x in values(layout) for y in values(rest))
            assert total == list(range(size))
            strides = [it.stride["m"] for it in rest.shard]
            assert strides == sorted(strides, reverse=True)
    assert found > cases // 20


def _brute_complement(mine, size):
    """Whether iters exist whose sums tile [0, size) with `mine`: the tiling set is forced greedily, then factored."""
    low = mine[0]
    if size % len(mine):
        return False
    free, starts = set(range(size)), []
    while free:
        first = min(free)
        block = [first + v - low for v in mine]
        if len(set(block)) != len(block) or not free.issuperset(block):
            return False
        free.difference_update(block)
        starts.append(first)
    from tileweave.layout.core.replicas import factor_multiset

    return factor_multiset(Counter(Coord.of(s) for s in starts)) is not None


@MANY
def test_divide_and_product_keep_their_promises(cases):
    rng = Random(15)
    divided = made = 0
    for _ in range(cases):
        layout = Layout([(rng.choice([2, 3, 4]), rng.choice(PLAIN)) for _ in range(3)])
        tiler = strided((rng.choice([1, 2, 3, 4]),), (rng.choice([1, 2, 3, 4]),))
        mine, inside = values(layout), values(tiler)
        try:
            parts = divide(layout, tiler)
        except NoLayout:
            pass
        else:
            divided += 1
            starts = values(complement(tiler, layout.size))
            assert values(parts) == [mine[s + y] for s in starts for y in inside]
            assert sorted(values(parts)) == sorted(mine)
        block = strided((rng.choice([2, 3]), rng.choice([2, 4])), (rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 3])))
        try:
            whole = product(block, tiler)
        except NoLayout:
            continue
        made += 1
        table = values(whole)
        assert table[: block.size] == values(block)
        assert len(set(table)) == len(table) == tiler.size * block.size
    assert divided > cases // 10 < made


def test_inverses_refuse_what_has_none():
    with pytest.raises(NoLayout, match="indices collide"):
        left_inverse(strided((2, 2), (1, 1)))
    with pytest.raises(LayoutError, match="is negative"):
        left_inverse(strided((4,), (-1,)))
    with pytest.raises(NoLayout, match="least value"):
        right_inverse(strided((4,), (1,), 1))
    with pytest.raises(LayoutError, match="leaves the axis m"):
        complement(Layout(((2, {"lane": 1}),)), 4)
    with pytest.raises(LayoutError, match="replicated"):
        right_inverse(Layout(((2, 1),), ((2, 2),)))
    with pytest.raises(LayoutError, match="is not a positive integer"):
        complement(strided((2,), (1,)), 0)
    with pytest.raises(LayoutError, match="is not a layout or a positive integer"):
        divide(strided((4,), (1,)), 0)
    assert left_inverse(strided((2**30, 2**29), (2**29, 1)))(2**40) == Coord.of(2**40)
    assert right_inverse(strided((8, 4), (-4, 1), 28)) == Layout(((8, -4), (4, 1)), (), 28)
