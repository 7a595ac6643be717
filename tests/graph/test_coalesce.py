"""From shards back to the abstract graph."""

import numpy as np
import pytest
from arrays import same, values
from random_graphs import close, random_graph, random_partitions

from tileweave import graph as tw
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.rules import ONE_VIEW

RNG = np.random.default_rng(0)
X, W, B = values(RNG, (7, 5), "int64"), values(RNG, (5, 4), "int64"), values(RNG, (4,), "int64")

WHOLE = {
    "add": tw.add(X, X[0]),
    "chain": tw.relu(tw.as_tensor(X) * 2 + 1),
    "matmul": tw.matmul(X, W),
    "linear": tw.linear(X, W, B),
    "network": tw.matmul(tw.relu(tw.linear(X, W, B)), W.T),
    "linear-relu": rewrite(tw.Graph.of(tw.relu(tw.linear(X, W, B))), tw.OPTIMIZATIONS).graph.sinks[0].tensor,
    "sum": tw.sum(X, 1),
    "max": tw.max(tw.exp(X)),
    "softmax": tw.softmax(X / 3),
    "conv": tw.conv(X[None, None], values(RNG, (2, 1, 3, 2), "int64"), stride=(1, 2)),
    "convs": tw.conv(tw.relu(tw.conv(X[None], values(RNG, (2, 7, 2), "int64"))), values(RNG, (3, 2, 2), "int64")),
    "pool": tw.max_pool(X[None, None], 2, stride=1),
    "random": tw.uniform((6, 4), 3) + 1.0,
    "three": tw.einsum("ij,jk,kl->il", X, W, W.T),
}


def uncut(graph):
    return [o.operator for o in graph.operations]


@pytest.mark.parametrize("name", WHOLE)
def test_coalesce_undoes_expand(name):
    """The very same object comes back, whatever the cuts."""
    whole = rewrite(tw.Graph.of(WHOLE[name]), [ONE_VIEW]).graph
    for seed in range(6):
        sharded = tw.expand(whole, random_partitions(np.random.default_rng(seed), whole))
        back = rewrite(tw.coalesce(sharded), [ONE_VIEW]).graph
        assert uncut(back) == uncut(whole)
        assert back is whole or tw.is_sharding(back, whole)  # a slice may have become the equal view


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_random_graphs_keep_their_value(dtype):
    fewer = 0
    for seed in range(15):
        made = random_graph(seed + 40, dtype, 6)
        graph = tw.Graph.of(*(v.tensor for v in made))
        sharded = tw.expand(graph, random_partitions(np.random.default_rng(seed), graph))
        back = tw.verify(tw.coalesce(sharded))
        whole = tw.evaluate([v.tensor for v in made])
        for v, got, want in zip(made, tw.evaluate([s.tensor for s in back.sinks]), whole, strict=True):
            close(v, got, want)
        assert tw.coalesce(graph).sinks[0].tensor.type == graph.sinks[0].tensor.type
        fewer += len(sharded.operations) - len(back.operations)
    assert fewer > 50


def test_an_add_over_two_sources_is_one_add_over_their_concat():
    """The document's first two graphs, backwards."""
    a1, a2, b = (tw.as_tensor(values(RNG, shape, "int64")) for shape in ((5, 3), (5, 3), (3,)))
    shards = tw.concat([tw.add(a1, b), tw.add(a2, b)])
    assert tw.coalesce(tw.Graph.of(shards)) is tw.Graph.of(shards)  # both have the index of a first half: no telling
    whole = tw.Graph.of(tw.add(tw.concat([a1, a2]), b))
    (add,) = whole.operations
    sharded = tw.expand(whole, {add: tw.partition(add, (2, 1))})
    assert all(o.input("x0") in (a1, a2) for o in sharded.operations)
    assert tw.coalesce(sharded) is whole


def test_what_is_no_block_stays():
    x = tw.as_tensor(X)
    for graph in (
        tw.Graph.of(tw.concat([x + 1, x + 2])),
        tw.Graph.of(tw.concat([tw.exp(x), tw.tanh(x)])),
        tw.Graph.of(tw.concat([(x + 1)[:3], (x + 1)[4:]])),
        tw.Graph.of(tw.sum(tw.concat([tw.unsqueeze(x, 0), tw.unsqueeze(x, 0)]), 0)),
    ):
        assert tw.coalesce(graph) is graph


def test_sequence_points_hold_the_joined_operation():
    first = tw.add(X, 1).producer
    point = tw.SequencePoint((first,))
    plain = tw.negative(tw.Tensor(first)).producer
    late = tw.Operation(
        plain.operator, plain.index, plain.inputs, plain.outputs, plain.parameters, plain.signature, (point,)
    )
    whole = tw.Graph.of(tw.Tensor(late))
    sharded = tw.expand(whole, {first: tw.partition(first, (3, 1)), late: tw.partition(late, (2, 1))})
    back = tw.verify(tw.coalesce(sharded))
    same(back.sinks[0].tensor, -(X + 1))
    assert all(o.after for o in back.operations if o.operator == "negative")


def test_a_deep_chain_needs_no_recursion():
    y = tw.as_tensor(X)
    for k in range(600):
        y = y + k
    whole = tw.Graph.of(y)
    sharded = tw.expand(whole, {o: tw.partition(o, (2, 1)) for o in whole.operations})
    assert tw.coalesce(sharded) is whole
