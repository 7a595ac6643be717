"""Affine maps and projections against enumeration."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import enumerate_image
from tileweave.errors import SpaceError
from tileweave.space import AffineMap, AffineSet, Box, Lattice, Projection


@st.composite
def maps(draw, inputs=None, outputs=None):
    inputs = draw(st.integers(0, 3)) if inputs is None else inputs
    outputs = draw(st.integers(0, 3)) if outputs is None else outputs
    row = st.tuples(*[st.integers(-3, 3)] * inputs)
    return AffineMap(tuple(draw(row) for _ in range(outputs)), draw(st.tuples(*[st.integers(-3, 3)] * outputs)), inputs)


@st.composite
def projections_on_boxes(draw):
    map = draw(maps())
    shape = draw(st.tuples(*[st.integers(0, 3)] * map.outputs))
    stride = draw(st.tuples(*[st.integers(1, 3)] * map.outputs))
    start = draw(st.tuples(*[st.integers(-3, 3)] * map.inputs))
    extent = draw(st.tuples(*[st.integers(0, 3)] * map.inputs))
    return Projection(map, shape, stride), Box(start, extent)


def bounding(points, rank):
    if not points:
        return None
    columns = list(zip(*points, strict=True)) if rank else []
    return Box.between([min(c) for c in columns], [max(c) + 1 for c in columns])


@given(st.data())
def test_composition_applies_the_inner_map_first(data):
    inner = data.draw(maps())
    outer = data.draw(maps(inputs=inner.outputs))
    point = data.draw(st.tuples(*[st.integers(-5, 5)] * inner.inputs))
    assert outer.after(inner)(point) == outer(inner(point))


@given(st.data())
def test_permutation_and_partial_application_are_those_of_points(data):
    map = data.draw(maps())
    point = data.draw(st.tuples(*[st.integers(-5, 5)] * map.inputs))
    columns, rows = (data.draw(st.permutations(range(n))) for n in (map.inputs, map.outputs))
    value = map(point)
    assert map.permute(columns, rows)(tuple(point[k] for k in columns)) == tuple(value[r] for r in rows)
    fixed = data.draw(st.sets(st.sampled_from(range(map.inputs)))) if map.inputs else set()
    rest = tuple(p for k, p in enumerate(point) if k not in fixed)
    assert map.partial({k: point[k] for k in fixed})(rest) == value
    assert AffineMap.shift(point)(point) == tuple(2 * p for p in point)


def test_orders_and_inputs_that_do_not_exist_are_refused():
    map = AffineMap(((1, 2),), (5,))
    for wrong in (lambda: map.permute((0, 0)), lambda: map.permute((0,)), lambda: map.permute(outputs=(1,)),
                  lambda: map.partial({2: 1}), lambda: map.partial({-1: 1})):  # fmt: skip
        with pytest.raises(SpaceError, match="legal"):
            wrong()


@given(projections_on_boxes())
@settings(max_examples=400)
def test_image_and_cover_are_exact(case):
    projection, box = case
    points = enumerate_image(projection, box)
    image = projection.image(box)
    assert set(image) == points
    cover = projection.cover(box)
    if points:
        assert cover == bounding(points, projection.map.outputs)
    else:
        assert cover.empty or cover.rank == 0
    if not isinstance(image, Box):
        assert image.cover == cover and image.size == len(points)


@given(projections_on_boxes())
def test_the_span_is_the_cover_row_by_row(case):
    projection, box = case
    span = projection.span(box)
    if not (box.empty or 0 in projection.shape):
        assert span == projection.cover(box)
    for k, row in enumerate(projection.map.matrix):
        alone = AffineMap((row,), (projection.map.offset[k],), projection.map.inputs)
        live = tuple(n if c else 1 for c, n in zip(row, box.shape, strict=True))
        single = Projection(alone, (projection.shape[k],), (projection.stride[k],)).cover(Box(box.start, live))
        assert span.shape[k] == single.shape[0]


@given(projections_on_boxes())
def test_a_box_is_answered_wherever_the_image_is_one(case):
    projection, box = case
    points = enumerate_image(projection, box)
    image = projection.image(box)
    hull = bounding(points, projection.map.outputs)
    if isinstance(image, AffineSet) and hull is not None:
        # an affine set may happen to fill its cover only where several index dimensions feed one row or one feeds two
        assert set(image) == points
    elif hull is not None and len(points) == hull.size:
        assert isinstance(image, Box) or all(s == 1 or n == 1 for n, s in zip(image.shape, image.step, strict=True))


def test_rows_of_mixed_sign_are_covered_exactly():
    """Images of the two extreme corners alone would answer [0:1] here."""
    projection = Projection(AffineMap(((1, -1),), (0,)), (1,))
    box = Box((0, 0), (3, 3))
    corners = [projection.map(box.start), projection.map(tuple(b - 1 for b in box.stop))]
    assert corners == [(0,), (0,)]
    assert projection.cover(box) == Box((-2,), (5,))
    assert projection.image(box) == Box((-2,), (5,))


def test_a_stride_beyond_the_shape_leaves_holes_and_is_a_lattice():
    """The box between the corners would claim points that no index point touches."""
    projection = Projection(AffineMap(((3,),), (0,)), (2,))
    image = projection.image(Box((0,), (4,)))
    assert isinstance(image, AffineSet)
    assert sorted(image) == [(0,), (1,), (3,), (4,), (6,), (7,), (9,), (10,)]
    assert projection.cover(Box((0,), (4,))) == Box((0,), (11,))
    single = Projection(AffineMap(((3,),), (1,)), (1,)).image(Box((0,), (4,)))
    assert single == Lattice((1,), (4,), (3,))


def test_twenty_thousand_small_maps_are_covered_exactly():
    rng = random.Random(7)
    wrong = corner_wrong = 0
    for _ in range(20000):
        row = (rng.randint(-3, 3), rng.randint(-3, 3))
        shape = (rng.randint(1, 4), rng.randint(1, 4))
        map = AffineMap((row,), (rng.randint(-3, 3),))
        values = [map(p)[0] for p in itertools.product(range(shape[0]), range(shape[1]))]
        hull = Box((min(values),), (max(values) - min(values) + 1,))
        wrong += map.cover(Box.of(shape)) != hull
        ends = sorted((map((0, 0))[0], map((shape[0] - 1, shape[1] - 1))[0]))
        corner_wrong += Box((ends[0],), (ends[1] - ends[0] + 1,)) != hull
    assert wrong == 0 and corner_wrong > 1000


def test_the_diagonal_is_an_affine_set():
    image = Projection.select((0, 0), 1).image(Box.of((3,)))
    assert isinstance(image, AffineSet)
    assert list(image) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("n", "kernel", "stride", "dilation"), list(itertools.product((7, 12), (1, 3), (1, 2, 3), (1, 2)))
)
def test_both_ways_to_strided_windows_agree(n, kernel, stride, dilation):
    """A striding projection reads what the dense projection reads of every stride-th window."""
    count = (n - dilation * (kernel - 1) - 1) // stride + 1
    striding = Projection(AffineMap(((stride,),), (0,)), (kernel,), (dilation,))
    dense = Projection(AffineMap(((1,),), (0,)), (kernel,), (dilation,))
    for i in range(count):
        assert enumerate_image(striding, Box((i,), (1,))) == enumerate_image(dense, Box((stride * i,), (1,)))
    assert Box.of((n,)).contains(striding.cover(Box.of((count,))))


def test_rank_zero_and_empty():
    assert AffineMap((), (), 0)(()) == ()
    assert Projection(AffineMap((), (), 2), ()).cover(Box.of((3, 4))) == Box((), ())
    assert Projection.select((0,), 1).image(Box((2,), (0,))).empty


def test_text():
    assert str(AffineMap(((1, 0), (0, -2)), (0, 1))) == "(i0, i1) -> (i0, -2*i1 + 1)"
    assert str(Projection.select((0, None), 2, (1, 8))) == "(i0, i1) -> (i0, 0) + (1, 8)"


@pytest.mark.parametrize(
    "make",
    [
        lambda: AffineMap(((1, 0),), (0, 1)),
        lambda: AffineMap(((1, 0), (1,)), (0, 1)),
        lambda: AffineMap.identity(2)((1,)),
        lambda: AffineMap.identity(2).after(AffineMap.identity(1)),
        lambda: AffineMap.identity(2).cover(Box.of((1,))),
        lambda: Projection(AffineMap.identity(2), (1,)),
        lambda: Projection(AffineMap.identity(1), (-1,)),
        lambda: Projection(AffineMap.identity(1), (1,), (0,)),
    ],
)
def test_malformed_maps_are_refused(make):
    with pytest.raises(SpaceError) as caught:
        make()
    assert isinstance(caught.value, ValueError)
