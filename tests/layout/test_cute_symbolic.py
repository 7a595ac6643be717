"""CuTe layouts with index expressions: at every value of the symbols the operations agree with those on numbers."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from tileweave.errors import LayoutError, Unproved
from tileweave.index import Expr, evaluate, ops, symbol, symbols
from tileweave.layout import cute
from tileweave.layout.analysis.memory import bank_conflicts, coalescing, offsets_of, vector_width
from tileweave.layout.cute import CuteLayout, E, _, composition, make_layout

M, N, K = symbol("M", 1), symbol("N", 1, multiple_of=4), symbol("K", 1, multiple_of=8)
VALUES = [{"M": m, "N": n, "K": k} for m, n, k in [(1, 4, 8), (3, 4, 16), (2, 8, 8), (5, 12, 24)]]
MANY = [60, pytest.param(2000, marks=pytest.mark.slow)]


def at(value, point):
    """A number, a layout or a tuple with the symbols replaced by their values."""
    if isinstance(value, CuteLayout):
        return CuteLayout(at(value.shape, point), at(value.stride, point))
    if isinstance(value, tuple | list):
        return tuple(at(v, point) for v in value)
    if isinstance(value, cute.Coord):
        return cute.Coord(tuple((axis, at(v, point)) for axis, v in value.terms))
    return evaluate(value, point) if isinstance(value, Expr) else value


def table(layout):
    return [layout(i) for i in range(layout.size)]


def agree(operation, *args):
    """Whether the operation answered; where it did, its answer is that on numbers, at every value of the symbols."""
    try:
        found = operation(*args)
    except Unproved as refusal:
        assert refusal.facts["condition"] is not None
        return False
    except LayoutError:
        for point in VALUES:
            with pytest.raises(LayoutError):
                operation(*at(args, point))
        return False
    for point in VALUES:
        expected = operation(*at(args, point))
        assert cute.congruent(found.shape, expected.shape) or table(at(found, point)) == table(expected)
        assert table(at(found, point)) == table(expected)
    return True


def extent(rng):
    return rng.choice([M, N, K, 2 * M, 2, 3, 4, 8])


def compact(rng, parts=3):
    shape = tuple(extent(rng) for _part in range(rng.randint(1, parts)))
    order = list(range(len(shape)))
    rng.shuffle(order)
    return cute.make_ordered_layout(shape, tuple(order))


def strided(rng):
    shape = tuple(extent(rng) for _part in range(rng.randint(1, 3)))
    return CuteLayout(shape, tuple(rng.choice([1, M, N, 2, 0, M * N, 3]) for _n in shape))


@pytest.mark.parametrize("count", MANY)
def test_values_sizes_and_coalesce(count):
    rng = random.Random(1)
    merged = 0
    for _k in range(count):
        layout = compact(rng) if rng.random() < 0.7 else strided(rng)
        small = cute.coalesce(layout)
        merged += len(small.flat) < len(layout.flat)
        index = layout(symbol("x", 0, layout.size))
        for point in VALUES:
            numbers = at(layout, point)
            assert at(layout.size, point) == numbers.size
            assert at(cute.cosize(layout), point) == cute.cosize(numbers)
            values = table(numbers)
            assert table(at(small, point)) == values
            chosen = {*range(min(8, len(values))), *range(0, len(values), max(1, len(values) // 40))}
            assert [at(index, {**point, "x": x}) for x in chosen] == [values[x] for x in chosen]
            assert at(layout(0), point) == 0
    assert merged > count // 5


@pytest.mark.parametrize("count", MANY)
def test_compositions_agree_wherever_they_are_proved(count):
    rng = random.Random(2)
    answered = 0
    for _k in range(count):
        a = compact(rng)
        b = compact(rng, 2) if rng.random() < 0.5 else CuteLayout(extent(rng), rng.choice([1, 2, 4, M, N]))
        if a.is_symbolic or b.is_symbolic:
            answered += agree_composed(a, b)
    assert answered > count // 4


def agree_composed(a, b):
    try:
        found = composition(a, b)
    except Unproved as refusal:
        assert refusal.facts["condition"] is not None
        return False
    for point in VALUES:
        outer, inner = at(a, point), at(b, point)
        *modes, (_n, last) = outer.flat
        for c, value in enumerate(table(at(found, point))):
            index, expected = inner(c), 0
            for n, d in modes:
                index, digit = divmod(index, n)
                expected += digit * d
            assert value == expected + index * last
    return True


@pytest.mark.parametrize("count", MANY)
def test_divides_and_products_agree_wherever_they_are_proved(count):
    rng = random.Random(3)
    answered = 0
    for _k in range(count):
        layout = make_layout((extent(rng), extent(rng))) if rng.random() < 0.5 else compact(rng, 2)
        tile = rng.choice([2, 4, CuteLayout(2, 2), CuteLayout((2, 2), (1, 4)), (2, 4), (1, 2)])
        if isinstance(tile, tuple) and cute.rank(layout) < 2:
            continue
        operation = rng.choice([cute.logical_divide, cute.zipped_divide, cute.tiled_divide, cute.flat_divide])
        answered += agree(operation, layout, tile)
        block = rng.choice([CuteLayout(2, 1), CuteLayout((2, 2), (2, 1)), CuteLayout(4, 2), layout])
        answered += agree(rng.choice([cute.logical_product, cute.blocked_product, cute.raked_product]), block, layout)
    assert answered > count // 2


def test_divides_by_constants_where_divisibility_is_declared():
    whole = make_layout((K, N))
    assert str(cute.zipped_divide(whole, (8, 4))) == "((8,4),((K // 8),(N // 4))):((1,K),(8,(4 * K)))"
    i, j = symbol("i", 0, 8), symbol("j", 0, N // 4)
    inside = cute.zipped_divide(whole, (8, 4))((i, 3), (0, j))
    assert ops(inside) <= 5
    assert at(inside, {"K": 16, "N": 12, "i": 5, "j": 2}) == 5 + 16 * (3 + 4 * 2)


def test_what_is_not_proved_is_named_with_values_at_which_it_fails():
    with pytest.raises(Unproved, match=r"M % 4 == 0 fails at M = 1") as caught:
        cute.logical_divide(make_layout((M, N)), (4, 4))
    assert caught.value.where == "logical_divide(layout, tiler)"
    with pytest.raises(Unproved, match=r"is not proved|fails at"):
        composition(CuteLayout((M, N), (1, 100)), CuteLayout(4, 1))
    with pytest.raises(Unproved):
        CuteLayout(symbol("n"), 1)
    with pytest.raises(Unproved, match="x < M"):
        CuteLayout(M, 1)(symbol("x", 0))
    with pytest.raises(Unproved, match="5 < M"):
        CuteLayout(M, 1)(5)
    with pytest.raises(Unproved, match="an array holds numbers"):
        CuteLayout((M, 2), (1, M))(np.arange(2))
    with pytest.raises(Unproved):
        cute.filter(CuteLayout((4, 4), (symbol("d", 0), 1)))


@pytest.mark.parametrize(
    "operation",
    [cute.right_inverse, cute.left_inverse, cute.make_layout_like, cute.f2_from_layout, cute.xor_strides,
     lambda a: vector_width(a, 4), bank_conflicts, coalescing, lambda a: offsets_of(a, np.arange(2)),
     lambda a: cute.upcast(a, 2), lambda a: cute.max_common_vector(a, a)],
)  # fmt: skip
def test_what_needs_numbers_says_so(operation):
    with pytest.raises(Unproved) as caught:
        operation(make_layout((M, 4)))
    assert "condition" in caught.value.facts


def test_cover_divide_keeps_a_predicate_that_vanishes_where_the_tiles_fit():
    cover = cute.cover_divide(make_layout((M, N)), (4, 4))
    a, t = symbol("a", 0, 4), symbol("t", 0, (M + 3) // 4)
    condition = cover.valid((a, t), (0, 0))
    for m in (1, 4, 6):
        for x in range(4):
            for tile in range((m + 3) // 4):
                assert evaluate(condition, {"M": m, "N": 4, "a": x, "t": tile}) is (x + 4 * tile < m)
    fits = cute.cover_divide(make_layout((K, N)), (8, 4))
    assert fits.always_valid and not cover.always_valid
    assert fits.valid((symbol("a", 0, 8), symbol("t", 0, K // 8)), (0, 0)) is True


def test_recast_counts_units_of_declared_runs():
    bytes_ = make_layout((K, M))
    words = cute.recast_layout(bytes_, 32, 8)
    assert str(words) == "((K // 4),M):(1,(K // 4))"
    assert cute.recast_layout(words, 8, 32) == bytes_
    for point in VALUES:
        assert table(at(words, point)) == table(cute.upcast(at(bytes_, point), 4))
        assert table(at(cute.downcast(bytes_, 2), point)) == table(cute.downcast(at(bytes_, point), 2))
    with pytest.raises(Unproved, match=r"K % 16 == 0"):
        cute.upcast(bytes_, 16)


def test_tiles_fill_symbolic_shapes():
    filled = cute.tile_to_shape(CuteLayout((4, 8), (8, 1)), (N, K))
    for point in VALUES:
        assert table(at(filled, point)) == table(cute.tile_to_shape(CuteLayout((4, 8), (8, 1)), at((N, K), point)))
    with pytest.raises(Unproved):
        cute.tile_to_shape(CuteLayout((4, 8), (8, 1)), (M, K))


def test_symbolic_coordinates_and_strides_keep_their_meaning():
    rows, columns = symbols("i j", 0, 4)
    identity = cute.make_identity_layout((M, (N, 4)))
    assert at(identity(0, (symbol("n", 0, N), 3)), {"n": 2, **VALUES[0]}) == 2 * E(1, 0) + 3 * E(1, 1)
    pitch = CuteLayout((4, 4), (symbol("pitch", 4), 1))
    assert str(pitch(rows, columns)) == "i * pitch + j"
    sliced, offset = cute.slice_and_offset(pitch, (rows, _))
    assert str(sliced) == "4:1" and str(offset) == "i * pitch"
    assert str(cute.crd2idx((rows, columns), (4, N))) == "i + j * 4"
    assert cute.compatible(M * N, (M, N)) and not cute.compatible(M * N, (M, K))
    assert pickle.loads(pickle.dumps(pitch)) == pitch


def test_coordinate_strides_read_the_modes_of_symbolic_layouts():
    layout = CuteLayout((M, K), (K, 1))
    swapped = composition(layout, CuteLayout((K, M), (E(1), E(0))))
    assert str(swapped) == "(K,M):(1,K)"
    tile = composition(layout, CuteLayout((8, M), (E(1), E(0))))
    assert str(tile) == "(8,M):(1,K)"
    with pytest.raises(Unproved, match="fails at"):
        composition(layout, CuteLayout((16, M), (E(1), E(0))))


def test_swizzles_take_symbolic_offsets_and_layouts():
    t = symbol("t", 0, 8)
    tile = cute.ComposedLayout(cute.Swizzle(3, 3, 3), 0, CuteLayout((8, 64), (64, 1)))
    row = tile((t, _))
    for k in range(8):
        assert [at(row(c), {"t": k}) for c in (0, 8, 63)] == [tile(k, c) for c in (0, 8, 63)]
    wide = cute.ComposedLayout(cute.Swizzle(3, 3, 3), 0, make_layout((64, K)))
    x = symbol("x", 0, 64 * K)
    for value in (0, 77, 511):
        assert at(wide(x), {"K": 8, "x": value}) == cute.Swizzle(3, 3, 3)(value)
    with pytest.raises(Unproved):
        cute.ComposedLayout(cute.Swizzle(3, 3, 3), symbol("o"), CuteLayout(8, 1))
    with pytest.raises(LayoutError):
        cute.ComposedLayout(cute.Swizzle(3, 3, 3), 1.5, CuteLayout(8, 1))
