"""Selectors against NumPy, and the pieces that any tree of them resolves to."""

import itertools

import numpy as np
import pytest
from arrays import HOWS, same, strided, values
from random_graphs import random_graph

from tileweave import graph as tw
from tileweave.graph.ir.resolve import view
from tileweave.graph.passes.evaluate import gather
from tileweave.space import Box

RNG = np.random.default_rng(0)
SHAPES = [(), (5,), (3, 4), (2, 1, 5), (0, 3), (1, 1)]

KEYS = [
    ..., (), None, 0, -1, slice(None), slice(1, None), slice(None, None, -1), slice(None, None, 2), slice(4, 0, -2),
    slice(-2, None), slice(10, 20), slice(3, 1), (slice(None), 1), (..., 0), (0, ...), (None, ..., None),
    (slice(1, 3), None, slice(None, None, -2)), (0, None, 1), (None, 0, None, slice(1, None), None),
    (slice(None, None, 3), ..., slice(-1, None, -1)), np.int64(1), (slice(0, 0), 0),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_basic_indexing(key):
    used = 0
    for shape, how in itertools.product(SHAPES, HOWS):
        array = strided(RNG, shape, "int64", how) if shape else values(RNG, shape, "int64")
        try:
            expected = array[key]
        except IndexError:
            continue
        same(tw.as_tensor(array)[key], expected)
        used += 1
    assert used


def test_random_chains_of_indexing():
    rng = np.random.default_rng(1)
    for _ in range(200):
        array = values(rng, (5, 4, 3), "int32")
        tensor = tw.as_tensor(array)
        for _ in range(rng.integers(1, 4)):
            key = []
            for _ in range(int(rng.integers(0, array.ndim + 1))):
                a, b = rng.integers(-6, 7, 2)
                step = int(rng.choice([-3, -2, -1, 1, 2, 3]))
                key.append(slice(*(None if rng.random() < 0.3 else int(c) for c in (a, b)), step))
            if rng.random() < 0.3 and array.ndim < 5:
                key.insert(int(rng.integers(0, len(key) + 1)), None)
            array, tensor = array[tuple(key)], tensor[tuple(key)]
        same(tensor, array)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_view_is_numpys(shape):
    array = values(RNG, shape, "float32")
    x = tw.as_tensor(array)
    rank = len(shape)
    for axes in itertools.permutations(range(rank)):
        same(tw.permute(x, axes), array.transpose(axes))
    same(tw.transpose(x), array.T)
    same(tw.flip(x), np.flip(array))
    for axis in range(-rank, rank):
        same(tw.flip(x, axis), np.flip(array, axis))
        if shape[axis]:
            same(tw.select(x, axis, -1), np.take(array, -1, axis))
        if shape[axis] == 1:
            same(tw.squeeze(x, axis), np.squeeze(array, axis))
    same(tw.squeeze(x), np.squeeze(array))
    for axis in (0, -1, (0, -1), rank):
        same(tw.unsqueeze(x, axis), np.expand_dims(array, axis))
    for wider in ((*shape,), (2, *shape), tuple(4 if n == 1 else n for n in shape)):
        same(tw.broadcast_to(x, wider), np.broadcast_to(array, wider))
    for axis in range(-rank, rank):
        same(tw.concat([x, x, x], axis), np.concatenate([array, array, array], axis))
    same(tw.full(shape, 1.5, "float32"), np.full(shape, 1.5, "float32"))


def test_concat_of_parts_with_empty_ones():
    parts = [values(RNG, (n, 3), "int64") for n in (2, 0, 1, 0, 4)]
    joined = tw.concat([tw.as_tensor(p) for p in parts], 0)
    array = np.concatenate(parts)
    same(joined, array)
    same(joined[::-2], array[::-2])
    same(joined[2], array[2])
    same(joined[1:3].T, array[1:3].T)


def test_a_slice_inside_one_part_of_a_concat_reads_that_part_alone():
    a, b = tw.as_tensor(np.arange(4.0)), tw.as_tensor(np.arange(6.0))
    joined = tw.concat([a, b])
    assert joined[:4] is a and joined[4:] is b
    assert {p.origin for p in tw.resolve(joined[5:7], Box((0,), (2,)))} == {b}


def test_views_that_change_nothing_are_the_tensor_itself():
    x = tw.as_tensor(np.ones((3, 4)))
    assert x[:] is x and x[..., :] is x and tw.permute(x, (0, 1)) is x and tw.broadcast_to(x, (3, 4)) is x
    assert tw.squeeze(x) is x and tw.flip(x, ()) is x and tw.concat([x]) is x


def check_pieces(tensor: tw.Tensor, box: Box) -> None:
    """Pieces are disjoint, cover the box, stay inside their origins, and hold the right values."""
    pieces = tw.resolve(tensor, box)
    points = [p for piece in pieces for p in piece.box]
    assert sorted(points) == sorted(box)
    (whole,) = tw.evaluate([tensor])
    for piece in pieces:
        if piece.origin is None:
            assert all(np.array_equal(whole[p], np.asarray(piece.fill, whole.dtype), equal_nan=True) for p in piece.box)
            continue
        assert not isinstance(piece.origin.producer, tw.Selector)
        assert piece.origin.type.box.contains(piece.region)
        (origin,) = tw.evaluate([piece.origin])
        block = origin[tuple(slice(a, b) for a, b in zip(piece.region.start, piece.region.stop, strict=True))]
        seen = view(block, piece.region, piece.map, piece.box)
        place = tuple(slice(a, b) for a, b in zip(piece.box.start, piece.box.stop, strict=True))
        np.testing.assert_array_equal(seen, whole[place])


def random_box(rng: np.random.Generator, tensor: tw.Tensor) -> Box:
    ends = [sorted(rng.integers(0, n + 1, 2).tolist()) for n in tensor.shape]
    return Box.between([a for a, _ in ends], [b for _, b in ends])


def test_resolve_of_random_trees():
    count = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        for v in random_graph(seed, "int64", 6):
            if v.tensor.size < 400:
                check_pieces(v.tensor, v.tensor.type.box)
                check_pieces(v.tensor, random_box(rng, v.tensor))
                count += 1
    assert count > 60


def test_a_broadcast_is_read_once_however_large():
    x = tw.as_tensor(np.ones((1, 3)))
    wide = tw.broadcast_to(x, (10**9, 10**6, 3))
    (piece,) = tw.resolve(wide, wide.type.box)
    assert piece.region == Box((0, 0), (1, 3)) and piece.box.size == 3 * 10**15


def test_an_empty_box_has_no_pieces():
    assert tw.resolve(tw.as_tensor(np.ones((3, 4))), Box((1, 1), (0, 2))) == []


def test_gather_returns_a_new_array():
    array = np.ones((2, 3))
    x = tw.as_tensor(array)
    out = gather(x, {x: array})
    out[0] = 7
    assert array[0, 0] == 1
