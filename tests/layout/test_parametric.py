"""Layouts with symbols: an operation and then values for the symbols is the operation on the layout with the values."""

from __future__ import annotations

from itertools import product as every
from math import prod
from random import Random

import pytest

from strategies import fibres
from tileweave.errors import LayoutError, NoLayout, Unproved
from tileweave.index import evaluate, ops, prove, simplify, symbol, symbols, symbols_of
from tileweave.layout import (
    Coord,
    Iter,
    Layout,
    axe,
    collision,
    common_refinement,
    complement,
    compose,
    direct_sum,
    direct_sum_of,
    divide,
    group,
    is_contiguous,
    is_injective,
    normalize,
    product,
    same_map,
    slice_layout,
    substitute,
    tile,
    tile_of,
)
from tileweave.layout.lego import TileBy

MANY = pytest.mark.parametrize("cases", [20, pytest.param(1000, marks=pytest.mark.slow)])
POINTS = 10  # values of the symbols tried for each symbolic case: 10,000 cases in the slow suite

N, M, B = symbols("n m b", 1)
EVEN = symbol("even", 2, multiple_of=2)
NAMES = ("n", "m", "b", "even")
EXTENTS = [N, M, B, EVEN, 2 * N, N * M, 1, 2, 3, 4]


def values_of(rng):
    return {"n": rng.randint(1, 3), "m": rng.randint(1, 3), "b": rng.randint(1, 4), "even": rng.choice([2, 4])}


def number(value, at):
    if isinstance(value, int):
        return value
    return evaluate(value, {str(s): at[str(s)] for s in symbols_of((value,))})


def numbers(shape, at):
    return tuple(number(n, at) for n in shape)


def nested(rng, rank=3, gaps=True):
    """A layout whose strides are those of a padded mixed radix, in any order, some of them negative."""
    extents = [rng.choice(EXTENTS) for _ in range(rng.randint(1, rank))]
    pitch, rows = 1, []
    for e in extents:
        rows.append((e, rng.choice([pitch, pitch, -pitch])))
        pitch = pitch * e * (rng.choice([1, 1, 2, N]) if gaps else 1)
    if rng.random() < 0.5:
        rng.shuffle(rows)
    else:
        rows.reverse()
    return Layout([(e, rng.choice([s, s, {"lane": s}]) if gaps else s) for e, s in rows])


def random_layout(rng, rank=3, copies=1):
    """A layout of arbitrary strides."""
    strides = [0, 1, 2, N, M, 2 * B, N * M, -N, {"lane": 1}, {"lane": B, "m": -1}]
    shard = [(rng.choice(EXTENTS), rng.choice(strides)) for _ in range(rng.randint(0, rank))]
    replica = [(rng.choice([2, N]), rng.choice([1, M, -B])) for _ in range(rng.randint(0, copies))]
    return Layout(shard, replica, rng.choice([0, 5, N, M * B - 1]))


def agree(symbolic, make, rng):
    """The symbolic result with values for its symbols, against the operation on numbers."""
    for _ in range(POINTS):
        at = values_of(rng)
        assert fibres(substitute(symbolic, at)) == fibres(make(at)), at


@MANY
def test_the_normal_form_keeps_the_map(cases):
    rng = Random(1)
    merged = 0
    for _ in range(cases):
        layout = random_layout(rng) if rng.random() < 0.5 else nested(rng)
        normal = normalize(layout)
        merged += len(normal.shard) < len(layout.shard)
        agree(normal, lambda at, layout=layout: substitute(layout, at), rng)
        assert normalize(normal) == normal
        assert same_map(layout, normal)
    assert merged > cases // 10


@MANY
def test_evaluation_bounds_and_sizes_agree_with_numbers(cases):
    rng = Random(2)
    for _ in range(cases):
        layout = random_layout(rng, copies=0)
        x = symbol("x", 0, layout.size)
        found = layout(x)
        for _ in range(POINTS):
            at = values_of(rng)
            here = substitute(layout, at)
            k = rng.randrange(here.size)
            at = {**at, "x": k}
            got = {axis: number(v, at) for axis, v in (found.items() if isinstance(found, dict) else [("", found)])}
            assert all(here(k)[axis or layout.axes[0]] == v for axis, v in got.items())
            assert number(layout.size, at) == here.size
            for axis in ("m", "lane"):
                assert numbers(layout.bounds(axis), at) == here.bounds(axis)
                assert number(layout.span(axis), at) == here.span(axis)
                assert number(layout.cosize(axis), at) == here.cosize(axis)


def blocks_as_layout(blocks, offset=0):
    return Layout([it for block in blocks for it in block], (), offset)


@MANY
def test_grouping_by_a_shape_whose_products_are_proved_equal(cases):
    rng = Random(3)
    done = 0
    for _ in range(cases):
        layout = random_layout(rng, rank=4, copies=0)
        extents, shape = list(layout.extents), []
        while extents:  # neighbours joined, one extent of two factors split
            take = rng.randint(1, 2)
            shape.append(prod(extents[:take]))
            extents = extents[take:]
        if rng.random() < 0.3:
            shape.insert(rng.randint(0, len(shape)), 1)
        blocks = group(layout, shape)
        done += 1
        for _ in range(POINTS):
            at = values_of(rng)
            here = substitute(layout, at)
            cut = [substitute(Layout(block), at) for block in blocks]
            assert [block.size for block in cut] == list(numbers(shape, at))
            assert fibres(substitute(blocks_as_layout(blocks, layout.offset), at)) == fibres(here)
            assert fibres(here) == fibres(blocks_as_layout(group(here, numbers(shape, at)), here.offset))
    assert done == cases


@MANY
def test_tiles_and_sums_agree_and_are_taken_apart(cases):
    rng = Random(4)
    apart = 0
    for _ in range(cases):
        a, b = nested(rng, 2), nested(rng, 2)
        if rng.random() < 0.5:
            a = Layout(a.shard, [(N, 1)], 3)
        shape_a, shape_b = (a.size,), (b.size,)
        for operation, back in ((tile, tile_of), (direct_sum, direct_sum_of)):
            whole = operation(a, shape_a, b, shape_b)

            def make(at, operation=operation, a=a, b=b):
                here, there = substitute(a, at), substitute(b, at)
                return operation(here, (here.size,), there, (there.size,))

            agree(whole, make, rng)
            try:
                found = back(whole, (a.size * b.size,), b, shape_b)
            except Unproved as error:
                assert error.facts["condition"] is not None
                continue
            apart += 1
            agree(found, lambda at, a=a: substitute(a, at), rng)
    assert apart > cases // 2


@MANY
def test_composition_where_divisibility_is_proved(cases):
    rng = Random(5)
    done = refused = 0
    for _ in range(cases):
        a = random_layout(rng, rank=3)
        rows = [(e, prod(a.extents[k + 1 :])) for k, e in enumerate(a.extents)]
        rng.shuffle(rows)
        rows = rows[: rng.randint(0, len(rows))]
        rows = [(rng.choice([e, 1]) if rng.random() < 0.2 else e, s) for e, s in rows]
        start = 0
        if rows and rng.random() < 0.4:
            e, s = rows[0]
            rows[0], start = (e, -s), (e - 1) * s
        b = Layout(rows, (), start)
        try:
            c = compose(a, b)
        except Unproved:
            refused += 1
            continue
        done += 1
        agree(c, lambda at, a=a, b=b: compose(substitute(a, at), substitute(b, at)), rng)
    assert done > refused


@MANY
def test_slices_with_symbolic_begin_and_extent(cases):
    rng = Random(6)
    done = 0
    for _ in range(cases):
        layout = random_layout(rng, rank=3)
        shape = layout.extents or (1,)
        begin, extent = [], []
        for k, n in enumerate(shape):
            kind = rng.randint(0, 2)
            if kind == 0:
                begin.append(0)
                extent.append(n)
            elif kind == 1:
                begin.append(symbol(f"u{k}", 0, n))
                extent.append(1)
            else:
                begin.append(symbol(f"u{k}", 0, n))
                extent.append(n - begin[-1])
        found = slice_layout(layout, shape, begin, extent)
        done += 1
        for _ in range(POINTS):
            at = values_of(rng)
            at |= {f"u{k}": rng.randrange(number(n, at)) for k, n in enumerate(shape)}
            want = slice_layout(substitute(layout, at), numbers(shape, at), numbers(begin, at), numbers(extent, at))
            assert fibres(substitute(found, at)) == fibres(want)
    assert done == cases


@MANY
def test_numeric_extents_with_symbolic_strides_slice_and_compose(cases):
    rng = Random(9)
    done = 0
    strides = [1, 2, N, M, N * M, -N, 2 * N, {"lane": B}, 0]
    for _ in range(cases):
        layout = Layout(
            [(rng.randint(1, 4), rng.choice(strides)) for _ in range(rng.randint(0, 3))], (), rng.choice([0, M])
        )
        if rng.random() < 0.5:  # equal steps on both sides of a turn, and runs that go on
            layout = Layout([(3, N * 4), (4, N)]) if rng.random() < 0.5 else Layout([(3, M), (4, N)])
        begin = rng.randrange(layout.size)
        extent = rng.randint(1, layout.size - begin)
        inner = Layout([(extent, 1)], (), begin)
        for call in (
            lambda it, begin=begin, extent=extent: slice_layout(it, (it.size,), (begin,), (extent,)),
            lambda it, inner=inner: compose(it, inner),
        ):
            try:
                found = call(layout)
            except Unproved:
                continue
            except NoLayout:
                with pytest.raises(NoLayout):
                    call(substitute(layout, values_of(rng)))
                continue
            done += 1
            agree(found, lambda at, call=call, layout=layout: call(substitute(layout, at)), rng)
    assert done > cases


@MANY
def test_complements_divides_and_products_agree(cases):
    rng = Random(7)
    done = 0
    for _ in range(cases):
        layout = nested(rng, 2, gaps=False)
        tiles = rng.choice([N, M, 2, 3])
        calls = [
            lambda t, n: complement(t, n * t.cosize()),
            lambda t, n: divide(Layout(((n * t.size, 3),)), n),
            product,
        ]
        for call in calls:
            flat = Layout(layout.shard, (), -layout.bounds()[0])
            try:
                found = call(flat, tiles)
            except Unproved:
                continue
            done += 1
            agree(
                found, lambda at, call=call, flat=flat, tiles=tiles: call(substitute(flat, at), number(tiles, at)), rng
            )
    assert done > 2 * cases


@MANY
def test_injective_and_contiguous_are_proved_or_refuted_by_values(cases):
    rng = Random(8)
    seen = {True: 0, False: 0, None: 0}
    for _ in range(cases):
        layout = rng.choice([nested(rng), nested(rng, gaps=False), random_layout(rng, copies=0)])
        if rng.random() < 0.7:
            layout = Layout(layout.shard, (), -layout.bounds()[0])
        for decide in (is_injective, is_contiguous):
            try:
                answer = decide(layout)
            except Unproved:
                answer = None
            seen[answer] += 1
            found = [decide(substitute(layout, values_of(rng))) for _ in range(POINTS)]
            if answer:
                assert all(found)
            if answer is False:
                corner = (
                    {name: rng.randint(1, most) for name in "nmb"} | {"even": 2 * rng.randint(1, most)}
                    for most in (1, 2, 4, 8, 16, 32, 64)
                    for _ in range(300)
                )
                assert any(not decide(substitute(layout, at)) for at in corner)
    assert seen[True] > seen[None]
    assert seen[False]


def test_the_common_refinement_of_symbolic_layouts():
    a, b = Layout(((N, 1), (4 * M, N))), Layout(((N * 2, 0), (2 * M, 1)))
    shape = common_refinement(a, b)
    assert [str(n) for n in shape] == ["n", "2", "2 * m"]
    assert all(len(block) <= 1 for layout in (a, b) for block in group(layout, shape))
    with pytest.raises(Unproved, match="are not proved to nest"):
        common_refinement(Layout(((N, 0), (M, 1))), Layout(((M, 0), (N, 1))))


def test_equality_is_proved_or_refuted_by_values():
    whole = Layout(((N * M * B, 1),))
    assert same_map(Layout(((N, M * B), (M, B), (B, 1))), whole)
    assert same_map(Layout(((N, M), (M, 1)), ((N, -M),), 3), Layout(((N * M, 1),), ((N, M),), 3 + M - N * M))
    assert not same_map(whole, Layout(((N * M * B, 2),)))
    assert not same_map(whole, Layout(((N * M, 1),)))
    with pytest.raises(Unproved, match="replicas are not proved equal"):
        same_map(Layout(((N, 1),), ((N, 1), (M, 2))), Layout(((N, 1),), ((M, 1), (N, 2))))


def test_every_open_condition_is_named_with_values_where_it_fails():
    array = Layout(((N * B, 2 * M), (M, 1)))
    k = symbol("k", 0, N)
    assert slice_layout(array, (N * B, M), (k * B, 0), (B, M)) == Layout(((B, 2 * M), (M, 1)), (), k * B * (2 * M))
    tiled = Layout(((N, 1), (B, 2 * N)))
    for call in (
        lambda: slice_layout(tiled, (N * B,), (k,), (B,)),
        lambda: slice_layout(array, (N * B, M), (k * B, 0), (B + 1, M)),
        lambda: group(tiled, (B, N)),
        lambda: compose(tiled, Layout(((2, 1),))),
        lambda: compose(tiled, Layout(((N, 2 * B),))),
        lambda: tile_of(array, (N * B, M), Layout(((B, 1),)), (B, 1)),
        lambda: complement(Layout(((N, M),)), 12 * N),
        lambda: divide(array, B + 1),
    ):
        with pytest.raises(Unproved) as caught:
            call()
        assert caught.value.facts["condition"] is not None
    with pytest.raises(Unproved, match="for some values of the symbols two indices collide"):
        collision(Layout(((N, 1), (M, N - 1)), ((2, N),)))


def test_what_numbers_refuse_has_no_symbolic_answer():
    with pytest.raises((NoLayout, Unproved)):
        compose(Layout(((N, 1), (4, N))), Layout(((3, 3),)))
    with pytest.raises(LayoutError, match="leaves the axis"):
        complement(Layout(((N, {"lane": 1}),)), N)
    with pytest.raises(LayoutError, match="moves along"):
        compose(Layout(((N, 1),)), Layout(((N, {"lane": 1}),)))


def test_substitution_needs_every_symbol_within_its_range():
    layout = Layout(((N, M), (M, 1)), ((2, EVEN),), B)
    assert substitute(layout, {"n": 2, "m": 3, "even": 4, "b": 9, "other": 1}) == Layout(((2, 3), (3, 1)), ((2, 4),), 9)
    for bad in ({"n": 2}, {"n": 0, "m": 1, "even": 2, "b": 1}, {"n": 2, "m": 3, "even": 3, "b": 1}, None, 3):
        with pytest.raises(LayoutError):
            substitute(layout, bad)
    with pytest.raises(LayoutError):
        substitute("a", {})


def test_lego_and_axe_agree_on_symbolic_tiles():
    """Tiles of symbolic size: LEGO's index expressions and the core's are the same function."""
    i, j, k, l = symbol("i", 0, N), symbol("j", 0, M), symbol("k", 0, B), symbol("l", 0, EVEN)
    tiles = TileBy((N, M), (B, EVEN))
    core = axe.tile(Layout(((N, M), (M, 1))), (N, M), Layout(((B, EVEN), (EVEN, 1))), (B, EVEN))
    array = Layout(((N, B * M * EVEN), (M, EVEN), (B, M * EVEN), (EVEN, 1)))
    flat = simplify(tiles[i, j, k, l])
    assert prove(flat < N * B * M * EVEN)
    assert ops(flat) <= 8
    assert [str(simplify(x)) for x in tiles.inv(flat)] == ["i", "j", "k", "l"]
    assert prove(array.at((i, j, k, l), (N, M, B, EVEN)) >= flat)
    assert prove(array.at((i, j, k, l), (N, M, B, EVEN)) <= flat)
    for n, m, b, e in every((1, 3), (1, 2), (1, 3), (2, 4)):
        at = {"n": n, "m": m, "b": b, "even": e}
        numbers_only = TileBy((n, m), (b, e))
        here = substitute(core, at)
        for u in every(range(n), range(m), range(b), range(e)):
            env = {**at, **dict(zip("ijkl", u, strict=True))}
            assert number(flat, env) == numbers_only[u]
            assert here.at((u[0], u[2], u[1], u[3]), (n, b, m, e)) == Coord.of(
                ((u[0] * m + u[1]) * b + u[2]) * e + u[3]
            )


def test_a_symbolic_block_of_each_program_is_a_slice():
    """Axe 3.1 with tile sizes left open: program (p, q) owns block (p, q) of n x m blocks of b x even."""
    p, q = symbol("p", 0, N), symbol("q", 0, M)
    array = Layout(((N * B, M * EVEN), (M * EVEN, 1)))
    mine = slice_layout(array, (N * B, M * EVEN), (p * B, q * EVEN), (B, EVEN))
    assert same_map(mine, Layout(((B, M * EVEN), (EVEN, 1)), (), p * B * M * EVEN + q * EVEN))
    assert is_injective(mine)
    threads = axe.bind(mine, (symbol("t", 0, B),), (B,))
    assert threads.shard == (Iter(EVEN, Coord.of(1)),)
    assert is_contiguous(Layout(threads.shard))
