"""More CuTe operations against their definitions, enumerated: nests, unit extents, zero and negative strides."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import pytest

from tileweave.errors import NoLayout, NotDivisible
from tileweave.layout import cute
from tileweave.layout.cute import CuteLayout, _, composition, make_layout

MANY = [200, pytest.param(10_000, marks=pytest.mark.slow)]


def leaves(tree):
    return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, tuple) else [tree]


def table(layout):
    """The values at all linear indices, first mode fastest, from the definition alone."""
    out = [0]
    for n, d in zip(leaves(layout.shape), leaves(layout.stride), strict=True):
        out = [base + k * d for k in range(n) for base in out]
    return out


def natural(shape):
    """Every coordinate at the leaves, first leaf fastest."""
    return [point[::-1] for point in product(*(range(n) for n in reversed(leaves(shape))))]


def some_tree(rng, depth=2):
    if depth == 0 or rng.random() < 0.5:
        return rng.choice([1, 2, 2, 3, 4])
    return tuple(some_tree(rng, depth - 1) for _part in range(rng.randint(1, 3)))


def like(tree, values):
    return tuple(like(part, values) for part in tree) if isinstance(tree, tuple) else next(values)


def some_shape(rng):
    """One to three modes, nested or not, of at most 256 points."""
    while True:
        shape = tuple(some_tree(rng) for _mode in range(rng.randint(1, 3)))
        if prod(leaves(shape)) <= 256:
            return shape


def some_layout(rng, strides=(0, 1, 1, 2, 3, 4, 6, 8, 12, -1, -3)):
    shape = some_shape(rng)
    return CuteLayout(shape, like(shape, (rng.choice(strides) for _leaf in iter(int, 1))))


def sizes(layout):
    return [prod(leaves(mode)) for mode in layout.shape]


@pytest.mark.parametrize("count", MANY)
def test_filter_keeps_the_moving_modes(count):
    rng = random.Random(1)
    for _k in range(count):
        layout = some_layout(rng)
        found = cute.filter(layout)
        pairs = [(n, d) for n, d in zip(leaves(layout.shape), leaves(layout.stride), strict=True) if d]
        assert table(found) == table(CuteLayout(tuple(n for n, _d in pairs), tuple(d for _n, d in pairs)))
        assert found == cute.coalesce(found) and (0 not in leaves(found.stride) or found == CuteLayout(1, 0))
        kept = cute.filter_zeros(layout)
        assert cute.congruent(kept, layout) and sorted(set(table(kept))) == sorted(set(table(layout)))


@pytest.mark.parametrize("count", MANY)
def test_nullspace_holds_the_indices_along_zero_strides(count):
    rng = random.Random(2)
    for _k in range(count):
        layout = some_layout(rng, (0, 0, 1, 5, -2))
        found = table(cute.nullspace(layout))
        still = [d == 0 for d in leaves(layout.stride)]
        expected = [
            index
            for index, point in enumerate(natural(layout.shape))
            if all(zero or not digit for zero, digit in zip(still, point, strict=True))
        ]
        values = table(layout)
        assert found == expected and all(values[index] == 0 for index in found)


@pytest.mark.parametrize("count", MANY)
def test_ordered_layouts_are_compact_in_their_order(count):
    rng = random.Random(3)
    for _k in range(count):
        shape = tuple(some_tree(rng, 1) for _mode in range(rng.randint(1, 3)))
        order = tuple(rng.sample(range(5), len(shape)))
        found = cute.make_ordered_layout(shape, order)
        assert sorted(table(found)) == list(range(prod(leaves(shape))))
        for j, k in product(range(len(shape)), repeat=2):
            if order[j] < order[k]:
                assert max(leaves(found[j].stride)) <= min(leaves(found[k].stride))
        layout = some_layout(rng, (0, 1, 7, 50, 400))
        alike = cute.make_layout_like(layout)
        pairs = list(zip(leaves(layout.stride), leaves(alike.stride), leaves(layout.shape), strict=True))
        assert sorted(set(table(alike))) == list(range(prod(n for d, _new, n in pairs if d)))
        assert all((d == 0) == (new == 0) for d, new, _n in pairs)
        moving = [(d, new) for d, new, n in pairs if d and n > 1]
        assert all(new < other for (d, new), (e, other) in product(moving, repeat=2) if d < e)


@pytest.mark.parametrize("count", MANY)
def test_regrouping_keeps_every_value(count):
    rng = random.Random(4)
    for _k in range(count):
        layout = some_layout(rng)
        modes = len(layout.shape)
        begin = rng.randrange(modes)
        end = rng.randint(begin + 1, modes)
        grouped = cute.group(layout, begin, end)
        assert table(grouped) == table(cute.flatten(layout)) == table(layout)
        assert len(grouped.shape) == modes - (end - begin) + 1 and grouped.shape[begin] == layout.shape[begin:end]
        assert cute.ungroup(grouped, begin) == layout
        assert cute.take(layout, begin, end).shape == layout.shape[begin:end]
        chosen = [rng.randrange(modes) for _mode in range(2)]
        assert list(cute.select(layout, *chosen)) == [layout[k] for k in chosen]
        assert cute.get(layout, begin) == layout[begin] == CuteLayout(layout.shape[begin], layout.stride[begin])
        assert all(not isinstance(n, tuple) for n in cute.flatten(layout).shape)
        assert cute.rank(layout) == modes and cute.size(layout) == len(table(layout))


@pytest.mark.parametrize("count", MANY)
def test_coordinates_and_indices_are_inverse(count):
    rng = random.Random(5)
    for _k in range(count):
        shape = some_shape(rng)
        index = rng.randrange(prod(leaves(shape)))
        crd = cute.idx2crd(index, shape)
        assert tuple(leaves(crd)) == natural(shape)[index] and cute.congruent(crd, shape)
        assert cute.crd2idx(crd, shape) == index
        coarse = tuple(cute.crd2idx(c, s) for c, s in zip(crd, shape, strict=True))
        assert cute.idx2crd(coarse, shape) == crd and cute.crd2idx(coarse, shape) == index
        flat = tuple(leaves(shape))
        assert cute.crd2crd(crd, shape, flat) == natural(shape)[index]
        stride = like(shape, (rng.choice([0, 1, 5, -2]) for _leaf in iter(int, 1)))
        assert cute.crd2idx(crd, shape, stride) == table(CuteLayout(shape, stride))[index]


def refines(fine, coarse):
    """Whether the coarse shape can be had by multiplying out nests of the fine one."""
    if not isinstance(coarse, tuple):
        return prod(leaves(fine)) == coarse
    return isinstance(fine, tuple) and len(fine) == len(coarse) and all(map(refines, fine, coarse))


@pytest.mark.parametrize("count", MANY)
def test_profiles_compare_by_their_definitions(count):
    rng = random.Random(6)
    seen = {True: 0, False: 0}

    def coarser(tree):
        if not isinstance(tree, tuple) or rng.random() < 0.4:
            return prod(leaves(tree))
        return tuple(map(coarser, tree))

    for _k in range(count):
        fine = tuple(some_tree(rng) for _mode in range(rng.randint(1, 2)))
        coarse = coarser(fine) if rng.random() < 0.6 else tuple(some_tree(rng) for _mode in fine)
        assert cute.compatible(coarse, fine) is refines(fine, coarse)
        seen[refines(fine, coarse)] += 1
        assert cute.congruent(coarse, fine) is (
            cute.weakly_congruent(coarse, fine) and cute.weakly_congruent(fine, coarse)
        )
        assert not refines(fine, coarse) or cute.weakly_congruent(coarse, fine)
    assert min(seen.values()) > count // 10


@pytest.mark.parametrize("count", MANY)
def test_coalesce_by_mode_keeps_each_mode(count):
    rng = random.Random(7)
    for _k in range(count):
        layout = some_layout(rng)
        profile = (1,) * rng.randint(1, len(layout.shape))
        found = cute.coalesce(layout, profile)
        assert len(found.shape) == len(layout.shape)
        for k, (mode, old) in enumerate(zip(found, layout, strict=True)):
            assert table(mode) == table(old)
            assert mode == (cute.coalesce(old) if k < len(profile) else old)


@pytest.mark.parametrize("count", MANY)
def test_composition_by_mode_composes_each_mode(count):
    rng = random.Random(8)
    done = 0
    for _k in range(count):
        layout = some_layout(rng)
        extents = sizes(layout)
        tiler = tuple(rng.choice([_, rng.choice([d for d in range(1, n + 1) if n % d == 0])]) for n in extents)
        try:
            found = composition(layout, tiler)
        except NoLayout:
            continue
        done += 1
        for mode, old, entry in zip(found, layout, tiler, strict=True):
            assert table(mode) == (table(old) if entry is _ else table(old)[:entry])
    assert done > count // 2


def blocks(layout, tiler):
    """Per mode the pairs (position in the tile, number of the tile) in order of the index: tiles of n neighbours."""
    return [[(i % n, i // n) for i in range(size)] for size, n in zip(sizes(layout), tiler, strict=True)]


@pytest.mark.parametrize("count", MANY)
def test_the_divides_by_mode_arrange_tiles_and_rests(count):
    rng = random.Random(9)
    done = 0
    for _k in range(count):
        layout = some_layout(rng)
        tiler = tuple(rng.choice([d for d in range(1, n + 1) if n % d == 0]) for n in sizes(layout))
        try:
            logical, zipped = cute.logical_divide(layout, tiler), cute.zipped_divide(layout, tiler)
            tiled, flat = cute.tiled_divide(layout, tiler), cute.flat_divide(layout, tiler)
        except (NoLayout, NotDivisible):
            continue
        done += 1
        rank = len(tiler)
        assert cute.rank(zipped) == 2 and cute.rank(tiled) == 1 + rank and cute.rank(flat) == 2 * rank
        for _point in range(6):
            index = [rng.randrange(n) for n in sizes(layout)]
            value = layout(*index)
            inner, outer = zip(*(blocks(layout, tiler)[k][i] for k, i in enumerate(index)), strict=True)
            assert logical(tuple(zip(inner, outer, strict=True))) == value
            assert zipped((inner, outer)) == tiled((inner, *outer)) == flat((*inner, *outer)) == value
    assert done > count // 2


@pytest.mark.parametrize("count", MANY)
def test_blocked_and_raked_products_place_whole_and_interleaved_blocks(count):
    rng = random.Random(10)
    for _k in range(count):
        block, grid = (
            cute.make_ordered_layout((rng.randint(1, 4), rng.randint(1, 4)), tuple(rng.sample(range(2), 2)))
            for _part in range(2)
        )
        blocked, raked = cute.blocked_product(block, grid), cute.raked_product(block, grid)
        (m, n), (p, q) = block.shape, grid.shape
        for i, j, a, b in product(range(m), range(n), range(p), range(q)):
            value = block(i, j) + m * n * grid(a, b)
            assert blocked(i + m * a, j + n * b) == value
            assert raked(a + p * i, b + q * j) == value


@pytest.mark.parametrize("count", MANY)
def test_the_products_arrange_the_same_modes(count):
    rng = random.Random(11)
    done = 0
    for _k in range(count):
        modes = [CuteLayout(rng.choice([1, 2, 3, 4]), rng.choice([1, 2, 3])) for _mode in range(2)]
        tiler = tuple(CuteLayout(rng.choice([1, 2, 3]), rng.choice([1, 2, 4])) for _mode in range(2))
        layout = make_layout(*modes)
        try:
            logical, zipped = cute.logical_product(layout, tiler), cute.zipped_product(layout, tiler)
            tiled, flat = cute.tiled_product(layout, tiler), cute.flat_product(layout, tiler)
        except NoLayout:
            continue
        done += 1
        for i, j in product(range(modes[0].size), range(modes[1].size)):
            for a, b in product(range(tiler[0].size), range(tiler[1].size)):
                value = logical((i, a), (j, b))
                assert zipped((i, j), (a, b)) == tiled((i, j), a, b) == flat(i, j, a, b) == value
        for mode, whole in zip(modes, logical, strict=True):
            assert whole[0] == mode == cute.logical_product(mode, 1)[0]
    assert done > count // 2


@pytest.mark.parametrize("count", MANY)
def test_the_greatest_common_vector_is_contiguous_in_both_and_not_longer(count):
    rng = random.Random(12)
    found = 0
    for _k in range(count):
        shape = (rng.choice([2, 4]), rng.choice([2, 4]), 2)
        a = cute.make_ordered_layout(shape, tuple(rng.sample(range(3), 3)))
        b = cute.make_ordered_layout(shape, tuple(rng.sample(range(3), 3)))
        width = cute.max_common_vector(a, b)
        common = cute.max_common_layout(a, b)
        assert [a(i) for i in table(common)] == [b(i) for i in table(common)] == list(range(width))
        index_a, index_b = table(a).index, table(b).index
        run = 0
        while run < len(table(a)) and index_a(run) == index_b(run):
            run += 1
        assert width <= run and (width > 1 or run < 2 or index_a(1) != index_b(1))
        found += width > 1
    assert found
