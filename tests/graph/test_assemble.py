"""Interleave, copies, pad and stride against NumPy, alone and under every other view."""

import itertools

import numpy as np
import pytest
from arrays import same, values

from tileweave import graph as tw
from tileweave.errors import GraphError, VerifyError
from tileweave.graph.ir.resolve import SEGMENTS, SELECTORS, register_assembly
from tileweave.space import Box

RNG = np.random.default_rng(0)


def turns(arrays, axis):
    out = np.stack(arrays, axis + 1 if axis >= 0 else axis)
    shape = list(arrays[0].shape)
    shape[axis] *= len(arrays)
    return (
        np.moveaxis(np.stack(arrays), 0, (axis % arrays[0].ndim) + 1).reshape(shape) if out.size else out.reshape(shape)
    )


def tiled(array, count, axis):
    return np.tile(array, [count if k == axis % array.ndim else 1 for k in range(array.ndim)])


@pytest.mark.parametrize("shape", [(5,), (3, 4), (1, 2, 3), (0, 2)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_copies_stride_and_interleave(shape, dtype):
    x = values(RNG, shape, dtype)
    for axis in range(-len(shape), len(shape)):
        for count in (0, 1, 2, 5):
            same(tw.copies(tw.as_tensor(x), count, axis), tiled(x, count, axis))
        for step in (1, 2, 3, 9):
            key = (slice(None),) * (axis % len(shape)) + (slice(None, None, step),)
            same(tw.stride(tw.as_tensor(x), step, axis), x[key])
        for count in (1, 2, 3):
            parts = [values(RNG, shape, dtype) for _ in range(count)]
            same(tw.interleave([tw.as_tensor(p) for p in parts], axis), turns(parts, axis % len(shape)))


@pytest.mark.parametrize("shape", [(5,), (1,), (2,), (3, 4), (1, 2, 3)])
@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_pad(shape, mode):
    x = values(RNG, shape, "int32")
    for width in (0, 1, (0, 3), (7, 5), [(k, 2 * k + 1) for k in range(len(shape))]):
        same(tw.pad(tw.as_tensor(x), width, mode), np.pad(x, width, mode))
    same(tw.pad(tw.as_tensor(x), 2, value=-3), np.pad(x, 2, constant_values=-3))


def test_padding_nothing_and_the_empty():
    x = tw.as_tensor(np.empty((0, 2)))
    assert tw.pad(x, 0) is x
    same(tw.pad(x, 1), np.zeros((2, 4)))


def reversible(x):
    """An index of an array that takes steps of both signs everywhere."""
    return tuple(slice(None, None, s) for s in itertools.islice(itertools.cycle((-2, 3, -1)), x.ndim))


def test_random_stacks_of_assemblies_and_views():
    rng = np.random.default_rng(4)
    checked = 0
    for _ in range(120):
        array = values(rng, (3, 4), "int64")
        tensor = tw.as_tensor(array)
        for _ in range(int(rng.integers(2, 6))):
            axis = int(rng.integers(0, array.ndim))
            how = rng.integers(0, 6)
            if how == 0:
                other = values(rng, array.shape, "int64")
                tensor = tw.interleave([tensor, tw.as_tensor(other), tensor], axis)
                array = turns([array, other, array], axis)
            elif how == 1:
                tensor, array = tw.copies(tensor, 2, axis), tiled(array, 2, axis)
            elif how == 2:
                tensor, array = tw.pad(tensor, (2, 1), "reflect"), np.pad(array, (2, 1), "reflect")
            elif how == 3:
                tensor, array = tw.pad(tensor, (1, 2)), np.pad(array, (1, 2))
            elif how == 4:
                tensor, array = tensor[reversible(array)], array[reversible(array)]
            elif array.ndim > 1 and array.shape[axis]:
                at = int(rng.integers(0, array.shape[axis]))
                tensor, array = tw.select(tensor, axis, at), np.take(array, at, axis)
            if array.size > 3000 or not array.size:
                break
        if array.size <= 10_000:
            same(tensor, array)
            check_pieces(tensor, array, rng)
            checked += 1
    assert checked > 100


def check_pieces(tensor, array, rng):
    """Both forms of the pieces of a random box hold each point once, with the right value."""
    ends = [sorted(rng.integers(0, n + 1, 2).tolist()) for n in tensor.shape]
    box = Box.between([a for a, _ in ends], [b for _, b in ends])
    for lattices in (False, True):
        got = np.full(tensor.shape, -(10**6))
        count = 0
        for piece in tw.resolve(tensor, box, lattices=lattices):
            assert lattices or piece.lattice is None
            count += piece.box.size
            if piece.origin is None:
                got[piece.place] = piece.fill
            else:
                (origin,) = tw.evaluate([piece.origin])
                assert piece.origin.type.box.contains(piece.region)
                for point, value in zip(piece.box, got[piece.place].flat, strict=True):
                    assert value == -(10**6)
                    assert len(point) == tensor.ndim
                got[piece.place] = np.array([origin[piece.map(p)] for p in piece.box]).reshape(piece.box.shape)
        assert count == box.size
        inside = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
        np.testing.assert_array_equal(got[inside], array[inside])


def test_an_interleave_resolves_to_one_lattice_per_part():
    x, y = tw.as_tensor(np.arange(1000)), tw.as_tensor(np.arange(1000))
    both = tw.interleave([x, y])
    assert len(tw.resolve(both, both.type.box, lattices=True)) == 2
    assert len(tw.resolve(both, Box((10,), (6,)))) == 6
    assert tw.resolve(both[::2], Box((0,), (1000,)))[0].origin is x


def test_a_strided_convolution_in_both_ways_reads_the_same():
    """Every second window directly, or the even and odd dense halves interleaved and then strided."""
    x = tw.as_tensor(np.arange(20))
    windows = tw.interleave([x[0::2], x[1::2]])
    same(windows, np.arange(20))
    same(tw.stride(windows, 2), np.arange(0, 20, 2))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda x: tw.pad(x, -1), "width is -1"),
        (lambda x: tw.pad(x, (1, 2, 3)), "do not fit rank 2"),
        (lambda x: tw.pad(x, 1, "mirror"), "mode 'mirror'"),
        (lambda x: tw.pad(x[:0], 1, "reflect"), "nothing to reflect"),
        (lambda x: tw.copies(x, -1), "count is -1"),
        (lambda x: tw.copies(x, 2, 2), "axis 2"),
        (lambda x: tw.stride(x, 0), "step is 0"),
        (lambda x: tw.interleave([]), "no tensor"),
        (lambda x: tw.interleave([x, x[:2]]), "does not fit tensor 0"),
    ],
)
def test_what_does_not_fit_is_refused(call, problem):
    with pytest.raises(GraphError, match=problem):
        call(tw.as_tensor(np.ones((3, 4))))


def test_wrong_assemblies_break_a_rule():
    x = tw.as_tensor(np.ones((3, 4)))
    for good in (tw.copies(x, 2), tw.interleave([x, x * 2], 1), tw.pad(x, (1, 2), "reflect")):
        node = good.producer
        assert tw.problems(tw.Graph.of(good)) == []
        wide = tuple(n + (k == node.parameter("dim")) for k, n in enumerate(node.out.shape))
        bad = tw.Selector(node.kind, node.inputs, tw.TensorType(wide, x.dtype), node.parameters)
        with pytest.raises(VerifyError) as caught:
            tw.verify(tw.Graph.of(tw.Tensor(bad)))
        assert caught.value.rule == "selector.parameters-fit"


def test_every_assembly_is_a_selector_and_names_are_taken_once():
    assert set(SEGMENTS) <= set(SELECTORS)
    with pytest.raises(GraphError, match="'pad' is taken"):
        register_assembly("pad", lambda selector: iter(()))
