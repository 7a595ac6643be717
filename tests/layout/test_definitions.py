"""Operations of Axe and LEGO against their definitions, for those that no other file draws 10,000 cases of (when slow).

Negative and zero strides, unit extents, several axes and replicas are all drawn. The definitions are plain loops.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from itertools import product as every
from math import prod
from random import Random

import numpy as np
import pytest

from strategies import PLAIN, VECTOR, fibres, random_layout, random_shape, values
from tileweave.errors import NoLayout
from tileweave.layout import (
    Coord,
    Iter,
    Layout,
    axe,
    common_refinement,
    direct_sum,
    direct_sum_of,
    group,
    lego,
    read,
    recover,
)
from tileweave.layout.lego import Chain, Col, GenP, GroupBy, OrderBy, PartialTiles, RegP, Row, TileBy, TileOrderBy

MANY = pytest.mark.parametrize("cases", [100, pytest.param(10_000, marks=pytest.mark.slow)])
AXES = ("lane", "m", "reg")


def drawn(rng, **more):
    return random_layout(rng, strides=rng.choice([PLAIN, VECTOR]), offsets=(0, 5, -3, {"lane": 2}), **more)


# Axe.


@MANY
def test_evaluation_at_integers_digits_arrays_and_shapes(cases):
    rng = Random(1)
    for _ in range(cases):
        layout = drawn(rng, copies=2)
        truth = fibres(layout)
        base = fibres(Layout(layout.shard, (), layout.offset))
        shape = random_shape(rng, layout.size)
        assert axe.admits(layout, shape)
        assert not axe.admits(layout, (*shape, 2))
        index = np.arange(layout.size)
        columns = layout(index)
        columns = columns if isinstance(columns, dict) else {layout.axes[0]: columns}
        for x, point in enumerate(every(*map(range, shape))):
            (want,) = base[x]
            assert layout(x).terms == layout.at(point, shape).terms == want
            assert all(int(column[x]) == dict(want).get(axis, 0) for axis, column in columns.items())
            assert layout.multiset_at(x) == Counter({Coord(terms): k for terms, k in truth[x].items()})
            assert layout.set_at(x) == {Coord(terms) for terms in truth[x]}
        digits = [it.extent for it in layout.shard]
        for x, point in enumerate(every(*map(range, digits))):
            assert layout(point) == layout(x)


@MANY
def test_span_bounds_and_cosize_are_those_of_every_value(cases):
    rng = Random(2)
    for _ in range(cases):
        layout = drawn(rng, copies=2)
        taken = [dict(terms) for fibre in fibres(layout) for terms in fibre]
        spans = axe.span(layout)
        for axis in AXES:
            here = [value.get(axis, 0) for value in taken]
            assert layout.bounds(axis) == (min(here), max(here))
            assert layout.span(axis) == max(here) - min(here) + 1
            assert layout.cosize(axis) == max(here) + 1
            used = any(axis in it.stride.axes for it in (*layout.shard, *layout.replica))
            assert spans[axis] == (layout.span(axis) if used else 0)


@MANY
def test_the_common_refinement_is_the_coarsest(cases):
    rng = Random(3)
    done = 0
    for _ in range(cases):
        size = rng.choice([12, 16, 24, 36])
        layouts = [
            Layout([(n, rng.choice(PLAIN)) for n in random_shape(rng, size, 4)]) for _ in range(rng.randint(1, 3))
        ]
        levels = {1}
        for layout in layouts:  # a step differs from the one before exactly at multiples of a level
            table = values(layout)
            steps = [b - a for a, b in pairwise(table)]
            levels |= {p for p in range(1, size) if size % p == 0 and _breaks(steps, p)} | {size}
        order = sorted(levels)
        try:
            shape = common_refinement(*layouts)
        except NoLayout:
            assert any(high % low for low, high in pairwise(order))
            continue
        done += 1
        assert {prod(shape[k:]) for k in range(len(shape) + 1)} == levels
        assert all(len(block) <= 1 for layout in layouts for block in group(layout, shape))
    assert done > cases // 10


def _breaks(steps, p):
    """Whether the step into p is not the sum of the coefficients of smaller levels (Moebius inversion at p)."""
    coefficients = {}
    for q in range(1, p + 1):
        if p % q == 0:
            coefficients[q] = steps[q - 1] - sum(c for d, c in coefficients.items() if q % d == 0)
    return coefficients[p] != 0


def shifted(fibre, by):
    return Counter({(Coord(terms) - by).terms: k for terms, k in fibre.items()})


def values_of(layout):
    return [Coord(next(iter(fibre))) for fibre in fibres(layout)]


def is_layout(table):
    try:
        recover(table)
    except NoLayout:
        return False
    return True


@MANY
def test_direct_sums_are_recognised_exactly(cases):
    rng = Random(4)
    found = refused = 0
    for _ in range(cases):
        shape_b = (rng.randint(1, 3),)
        shape_c = (rng.randint(1, 4),)
        b = Layout(((shape_b[0], rng.choice(PLAIN)),), (), rng.choice([0, 2]))
        if rng.random() < 0.5:
            c = Layout(((shape_c[0], rng.choice(PLAIN)),), [(2, 3)] * rng.randint(0, 1), 1)
            a = direct_sum(c, shape_c, b, shape_b)
        else:
            a = random_layout(rng, rank=3, extent=4, copies=rng.randint(0, 1))
            if a.size % shape_b[0]:
                continue
            shape_c = (a.size // shape_b[0],)
        shape_a = (shape_b[0] * shape_c[0],)
        fa, (count,) = fibres(a), shape_b
        steps = [Coord(terms) for fibre in fibres(b) for terms in fibre]  # b has no replicas: one value for each y
        rest = [[shifted(fa[x * count + y], steps[y]) for y in range(count)] for x in range(shape_c[0])]
        starts = values_of(Layout(a.shard, (), a.offset))[::count]
        splits = all(found == row[0] for row in rest for found in row) and is_layout(starts)
        try:
            c = direct_sum_of(a, shape_a, b, shape_b)
        except NoLayout:
            refused += 1
            assert not splits
        else:
            found += 1
            assert fibres(direct_sum(c, shape_c, b, shape_b)) == fa
    assert found > cases // 10 < refused


@MANY
def test_binding_leaves_the_loops_of_one_thread(cases):
    rng = Random(5)
    for _ in range(cases):
        layout = drawn(rng, copies=1)
        lead = list(layout.extents[: rng.randint(0, len(layout.shard))])
        coords = [rng.randrange(n) for n in lead]
        bound = axe.bind(layout, coords, lead)
        rest = layout.size // prod(lead)
        first = 0
        for c, n in zip(coords, lead, strict=True):
            first = first * n + c
        assert fibres(bound) == fibres(layout)[first * rest : (first + 1) * rest]


@MANY
def test_intersections_and_groups_answer_as_the_definitions_do(cases):
    rng = Random(6)
    strides = [*VECTOR, {"a": 2, "b": 4}, {"a": 3, "b": 6}, {"a": 1, "b": 1}]
    for _ in range(cases):
        a, b = (Iter(rng.randint(1, 9), rng.choice(strides)) for _ in range(2))
        both = {k * a.stride for k in range(a.extent)} & {k * b.stride for k in range(b.extent)}
        found = axe.intersect(a, b)
        assert Counter(k * found.stride for k in range(found.extent)) == Counter(both)
        layout = random_layout(rng, strides=VECTOR, rank=3)
        shape = random_shape(rng, layout.size)
        try:
            group(layout, shape)
        except NoLayout:
            assert not axe.groups(layout, shape)
        else:
            assert axe.groups(layout, shape)


@MANY
def test_text_and_repr_read_back(cases):
    rng = Random(7)
    names = {"read": read}
    for _ in range(cases):
        layout = drawn(rng, copies=2)
        assert axe.parse(str(layout)) == layout
        assert axe.parse(axe.to_text(layout, bare_axis="m")) == layout
        assert eval(repr(layout), names) == layout


# LEGO, row-major.


def row_major(index, dims):
    flat = 0
    for i, n in zip(index, dims, strict=True):
        flat = flat * n + i
    return flat


def some_dims(rng, rank=3, extent=4):
    return tuple(rng.randint(1, extent) for _ in range(rng.randint(1, rank)))


@MANY
def test_rows_columns_and_any_bijection_from_a_function(cases):
    rng = Random(8)
    for _ in range(cases):
        dims = some_dims(rng)
        points = list(every(*map(range, dims)))
        row, col = Row(*dims), Col(*dims)
        assert [row.apply(*p) for p in points] == list(range(len(points)))
        assert [col.apply(*p) for p in points] == [row_major(p[::-1], dims[::-1]) for p in points]
        assert all(row.inv(row.apply(*p)) == p and col.inv(col.apply(*p)) == p for p in points)
        order = rng.sample(range(len(points)), len(points))
        table = dict(zip(points, order, strict=True))
        piece = GenP(dims, lambda *p, table=table: table[p])
        assert [piece.apply(*p) for p in points] == order
        assert [piece.inv(v) for v in range(len(points))] == sorted(points, key=table.get)
        both = OrderBy(piece, col)
        assert both.dims == dims + dims
        for p, q in rng.sample(list(every(points, points)), min(20, len(points) ** 2)):
            flat = both.apply(*p, *q)
            assert flat == table[p] * len(points) + col.apply(*q)
            assert both.inv(flat) == p + q
        if len(points) > 1:
            table[points[rng.randrange(len(points))]] = rng.choice([-1, len(points), *order])
            if sorted(table.values()) != list(range(len(points))):
                with pytest.raises(NoLayout) as caught:
                    GenP(dims, lambda *p, table=table: table[p])
                witness = caught.value.witness
                assert all(table[p] == v for p, v in zip(witness.points, witness.values, strict=True))


@MANY
def test_tiles_by_levels_and_their_orders(cases):
    rng = Random(9)
    for _ in range(cases):
        rank, depth = rng.randint(1, 2), rng.randint(1, 3)
        levels = [tuple(rng.randint(1, 3) for _ in range(rank)) for _ in range(depth)]
        dims = tuple(prod(level[d] for level in levels) for d in range(rank))
        tiles = TileBy(*levels)
        pieces = [RegP(level, tuple(rng.sample(range(1, rank + 1), rank))) for level in levels]
        ordered = TileOrderBy(*pieces).GroupBy(dims)
        chained = Chain().TileOrderBy(*pieces).TileBy(*levels)
        for index in every(*(range(n) for level in levels for n in level)):
            place = [row_major(index[d::rank], [level[d] for level in levels]) for d in range(rank)]
            assert tiles[index] == row_major(place, dims)
            assert tiles.inv(tiles[index]) == index
            flat = 0
            for k, piece in enumerate(pieces):
                flat = flat * piece.size + piece.apply(*index[k * rank : (k + 1) * rank])
            assert ordered[tuple(place)] == chained[index] == flat
            assert ordered.inv(flat) == tuple(place)


@MANY
def test_core_layouts_that_are_bijections_come_and_go(cases):
    rng = Random(10)
    came = 0
    for _ in range(cases):
        extents = some_dims(rng, rank=4)
        order, strides, run = rng.sample(range(len(extents)), len(extents)), [0] * len(extents), 1
        for k in order:
            strides[k] = run * rng.choice([1, -1])
            run *= extents[k] * (2 if rng.random() < 0.05 else 1)
        core = Layout(list(zip(extents, strides, strict=True)))
        core = Layout(core.shard, (), -core.bounds()[0] + (1 if rng.random() < 0.05 else 0))
        table = values(core)
        shape = random_shape(rng, core.size)
        try:
            layout = lego.from_core(core, shape)
        except NoLayout:
            assert sorted(table) != list(range(core.size))
            continue
        came += 1
        assert layout.table().reshape(-1).tolist() == table
        assert values(lego.to_core(layout)) == table
    assert cases // 2 < came < cases


@MANY
def test_ready_made_bijections_of_random_sizes(cases):
    rng = Random(11)
    for _ in range(cases):
        n, m, bits = rng.randint(1, 6), rng.randint(1, 6), rng.randint(0, 2)
        two = 1 << bits
        dims = some_dims(rng)
        turned = [d for d in range(len(dims)) if rng.random() < 0.5]
        order = rng.sample(range(prod(dims)), prod(dims))
        size, heights = 1 + rng.randint(0, 3), {}
        for i in range(n):
            heights[i // size] = heights.get(i // size, 0) + 1
        brick = tuple(rng.choice([b for b in range(1, k + 1) if k % b == 0]) for k in dims)
        whole = tuple(k // b for k, b in zip(dims, brick, strict=True))
        wanted = {
            lego.antidiagonal(n): lambda i, j, n=n: sum(
                1 for a in range(n) for b in range(n) if (a + b, a) < (i + j, i)
            ),
            lego.xor_swizzle(n, two): lambda i, j, two=two: i * two + (j ^ i % two),
            lego.reversal(dims, turned): lambda *p, dims=dims, turned=turned: row_major(
                [k - 1 - x if d in turned else x for d, (x, k) in enumerate(zip(p, dims, strict=True))], dims
            ),
            lego.permutation(order, dims): lambda *p, dims=dims, order=order: order[row_major(p, dims)],
            lego.grouped(n, m, size): lambda i, j, m=m, size=size, heights=heights: (
                i // size * size * m + j * heights[i // size] + i % size
            ),
            lego.morton(two, two): lambda i, j: sum(
                ((i >> k & 1) << 2 * k + 1) + ((j >> k & 1) << 2 * k) for k in range(3)
            ),
        }  # fmt: skip
        for piece, definition in wanted.items():
            points = list(every(*map(range, piece.dims)))
            here = [piece.apply(*p) for p in points]
            assert here == [definition(*p) for p in points], piece
            assert [piece.inv(v) for v in here] == points, piece
        bricks = lego.bricks(dims, brick)
        for p in every(*map(range, dims)):
            outer, inner = zip(*(divmod(x, b) for x, b in zip(p, brick, strict=True)), strict=True)
            assert bricks[p] == row_major(outer, whole) * prod(brick) + row_major(inner, brick)
        curve = [lego.hilbert(two).inv(v) for v in range(two * two)]
        assert sorted(curve) == list(every(range(two), repeat=2))
        assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in pairwise(curve))


@MANY
def test_partial_tiles_of_reordered_spaces(cases):
    rng = Random(12)
    for _ in range(cases):
        dims = some_dims(rng, rank=2, extent=6)
        levels = [tuple(rng.randint(1, 3) for _ in dims) for _ in range(rng.randint(1, 2))]
        order = RegP(dims, tuple(rng.sample(range(1, len(dims) + 1), len(dims))))
        tiles = PartialTiles(dims, *levels, chain=OrderBy(order))
        seen = []
        for index in every(*map(range, tiles.index_dims)):
            place = [row_major(index[d :: len(dims)], [n[d] for n in (tiles.grid, *levels)]) for d in range(len(dims))]
            inside = all(x < n for x, n in zip(place, dims, strict=True))
            assert tiles.mask(*index) is inside
            assert tiles.coordinates(*index) == tuple(place)
            if inside:
                assert tiles.apply(*index) == order.apply(*place)
                seen.append(tiles.apply(*index))
        assert sorted(seen) == list(range(prod(dims)))
        assert GroupBy(dims, OrderBy(order)).table().size == prod(dims)
