"""Swizzles, composed layouts, F2 maps and XOR strides against bit strings and enumeration."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileweave.errors import Incongruent, LayoutError, NoLayout
from tileweave.layout import cute
from tileweave.layout.core.layout import Layout
from tileweave.layout.cute import (
    ComposedLayout,
    CuteLayout,
    F2Map,
    Swizzle,
    XorLayout,
    composition,
    downcast,
    f2_from_core,
    f2_from_layout,
    f2_from_swizzle,
    f2_to_core,
    f2_to_layout,
    make_layout,
    make_swizzle,
    upcast,
    xor_strides,
)

MANY = [300, pytest.param(10_000, marks=pytest.mark.slow)]


def swizzle_by_bits(b, m, s, x):
    """Bit by bit: target bit m + k - min(s, 0) is flipped by source bit m + k + max(s, 0), for k < b."""
    out = x
    for k in range(b):
        source, target = m + k + max(s, 0), m + k - min(s, 0)
        if x >> source & 1:
            out ^= 1 << target
    return out


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(-6, 6), st.integers(0, 1 << 14))
def test_a_swizzle_moves_bits_and_is_its_own_inverse(b, m, s, x):
    if abs(s) < b:
        with pytest.raises(LayoutError):
            Swizzle(b, m, s)
        return
    swizzle = Swizzle(b, m, s)
    assert swizzle(x) == swizzle_by_bits(b, m, s, x)
    assert swizzle(swizzle(x)) == x
    assert swizzle(np.array([x])).tolist() == [swizzle(x)]
    if b:
        assert make_swizzle(swizzle.source_mask, swizzle.target_mask) == swizzle


@pytest.mark.parametrize("parts", [(-1, 0, 3), (1, -1, 3), (2, 0, 1), (1.0, 0, 3), (True, 0, 3)])
def test_bad_swizzles_are_refused(parts):
    with pytest.raises(LayoutError):
        Swizzle(*parts)


def test_offsets_below_zero_are_refused():
    with pytest.raises(LayoutError):
        Swizzle(1, 0, 1)(-1)
    with pytest.raises(LayoutError):
        ComposedLayout(Swizzle(1, 0, 1), 0, CuteLayout(4, -1))
    assert ComposedLayout(Swizzle(1, 0, 1), 3, CuteLayout(4, -1))(0) == Swizzle(1, 0, 1)(3)


def test_composition_with_swizzles():
    swizzle, layout = Swizzle(2, 0, 3), make_layout((4, 8))
    both = composition(swizzle, layout)
    assert [both(i) for i in range(32)] == [swizzle(i) for i in range(32)]
    assert both(np.arange(32)).tolist() == [swizzle(i) for i in range(32)]
    assert both(3, 2) == swizzle(11)
    part = composition(both, CuteLayout((2, 4), (2, 4)))
    assert [part(i) for i in range(8)] == [swizzle(CuteLayout((2, 4), (2, 4))(i)) for i in range(8)]
    assert composition(swizzle, both) == layout
    assert composition(make_layout(32), both) == both
    assert both.cosize == 32


@pytest.mark.parametrize("count", MANY)
def test_a_layout_is_linear_over_f2_iff_its_basis_images_share_no_bit(count):
    rng = random.Random(1)
    seen = {True: 0, False: 0}
    for _k in range(count):
        rank = rng.randint(1, 3)
        layout = CuteLayout(
            tuple(rng.choice([1, 2, 2, 4, 3 if rng.random() < 0.2 else 2]) for _m in range(rank)),
            tuple(rng.choice([0, 1, 2, 3, 4, 5, 8, 16, 6, -1 if rng.random() < 0.2 else 1]) for _m in range(rank)),
        )
        values = [layout(i) for i in range(layout.size)]
        linear = (
            layout.size & (layout.size - 1) == 0
            and min(values) >= 0
            and all(values[x ^ y] == values[x] ^ values[y] for x in range(layout.size) for y in range(layout.size))
        )
        seen[linear] += 1
        if linear:
            f = f2_from_layout(layout)
            assert [f(x) for x in range(layout.size)] == values
            back = f2_to_layout(f)
            assert [back(x) for x in range(layout.size)] == values
        else:
            with pytest.raises(NoLayout):
                f2_from_layout(layout)
    assert min(seen.values()) > count // 20


def brute_compose(f, g, bits):
    return [f(g(x)) for x in range(1 << bits)]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_f2_maps_compose_invert_and_solve(data):
    bits, middle, rows = (data.draw(st.integers(0, 4)) for _k in range(3))
    g = F2Map(tuple(data.draw(st.integers(0, (1 << middle) - 1)) for _j in range(bits)), middle)
    f = F2Map(tuple(data.draw(st.integers(0, (1 << rows) - 1)) for _j in range(middle)), rows)
    both = f.compose(g)
    assert [both(x) for x in range(1 << bits)] == brute_compose(f, g, bits)
    image = {g(x) for x in range(1 << bits)}
    assert len(image) == 1 << g.rank
    assert g.is_injective() == (len(image) == 1 << bits) and g.is_surjective() == (len(image) == 1 << middle)
    assert all(g(x) == 0 for x in g.kernel()) and len(g.kernel()) == bits - g.rank
    for v in range(1 << middle):
        found = g.solve(v)
        assert (found is not None) == (v in image)
        assert found is None or g(found) == v
    if g.is_injective() and g.is_surjective():
        inverse = g.inverse()
        assert all(inverse(g(x)) == x for x in range(1 << bits))
        assert g.compose(inverse) == F2Map.identity(bits)
    else:
        with pytest.raises(NoLayout):
            g.inverse()
    matrix = g.matrix()
    for x in range(1 << bits):
        vector = np.array([x >> j & 1 for j in range(bits)], dtype=np.uint8)
        want = matrix.astype(int) @ vector % 2
        assert sum(int(v) << r for r, v in enumerate(want)) == g(x)
    assert g(np.arange(1 << bits)).tolist() == [g(x) for x in range(1 << bits)]


def test_f2_refusals():
    with pytest.raises(LayoutError):
        F2Map((4,), 2)
    with pytest.raises(LayoutError):
        F2Map((1,), 1)(2)
    with pytest.raises(Incongruent):
        f2_from_swizzle(Swizzle(2, 0, 3), 4)
    with pytest.raises(NoLayout) as caught:
        f2_to_layout(F2Map((3, 1), 2))
    x, y, _both = caught.value.witness.points
    assert F2Map((3, 1), 2)(x) & F2Map((3, 1), 2)(y)


@pytest.mark.parametrize("count", MANY)
def test_xor_strides_have_the_values_of_the_composed_layout(count):
    rng = random.Random(2)
    done = 0
    for _k in range(count):
        b = rng.randint(0, 3)
        s = rng.choice([b, b + 1, -b - 1, 3])
        if abs(s) < b:
            continue
        rows, cols = 1 << rng.randint(0, 4), 1 << rng.randint(0, 4)
        inner = CuteLayout((rows, cols), rng.choice([(1, rows), (cols, 1)]))
        both = ComposedLayout(Swizzle(b, rng.randint(0, 2), s), 0, inner)
        values = [both(i) for i in range(both.size)]
        f = f2_from_layout(both)
        assert [f(i) for i in range(f.size)] == values
        xor = xor_strides(both)
        assert [xor(i) for i in range(xor.size)] == values
        assert xor(np.arange(xor.size)).tolist() == values
        assert xor(rows - 1, cols - 1) == both(rows - 1, cols - 1)
        done += 1
    assert done > count // 2


def test_composed_layouts_that_are_not_linear_are_refused():
    with pytest.raises(NoLayout):
        f2_from_layout(ComposedLayout(Swizzle(1, 0, 1), 1, make_layout(4)))
    with pytest.raises(NoLayout):
        f2_from_layout(ComposedLayout(Swizzle(1, 0, 1), 0, make_layout(3)))
    with pytest.raises(NoLayout) as caught:
        f2_from_layout(ComposedLayout(Swizzle(1, 0, 1), 0, CuteLayout((2, 2), (1, 3))))
    x, y, both = caught.value.witness.points
    layout = ComposedLayout(Swizzle(1, 0, 1), 0, CuteLayout((2, 2), (1, 3)))
    assert x ^ y == both and layout(x) ^ layout(y) != layout(both)
    with pytest.raises(LayoutError):
        XorLayout((3,), (1,))


def test_cosize_counts_the_swizzle():
    layout = ComposedLayout(Swizzle(1, 0, 1), 0, CuteLayout(2, 2))
    assert [layout(0), layout(1)] == [0, 3]
    assert layout.cosize == 4
    wide = ComposedLayout(Swizzle(3, 0, 40), 0, CuteLayout((1 << 20, 1 << 30), (1, 1 << 20)))
    assert wide.cosize == 1 << 50


def test_layouts_in_front_of_swizzles_compose_too():
    front = CuteLayout((4, 8), (8, 1))
    behind = ComposedLayout(Swizzle(2, 0, 3), 0, make_layout((8, 4)))
    both = composition(front, behind)
    assert [both(i) for i in range(32)] == [front(behind(i)) for i in range(32)]
    part = composition(both, CuteLayout(8, 4))
    assert [part(i) for i in range(8)] == [both(4 * i) for i in range(8)]
    assert [f2_from_layout(both)(i) for i in range(32)] == [both(i) for i in range(32)]
    assert [composition(front, Swizzle(2, 0, 3))(i) for i in range(32)] == [
        front(Swizzle(2, 0, 3)(i)) for i in range(32)
    ]
    assert composition(Swizzle(2, 0, 3), Swizzle(2, 0, 3)) == Swizzle(0, 0, 0)
    with pytest.raises(LayoutError, match="no single swizzle"):
        composition(Swizzle(2, 0, 3), Swizzle(1, 0, 3))
    beyond = composition(make_layout(16), behind)  # from 16 on the front runs on
    assert [beyond(i) for i in range(32)] == [behind(i) for i in range(32)]


@pytest.mark.parametrize("count", MANY)
def test_recast_behind_a_swizzle_moves_its_base(count):
    rng = random.Random(3)
    done = 0
    for _k in range(count):
        b, m, extra = rng.randint(0, 2), rng.randint(0, 3), rng.randint(0, 2)
        layout = ComposedLayout(Swizzle(b, m, rng.choice([1, -1]) * (b + extra)), 0, make_layout((32, 8)))
        factor = rng.choice([1, 2, 4, 8])
        fine = downcast(layout, factor)
        every = np.asarray(layout(np.arange(layout.size)))
        parts = (factor * every[:, None] + np.arange(factor)).reshape(-1)
        assert np.array_equal(fine(np.arange(fine.size)), parts)
        try:
            coarse = upcast(layout, factor)
        except NoLayout:
            assert b and m < factor.bit_length() - 1
            continue
        done += 1
        assert np.array_equal(coarse(np.arange(coarse.size)), every[::factor] // factor)
    assert done > count // 4


@pytest.mark.parametrize("count", MANY)
def test_core_layouts_are_linear_axis_by_axis(count):
    rng = random.Random(4)
    done = 0
    for _k in range(count):
        strides = [
            {"lane": rng.choice([0, 1, 2, 4]), "reg": rng.choice([0, 1, 2, 8])} for _m in range(rng.randint(1, 3))
        ]
        core = Layout(tuple((rng.choice([1, 2, 4]), stride) for stride in strides))
        values = [core(x) for x in range(core.size)]
        linear = all(
            values[x ^ y][axis] == values[x][axis] ^ values[y][axis]
            for axis in ("lane", "reg")
            for x in range(core.size)
            for y in range(core.size)
        )
        if not linear:
            with pytest.raises(NoLayout):
                f2_from_core(core)
            continue
        done += 1
        maps = f2_from_core(core)
        assert all(maps[axis](x) == values[x][axis] for axis in maps for x in range(core.size))
        assert [f2_to_core(maps)(x) for x in range(core.size)] == values
    assert done > count // 10


def test_core_layouts_with_offsets_or_replicas_have_no_linear_map():
    for core in (Layout(((2, 1),), (), 1), Layout(((2, 1),), ((2, 2),))):
        with pytest.raises(NoLayout):
            f2_from_core(core)
    with pytest.raises(Incongruent):
        f2_to_core({"a": F2Map.identity(1), "b": F2Map.identity(2)})
    with pytest.raises(NoLayout):
        f2_to_core({"a": F2Map((1, 3), 2)})


def test_swizzled_tiles_divide_slice_and_fill_shapes():
    atom = ComposedLayout(Swizzle(2, 0, 3), 0, CuteLayout((8, 4), (4, 1)))
    filled = cute.tile_to_shape(atom, (16, 8))
    plain = cute.tile_to_shape(atom.inner, (16, 8))
    assert all(filled(i) == atom.outer(plain(i)) for i in range(128))
    tiles = cute.zipped_divide(filled, (4, 2))
    assert all(tiles(i) == atom.outer(cute.zipped_divide(plain, (4, 2))(i)) for i in range(128))
    assert cute.flat_divide(filled, (4, 2)).shape == cute.flat_divide(plain, (4, 2)).shape
    row = filled(3, cute._)
    assert [row(j) for j in range(8)] == [filled(3, j) for j in range(8)]
    assert cute.slice_(filled, (cute._, 5))(2) == filled(2, 5)
    assert cute.coalesce(filled)(77) == filled(77) and cute.get(filled, 1).size == 8
