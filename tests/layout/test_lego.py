"""LEGO layouts against their definitions by table: row-major permutations, bijectivity, tiles, conversions."""

from __future__ import annotations

import math
import random
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileweave.errors import Incongruent, LayoutError, NoLayout, NotDivisible, Undecided, Unproved
from tileweave.index import ops, prove, simplify
from tileweave.index.expr import Expr, symbol, symbols
from tileweave.layout import lego, same_map, substitute
from tileweave.layout.core.coord import Coord
from tileweave.layout.core.layout import Layout
from tileweave.layout.lego import Col, GenP, GroupBy, OrderBy, RegP, Row, TileBy, TileOrderBy

MANY = [200, pytest.param(10_000, marks=pytest.mark.slow)]


def row_major(index, dims):
    flat = 0
    for i, n in zip(index, dims, strict=True):
        flat = flat * n + i
    return flat


def regp_by_definition(dims, sigma, index):
    return row_major([index[k - 1] for k in sigma], [dims[k - 1] for k in sigma])


OPS = {
    "isqrt": math.isqrt,
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "xor": lambda a, b: a ^ b,
    "min": min, "max": max, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b, "and": lambda a, b: a and b, "or": lambda a, b: a or b, "not": lambda a: not a,
    "select": lambda c, a, b: a if c else b,
}  # fmt: skip


def evaluate(expr, env):
    """An index expression at integers, node by node, by the meaning of each op."""
    seen = {}

    def value(node):
        if not isinstance(node, Expr):
            return node
        if node not in seen:
            if node.op in ("const", "true"):
                seen[node] = node.args[0]
            elif node.op == "sym":
                seen[node] = env[node.args[0]]
            else:
                seen[node] = OPS[node.op](*map(value, node.args))
        return seen[node]

    return value(expr)


@pytest.mark.parametrize("count", MANY)
def test_regp_is_the_row_major_number_of_the_permuted_index(count):
    rng = random.Random(1)
    for _k in range(count):
        dims = tuple(rng.randint(1, 4) for _d in range(rng.randint(1, 4)))
        sigma = tuple(rng.sample(range(1, len(dims) + 1), len(dims)))
        piece = RegP(dims, sigma)
        points = list(product(*map(range, dims)))
        values = [piece.apply(*p) for p in points]
        assert values == [regp_by_definition(dims, sigma, p) for p in points]
        assert [piece.inv(v) for v in values] == points
        assert values == [sum(i * s for i, s in zip(p, piece.strides, strict=True)) for p in points]


def random_order(rng, size):
    """A random stack of pieces of the given size."""
    dims, rest = [], size
    while rest > 1:
        n = rng.choice([d for d in range(2, rest + 1) if rest % d == 0])
        dims.append(n)
        rest //= n
    dims = dims or [1]
    cut = rng.randint(1, len(dims))
    pieces = []
    for part in (tuple(dims[:cut]), tuple(dims[cut:])):
        if not part:
            continue
        if rng.random() < 0.3:
            pieces.append(lego.permutation(np.array(rng.sample(range(prod(part)), prod(part))), part))
        else:
            pieces.append(RegP(part, tuple(rng.sample(range(1, len(part) + 1), len(part)))))
    return OrderBy(*pieces)


@pytest.mark.parametrize("count", MANY)
def test_group_by_runs_the_chain_from_last_to_first(count):
    rng = random.Random(2)
    for _k in range(count):
        size = rng.choice([1, 6, 12, 16, 24, 36])
        orders = [random_order(rng, size) for _o in range(rng.randint(0, 3))]
        layout = GroupBy((size,), *orders)
        for x in range(size):
            flat = x
            for order in reversed(orders):
                index = np.unravel_index(flat, order.dims)
                flat, at = 0, 0
                for piece in order.pieces:
                    flat = flat * piece.size + piece.apply(*(int(i) for i in index[at : at + len(piece.dims)]))
                    at += len(piece.dims)
            assert layout.apply(x) == flat
            assert layout.inv(flat) == (x,)
        assert sorted(layout.table().tolist()) == list(range(size))
        assert layout.inv(np.arange(size))[0].tolist() == [layout.inv(p)[0] for p in range(size)]


def test_dots_chain_without_mutation():
    first = OrderBy(RegP((2, 3), (2, 1)))
    chain = first.OrderBy(Row(3, 2))
    assert first == OrderBy(RegP((2, 3), (2, 1)))
    assert chain.GroupBy((6,)) == GroupBy((6,), first, OrderBy(Row(3, 2)))
    assert first.GroupBy((6,)) == GroupBy((6,), first)
    assert eval(repr(first), {"OrderBy": OrderBy, "RegP": RegP}) == first
    with pytest.raises(AttributeError):
        first.pieces = ()


def test_row_and_col():
    assert GroupBy((2, 3), OrderBy(Row(2, 3))).table().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert GroupBy((2, 3), OrderBy(Col(2, 3))).table().tolist() == [[0, 2, 4], [1, 3, 5]]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.data())
def test_tile_by_indexes_a_row_major_space_by_tiles(depth, rank, data):
    levels = [tuple(data.draw(st.integers(1, 3)) for _d in range(rank)) for _l in range(depth)]
    tiles = TileBy(*levels)
    dims = tuple(prod(level[d] for level in levels) for d in range(rank))
    for index in product(*(range(n) for level in levels for n in level)):
        x = [
            row_major([index[k * rank + d] for k in range(depth)], [level[d] for level in levels]) for d in range(rank)
        ]
        assert tiles[index] == row_major(x, dims)
    assert all(tiles.inv(tiles[p]) == p for p in product(*map(range, tiles.dims)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2), st.data())
def test_tile_order_by_reorders_each_level(rank, data):
    levels = [tuple(data.draw(st.integers(1, 3)) for _d in range(rank)) for _l in range(2)]
    sigmas = [data.draw(st.sampled_from(list(permutations(range(1, rank + 1))))) for _l in range(2)]
    pieces = [RegP(level, sigma) for level, sigma in zip(levels, sigmas, strict=True)]
    dims = tuple(a * b for a, b in zip(*levels, strict=True))
    layout = TileOrderBy(*pieces).GroupBy(dims)
    for x in product(*map(range, dims)):
        outer = tuple(i // n for i, n in zip(x, levels[1], strict=True))
        inner = tuple(i % n for i, n in zip(x, levels[1], strict=True))
        assert layout[x] == pieces[0].apply(*outer) * pieces[1].size + pieces[1].apply(*inner)


# --- refusals


@pytest.mark.parametrize("sigma", [(0, 0), (1, 1), (1,), (1, 3), (0, 1)])
def test_sigma_must_be_a_permutation(sigma):
    with pytest.raises(LayoutError, match="no permutation"):
        RegP((2, 3), sigma)


def test_bad_bijections_are_refused_with_the_points():
    with pytest.raises(NoLayout, match="both go to") as caught:
        GenP((2, 3), lambda i, j: j)
    (a, b), (v, w) = caught.value.witness["points"], caught.value.witness.values
    assert a != b and v == w == a[1] == b[1]
    with pytest.raises(NoLayout, match="lies outside"):
        GenP((2, 3), lambda i, j: 3 * i + j + 1)
    with pytest.raises(NoLayout, match="but the inverse gives"):
        GenP((2, 3), lambda i, j: 3 * i + j, lambda p: (p % 2, p // 2))
    with pytest.raises(NoLayout, match="no integer"):
        GenP((2, 3), lambda i, j: (3 * i + j) / 1)
    with pytest.raises(Undecided, match="bound"):
        GenP((1 << 13, 1 << 13), lambda i, j: (i << 13) + j)
    with pytest.raises(NoLayout, match="no permutation"):
        lego.permutation([0, 0, 1])


def test_large_bijections_are_checked_too():
    n = 1 << 10
    good = GenP((n, n), lambda i, j: i * n + (n - 1 - j), lambda p: (p // n, n - 1 - p % n))
    assert good.apply(3, 5) == 3 * n + n - 6
    with pytest.raises(NoLayout, match="the inverse"):
        GenP(
            (n, n),
            lambda i, j: i * n + j,
            lambda p: (p // n, p % n if type(p) is int and p != n * n - 1 else p % n * 0),
        )


def test_sizes_must_agree():
    with pytest.raises(Incongruent):
        GroupBy((4, 5), OrderBy(Row(3, 7)))
    with pytest.raises(Incongruent):
        TileBy((2, 2), (3,))
    with pytest.raises(LayoutError):
        GroupBy((0, 3))
    with pytest.raises(LayoutError):
        OrderBy()
    with pytest.raises(LayoutError):
        GroupBy((4,), Row(4))


@pytest.mark.parametrize("bad", [(6,), (-1,), (1.0,), (True,), ("1",), (0, 0), (np.array([6]),), (np.array([0.5]),)])
def test_indices_out_of_range_are_refused(bad):
    with pytest.raises(LayoutError):
        GroupBy((6,), OrderBy(RegP((2, 3), (2, 1)))).apply(*bad)


# --- ready-made bijections


READY = {
    "antidiagonal": [lego.antidiagonal(n) for n in (1, 2, 3, 4, 7, 10)],
    "morton": [lego.morton(4, 4), lego.morton(2, 8), lego.morton(4, 2, 4), lego.morton(1, 4), lego.morton(16)],
    "hilbert": [lego.hilbert(n) for n in (1, 2, 4, 8, 16)],
    "xor": [lego.xor_swizzle(4, 8), lego.xor_swizzle(16, 4), lego.xor_swizzle(3, 1), lego.xor_swizzle(5, 2)],
    "reversal": [lego.reversal((3, 4)), lego.reversal((3, 4), (1,)), lego.reversal(5), lego.reversal((2, 3), ())],
    "permutation": [lego.permutation([2, 0, 1]), lego.permutation([[3, 1], [0, 2]])],
    "grouped": [lego.grouped(*p) for p in [(9, 4, 4), (12, 5, 8), (3, 2, 2), (1, 5, 3), (7, 1, 1), (8, 8, 8)]],
}  # fmt: skip


@pytest.mark.parametrize("piece", [p for group in READY.values() for p in group], ids=str)
def test_ready_made_bijections_are_bijections(piece):
    points = list(product(*map(range, piece.dims)))
    values = [int(piece.apply(*p)) for p in points]
    assert sorted(values) == list(range(len(points)))
    assert [tuple(map(int, piece.inv(v))) for v in values] == points
    grid = np.array(points).T
    assert piece.apply(*grid).tolist() == values
    assert [tuple(x) for x in np.array(piece.inv(np.array(values))).T.tolist()] == points


@pytest.mark.parametrize("piece", [p for name, group in READY.items() for p in group if name != "permutation"], ids=str)
def test_ready_made_bijections_take_expressions(piece):
    names = [f"x{k}" for k in range(len(piece.dims))]
    apply = piece.apply(*(symbol(name, 0, n) for name, n in zip(names, piece.dims, strict=True)))
    back = piece.inv(symbol("p", 0, piece.size))
    for point in product(*map(range, piece.dims)):
        value = piece.apply(*point)
        assert evaluate(apply, dict(zip(names, point, strict=True))) == value
        assert tuple(evaluate(e, {"p": int(value)}) for e in back) == point


def test_an_inverse_left_out_is_derived_also_as_an_expression():
    piece = GenP((2, 3), lambda i, j: 3 * i + (j if i == 0 else 2 - j))
    back = piece.inv(symbol("p", 0, 6))
    assert [tuple(evaluate(e, {"p": v}) for e in back) for v in range(6)] == [piece.inv(v) for v in range(6)]
    assert piece.inv(np.arange(6))[1].tolist() == [0, 1, 2, 2, 1, 0]
    with pytest.raises(LayoutError, match="no index expression"):
        GenP((20, 20), lambda i, j: 20 * i + j).inv(symbol("p", 0, 400))


def test_hilbert_neighbours_are_neighbours():
    table = np.array([lego.hilbert(16).inv(p) for p in range(256)])
    assert (np.abs(np.diff(table, axis=0)).sum(axis=1) == 1).all()


def test_bricks_keep_each_brick_together():
    layout = lego.bricks((6, 4), (3, 2))
    for i, j in product(range(6), range(4)):
        assert layout[i, j] == (i // 3 * 2 + j // 2) * 6 + i % 3 * 2 + j % 2
    with pytest.raises(NotDivisible):
        lego.bricks((6, 4), (4, 2))
    with pytest.raises(Incongruent):
        lego.bricks((6, 4), (2,))


def test_symbolic_indices_agree_with_integers():
    layout = TileOrderBy(RegP((2, 2), (2, 1)), lego.antidiagonal(3)).GroupBy((6, 6))
    i, j = symbol("i", 0, 6), symbol("j", 0, 6)
    expr = layout[i, j]
    assert all(evaluate(expr, {"i": a, "j": b}) == layout[a, b] for a, b in product(range(6), repeat=2))


# --- tiles that do not divide


@pytest.mark.parametrize("count", MANY)
def test_partial_tiles_cover_the_space_once(count):
    rng = random.Random(3)
    for _k in range(count):
        rank = rng.randint(1, 2)
        dims = tuple(rng.randint(1, 7) for _d in range(rank))
        levels = [tuple(rng.randint(1, 3) for _d in range(rank)) for _l in range(rng.randint(1, 2))]
        tiles = lego.PartialTiles(dims, *levels)
        inside = [p for p in product(*map(range, tiles.index_dims)) if tiles.mask(*p)]
        assert sorted(tiles.apply(*p) for p in inside) == list(range(prod(dims)))
        assert all(tiles.apply(*p) == row_major(tiles.coordinates(*p), dims) for p in inside)
        whole = [prod(level[d] for level in levels) for d in range(rank)]
        assert tiles.always_inside is all(n % t == 0 for n, t in zip(dims, whole, strict=True))
        if tiles.always_inside:
            assert tiles.mask(*(symbol(f"x{k}", 0, n) for k, n in enumerate(tiles.index_dims))) is True


def test_partial_tiles_take_arrays_expressions_and_reorderings():
    tiles = lego.PartialTiles((5, 6), (2, 3), chain=OrderBy(Col(5, 6)))
    grid = np.indices(tiles.index_dims).reshape(4, -1)
    mask = tiles.mask(*grid)
    assert np.array_equal(np.sort(tiles.apply(*grid)[mask]), np.arange(30))
    names = ["a", "b", "c", "d"]
    index = [symbol(x, 0, n) for x, n in zip(names, tiles.index_dims, strict=True)]
    offset, inside = tiles.apply(*index), tiles.mask(*index)
    for p in product(*map(range, tiles.index_dims)):
        env = dict(zip(names, p, strict=True))
        assert evaluate(inside, env) == tiles.mask(*p)
        if tiles.mask(*p):
            assert evaluate(offset, env) == tiles.apply(*p)
    with pytest.raises(Incongruent):
        lego.PartialTiles((5, 6), (2,))


# --- conversions


@pytest.mark.parametrize("count", MANY)
def test_to_core_is_exact(count):
    rng = random.Random(4)
    seen = {True: 0, False: 0}
    for _k in range(count):
        size = rng.choice([6, 8, 12, 16, 24])
        layout = GroupBy((size,), *[random_order(rng, size) for _o in range(rng.randint(0, 2))])
        values = layout.table().tolist()
        try:
            core = lego.to_core(layout)
        except NoLayout:
            assert not strided_table(values)
            seen[False] += 1
            continue
        seen[True] += 1
        assert [core(x)["m"] for x in range(size)] == values
    assert min(seen.values()) > count // 20


def strided_table(values):
    """Whether the values are an offset plus a list of iters: all divisor chains are tried."""
    shifted = [v - values[0] for v in values]

    def iters(f):
        if len(f) == 1 or all(v == i * f[1] for i, v in enumerate(f)):
            return True
        return any(
            len(f) % q == 0
            and all(f[i] == i * f[1] for i in range(q))
            and all(f[i + q * k] == f[i] + f[q * k] for i in range(q) for k in range(len(f) // q))
            and iters(f[::q])
            for q in range(2, len(f))
        )

    return iters(shifted)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_from_core_inverts_to_core(extents, rng):
    order = rng.sample(range(len(extents)), len(extents))
    strides, run = [0] * len(extents), 1
    for k in reversed(order):
        strides[k] = run * rng.choice([1, -1])
        run *= extents[k]
    offset = -sum(min(0, s * (n - 1)) for n, s in zip(extents, strides, strict=True))
    core = Layout(tuple((n, {"m": s}) for n, s in zip(extents, strides, strict=True)), (), Coord.of(offset))
    layout = lego.from_core(core)
    assert layout.table().reshape(-1).tolist() == [core(x)["m"] for x in range(core.size)]
    assert [lego.to_core(layout)(x) for x in range(core.size)] == [core(x) for x in range(core.size)]


@pytest.mark.parametrize(
    "core",
    [
        Layout(((2, 1),), ((2, 4),)),
        Layout(((2, 2),)),
        Layout(((2, 1), (2, 1))),
        Layout(((2, 1),), (), Coord.of(3)),
        Layout(((2, {"a": 1}), (2, {"b": 1}))),
    ],
)
def test_from_core_refuses_what_is_no_bijection(core):
    with pytest.raises(NoLayout):
        lego.from_core(core)


# --- symbolic sizes


def test_symbolic_tilings_are_proved_to_agree():
    M = symbol("M", 32, multiple_of=32)
    N = symbol("N", 16, multiple_of=16)
    tiles = OrderBy(Row(M, N)).TileBy((M // 32, N // 16), (32, 16))
    index = (symbol("a", 0, M // 32), symbol("b", 0, N // 16), symbol("c", 0, 32), symbol("d", 0, 16))
    offset = tiles[index]
    for m, n in [(32, 16), (64, 48), (96, 32)]:
        for a, b, c, d in product(range(m // 32), range(n // 16), (0, 5, 31), (0, 7, 15)):
            env = {"M": m, "N": n, "a": a, "b": b, "c": c, "d": d}
            assert evaluate(offset, env) == (a * 32 + c) * n + b * 16 + d
    with pytest.raises(LayoutError):
        GroupBy((M, N), OrderBy(Row(M, M)))


def test_ready_made_bijections_of_symbolic_sizes():
    n, m, g = symbols("n m g", 1)
    whole = symbol("whole", 4, multiple_of=4)
    makers = [
        (lambda v: lego.grouped(v["n"], v["m"], v["g"]), {"n": n, "m": m, "g": g}),
        (lambda v: lego.grouped(v["n"], 4, 3), {"n": n}),
        (lambda v: lego.reversal((v["n"], v["m"]), (0,)), {"n": n, "m": m}),
        (lambda v: lego.xor_swizzle(v["n"], 4), {"n": n}),
        (lambda v: lego.bricks((v["whole"], 6), (4, 2)), {"whole": whole}),
    ]
    for make, sizes in makers:
        piece = make(sizes)
        index = [symbol(f"i{k}", 0, e) for k, e in enumerate(piece.dims)]
        apply, back = piece.apply(*index), piece.inv(symbol("p", 0, piece.size))
        for values in product((1, 2, 5), repeat=len(sizes)):
            at = dict(zip(sizes, values, strict=True))
            at = {name: 4 * v if name == "whole" else v for name, v in at.items()}
            here = make(at)
            for u in product(*map(range, here.dims)):
                value = evaluate(apply, {**at, **{f"i{k}": x for k, x in enumerate(u)}})
                assert value == here.apply(*u)
                assert tuple(evaluate(x, {**at, "p": value}) for x in back) == u
    with pytest.raises(Unproved):
        lego.bricks((n, 4), (2, 2))
    with pytest.raises(LayoutError, match="symbolic"):
        lego.morton(n, 4)


def test_symbolic_chains_of_permutations_have_core_layouts():
    n, m, k = symbols("n m k", 1)
    assert same_map(lego.to_core(TileBy((n, m), (k, 4))), Layout(((n, 4 * m * k), (m, 4), (k, 4 * m), (4, 1))))
    for layout in [
        TileBy((n, m), (k, 4)),
        OrderBy(Col(n, m)).GroupBy((n, m)),
        TileOrderBy(Row(n, 2), Col(k, m)).GroupBy((n * k, 2 * m)),
        TileOrderBy(Col(n, 2), Row(k, m)).TileBy((n, 2), (k, m)),
    ]:
        core = lego.to_core(layout)
        for at in ({"n": 1, "m": 1, "k": 1}, {"n": 2, "m": 3, "k": 4}, {"n": 4, "m": 2, "k": 3}):
            here = substitute(core, at)
            dims = [evaluate(d, at) for d in layout.dims]
            index = [symbol(f"i{d}", 0, e) for d, e in enumerate(layout.dims)]
            flat = layout.apply(*index)
            for x, u in enumerate(product(*map(range, dims))):
                assert here(x)["m"] == evaluate(flat, {**at, **{f"i{d}": v for d, v in enumerate(u)}})
    with pytest.raises(Unproved, match="not made of permutations"):
        lego.to_core(GroupBy((4 * n,), OrderBy(Row(n), lego.antidiagonal(2))))


def test_partial_tiles_of_symbolic_extents_carry_a_mask():
    M = symbol("M", 1)
    tiles = lego.PartialTiles((M, 64), (32, 32))
    index = (symbol("a", 0, 8), symbol("b", 0, 2), symbol("c", 0, 32), symbol("d", 0, 32))
    offset, mask = tiles.apply(*index), tiles.mask(*index)
    for m, a, b, c in product((1, 31, 100), range(4), range(2), (0, 3, 31)):
        env = {"M": m, "a": a, "b": b, "c": c, "d": 9}
        assert evaluate(mask, env) == (a * 32 + c < m)
        assert evaluate(offset, env) == (a * 32 + c) * 64 + b * 32 + 9
    cell = tiles.cell(*index)
    assert (cell.offset, cell.mask, cell.ranges) == (offset, mask, ()) and tiles[index] == offset
    whole = symbol("W", 32, multiple_of=32)
    exact = lego.PartialTiles((whole, 64), (32, 32))
    assert exact.always_inside
    assert evaluate(exact.mask(*index), {"W": 32, "a": 1, "c": 0}) is False  # the grid may be launched too large
    assert exact.mask(symbol("t", 0, whole // 32), *index[1:]) is True


def test_wide_chains_convert_structurally():
    n = 1 << 30
    layout = OrderBy(RegP((n, n), (2, 1))).GroupBy((n, n))
    core = lego.to_core(layout)
    assert core.size == n * n and core(1)["m"] == n and core(n)["m"] == 1
    assert layout.inv(n) == (0, 1)


# --- numbers from outside


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, object])
def test_narrow_integers_never_wrap(kind):
    """`Row(256, 100).apply(uint8 200, uint8 5)` gave 37; swizzle, Morton and Hilbert ended in OverflowError."""
    pieces = [
        Row(256, 100), Col(100, 256), lego.xor_swizzle(16, 256), lego.morton(256, 256), lego.hilbert(256),
        lego.antidiagonal(200), lego.grouped(200, 100, 7), lego.bricks((200, 200), (8, 8)),
        lego.reversal((200, 200)), lego.permutation(list(range(200))[::-1]),
        GenP((200, 100), lambda i, j: 100 * i + (99 - j)), TileBy((20, 20), (10, 10)),
    ]  # fmt: skip
    for piece in pieces:
        top = tuple(min(n - 1, 127) for n in piece.dims)
        want = [piece.apply(*top), piece.apply(*(0 for _ in top))]
        arrays = [np.array([x, 0]).astype(kind) for x in top]
        assert piece.apply(*arrays).tolist() == want
        if kind is not object:
            assert piece.apply(*(kind(x) for x in top)) == want[0] and type(piece.apply(*map(kind, top))) is int
        flat = np.array([want[0], 0]).astype(kind if kind is object or want[0] <= np.iinfo(kind).max else np.int64)
        assert tuple(int(i[0]) for i in piece.inv(flat)) == top


def test_numbers_beyond_64_bits_are_exact():
    huge = Row(2**40, 2**40)
    at = 2**39, 2**39 + 3
    assert huge.apply(*map(np.int64, at)) == 2**79 + 2**39 + 3
    assert huge.apply(*(np.array([x]) for x in at)).tolist() == [2**79 + 2**39 + 3]
    assert [i.tolist() for i in huge.inv(np.array([2**79 + 5], dtype=object))] == [[2**39], [5]]
    assert lego.flat_index((np.array([2**39], np.int64), np.array([1])), (2**40, 2**40)).tolist() == [2**79 + 1]
    tiles = lego.PartialTiles((300, 300), (16, 16))
    assert tiles.apply(*(np.array([x], np.uint8) for x in (17, 2, 3, 4))).tolist() == [tiles.apply(17, 2, 3, 4)]


def test_a_function_that_takes_a_branch_of_python_on_expressions_is_refused():
    """`j if i == 0 else 2 - j` silently took one branch: == of expressions is identity."""
    i, j = symbol("i", 0, 2), symbol("j", 0, 3)
    compared = [lambda i, j: 3 * i + (j if i == 0 else 2 - j), lambda i, j: 3 * i + (2 - j if i in (1,) else j)]
    for function in compared:
        zigzag = GenP((2, 3), function)
        assert (zigzag.apply(1, 0), zigzag.inv(5), zigzag.apply(np.array([1]), np.array([0])).tolist()) == (
            5,
            (1, 0),
            [5],
        )
        with pytest.raises(LayoutError, match="== compares expressions as such") as caught:
            zigzag.apply(i, j)
        assert "equal(expr, x)" in str(caught.value)
    with pytest.raises(LayoutError, match="no truth value"):
        GenP((2, 3), lambda i, j: 3 * i + (j if i < 1 else 2 - j)).apply(i, j)
    hidden = GenP((2, 3), lambda i, j: 3 * i + (j if not isinstance(i, int) or i < 1 else 2 - j))
    with pytest.raises(LayoutError, match=r"expression is wrong at \(1, 0\)"):
        OrderBy(hidden).GroupBy((6,)).apply(symbol("p", 0, 6))
    right = GenP((2, 3), lambda i, j: 3 * i + lego.choose(i < 1, j, 2 - j))
    expr = right.apply(i, j)
    assert all(evaluate(expr, {"i": a, "j": b}) == right.apply(a, b) for a, b in product(range(2), range(3)))
    assert (i == 0) is False and i != 0  # elsewhere == is identity, as sets and layouts need


def test_choose_takes_conditions_only_and_names_shapes_that_do_not_fit():
    assert lego.choose(np.bool(True), 1, 2) == 1 and lego.choose(np.array([True, False]), 1, 2).tolist() == [1, 2]
    for junk in ([True, False], 1, np.arange(3), None, "x"):
        with pytest.raises(LayoutError, match="no condition"):
            lego.choose(junk, 1, 2)
    with pytest.raises(Incongruent, match="broadcast"):
        lego.choose(np.array([True, False]), np.arange(3), 0)


def test_grouped_program_ids_with_symbolic_sizes():
    """Every coordinate is proved in range, and the inverse inverts, whatever divides what."""
    M, N = symbols("M N", 1)
    rows, columns = (M + 31) // 32, (N + 63) // 64
    order = lego.grouped(rows, columns, 4)
    i, j = order.inv(symbol("pid", 0, rows * columns))
    assert prove((i >= 0) & (i < rows) & (j >= 0) & (j < columns), limit=0)
    for m, n in ((9, 4), (12, 5), (1, 1), (5, 7)):
        env = {"M": 32 * m - 3, "N": 64 * n - 5}
        seen = {(evaluate(i, {**env, "pid": p}), evaluate(j, {**env, "pid": p})) for p in range(m * n)}
        assert seen == set(product(range(m), range(n)))
        whole = lego.grouped(m, n, 4)
        assert all(whole.apply(*whole.inv(p)) == p for p in range(m * n))


def test_the_antidiagonal_inverse_is_a_closed_form():
    for n in (1, 2, 3, 5, 8):
        p = symbol("p", 0, n * n)
        square = lego.antidiagonal(n)
        back = square.inv(p)
        assert all(tuple(evaluate(x, {"p": k}) for x in back) == square.inv(k) for k in range(n * n))
    assert ops(simplify(lego.antidiagonal(64).inv(symbol("p", 0, 4096)))) < 60
