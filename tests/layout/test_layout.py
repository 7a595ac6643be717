"""The core value: evaluation in all its forms agrees with the digits walked by plain loops."""

from __future__ import annotations

import pickle
from collections import Counter
from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import given

from strategies import VECTOR, coords, fibres, layouts, random_layout, random_shape
from tileweave.errors import LayoutError
from tileweave.layout import Coord, Iter, Layout, read, strided


def as_terms(values, index, axes):
    """The coordinate at one position of a table, as sorted (axis, value) pairs."""
    columns = values if isinstance(values, dict) else {axes[0]: values}
    return tuple(sorted((a, int(c[index])) for a, c in columns.items() if c[index]))


@given(layouts(copies=2, max_size=60))
def test_evaluation_agrees_with_the_definition(layout):
    truth = fibres(layout)
    bare = Layout(layout.shard, (), layout.offset)
    assert [layout(x).terms for x in range(layout.size)] == [next(iter(f)) for f in fibres(bare)]
    assert [Counter({c.terms: k for c, k in layout.multiset_at(x).items()}) for x in range(layout.size)] == truth
    assert [{c.terms for c in layout.set_at(x)} for x in range(layout.size)] == [set(f) for f in truth]


@given(layouts())
def test_arrays_tables_and_digits_agree_with_integers(layout):
    index = np.arange(layout.size)
    want = [layout(int(x)).terms for x in index]
    some = index[:: max(1, layout.size // 7)]
    few = layout(some[:1])
    assert [as_terms(layout(index), x, layout.axes) for x in index] == want
    assert [as_terms(layout.table(), x, layout.axes) for x in index] == want
    assert as_terms(few, 0, layout.axes) == want[some[0]]
    digits = np.unravel_index(index, layout.extents) if layout.shard else ()
    assert [layout(tuple(int(d[x]) for d in digits)).terms for x in index] == want


def test_coordinates_under_an_admitted_shape_are_row_major():
    rng = Random(1)
    for _ in range(200):
        layout = random_layout(rng, strides=VECTOR)
        shape = random_shape(rng, layout.size)
        for x in range(layout.size):
            assert layout.at([int(c) for c in np.unravel_index(x, shape)], shape) == layout(x)


def test_arrays_of_coordinates_broadcast():
    layout = Layout(((4, 1), (6, {"lane": 2})))
    i, j = np.arange(4)[:, None], np.arange(6)[None, :]
    found = layout.at((i, j), (4, 6))
    assert (found["m"] == i + 0 * j).all()
    assert (found["lane"] == 2 * j + 0 * i).all()
    assert strided((4, 6), (6, 1)).at((i, 5), (4, 6)).tolist() == [[5], [11], [17], [23]]
    huge = strided((2**31, 2**32), (2**32, 1))
    assert huge.at((np.array([2**31 - 1]), 7), (2**31, 2**32)).tolist() == [(2**31 - 1) * 2**32 + 7]
    for wrong in [(i, 6), (i, -1), (i, 1.5), (i,), (i, np.zeros(6))]:
        with pytest.raises(LayoutError):
            layout.at(wrong, (4, 6))


@given(layouts(copies=2, max_size=60))
def test_bounds_span_and_cosize_are_those_of_the_values(layout):
    truth = [dict(terms) for fibre in fibres(layout) for terms in fibre]
    for axis in (*layout.axes, "other"):
        on_axis = [terms.get(axis, 0) for terms in truth]
        assert layout.bounds(axis) == (min(on_axis), max(on_axis))
        assert layout.span(axis) == max(on_axis) - min(on_axis) + 1
        assert layout.cosize(axis) == max(on_axis) + 1


@given(layouts(copies=2, max_size=60))
def test_repr_pickle_and_hash_keep_the_value(layout):
    assert eval(repr(layout), {**globals(), "read": read}) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    again = Layout(layout.shard, layout.replica[::-1], layout.offset)
    assert again == layout
    assert hash(again) == hash(layout)


@given(coords, coords)
def test_coordinates_form_a_module(a, b):
    def same(c, d):
        return all(c[axis] == d.get(axis, 0) for axis in {*c.axes, *d})

    names = {*a.axes, *b.axes}
    assert same(a + b, {n: a[n] + b[n] for n in names})
    assert same(a - b, {n: a[n] - b[n] for n in names})
    assert same(-3 * a, {n: -3 * a[n] for n in names})
    assert (a + b) - b == a
    assert 0 * a == Coord()


def test_a_large_table_is_quick_and_right():
    layout = strided((64, 64, 64, 64), (64**3, 64, 64**2, 1))
    index = np.arange(4096 * 4096).reshape(4096, 4096)
    values = layout(index)
    i, j, k, m = np.unravel_index(12345678, (64, 64, 64, 64))
    assert values.shape == index.shape
    assert values.reshape(-1)[12345678] == i * 64**3 + j * 64 + k * 64**2 + m
    few = layout(np.array([5, 12345678]))
    assert few.tolist() == [values.reshape(-1)[5], values.reshape(-1)[12345678]]


def test_sizes_up_to_2_60_and_values_beyond_int64_stay_exact():
    layout = strided((2**20, 2**20, 2**20), (2**41, -1, 2**20))
    x = 3 * 2**40 + 5 * 2**20 + 7
    assert layout(x) == Coord.of(3 * 2**41 - 5 + 7 * 2**20)
    assert layout(np.array([x])).tolist() == [3 * 2**41 - 5 + 7 * 2**20]
    huge = strided((4, 2), (2**70, 1))
    assert huge(np.array([5])).tolist() == [2 * 2**70 + 1]
    assert prod(layout.extents) == layout.size == 2**60


def test_one_logical_index_and_an_unused_axis():
    point = Layout((), (), {"lane": 3})
    assert (point.size, point(0), point(()), point.axes) == (1, Coord.of({"lane": 3}), Coord.of({"lane": 3}), ("lane",))
    assert Layout()(np.zeros((2, 2), int)).tolist() == [[0, 0], [0, 0]]
    assert Layout(((4, 0),)).axes == ("m",)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Iter(0, 1), "extent 0 is not positive"),
        (lambda: Iter(-2, 1), "extent -2 is not positive"),
        (lambda: Iter(2.0, 1), "extent 2.0 is not an integer"),
        (lambda: Iter(2, "a"), "'a' is not a coordinate"),
        (lambda: Iter(2, 1.5), "1.5 is not a coordinate"),
        (lambda: Layout((3,)), "is not a list of iters"),
        (lambda: Layout(5), "is not a list of iters"),
        (lambda: Layout(((4, 1, 1),)), "is not a list of iters"),
        (lambda: Coord((("a", 1.5),)), "the value on axis a 1.5 is not an integer"),
        (lambda: Coord((("not an axis", 1),)), "is not the name of an axis"),
        (lambda: Coord(((3, 1),)), "3 is not the name of an axis"),
        (lambda: Coord((3,)), "is not a list of (axis, value) pairs"),
        (lambda: strided((4,), (1, 2)), "ranks 1 and 2 differ"),
        (lambda: strided((4,), (1,))(4), "4 is out of range"),
        (lambda: strided((4,), (1,))(-1), "-1 is out of range"),
        (lambda: strided((4,), (1,))(1.0), "index 1.0 is not an integer"),
        (lambda: strided((4,), (1,))("ab"), "'ab' is not a sequence of coordinates"),
        (lambda: strided((4,), (1,))(np.array([4])), "4 is out of range"),
        (lambda: strided((4,), (1,))(np.array([0.5])), "float64 is no index"),
        (lambda: strided((4,), (1,)).at((1, 1), (2, 3)), "the shape has 6 points"),
        (lambda: strided((4,), (1,)).at((1,), (2, 2)), "1 coordinates for 2 dimensions"),
        (lambda: strided((4,), (1,)).at((1, 2), (2, 2)), "coordinate 2 is out of range"),
        (lambda: strided((2**40,), (1,)).table(), "points are too many"),
    ],
)
def test_bad_input_is_named_in_the_house_form(make, text):
    with pytest.raises(LayoutError) as caught:
        make()
    assert text in str(caught.value).splitlines()[0]
    assert caught.value.where
