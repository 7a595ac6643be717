"""NumPy arrays and layouts name the same elements, both ways, in elements and in bytes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from strategies import random_layout, random_shape
from tileweave.errors import LayoutError, NoLayout
from tileweave.layout import Layout, as_array, byte_strides, from_array, strided, to_strides
from tileweave.layout.convert import Strides

MANY = pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])


def random_view(rng):
    base = np.arange(2 * 3 * 4 * 5, dtype=rng.choice([np.int16, np.int64, np.float32])).reshape(2, 3, 4, 5)
    view = base.transpose(rng.sample(range(4), 4))
    for axis in range(4):
        view = np.flip(view, axis) if rng.random() < 0.3 else view
    view = view[tuple(slice(rng.randint(0, n - 1), None, rng.choice([1, 2])) for n in view.shape)]
    return base, np.broadcast_to(view, (2, *view.shape)) if rng.random() < 0.3 else view


@MANY
def test_an_array_and_its_layout_name_the_same_elements(cases):
    rng = Random(1)
    for _ in range(cases):
        base, view = random_view(rng)
        layout = from_array(view, base)
        assert (base.reshape(-1)[layout(np.arange(view.size))] == view.reshape(-1)).all()
        strides = byte_strides(to_strides(layout, view.shape), view.itemsize)
        assert strides.shape == view.shape
        assert all(n == 1 or s == t for n, s, t in zip(view.shape, strides.strides, view.strides, strict=True))
        again = as_array(base.reshape(-1), layout, view.shape)
        assert again.shape == view.shape
        assert (again == view).all()
        assert np.shares_memory(again, base)


@MANY
def test_views_of_random_layouts_hold_what_the_layout_says(cases):
    rng = Random(2)
    made = 0
    for _ in range(cases):
        layout = random_layout(rng)
        layout = Layout(layout.shard, (), -layout.bounds()[0] + rng.randint(0, 3))
        buffer = np.arange(layout.cosize())
        assert (as_array(buffer, layout).reshape(-1) == layout(np.arange(layout.size))).all()
        shape = random_shape(rng, layout.size)
        try:
            view = as_array(buffer, layout, shape)
        except LayoutError:  # the shape cuts a digit, or a dimension needs two strides
            continue
        made += 1
        assert view.shape == shape
        assert (view.reshape(-1) == layout(np.arange(layout.size))).all()
    assert made > cases // 6


def test_bytes_are_elements_times_the_item_size():
    assert byte_strides(strided((2, 3), (-3, 1), 3), 4) == Strides((2, 3), (-12, 4), 12)
    with pytest.raises(LayoutError, match="itemsize 0 is not a positive integer"):
        byte_strides(strided((2,), (1,)), 0)


def test_what_is_no_array_is_named():
    with pytest.raises(LayoutError, match="an empty array has no layout"):
        from_array(np.zeros((0, 3)))
    record = np.zeros(4, dtype=[("a", "i2"), ("b", "i4")])
    with pytest.raises(LayoutError, match="not whole elements apart"):
        from_array(record["b"])
    with pytest.raises(LayoutError, match="the base has dtype"):
        from_array(np.zeros(3), np.zeros(3, np.float32))
    with pytest.raises(LayoutError, match="is not one array on the axis m"):
        to_strides(Layout(((2, {"lane": 1}),)))
    with pytest.raises(LayoutError, match="is not one array"):
        to_strides(Layout(((2, 1),), ((2, 2),)))
    with pytest.raises(LayoutError, match="dimension 0 needs 2 strides"):
        to_strides(strided((2, 2), (1, 8)), (4,))
    with pytest.raises(NoLayout):
        to_strides(strided((2, 3), (1, 8)), (3, 2))
    with pytest.raises(LayoutError, match="outside the buffer"):
        as_array(np.arange(3), strided((4,), (1,)))
    with pytest.raises(LayoutError, match="the buffer has shape"):
        as_array(np.zeros((2, 2)), strided((4,), (1,)))
