"""Both of the document's ways to strided convolution agree: striding projections, and strided slices of dense parts."""

import itertools

import numpy as np
import pytest
from arrays import values

from strategies import enumerate_image
from tileweave import graph as tw
from tileweave.graph.passes.dense import DENSE
from tileweave.graph.passes.rewrite import RewriteContext, choices, rewrite
from tileweave.graph.passes.shard import shard_operation

RNG = np.random.default_rng(0)


def dense(tensor):
    """The tensor's convolutions in dense parts; every step is checked."""
    done = rewrite(tw.Graph.of(tensor), DENSE)
    assert done.complete
    graph = tw.verify(done.graph)
    for operation in graph.operations:
        if operation.operator == "conv":
            dims = zip(operation.parameter("stride"), operation.parameter("dilation"), operation.input("w").shape[2:],
                       strict=True)  # fmt: skip
            assert all(s == 1 and (d == 1 or window == 1) for s, d, window in dims)
    return graph


def read_from(graph, source):
    """The elements of a source that the convolutions of a graph read."""
    seen = set()
    for operation in graph.operations:
        if operation.operator == "conv":
            x = operation.input("x")
            for piece in tw.resolve(x, x.type.box):
                if piece.origin is source:
                    seen |= {piece.map(point) for point in piece.box}
    return seen


def test_every_short_convolution_is_its_dense_parts():
    """All lengths to 8, windows to 4, steps and gaps to 4, exhaustively: equal values from the same elements."""
    tried = 0
    for n, window, s, d in itertools.product(range(1, 9), range(1, 5), range(1, 5), range(1, 5)):
        if d * (window - 1) + 1 > n:
            continue
        x = tw.as_tensor(values(RNG, (1, 1, n), "int64"))
        w = values(RNG, (2, 1, window), "int64")
        striding = tw.conv(x, w, stride=s, dilation=d)
        parts = dense(striding)
        np.testing.assert_array_equal(*tw.evaluate([striding, parts.sinks[0].tensor]))
        operation = striding.producer
        image = enumerate_image(operation.signature.input("x"), operation.index)
        assert read_from(parts, x) == image
        tried += 1
    assert tried > 200


@pytest.mark.parametrize(
    "shape, kernel, stride, dilation, groups",
    [
        ((2, 3, 11, 9), (4, 3, 3, 2), (2, 3), (1, 1), 1),
        ((2, 3, 11, 12), (4, 3, 3, 3), (1, 1), (2, 3), 1),
        ((2, 4, 13, 12), (6, 2, 3, 3), (2, 1), (3, 2), 2),
        ((1, 4, 14, 15), (4, 1, 3, 4), (4, 2), (2, 4), 4),
        ((2, 2, 7, 8, 9), (3, 2, 2, 3, 2), (2, 1, 3), (1, 2, 2), 1),
    ],
)
def test_convolutions_of_any_rank_are_their_dense_parts(shape, kernel, stride, dilation, groups):
    for dtype in ("int64", "float64"):
        x, w = values(RNG, shape, dtype), values(RNG, kernel, dtype)
        striding = tw.conv(x, w, stride=stride, dilation=dilation, groups=groups)
        graph = dense(striding)
        assert len(graph.operations) > 1
        got, want = tw.evaluate([graph.sinks[0].tensor, striding])
        np.testing.assert_array_equal(got, want)  # eighths: sums are exact in float64, too
        cuts = {
            o: tw.partition(o, [min(2, n) for n in o.index.shape]) for o in graph.operations if o.operator == "conv"
        }
        sharded = tw.verify(tw.expand(graph, cuts))
        np.testing.assert_array_equal(*tw.evaluate([sharded.sinks[0].tensor, striding]))


def test_blocks_of_a_convolution_have_dense_parts():
    """Shards along batch, groups, filters, channels and space are rewritten as they are."""
    for groups in (1, 2):
        whole = tw.conv(values(RNG, (3, 4, 12), "int64"), values(RNG, (6, 4 // groups, 3), "int64"), stride=2,
                        dilation=3, groups=groups).producer  # fmt: skip
        for dim, n in enumerate(whole.index.shape):
            block = tw.Tensor(shard_operation(whole, whole.index.with_range(dim, n // 2, n)))
            np.testing.assert_array_equal(*tw.evaluate([block, dense(block).sinks[0].tensor]))


def test_dense_convolutions_and_blocks_without_a_signature_stay():
    x = tw.as_tensor(np.ones((1, 1, 6)))
    fixed = tw.conv(x, np.ones((1, 1, 2)), stride=2).producer
    bare = tw.Operation(fixed.operator, fixed.index, fixed.inputs, fixed.outputs, fixed.parameters)
    for tensor in (tw.conv(x, np.ones((1, 1, 2))), tw.conv(x, np.ones((1, 1, 1)), dilation=3), tw.Tensor(bare)):
        assert choices(tensor, DENSE, RewriteContext({})) == []
