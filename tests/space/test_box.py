"""Boxes and lattices against sets of points."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileweave.errors import SpaceError
from tileweave.space import Box, Lattice, disjoint, even_cuts


def boxes(rank: int) -> st.SearchStrategy[Box]:
    starts = st.tuples(*[st.integers(-4, 4)] * rank)
    shapes = st.tuples(*[st.integers(0, 4)] * rank)
    return st.builds(Box, starts, shapes)


pairs = st.integers(0, 3).flatmap(lambda rank: st.tuples(boxes(rank), boxes(rank)))


@given(pairs)
def test_operations_are_those_of_sets_of_points(pair):
    a, b = pair
    assert set(a.intersect(b)) == set(a) & set(b)
    assert a.contains(b) == (set(b) <= set(a))
    union = a.union(b)
    assert union.contains(a) and union.contains(b)
    assert len(list(a)) == len(set(a)) == a.size
    assert a.empty == (not set(a))
    for point in list(b)[:5]:
        assert a.contains(point) == (point in set(a))


@given(pairs)
def test_the_union_is_the_least_box(pair):
    a, b = pair
    union, points = a.union(b), set(a) | set(b)
    if points:
        columns = list(zip(*points, strict=True))
        assert union.start == tuple(min(c) for c in columns)
        assert union.stop == tuple(max(c) + 1 for c in columns)
    else:
        assert union.empty


@given(boxes(2), st.tuples(st.integers(-3, 3), st.integers(-3, 3)))
def test_translate_moves_every_point(box, by):
    assert set(box.translate(by)) == {(p[0] + by[0], p[1] + by[1]) for p in box}


@given(boxes(2), st.integers(0, 1), st.integers(0, 4))
def test_split_parts_hold_each_point_once(box, dim, at):
    at = box.start[dim] + min(at, box.shape[dim])
    low, high = box.split(dim, at)
    assert sorted([*low, *high]) == sorted(box)
    assert all(p[dim] < at for p in low) and all(p[dim] >= at for p in high)


def test_rank_zero_holds_one_point_and_a_zero_extent_none():
    assert list(Box((), ())) == [()]
    assert Box((), ()).size == 1 and not Box((), ()).empty
    assert Box((3,), (0,)).empty and list(Box((3,), (0,))) == []


def test_sizes_are_exact_beyond_machine_integers():
    assert Box.of((2**40, 2**40)).size == 2**80


def test_an_empty_box_lies_in_every_box():
    assert Box((0,), (2,)).contains(Box((100,), (0,)))


def test_numpy_integers_become_python_integers():
    box = Box(tuple(np.arange(2)), tuple(np.array([3, 4], np.int32)))
    assert all(type(n) is int for n in (*box.start, *box.shape))
    assert box == Box((0, 1), (3, 4)) and hash(box) == hash(Box((0, 1), (3, 4)))
    assert pickle.loads(pickle.dumps(box)) == box


def test_text():
    assert str(Box((0, -2), (3, 4))) == "[0:3, -2:2]"
    assert str(Lattice((1,), (3,), (2,))) == "[1:6:2]"
    assert eval(repr(Box((0,), (3,)))) == Box((0,), (3,))


@given(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_a_lattice_lies_in_its_cover_and_touches_every_side(start, shape):
    lattice = Lattice(start, shape, (2, 3))
    points = set(lattice)
    assert len(points) == lattice.size
    assert all(lattice.cover.contains(p) for p in points)
    if points:
        assert lattice.cover == Box.between(
            [min(c) for c in zip(*points, strict=True)], [max(c) + 1 for c in zip(*points, strict=True)]
        )


@given(st.integers(0, 60), st.integers(1, 12), st.integers(-5, 5))
def test_even_cuts_differ_by_one_at_most(extent, parts, start):
    if parts > max(extent, 1):
        with pytest.raises(SpaceError):
            even_cuts(extent, parts, start)
        return
    cuts = even_cuts(extent, parts, start)
    lengths = [b - a for a, b in itertools.pairwise(cuts)]
    assert cuts[0] == start and cuts[-1] == start + extent and len(lengths) == parts
    assert max(lengths) - min(lengths) <= 1 and lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Box((0,), (1, 2)),
        lambda: Box((0,), (-1,)),
        lambda: Box((0.5,), (1,)),
        lambda: Lattice((0,), (1,), (0,)),
        lambda: Lattice((0,), (1, 1), (1,)),
        lambda: Box((0,), (3,)).split(0, 4),
        lambda: Box((0,), (3,)).contains((1, 2)),
        lambda: Box((0,), (3,)).translate((1, 2)),
        lambda: even_cuts(3, 0),
        lambda: even_cuts(0, 2),
    ],
)
def test_malformed_values_are_refused(make):
    with pytest.raises(SpaceError) as caught:
        make()
    assert isinstance(caught.value, ValueError)


@given(st.integers(0, 3).flatmap(lambda rank: st.lists(boxes(rank), max_size=6)))
def test_disjoint_is_that_no_point_has_two_owners(some):
    points = [point for box in some for point in box]
    assert disjoint(some) == (len(set(points)) == len(points))


def test_a_grid_of_ten_thousand_boxes_is_disjoint_and_one_more_is_not():
    grid = [Box((3 * a, 5 * b), (3, 5)) for a in range(100) for b in range(100)]
    assert disjoint(grid)
    assert not disjoint([*grid, Box((299, 0), (1, 1))])
